"""What tandemmq.chaos.repeats finds in deliveries around restarts, and what it lets pass."""

from __future__ import annotations

import pytest

from tandemmq.chaos.repeats import (
    ON_DISK_MS,
    ON_THE_WAY,
    OURS,
    PROBLEMS_MAX,
    STOCK,
    WRITING_MS,
    Delivery,
    Positions,
    Restart,
    Tally,
    more_often,
    tally,
)
from tandemmq.cluster.client import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)
OTHER = MessageQueue("T", "broker-b", 0)
DOWN_MS = 100_000.0
KILLED = Restart("broker-a", "kill -9", DOWN_MS, in_order=False)
STOPPED = Restart("broker-a", "SIGTERM", DOWN_MS, in_order=True)


def given(
    member: str, offset: int, at_ms: float, queue: MessageQueue = QUEUE, key: str = ""
) -> Delivery:
    return Delivery(member, queue, offset, key or str(offset), at_ms)


def told(*positions: tuple[float, int]) -> Positions:
    found = Positions()
    for at_ms, committed in positions:
        found.add(QUEUE, at_ms, committed)
    return found


def kinds(found: Tally) -> list[str]:
    return [each.split(":")[0] for each in found.problems]


def judged(
    deliveries: list[Delivery], positions: Positions, restart: Restart = KILLED, *, ours: bool
) -> Tally:
    return tally([each.key for each in deliveries], deliveries, [restart], positions, ours=ours)


def test_every_message_once_is_good() -> None:
    once = [given("1", 0, 1), given("2", 0, 2, OTHER, key="b"), given("1", 1, DOWN_MS + 10)]
    found = judged(once, told((5, 1)), ours=True)
    assert (found.delivered, found.repeated, found.problems) == (3, 0, [])


def test_a_message_that_did_not_come_is_found() -> None:
    found = tally(["0", "1"], [given("1", 0, 1)], [KILLED], told((5, 1)), ours=False)
    assert found.problems == ["UNREAD: 1 was acknowledged"]


@pytest.mark.parametrize(("ours", "problems"), [(True, ["WENT BACK"]), (False, [])])
def test_a_member_of_ours_does_not_go_back_and_a_stock_one_may(
    ours: bool, problems: list[str]
) -> None:
    """200 consumed, a restart, and 300 delivered."""
    back = [given("1", 7, 90_000), given("1", 7, DOWN_MS + 10)]
    found = judged(back, told((1, 0)), ours=ours)
    assert (found.repeated, found.went_back) == (1, 1)
    assert kinds(found) == problems


def test_a_queue_that_another_member_read_meanwhile_may_go_back() -> None:
    changed = [given("1", 7, 90_000), given("2", 6, 95_000), given("1", 7, DOWN_MS + 10)]
    found = judged(changed, told((1, 0)), ours=True)
    assert (found.repeated, found.went_back, found.problems) == (1, 0, [])


def test_another_message_at_the_same_offset_is_no_second_delivery() -> None:
    cut = [given("1", 7, 90_000, key="old"), given("1", 7, DOWN_MS + 10, key="new")]
    assert judged(cut, told((1, 0)), ours=True).repeated == 0


ON_DISK = DOWN_MS - ON_DISK_MS - WRITING_MS


@pytest.mark.parametrize(
    ("restart", "ours", "told_ms", "committed", "bad"),
    [
        (KILLED, True, DOWN_MS - 1, 8, True),  # ours lives on and knows it
        (KILLED, True, DOWN_MS - 1, 7, False),
        (KILLED, True, DOWN_MS + 1, 8, False),  # committed after its end: by another
        (KILLED, False, DOWN_MS - 1, 8, False),  # it was in the broker's memory only
        (KILLED, False, ON_DISK + 1, 8, False),
        (KILLED, False, ON_DISK - 1, 8, True),
        (STOPPED, False, DOWN_MS - 1, 8, True),
    ],
)
def test_what_was_committed_for_good_does_not_come_again(
    restart: Restart, ours: bool, told_ms: float, committed: int, bad: bool
) -> None:
    moved = [given("1", 7, 80_000), given("2", 7, DOWN_MS + 500)]
    found = judged(moved, told((1, 0), (told_ms, committed)), restart, ours=ours)
    assert found.repeated == 1
    assert kinds(found) == (["COMMITTED"] if bad else [])


def test_a_restart_of_another_broker_says_nothing_of_a_queue() -> None:
    restart = Restart("broker-b", "SIGTERM", DOWN_MS, in_order=True)
    moved = [given("1", 7, 80_000), given("2", 7, DOWN_MS + 500)]
    assert judged(moved, told((1, 9)), restart, ours=True).problems == []


def test_positions_that_were_set_back_are_counted_and_still_bind() -> None:
    positions = told((1, 5), (2, 9), (3, 4), (4, 6))
    assert positions.set_back == 1
    assert [positions.highest(QUEUE, at) for at in (1, 2, 3, 4, 5)] == [0, 5, 9, 9, 9]


def test_a_run_that_shows_nothing_is_no_success() -> None:
    one = [given("1", 0, 1)]
    assert kinds(tally(["0"], [], [KILLED], told((1, 1)), ours=True)) == ["EMPTY"]
    assert kinds(tally(["0"], one, [], told((1, 1)), ours=True)) == ["EMPTY"]
    assert kinds(tally(["0"], one, [KILLED], Positions(), ours=True)) == ["EMPTY"]


def test_a_message_that_was_stored_twice_by_a_retried_send_is_one() -> None:
    twice = [given("1", 0, 1), Delivery("1", QUEUE, 9, "0", 2)]
    found = tally(["0"], twice, [KILLED], told((1, 1)), ours=True)
    assert (found.delivered, found.repeated, found.messages, found.problems) == (2, 0, 1, [])


def test_many_problems_of_a_kind_are_counted() -> None:
    sent = [str(number) for number in range(PROBLEMS_MAX + 5)]
    found = tally(sent, [given("1", 0, 1)], [KILLED], told((1, 1)), ours=True)
    assert found.problems[-1] == "UNREAD: and 4 more"


def test_ours_is_not_given_more_again_than_stock_consumers_in_the_same_run() -> None:
    ours, stock = Tally(repeated=100), Tally(repeated=99)
    assert [each.split(":")[0] for each in more_often({OURS: ours, STOCK: stock}, 20)] == ["MORE"]
    stock.repeated = 100
    assert more_often({OURS: ours, STOCK: stock}, 20) == []
    ours.repeated, stock.repeated = ON_THE_WAY, 0
    assert more_often({OURS: ours, STOCK: stock}, 20) == []


def test_without_stock_consumers_a_restart_may_cost_a_pull() -> None:
    assert more_often({OURS: Tally(repeated=2 * ON_THE_WAY)}, 2) == []
    assert more_often({OURS: Tally(repeated=2 * ON_THE_WAY + 1)}, 2) != []
