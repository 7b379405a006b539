"""tandemmq/doctor/host.py and hostfacts.py: what of a machine is bad for a broker."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tandemmq.doctor.atstart import advise_at_start
from tandemmq.doctor.findings import Finding, Severity, in_order, size_text, worst
from tandemmq.doctor.host import GIB, MIB, DiskFacts, HostFacts, host_findings
from tandemmq.doctor.hostfacts import clock_synchronised, disk_facts, host_facts

DISK = DiskFacts(
    path="/data", mount="/data", file_system="ext4", used=0.3, free_bytes=70 * GIB,
    inodes_used=0.1, read_only=False, writable=True, owner=10001,
)  # fmt: skip
GOOD = HostFacts(
    user=10001, memory_bytes=16 * GIB, available_bytes=12 * GIB, swap_bytes=4 * GIB, swappiness=1,
    limit_bytes=GIB, limit_used_bytes=64 * MIB, dirty_bytes=GIB, background_bytes=256 * MIB,
    open_files=65_536, map_count=262_144, clock_source="tsc", clock_synchronised=True,
    processor_share=2.0, first_local_port=32_768, disks=(DISK,),
)  # fmt: skip


def found(**changes: Any) -> dict[str, Finding]:
    return {each.check: each for each in host_findings(dataclasses.replace(GOOD, **changes))}


def on_disk(**changes: Any) -> dict[str, Finding]:
    return found(disks=(dataclasses.replace(DISK, **changes),))


def test_a_machine_that_suits_has_no_finding_and_one_that_says_nothing_neither() -> None:
    assert found() == {}
    assert host_findings(HostFacts()) == []


@pytest.mark.parametrize(
    ("check", "severity", "changes"),
    [
        ("memory-limit", Severity.WARNING, {"limit_bytes": 200 * MIB, "limit_used_bytes": 0}),
        ("page-cache", Severity.WARNING, {"available_bytes": 300 * MIB}),
        ("page-cache", Severity.WARNING, {"limit_bytes": GIB, "limit_used_bytes": 800 * MIB}),
        ("swappiness", Severity.ADVICE, {"swappiness": 60}),
        ("dirty-memory", Severity.ADVICE, {"dirty_bytes": 3 * GIB}),
        ("max-map-count", Severity.ADVICE, {"map_count": 65_530}),
        ("open-files", Severity.WARNING, {"open_files": 1_024}),
        ("local-ports", Severity.WARNING, {"first_local_port": 1_024}),
        ("processor-limit", Severity.ADVICE, {"processor_share": 0.5}),
        ("compiled", Severity.ADVICE, {"compiled": False}),
        ("clock", Severity.ADVICE, {"clock_synchronised": False}),
        ("clock-source", Severity.ADVICE, {"clock_source": "hpet"}),
    ],
)
def test_what_is_bad_is_named_with_what_to_do(
    check: str, severity: Severity, changes: dict[str, Any]
) -> None:
    shown = found(**changes)
    assert check in shown
    assert shown[check].severity is severity
    assert shown[check].do


def test_swappiness_without_swap_is_no_finding() -> None:
    assert found(swappiness=60, swap_bytes=0) == {}


@pytest.mark.parametrize(
    ("check", "severity", "changes"),
    [
        ("disk-read-only", Severity.CRITICAL, {"read_only": True}),
        ("disk-owner", Severity.CRITICAL, {"writable": False, "owner": 0}),
        ("disk-owner", Severity.CRITICAL, {"writable": False}),
        ("disk-no-directory", Severity.CRITICAL, {"writable": False, "directory": False}),
        ("disk-space", Severity.WARNING, {"used": 0.82}),
        ("disk-space", Severity.CRITICAL, {"used": 0.91}),
        ("disk-inodes", Severity.WARNING, {"inodes_used": 0.99}),
        ("disk-remote", Severity.WARNING, {"file_system": "nfs4"}),
        ("disk-memory", Severity.WARNING, {"file_system": "tmpfs"}),
        ("disk-container", Severity.WARNING, {"file_system": "overlay"}),
        ("disk-file-system", Severity.ADVICE, {"file_system": "fuse.sshfs"}),
    ],
)
def test_what_is_bad_about_a_disk(check: str, severity: Severity, changes: dict[str, Any]) -> None:
    assert {name: each.severity for name, each in on_disk(**changes).items()} == {check: severity}


def test_a_volume_of_another_user_is_told_with_both_users() -> None:
    shown = on_disk(writable=False, owner=0)["disk-owner"]
    assert "user 10001 may not write there; it belongs to user 0" in shown.text
    assert shown.do.startswith("chown -R 10001 /data")
    assert on_disk(writable=False)["disk-owner"].do == "chmod -R u+rwX /data"


def test_the_worst_comes_first_and_counts() -> None:
    shown = in_order(host_findings(dataclasses.replace(GOOD, map_count=1, open_files=1)))
    assert [each.check for each in shown] == ["open-files", "max-map-count"]
    assert worst(shown) is Severity.WARNING
    assert worst([]) is None


def test_sizes_are_read_at_a_glance() -> None:
    assert [size_text(n) for n in (12, 1536, 5 * MIB, 200 * MIB, 3 << 40, 3000 << 40)] == [
        "12 B", "1.5 KiB", "5.0 MiB", "200 MiB", "3.0 TiB", "3000 TiB",
    ]  # fmt: skip


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_facts_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    store = tmp_path / "store"
    root = machine(
        tmp_path / "root",
        {
            "proc/meminfo": "MemTotal:       1000 kB\nMemAvailable:    400 kB\nSwapTotal:  0 kB\nHuge: 0\n",
            "proc/sys/vm/swappiness": "60\n",
            "proc/sys/vm/max_map_count": "65530\n",
            "proc/sys/vm/dirty_bytes": "0\n",
            "proc/sys/vm/dirty_ratio": "20\n",
            "proc/sys/vm/dirty_background_bytes": "5000\n",
            "proc/sys/vm/dirty_background_ratio": "0\n",
            "proc/sys/net/ipv4/ip_local_port_range": "10000\t60999\n",
            "proc/self/mounts": f"/dev/a / ext4 rw 0 0\n/dev/b {tmp_path}\\040x xfs rw 0 0\n"
            f"/dev/c {tmp_path} btrfs rw 0 0\n",
            "sys/fs/cgroup/memory.max": "104857600\n",
            "sys/fs/cgroup/memory.stat": "anon 4096\nfile 8192\n",
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
            "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
        },
    )
    facts = host_facts([store], root)
    assert (facts.memory_bytes, facts.available_bytes, facts.swap_bytes) == (1_024_000, 409_600, 0)
    assert (facts.swappiness, facts.map_count, facts.first_local_port) == (60, 65_530, 10_000)
    assert (facts.dirty_bytes, facts.background_bytes) == (81_920, 5_000)
    assert (facts.limit_bytes, facts.limit_used_bytes) == (104_857_600, 4_096)
    assert (facts.processor_share, facts.clock_source) == (0.5, "hpet")
    (disk,) = facts.disks
    assert (disk.file_system, disk.mount, disk.path) == ("btrfs", str(tmp_path), str(store))


def test_a_cgroup_of_the_first_version_and_one_without_limits_are_understood(
    tmp_path: Path,
) -> None:
    old = machine(
        tmp_path / "old",
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "104857600",
            "sys/fs/cgroup/memory/memory.stat": "cache 1\nrss 7\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    facts = host_facts([], old)
    assert (facts.limit_bytes, facts.limit_used_bytes, facts.processor_share) == (
        104_857_600,
        7,
        None,
    )
    free = machine(
        tmp_path / "free",
        {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/cpu.max": "max 100000\n"},
    )
    facts = host_facts([], free)
    assert (facts.limit_bytes, facts.processor_share, facts.memory_bytes) == (None, None, None)


def test_this_machine_can_be_looked_at_and_is_not_changed(tmp_path: Path) -> None:
    facts = host_facts([tmp_path, tmp_path / "not" / "there"])
    assert facts.user == os.geteuid()
    assert clock_synchronised() in (True, False, None)
    first, second = facts.disks
    assert first.writable and second.writable
    assert (first.owner, second.mount) == (os.geteuid(), first.mount)
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_a_store_should_be_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"")
    assert disk_facts(tmp_path / "new" / "store").directory
    assert not disk_facts(tmp_path / "store" / "commitlog").directory


def test_a_directory_that_may_not_be_entered_is_one_of_another(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if os.access(locked, os.W_OK):
        pytest.skip("root may write anywhere: the image's tests look at another user's volume")
    assert not disk_facts(locked / "store").writable


def test_a_servers_log_names_warnings_singly_and_advice_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = dataclasses.replace(
        GOOD, map_count=1, dirty_bytes=9 * GIB, open_files=9, available_bytes=MIB
    )
    monkeypatch.setattr("tandemmq.doctor.atstart.host_facts", lambda stores: facts)
    with caplog.at_level(logging.INFO):
        advise_at_start([tmp_path], logging.getLogger("start"))
    warning, advice = caplog.records
    assert warning.getMessage().startswith("host page-cache where=this machine what=")
    assert "do=leave" in warning.getMessage()
    assert "checks=dirty-memory,max-map-count" in advice.getMessage()
