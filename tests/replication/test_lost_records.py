"""A controller whose file was lost, or is an older copy, and was told so by an epoch: it decides nothing by itself.

INV-28: an epoch that was given out may not be given out again. INV-29: who is elected all the same is declared lossy.
"""

from __future__ import annotations

from controlkit import Bench, kinds, told

from tandemmq.replication.config import LeaseTimes
from tandemmq.replication.election import (
    STRANGERS_MAX,
    ApplyBrokerId,
    CleanBrokerData,
    Code,
    ControllerCore,
    ElectMaster,
    Heartbeat,
    Kind,
    RegisterBroker,
)


def restarted(replicas: int = 3) -> Bench:
    """A controller with the record of epoch 1, when 1 was master."""
    bench = Bench(replicas)
    record, bench.core = bench.record, ControllerCore(LeaseTimes())
    bench.core.load([record])
    return bench


def restored() -> Bench:
    """That record is an older copy: 2 led epoch 2 since."""
    bench = restarted()
    bench.beat(2, epoch=2, end=900, leading=True)
    return bench


def pass_time(bench: Bench) -> None:
    bench.now_ms += 10 * bench.core.times.election_wait_ms


def test_an_older_master_gets_no_lease() -> None:
    bench = restored()
    assert not bench.beat(1, leading=True).lease
    assert restarted().beat(1, leading=True).lease, "which it would have otherwise"


def test_a_replica_that_the_record_does_not_know_stops_no_lease() -> None:
    """A stranger may become one, and say any epoch."""
    bench = restarted()
    bench.step(ApplyBrokerId(0, "c", "a", 4, "code4"))
    bench.register(4, epoch=7, end=900)
    assert bench.beat(1, leading=True).lease


def test_an_older_master_changes_no_set() -> None:
    bench = restored()
    before = bench.record
    answer = bench.alter(frozenset({1}))
    assert (answer.code, bench.record) == (Code.FENCED_MASTER_EPOCH, before)
    assert "the logs have epoch 2, this controller knows 1" in answer.remark


def test_a_master_that_was_master_before_is_no_reason_to_say_nothing() -> None:
    bench = restarted()
    assert bench.beat(1, leading=True, end=500).lease
    (waits,) = told(bench.step(Heartbeat(12, "a", 2, 12, epoch=2, end=900)))
    assert waits.kind is Kind.WAITING
    assert "the logs have epoch 2, this controller knows 1" in waits.text


def test_what_a_replica_said_once_is_not_forgotten_when_it_says_less() -> None:
    """It led epoch 2 and lost power before the first byte of it was on its disk."""
    bench = restored()
    bench.beat(2, epoch=1, end=900)
    pass_time(bench)
    bench.beat(2, epoch=1, end=900)
    assert bench.record.epoch == 1
    bench.step(ElectMaster(0, "c", "a", 2, designated=True, unclean=True))
    assert (bench.record.master, bench.record.epoch) == (2, 3), "not 2 a second time"


def test_an_operators_choice_is_declared_lossy_also_within_the_old_set() -> None:
    bench = restored()
    pass_time(bench)
    bench.beat(3, end=400)
    effects = bench.step(ElectMaster(0, "c", "a", 3, designated=True, unclean=True))
    assert (bench.record.master, bench.record.lossy_epoch) == (3, 3)
    assert Kind.LOSS_POSSIBLE in kinds(effects)


def test_an_operator_may_choose_whom_the_old_record_calls_master() -> None:
    bench = restored()
    bench.register(1, epoch=2, end=900)
    by_hand = ElectMaster(0, "c", "a", 1, designated=True, unclean=True)
    assert bench.answer(by_hand).code is Code.ELECT_MASTER_FAILED, "INV-30: not at once"
    pass_time(bench)
    bench.register(1, epoch=2, end=900)
    assert bench.answer(by_hand).code is Code.SUCCESS
    assert (bench.record.master, bench.record.epoch, bench.record.lossy_epoch) == (1, 3, 3)


def test_who_spoke_of_an_epoch_and_was_cleaned_away_holds_nobody_up() -> None:
    bench = restored()
    bench.step(CleanBrokerData(0, "c", "a", (2,), living_too=True))
    assert bench.beat(1, leading=True).lease


def test_what_a_replica_said_before_it_had_applied_again_counts() -> None:
    """All records are gone. 2, with the log of epoch 7, dies before it is registered; 1 is empty."""
    bench = Bench(replicas=2)
    bench.core.groups.clear()
    refused = bench.register(2, epoch=7, end=900)
    assert refused.code is Code.BROKER_NEED_TO_BE_REGISTERED
    bench.step(ApplyBrokerId(0, "c", "a", 1, "code1"))
    bench.register(1)
    answer = bench.answer(ElectMaster(0, "c", "a", 1))
    assert answer.code is Code.ELECT_MASTER_FAILED and bench.record.epoch == 0
    assert "the logs have epoch 7, this controller knows 0" in answer.remark


def test_strangers_of_groups_without_a_record_are_remembered_within_bounds() -> None:
    bench = Bench()
    for number in range(STRANGERS_MAX + 10):
        bench.step(RegisterBroker(0, 99, "c", f"strange{number}", 2, "host:1", epoch=7))
    assert len(bench.core._strangers) == STRANGERS_MAX
