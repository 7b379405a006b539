"""The controller's requests answer with RocketMQ's codes, in RocketMQ's order of checks."""

from __future__ import annotations

from typing import Any

import pytest

from replication.config import LeaseTimes
from replication.election import (
    AllowUnclean,
    AlterSyncSet,
    Announce,
    Answer,
    AnswerHeartbeat,
    ApplyBrokerId,
    CleanBrokerData,
    Code,
    ControllerCore,
    Effect,
    ElectMaster,
    GroupRecord,
    Heartbeat,
    Kind,
    NextBrokerId,
    NotifyRole,
    Persist,
    ProbeAnswered,
    RegisterBroker,
    ReplicaInfo,
    SessionClosed,
    SyncStateData,
    Tick,
)


class Bench:
    """A controller and the brokers of group "a", driven by hand."""

    def __init__(self, replicas: int = 2, mode: str = "S0", **fields: Any) -> None:
        self.core = ControllerCore(LeaseTimes(), **fields)
        self.now_ms = 0
        self.durable: dict[str, GroupRecord] = {}
        for replica in range(1, replicas + 1):
            self.step(ApplyBrokerId(0, "c", "a", replica, f"code{replica}"))
            self.register(replica, mode=mode)
        self.step(ElectMaster(0, "c", "a", 1))
        self.beat(1, leading=True)
        if replicas > 1:
            self.alter(frozenset(range(1, replicas + 1)))

    def step(self, event: Any) -> list[Effect]:
        effects = self.core.step(event, self.now_ms)
        for effect in effects:
            if isinstance(effect, Persist) and effect.record is not None:
                self.durable[effect.group] = effect.record
        return effects

    @property
    def record(self) -> GroupRecord:
        return self.core.groups["a"].record

    def answer(self, event: Any) -> Answer:
        return next(each for each in self.step(event) if isinstance(each, Answer))

    def register(self, replica: int, incarnation: int = 0, **fields: Any) -> Answer:
        incarnation = incarnation or 10 + replica
        session = fields.pop("session", incarnation)
        event = RegisterBroker(
            0, session, "c", "a", replica, f"host{replica}:1", incarnation=incarnation, **fields
        )
        return self.answer(event)

    def beat(self, replica: int, **fields: Any) -> AnswerHeartbeat:
        incarnation = self.record.members[replica].incarnation
        fields.setdefault("epoch", self.record.epoch)
        event = Heartbeat(incarnation, "a", replica, incarnation, **fields)
        return next(each for each in self.step(event) if isinstance(each, AnswerHeartbeat))

    def alter(self, members: frozenset[int], **fields: Any) -> Answer:
        incarnations = tuple(
            (each, self.record.members[each].incarnation)
            for each in members
            if each in self.record.members
        )
        values = {
            "master": self.record.master, "epoch": self.record.epoch, "number": self.record.set_number,
            "incarnations": incarnations, **fields,
        }  # fmt: skip
        return self.answer(AlterSyncSet(0, "a", members=members, **values))


def test_ids_are_given_out_and_bound_to_their_check_code() -> None:
    core = ControllerCore(LeaseTimes())
    first = core.step(NextBrokerId(1, "c", "a"), 0)
    assert first == [Answer(1, next_id=1)]
    refused = core.step(ApplyBrokerId(2, "c", "a", 2, "x"), 0)
    assert [each.code for each in refused if isinstance(each, Answer)] == [Code.BROKER_ID_INVALID]
    assert [type(each) for each in core.step(ApplyBrokerId(3, "c", "a", 1, "x"), 0)] == [
        Persist,
        Answer,
    ]
    assert core.step(NextBrokerId(4, "c", "a"), 0) == [Answer(4, next_id=2)]
    again = core.step(ApplyBrokerId(5, "c", "a", 1, "x"), 0)
    assert again == [Answer(5)], "a replica that crashed while applying gets its id again"
    taken = core.step(ApplyBrokerId(6, "c", "a", 1, "y"), 0)[0]
    assert isinstance(taken, Answer) and taken.code is Code.BROKER_ID_INVALID
    foreign = core.step(ApplyBrokerId(7, "other", "a", 2, "y"), 0)[0]
    assert isinstance(foreign, Answer) and foreign.code is Code.INVALID_REQUEST


def test_registration_needs_an_id_and_the_right_cluster() -> None:
    bench = Bench()
    unknown = bench.answer(RegisterBroker(0, 99, "c", "a", 9, "x:1"))
    assert unknown.code is Code.BROKER_NEED_TO_BE_REGISTERED
    foreign = bench.answer(RegisterBroker(0, 99, "other", "a", 2, "x:1", incarnation=99))
    assert foreign.code is Code.INVALID_REQUEST


