"""What filters on topic, broker, queue_id and queue_offset leave of a batch's ranges. No I/O, and nothing of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tandemmq.spark.planning import QueueRange

#: columns that say which queue a row is of
_OF_QUEUES: Final = ("topic", "broker", "queue_id")


class Comparison(NamedTuple):
    """A filter as `column sign value`; of `in` the value is a tuple."""

    column: str
    sign: str
    value: object


def pruned(ranges: Sequence[QueueRange], filters: Sequence[Comparison]) -> list[QueueRange]:
    """The parts of the ranges that may hold rows for which all filters are true; filters that say nothing of ranges
    are left to Spark, which judges every row anyway."""
    return [kept for each in ranges if (kept := _kept(each, filters)).start < kept.end]


def _kept(piece: QueueRange, filters: Sequence[Comparison]) -> QueueRange:
    nothing = QueueRange(piece.queue, piece.start, piece.start)
    start, end = piece.start, piece.end
    for column, sign, value in filters:
        if column in _OF_QUEUES:
            mine = getattr(piece.queue, column)
            if (sign == "=" and mine != value) or (sign == "in" and mine not in _values(value)):
                return nothing
        elif column == "queue_offset":
            offsets = [each for each in _values(value) if isinstance(each, int)]
            if not offsets:
                continue
            if sign in ("=", "in", ">="):
                start = max(start, min(offsets))
            if sign in ("=", "in", "<="):
                end = min(end, max(offsets) + 1)
            if sign == ">":
                start = max(start, offsets[0] + 1)
            if sign == "<":
                end = min(end, offsets[0])
    return QueueRange(piece.queue, start, end) if start < end else nothing


def _values(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)
