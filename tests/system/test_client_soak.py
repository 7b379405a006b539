"""Members of a group come, go and die under load for a few seconds; and the checks find what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.chaos.rebalance_soak import (
    TAKE_OVER_SLACK_MS,
    Delivery,
    Settings,
    check,
    check_shares,
    soak,
)
from tandemmq.chaos.repeats import Positions
from tandemmq.cluster.client import MessageQueue

pytestmark = pytest.mark.system

QUEUE = MessageQueue("Soak", "broker-a", 0)
OTHER = MessageQueue("Soak", "broker-a", 1)
LATER_MS = 10 * TAKE_OVER_SLACK_MS


async def test_nothing_goes_unread_while_members_come_go_and_die(tmp_path: Path) -> None:
    said: list[str] = []
    settings = Settings(12, 20261121, tmp_path, rate=200, java=False, pause_s=(0.5, 1.5))
    outcome = await soak(settings, said.append)
    assert outcome.problems == []
    assert outcome.sent > 500
    assert outcome.delivered == outcome.sent + outcome.repeated
    assert outcome.actions["kill python"] >= 1
    assert outcome.actions["join python"] >= 3
    assert said


def delivered(member: str, offset: int, at_ms: float, key: str = "") -> Delivery:
    return Delivery(member, QUEUE, offset, key or str(offset), at_ms)


def sampled(*positions: tuple[float, int]) -> Positions:
    samples = Positions()
    for at_ms, committed in positions:
        samples.add(QUEUE, at_ms, committed)
    return samples


HELD = frozenset({QUEUE})


def test_message_that_nobody_got_is_found() -> None:
    members = [([delivered("a", 0, 100)], [(50.0, HELD)])]
    repeated, problems = check(["0", "1"], members, sampled((0, 0)))
    assert repeated == 0
    assert [problem.split(":")[0] for problem in problems] == ["UNREAD"]


@pytest.mark.parametrize(("committed", "explained"), [(5, True), (6, False)])
def test_second_delivery_is_explained_by_what_was_not_committed(
    committed: int, explained: bool
) -> None:
    taken_ms = float(LATER_MS)
    members = [
        ([delivered("a", 5, 100)], [(50.0, HELD)]),
        ([delivered("b", 5, taken_ms + 10)], [(taken_ms, HELD)]),
    ]
    samples = sampled((60, 0), (taken_ms - TAKE_OVER_SLACK_MS - 100, committed))
    repeated, problems = check(["5"], members, samples)
    assert repeated == 1
    assert bool(problems) != explained
    assert all(problem.startswith("REPEATED") for problem in problems)


def test_commit_after_the_take_over_says_nothing_about_it() -> None:
    taken_ms = float(LATER_MS)
    members = [
        ([delivered("a", 5, 100)], [(50.0, HELD)]),
        ([delivered("b", 5, taken_ms + 10)], [(taken_ms, HELD)]),
    ]
    assert check(["5"], members, sampled((60, 0), (taken_ms + 20, 9)))[1] == []


def test_run_without_a_delivery_or_a_sample_is_no_success() -> None:
    assert check([], [], sampled((0, 0)))[1]
    assert check(["0"], [([delivered("a", 0, 100)], [])], Positions())[1]


def test_gaps_and_queues_held_twice_are_found() -> None:
    assert check_shares([QUEUE, OTHER], {"a": frozenset({QUEUE}), "b": frozenset({OTHER})}) == []
    problems = check_shares([QUEUE, OTHER], {"a": HELD, "b": HELD})
    assert sorted(problem.split(":")[0] for problem in problems) == ["GAP", "TWICE"]