def test_a_second_process_with_one_identity_is_refused_while_the_first_lives() -> None:
    bench = Bench()
    bench.beat(2)
    assert bench.register(2, incarnation=99).code is Code.BROKER_ID_INVALID
    bench.now_ms = 700
    assert bench.register(2, incarnation=99).code is Code.SUCCESS


def test_set_changes_are_checked_in_rocketmqs_order() -> None:
    bench = Bench()
    assert bench.record.sync_set == (1, 2)
    assert (
        bench.answer(AlterSyncSet(0, "b", 1, 1, frozenset({1}), 1)).code
        is Code.ALTER_SYNC_STATE_SET_FAILED
    )
    assert bench.alter(frozenset({1, 2}), master=7).code is Code.ALTER_SYNC_STATE_SET_FAILED
    assert bench.alter(frozenset({1}), master=2, epoch=9).code is Code.INVALID_MASTER
    assert bench.alter(frozenset({1}), epoch=9, number=9).code is Code.FENCED_MASTER_EPOCH
    assert bench.alter(frozenset({1, 7}), number=9).code is Code.FENCED_SYNC_STATE_SET_EPOCH
    assert bench.alter(frozenset({2, 7})).code is Code.INVALID_REPLICAS
    assert bench.alter(frozenset({2})).code is Code.ALTER_SYNC_STATE_SET_FAILED
    shrunk = bench.alter(frozenset({1}))
    assert (shrunk.code, shrunk.records[0].sync_set, shrunk.records[0].set_number) == (
        Code.SUCCESS,
        (1,),
        3,
    )
    bench.now_ms = 10_000
    assert bench.alter(frozenset({1, 2})).code is Code.BROKER_NOT_ALIVE


def test_reaffirming_a_set_changes_its_number_only() -> None:
    bench = Bench()
    number = bench.record.set_number
    assert bench.alter(frozenset({1, 2}), reaffirm=True).code is Code.SUCCESS
    assert (bench.record.sync_set, bench.record.set_number) == ((1, 2), number + 1)


def test_election_requests_answer_with_rocketmqs_codes() -> None:
    bench = Bench()
    assert bench.answer(ElectMaster(0, "c", "b")).code is Code.BROKER_NEED_TO_BE_REGISTERED
    assert bench.answer(ElectMaster(0, "c", "a", 9)).code is Code.BROKER_NEED_TO_BE_REGISTERED
    exists = bench.answer(ElectMaster(0, "c", "a", 2))
    assert (exists.code, exists.records[0].master) == (Code.MASTER_STILL_EXIST, 1)
    bench.step(SessionClosed(12))
    bench.step(SessionClosed(11))
    bench.now_ms = 60_000
    assert bench.answer(ElectMaster(0, "c", "a", 2)).code is Code.ELECT_MASTER_FAILED
    assert bench.answer(ElectMaster(0, "c", "a", -1)).code is Code.MASTER_NOT_AVAILABLE


def test_one_witness_is_not_enough() -> None:
    # INV-30
    bench = Bench()
    bench.beat(2, streaming=True)
    bench.step(SessionClosed(11))
    bench.step(ProbeAnswered("a", 1, 11, refused=True))
    assert bench.record.master == 1, "the slave still has its stream"
    bench.beat(2, streaming=False)
    assert bench.record.master == 2


def test_a_refusal_by_another_process_is_no_witness() -> None:
    bench = Bench()
    bench.step(SessionClosed(11))
    bench.step(ProbeAnswered("a", 1, 10, refused=True))
    bench.step(ProbeAnswered("a", 1, 11, refused=False))
    bench.beat(2, streaming=False)
    assert bench.record.master == 1


def test_nobody_is_elected_before_every_possible_lease_is_over_after_a_restart() -> None:
    # INV-30
    bench = Bench()
    restarted = ControllerCore(LeaseTimes(), start_ms=100_000)
    restarted.load(bench.durable.values())
    bench.core, bench.now_ms = restarted, 100_000
    bench.beat(2)
    bench.now_ms = 102_200
    bench.beat(2)
    bench.step(Tick())
    assert bench.record.master == 1
    bench.now_ms = 102_301
    bench.step(Tick())
    assert bench.record.master == 2


def test_a_decision_is_persisted_before_anybody_hears_of_it() -> None:
    # INV-34
    bench = Bench()
    bench.step(SessionClosed(11))
    bench.now_ms = 2200
    bench.beat(2)
    bench.now_ms = 60_00
    bench.beat(2)
    assert bench.record.master == 2
    bench.register(1, incarnation=31, session=31)
    effects = bench.step(ProbeAnswered("a", 2, 12, refused=True)) + bench.step(SessionClosed(12))
    kinds = [type(each) for each in effects]
    assert kinds.index(Persist) < kinds.index(NotifyRole)


