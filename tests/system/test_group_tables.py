"""A controlled group by real processes: tables follow whoever is master, and survive it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from inbox import Inbox

from tandemmq import Message, Producer, PushConsumer, StartFrom
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup, ReplicaProcess, SeenGroup
from tandemmq.cluster.remoting import Command
from tandemmq.storage import fastjson

pytestmark = pytest.mark.system

ALL_TOPICS, ALL_PROGRESS, ALL_GROUPS = 21, 43, 201
TOPIC = "T"


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[ReplicaGroup]:
    async with ReplicaGroup(tmp_path, GroupPlan(replicas=2)) as made:
        await made.start()
        await made.create_topic(TOPIC, 2)
        yield made


async def table(
    group: ReplicaGroup, replica: ReplicaProcess, code: int, name: str
) -> dict[str, Any]:
    answer = await group.pool.request(replica.address, Command(code), 5_000)
    assert answer.code == 0, answer.remark
    found: dict[str, Any] = fastjson.loads(bytes(answer.body or b""))[name]
    return found


async def topics(group: ReplicaGroup, replica: ReplicaProcess) -> dict[str, Any]:
    return await table(group, replica, ALL_TOPICS, "topicConfigTable")


async def progress(group: ReplicaGroup, replica: ReplicaProcess, consumers: str) -> int:
    found = await table(group, replica, ALL_PROGRESS, "offsetTable")
    return sum(found.get(f"{TOPIC}@{consumers}", {}).values())


async def until(holds: Callable[[], Any], what: str, limit_s: float = 20) -> None:
    try:
        async with asyncio.timeout(limit_s):
            while not await holds():  # noqa: ASYNC110 - a state of another process
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {limit_s:g} s: {what}") from None


async def produce(group: ReplicaGroup, topic: str, first: int, count: int) -> None:
    async with Producer("PG", namesrv=group.name_server_address, timeout_ms=20_000) as producer:
        for number in range(first, first + count):
            await producer.send(Message(topic, b"%d" % number))


async def roles(group: ReplicaGroup) -> tuple[ReplicaProcess, ReplicaProcess]:
    """The master and the slave."""
    view = await group.whole()
    assert view.master is not None
    master = group.replica_at(view.master)
    [slave] = [each for each in group.replicas if each is not master]
    return master, slave


async def succeeded(group: ReplicaGroup, before: ReplicaProcess) -> SeenGroup:
    """Wait for another master; the view."""
    found: list[SeenGroup] = []

    async def other() -> bool:
        view = await group.view()
        if view is None or view.master in (None, before.address):
            return False
        found.append(view)
        routed = await group.addresses(TOPIC)
        return routed is not None and routed.get(0) == view.master

    await until(other, "a new master, and its route")
    return found[-1]


async def test_topics_groups_and_progress_are_the_new_masters_too(group: ReplicaGroup) -> None:
    master, slave = await roles(group)
    inbox = Inbox()
    async with PushConsumer(
        "CG", inbox, namesrv=group.name_server_address, subscribe={TOPIC: "*"},
        start=StartFrom.FIRST,
    ):  # fmt: skip
        await produce(group, TOPIC, 0, 100)
        await inbox.count(100)

        async def copied() -> bool:
            return await progress(group, slave, "CG") == 100

        await until(copied, "progress copied")
        await master.kill()
        await succeeded(group, master)
        assert await progress(group, slave, "CG") == 100
        assert await topics(group, slave)
        assert "CG" in await table(group, slave, ALL_GROUPS, "subscriptionGroupTable")
        await produce(group, TOPIC, 100, 50)
        await inbox.until(lambda: len(set(inbox.bodies)) == 150)

    master.launch()
    await group.whole()

    async def equal() -> bool:
        pairs = [
            await asyncio.gather(*(table(group, each, code, name) for each in group.replicas))
            for code, name in (
                (ALL_TOPICS, "topicConfigTable"), (ALL_PROGRESS, "offsetTable"),
                (ALL_GROUPS, "subscriptionGroupTable"),
            )
        ]  # fmt: skip
        return all(one == two for one, two in pairs)

    await until(equal, "the old master copies from the new one")
    assert await progress(group, master, "CG") == 150


async def test_a_topic_outlives_a_master_that_dies_right_after_its_first_message(
    group: ReplicaGroup,
) -> None:
    for number in range(3):
        master, _ = await roles(group)
        name = f"Fresh{number}"
        await produce(group, name, 0, 1)
        await master.kill()
        view = await succeeded(group, master)
        assert view.master is not None
        assert name in await topics(group, group.replica_at(view.master))
        master.launch()
