"""Transactions while producers and masters are killed: a short run of the campaign, and a master that takes over."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest
from inbox import Inbox
from steady_sends import TOPIC, eventually, group_of, roles

from tandemmq import (
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
    TransactionState,
)
from tandemmq.chaos.groups import GroupPlan
from tandemmq.chaos.transactions import TransactionsCampaign
from tandemmq.chaos.transactor import SETTINGS

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


async def test_every_committed_transaction_is_there_once_though_masters_and_producers_die(
    tmp_path: Path,
) -> None:
    campaign = TransactionsCampaign(
        GroupPlan(settings=SETTINGS), tmp_path, 1, lambda _: None, count=250, rate=60,
        pause_s=(0.5, 1.5),
    )  # fmt: skip
    outcome = await campaign.run()
    assert outcome.problems == []
    assert outcome.masters_killed and outcome.producers_killed
    assert outcome.decided >= 250 and outcome.delivered == outcome.committed > 100
    assert outcome.questions and outcome.confirmed_ends


async def test_a_new_master_asks_what_the_former_left_open(tmp_path: Path) -> None:
    """Any producer of the group is asked, here one that began after the former master died."""
    asked: Counter[bytes] = Counter()
    decided = {b"left 0": TransactionState.COMMIT, b"left 1": TransactionState.ROLLBACK}

    async def not_known(message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async def known(message: ReceivedMessage) -> TransactionState:
        asked[message.body] += 1
        return decided.get(message.body, TransactionState.UNKNOWN)

    async with group_of(tmp_path, GroupPlan(settings=SETTINGS)) as group:
        names, inbox = group.name_server_address, Inbox()
        async with Producer("TxPG", namesrv=names, check_transaction=not_known) as first:
            for body in (b"committed", b"rolled back", b"left 0", b"left 1", b"left 2"):
                async with first.transaction(Message(TOPIC, body)) as transaction:
                    if body == b"rolled back":
                        transaction.rollback()
                    elif body != b"committed":
                        transaction.unknown()
        master, _, _ = await roles(group)
        master.signal(signal.SIGKILL)
        await master.gone()
        consumer = PushConsumer(
            "TxReaders", inbox, namesrv=names, subscribe={TOPIC: "*"}, start=StartFrom.FIRST
        )
        second = Producer("TxPG", namesrv=names, check_transaction=known, timeout_ms=15_000)
        async with second, consumer:
            sent = await second.send(Message(TOPIC, b"hello"))
            assert sent.queue.broker_name == group.plan.name
            await eventually(lambda: asked.keys() == {b"left 0", b"left 1", b"left 2"}, 30, "asked")
            await inbox.count(3)
            decided[b"left 2"] = TransactionState.COMMIT
            await inbox.count(4)
            before = asked.copy()
            await asyncio.sleep(2.5)  # two more rounds
            assert asked == before
            assert sorted(inbox.bodies) == [b"committed", b"hello", b"left 0", b"left 2"]
            master.launch()  # and the former master, as a slave, brings none of it again
            await roles(group)
            await asyncio.sleep(2.5)
            assert asked == before and len(inbox.messages) == 4
