"""A group that is upgraded one process after the other, and taken back, under load: no send fails, no message is lost.

The version before is a commit, exported and run without its compiled modules: what counts is what it says on the wire
and writes to the disk, which its readable twins do alike.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import signal
import subprocess
import tarfile
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from command_line import run
from steady_sends import TOPIC, Steady, eventually, roles, sending

from tandemmq import PullConsumer
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup
from tandemmq.chaos.processes import AsyncProcess
from tandemmq.chaos.servers import REPOSITORY, python_env

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

#: the newest commit before the servers had one HTTP port
BEFORE: Final = "4f2f4e4"
SENDS: Final = 60  # acknowledged between two steps


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version before, as a tree. Skips where the history is not there."""
    git = shutil.which("git")
    if git is None or not (REPOSITORY / ".git").exists():
        pytest.skip("the version before comes from the history: run this in a git clone")
    found = subprocess.run(
        [git, "archive", BEFORE], cwd=REPOSITORY, capture_output=True, check=False
    )
    if found.returncode:
        pytest.skip(f"the clone has no commit {BEFORE}: git fetch --unshallow")
    tree = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as packed:
        packed.extractall(tree, filter="data")
    return tree


class Versions:
    """Which version each process of a group runs, and how it is exchanged."""

    def __init__(self, group: ReplicaGroup, before: Path) -> None:
        self.group = group
        self._old = {**python_env(), "PYTHONPATH": str(before), "TANDEM_PURE_PYTHON": "1"}
        for process in group.processes:
            process.env = dict(self._old)

    def is_old(self, process: AsyncProcess) -> bool:
        """What the process itself was started from."""
        environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        old = f"PYTHONPATH={self._old['PYTHONPATH']}".encode() in environment
        mapped = Path(f"/proc/{process.pid}/maps").read_text()
        assert old != (str(REPOSITORY / "storage" / "_record") in mapped), "another tree is loaded"
        return old

    async def exchange(self, process: AsyncProcess, *, old: bool = False) -> None:
        """Stop it in order and start the other version in its place."""
        process.signal(signal.SIGTERM)
        await eventually(lambda: not process.alive, 20, f"{process.name} stops")
        assert process.code == 0, process.tail()
        process.env = dict(self._old) if old else python_env()
        process.launch()
        await self.group.whole(60)
        assert self.is_old(process) is old


async def switch_over(group: ReplicaGroup) -> None:
    """As an operator does: one who did not catch up in 0.4 s, on a busy machine, is asked once more."""
    words = ("switchover", "-n", group.name_server_address, "-bn", group.plan.name)
    for _ in range(20):
        done = await asyncio.to_thread(run, "admin", *words)
        if done.code == 0:
            return
        await group.whole()
    raise AssertionError(done)


async def more(steady: Steady) -> None:
    goal = len(steady.acknowledged) + SENDS
    await eventually(lambda: len(steady.acknowledged) >= goal, 30, "sends go on")


async def stored(group: ReplicaGroup) -> Counter[str]:
    """Ids of every message of the topic."""
    found: Counter[str] = Counter()
    async with PullConsumer("after", namesrv=group.name_server_address) as consumer:
        queues = await consumer.queues(TOPIC)
        begin = {queue: await consumer.min_offset(queue) for queue in queues}
        ends = [await consumer.max_offset(queue) for queue in queues]
        await consumer.assign(queues, positions=begin)
        while found.total() < sum(ends) - sum(begin.values()):
            messages = await consumer.poll(100, timeout_ms=10_000)
            assert messages, found.total()
            found.update(each.message_id for each in messages)
    return found


async def test_replicas_are_upgraded_and_taken_back_one_by_one_without_a_failed_send(
    before: Path, tmp_path: Path
) -> None:
    plan = GroupPlan(settings={"slaveTimeout": 10_000})  # a busy machine is no reason to be unsure
    async with ReplicaGroup(tmp_path, plan) as group:
        versions = Versions(group, before)
        await group.start()
        await group.create_topic(TOPIC, 4)
        assert all(map(versions.is_old, group.processes))
        async with sending(group, retries=2) as steady:
            master, slave, _ = await roles(group)
            await versions.exchange(slave)  # a new slave follows an old master
            await more(steady)
            await switch_over(group)  # an old slave follows a new master
            await more(steady)
            await group.whole()
            await versions.exchange(master)
            await more(steady)
            await versions.exchange(group.name_server)  # with its controller, last
            await more(steady)
            assert not any(map(versions.is_old, group.processes))

            now_master, now_slave, _ = await roles(group)
            await versions.exchange(now_slave, old=True)  # and back, on what the new one wrote
            await more(steady)
            await switch_over(group)
            await more(steady)
            new_master, _, _ = await roles(group)
            assert new_master is now_slave is not now_master
            assert versions.is_old(new_master)
        assert steady.failed == []
        assert steady.unsafe == []
        found = await stored(group)
        acknowledged = {message_id for _, message_id in steady.acknowledged}
        assert acknowledged <= found.keys()
        assert max(found.values()) == 1
        for replica in group.replicas:
            replica.signal(signal.SIGTERM)
        for replica in group.replicas:
            await eventually(lambda replica=replica: not replica.alive, 20, "stopped")
    stores = [replica.store for replica in group.replicas]
    audited = await asyncio.to_thread(run, "audit", "run", *stores, "--index-slots", "5000")
    assert audited.code == 0, audited
    assert "equal" in audited.out
