"""What an administrator changed at a master is its successor's: deletions, and every change that was answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from inbox import Inbox
from test_group_tables import ALL_GROUPS, produce, roles, succeeded, table, topics, until

from tandemmq import PushConsumer, StartFrom
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup, ReplicaProcess
from tandemmq.cluster.broker.handlers.masteronly import LEFT_TO_MASTER
from tandemmq.cluster.remoting import Command
from tandemmq.storage import fastjson

pytestmark = pytest.mark.system

UPDATE_TOPIC, DELETE_TOPIC, UPDATE_GROUP, DELETE_GROUP = 17, 215, 200, 207
FORGET_AT_NAME_SERVER = 216
KEPT = "T"  # succeeded() looks for its route


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[ReplicaGroup]:
    async with ReplicaGroup(tmp_path, GroupPlan(replicas=3)) as made:
        yield made


async def ask(group: ReplicaGroup, address: str, code: int, **ext: object) -> None:
    command = Command(code, {key: str(value) for key, value in ext.items()})
    answer = await group.pool.request(address, command, 5_000)
    assert answer.code == 0 and answer.remark in (None, "", LEFT_TO_MASTER), answer


async def make_topic(
    group: ReplicaGroup, master: ReplicaProcess, name: str, queues: int = 2
) -> None:
    await ask(
        group, master.address, UPDATE_TOPIC, topic=name, defaultTopic="TBW102", readQueueNums=queues,
        writeQueueNums=queues, perm=6, topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false",
    )  # fmt: skip


async def delete_topic(group: ReplicaGroup, master: ReplicaProcess, name: str) -> None:
    """As mqadmin does: at every broker, then at the name server."""
    for replica in group.replicas:
        if replica is not master:
            await ask(group, replica.address, DELETE_TOPIC, topic=name)
    await ask(group, master.address, DELETE_TOPIC, topic=name)
    await ask(group, group.name_server_address, FORGET_AT_NAME_SERVER, topic=name)


async def consumed(group: ReplicaGroup, topic: str, count: int) -> list[str]:
    """What a new consumer group gets of a topic, from its first message on, and half a second longer."""
    inbox = Inbox()
    async with PushConsumer(
        f"New-{topic}", inbox, namesrv=group.name_server_address, subscribe={topic: "*"},
        start=StartFrom.FIRST,
    ):  # fmt: skip
        await inbox.count(count)
        await asyncio.sleep(0.5)
    return sorted(body.decode() for body in inbox.bodies)


async def test_a_topic_deleted_before_a_slave_was_seeded_stays_deleted_when_it_is_master(
    group: ReplicaGroup,
) -> None:
    """INV-43. The new slave's log has the deleted topic's messages, and its table never had the topic."""
    third = group.replicas.pop()
    await group.start()
    master, slave = await roles(group)
    await make_topic(group, master, KEPT)
    await make_topic(group, master, "Doomed")
    await produce(group, "Doomed", 0, 40)
    await produce(group, KEPT, 0, 3)
    await delete_topic(group, master, "Doomed")

    group.replicas.append(third)
    third.launch()
    await group.whole()
    group.replicas.remove(slave)
    await slave.kill()
    await group.whole()

    async def derived() -> bool:
        return (third.store / "consumequeue" / KEPT).is_dir()

    await until(derived, "the seeded slave has derived its queues")
    await master.kill()
    await succeeded(group, master)
    assert "Doomed" not in await topics(group, third)
    assert await group.addresses("Doomed") is None
    assert not (third.store / "consumequeue" / "Doomed").exists()

    await make_topic(group, third, "Doomed")
    await produce(group, "Doomed", 1000, 5)
    assert await consumed(group, "Doomed", 5) == [str(number) for number in range(1000, 1005)]


async def test_a_slave_counts_again_when_it_has_what_was_changed_while_it_was_away(
    group: ReplicaGroup,
) -> None:
    """INV-43: it has the log long before, and may be the next master from the moment it counts."""
    del group.replicas[2:]
    await group.start()
    master, _ = await roles(group)
    await make_topic(group, master, KEPT)
    for number in range(3):
        master, slave = await roles(group)
        await make_topic(group, master, f"Doomed{number}")
        await produce(group, f"Doomed{number}", 0, 10)
        await slave.kill()
        await alone(group)
        await make_topic(group, master, f"Made{number}", 7)
        answer = await group.pool.request(
            master.address, Command(DELETE_TOPIC, {"topic": f"Doomed{number}"}), 5_000
        )
        assert (answer.code, answer.remark) == (0, None)
        slave.launch()
        await group.whole()
        await master.kill()
        await succeeded(group, master)
        await has_the_changes(group, slave, number)
        master.launch()
        await group.whole()


async def has_the_changes(group: ReplicaGroup, successor: ReplicaProcess, number: int) -> None:
    found = await topics(group, successor)
    assert found[f"Made{number}"]["readQueueNums"] == 7
    assert f"Doomed{number}" not in found
    assert not (successor.store / "consumequeue" / f"Doomed{number}").exists()


async def alone(group: ReplicaGroup) -> None:
    """Wait until the master is all of its set."""

    async def shrunk() -> bool:
        view = await group.view()
        return view is not None and len(view.in_sync) == 1

    await until(shrunk, "the dead slave is out of the set")


async def test_changes_that_were_answered_are_the_successors_whose_master_dies_right_after(
    group: ReplicaGroup,
) -> None:
    """INV-43: in a group whose sends wait for slaves, so do changes of topics and groups."""
    del group.replicas[2:]
    await group.start()
    master, _ = await roles(group)
    await make_topic(group, master, KEPT)
    for number in range(2):
        master, slave = await roles(group)
        await make_topic(group, master, f"Doomed{number}")
        await produce(group, f"Doomed{number}", 0, 10)
        for name in ("Old", "New"):
            body = fastjson.dumps({"groupName": f"{name}{number}", "retryMaxTimes": 3})
            answer = await group.pool.request(
                master.address, Command(UPDATE_GROUP, None, body), 5_000
            )
            assert answer.code == 0 and not answer.remark
        await asyncio.sleep(4)  # what is copied every 3 s is copied
        await make_topic(group, master, f"Made{number}", 7)
        body = fastjson.dumps({"groupName": f"New{number}", "retryMaxTimes": 9})
        answer = await group.pool.request(master.address, Command(UPDATE_GROUP, None, body), 5_000)
        assert answer.code == 0 and not answer.remark
        await ask(group, master.address, DELETE_GROUP, groupName=f"Old{number}")
        await delete_topic(group, master, f"Doomed{number}")
        await master.kill()
        await succeeded(group, master)
        await has_the_changes(group, slave, number)
        groups = await table(group, slave, ALL_GROUPS, "subscriptionGroupTable")
        assert groups[f"New{number}"]["retryMaxTimes"] == 9
        assert f"Old{number}" not in groups
        master.launch()
        await group.whole()

    async def equal() -> bool:
        one, two = [await topics(group, each) for each in group.replicas]
        return one == two

    await until(equal, "the old master has its successor's topics")
