"""Reading pieces of one segment, long enough for what the kernel wants to see."""

from __future__ import annotations

from typing import Final

from tandemmq.replication.audit.kernel import BLANK, MORE, NOTHING, RECORD
from tandemmq.replication.audit.kernels import find_record, kind_at, skip
from tandemmq.replication.audit.stores import ReplicaStore

WINDOW_BYTES: Final = 4 << 20


def read(
    replica: ReplicaStore, offset: int, size: int, reused: bytearray | None = None
) -> memoryview:
    """The bytes at a log offset, at most to the segment's end and to where its file ends.

    reused  a buffer to read into: the view dies at its next use, and no fresh memory is paid for
    Empty where there is no file. Raises AuditIncomplete.
    """
    segment = offset - offset % replica.segment_bytes
    file = replica.segment_at(offset)
    if file is None or offset >= file.end:
        return memoryview(b"")
    size = min(size, file.end - offset)
    if reused is not None and len(reused) >= size:
        buffer = memoryview(reused)[:size]
    else:
        buffer = memoryview(bytearray(size))
    return buffer[: replica.log.read_into(segment, offset, buffer)]


def read_padded(
    replica: ReplicaStore, offset: int, size: int, reused: bytearray | None = None
) -> memoryview:
    """As read(), but always `size` bytes: zeros stand for what is not there."""
    found = read(replica, offset, size, reused)
    if len(found) == size:
        return found
    padded = bytearray(size)
    padded[: len(found)] = found
    return memoryview(padded)


def limit_of(replica: ReplicaStore, offset: int) -> int:
    """Where the segment of a log offset ends."""
    return offset - offset % replica.segment_bytes + replica.segment_bytes


def whole_record(replica: ReplicaStore, offset: int) -> memoryview | None:
    """The record at a log offset, None when no record stands there."""
    limit = limit_of(replica, offset)
    view = read(replica, offset, 64 << 10)
    kind, size = kind_at(view, offset, offset, limit)
    if kind == MORE and size:
        view = read(replica, offset, size)
        kind, size = kind_at(view, offset, offset, limit)
    return view[:size] if kind == RECORD else None


def end_of_run(replica: ReplicaStore, offset: int) -> tuple[int, int]:
    """Walk the records of one segment from a boundary: (where they end, what stands there).

    BLANK: the offset is the next segment's start.
    """
    limit = limit_of(replica, offset)
    window = WINDOW_BYTES
    while True:
        view = read(replica, offset, window)
        came, kind = skip(view, offset, offset, limit)
        if kind == BLANK:
            return limit, BLANK
        if kind != MORE or len(view) < window or offset + len(view) >= limit:
            return came, NOTHING
        window = WINDOW_BYTES if came > offset else window * 2
        offset = came


def next_record(replica: ReplicaStore, start: int, end: int) -> int:
    """The first place in [start, end) of one segment where the log goes on, -1 for none."""
    limit = limit_of(replica, start)
    window = WINDOW_BYTES
    while start < end:
        view = read(replica, start, window)
        found, kind = find_record(view, start, start, limit)
        last = len(view) < window or start + len(view) >= limit
        if found >= 0 and (kind != MORE or last):
            return found if found < end and kind != MORE else -1
        if last:
            return -1
        if found == start:
            window *= 2
        else:
            window = WINDOW_BYTES
            start = found if found >= 0 else start + len(view) - 8
    return -1
