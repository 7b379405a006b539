"""Ranges, micro-batches and pieces: every row once, whatever grows, shrinks or is limited. No Spark."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.spark.errors import DataLost, OffsetsRefused
from tandemmq.spark.planning import (
    TOGETHER_ROWS,
    QueueRange,
    advanced,
    between,
    cut_back,
    grown,
    resolved,
    shrunk,
    split,
    together,
)
from tandemmq.spark.positions import (
    EARLIEST,
    LATEST,
    At,
    Offsets,
    Positions,
    QueueKey,
    Span,
    parse_positions,
)
from tandemmq.spark.pruning import Comparison, pruned

A, B, C = (QueueKey("Orders", "broker-a", number) for number in range(3))
HELD = {A: Span(10, 50), B: Span(0, 5)}
queues = st.sampled_from([A, B, C])
offsets = st.integers(0, 1_000)


def exact(**more: int) -> Positions:
    text = ", ".join(f'"broker-a:{name[1:]}": {offset}' for name, offset in more.items())
    return parse_positions(f'{{"Orders": {{{text}}}}}')


def test_positions_by_name_number_and_time() -> None:
    assert resolved(Positions(At(EARLIEST)), HELD, {}, "x") == {A: 10, B: 0}
    assert resolved(Positions(At(LATEST)), HELD, {}, "x") == {A: 50, B: 5}
    assert resolved(exact(q0=12, q1=-1), HELD, {}, "x") == {A: 12, B: 5}
    assert resolved(Positions(At.time(7)), HELD, {A: 20, B: 0}, "x") == {A: 20, B: 0}


def test_offset_beyond_its_queue_is_refused_with_what_it_holds() -> None:
    with pytest.raises(OffsetsRefused, match=r"startingOffsets 51 of .*holds \[10, 50\)"):
        resolved(exact(q0=51, q1=0), HELD, {}, "startingOffsets")


def test_every_queue_must_be_named_and_no_other() -> None:
    with pytest.raises(OffsetsRefused, match="must name every queue; Orders@broker-a:1 lack"):
        resolved(exact(q0=12), HELD, {}, "startingOffsets")
    with pytest.raises(OffsetsRefused, match="names Orders@broker-a:7, which is not there"):
        resolved(exact(q0=12, q1=0, q7=0), HELD, {}, "startingOffsets")


def test_offset_that_is_too_old_is_data_loss_or_told() -> None:
    with pytest.raises(DataLost, match=r"3 messages of Orders@broker-a:0 are gone.*failOnDataLoss"):
        resolved(exact(q0=7, q1=0), HELD, {}, "x")
    told: list[str] = []
    assert resolved(exact(q0=7, q1=0), HELD, {}, "x", told.append) == {A: 10, B: 0}
    assert "[7, 10)" in told[0]


def test_end_before_its_start_is_refused_where_it_was_named() -> None:
    with pytest.raises(OffsetsRefused, match=r"endingOffsets 3 .* before its start 9"):
        between({A: 9}, {A: 3}, checked=True)
    assert between({A: 9}, {A: 3}, checked=False) == []


def test_new_queue_enters_at_its_oldest_message_and_is_read_by_the_next_batch() -> None:
    first = grown({A: 20}, HELD, None, None)
    assert first == {A: 50, B: 0}
    assert between({A: 20}, first, checked=False) == [QueueRange(A, 20, 50)]
    second = grown(first, HELD, None, None)
    assert between(first, second, checked=False) == [QueueRange(B, 0, 5)]


def test_queue_whose_broker_is_away_stays_where_it_is() -> None:
    assert grown({A: 20, C: 7}, HELD, None, None)[C] == 7


def test_available_now_ends_at_its_target_though_queues_go_on() -> None:
    target = {A: 30, B: 5}
    at: Offsets = {A: 20}
    seen: list[QueueRange] = []
    for _ in range(10):
        following = grown(at, {**HELD, C: Span(0, 9)}, 4, target)
        seen += between(at, following, checked=False)
        if following == at:
            break
        at = following
    assert at == target  # and C, which came after the target was set, is for the next run
    assert sum(each.end - each.start for each in seen) == 15


def test_queue_that_shrank_is_found_and_its_stream_can_go_back() -> None:
    start = {A: 60, B: 5, C: 3}
    cut = shrunk(start, HELD)
    assert cut == [QueueRange(A, 50, 60)]
    assert cut_back(start, cut) == {A: 50, B: 5, C: 3}


@given(st.dictionaries(queues, offsets), st.dictionaries(queues, offsets), st.integers(1, 500))
def test_limit_is_kept_and_progress_is_made(start: Offsets, more: Offsets, rows_max: int) -> None:
    latest = {queue: start.get(queue, 0) + count for queue, count in more.items()}
    known = {queue: start.get(queue, 0) for queue in latest} | start
    end = advanced(known, latest, rows_max)
    taken = sum(end[queue] - known[queue] for queue in known)
    assert taken == min(rows_max, sum(more.values()))
    for queue in known:
        assert known[queue] <= end[queue] <= max(latest.get(queue, 0), known[queue])


@given(
    st.lists(st.tuples(offsets, st.integers(1, 300)), min_size=1, max_size=5), st.integers(1, 60)
)
def test_pieces_are_the_ranges_and_as_many_as_asked_for(
    spans: list[tuple[int, int]], partitions_min: int
) -> None:
    ranges = [
        QueueRange(QueueKey("T", "b", number), start, start + rows)
        for number, (start, rows) in enumerate(spans)
    ]
    pieces = split(ranges, partitions_min)
    assert pieces == split(ranges, partitions_min)
    rows = sum(each.end - each.start for each in ranges)
    assert len(pieces) >= min(partitions_min, rows)
    for each in ranges:
        mine = [piece for piece in pieces if piece.queue == each.queue]
        assert [mine[0].start, mine[-1].end] == [each.start, each.end]
        assert all(a.end == b.start for a, b in pairwise(mine))
        assert all(piece.start < piece.end for piece in mine)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 1_500)), max_size=12),
    st.integers(1, 14),
)
def test_small_pieces_of_one_broker_are_read_together(
    spans: list[tuple[str, int]], partitions_min: int
) -> None:
    pieces = [
        QueueRange(QueueKey("T", broker, number), 5, 5 + rows)
        for number, (broker, rows) in enumerate(spans)
    ]
    tasks = together(pieces, partitions_min)
    assert tasks == together(pieces, partitions_min)
    assert sorted(each for task in tasks for each in task) == sorted(pieces)
    assert len(tasks) >= min(partitions_min, len(pieces))
    for task in tasks:
        assert list(task) == [piece for piece in pieces if piece in task], "in their order"
        assert len({each.queue.broker for each in task}) == 1, "epochs are of one broker's log"
        assert len(task) == 1 or sum(each.end - each.start for each in task) <= TOGETHER_ROWS


def test_tasks_are_as_few_as_their_rows_allow() -> None:
    few = [QueueRange(QueueKey("T", "b", number), 0, 100) for number in range(8)]
    assert together(few, 1) == [tuple(few)]
    assert together(few, 2) == [(each,) for each in few]
    large = QueueRange(QueueKey("T", "b", 9), 0, TOGETHER_ROWS + 1)
    assert together([large, *few], 1) == [(large,), tuple(few)]


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([], [QueueRange(A, 10, 50), QueueRange(B, 0, 5)]),
        ([Comparison("queue_id", "=", 1)], [QueueRange(B, 0, 5)]),
        ([Comparison("topic", "in", ("Orders", "X"))], [QueueRange(A, 10, 50), QueueRange(B, 0, 5)]),
        ([Comparison("broker", "=", "broker-b")], []),
        ([Comparison("queue_offset", ">", 12), Comparison("queue_offset", "<=", 20)], [QueueRange(A, 13, 21)]),
        ([Comparison("queue_offset", ">=", 3), Comparison("queue_offset", "<", 11)],
         [QueueRange(A, 10, 11), QueueRange(B, 3, 5)]),
        ([Comparison("queue_offset", "in", (4, 12))], [QueueRange(A, 10, 13), QueueRange(B, 4, 5)]),
        ([Comparison("key", "=", "k")], [QueueRange(A, 10, 50), QueueRange(B, 0, 5)]),
    ],
)  # fmt: skip
def test_filters_leave_only_ranges_that_may_match(
    filters: list[Comparison], left: list[QueueRange]
) -> None:
    assert pruned([QueueRange(A, 10, 50), QueueRange(B, 0, 5)], filters) == left
