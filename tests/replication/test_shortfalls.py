"""A store that comes back shorter, older or as a copy is never elected without a word."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from controlkit import Bench, kinds, told

from tandemmq.replication.config import LeaseTimes
from tandemmq.replication.election import (
    Announce,
    ApplyBrokerId,
    Code,
    ControllerCore,
    ElectMaster,
    Heartbeat,
    Kind,
    Persist,
    RegisterBroker,
    SessionClosed,
    Tick,
)
from tandemmq.replication.evidence import NOTED_MS


def register(bench: Bench, replica: int, incarnation: int, **fields: Any) -> list[Announce]:
    """What is said when a process registers."""
    event = RegisterBroker(
        0, incarnation, "c", "a", replica, f"host{replica}:1", incarnation=incarnation,
        **{"mode": "S0", **fields},
    )  # fmt: skip
    return told(bench.step(event))


def with_messages(bench: Bench, end: int = 21_445) -> None:
    bench.beat(1, leading=True, end=end, confirmed=end)
    if 2 in bench.record.members:
        bench.beat(2, streaming=True, end=end, confirmed=end)


def all_gone(bench: Bench) -> None:
    """Every process has ended, and what leases there were."""
    for replica in bench.record.members:
        bench.step(SessionClosed(10 + replica))
    bench.now_ms += 60_000


def test_a_member_that_comes_back_shorter_is_not_elected() -> None:
    """INV-37: 100 acknowledged messages, and the volume of the one replica that is left is not mounted."""
    bench = Bench()
    with_messages(bench)
    all_gone(bench)
    epoch = bench.record.epoch
    said = register(bench, 2, 22, epoch=0, end=0)
    assert [each.kind for each in said] == [Kind.CAME_BACK_SHORT, Kind.WAITING]
    assert "ends at 0, 21445" in said[0].text
    assert (bench.record.suspects, bench.record.epoch) == ((2,), epoch), said
    register(bench, 1, 21, epoch=1, end=21_445)
    assert bench.record.master == 1, "who holds it all is elected as before"


def test_a_shorter_store_under_a_serving_master_leaves_the_set_until_it_has_caught_up() -> None:
    bench = Bench()
    with_messages(bench)
    bench.step(SessionClosed(12))
    assert Kind.CAME_BACK_SHORT in [each.kind for each in register(bench, 2, 22, epoch=1, end=99)]
    assert bench.record.sync_set == (1,)
    bench.beat(2, streaming=True, end=21_445, confirmed=21_445)
    assert bench.alter(frozenset({1, 2})).code is Code.SUCCESS
    assert bench.record.suspects == ()


def test_what_was_confirmed_outlives_the_controller() -> None:
    """INV-37: the controller restarts, too."""
    bench = Bench()
    with_messages(bench)
    all_gone(bench)
    bench.core = ControllerCore(LeaseTimes(), start_ms=bench.now_ms)
    bench.core.load(bench.durable.values())
    bench.now_ms += 60_000
    assert bench.durable["a"].confirmed == 21_445
    register(bench, 2, 22, epoch=0, end=0)
    assert (bench.record.suspects, bench.record.master) == ((2,), 1)


def test_growing_offsets_are_noted_now_and_then_and_cost_no_write_each() -> None:
    bench = Bench()
    with_messages(bench)

    def beat(end: int) -> list[type]:
        event = Heartbeat(11, "a", 1, 11, epoch=1, end=end, confirmed=end, leading=True)
        return [type(each) for each in bench.step(event)]

    for number in range(1, 10):
        bench.now_ms += 500
        assert Persist not in beat(21_445 + number)
    bench.now_ms += NOTED_MS
    effects = beat(30_000)
    assert effects[-1] is Persist, "behind the answer, which is not held up"
    assert bench.durable["a"].confirmed == 30_000


def test_a_late_heartbeat_does_not_make_a_member_suspect() -> None:
    """The slave's last word is older than the master's: it holds what it reported to the master all the same."""
    bench = Bench()
    with_messages(bench, 1000)
    bench.beat(1, leading=True, end=5000, confirmed=5000)
    bench.step(SessionClosed(11))
    bench.now_ms += 2_600
    bench.beat(2, streaming=False, end=5000, confirmed=4000)
    assert (bench.record.master, bench.record.suspects, bench.record.lossy_epoch) == (2, (), 0)


def test_a_member_that_its_master_named_is_elected_though_nothing_was_heard_of_it_since() -> None:
    """Its heartbeats do not arrive. The master that lost power, and has less, was elected instead."""
    bench = Bench()
    bench.beat(2, streaming=False, end=0)
    bench.beat(1, leading=True, end=5000, confirmed=5000)
    bench.step(SessionClosed(11))
    bench.now_ms += 2_600
    bench.core.groups["a"].live[2].heard_ms = bench.now_ms  # not yet known to be cut off
    said = register(bench, 1, 21, epoch=1, end=400, lineage=(11,), suspect=True)
    assert Kind.LOSS_POSSIBLE not in [each.kind for each in said]
    assert (bench.record.master, bench.record.lossy_epoch) == (2, 0)


@pytest.mark.parametrize("named", [(), ((2, 12),)])
def test_a_master_speaks_for_the_process_that_it_names_only(
    named: tuple[tuple[int, int], ...],
) -> None:
    bench = Bench(replicas=1)
    bench.step(ApplyBrokerId(0, "c", "a", 2, "code2"))
    bench.register(2, 22, mode="S0")
    live = bench.core.groups["a"].live[2]
    bench.alter(frozenset({1, 2}), incarnations=named)
    assert not live.proven
    assert bench.alter(frozenset({1, 2}), incarnations=((2, 22),)).code is Code.SUCCESS
    assert live.proven
    bench.step(SessionClosed(22))
    bench.now_ms += 60_000
    assert bench.register(2, 23, mode="S0").code is Code.SUCCESS
    assert not live.proven


def test_a_master_that_reminds_a_restored_controller_vouches_for_nobody() -> None:
    """It names who is in its set, also a process that came back with less while nobody could tell."""
    bench = Bench(replicas=1)
    bench.step(ApplyBrokerId(0, "c", "a", 2, "code2"))
    bench.register(2, 22, mode="S0", end=500)
    number = bench.record.set_number + 4
    said = bench.alter(frozenset({1, 2}), number=number, incarnations=((2, 22),), reaffirm=True)
    assert (said.code, bench.record.sync_set) == (Code.SUCCESS, (1, 2))
    bench.beat(1, leading=True, end=5000, confirmed=5000)
    bench.step(SessionClosed(11))
    bench.now_ms += 60_000
    bench.beat(2, streaming=False, end=500)
    assert (bench.record.master, bench.record.lossy_epoch) == (1, 0)
    assert "2 ends at 500" in bench.core.groups["a"].waiting


def test_a_process_that_restarts_with_all_it_had_is_trusted() -> None:
    bench = Bench()
    with_messages(bench)
    all_gone(bench)
    said = register(bench, 2, 22, epoch=1, end=21_445, lineage=(12,))
    assert [each.kind for each in said] == [Kind.ELECTED, Kind.ONE_COPY], said
    assert (bench.record.master, bench.record.suspects) == (2, ())


def test_what_another_member_remembers_counts_where_the_controller_has_forgotten_it() -> None:
    """The short one comes first, and the one that knows better dies before the old leases are over."""
    bench = Bench(replicas=3)
    all_gone(bench)
    assert bench.record.confirmed == 0
    bench.core = ControllerCore(LeaseTimes(), start_ms=bench.now_ms)
    bench.core.load(bench.durable.values())
    assert register(bench, 3, 23, epoch=1, end=500) == []
    bench.beat(2, end=1000, confirmed=1000)
    bench.step(SessionClosed(12))
    bench.now_ms += 60_000
    bench.beat(3, epoch=1, end=500, confirmed=500)
    assert (bench.record.master, bench.record.epoch) == (1, 1), "replica 3 was elected"
    assert "3 ends at 500" in bench.core.groups["a"].waiting
    assert "1000 bytes" in bench.core.groups["a"].waiting
    assert bench.answer(ElectMaster(0, "c", "a", 3, True)).code is Code.ELECT_MASTER_FAILED
    assert Kind.LOSS_POSSIBLE in kinds(bench.step(ElectMaster(0, "c", "a", 3, True, True)))


@pytest.mark.parametrize("mode", ["S0", "S1"])
def test_a_set_of_one_that_comes_back_shorter_waits_for_an_operator(mode: str) -> None:
    bench = Bench(replicas=1, mode=mode)
    with_messages(bench)
    all_gone(bench)
    said = register(bench, 1, 21, end=0, mode=mode)
    assert [each.kind for each in said] == [Kind.CAME_BACK_SHORT, Kind.WAITING]
    assert bench.answer(ElectMaster(0, "c", "a", 1, True)).code is Code.ELECT_MASTER_FAILED
    effects = bench.step(ElectMaster(0, "c", "a", 1, True, True))
    assert Kind.LOSS_POSSIBLE in kinds(effects)
    assert "old end 21445, new end 0" in next(
        each.text for each in told(effects) if each.kind is Kind.LOSS_POSSIBLE
    )
    assert bench.record.lossy_epoch == bench.record.epoch
    assert bench.record.confirmed == 0, "a loss was declared: what was confirmed is no more"


def test_when_every_store_came_back_shorter_the_longest_is_elected_and_the_loss_declared() -> None:
    bench = Bench()
    with_messages(bench)
    all_gone(bench)
    register(bench, 1, 21, epoch=1, end=100)
    assert bench.record.master == 0
    effects = bench.step(
        RegisterBroker(0, 22, "c", "a", 2, "host2:1", incarnation=22, mode="S0", epoch=1, end=2000)
    )
    assert Kind.LOSS_POSSIBLE in kinds(effects)
    assert (bench.record.master, bench.record.lossy_epoch) == (2, bench.record.epoch)


def test_an_asynchronous_masters_shorter_store_is_known_too() -> None:
    """A0 waits for nobody, and yet a replica knows what it had itself."""
    bench = Bench(mode="A0")
    bench.beat(1, leading=True, end=21_445, confirmed=21_445)
    bench.beat(2, streaming=True, end=20_000, confirmed=20_000)
    all_gone(bench)
    said = register(bench, 1, 21, end=0, mode="A0")
    assert Kind.CAME_BACK_SHORT in [each.kind for each in said]
    assert bench.record.master == 0
    effects = bench.step(
        RegisterBroker(
            0, 22, "c", "a", 2, "host2:1", incarnation=22, mode="A0", epoch=1, end=20_000
        )
    )
    assert bench.record.master == 2
    assert Kind.LOSS_POSSIBLE in kinds(effects), "a loss that is known is said: INV-29"


def test_a_copy_of_a_store_is_known_by_the_processes_it_never_had() -> None:
    """INV-38: a snapshot of before the last start, long enough and of the right reign."""
    bench = Bench()
    with_messages(bench)
    all_gone(bench)
    said = register(bench, 2, 22, epoch=1, end=21_445, lineage=(3, 4))
    assert [each.kind for each in said] == [Kind.CAME_BACK_SHORT, Kind.WAITING]
    assert "copy of its store" in said[0].text
    assert "12" not in said[0].text, "the number is the replica's proof: INV-44"
    assert bench.record.suspects == (2,)


def test_a_clone_is_refused_by_name_while_the_replica_lives() -> None:
    """INV-38: not only within two heartbeats of the other's last one."""
    bench = Bench()
    with_messages(bench)
    bench.now_ms += 1_900
    refused = bench.register(2, incarnation=22, session=99, end=21_445, lineage=(3, 4))
    assert refused.code is Code.BROKER_ID_INVALID
    assert "copy of its store" in refused.remark and "replica 2" in refused.remark


