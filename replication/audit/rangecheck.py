"""Level 3, first half: one pass over a range of the log that holds every replica's derived files against it.

Ranges are whole segments, so they can be read by different workers; findings.py puts their reports together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tandemmq.replication.audit.kernel import MORE, RECORD
from tandemmq.replication.audit.kernels import Ledger
from tandemmq.replication.audit.ledger import DELAY_TOPIC, HALF_TOPIC, OP_TOPIC
from tandemmq.replication.audit.shelves import IndexEntries
from tandemmq.replication.audit.stores import ReplicaStore
from tandemmq.replication.audit.windows import limit_of, next_record, read
from tandemmq.storage import parse_delay_levels, queue_tags_code

WINDOW_BYTES: Final = 1 << 20  # stays in a core's cache between the copy and the walk
DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_OPS_MAX: Final = 5_000_000


class Interval(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Log offsets [start, end) that a divergence covers."""

    start: int
    end: int


class Span(msgspec.Struct, array_like=True):
    """A queue's part in a range: first and last queue offset and where they lie, and how many."""

    first: int
    first_physical: int
    last: int
    last_physical: int
    count: int


class MarkRow(msgspec.Struct, frozen=True, array_like=True):
    """ledger.Mark, in a form that travels."""

    code: int
    shelf: int
    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    first: int
    second: int


class SpecialRow(msgspec.Struct, frozen=True, array_like=True):
    """A half or delayed message: its queue offset, place and times."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    store_ms: int
    due_ms: int


class RangeReport(msgspec.Struct):
    """What one pass over a range found."""

    start: int
    end: int
    records: int = 0
    bytes_walked: int = 0
    last_store_ms: int = 0
    end_store_ms: dict[str, int] = {}  # by shelf: the newest store time below its log's end
    spans: list[tuple[bytes, int, Span]] = []
    marks: list[MarkRow] = []
    counts: list[list[int]] = []
    damaged: list[Interval] = []  # of the reference, in no divergence
    halves: list[SpecialRow] = []
    delayed: list[SpecialRow] = []
    ended_halves: list[tuple[int, int]] = []  # (queue id, queue offset) named by op messages
    unindexed: list[int] = []
    first_unindexed: list[int] = []


@dataclass(slots=True)
class Shelf:
    """One replica's derived files, and where its log is comparable with the reference."""

    replica: ReplicaStore
    masks: list[Interval]
    index: IndexEntries | None = None

    def active(self, offset: int) -> bool:
        if not self.replica.start <= offset < self.replica.end:
            return False
        at = bisect_right(self.masks, Interval(offset, 1 << 63)) - 1
        return at < 0 or self.masks[at].end <= offset


@dataclass(slots=True)
class _Pass:
    """The state of one pass."""

    reference: ReplicaStore
    shelves: Sequence[Shelf]
    islands: Sequence[Interval]
    edges: list[int]
    ledger: Ledger
    report: RangeReport
    ops: set[tuple[int, int]] = field(default_factory=set)
    buffer: bytearray = field(default_factory=lambda: bytearray(WINDOW_BYTES))


def check_range(
    reference: ReplicaStore,
    shelves: Sequence[Shelf],
    islands: Sequence[Interval],
    start: int,
    end: int,
    delay_levels: str = DELAY_LEVELS,
) -> RangeReport:
    """Walk the reference's records in [start, end).

    start    a segment's start; shelves  the reference first
    islands  where the reference differs from any replica: damage in there is known already
    Raises AuditIncomplete, OSError.
    """
    delays = parse_delay_levels(delay_levels)

    def window(shelf: int, topic: bytes, queue_id: int, offset: int) -> tuple[int, bytes]:
        queues = shelves[shelf].replica.queues
        return queues.window(topic, queue_id, offset) if queues is not None else (0, b"")

    def tags_code(topic: bytes, properties: bytes, store_ms: int) -> int:
        return queue_tags_code(topic, properties, store_ms, delays)

    ledger = Ledger(len(shelves), window, tags_code)
    edges = {end}
    for number, shelf in enumerate(shelves):
        if shelf.index is not None:
            entries = shelf.index
            ledger.set_index(number, entries.physical, entries.hashes, entries.first, entries.last)
            ledger.skip_index(number, start)
        edges |= {shelf.replica.start, shelf.replica.end}
        edges |= {edge for mask in shelf.masks for edge in (mask.start, mask.end)}
    state = _Pass(
        reference,
        shelves,
        sorted(islands),
        sorted(edge for edge in edges if start < edge <= end),
        ledger,
        RangeReport(start, end),
    )
    for segment in reference.segments:
        if segment.start < end and segment.start + reference.segment_bytes > start:
            _walk_segment(state, max(start, segment.start), end)
    return _finished(state)


