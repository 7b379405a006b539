"""A topic that is deleted and made again under a running consumer, whose group's master then dies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from inbox import Inbox
from test_group_tables import produce, roles, succeeded
from test_table_changes import KEPT, ask, make_topic

from tandemmq import PushConsumer, StartFrom
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup
from tandemmq.cluster.remoting import Command

pytestmark = pytest.mark.system

DELETE_TOPIC, COMMIT = 215, 15


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[ReplicaGroup]:
    async with ReplicaGroup(tmp_path, GroupPlan(replicas=2)) as made:
        await made.start()
        yield made


async def test_a_running_consumer_gets_all_of_a_topics_next_life_and_from_the_successor_too(
    group: ReplicaGroup,
) -> None:
    """INV-42: it stands at 40, and what is sent next gets the offsets from 0 on."""
    master, slave = await roles(group)
    await make_topic(group, master, KEPT)
    await make_topic(group, master, "Twice", 1)
    inbox = Inbox()
    async with PushConsumer(
        "CG", inbox, namesrv=group.name_server_address, subscribe={"Twice": "*"},
        start=StartFrom.FIRST,
    ):  # fmt: skip
        await produce(group, "Twice", 0, 40)
        await inbox.count(40)
        await ask(group, master.address, DELETE_TOPIC, topic="Twice")
        await make_topic(group, master, "Twice", 1)
        late = {"consumerGroup": "CG", "topic": "Twice", "queueId": "0", "commitOffset": "40"}
        answer = await group.pool.request(slave.address, Command(COMMIT, late), 5_000)
        assert answer.code == 0, answer.remark
        await produce(group, "Twice", 100, 60)
        await master.kill()
        await succeeded(group, master)
        await produce(group, "Twice", 160, 5)
        new = {b"%d" % number for number in range(100, 165)}
        await inbox.until(lambda: new <= set(inbox.bodies))
