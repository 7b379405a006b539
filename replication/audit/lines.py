"""The records that begin in a range of a log, wherever the range begins; damage is stepped over."""

from __future__ import annotations

from collections.abc import Iterator

from tandemmq.replication.audit.kernel import BLANK, MORE, RECORD, Line
from tandemmq.replication.audit.kernels import find_record, kind_at, rows
from tandemmq.replication.audit.stores import ReplicaStore
from tandemmq.replication.audit.windows import WINDOW_BYTES, read


def lines_of(
    replica: ReplicaStore, start: int, end: int, *, crc: bool = False
) -> Iterator[tuple[memoryview, int, list[Line]]]:
    """Views of the log with what begins in each: (view, log offset of view[0], lines).

    A view dies with the next one. Raises AuditIncomplete.
    """
    for file in replica.segments:
        limit = file.start + replica.segment_bytes
        at, stop = max(start, file.start), min(end, limit)
        if at >= stop:
            continue
        known = at == file.start  # else a record may be cut here: find the way first
        size = WINDOW_BYTES
        while at < stop:
            view = read(replica, at, size)
            last = len(view) < size or at + len(view) >= limit
            if not known:
                found, kind = find_record(view, at, at, limit)
                if found >= stop or (found < 0 and last) or (kind == MORE and last):
                    break
                if kind == MORE and found == at:
                    size *= 2
                    continue
                at = found if found >= 0 else max(at + 1, at + len(view) - 8)
                known = kind in (RECORD, BLANK)
                continue
            lines = list(rows(view, at, stop, at, limit, crc))
            yield view, at, lines
            behind = lines[-1].offset + lines[-1].size if lines else at
            kind, _ = kind_at(view, behind, at, limit)
            if kind == BLANK or behind >= stop:
                break
            if kind == MORE and not last:
                size = WINDOW_BYTES if lines else size * 2
                at = behind
            else:
                at = behind + 1
                known = False
                size = WINDOW_BYTES
