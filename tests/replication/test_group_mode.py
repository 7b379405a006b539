"""What a group promises when its replicas are not configured alike: nothing less while anybody may rely on it."""

from __future__ import annotations

from typing import Any

import pytest
from controlkit import Bench, told
from msgspec import structs

from tandemmq.replication.config import LeaseTimes
from tandemmq.replication.election import (
    Announce,
    ApplyBrokerId,
    ControllerCore,
    Kind,
    RegisterBroker,
    SessionClosed,
    Tick,
)


def restart(bench: Bench, replica: int, mode: str, **fields: Any) -> list[Announce]:
    """A new process of this replica, configured anew; what is said of it. The epoch of its log is the record's."""
    known = bench.record.members[replica].incarnation
    bench.step(SessionClosed(known))
    new = known + 10
    values = {"epoch": bench.record.epoch, **fields}
    event = RegisterBroker(
        0, new, "c", "a", replica, f"host{replica}:1", incarnation=new, mode=mode, **values
    )
    return told(bench.step(event))


def all_beat(bench: Bench) -> None:
    """Every replica that is registered beats, the master leading: then it is active."""
    for replica in bench.record.registered:
        bench.beat(replica, leading=replica == bench.record.master)
    bench.beat(bench.record.master, leading=True)


def test_one_replica_of_a_weaker_mode_does_not_weaken_its_group_and_is_said_once() -> None:
    bench = Bench(mode="S0")
    said = restart(bench, 2, "A0")
    assert [(each.kind, each.text.partition(" until")[0]) for each in said] == [
        (Kind.MODE_DIFFERS, "replica 2 is configured A0, the group's mode is S0")
    ]
    all_beat(bench)
    assert bench.durable["a"].mode == "S0"
    assert restart(bench, 2, "A0") == [], "said already"
    assert [each.kind for each in restart(bench, 2, "A1")] == [Kind.MODE_DIFFERS], "another mode"


@pytest.mark.parametrize("mode", ["A0", "S1"])
def test_the_guard_of_a_set_of_one_outlives_a_replica_of_another_mode(mode: str) -> None:
    bench = Bench(mode="S0")
    restart(bench, 2, mode)
    bench.alter(frozenset({1}))
    restart(bench, 1, "S0", suspect=True, end=500)
    bench.step(Tick())
    assert bench.record.master == 0, "what 1 lost is for an operator to give up"


def test_a_failover_under_a_replica_of_a_weaker_mode_declares_no_loss() -> None:
    bench = Bench(replicas=3, mode="S0")
    restart(bench, 3, "A0")
    bench.step(SessionClosed(11))
    bench.now_ms = 2400
    bench.beat(2)
    assert (bench.record.master, bench.record.lossy_epoch) == (2, 0)


@pytest.mark.parametrize(("before", "after"), [("S0", "A0"), ("S1", "S0"), ("S0", "A1")])
def test_a_rolling_change_to_a_weaker_mode_ends_with_it_when_all_say_so(
    before: str, after: str
) -> None:
    bench = Bench(replicas=3, mode=before)
    for replica in (3, 2):
        restart(bench, replica, after)
        all_beat(bench)
        assert bench.record.mode == before, "1 still says so"
    restart(bench, 1, after)
    assert bench.record.master != 0 and bench.record.mode == before, "its master is not active yet"
    all_beat(bench)
    assert bench.durable["a"].mode == after
    assert restart(bench, 2, after) == []


@pytest.mark.parametrize(("before", "after"), [("A0", "S0"), ("S0", "S1"), ("A1", "S0")])
def test_a_rolling_change_to_a_stricter_mode_counts_from_the_first_replica(
    before: str, after: str
) -> None:
    bench = Bench(replicas=3, mode=before)
    said = restart(bench, 3, after)
    assert bench.durable["a"].mode == after
    assert [each.text.partition(",")[0] for each in said] == [
        f"replica 1 is configured {before}", f"replica 2 is configured {before}",
    ]  # fmt: skip
    for replica in (2, 1):
        restart(bench, replica, after)
        all_beat(bench)
        assert bench.record.mode == after


