"""cluster/broker/reading/locks.py: who may consume a queue in order."""

from __future__ import annotations

import pytest

from tandemmq.cluster.broker.reading.locks import LOCK_LIVES_MS, QueueLocks, QueueName

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