def test_a_broker_of_an_earlier_release_names_no_lineage_and_is_trusted() -> None:
    bench = Bench()
    with_messages(bench)
    all_gone(bench)
    register(bench, 2, 22, epoch=1, end=21_445)
    assert (bench.record.master, bench.record.suspects) == (2, ())


def test_a_declared_loss_ends_what_was_confirmed_before_it() -> None:
    """Else who was cut for it would be taken for a store that came back shorter."""
    bench = Bench()
    with_messages(bench)
    bench.alter(frozenset({1}))
    bench.step(SessionClosed(11))
    bench.now_ms += 60_000
    bench.beat(2, end=500, confirmed=500)
    bench.step(ElectMaster(0, "c", "a", 2, True, True))
    assert (bench.record.master, bench.record.lossy_epoch) == (2, bench.record.epoch)
    register(bench, 1, 21, epoch=1, end=21_445, lineage=(11,))
    bench.beat(1, streaming=True, end=500, confirmed=500)
    bench.step(SessionClosed(21))
    bench.now_ms += 60_000
    said = register(bench, 1, 31, epoch=1, end=500, lineage=(11, 21))
    assert Kind.CAME_BACK_SHORT not in [each.kind for each in said]
    assert bench.record.suspects == ()


def test_who_only_applied_for_an_id_does_not_block_a_recovery() -> None:
    """Every copy lost power. Replica 3 has an id, and never came."""
    bench = Bench()
    bench.step(ApplyBrokerId(0, "c", "a", 3, "code3"))
    all_gone(bench)
    register(bench, 1, 21, suspect=True, epoch=1, end=100)
    assert bench.record.master == 0
    register(bench, 2, 22, suspect=True, epoch=1, end=300)
    assert (bench.record.master, bench.record.lossy_epoch) == (2, bench.record.epoch)
    bench.step(Tick())