def test_unclean_election_is_off_and_loud_when_switched_on() -> None:
    # INV-29
    bench = Bench()
    bench.alter(frozenset({1}))
    bench.step(SessionClosed(11))
    bench.now_ms = 2301
    bench.beat(2)
    bench.step(Tick())
    assert bench.record.master == 1
    effects = bench.step(AllowUnclean(True)) + bench.step(Tick())
    assert bench.record.master == 2
    assert bench.record.lossy_epoch == bench.record.epoch
    loud = [
        each for each in effects if isinstance(each, Announce) and each.kind is Kind.LOSS_POSSIBLE
    ]
    assert len(loud) == 2


def test_after_a_common_power_cut_the_longest_log_is_elected_when_all_are_here() -> None:
    bench = Bench(replicas=3)
    for replica in (1, 2, 3):
        bench.step(SessionClosed(10 + replica))
    bench.now_ms = 60_000
    for replica, end in ((2, 300), (3, 500), (1, 400)):
        assert bench.record.epoch == 1
        bench.register(replica, incarnation=20 + replica, mode="S0", suspect=True, epoch=1, end=end)
    assert bench.record.master == 3
    assert bench.record.lossy_epoch == 2


def test_election_compares_offsets_beyond_two_gigabytes() -> None:
    """apache/rocketmq#10578"""
    bench = Bench(replicas=3)
    bench.now_ms = 2200
    bench.beat(2, end=1)
    bench.beat(3, end=1 + (3 << 30))
    bench.now_ms = 2301
    bench.step(Tick())
    assert bench.record.master == 3


def test_cleaning_spares_the_living_unless_told() -> None:
    bench = Bench()
    assert bench.answer(CleanBrokerData(0, "c", "b")).code is Code.INVALID_CLEAN_BROKER_METADATA
    assert bench.answer(CleanBrokerData(0, "c", "a")).code is Code.INVALID_CLEAN_BROKER_METADATA
    assert (
        bench.answer(CleanBrokerData(0, "c", "a", (2,))).code is Code.INVALID_CLEAN_BROKER_METADATA
    )
    assert bench.answer(CleanBrokerData(0, "c", "a", (2,), living_too=True)).code is Code.SUCCESS
    assert (list(bench.record.members), bench.record.sync_set) == ([1], (1,))
    assert bench.answer(CleanBrokerData(0, "c", "a", living_too=True)).code is Code.SUCCESS
    assert "a" not in bench.core.groups


def test_questions_show_who_is_alive() -> None:
    bench = Bench()
    assert bench.answer(ReplicaInfo(0, "b")).code is Code.BROKER_METADATA_NOT_EXIST
    info = bench.answer(ReplicaInfo(0, "a"))
    assert (info.records[0].master, info.alive) == (1, {("a", 1), ("a", 2)})
    bench.step(SessionClosed(12))
    data = bench.answer(SyncStateData(0, ("a", "b")))
    assert ([each.name for each in data.records], data.alive) == (["a"], {("a", 1)})


def test_a_stock_broker_without_incarnation_is_served() -> None:
    core = ControllerCore(LeaseTimes())
    core.step(ApplyBrokerId(0, "c", "a", 1, "x"), 0)
    core.step(RegisterBroker(0, 5, "c", "a", 1, "h:1"), 0)
    core.step(ElectMaster(0, "c", "a", 1), 0)
    beat = Heartbeat(5, "a", 1, epoch=1, leading=True, timeout_ms=10_000)
    assert core.groups["a"].record.master == 1
    assert any(isinstance(each, AnswerHeartbeat) and each.known for each in core.step(beat, 100))
    core.step(Tick(), 9_000)
    assert core.groups["a"].record.master == 1


def test_lease_times_that_fence_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="three heartbeats"):
        LeaseTimes(heartbeat_ms=700)
    with pytest.raises(ValueError, match="election wait"):
        LeaseTimes(election_wait_ms=2100)


# --- stock brokers: no process number, no lease, no way to hand over ---


def stock_group() -> Bench:
    """Two Java brokers, 1 is master of epoch 1."""
    bench = Bench(replicas=1, mode="")
    bench.step(ApplyBrokerId(0, "c", "a", 2, "code2"))
    for replica in (1, 2):
        bench.step(RegisterBroker(0, 10 + replica, "c", "a", replica, f"java{replica}:1"))
        bench.step(
            Heartbeat(
                10 + replica,
                "a",
                replica,
                epoch=bench.record.epoch,
                leading=True,
                timeout_ms=10_000,
            )
        )
    bench.alter(frozenset({1, 2}))
    return bench


