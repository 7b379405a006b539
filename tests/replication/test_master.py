"""A classic MasterCore whose shell tells it of its own log late: with the reports that it answers."""

from __future__ import annotations

import pytest

from tandemmq.replication.config import Mode, StreamRules
from tandemmq.replication.epochs import Epoch, EpochHistory
from tandemmq.replication.master import MasterCore
from tandemmq.replication.masterevents import (
    Acknowledge,
    Appended,
    Confirmed,
    Effect,
    Flushed,
    SlaveGreeted,
    SlaveLost,
)
from tandemmq.replication.masterevents import SlaveReported as Reported

CONNECTION = 7


@pytest.fixture
def core() -> MasterCore:
    """A synchronous master whose log is known up to 100, with a slave that holds all of that."""
    rules = StreamRules(copies_wanted=2)
    core = MasterCore(0, Mode.S0, rules, controlled=False, end=100, flushed=60)
    core.step(SlaveGreeted(CONNECTION, -1, compared=100), 0)
    core.step(Reported(CONNECTION, 100, None, None, 100, 100), 0)
    assert core.acknowledged == 100
    return core


def report(core: MasterCore, received: int, end: int, connection: int = CONNECTION) -> list[Effect]:
    """A slave's report, as a shell passes it on whose log ends at `end`."""
    return core.step(Reported(connection, received, None, None, max(received, end), end), 1)


def test_copies_count_ourselves_for_an_answer_whose_end_the_core_was_not_told_of(
    core: MasterCore,
) -> None:
    assert core.copies(200) == (1, 0)
    assert core.copies(100) == (2, 0)
    assert core.copies(60) == (2, 1), "how much is on a classic slave's disk nobody says"


def test_a_report_tells_the_core_how_far_our_own_log_reaches(core: MasterCore) -> None:
    assert report(core, 150, end=200) == [Confirmed(200), Acknowledge(150, 0, 2, 0)]
    assert core.end == 200
    assert report(core, 200, end=200) == [Acknowledge(200, 0, 2, 0)]


def test_a_report_with_a_stale_end_takes_nothing_back(core: MasterCore) -> None:
    core.step(Appended(200), 1)
    report(core, 100, end=150)
    assert core.end == 200
    assert report(core, 200, end=0) == [Acknowledge(200, 0, 2, 0)]
    assert core.end == core.confirmed == core.acknowledged == 200


def test_the_last_report_of_a_slave_that_is_gone_still_tells_of_our_log(core: MasterCore) -> None:
    report(core, 200, end=200, connection=CONNECTION + 1)
    assert core.end == 200 and core.acknowledged == 100
    core.step(Flushed(200), 1)
    assert core.copies(200) == (1, 1)


def test_a_report_beyond_the_end_that_came_with_it_is_a_lie(core: MasterCore) -> None:
    report(core, 201, end=200)
    assert core.slaves == {} and core.acknowledged == 100


def leader(mode: Mode, *members: int) -> MasterCore:
    return MasterCore(
        1, mode, StreamRules(), history=EpochHistory((Epoch(3, 0),)), end=50, flushed=50,
        granted=frozenset(members), number=1, lease_until_ms=1000,
    )  # fmt: skip


def test_nobody_came_after_a_master_alone_while_its_lease_runs_and_it_did_not_give_up() -> None:
    core = leader(Mode.S0, 1)
    assert core.unsucceeded(999) and not core.unsucceeded(1000)
    core.close("another was elected", 10)
    assert not core.unsucceeded(11)


def test_nobody_came_after_a_master_whom_all_of_the_set_follow() -> None:
    core = leader(Mode.S0, 1, 2)
    grace_ms = core.rules.lost_grace_ms
    assert not core.unsucceeded(grace_ms + 1), "its lease runs, and who may be elected is not here"
    core.step(SlaveGreeted(CONNECTION, 2, compared=50), grace_ms)
    core.step(Reported(CONNECTION, 50, 50, 3, 50, 50), grace_ms)
    assert core.unsucceeded(grace_ms + 1)
    assert core.unsucceeded(1000), "by its lease it could not tell"
    core.step(SlaveLost(CONNECTION), 1000)
    assert not core.unsucceeded(1001)


def test_a_master_that_goes_on_without_a_lease_is_believed() -> None:
    assert leader(Mode.A0, 1, 2).unsucceeded(5000)


def test_a_classic_master_has_no_successor(core: MasterCore) -> None:
    assert core.unsucceeded(1 << 60)
