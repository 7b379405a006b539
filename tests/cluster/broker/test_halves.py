"""Pending transactions: what ends which, what a new master learns from the log, and when producers are asked."""

from __future__ import annotations

from typing import Any

from tandemmq.cluster.broker.transactions.halves import (
    ENDED_KEPT,
    KEEP_MS,
    PENDING_MAX,
    Birth,
    Half,
    Halves,
    OpBatch,
    Outcome,
    Step,
)

TIMEOUT_MS = 6_000
DAY_MS = 86_400_000


def half(queue_offset: int, **more: Any) -> Half:
    fields: dict[str, Any] = {
        "offset": 1000 * queue_offset, "origin": queue_offset, "topic": "T", "checks": 0,
        "began_ms": 0, "stored_ms": 0, "ask_ms": TIMEOUT_MS, **more,
    }  # fmt: skip
    return Half(queue_offset, **fields)


def birth(name: str) -> Birth:
    return name.encode(), 7, b"host"


def step(halves: Halves, each: Half, now_ms: int, reachable: bool = True) -> Step:
    return halves.step(each, now_ms, checks_max=15, kept_ms=3 * DAY_MS, reachable=reachable)


def pending(halves: Halves, *origins: int) -> list[int]:
    return [origin for origin in origins if halves.find(origin) is not None]


# -- ends -----------------------------------------------------------------------------------


def test_progress_is_the_first_pending_half() -> None:
    halves = Halves()
    halves.begin(5, 0)
    assert halves.progress == 5
    each = [half(offset) for offset in (5, 6, 7)]
    for one in each:
        halves.stored(one)
    halves.end(each[1], Outcome.COMMITTED)
    assert (halves.progress, len(halves), halves.counts) == (5, 2, {"T": 2})
    halves.end(each[0], Outcome.ROLLED_BACK)
    assert halves.progress == 7
    halves.end(each[2], Outcome.COMMITTED)
    assert (halves.progress, halves.counts) == (8, {})
    assert halves.outcome(5) is Outcome.ROLLED_BACK


def test_an_end_of_any_copy_ends_the_newest_and_it_alone_was_pending() -> None:
    halves = Halves()
    halves.stored(half(0))
    halves.stored(half(3, origin=0, checks=1))
    halves.stored(half(8, origin=0, checks=2))
    assert (len(halves), halves.progress, halves.counts) == (1, 8, {"T": 1})
    found = halves.find(0)
    assert found is not None and found.queue_offset == 8
    halves.end(found, Outcome.COMMITTED)
    assert halves.find(0) is None and halves.outcome(0) is Outcome.COMMITTED
    assert halves.progress == 9


def test_ends_are_forgotten_the_oldest_first() -> None:
    halves = Halves()
    for number in range(ENDED_KEPT + 2):
        each = half(number)
        halves.stored(each)
        halves.end(each, Outcome.COMMITTED)
    assert halves.outcome(1) is None and halves.outcome(2) is Outcome.COMMITTED


def test_op_messages_are_done_with_when_all_they_name_is_below_progress() -> None:
    halves = Halves()
    halves.begin(0, 4)
    for number in range(4):
        halves.stored(half(number))
    for number in (1, 3, 0):
        found = halves.find(number)
        assert found is not None
        halves.end(found, Outcome.COMMITTED)
    halves.noted(4, 1)
    halves.noted(5, 3)
    assert (halves.progress, halves.op_progress) == (2, 5)
    found = halves.find(2)
    assert found is not None
    halves.end(found, Outcome.COMMITTED)
    assert (halves.progress, halves.op_progress) == (4, 6)


# -- what the log says ----------------------------------------------------------------------


def test_a_commit_is_known_by_its_message_without_any_op_message() -> None:
    halves = Halves()
    halves.begin(0, 0)
    halves.saw_half(half(0), birth("a"))
    halves.saw_half(half(1), birth("b"))
    halves.saw_commit(0, birth("a"))
    halves.caught_up()
    assert pending(halves, 0, 1) == [1]
    assert halves.outcome(0) is Outcome.COMMITTED


def test_an_ordinary_message_with_the_flag_of_a_committed_one_ends_no_half_at_offset_0() -> None:
    """A copy for a retry keeps the flag, and names no half: offset 0."""
    halves = Halves()
    halves.begin(0, 0)
    halves.saw_half(half(0), birth("a"))
    halves.saw_half(half(1), birth("b"))
    halves.saw_commit(1000, birth("b"))
    halves.saw_commit(0, birth("b"))
    halves.saw_commit(0, birth("somebody"))
    halves.caught_up()
    assert pending(halves, 0, 1) == [0]
    assert halves.outcome(0) is None


def test_an_op_message_ends_exactly_what_it_names() -> None:
    """Ours name copies that were put again: the newer one is still pending."""
    halves = Halves()
    halves.begin(0, 0)
    halves.saw_half(half(0), birth("a"))
    halves.saw_half(half(1), birth("b"))
    halves.saw_half(half(2, origin=0, checks=1), birth("a"))
    halves.saw_op(0, [0, 1])
    halves.caught_up()
    assert pending(halves, 0, 1) == [0]
    assert halves.outcome(1) is Outcome.ROLLED_BACK
    assert (halves.progress, halves.op_progress) == (2, 1)