def test_a_stock_master_is_deposed_at_once_when_an_operator_says_so() -> None:
    # INV-30
    bench = stock_group()
    epoch = bench.record.epoch
    assert bench.record.master == 1 and bench.record.sync_set == (1, 2)
    answer = bench.answer(ElectMaster(7, "c", "a", 2, designated=True))
    assert answer.code is Code.SUCCESS and answer.records[0].master == 2
    assert bench.record.epoch == epoch + 1 and bench.record.sync_set == (2,)


def test_a_stock_slave_outside_the_set_is_not_elected_by_an_operator() -> None:
    bench = stock_group()
    bench.alter(frozenset({1}))
    answer = bench.answer(ElectMaster(7, "c", "a", 2, designated=True))
    assert answer.code is Code.ELECT_MASTER_FAILED and bench.record.master == 1


def test_a_stock_broker_does_not_change_the_mode_of_its_group() -> None:
    bench = Bench(replicas=2, mode="S0")
    bench.step(ApplyBrokerId(0, "c", "a", 3, "code3"))
    bench.step(RegisterBroker(0, 13, "c", "a", 3, "java3:1"))
    assert bench.record.mode == "S0" and bench.record.members[3].address == "java3:1"


def test_a_stock_master_reigns_from_its_election_and_lives_by_any_heartbeat() -> None:
    """Its log may have no entry of this epoch, and it acknowledges without asking."""
    bench = stock_group()
    bench.step(ElectMaster(7, "c", "a", 2, designated=True))
    record = bench.record
    assert (record.master, record.electing_from, record.reigned) == (2, (), 2)
    for _ in range(30):
        bench.now_ms += 1000
        for replica in (1, 2):
            bench.step(
                Heartbeat(10 + replica, "a", replica, epoch=0, leading=True, timeout_ms=10_000)
            )
        bench.step(Tick())
    assert bench.record == record, "nobody else was elected"
    bench.now_ms += 10_001
    bench.step(Heartbeat(11, "a", 1, epoch=1, timeout_ms=10_000))
    bench.step(Tick())
    assert bench.record.epoch == record.epoch and bench.record.master == 2, "1 is not in the set"


# --- a controller that has forgotten ---


def test_a_controller_with_an_older_record_than_the_logs_elects_nobody_by_itself() -> None:
    """Else it would give an epoch out twice."""
    bench = Bench(replicas=2)
    bench.now_ms += 10_000
    effects = bench.step(
        Heartbeat(12, "a", 2, 12, epoch=7, end=900)
    )  # of epoch 7, while the record says 1
    assert bench.record.epoch == 1 and bench.record.master == 1
    told = [each.text for each in effects if isinstance(each, Announce)]
    assert told and "the logs have epoch 7, this controller knows 1" in told[0]
    for event in (ElectMaster(3, "c", "a", 2), ElectMaster(3, "c", "a", 2, designated=True)):
        answer = bench.answer(event)
        assert answer.code is Code.ELECT_MASTER_FAILED and "restore them" in answer.remark
    by_hand = ElectMaster(3, "c", "a", 2, designated=True, unclean=True)
    assert bench.answer(by_hand).code is Code.SUCCESS
    assert (bench.record.master, bench.record.epoch) == (2, 8), "above every epoch ever used"


def test_a_controller_that_lost_everything_makes_no_empty_replica_master_of_a_group_with_a_log() -> (
    None
):
    bench = Bench(replicas=2)
    bench.core.groups.clear()
    for replica, epoch in ((1, 0), (2, 7)):
        bench.step(ApplyBrokerId(0, "c", "a", replica, f"code{replica}"))
        bench.register(replica, epoch=epoch)
    answer = bench.answer(ElectMaster(3, "c", "a", 1))
    assert answer.code is Code.ELECT_MASTER_FAILED and bench.record.epoch == 0
    effects = bench.step(ElectMaster(3, "c", "a", 2, designated=True, unclean=True))
    assert (bench.record.master, bench.record.epoch, bench.record.lossy_epoch) == (2, 8, 8)
    assert Kind.LOSS_POSSIBLE in [each.kind for each in effects if isinstance(each, Announce)]


def test_an_absurd_epoch_is_not_topped() -> None:
    bench = Bench(replicas=2)
    bench.step(Heartbeat(12, "a", 2, 12, epoch=(1 << 31) - 1))
    unclean = ElectMaster(3, "c", "a", 2, designated=True, unclean=True)
    assert bench.answer(unclean).code is Code.ELECT_MASTER_FAILED