# --- under a stock master, which vouches for nobody ---


def stock_master() -> Bench:
    """Replica 1 is a Java broker and master; ours, replica 2, is no member of its set any more."""
    bench = Bench()
    bench.core = ControllerCore(LeaseTimes())
    for replica in (1, 2):
        bench.step(ApplyBrokerId(0, "c", "a", replica, f"code{replica}"))
    bench.step(RegisterBroker(0, 11, "c", "a", 1, "java:1"))
    bench.step(ElectMaster(0, "c", "a", 1))
    bench.step(stock_beat(1000))
    register(bench, 2, 22, end=1000)
    return bench


def stock_beat(confirmed: int) -> Heartbeat:
    return Heartbeat(
        11, "a", 1, epoch=1, end=confirmed, confirmed=confirmed, leading=True, timeout_ms=10_000
    )


def test_a_stock_master_takes_a_restarted_replica_of_ours_back_into_its_set() -> None:
    """It names no processes. That the present one follows, and holds what is confirmed, is its own word."""
    bench = stock_master()
    refused = bench.alter(frozenset({1, 2}), incarnations=())
    assert refused.code is Code.INVALID_REPLICAS and "does not follow" in refused.remark
    bench.beat(2, end=999, streaming=True)
    assert bench.alter(frozenset({1, 2}), incarnations=()).code is Code.INVALID_REPLICAS
    bench.beat(2, end=1000, streaming=True)
    assert bench.alter(frozenset({1, 2}), incarnations=()).code is Code.SUCCESS
    assert bench.record.sync_set == (1, 2)
    bench.step(SessionClosed(11))
    bench.now_ms += 10_001
    bench.beat(2, end=1000, epoch=1)
    assert bench.record.master == 2, "the Java master is dead: ours is elected"


