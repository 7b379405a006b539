"""What a log holds between two places, for holding it against another: digests, records, blanks, files.

All of it may run beside the store's thread: a log's end far behind may have to come from the disk. [thread]
"""

from __future__ import annotations

import hashlib
from itertools import islice
from typing import Final, NamedTuple

from tandemmq.storage.codec import Head, scan
from tandemmq.storage.commitlog import CommitLog
from tandemmq.storage.derivation import BLANK, derive

BLANK_HEAD_BYTES: Final = 8  # size and magic; what follows them may be anything
WALKED_RECORDS: Final = 4096  # at a time: a walk that is compiled lets nobody else run


class Entry(NamedTuple):
    """One record, or the blank that ends a file: log[start:stop]."""

    start: int
    stop: int
    blank: bool = False


def stretch_digest(log: CommitLog, start: int, end: int) -> bytes | None:
    """SHA-256 of log[start:end]; None when the log does not have all of it."""
    digest = hashlib.sha256()
    while start < end:
        stop = min(end, start - start % log.run.segment_bytes + log.run.segment_bytes)
        piece = log.read(start, stop - start)
        if piece is None:
            return None
        with piece:
            digest.update(piece)
        start = stop
    return digest.digest()


def begins_entry(log: CommitLog, offset: int) -> bool:
    """Whether a record begins at an offset, or may: it is the log's end, or a file's start."""
    segment = log.run.find(offset)
    if offset == log.end or segment is None or segment.start == offset:
        return offset == log.end or segment is not None
    base, wrote = segment.start, segment.wrote
    found = derive(segment.view, offset - base, wrote, base, None, None, {}, None, 1)
    return found.records == 1 or found.stopped == BLANK


def entry_before(log: CommitLog, end: int) -> Entry | None:
    """The last entry that ends at or below `end`; None without one, or where the log is damaged."""
    while end > log.start:
        segment = log.run.find(end - 1)
        if segment is None:
            return None
        base, limit = segment.start, min(segment.wrote, end - segment.start)
        position, last = 0, -1
        while True:
            found = derive(
                segment.view, position, limit, base, None, None, {}, None, WALKED_RECORDS
            )
            position, last = found.position, found.last_record if found.records else last
            if found.records < WALKED_RECORDS:
                break
        if found.stopped == BLANK and base + limit == segment.end:
            return Entry(base + position, segment.end, blank=True)
        if last >= 0:
            return Entry(base + last, base + position)
        if position or found.records or base + position > end:
            return None
        end = base  # it ends inside the first record of this file
    return None


def entry_bytes(log: CommitLog, entry: Entry) -> bytes | None:
    """What must be equal of an entry; None when retention has taken it meanwhile."""
    size = BLANK_HEAD_BYTES if entry.blank else entry.stop - entry.start
    view = log.read(entry.start, size)
    if view is None:
        return None
    with view:
        return bytes(view)


def file_starts(log: CommitLog) -> list[int]:
    """Where each file begins, in order."""
    return [each.start for each in log.run.segments]


def walk(log: CommitLog, offset: int, records_max: int) -> tuple[list[Head], int]:
    """Heads of the records from an offset on, at most so many, and the offset behind them; the log's end once that
    is reached. Where retention took the first of them, from the log's start on. Raises CorruptRecord."""
    offset = max(offset, log.start)
    segment = log.run.find(offset)
    if segment is None or offset >= log.end:
        return [], log.end
    heads = list(islice(scan(segment.view, offset - segment.start, segment.wrote), records_max))
    if not heads:
        return [], log.end
    behind = segment.start + heads[-1].position + heads[-1].size
    if heads[-1].blank:
        heads.pop()
        behind = segment.end
    return heads, behind


def record_ends(log: CommitLog, start: int) -> list[int]:
    """Where each record ends of the file that begins at `start`, behind that. Raises
    CorruptRecord, and ValueError when retention took it."""
    segment = log.run.find(start)
    if segment is None:
        raise ValueError(f"no file of the log begins at {start} any more")
    heads = scan(segment.view, 0, segment.wrote)
    return [start, *(start + each.position + each.size for each in heads if not each.blank)]
