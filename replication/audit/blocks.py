"""Level 1: digests of a log's blocks, and which blocks of two replicas differ.

A block is 1 MiB of one segment, counted from the segment's start; the last one compared is clipped where
the comparison ends. One digest is 16 bytes of xxh3-128, so 1 GiB of log is 1,024 small rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import xxhash

from tandemmq.replication.audit.source import LogSource
from tandemmq.replication.audit.stores import ReplicaStore

BLOCK_BYTES: Final = 1 << 20
RANGES_MAX: Final = 10_000


class Block(NamedTuple):
    """The digest of one block; `size` bytes were there to be read."""

    segment: int
    block: int
    size: int
    xxh3: bytes

    def start(self, block_bytes: int = BLOCK_BYTES) -> int:
        return self.segment + self.block * block_bytes


class Range(NamedTuple):
    """Differing blocks of one segment, as log offsets."""

    segment: int
    start: int
    end: int


def digest_segment(
    log: LogSource,
    segment: int,
    start: int,
    end: int,
    pace: Callable[[int], None] | None = None,
) -> Iterator[Block]:
    """Digests of the blocks of one segment in [start, end); start lies on a block's edge.

    pace  is told the bytes of each block, and may wait
    Raises AuditIncomplete.
    """
    buffer = memoryview(bytearray(BLOCK_BYTES))
    at = start
    while at < end:
        view = buffer[: min(BLOCK_BYTES, end - at)]
        count = log.read_into(segment, at, view)
        yield Block(
            segment,
            (at - segment) // BLOCK_BYTES,
            count,
            xxhash.xxh3_128_digest(view[:count]),
        )
        if pace is not None:
            pace(count)
        at += BLOCK_BYTES


def digest_replica(
    replica: ReplicaStore,
    start: int,
    end: int,
    workers: int = 1,
    pace: Callable[[int], None] | None = None,
) -> list[Block]:
    """Digests of every block in [start, end), segments without a file left out. Raises AuditIncomplete."""
    pieces = [
        (segment.start, max(start, segment.start), min(end, segment.start + replica.segment_bytes))
        for segment in replica.segments
        if segment.start < end and segment.start + replica.segment_bytes > start
    ]

    def digest(piece: tuple[int, int, int]) -> list[Block]:
        return list(digest_segment(replica.log, *piece, pace))

    if workers <= 1 or len(pieces) <= 1:
        return [block for piece in pieces for block in digest(piece)]
    with ThreadPoolExecutor(min(workers, len(pieces)), "digest") as pool:
        return [block for blocks in pool.map(digest, pieces) for block in blocks]


def rate_limit(bytes_per_second: float) -> Callable[[int], None]:
    """A `pace` that keeps reading to a rate by waiting after each block."""
    begin = time.monotonic()
    done = 0

    def pace(count: int) -> None:
        nonlocal done
        done += count
        ahead = done / bytes_per_second - (time.monotonic() - begin)
        if ahead > 0:
            time.sleep(ahead)

    return pace


def differing_ranges(
    mine: Sequence[Block], theirs: Sequence[Block], start: int, end: int, segment_bytes: int
) -> list[Range]:
    """Ranges of blocks that are not the same on both sides; neighbours are joined.

    A block that one side lacks differs. With more than RANGES_MAX ranges, ranges of one segment with
    small gaps between them become one.
    """
    left = {(block.segment, block.block): block for block in mine}
    right = {(block.segment, block.block): block for block in theirs}
    found: list[Range] = []
    for key in sorted(left.keys() | right.keys()):
        a, b = left.get(key), right.get(key)
        if a is not None and b is not None and a.xxh3 == b.xxh3 and a.size == b.size:
            continue
        segment, number = key
        first = max(start, segment + number * BLOCK_BYTES)
        last = min(end, segment + (number + 1) * BLOCK_BYTES, segment + segment_bytes)
        if found and found[-1].segment == segment and found[-1].end == first:
            found[-1] = found[-1]._replace(end=last)
        else:
            found.append(Range(segment, first, last))
    gap = BLOCK_BYTES
    while len(found) > RANGES_MAX and gap < segment_bytes:
        gap *= 4
        found = _joined(found, gap)
    return found


def _joined(ranges: Sequence[Range], gap: int) -> list[Range]:
    found: list[Range] = []
    for piece in ranges:
        if found and found[-1].segment == piece.segment and piece.start - found[-1].end <= gap:
            found[-1] = found[-1]._replace(end=piece.end)
        else:
            found.append(piece)
    return found
