"""Following a growing log, and cutting it into pieces that tasks can read on their own."""

from __future__ import annotations

from collections.abc import Iterator

from tandemmq.replication.audit.ends import find_end
from tandemmq.replication.audit.kernel import BLANK
from tandemmq.replication.audit.kernels import skip
from tandemmq.replication.audit.stores import ReplicaStore
from tandemmq.replication.audit.windows import WINDOW_BYTES, limit_of, read


def log_end(replica: ReplicaStore, start: int = -1, bytes_max: int = -1, end_max: int = -1) -> int:
    """Where the log ends; a record boundary.

    start      a boundary to follow the log from; -1: the last segment with records tells
    bytes_max  stop about this far behind `start`, end_max: not beyond this offset; -1: no bound
    Of a running broker it is what it has confirmed.
    A log that was cut below `start` ends at `start`: what to do then is the caller's decision.
    """
    if replica.live is not None:
        end_max = replica.end if end_max < 0 else min(end_max, replica.end)
    if start < 0:
        end = find_end(replica) if replica.live is None else replica.end
        return end if end_max < 0 else min(end, end_max)
    bound = start + bytes_max if bytes_max >= 0 else 1 << 62
    at, window = start, WINDOW_BYTES
    while at < bound and (end_max < 0 or at < end_max):
        limit = limit_of(replica, at)
        view = read(replica, at, window)
        came, kind = skip(view, at, at, limit)
        if kind == BLANK:
            if replica.segment_at(limit) is None:
                return limit if end_max < 0 else min(limit, end_max)
            at = limit
            window = WINDOW_BYTES
            continue
        if came == at:
            if len(view) < window or window >= replica.segment_bytes:
                break
            window *= 2
            continue
        at = came
        window = WINDOW_BYTES
    return at if end_max < 0 else min(at, end_max)


def ranges_of(
    replica: ReplicaStore, start: int, end: int, piece_bytes: int
) -> Iterator[tuple[int, int]]:
    """Cut [start, end) into ranges of about piece_bytes, none over more than one segment, unless whole
    segments fit together. Records belong to the range in which they begin.
    """
    size = replica.segment_bytes
    pending: tuple[int, int] | None = None
    for file in replica.segments:
        first, last = max(start, file.start), min(end, file.start + size)
        if first >= last:
            continue
        if pending is not None and pending[1] == first and last - pending[0] <= piece_bytes:
            pending = (pending[0], last)
            continue
        if pending is not None:
            yield pending
            pending = None
        while last - first > piece_bytes:
            yield first, first + piece_bytes
            first += piece_bytes
        pending = (first, last)
    if pending is not None:
        yield pending
