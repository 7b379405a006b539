"""A slow disk of the master, as producers of a real pair see it: no slave is blamed for it. One that stands still is
left for a slave's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from failing_disk import FailingDisk, compiler
from raw_wire import SEND, Wire, json_frame, send_ext
from steady_sends import roles

from tandemmq.chaos.groups import GroupPlan, ReplicaGroup, ReplicaProcess

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(compiler() is None, reason="needs a C compiler for the failing disk"),
]

TOPIC = "Slow"
SUCCESS, FLUSH_DISK_TIMEOUT = 0, 10
SEGMENT_BYTES = 64 << 10
BODY = b"x" * (8 << 10)
SETTINGS = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "slaveTimeout": 800,
    "haMaxTimeSlaveNotCatchup": 600,
    "syncFlushTimeout": 2_500,
    "haDiskStallMillis": 4_000,
}


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[tuple[ReplicaGroup, ReplicaProcess, FailingDisk]]:
    """A pair in S1, its master, and the master's disk."""
    async with ReplicaGroup(directory, GroupPlan(sync_flush=True, settings=SETTINGS)) as group:
        disks = {}
        for replica in group.replicas:
            disk = FailingDisk(directory / f"shim-{replica.number}", replica.store)
            replica.prefix = ["env", *(f"{key}={value}" for key, value in disk.env.items())]
            disks[replica.number] = disk
        await group.start()
        await group.create_topic(TOPIC, 4)
        master, _, _ = await roles(group)
        yield group, master, disks[master.number]


def send(master: ReplicaProcess, count: int) -> Counter[int]:
    """So many sends at once; how often each code came back."""
    with Wire(master.address, timeout_s=20) as wire:
        for number in range(count):
            wire.send(json_frame(SEND, send_ext(TOPIC, number % 4), BODY, opaque=number + 1))
        return Counter(wire.read().code for _ in range(count))


async def test_who_waits_for_the_masters_disk_is_never_told_of_a_slow_slave(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, master, disk):
        epoch = (await group.whole()).epoch
        assert send(master, 10) == {SUCCESS: 10}
        # One flush of several files: each takes long, and the first are through long before the last.
        disk.set(("fdatasync", 0, 400, "commitlog"))
        assert await asyncio.to_thread(send, master, 3 * SEGMENT_BYTES // len(BODY)) == {
            SUCCESS: 3 * SEGMENT_BYTES // len(BODY)
        }
        assert disk.hits("fdatasync") >= 3
        disk.set(("fdatasync", 0, 3_000, "commitlog"))
        assert await asyncio.to_thread(send, master, 10) == {FLUSH_DISK_TIMEOUT: 10}
        disk.set()
        view = await group.whole()
        assert (view.epoch, len(view.in_sync)) == (epoch, 2), "nobody had to go"

        assert await asyncio.to_thread(send, master, 10) == {SUCCESS: 10}
        disk.set(("fdatasync", 0, 60_000, "commitlog"))
        began_s = asyncio.get_running_loop().time()
        assert await asyncio.to_thread(send, master, 10) == {FLUSH_DISK_TIMEOUT: 10}
        (other,) = (each for each in group.replicas if each is not master)
        async with asyncio.timeout(30):
            while (await group.addresses(TOPIC) or {}).get(0) != other.address:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert asyncio.get_running_loop().time() - began_s > 4.0, (
            "not before it stood still for that long"
        )
        assert await asyncio.to_thread(send, other, 10) == {SUCCESS: 10}
        assert master.alive
        disk.set()
        assert (await group.whole()).epoch == epoch + 1, "once, and not back"
