"""Faults of machines on processes that are no brokers: each shows what it does, and that it is over."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tandemmq.chaos.faults.clocks import ClockDrift, SteppingClock
from tandemmq.chaos.faults.failing_disk import compiler
from tandemmq.chaos.faults.fault import NoEffect, Unsupported
from tandemmq.chaos.faults.memory import MIB, MemoryPressure
from tandemmq.chaos.faults.memory import unsupported as no_memory
from tandemmq.chaos.faults.processes import Killed
from tandemmq.chaos.faults.rot import BitRot, files_of, flip, place_in_file, place_in_log
from tandemmq.chaos.faults.thin import ThinDisk, ThinDiskFull
from tandemmq.chaos.faults.thin import unsupported as no_thin
from tandemmq.chaos.groups import ReplicaProcess
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.storage import Draft, StorageConfig, open_store

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

#: listens, appends to a file and flushes it, and ends with 7 when that fails; says how its clocks went
BUSY = """
import os, socket, sys, time
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
began = time.monotonic()
file = os.open(sys.argv[3], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
while True:
    time.monotonic()
    try:
        os.write(file, b"x" * 300_000)
        os.fdatasync(file)
    except OSError as problem:
        sys.exit(7)
    time.sleep(0.01)
"""


@asynccontextmanager
async def busy(directory: Path, at: Path, env: dict[str, str]) -> AsyncIterator[ReplicaProcess]:
    port = PORTS.take((0,))
    command = [sys.executable, "-c", BUSY, LOOPBACK, str(port), str(at / "grows")]
    with ReplicaProcess(0, port, at, command, directory / "busy.log", env) as process:
        process.launch()
        await Killed(process, process.address).heal()
        yield process


def groups_left() -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/tandem-chaos-{os.getpid()}-*"))


def mounts_left(directory: Path) -> list[str]:
    return [
        each for each in Path("/proc/mounts").read_text().splitlines() if str(directory) in each
    ]


async def test_clocks_that_drift_show_it_and_do_not_go_back(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("needs a C compiler (Debian: gcc)")
    clock = SteppingClock(tmp_path / "shim")
    async with busy(tmp_path, tmp_path, clock.env) as process:
        async with ClockDrift(process.name, clock, 50_000) as fault:
            assert "ms off" in fault.story.evidence
            assert 0.010 <= float(fault.story.evidence.split("+")[1].split()[0]) / 1000 < 5
        assert fault.story.effective
        assert clock.gained_ms >= 10
        slow = ClockDrift(process.name, clock, -50_000)
        async with slow:
            assert "-" in slow.story.evidence
        assert process.alive


async def test_a_drift_that_nobody_looks_at_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler() is None:
        pytest.skip("needs a C compiler (Debian: gcc)")
    monkeypatch.setattr("tandemmq.chaos.faults.clocks.DRIFT_S", 0.3)
    clock = SteppingClock(tmp_path / "shim")
    async with busy(tmp_path, tmp_path, {}) as process:  # without the shim
        with pytest.raises(NoEffect):
            async with ClockDrift(process.name, clock, 50_000):
                pytest.fail("nobody saw it")


async def test_a_process_short_of_memory_meets_its_limit_and_goes_on(tmp_path: Path) -> None:
    if missing := no_memory():
        pytest.skip(missing)
    async with busy(tmp_path, tmp_path, {}) as process:
        try:
            fault = MemoryPressure(process, process.address, 4 * MIB)
            async with fault:
                assert "met the limit" in fault.story.evidence
        except Unsupported as missing_here:
            pytest.skip(str(missing_here))
        assert fault.story.effective
        assert process.alive
        assert not groups_left()


async def test_a_thin_disk_fails_at_fsync_ends_who_flushes_and_is_repaired(tmp_path: Path) -> None:
    if missing := no_thin():
        pytest.skip(missing)
    try:
        disk = ThinDisk(tmp_path / "disk", 48)
        with disk:
            async with busy(tmp_path, disk.at, {}) as process:
                fault = ThinDiskFull(process, process.address, disk)
                async with fault:
                    assert "fsync of a new file fails" in fault.story.evidence
                assert fault.story.effective, fault.story
                assert "exit code 7" in fault.story.healing
                assert process.alive
        assert not mounts_left(tmp_path)
    except Unsupported as missing_here:
        pytest.skip(str(missing_here))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store with some messages in one queue."""
    config = StorageConfig(root=str(tmp_path / "store"), segment_bytes=65_536, index_slots=500)
    with open_store(config) as made:
        for number in range(50):
            made.put(Draft("T", 0, b"%d" % number * 100))
        while made.dispatch():
            pass
    return tmp_path / "store"


def test_one_bit_of_a_record_or_of_a_table_is_another_one(store: Path) -> None:
    rng = random.Random(3)
    path, at = place_in_log(store, rng)
    content = path.read_bytes()
    before, now = flip(path, at, 2)
    assert (before ^ now) == 4
    changed = path.read_bytes()
    assert [i for i in range(len(content)) if content[i] != changed[i]] == [at]
    path, at = place_in_file(files_of(store, "queue"), rng)
    assert path.read_bytes()[at]
    assert files_of(store, "epochs") == []


async def test_rot_of_what_is_not_there_has_no_effect(tmp_path: Path) -> None:
    async with busy(tmp_path, tmp_path, {}) as process:
        with pytest.raises(NoEffect, match="has no epochs"):
            async with BitRot(process, process.address, "epochs", random.Random(1)):
                pytest.fail("there is no such file")
        assert process.alive, "healing starts it"
