"""Queue entries that point at no record of their own: the record is looked for in the log, and the entry written anew.

A bit of a queue's file that is another one, or a page that never came to the disk, would hide a message that is in the
log. Nobody looks for such entries: whoever follows one and does not find a record there asks. Entries stand in the
order of the log, so the record lies between those of the entries before and behind.
"""

from __future__ import annotations

import enum
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tandemmq.storage.codec import has_queue_entry, queue_tags_code, scan
from tandemmq.storage.commitlog import CommitLog
from tandemmq.storage.config import PAGE_BYTES
from tandemmq.storage.consumequeue import ConsumeQueue, Entry, names_deleted, names_record
from tandemmq.storage.consumequeues import ConsumeQueues
from tandemmq.storage.derivation import QUEUE_ENTRY
from tandemmq.storage.errors import CorruptRecord
from tandemmq.storage.queuefiles import BLANK_SIZE
from tandemmq.storage.segment import Segment

log = logging.getLogger(__name__)

#: looked through at a time: a search through more goes on when asked again, so that nobody waits for it
SEARCHED_BYTES: Final = 4 << 20
SEARCHED_RECORDS: Final = 8_192
FETCHED_BYTES: Final = 256 << 10
#: entries on each side of a damaged one among which a sound one is looked for: two pages of the disk
NEIGHBOURS_MAX: Final = 512
#: damaged entries of which is remembered how far was looked, and that nothing was found
REMEMBERED_MAX: Final = 4_096


class Mended(enum.Enum):
    """What became of an entry that points at no record."""

    RIGHT = enum.auto()  # it points at its record now
    SEARCHING = enum.auto()  # ask again; do not pass over it meanwhile
    # its record is not in the log: deleted with its file, blank, or damaged itself
    GONE = enum.auto()


class _Place(NamedTuple):
    topic: str
    queue_id: int
    queue_offset: int
    entry: Entry


def is_of(log: CommitLog, queue: ConsumeQueue, queue_offset: int, entry: Entry) -> bool:
    """Whether the log has, at the entry's place, the record with this queue offset."""
    record = log.record_at(entry[0])
    if record is None or len(record) != entry[1]:
        return False
    try:
        head = next(scan(record, 0, len(record)))
    except (CorruptRecord, StopIteration):
        return False
    return (
        head.physical_offset == entry[0]
        and head.queue_offset == queue_offset
        and head.queue_id == queue.queue_id
        and head.topic == queue.topic.encode()
    )


