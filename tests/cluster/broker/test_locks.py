"""cluster/broker/reading/locks.py: who may consume a queue in order."""

from __future__ import annotations

import pytest
from brokerkit import Asker, FakeConnection, MakeBroker

from tandemmq.cluster.broker.reading.locks import (
    LOCK_LIVES_MS,
    LOCK_TRUSTED_MS,
    QueueLocks,
    QueueName,
)
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import ConnectionLost, RequestTimedOut

ONE, TWO = QueueName("T", "broker-a", 0), QueueName("T", "broker-a", 1)


def test_only_free_queues_are_granted() -> None:
    locks = QueueLocks()
    assert locks.lock("G", "a", [ONE], 0) == [ONE]
    assert locks.lock("G", "b", [ONE, TWO], 0) == [TWO]


def test_groups_do_not_compete() -> None:
    locks = QueueLocks()
    locks.lock("G", "a", [ONE], 0)
    assert locks.lock("H", "b", [ONE], 0) == [ONE]


def test_lock_lives_sixty_seconds_from_its_last_renewal() -> None:
    locks = QueueLocks()
    locks.lock("G", "a", [ONE], 0)
    assert locks.lock("G", "a", [ONE], 50_000) == [ONE]
    assert locks.lock("G", "b", [ONE], 50_000 + LOCK_LIVES_MS) == []
    assert locks.lock("G", "b", [ONE], 50_001 + LOCK_LIVES_MS) == [ONE]


def test_only_the_holder_unlocks() -> None:
    locks = QueueLocks()
    locks.lock("G", "a", [ONE, TWO], 0)
    locks.unlock("G", "b", [ONE])
    assert locks.lock("G", "b", [ONE], 0) == []
    locks.unlock("G", "a", [ONE])
    assert locks.lock("G", "b", [ONE], 0) == [ONE]


def test_group_consumes_in_order_while_it_holds_a_live_lock() -> None:
    locks = QueueLocks()
    assert not locks.any_held("G", 0)
    locks.lock("G", "a", [ONE], 0)
    assert locks.any_held("G", LOCK_LIVES_MS)
    assert not locks.any_held("G", LOCK_LIVES_MS + 1)
    locks.expire(LOCK_LIVES_MS + 1)
    assert not locks.any_held("G", 0)


def test_locks_are_bounded_and_given_up_places_are_free_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandemmq.cluster.broker.reading.locks.LOCKS_MAX", 1)
    locks = QueueLocks()
    assert locks.lock("G", "a", [ONE, TWO], 0) == [ONE]
    assert locks.lock("H", "a", [ONE], 0) == []
    locks.unlock("G", "a", [ONE])
    assert locks.lock("H", "a", [TWO], 0) == [TWO]
    assert locks.lock("H", "a", [TWO], 1) == [TWO]
    locks.expire(2 + LOCK_LIVES_MS)
    assert len(locks) == 0
    assert locks.lock("G", "a", [ONE], 0) == [ONE]


def test_a_new_reign_knows_no_lock_and_whom_it_has_to_ask() -> None:
    locks = QueueLocks()
    locks.lock("G", "c1", [ONE], 0)
    assert locks.unasked("G", ["c1", "c2"], 0) == []  # nobody reigned before
    locks.reign_began(1_000)
    assert len(locks) == 0
    assert locks.unasked("G", ["c1", "c2"], 1_000) == ["c1", "c2"]
    locks.claimed("G", "c1", [ONE], 1_000)
    assert locks.unasked("G", ["c1", "c2"], 1_000) == ["c2"]
    assert locks.unasked("H", ["c1"], 1_000) == ["c1"]
    assert locks.unasked("G", ["c2"], 1_000 + LOCK_TRUSTED_MS) == []


