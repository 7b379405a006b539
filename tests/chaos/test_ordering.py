"""What the judge of ordered consumption finds, and what it lets pass."""

from __future__ import annotations

import asyncio
import random

import pytest

from tandemmq.chaos import ordering
from tandemmq.chaos.ordering import QUEUES, OrderJudge, OrderlyMembers


def handled(judge: OrderJudge, *offsets: int, member: str = "a", queue_id: int = 0) -> None:
    for offset in offsets:
        judge.began(member, queue_id, offset, f"ID{offset}")
        judge.ended(member, queue_id, offset)


def kinds(judge: OrderJudge) -> list[str]:
    return [problem.split()[0] for problem in judge.problems]


def test_order_repeats_and_other_hands_are_no_problem() -> None:
    judge = OrderJudge()
    handled(judge, 0, 1, 2)
    handled(judge, 0, queue_id=1)
    handled(judge, 1, 2, 3, member="b")
    handled(judge, 4)
    assert judge.problems == []
    assert (judge.handled, judge.repeated, judge.taken_over) == (8, 2, 2)
    assert judge.highs() == {0: 4, 1: 0}


def test_what_overtakes_is_found() -> None:
    judge = OrderJudge()
    handled(judge, 0, 2, 1)
    assert kinds(judge) == ["OVERTOOK"]


def test_two_at_once_are_found_whoever_they_are() -> None:
    for member in ("a", "b"):
        judge = OrderJudge()
        judge.began("a", 0, 0, "ID0")
        judge.began(member, 0, 1, "ID1")
        assert kinds(judge) == ["TOGETHER"]


def test_another_message_at_a_place_is_found() -> None:
    judge = OrderJudge()
    handled(judge, 0)
    judge.began("b", 0, 0, "OTHER")
    assert kinds(judge) == ["REPLACED"]


async def test_a_queue_that_does_not_go_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "STALLED_S", 0.5)
    judge = OrderJudge()
    for queue_id in range(QUEUES):
        handled(judge, 0, queue_id=queue_id)
    members = OrderlyMembers("127.0.0.1:1", judge, random.Random(1))
    looking = asyncio.create_task(members.going_on())
    await asyncio.sleep(0.05)
    for queue_id in range(1, QUEUES):
        handled(judge, 1, queue_id=queue_id)
    stopped = await looking
    assert stopped is not None and stopped.startswith("STOPPED queues [0]:")
    looking = asyncio.create_task(members.going_on())
    await asyncio.sleep(0.05)
    for queue_id in range(QUEUES):
        handled(judge, judge.highs()[queue_id] + 1, queue_id=queue_id)
    assert await looking is None