@pytest.mark.parametrize("restarted", [False, True])
def test_what_an_election_declares_lost_goes_by_the_mode_that_the_last_master_served_in(
    restarted: bool,
) -> None:
    bench = Bench(mode="A0")
    all_beat(bench)
    restart(bench, 2, "S0")
    bench.alter(frozenset({1, 2}))
    assert (bench.record.mode, bench.record.reigned_mode) == ("S0", "A0")
    if restarted:  # configured anew, too late for what it confirmed
        restart(bench, 1, "S0")
    else:
        bench.step(SessionClosed(11))
    bench.now_ms += 2400
    bench.beat(2)
    assert bench.record.master == 2
    assert bench.record.lossy_epoch == bench.record.epoch


def test_an_id_that_was_only_applied_for_keeps_no_mode() -> None:
    bench = Bench(mode="S0")
    bench.step(ApplyBrokerId(0, "c", "a", 3, "code3"))
    for replica in (2, 1):
        restart(bench, replica, "A0")
        all_beat(bench)
    assert bench.record.mode == "A0"


def test_a_rolling_change_goes_on_over_a_restart_of_the_controller() -> None:
    bench = Bench(mode="S0")
    restart(bench, 2, "A0")
    bench.core = ControllerCore(LeaseTimes(), start_ms=bench.now_ms)
    bench.core.load(bench.durable.values())
    all_beat(bench)
    assert bench.record.mode == "S0"
    restart(bench, 1, "A0")
    all_beat(bench)
    assert bench.record.mode == "A0"


def test_the_stricter_mode_stands_until_the_last_replica_is_back() -> None:
    bench = Bench(mode="S0")
    restart(bench, 2, "A0")
    bench.step(SessionClosed(22))
    restart(bench, 1, "A0")
    bench.step(Tick())
    bench.beat(1, leading=True)
    assert bench.record.mode == "S0", "2 is away"
    bench.step(RegisterBroker(0, 22, "c", "a", 2, "host2:1", incarnation=22, mode="A0", epoch=1))
    all_beat(bench)
    assert bench.record.mode == "A0"


def test_a_promise_does_not_end_while_nobody_leads() -> None:
    """All come back weaker after a power cut: what was confirmed before is still guarded."""
    bench = Bench(mode="S0")
    bench.alter(frozenset({1}))
    bench.step(SessionClosed(11))
    bench.step(SessionClosed(12))
    bench.now_ms = 60_000
    restart(bench, 2, "A0", suspect=True, end=300)
    restart(bench, 1, "A0", suspect=True, end=500)
    bench.step(Tick())
    assert (bench.record.master, bench.record.mode) == (0, "S0")


def test_a_member_that_an_older_controller_recorded_has_not_said_its_mode() -> None:
    bench = Bench(mode="S0")
    record = bench.record
    members = {each: structs.replace(member, mode="") for each, member in record.members.items()}
    bench.core = ControllerCore(LeaseTimes())
    bench.core.load([structs.replace(record, members=members)])
    all_beat(bench)
    restart(bench, 2, "A0")
    all_beat(bench)
    assert bench.record.mode == "S0", "1 may rely on it"
    restart(bench, 1, "A0")
    all_beat(bench)
    assert bench.record.mode == "A0"


def test_a_stock_replica_does_not_hold_up_a_change_of_the_mode() -> None:
    bench = Bench(replicas=2, mode="S0")
    bench.step(ApplyBrokerId(0, "c", "a", 3, "code3"))
    bench.step(RegisterBroker(0, 13, "c", "a", 3, "java3:1"))
    for replica in (2, 1):
        restart(bench, replica, "A0")
    for replica in (1, 2):
        bench.beat(replica, leading=replica == bench.record.master)
    assert bench.record.mode == "A0"