def test_copies_of_rocketmq_name_no_origin_and_are_known_all_the_same() -> None:
    """It asks, a late commit names the first copy: there it would come a second time."""
    halves = Halves()
    halves.begin(0, 0)
    halves.saw_half(half(0), birth("a"))
    halves.saw_half(half(4, checks=1), birth("a"))
    assert len(halves) == 1
    halves.saw_commit(0, birth("a"))
    assert len(halves) == 0
    halves.saw_half(half(5, checks=2), birth("a"))  # it had asked before it saw its op message
    halves.caught_up()
    assert len(halves) == 0 and halves.progress == 6


def test_a_commit_of_a_copy_whose_first_lies_below_what_is_replayed_is_known_by_birth() -> None:
    halves = Halves()
    halves.begin(4, 0)
    halves.saw_half(half(4, checks=1), birth("a"))
    halves.saw_commit(17, birth("a"))  # where the first copy lies
    assert len(halves) == 0


def test_one_message_sent_in_two_transactions_is_two() -> None:
    """The Java client keeps the unique id of a message that is sent again; neither is a copy."""
    halves = Halves()
    halves.begin(0, 0)
    halves.saw_half(half(0), birth("a"))
    halves.saw_op(0, [0])
    halves.saw_half(half(1), birth("a"))
    halves.caught_up()
    assert pending(halves, 1) == [1]


def test_a_new_reign_knows_nothing_of_the_one_before() -> None:
    halves = Halves()
    halves.stored(half(0))
    halves.begin(9, 3)
    assert (len(halves), halves.progress, halves.op_progress, halves.counts) == (0, 9, 3, {})
    assert halves.next_due(DAY_MS) is None


# -- checks ---------------------------------------------------------------------------------


def test_a_half_is_asked_for_when_its_time_has_come_and_not_when_it_is_over() -> None:
    halves = Halves()
    first, second = half(0), half(1)
    halves.stored(first)
    halves.stored(second)
    assert halves.next_due(TIMEOUT_MS - 1) is None
    halves.end(first, Outcome.COMMITTED)
    assert halves.next_due(TIMEOUT_MS) is second
    assert step(halves, second, TIMEOUT_MS) is Step.ASK
    halves.later(second, TIMEOUT_MS)
    assert halves.next_due(TIMEOUT_MS) is None, "once a round"
    assert halves.next_due(TIMEOUT_MS + 1) is second


def test_after_the_last_check_a_half_is_given_up() -> None:
    halves = Halves()
    assert step(halves, half(0, checks=14), DAY_MS) is Step.ASK
    assert step(halves, half(0, checks=15), DAY_MS) is Step.GIVE_UP
    assert step(halves, half(0, checks=15), DAY_MS, reachable=False) is Step.GIVE_UP


def test_where_no_producer_is_connected_nothing_counts_as_a_check() -> None:
    halves = Halves()
    assert step(halves, half(0), TIMEOUT_MS, reachable=False) is Step.WAIT
    assert step(halves, half(0), KEEP_MS, reachable=False) is Step.KEEP
    assert step(halves, half(0), 3 * DAY_MS + 1, reachable=False) is Step.GIVE_UP


def test_what_nobody_answers_for_makes_room_when_very_much_is_pending() -> None:
    halves = Halves()
    halves._pending = dict.fromkeys(range(PENDING_MAX // 2 + 1))  # type: ignore[arg-type]
    assert step(halves, half(0), TIMEOUT_MS, reachable=False) is Step.ASK
    assert not halves.full


def test_one_that_wants_to_be_left_alone_long_is_put_again_and_not_asked_for() -> None:
    """Else everything behind it would have to be read by the next master, and its record would age out of the log."""
    halves = Halves()
    immune = half(0, ask_ms=DAY_MS, end_ms=DAY_MS)
    halves.stored(immune)
    assert halves.next_due(KEEP_MS - 1) is None
    assert halves.next_due(KEEP_MS) is immune
    assert step(halves, immune, KEEP_MS) is Step.KEEP


# -- op messages ----------------------------------------------------------------------------


def test_ends_are_noted_together_after_a_while_or_when_they_are_many() -> None:
    batch = OpBatch(bytes_max=9, interval_ms=3_000)
    assert batch.due_ms() is None
    for number in (7, 100, 12):  # "7,100,12,"
        batch.add(number, 50)
    assert batch.due_ms() == 50
    batch.add(13, 60)
    assert batch.first() == [7, 100, 12]
    batch.drop(3, 70)
    assert (batch.first(), batch.due_ms(), len(batch)) == ([13], 3_070, 1)
    batch.drop(1, 80)
    assert batch.due_ms() is None and not batch.first()


def test_an_end_longer_than_a_note_is_noted_alone() -> None:
    batch = OpBatch(bytes_max=2, interval_ms=1)
    batch.add(123_456, 0)
    batch.add(7, 0)
    assert batch.first() == [123_456]
