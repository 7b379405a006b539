"""A replica's store comes back with less than it had, as real processes: it is not elected without a word."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tandemmq import Message, Producer, SendStatus
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup, ReplicaProcess
from tandemmq.chaos.replicalogs import read_log

pytestmark = pytest.mark.system

TOPIC = "Short"
MESSAGES = 100
LONG_ENOUGH_S = 6  # several election waits


@asynccontextmanager
async def group_with_messages(
    directory: Path,
) -> AsyncIterator[tuple[ReplicaGroup, ReplicaProcess, ReplicaProcess]]:
    """An S0 pair that has acknowledged its messages: the group, its master and its slave."""
    async with ReplicaGroup(directory, GroupPlan()) as group:
        await group.start()
        await group.create_topic(TOPIC, 4)
        view = await group.whole()
        assert view.master is not None
        master = group.replica_at(view.master)
        (slave,) = (each for each in group.replicas if each is not master)
        await send(group, MESSAGES)
        yield group, master, slave


async def send(group: ReplicaGroup, count: int) -> None:
    async with Producer("PG", namesrv=group.name_server_address, timeout_ms=10_000) as producer:
        for number in range(count):
            result = await producer.send(Message(TOPIC, b"%d" % number))
            assert result.status is SendStatus.SEND_OK


async def nobody_is_elected(group: ReplicaGroup, epoch: int) -> None:
    """For as long as somebody would have been."""
    for _ in range(LONG_ENOUGH_S * 4):
        view = await group.view()
        assert view is None or view.epoch == epoch, f"elected without a word: {view}"
        await asyncio.sleep(0.25)


def kept(replica: ReplicaProcess) -> int:
    log = read_log(replica.store, frozenset({TOPIC}))
    assert not log.problems, log.problems
    return sum(len(queue) for queue in log.queues.values())


async def both_die(master: ReplicaProcess, slave: ReplicaProcess) -> None:
    """The slave a moment before: it is still of the set, and elected no more."""
    await slave.kill()
    await master.kill()


@pytest.mark.parametrize("controller_too", [False, True], ids=["", "controller killed"])
async def test_an_emptied_store_is_not_elected_where_its_set_held_a_hundred_messages(
    tmp_path: Path, controller_too: bool
) -> None:
    """INV-37"""
    async with group_with_messages(tmp_path) as (group, master, slave):
        await asyncio.sleep(1.5)  # the controller hears of it by heartbeat
        view = await group.whole()
        await both_die(master, slave)
        if controller_too:
            await group.name_server.kill()
            group.name_server.launch()
        identity = (slave.store / "brokerIdentity").read_bytes()
        shutil.rmtree(slave.store)  # the volume is not mounted; who it is, lies elsewhere
        slave.store.mkdir()
        (slave.store / "brokerIdentity").write_bytes(identity)
        slave.launch()
        await nobody_is_elected(group, view.epoch)
        said = group.name_server.tail(1_000_000)
        assert "store came back with less than it had" in said
        assert "confirmed messages may be lost" not in said
        master.launch()
        view = await group.whole(30)
        assert view.master == master.address
        await send(group, 1)
        for each in group.replicas:
            await each.terminate()
        assert [kept(each) for each in group.replicas] == [MESSAGES + 1, MESSAGES + 1]


async def test_a_store_without_its_end_knows_that_itself(tmp_path: Path) -> None:
    """INV-37: the log's files are gone, and what lies beside them is not."""
    async with group_with_messages(tmp_path) as (group, master, slave):
        await asyncio.sleep(1.5)
        view = await group.whole()
        await both_die(master, slave)
        shutil.rmtree(slave.store / "commitlog")
        slave.launch()
        await nobody_is_elected(group, view.epoch)
        why = "this replica may have lost what it had reported why=the log ends at 0"
        assert why in slave.tail(1_000_000)


async def test_a_restored_copy_of_a_store_is_told_by_its_processes(tmp_path: Path) -> None:
    """INV-38: as long as the others of its set are gone, an old copy is not good enough."""
    async with group_with_messages(tmp_path) as (group, master, slave):
        await slave.terminate()
        copy = tmp_path / "copy"
        shutil.copytree(slave.store, copy)
        slave.launch()
        view = await group.whole(30)
        await both_die(master, slave)
        shutil.rmtree(slave.store)
        shutil.copytree(copy, slave.store)
        slave.launch()
        await nobody_is_elected(group, view.epoch)
        assert "has a copy of its store, restored or cloned" in group.name_server.tail(1_000_000)
        master.launch()
        assert (await group.whole(30)).master == master.address
