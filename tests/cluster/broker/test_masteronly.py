"""cluster/broker/handlers/masteronly.py: what a slave refuses to change."""

from __future__ import annotations

import pytest
from brokerkit import MakeBroker

from tandemmq.cluster.broker.handlers.masteronly import REMARKS

SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}


@pytest.mark.parametrize("code", sorted(REMARKS))
async def test_a_slave_refuses_what_its_next_copy_would_undo(
    make_broker: MakeBroker, code: int
) -> None:
    slave = make_broker(**SLAVE)
    before = slave.broker.topics.to_json(), slave.broker.groups.to_json()
    answer = await slave.ask(code, topic="T", group="G", srcGroup="G", destGroup="H")
    assert (answer.code, answer.remark) == (1, REMARKS[code])
    assert before == (slave.broker.topics.to_json(), slave.broker.groups.to_json())


async def test_a_slave_takes_deletions_because_tools_send_them_to_every_member(
    make_broker: MakeBroker,
) -> None:
    slave = make_broker(**SLAVE)
    assert (await slave.ask(215, topic="T")).code == 0
    assert (await slave.ask(207, groupName="G")).code == 0


async def test_a_master_refuses_none_of_it(make_broker: MakeBroker) -> None:
    master = make_broker()
    answer = await master.ask(
        17, topic="T", defaultTopic="TBW102", readQueueNums=1, writeQueueNums=1, perm=6,
        topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False,
    )  # fmt: skip
    assert answer.code == 0