def test_a_claim_counts_for_as_long_as_its_client_goes_by_it() -> None:
    locks = QueueLocks()
    locks.reign_began(0)
    locks.claimed("G", "c1", [ONE], 500)
    locks.claimed("G", "c2", [ONE, TWO], 500)  # who claims first has it
    assert locks.lock("G", "c2", [ONE, TWO], 500 + LOCK_TRUSTED_MS) == [TWO]
    assert locks.lock("G", "c2", [ONE], 501 + LOCK_TRUSTED_MS) == [ONE]
    locks.unlock("G", "c2", [ONE, TWO])
    assert len(locks) == 0


def lock_body(client_id: str, queue_id: int = 0) -> dict[str, object]:
    queue = {"brokerName": "broker-a", "queueId": queue_id, "topic": "T"}
    return {"consumerGroup": "G", "clientId": client_id, "mqSet": [queue]}


def state(locked: bool, broker: str = "broker-a") -> Command:
    """What a member answers to GET_CONSUMER_RUNNING_INFO, with objects as keys as Java writes it."""
    text = (
        f'{{"mqTable":{{{{"brokerName":"{broker}","queueId":0,"topic":"T"}}:'
        f'{{"droped":false,"locked":{str(locked).lower()}}}}},"properties":{{}}}}'
    )
    return Command(0, body=text.encode())


async def members(asker: Asker) -> tuple[FakeConnection, FakeConnection]:
    """Two of one group, the first of which consumes in order; and a reign begins."""
    first, second = FakeConnection(), FakeConnection()
    await asker.heartbeat("G", "T", client_id="a", connection=first)
    await asker.heartbeat("G", "T", client_id="b", connection=second)
    first.answer, second.answer = state(True), state(False)
    first.requests.clear()
    second.requests.clear()
    asker.broker.locks.reign_began(asker.clock.monotonic_ms())
    return first, second


async def granted(asker: Asker, client_id: str) -> bool:
    found = await asker.json(41, lock_body(client_id))
    return bool(found["lockOKMQSet"])


async def test_a_new_master_gives_away_nothing_that_a_member_holds(asker: Asker) -> None:
    first, second = await members(asker)
    assert not await granted(asker, "b")
    assert await granted(asker, "a")
    assert [each.code for each in first.requests] == [307]
    assert first.requests[0].ext == {"consumerGroup": "G", "clientId": "a", "jstackEnable": "false"}
    assert len(second.requests) == 1  # each is asked once
    await asker.ask(42, lock_body("a"))
    assert await granted(asker, "b")


async def test_a_holder_that_is_gone_is_waited_for_no_longer_than_it_trusts(asker: Asker) -> None:
    await members(asker)
    assert not await granted(asker, "b")
    asker.clock.advance(LOCK_TRUSTED_MS + 1)
    assert await granted(asker, "b")


@pytest.mark.parametrize("answer", [RequestTimedOut("a", 307, 1), Command(0, body=b"[")])
async def test_while_a_member_does_not_say_what_it_holds_nothing_is_given(
    asker: Asker, answer: Command | Exception
) -> None:
    first, _ = await members(asker)
    first.answer = answer
    assert not await granted(asker, "b")
    first.answer = state(False)
    assert await granted(asker, "b")


async def test_members_that_left_and_locks_of_other_brokers_hold_nothing_up(asker: Asker) -> None:
    first, _ = await members(asker)
    first.answer = ConnectionLost("a")
    assert await granted(asker, "b")
    first, _ = await members(asker)
    first.answer = state(True, "broker-b")
    assert await granted(asker, "b")
    asker.clock.advance(LOCK_TRUSTED_MS)
    third = FakeConnection()
    await asker.heartbeat("G", "T", client_id="c", connection=third)
    third.requests.clear()
    assert not await granted(asker, "c")
    assert third.requests == []  # a reign that is old enough knows all locks


async def test_a_slave_grants_nothing(make_broker: MakeBroker) -> None:
    asker = make_broker(brokerRole="SLAVE", brokerId="1")
    assert not await granted(asker, "a")