def test_a_proposal_of_before_the_restart_fences_a_replica_of_ours_under_a_stock_master() -> None:
    bench = stock_master()
    bench.beat(2, end=1000, streaming=True)
    bench.step(SessionClosed(22))
    register(bench, 2, 32, suspect=True, end=900)
    assert bench.alter(frozenset({1, 2}), incarnations=()).code is Code.INVALID_REPLICAS
    assert bench.record.sync_set == (1,)


def test_a_master_of_ours_still_vouches_for_each_process() -> None:
    bench = Bench()
    bench.alter(frozenset({1}))
    bench.beat(2, streaming=True)
    refused = bench.alter(frozenset({1, 2}), incarnations=())
    assert refused.code is Code.INVALID_REPLICAS and "another process" in refused.remark


@pytest.mark.parametrize("incarnation", [13, 0])
def test_a_replica_that_holds_nothing_costs_no_write_per_heartbeat(incarnation: int) -> None:
    """INV-37: it waits to be seeded, or is a stock one that says nothing, while the others confirm more and more."""
    bench = Bench(2)
    bench.step(ApplyBrokerId(0, "c", "a", 3, "code3"))
    bench.step(RegisterBroker(0, 13, "c", "a", 3, "host3:1", incarnation=incarnation))
    with_messages(bench)
    writes = 0
    for number in range(1, 50):
        bench.now_ms += 300
        bench.beat(1, leading=True, end=21_445 + number, confirmed=21_445 + number)
        beat = Heartbeat(13, "a", 3, incarnation)
        writes += sum(isinstance(each, Persist) for each in bench.step(beat))
    assert writes == 0


