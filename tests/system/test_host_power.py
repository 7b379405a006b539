"""Machines lose their power under load: short runs of tandemmq.chaos.hostcuts, on real file systems."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tandemmq.chaos import hosts
from tandemmq.chaos.groups import GroupPlan
from tandemmq.chaos.hostcuts import HostCuts
from tandemmq.chaos.hosts import BOOT_ID, FILE_SYSTEMS, Disks, FileSystem, as_host, unsupported
from tandemmq.chaos.processes import ProcessBroken
from tandemmq.chaos.traffic import TrafficPlan

pytestmark = [pytest.mark.system, pytest.mark.timeout(480)]

SEED = 20261122
LIGHT = TrafficPlan(producers=2, rate=200)


def sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def needs(file_system: FileSystem) -> None:
    if missing := unsupported(file_system):
        pytest.skip(missing)


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_a_cut_takes_what_was_not_synced_and_nothing_else(
    tmp_path: Path, file_system: FileSystem
) -> None:
    """What the campaign rests on: else it would show nothing."""
    needs(file_system)
    with Disks(tmp_path, 1, file_system) as disks:
        (disk,) = disks.all
        boot_id = disk.boot_id.read_text()
        with (disk.at / "file").open("wb", buffering=0) as file:
            file.write(b"kept" * 4096)
            os.fsync(file.fileno())
            sync_directory(disk.at)
            file.write(b"gone" * 4096)
        (disk.at / "new").write_bytes(b"gone")
        disk.cut()
        assert disk.is_shut()
        disk.unmount()
        disk.boot()
        assert (disk.at / "file").read_bytes() == b"kept" * 4096
        assert [path.name for path in disk.at.iterdir() if path.is_file()] == ["file"]
        assert disk.boot_id.read_text() != boot_id


def test_a_host_keeps_no_disk_but_its_own_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another campaign neither: its file system would live on, shut down, and be what is mounted again."""
    needs("ext4")
    (tmp_path / "other").mkdir()
    with Disks(tmp_path, 2, "ext4") as disks, Disks(tmp_path / "other", 1, "ext4") as others:
        own = disks.all[1]
        shown = subprocess.run(
            [*as_host(own), "sh", "-c", f"cat /proc/self/mounts {BOOT_ID}"],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        seen = [each.at for each in (*disks.all, *others.all) if f" {each.at} " in shown]
        assert seen == [own.at]
        assert shown.endswith(own.boot_id.read_text())

        monkeypatch.setattr(hosts, "UNMOUNT_S", 0.2)
        with subprocess.Popen(["unshare", "-m", "sh", "-c", "echo; read x"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:  # fmt: skip
            assert keeper.stdout is not None
            keeper.stdout.readline()
            with pytest.raises(ProcessBroken, match="somebody else keeps"):
                own.unmount()
            keeper.kill()


@pytest.mark.parametrize(
    ("plan", "fault", "rounds"),
    [
        pytest.param(GroupPlan(sync_flush=True), "all", 4, id="S1 all"),
        pytest.param(GroupPlan(), "one", 5, id="S0 one"),
    ],
)
async def test_a_group_keeps_what_its_mode_promises_when_machines_lose_power(
    tmp_path: Path, plan: GroupPlan, fault: str, rounds: int
) -> None:
    needs("ext4")
    campaign = HostCuts(plan, LIGHT, tmp_path, SEED, lambda _: None)
    campaign.rounds, campaign.fault, campaign.load_s = rounds, fault, 0.5
    outcome = await campaign.run()
    print(*outcome.lines(), sep="\n")  # docs/goals.md has what a run shows
    assert outcome.problems == []
    assert outcome.rounds == rounds
    assert outcome.verdict is not None
    assert (outcome.verdict.lost, outcome.verdict.undelivered) == (0, 0)
    assert outcome.sends["ok"] > 100


async def test_a_classic_pair_loses_nothing_when_a_person_does_what_the_page_says(
    tmp_path: Path,
) -> None:
    """Its master comes back with less than its slave has: docs/howto/classic-replication.md, one log or two."""
    needs("ext4")
    campaign = HostCuts(GroupPlan(), LIGHT, tmp_path, SEED, lambda _: None)
    campaign.classic, campaign.kinds, campaign.load_s = True, {"master_dark": 1}, 0.5
    outcome = await campaign.run()
    print(*outcome.lines(), sep="\n")  # docs/goals.md has what a run shows
    assert outcome.problems == []
    assert outcome.counts["a person: made master"] == 1
    assert outcome.verdict is not None
    assert (outcome.verdict.lost, outcome.verdict.undelivered) == (0, 0)
    assert outcome.sends["ok"] > 50
