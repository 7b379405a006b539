"""Level 2: reads the differing ranges of two replicas and finds the islands in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tandemmq.replication.audit.blocks import BLOCK_BYTES, Range
from tandemmq.replication.audit.kernel import CONTENT_MASK, RECORD, Island
from tandemmq.replication.audit.kernels import PairDiff, find_record
from tandemmq.replication.audit.stores import ReplicaStore
from tandemmq.replication.audit.windows import WINDOW_BYTES, limit_of, read, read_padded

_SEARCH_BYTES: Final = 256 << 10


@dataclass(slots=True)
class Compared:
    """What comparing ranges record by record brought, beside islands."""

    records: int = 0
    padding_bytes: int = 0
    buffers: tuple[bytearray, bytearray] = field(
        default_factory=lambda: (bytearray(WINDOW_BYTES), bytearray(WINDOW_BYTES)), repr=False
    )


def find_islands(
    reference: ReplicaStore,
    replica: ReplicaStore,
    ranges: Sequence[Range],
    end: int,
    compared: Compared | None = None,
    *,
    aligned: bool = False,
) -> list[Island]:
    """The islands that differing ranges hold, by offset; islands that touch across segments are one.

    ranges  of blocks, both sides having a file for their segment
    end     nothing at or behind it is compared
    aligned records begin where the ranges do: nothing before them is read
    Raises AuditIncomplete.
    """
    compared = Compared() if compared is None else compared
    found: list[Island] = []
    done = -1
    for piece in ranges:
        if piece.start < done:  # an island of the piece before reached into this one
            if piece.end <= done:
                continue
            piece = piece._replace(start=done)
        islands, done = _of_range(reference, replica, piece, end, compared, aligned)
        found += islands
    return join_islands(found, reference.segment_bytes)


def join_islands(islands: Sequence[Island], segment_bytes: int) -> list[Island]:
    """Islands of neighbouring ranges as one list: none twice, and those that touch across segments as one."""
    found: list[Island] = []
    for island in sorted(islands):
        if found and island.start < found[-1].end:
            continue  # the range before reached into this one, and found it first
        _append(found, island, segment_bytes)
    return found


def _of_range(
    reference: ReplicaStore,
    replica: ReplicaStore,
    piece: Range,
    end: int,
    compared: Compared,
    aligned: bool,
) -> tuple[list[Island], int]:
    limit = limit_of(reference, piece.start)
    clip = min(limit, end)
    pair = PairDiff(piece.start if aligned else _boundary(reference, piece))
    found: list[Island] = []
    window = min(WINDOW_BYTES, max(64 << 10, 2 * (piece.end - pair.offset)))
    while pair.offset < clip and (pair.offset < piece.end or pair.in_island):
        base = pair.offset
        size = min(window, clip - base)
        final = base + size >= clip
        a = read_padded(reference, base, size, compared.buffers[0])
        b = read_padded(replica, base, size, compared.buffers[1])
        found += pair.step(a, b, base, limit, piece.end, final)
        if final and pair.offset < clip and pair.in_island:
            raise AssertionError(f"no way on from {pair.offset} to {clip}")
        if final:
            break
        window = window * 2 if pair.offset == base else max(window, WINDOW_BYTES)
    done = pair.offset
    found += pair.finish()
    compared.records += pair.equal_records
    compared.padding_bytes += pair.padding
    return found, done


def _boundary(reference: ReplicaStore, piece: Range) -> int:
    """A place at or before a range where a record begins on both sides: what lies before is equal."""
    back = BLOCK_BYTES
    while True:
        at = max(piece.segment, piece.start - back)
        if at == piece.segment:
            return at
        view = read(reference, at, piece.start - at + _SEARCH_BYTES)
        found, kind = find_record(view, at, at, limit_of(reference, at))
        if kind == RECORD and found <= piece.start:
            return found
        back *= 8


def _append(found: list[Island], island: Island, segment_bytes: int) -> None:
    """Add an island; one that goes on from the end of the segment before becomes part of it."""
    last = found[-1] if found else None
    if last is None or last.end != island.start or not last.at_end or island.start % segment_bytes:
        found.append(island)
        return
    found[-1] = merge(last, island)


def merge(first: Island, second: Island) -> Island:
    """Two islands that touch as one."""
    return Island(
        first.start, second.end,
        first.records_a + second.records_a, first.records_b + second.records_b,
        first.junk_a + second.junk_a, first.junk_b + second.junk_b,
        first.breaks_a + second.breaks_a, first.breaks_b + second.breaks_b,
        first.misplaced_a + second.misplaced_a, first.misplaced_b + second.misplaced_b,
        first.bad_crc_a + second.bad_crc_a, first.bad_crc_b + second.bad_crc_b,
        first.paired and second.paired, first.fields | second.fields,
        first.differing + second.differing,
        first.zeroed_a + second.zeroed_a, first.zeroed_b + second.zeroed_b,
        first.diff_start if first.diff_start >= 0 else second.diff_start,
        second.diff_end if second.diff_end >= 0 else first.diff_end,
        (first.content_a + second.content_a) & CONTENT_MASK,
        (first.content_b + second.content_b) & CONTENT_MASK,
        second.at_end,
    )  # fmt: skip


def common_segments(
    reference: ReplicaStore, replica: ReplicaStore, start: int, end: int
) -> Iterator[tuple[int, bool, bool]]:
    """(segment start, reference has a file, replica has a file) of each segment in [start, end)."""
    mine = {file.start: file.size > 0 for file in reference.segments}
    theirs = {file.start: file.size > 0 for file in replica.segments}
    size = reference.segment_bytes
    for segment in range(start - start % size, end, size):
        yield segment, mine.get(segment, False), theirs.get(segment, False)