def _walk_segment(state: _Pass, start: int, end: int) -> None:
    reference = state.reference
    limit = limit_of(reference, start)
    stop = min(end, limit)
    offset = start
    size = WINDOW_BYTES
    while offset < stop:
        view = read(reference, offset, size, state.buffer)
        came, kind = _walk_view(state, view, offset, stop, limit)
        if came >= stop:
            return
        more = len(view) == size and offset + size < limit
        if kind == MORE and more:
            size = WINDOW_BYTES if came > offset else size * 2
            offset = came
        else:
            offset = _pass_damage(state, came, stop)
            size = WINDOW_BYTES


def _walk_view(state: _Pass, view: memoryview, base: int, stop: int, limit: int) -> tuple[int, int]:
    """Take the records in one view: how far it came, and why it stopped."""
    offset = base
    while True:
        edge = _next_edge(state, offset, stop)
        came, kind = state.ledger.walk(view, offset, edge, base, limit, _mask(state, offset))
        _settle(state)
        for passed in state.edges[
            bisect_right(state.edges, offset) : bisect_right(state.edges, came)
        ]:
            _cross(state, passed)
        offset = came
        if kind != RECORD or offset >= stop:
            return offset, kind


def _mask(state: _Pass, offset: int) -> int:
    return sum(1 << number for number, shelf in enumerate(state.shelves) if shelf.active(offset))


def _next_edge(state: _Pass, offset: int, stop: int) -> int:
    at = bisect_right(state.edges, offset)
    return min(stop, state.edges[at]) if at < len(state.edges) else stop


def _cross(state: _Pass, edge: int) -> None:
    for number, shelf in enumerate(state.shelves):
        if shelf.replica.end == edge:
            state.report.end_store_ms[shelf.replica.name] = state.ledger.last_store_ms
        if shelf.index is not None and shelf.active(edge):
            state.ledger.skip_index(number, edge)


def _pass_damage(state: _Pass, offset: int, stop: int) -> int:
    """Where the log goes on behind a place without a record; unknown damage is noted."""
    known = next((gap for gap in state.islands if gap.start <= offset < gap.end), None)
    following = next_record(state.reference, offset + 1, stop)
    following = stop if following < 0 else following
    if known is None:
        state.report.damaged.append(Interval(offset, following))
    for number, shelf in enumerate(state.shelves):
        if shelf.index is not None:
            state.ledger.skip_index(number, following)
    return following


def _settle(state: _Pass) -> None:
    """Sort what the ledger put aside: halves, op messages, delayed messages."""
    report = state.report
    for special in state.ledger.special:
        row = SpecialRow(
            special.queue_id,
            special.queue_offset,
            special.physical_offset,
            special.store_ms,
            special.tags_code,
        )
        if special.topic == DELAY_TOPIC:
            report.delayed.append(row)
        elif special.topic == HALF_TOPIC:
            report.halves.append(row)
        elif special.topic == OP_TOPIC and len(state.ops) < _OPS_MAX:
            for text in special.body.split(b","):
                if text.strip().isdigit():
                    state.ops.add((special.queue_id, int(text)))
    state.ledger.special = []


def _finished(state: _Pass) -> RangeReport:
    ledger, report = state.ledger, state.report
    report.records = ledger.records
    report.bytes_walked = ledger.bytes
    report.last_store_ms = ledger.last_store_ms
    report.spans = [
        (
            topic,
            queue_id,
            Span(span.first, span.first_physical, span.last, span.last_physical, span.count),
        )
        for (topic, queue_id), span in ledger.spans.items()
    ]
    report.marks = [MarkRow(*mark) for mark in ledger.marks]
    report.counts = [list(counts) for counts in ledger.counts]
    report.ended_halves = sorted(state.ops)
    report.unindexed = list(ledger.unindexed)
    report.first_unindexed = list(ledger.first_unindexed)
    return report
