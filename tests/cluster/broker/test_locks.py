"""cluster/broker/reading/locks.py: who may consume a queue in order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from brokerkit import Asker, MakeBroker, TwoClocks
from test_metasync import Pair, pair
from test_tablereaders import hear

from tandemmq.cluster.broker.errors import NotMaster
from tandemmq.cluster.broker.reading.locks import (
    LOCK_LIVES_MS,
    LOCK_TRUSTED_MS,
    QueueLocks,
    QueueName,
)
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.standing import SendRefused
from tandemmq.storage import CorruptFile, fastjson

__all__ = ["pair"]

ONE, TWO = QueueName("T", "broker-a", 0), QueueName("T", "broker-a", 1)


class Locks(QueueLocks):
    """Of a master that has no disk yet. told_of: the groups that slaves were told of."""

    def __init__(self, path: Path = Path("nowhere")) -> None:
        self.told_of: list[str] = []
        super().__init__(path, self.told_of.append)


def test_only_free_queues_are_granted() -> None:
    locks = Locks()
    assert locks.lock("G", "a", [ONE], 0) == [ONE]
    assert locks.lock("G", "b", [ONE, TWO], 0) == [TWO]


def test_groups_do_not_compete() -> None:
    locks = Locks()
    locks.lock("G", "a", [ONE], 0)
    assert locks.lock("H", "b", [ONE], 0) == [ONE]


def test_lock_lives_sixty_seconds_from_its_last_renewal() -> None:
    locks = Locks()
    locks.lock("G", "a", [ONE], 0)
    assert locks.lock("G", "a", [ONE], 50_000) == [ONE]
    assert locks.lock("G", "b", [ONE], 50_000 + LOCK_LIVES_MS) == []
    assert locks.lock("G", "b", [ONE], 50_001 + LOCK_LIVES_MS) == [ONE]


def test_only_the_holder_unlocks() -> None:
    locks = Locks()
    locks.lock("G", "a", [ONE, TWO], 0)
    locks.unlock("G", "b", [ONE])
    assert locks.lock("G", "b", [ONE], 0) == []
    locks.unlock("G", "a", [ONE])
    assert locks.lock("G", "b", [ONE], 0) == [ONE]


def test_group_consumes_in_order_while_it_holds_a_live_lock() -> None:
    locks = Locks()
    assert not locks.any_held("G", 0)
    locks.lock("G", "a", [ONE], 0)
    assert locks.any_held("G", LOCK_LIVES_MS)
    assert not locks.any_held("G", LOCK_LIVES_MS + 1)
    locks.expire(LOCK_LIVES_MS + 1)
    assert not locks.any_held("G", 0)


def test_locks_are_bounded_and_given_up_places_are_free_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandemmq.cluster.broker.reading.locks.BYTES_MAX", 50)  # one
    locks = Locks()
    assert locks.lock("G", "a", [ONE, TWO], 0) == [ONE]
    assert locks.lock("H", "a", [ONE], 0) == []
    locks.unlock("G", "a", [ONE])
    assert locks.lock("H", "a", [TWO], 0) == [TWO]
    assert locks.lock("H", "a", [TWO], 1) == [TWO]
    locks.expire(2 + LOCK_LIVES_MS)
    assert len(locks) == 0
    assert locks.lock("G", "a", [ONE], 0) == [ONE]


def test_what_slaves_are_told_fits_a_frame_whatever_clients_are_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandemmq.cluster.broker.reading.locks.BYTES_MAX", 100_000)
    locks = Locks()
    for number in range(200):
        queues = [QueueName("T" * 127, "broker-a", queue_id) for queue_id in range(20)]
        locks.lock("G" * (number % 100), "\x01" * (7 * number), queues, 0)
    assert 100 < len(locks) < 1_000
    assert len(fastjson.dumps(locks.told(None))) <= 100_000


def test_a_change_of_holders_is_told_and_a_renewal_is_not() -> None:
    locks = Locks()
    locks.lock("G", "a", [ONE, TWO], 0)
    generation = locks.file.generation
    locks.lock("G", "a", [ONE, TWO], 10)
    locks.unlock("G", "b", [ONE])
    locks.expire(20)
    assert locks.told_of == ["G"] and locks.file.generation == generation
    locks.unlock("G", "a", [ONE])
    locks.expire(11 + LOCK_LIVES_MS)
    assert locks.told_of == ["G"] * 3


def test_a_lock_is_new_until_a_successor_knows_of_it() -> None:
    locks = Locks()
    locks.lock("G", "a", [ONE, TWO], 0)
    given = locks.unkept("G", [ONE, TWO])
    assert list(given) == [ONE, TWO]
    locks.unlock("G", "a", [TWO])
    assert locks.kept("G", given) == [ONE], "the other was given back meanwhile"
    locks.lock("G", "a", [ONE, TWO], 0)
    assert list(locks.unkept("G", [ONE, TWO])) == [TWO]
    locks.unlock("G", "a", [ONE])
    locks.lock("G", "b", [ONE], 0)
    assert list(locks.unkept("G", [ONE])) == [ONE]
    assert locks.kept("G", given) == []
    assert list(locks.unkept("G", [ONE])) == [ONE], "what was kept for one counts for nobody else"


def test_a_queue_given_back_and_taken_again_is_a_new_lock_of_its_holder() -> None:
    """Else the answer to the first request would vouch for the second lock, of which slaves have not heard."""
    locks = Locks()
    locks.lock("G", "a", [ONE], 0)
    first = locks.unkept("G", [ONE])
    locks.unlock("G", "a", [ONE])
    locks.lock("G", "a", [ONE], 0)
    second = locks.unkept("G", [ONE])
    assert locks.kept("G", first) == []
    assert list(locks.unkept("G", [ONE])) == [ONE]
    assert locks.kept("G", second) == [ONE]
    assert not locks.unkept("G", [ONE])


def test_a_new_reign_goes_by_the_locks_of_before_for_as_long_as_their_holders_do() -> None:
    """INV-45"""
    locks = Locks()
    slave = Locks()
    slave.following = True
    locks.lock("G", "a", [ONE], 0)
    slave.adopt(locks.told(None))
    slave.expire(10 * LOCK_LIVES_MS)  # it hears of no renewal
    assert len(slave) == 1
    slave.reign_began(100_000)
    assert slave.lock("G", "b", [ONE, TWO], 100_000 + LOCK_TRUSTED_MS) == [TWO]
    assert slave.lock("G", "a", [ONE], 100_000 + LOCK_TRUSTED_MS) == [ONE]
    assert not slave.unkept("G", [ONE])
    slave.reign_began(200_000)
    assert slave.lock("G", "b", [ONE], 200_001 + LOCK_TRUSTED_MS) == [ONE]
    assert list(slave.unkept("G", [ONE])) == [ONE]


def test_a_slave_is_told_of_some_groups_or_of_all() -> None:
    master, slave = Locks(), Locks()
    master.lock("G", "a", [ONE, TWO], 0)
    master.lock("H", "b", [ONE], 0)
    slave.adopt(master.told(None))
    assert slave.to_json() == master.to_json() and len(slave) == 3
    master.unlock("H", "b", [ONE])
    master.unlock("G", "a", [ONE])
    slave.adopt(master.told(["H"]))
    assert len(slave) == 2
    slave.adopt(master.told(["G"]))
    assert slave.to_json() == master.to_json() and len(slave) == 1
    master.unlock("G", "a", [TWO])
    master.lock("I", "c", [TWO], 0)
    slave.adopt(master.told(None))
    assert slave.to_json() == master.to_json() and len(slave) == 1


@pytest.mark.parametrize(
    "tree", [{"groups": 7}, {"groups": {"G": {"a": [["T", "b"]]}}}, {"groups": {"G": {"a": "T"}}}]
)
def test_locks_that_are_none_change_nothing(tree: dict[str, Any]) -> None:
    locks = Locks()
    locks.lock("G", "a", [ONE], 0)
    with pytest.raises(ValueError):
        locks.adopt(tree)
    assert len(locks) == 1


def test_a_start_goes_by_the_locks_that_the_process_before_gave(tmp_path: Path) -> None:
    path = tmp_path / "queueLocks.json"
    locks = Locks(path)
    locks.lock("G", "a", [ONE], 0)
    locks.file.save()
    again = Locks(path)
    again.load(1_000)
    assert again.lock("G", "b", [ONE], 1_000 + LOCK_TRUSTED_MS) == []
    assert again.lock("G", "b", [ONE], 1_001 + LOCK_TRUSTED_MS) == [ONE]
    path.write_text("[")
    with pytest.raises(CorruptFile):
        Locks(path).load(0)


# -- requests


def lock_body(client_id: str, queue_id: int = 0) -> dict[str, object]:
    queue = {"brokerName": "broker-a", "queueId": queue_id, "topic": "T"}
    return {"consumerGroup": "G", "clientId": client_id, "mqSet": [queue]}


async def granted(asker: Asker, client_id: str) -> bool:
    found = await asker.json(41, lock_body(client_id))
    return bool(found["lockOKMQSet"])


async def test_a_lock_is_on_the_disk_before_its_holder_hears_of_it(asker: Asker) -> None:
    """INV-45"""
    assert await granted(asker, "a")
    again = Locks(asker.broker.locks.file.path)
    again.load(0)
    assert again.to_json() == asker.broker.locks.to_json()
    assert len(again) == 1


async def test_a_disk_that_takes_nothing_keeps_new_locks_back_and_renews_old_ones(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full() -> None:
        raise OSError("no space left on device")

    assert await granted(asker, "a")
    with monkeypatch.context() as patch:
        patch.setattr(asker.broker.locks.file, "saved", full)
        assert await granted(asker, "a")
        found = await asker.json(41, lock_body("b", queue_id=1))
        assert found["lockOKMQSet"] == []
    assert not await granted(asker, "b")
    found = await asker.json(41, lock_body("b", queue_id=1))
    assert len(found["lockOKMQSet"]) == 1


async def test_a_slave_grants_nothing(make_broker: MakeBroker) -> None:
    asker = make_broker(brokerRole="SLAVE", brokerId="1")
    assert not await granted(asker, "a")


async def test_who_may_have_been_replaced_prolongs_nothing(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await granted(asker, "a")
    replaced = SendRefused(NotMaster("the lease is over"))
    monkeypatch.setattr(asker.broker.standing, "refusal", lambda: replaced)
    assert not await granted(asker, "a")


async def test_a_lock_waits_for_the_slave_that_may_be_the_next_master(
    pair: Pair, make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch, clock: TwoClocks
) -> None:
    """INV-45: after the failover nobody else gets the queue."""
    master, slave = pair.master, pair.slave
    standing: Any = master.broker.standing
    standing.role = Role.SYNC_MASTER
    monkeypatch.setattr(type(standing), "in_sync", frozenset({1}))
    assert await pair.round() and await hear(pair)
    asking = asyncio.create_task(granted(master, "a"))
    await asyncio.sleep(0.05)
    assert not asking.done()
    assert await hear(pair)
    assert not asking.done(), "it has it now, and says so with the next question"
    hearing = asyncio.create_task(hear(pair))
    assert await asking
    assert slave.broker.locks.to_json() == master.broker.locks.to_json()
    master.broker.table_readers.release_all()
    await hearing
    slave.broker.locks.reign_began(clock.monotonic_ms())
    assert not await granted(slave, "b")
    assert await granted(slave, "a")
    clock.advance(LOCK_LIVES_MS + 1)
    assert await granted(slave, "b")
