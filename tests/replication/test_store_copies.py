"""INV-38: a copy of a store, started elsewhere, is not the replica that was heard of a moment ago."""

from __future__ import annotations

import msgspec
from controlkit import Bench

from tandemmq.replication.config import LeaseTimes
from tandemmq.replication.election import (
    Answer,
    Code,
    ControllerCore,
    Persist,
    RegisterBroker,
    SessionClosed,
)

#: made while process 12 had the store: it knows all that this one knew
COPY = RegisterBroker(
    0, 99, "c", "a", 2, "elsewhere:1", incarnation=99, mode="S0", lineage=(12, 99)
)


def register_copy(bench: Bench) -> Answer:
    return bench.answer(COPY)


def is_refused(answer: Answer) -> bool:
    return answer.code is Code.BROKER_ID_INVALID and "replica 2 of a" in answer.remark


def test_a_copy_does_not_take_the_place_of_a_replica_whose_connection_broke() -> None:
    """It connects again at once; its copy asks again and again."""
    bench = Bench()
    bench.beat(2)
    bench.step(SessionClosed(12))
    before = bench.record
    assert is_refused(register_copy(bench))
    assert bench.record == before
    bench.register(2, lineage=(12,))
    bench.now_ms += 10 * bench.core.times.election_wait_ms
    bench.beat(2)
    assert is_refused(register_copy(bench)), "and never while it lives"


def test_a_copy_is_not_the_first_that_a_new_controller_believes() -> None:
    bench = Bench()
    record = bench.record
    bench.core = ControllerCore(LeaseTimes())
    bench.core.load([record])
    assert is_refused(register_copy(bench))
    bench.register(2, lineage=(12,))
    assert bench.record.members[2].address == "host2:1"


def test_a_store_that_moved_is_the_replica_when_its_last_process_was_silent_for_a_lease() -> None:
    bench = Bench()
    bench.beat(2)
    bench.now_ms += bench.core.times.election_wait_ms - 1
    assert is_refused(register_copy(bench))
    bench.now_ms += 1
    assert register_copy(bench).code is Code.SUCCESS
    assert bench.record.members[2].address == "elsewhere:1"


def test_a_process_that_restarts_where_it_was_waits_for_nothing() -> None:
    bench = Bench()
    bench.beat(2)
    bench.step(SessionClosed(12))
    assert bench.register(2, 99, lineage=(12, 99)).code is Code.SUCCESS


def test_the_new_process_of_a_master_and_the_end_of_its_reign_are_one_record() -> None:
    """INV-28: a controller killed between two would take that process for the one that reigns."""
    bench = Bench()
    bench.beat(1, leading=True, end=900, confirmed=900)
    bench.now_ms += 10 * bench.core.times.election_wait_ms
    effects = bench.step(msgspec.structs.replace(COPY, replica=1, lineage=(11, 99), end=500))
    first = next(each for each in effects if isinstance(each, Persist))
    assert first.record is not None
    assert (first.record.members[1].incarnation, first.record.master) == (99, 0)
    assert 1 in first.record.suspects