def test_an_election_without_a_loss_forgets_nothing_that_was_confirmed() -> None:
    """INV-37: the controller restarted and heard no heartbeat before it elects."""
    bench = Bench()
    with_messages(bench)
    all_gone(bench)
    bench.core = ControllerCore(LeaseTimes(), start_ms=bench.now_ms)
    bench.core.load(bench.durable.values())
    bench.now_ms += 60_000
    register(bench, 1, 21, epoch=1, end=21_445, lineage=(11,))
    record = bench.durable["a"]
    assert (record.master, record.lossy_epoch, record.confirmed) == (1, 0, 21_445)


def test_an_older_release_between_two_of_ours_makes_no_copy_of_a_store() -> None:
    """INV-38: upgraded, rolled back, upgraded again. The process in the middle wrote itself down nowhere."""
    bench = Bench(1)
    with_messages(bench)
    for incarnation, lineage in (21, (11, 21)), (31, ()), (41, (11, 21, 41)):
        bench.step(SessionClosed(bench.record.members[1].incarnation))
        bench.now_ms += 60_000
        said = register(bench, 1, incarnation, epoch=1, end=21_445, lineage=lineage)
        assert (bench.record.master, bench.record.suspects) == (1, ()), said
        bench.beat(1, leading=True, end=21_445, confirmed=21_445)
    bench.step(SessionClosed(41))
    register(bench, 1, 51, epoch=1, end=21_445, lineage=(11, 21, 51))
    assert bench.record.suspects == (1,), "a copy from before the second upgrade is one"


@pytest.mark.parametrize(("chosen", "given_up"), [(1, "; 2 ends at 900 in epoch 1"), (2, "")])
def test_who_elects_by_hand_is_told_whose_log_reaches_how_far(chosen: int, given_up: str) -> None:
    """Replica 2 left the set before its last member came back with less than both had."""
    bench = Bench()
    with_messages(bench, 900)
    bench.alter(frozenset({1}))
    all_gone(bench)
    register(bench, 1, 21, epoch=1, end=700)
    register(bench, 2, 22, epoch=1, end=900)
    wish = ElectMaster(0, "c", "a", chosen, designated=True)
    refused = bench.answer(wish)
    assert refused.code is Code.ELECT_MASTER_FAILED
    assert refused.remark.endswith(
        "; logs here: 2 ends at 900 in epoch 1, 1 ends at 700 in epoch 1"
    )
    said = told(bench.step(msgspec.structs.replace(wish, unclean=True)))[0]
    assert said.kind is Kind.LOSS_POSSIBLE
    assert said.text.endswith(f"chosen by an operator{given_up}")