class QueueMending:
    """Of one store, on its thread.

    mended   entries that were written anew
    missing  entries whose record is not in the log although its neighbours' are: the log is damaged there
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        delay_ms_by_level: Mapping[int, int],
        dispatched: Callable[[], int],
    ) -> None:
        """dispatched: below this log offset records have entries; what is not confirmed yet has none."""
        self.mended = 0
        self.missing = 0
        self._log = log
        self._queues = queues
        self._delay_ms_by_level = delay_ms_by_level
        self._dispatched = dispatched
        self._reached: dict[_Place, int] = {}  # up to which log offset was looked; -1: everywhere

    def mend(self, queue: ConsumeQueue, queue_offset: int) -> Mended:
        """Look for the record of an entry, a part of the log at a time. Raises OSError."""
        entry = queue.entry(queue_offset)
        if entry is None:
            return Mended.GONE
        if is_of(self._log, queue, queue_offset, entry):
            return Mended.RIGHT
        place = _Place(queue.topic, queue.queue_id, queue_offset, entry)
        reached = self._reached.get(place)
        if reached == -1 or self._is_gone(queue, queue_offset, entry):
            return Mended.GONE
        if reached is None:
            reached = self._record_end_before(queue, queue_offset)
        end = self._record_behind(queue, queue_offset)
        reached, found = self._search(queue, queue_offset, reached, end)
        if found is None and reached < end:
            self._remember(place, reached)
            return Mended.SEARCHING
        if found is None:
            self._remember(place, -1)
            self.missing += 1
            log.error(
                "message is not in the log, readers pass over it topic=%s queue=%d offset=%d entry=%s",
                queue.topic, queue.queue_id, queue_offset, entry,
            )  # fmt: skip
            return Mended.GONE
        self._reached.pop(place, None)
        queue.rewrite(queue_offset, found)
        self.mended += 1
        log.warning(
            "damaged queue entry written anew topic=%s queue=%d offset=%d was=%s now=%s",
            queue.topic, queue.queue_id, queue_offset, entry, found,
        )  # fmt: skip
        return Mended.RIGHT

    def _is_gone(self, queue: ConsumeQueue, queue_offset: int, entry: Entry) -> bool:
        """Whether no record belongs to it: blank, or of a file that was deleted, with those of the entries before. Of
        a damaged one the entries behind tell."""
        if entry[1] == BLANK_SIZE:
            return True
        if not names_deleted(entry, self._log.start):
            return self._deleted_behind(queue, queue_offset)
        before = queue.entry(queue_offset - 1) if queue_offset else None
        return before is None or not is_of(self._log, queue, queue_offset - 1, before)

    def _deleted_behind(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether records of later entries were deleted already. One may say so wrongly; two agree."""
        found, log_start = 0, self._log.start
        for each, entry in self._behind(queue, queue_offset):
            if names_deleted(entry, log_start):
                found += 1
                if found == 2:
                    return True
            elif names_record(entry) and is_of(self._log, queue, each, entry):
                break
        return False

    def _record_end_before(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Where the record may begin at the earliest: a record ends there, or a file begins."""
        start = max(self._log.start, self._queues.tombstones.of(queue.topic.encode()))
        for each in range(queue_offset - 1, max(-1, queue_offset - NEIGHBOURS_MAX), -1):
            entry = queue.entry(each)
            if entry is None:
                break
            if names_record(entry) and is_of(self._log, queue, each, entry):
                return max(start, entry[0] + entry[1])
        return start

    def _record_behind(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Where it ends at the latest."""
        for each, entry in self._behind(queue, queue_offset):
            if names_record(entry) and is_of(self._log, queue, each, entry):
                return entry[0]
        return min(self._log.end, self._dispatched())

    def _behind(self, queue: ConsumeQueue, queue_offset: int) -> Iterable[tuple[int, Entry]]:
        """Some entries behind one, with their queue offsets, as far as one file goes."""
        first = queue_offset + 1
        entries = QUEUE_ENTRY.iter_unpack(queue.chunk(first, NEIGHBOURS_MAX))
        return zip(itertools.count(first), entries, strict=False)

    def _search(
        self, queue: ConsumeQueue, queue_offset: int, start: int, end: int
    ) -> tuple[int, Entry | None]:
        """(up to where it was looked, the entry as it should be). Raises OSError."""
        start = max(start, self._log.start)
        segment = self._log.run.find(start)
        if segment is None or start >= end:
            return end, None
        topic = queue.topic.encode()
        fetched = self._fetch(segment, start)
        # A record that is no record hides what is behind it, but for the next file.
        reached = segment.end
        try:
            for count, head in enumerate(scan(segment.view, start - segment.start, segment.wrote)):
                at = segment.start + head.position
                if head.blank or at >= end:
                    break
                if at + head.size + PAGE_BYTES > fetched:
                    fetched = self._fetch(segment, at + head.size)
                if at >= start + SEARCHED_BYTES or count == SEARCHED_RECORDS:
                    return at, None
                if (
                    head.queue_offset >= queue_offset
                    and head.queue_id == queue.queue_id
                    and head.topic == topic
                    and head.physical_offset == at
                    and has_queue_entry(head.sys_flag)
                ):
                    if head.queue_offset == queue_offset:
                        code = queue_tags_code(
                            topic, head.properties, head.store_ms, self._delay_ms_by_level
                        )
                        return at, (at, head.size, code)
                    if not self._is_elsewhere(queue, head.queue_offset, at):
                        return end, None  # it would lie before this one
        except CorruptRecord as problem:
            log.error("damaged record met while looking for another why=%s", problem)
        return reached, None

    @staticmethod
    def _fetch(segment: Segment, at: int) -> int:
        """Through the file first: a page that is not in memory would stop every thread when it is touched."""
        segment.pread(at - segment.start, FETCHED_BYTES)
        return at + FETCHED_BYTES

    def _is_elsewhere(self, queue: ConsumeQueue, queue_offset: int, at: int) -> bool:
        """Whether a record with this queue offset is not the queue's, but of one that was deleted under its name."""
        entry = queue.entry(queue_offset)
        return entry is None or (entry[0] != at and is_of(self._log, queue, queue_offset, entry))

    def _remember(self, place: _Place, reached: int) -> None:
        self._reached.pop(place, None)
        while len(self._reached) >= REMEMBERED_MAX:
            del self._reached[next(iter(self._reached))]
        self._reached[place] = reached
