"""The controller's requests answer with RocketMQ's codes, in RocketMQ's order of checks."""

from __future__ import annotations

import msgspec
import pytest
from controlkit import Bench, kinds, told

from tandemmq.replication.config import LeaseTimes
from tandemmq.replication.election import (
    AllowUnclean,
    AlterSyncSet,
    Answer,
    AnswerHeartbeat,
    ApplyBrokerId,
    AskToSwitch,
    CleanBrokerData,
    Code,
    ControllerCore,
    ElectMaster,
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
    assert bench.register(2, incarnation=99).code is Code.BROKER_ID_INVALID, "it may be a stranger"
    bench.now_ms = 2_300
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
    assert bench.alter(frozenset({1, 7}), number=1).code is Code.FENCED_SYNC_STATE_SET_EPOCH
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


def test_a_controller_that_was_given_an_older_state_learns_the_set_from_its_master() -> None:
    """Only it gives numbers: a master that knows a higher one acknowledges by a set that is forgotten here."""
    bench = Bench()
    kept = bench.record
    assert bench.alter(frozenset({1})).code is Code.SUCCESS
    number = bench.record.set_number
    bench.core.groups["a"].record = kept
    told = bench.alter(frozenset({1}), number=number)
    assert (told.code, told.records[0].sync_set) == (Code.SUCCESS, (1,))
    assert bench.record.set_number == number + 1
    assert bench.alter(frozenset({1, 2}), number=number).code is Code.FENCED_SYNC_STATE_SET_EPOCH
    assert bench.alter(frozenset({1, 2})).code is Code.SUCCESS


def test_a_forgotten_set_is_told_again_though_it_looks_the_same() -> None:
    bench = Bench()
    number = bench.record.set_number + 4
    assert bench.alter(frozenset({1, 2}), number=number).code is Code.SUCCESS
    assert bench.record.set_number == number + 1


def test_a_stock_master_with_another_number_is_fenced_as_it_is_used_to() -> None:
    bench = Bench()
    record = bench.record
    master = msgspec.structs.replace(record.members[1], incarnation=0)
    members = {**record.members, 1: master}
    bench.core.groups["a"].record = msgspec.structs.replace(record, members=members)
    assert bench.alter(frozenset({1}), number=9).code is Code.FENCED_SYNC_STATE_SET_EPOCH


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
    types = [type(each) for each in effects]
    assert types.index(Persist) < types.index(NotifyRole)


def test_unclean_election_is_off_and_loud_when_switched_on() -> None:
    # INV-29
    bench = Bench()
    bench.alter(frozenset({1}))
    bench.step(SessionClosed(11))
    bench.now_ms = 2301
    bench.beat(2)
    bench.step(Tick())
    assert bench.record.master == 1
    assert kinds(bench.step(AllowUnclean(True))) == [Kind.UNCLEAN_ALLOWED], "nothing was elected"
    effects = bench.step(Tick())
    assert bench.record.master == 2
    assert bench.record.lossy_epoch == bench.record.epoch
    assert kinds(effects) == [Kind.LOSS_POSSIBLE, Kind.ONE_COPY]


def test_unclean_election_is_loud_when_switched_on_before_any_group_is_known() -> None:
    core = ControllerCore(LeaseTimes())
    assert kinds(core.step(AllowUnclean(True), 0)) == [Kind.UNCLEAN_ALLOWED]
    assert core.unclean
    assert core.step(AllowUnclean(False), 0) == []
    assert not core.unclean


# --- both ends of the log, so that a loss can be counted ---


def unclean_election(bench: Bench, end: int) -> str:
    """What is said when 2, which is not in the set and has this end, becomes master."""
    bench.step(SessionClosed(11))
    bench.now_ms += 5000
    bench.beat(2, end=end)
    effects = bench.step(ElectMaster(3, "c", "a", 2, designated=True, unclean=True))
    assert bench.record.master == 2
    return next(each.text for each in told(effects) if each.kind is Kind.LOSS_POSSIBLE)


def test_an_unclean_election_says_how_long_the_log_was_and_is() -> None:
    bench = Bench()
    bench.alter(frozenset({1}))
    bench.beat(1, leading=True, end=1200)
    assert "replica 2 follows 1 in epoch 2, old end 1200, new end 1000," in (
        unclean_election(bench, 1000)
    )


def test_the_old_end_is_the_one_before_a_power_cut_took_some_of_it() -> None:
    bench = Bench()
    bench.alter(frozenset({1}))
    bench.beat(1, leading=True, end=1200)
    bench.step(SessionClosed(11))
    bench.now_ms += 5000
    bench.register(1, incarnation=21, mode="S0", suspect=True, epoch=1, end=800)
    bench.step(SessionClosed(21))
    assert "old end 1200, new end 1000," in unclean_election(bench, 1000)


def test_an_old_end_that_nobody_told_this_controller_is_unknown() -> None:
    bench = Bench()
    bench.alter(frozenset({1}))
    bench.beat(1, leading=True, end=1200)
    bench.core = ControllerCore(LeaseTimes())
    bench.core.load(bench.durable.values())
    assert "old end unknown, new end 1000," in unclean_election(bench, 1000)


def test_what_others_have_is_the_least_that_an_unknown_end_can_be() -> None:
    bench = Bench(replicas=3)
    bench.alter(frozenset({1}))
    bench.core = ControllerCore(LeaseTimes())
    bench.core.load(bench.durable.values())
    bench.beat(3, end=1100)
    assert "old end unknown, 1100 at least, new end 1000," in unclean_election(bench, 1000)


def test_the_ends_of_a_stock_group_are_said_as_well() -> None:
    bench = stock_group()
    for replica, end in ((1, 1200), (2, 1000)):
        bench.step(Heartbeat(10 + replica, "a", replica, epoch=1, end=end, leading=True))
    effects = bench.step(ElectMaster(7, "c", "a", 2, designated=True))
    assert "old end 1200, new end 1000," in told(effects)[0].text


def test_an_end_that_was_given_up_once_is_not_given_up_again() -> None:
    """1 comes back with what only it had: that is no part of the log which 2 has led since."""
    bench = Bench()
    bench.alter(frozenset({1}))
    bench.beat(1, leading=True, end=1200)
    unclean_election(bench, 1000)
    bench.beat(2, leading=True, end=1010)
    bench.register(1, incarnation=21, mode="S0", epoch=1, end=1200)
    bench.step(SessionClosed(12))
    bench.now_ms += 5000
    bench.beat(1, epoch=1, end=1200)
    effects = bench.step(ElectMaster(3, "c", "a", 1, designated=True, unclean=True))
    assert "replica 1 follows 2 in epoch 3, old end 1010, new end 1200," in told(effects)[0].text


# --- a changed set is said ---


def test_every_change_of_a_set_is_said_with_its_number_and_who_asked() -> None:
    bench = Bench(replicas=3)

    def altered(*members: int) -> list[tuple[Kind, str]]:
        incarnations = tuple((each, 10 + each) for each in members)
        number = bench.record.set_number
        event = AlterSyncSet(0, "a", 1, 1, frozenset(members), number, incarnations)
        return [(each.kind, each.text) for each in told(bench.step(event))]

    by = "asked for by master 1"
    assert altered(1, 2) == [(Kind.SET_CHANGED, f"set [1, 2, 3] -> [1, 2], number 3: {by}")]
    assert altered(1) == [(Kind.ONE_COPY, f"set [1, 2] -> [1], number 4: {by}")]
    assert altered(1) == [], "it is what it was"
    assert altered(1, 2, 3) == [(Kind.WHOLE, f"set [1] -> [1, 2, 3], number 5: {by}")]
    reaffirm = AlterSyncSet(0, "a", 1, 1, frozenset({1, 2, 3}), 5, reaffirm=True)
    assert told(bench.step(reaffirm)) == []


def test_the_other_ways_to_one_copy_are_said_too() -> None:
    bench = Bench()
    bench.step(SessionClosed(12))
    event = RegisterBroker(
        0, 22, "c", "a", 2, "host2:1", incarnation=22, mode="S0", suspect=True, epoch=1
    )
    assert kinds(bench.step(event)) == [Kind.ONE_COPY], "2 lost power"
    bench = Bench()
    bench.now_ms = 2200
    bench.beat(2)
    bench.now_ms = 2400
    assert kinds(bench.step(Tick())) == [Kind.ELECTED, Kind.ONE_COPY]
    bench = Bench(replicas=3)
    effects = bench.step(CleanBrokerData(0, "c", "a", (3,), living_too=True))
    assert [(each.kind, each.text) for each in told(effects)] == [
        (Kind.CLEANED, "replicas [3], alive of them [3], master 1: the others stay"),
        (Kind.WHOLE, "set [1, 2, 3] -> [1, 2], number 3: replicas [3] were cleaned"),
    ]
    effects = bench.step(CleanBrokerData(0, "c", "a", (2,), living_too=True))
    assert kinds(effects) == [Kind.CLEANED, Kind.SET_CHANGED], "1 is all there is now"
    effects = bench.step(CleanBrokerData(0, "c", "a", living_too=True))
    assert [(each.kind, each.text) for each in told(effects)] == [
        (
            Kind.CLEANED,
            "replicas [1], alive of them [1], master 1: with them the whole group",
        )
    ]


def test_a_group_of_one_replica_is_no_news() -> None:
    core = ControllerCore(LeaseTimes())
    core.step(ApplyBrokerId(0, "c", "a", 1, "x"), 0)
    core.step(ApplyBrokerId(0, "c", "a", 2, "y"), 0)  # which never comes
    core.step(RegisterBroker(0, 11, "c", "a", 1, "h:1", incarnation=11, mode="S0"), 0)
    effects = core.step(ElectMaster(0, "c", "a", 1), 0)
    assert kinds(effects) == [Kind.ELECTED, Kind.SET_CHANGED]


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
    assert "the logs have epoch 7, this controller knows 1" in told(effects)[0].text
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
    assert Kind.LOSS_POSSIBLE in kinds(effects)


def test_an_absurd_epoch_is_not_topped() -> None:
    bench = Bench(replicas=2)
    bench.step(Heartbeat(12, "a", 2, 12, epoch=(1 << 31) - 1))
    unclean = ElectMaster(3, "c", "a", 2, designated=True, unclean=True)
    assert bench.answer(unclean).code is Code.ELECT_MASTER_FAILED


def test_a_full_master_is_followed_only_by_who_says_that_its_disk_has_space() -> None:
    for space in (False, True):
        bench = Bench()
        bench.step(Heartbeat(12, "a", 2, 12, 9, 1, streaming=True, space=space))
        effects = bench.step(ElectMaster(7, "c", "a", 2, designated=True, spacious=True))
        asked = [each for each in effects if isinstance(each, AskToSwitch)]
        refused = [each for each in effects if isinstance(each, Answer)]
        assert bool(asked) is space and bool(refused) is not space
        for answer in refused:
            assert answer.code is Code.ELECT_MASTER_FAILED and "space" in answer.remark
        if refused:  # who only stops hands over to it all the same
            again = bench.step(ElectMaster(8, "c", "a", 2, designated=True))
            assert [each for each in again if isinstance(each, AskToSwitch)]
