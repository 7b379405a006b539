"""What is read of each queue, in which pieces, and how far a micro-batch goes. No I/O, and nothing of Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from tandemmq.spark.errors import DataLost, OffsetsRefused
from tandemmq.spark.positions import Offsets, Positions, QueueKey, Span

#: half a second of a core; to begin a task costs Spark a tenth of that
TOGETHER_ROWS: Final = 50_000
Held = Mapping[QueueKey, Span]
Tell = Callable[[str], None]


class QueueRange(NamedTuple):
    """Queue offsets [start, end) of one queue."""

    queue: QueueKey
    start: int
    end: int


class LogPiece(NamedTuple):
    """What one task reads: records of these ranges that begin in [start, end) of a broker's log."""

    broker: str
    start: int
    end: int
    ranges: tuple[QueueRange, ...]


def resolved(
    positions: Positions, held: Held, times: Offsets, option: str, gone: Tell | None = None
) -> Offsets:
    """Positions as queue offsets.

    held    what each queue holds now
    times   queue -> what its broker said of positions that are times
    gone    called with what cannot be read any more; None: positions below a queue's first are raised
    Raises OffsetsRefused, DataLost.
    """
    if unknown := sorted(set(positions.exact) - set(held)):
        there = ", ".join(map(str, sorted(held))) or "none"
        raise OffsetsRefused(f"{option} names {unknown[0]}, which is not there; queues: {there}")
    if positions.exact and (missing := sorted(set(held) - set(positions.exact))):
        raise OffsetsRefused(f"{option} must name every queue; {', '.join(map(str, missing))} lack")
    found: Offsets = {}
    for queue, span in held.items():
        offset = positions.at(queue).within(span)
        if offset is None:
            offset = min(max(times[queue], span.start), span.end)
        if offset > span.end:
            raise OffsetsRefused(
                f"{option} {offset} of {queue} lies beyond its end: it holds [{span.start}, {span.end})"
            )
        if offset < span.start:
            lost(QueueRange(queue, offset, span.start), "too old", gone)
            offset = span.start
        found[queue] = offset
    return found


def lost(missing: QueueRange, why: str, gone: Tell | None) -> None:
    """Messages are gone: tell of it where that is asked for, else raise DataLost."""
    text = (
        f"{missing.end - missing.start} messages of {missing.queue} are gone, "
        f"queue offsets [{missing.start}, {missing.end}): {why}"
    )
    if gone is None:
        raise DataLost(f"{text}. To go on without them set failOnDataLoss=false")
    gone(text)


def between(start: Offsets, end: Offsets, *, checked: bool) -> list[QueueRange]:
    """What lies between two positions, queues without anything left out.

    checked  an end before its start was asked for, and is refused with OffsetsRefused; else it is empty
    """
    found: list[QueueRange] = []
    for queue in sorted(end):
        # a queue that a stream does not know yet is entered first, and read by the next micro-batch
        first, stop = start.get(queue, end[queue]), end[queue]
        if checked and stop < first:
            raise OffsetsRefused(f"endingOffsets {stop} of {queue} lies before its start {first}")
        if first < stop:
            found.append(QueueRange(queue, first, stop))
    return found


def advanced(start: Offsets, latest: Offsets, rows_max: int | None) -> Offsets:
    """Where a micro-batch ends: everything, or about rows_max rows, of each queue its share of what waits there.

    At least one row of one queue, and never more than rows_max. Queues of `start` that are not in `latest` stay.
    """
    waiting = {queue: max(0, end - start.get(queue, end)) for queue, end in latest.items()}
    total = sum(waiting.values())
    if rows_max is None or total <= rows_max:
        return {**start, **latest}
    taken = {queue: count * rows_max // total for queue, count in waiting.items()}
    left = rows_max - sum(taken.values())
    for queue in sorted(waiting, key=lambda each: (taken[each] - waiting[each], each)):
        if left and taken[queue] < waiting[queue]:
            taken[queue] += 1
            left -= 1
    ends = {queue: start.get(queue, latest[queue]) + count for queue, count in taken.items()}
    return {**start, **ends}


def grown(start: Offsets, held: Held, rows_max: int | None, target: Offsets | None) -> Offsets:
    """The next position of a stream that stands at `start`.

    held    what the queues hold now, after shrunk() had its say
    target  of Trigger.AvailableNow: not beyond it
    A queue that `start` does not know enters at its oldest message and is read from the next micro-batch on, so that
    the checkpoint says where its rows begin.
    """
    latest: Offsets = {}
    for queue, span in held.items():
        if queue not in start:
            latest[queue] = span.start
        elif target is None:
            latest[queue] = max(span.end, start[queue])
        else:
            goal = target.get(queue, start[queue])
            latest[queue] = max(min(span.end, goal), start[queue])
    if target is not None:  # what came after it was set is not for this run
        latest = {queue: end for queue, end in latest.items() if queue in start or queue in target}
    return advanced(start, latest, rows_max)


def shrunk(start: Offsets, held: Held) -> list[QueueRange]:
    """Queues that end before where a stream stands: cut by a takeover, or made anew. end is the stream's position."""
    return [
        QueueRange(queue, held[queue].end, at)
        for queue, at in sorted(start.items())
        if queue in held and held[queue].end < at
    ]


def cut_back(start: Offsets, cut: Collection[QueueRange]) -> Offsets:
    """Where a stream goes on when it may: at the ends of the queues that shrank."""
    return {**start, **{each.queue: each.start for each in cut}}


def split(ranges: Sequence[QueueRange], partitions_min: int) -> list[QueueRange]:
    """At least partitions_min pieces where there are so many rows; a queue's share is by its rows.

    The same ranges give the same pieces.
    """
    total = sum(each.end - each.start for each in ranges)
    if len(ranges) >= partitions_min or not total:
        return list(ranges)
    wanted = min(partitions_min, total)
    counts = [max(1, (each.end - each.start) * wanted // total) for each in ranges]
    while sum(counts) < wanted:
        largest = max(
            range(len(ranges)), key=lambda n: (ranges[n].end - ranges[n].start) / counts[n]
        )
        counts[largest] += 1
    pieces: list[QueueRange] = []
    for (queue, start, end), count in zip(ranges, counts, strict=True):
        rows = end - start
        cuts = [start + rows * number // count for number in range(count + 1)]
        pieces += [QueueRange(queue, first, stop) for first, stop in pairwise(cuts) if first < stop]
    return pieces


def together(pieces: Sequence[QueueRange], partitions_min: int) -> list[tuple[QueueRange, ...]]:
    """What each task reads: small pieces of one broker together, up to TOGETHER_ROWS; partitions_min tasks at least.

    The same pieces give the same tasks: a micro-batch that is run again has its rows in the same places.
    """
    tasks: list[list[QueueRange]] = []
    open_tasks: dict[str, tuple[list[QueueRange], int]] = {}
    for piece in pieces:
        rows = piece.end - piece.start
        task, held = open_tasks.get(piece.queue.broker, (None, 0))
        if task is None or held + rows > TOGETHER_ROWS:
            task, held = [], 0
            tasks.append(task)
        task.append(piece)
        open_tasks[piece.queue.broker] = task, held + rows
    if len(tasks) < partitions_min:
        return [(each,) for each in pieces]
    return [tuple(each) for each in tasks]
