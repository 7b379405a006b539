"""Whether two classic logs are one, told by the stretch before the end of the shorter one.

A record says where it stands and when it was stored, and a log only ever grows or loses its end. So two logs that hold
the same record at the same place held the same bytes when it was written, and hold them still, below it. That is what
epochs say in the other dialects; the classic one has none (INV-36).
Everything here may run in a thread: a log's end far behind may have to come from the disk.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Final

import msgspec

from tandemmq.storage.commitlog import CommitLog
from tandemmq.storage.derivation import BLANK, derive

STRETCH_BYTES: Final = 256 << 10  # what our replicas compare: many records, and read in a moment
BLANK_HEAD_BYTES: Final = 8  # size and magic; what follows them may be anything
WALKED_RECORDS: Final = 4096  # at a time: a walk that is compiled lets nobody else run


class Verdict(enum.Enum):
    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "unknown"  # nobody could be asked, or who was asked could not say


class Finding(msgspec.Struct, frozen=True):
    """What came of holding two logs against each other.

    why       in words, for all but SAME
    passport  SAME, and the master is ours: what to show it on the stream; 0 for none
    starts    DIFFERS, because the master's log starts only here; else 0
    """

    verdict: Verdict
    why: str = ""
    passport: int = 0
    starts: int = 0


# --- between a SlaveCore of classic HA and its shell ---


class CompareLogs(msgspec.Struct, frozen=True):
    """Hold our log against the master's. Ends in LogsCompared, always."""

    connection: int


class ShowPass(msgspec.Struct, frozen=True):
    """Show the master what it gave us when our log was compared."""

    connection: int
    passport: int


class LogsCompared(msgspec.Struct, frozen=True):
    """What came of a CompareLogs: our log, which ends at `end` by now, and the master's.

    why       in words, for all but SAME
    passport  to be shown on the stream; 0: the master is a stock one, which knows none
    """

    connection: int
    end: int
    verdict: Verdict
    why: str = ""
    passport: int = 0


class Entry(msgspec.Struct, frozen=True):
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
