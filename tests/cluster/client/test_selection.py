"""Which queue is next, and which failures are worth another attempt."""

from __future__ import annotations

import random

import pytest

from tandemmq.cluster.client.errors import (
    BrokerAnswerBroken,
    BrokerRefused,
    BrokerUnreachable,
    CallTimedOut,
    ClientError,
    MessageRefused,
    NoRoute,
)
from tandemmq.cluster.client.message import Message, MessageQueue
from tandemmq.cluster.client.producing.selection import QueueRing, by_key, worth_retrying

QUEUES = [MessageQueue("T", name, number) for name in ("a", "b") for number in range(2)]


def test_ring_takes_every_queue_in_turn() -> None:
    ring = QueueRing(random.Random(3))
    picked = [ring.pick(QUEUES) for _ in range(8)]
    assert sorted(picked[:4]) == QUEUES
    assert picked[4:] == picked[:4]


def test_retry_goes_to_another_broker() -> None:
    ring = QueueRing(random.Random(3))
    assert {ring.pick(QUEUES, "a").broker_name for _ in range(10)} == {"b"}


def test_retry_stays_when_there_is_no_other_broker() -> None:
    ring = QueueRing(random.Random(3))
    assert ring.pick(QUEUES[:2], "a").broker_name == "a"


def test_one_key_always_goes_to_one_queue() -> None:
    message = Message("T", b"x")
    assert len({by_key("order-17")(QUEUES, message) for _ in range(5)}) == 1
    assert len({by_key(f"order-{number}")(QUEUES, message) for number in range(50)}) == 4


def test_key_with_the_smallest_hash_still_finds_a_queue() -> None:
    assert by_key("polygenelubricants")(QUEUES, Message("T", b"x")) in QUEUES  # hash -2**31


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
def test_codes_that_another_broker_may_not_have_are_retried(code: int) -> None:
    assert worth_retrying(BrokerRefused(code, "", "a:1"))


@pytest.mark.parametrize("code", [13, 29, 215, 26, 3])
def test_codes_that_blame_the_message_are_not_retried(code: int) -> None:
    assert not worth_retrying(BrokerRefused(code, "", "a:1"))


@pytest.mark.parametrize(
    ("problem", "retried"),
    [
        (BrokerUnreachable("a:1", "refused"), True),
        (CallTimedOut("late"), True),
        (BrokerAnswerBroken("no msgId"), True),
        (NoRoute("T", "unknown"), False),
        (MessageRefused("too long"), False),
    ],
)
def test_transport_failures_are_retried_and_callers_faults_are_not(
    problem: ClientError, retried: bool
) -> None:
    assert worth_retrying(problem) is retried
