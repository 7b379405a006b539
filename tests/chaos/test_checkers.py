"""The checkers find what they are there for, and only that."""

from __future__ import annotations

from msgspec.structs import replace

from tandemmq.chaos.checkers import Queue, QueueContents, Served, check_acknowledged, check_queues
from tandemmq.chaos.checking.lines import OK, Send

HASH = "00112233aabbccdd"
QUEUE: Queue = ("T", 0)


def unique(number: int) -> str:
    return f"{number:016x}{HASH}"


def ack(number: int, offset: int) -> Send:
    return Send(unique(number), "T", 0, 0, 0, 3, 0, 0, OK, 0, "b:1", offset, 100 * number)


def serve(*numbers: int, read_from: int = 0, end: int | None = None) -> dict[Queue, QueueContents]:
    messages = [
        Served(read_from + at, unique(number), ("b:1", 100 * number), HASH)
        for at, number in enumerate(numbers)
    ]
    last = read_from + len(messages) if end is None else end
    return {QUEUE: QueueContents(read_from, 0, last, messages)}


def test_a_whole_queue_with_all_acknowledged_messages_is_good() -> None:
    served = serve(7, 8, 9)
    assert not [*check_acknowledged([ack(7, 0), ack(9, 2)], served), *check_queues(served)]


def test_an_acknowledged_message_behind_the_end_is_lost() -> None:
    (problem,) = check_acknowledged([ack(7, 0), ack(9, 2)], serve(7, 8))
    assert problem.startswith("LOST: acknowledged in round 3, queue ends at 2")


def test_an_acknowledged_place_with_another_message_is_reported() -> None:
    (problem,) = check_acknowledged([ack(9, 1)], serve(7, 8))
    assert problem.startswith(f"REPLACED by {unique(8)}")


def test_an_acknowledged_message_at_another_place_of_the_log_is_reported() -> None:
    moved = replace(ack(7, 0), offset=1)
    (problem,) = check_acknowledged([moved], serve(7))
    assert problem.startswith("MOVED in the log to ('b:1', 700)")


def test_an_acknowledged_message_of_an_unserved_queue_is_reported() -> None:
    (problem,) = check_acknowledged([ack(7, 0)], {})
    assert "its queue is not served" in problem


def test_acknowledged_messages_in_front_of_what_was_read_are_left_alone() -> None:
    assert not list(check_acknowledged([ack(1, 4)], serve(7, 8, read_from=5)))


def test_a_gap_in_a_queue_is_reported() -> None:
    messages = [Served(at, unique(at), ("b:1", at), HASH) for at in (0, 1, 3)]
    (problem,) = check_queues({QUEUE: QueueContents(0, 0, 4, messages)})
    assert problem == "queue ('T', 0) serves 0..1, 3..3, not 0..3"


def test_a_queue_that_serves_less_than_its_end_is_reported() -> None:
    (problem,) = check_queues(serve(7, 8, end=3))
    assert "serves 0..1, not 0..2" in problem


def test_a_message_that_comes_twice_is_reported() -> None:
    (problem,) = check_queues(serve(7, 8, 7))
    assert problem.startswith("REPEATED")


def test_a_message_in_two_queues_is_reported() -> None:
    two = {**serve(7), ("T", 1): serve(7)[QUEUE]}
    (problem,) = check_queues(two)
    assert problem.startswith("REPEATED")


def test_a_body_that_is_not_the_one_sent_is_reported() -> None:
    served = {QUEUE: QueueContents(0, 0, 1, [Served(0, unique(7), ("b:1", 700), "ff" * 8)])}
    (problem,) = check_queues(served)
    assert problem.startswith("DAMAGED")


def test_a_queue_that_lost_its_beginning_is_reported() -> None:
    served = {QUEUE: serve(7, 8)[QUEUE]._replace(min_offset=1)}
    (problem,) = check_queues(served)
    assert "begins at 1" in problem
