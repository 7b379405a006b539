"""What a pull gets: walks a consume queue and collects slices of the log within limits."""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.storage.clock import Clock
from tandemmq.storage.commitlog import CommitLog
from tandemmq.storage.config import QUEUE_ENTRY_BYTES, StorageConfig
from tandemmq.storage.consumequeue import ConsumeQueue, names_deleted
from tandemmq.storage.consumequeues import ConsumeQueues
from tandemmq.storage.derivation import QUEUE_ENTRY
from tandemmq.storage.gathering import Records, gather, signed_int
from tandemmq.storage.mending import Mended, QueueMending
from tandemmq.storage.queuefiles import BLANK_SIZE
from tandemmq.storage.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from tandemmq.storage.residency import Fetch, Residency
from tandemmq.storage.segment import Segment
from tandemmq.storage.twins import compiled

compiled(globals(), "tandemmq.storage._reading")

PULL_BYTES_MIN: Final = 100
PULL_BYTES_MAX: Final = 128 << 20

#: see Selector
JUDGED_BYTES_MAX: Final = 1 << 20

#: of so many entries it is looked whether their records lie near each other, before they are fetched
FETCHED_ENTRIES: Final = 32

_PHYSICAL: Final = struct.Struct(">q")
_PLACE: Final = struct.Struct(">qi8x")
_SIZE_MAGIC: Final = struct.Struct(">ii")
_MAGIC_SYS_FLAG: Final = struct.Struct(">4xi28xi")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">H")


class GetStatus(enum.Enum):
    """RocketMQ's names. Source: its GetMessageStatus."""

    FOUND = enum.auto()
    NO_MATCHED_MESSAGE = enum.auto()
    MESSAGE_WAS_REMOVING = enum.auto()
    OFFSET_FOUND_NULL = enum.auto()
    OFFSET_OVERFLOW_BADLY = enum.auto()
    OFFSET_OVERFLOW_ONE = enum.auto()
    OFFSET_TOO_SMALL = enum.auto()
    NO_MATCHED_LOGIC_QUEUE = enum.auto()
    NO_MESSAGE_IN_QUEUE = enum.auto()
    OFFSET_RESET = enum.auto()


@dataclass(slots=True)
class GetResult:
    """Records are views of the log: copy them before the event loop runs anything else."""

    status: GetStatus
    next_offset: int
    min_offset: int = 0
    max_offset: int = 0
    records: Records = field(default_factory=Records)
    suggest_slave: bool = False  # RocketMQ's estimate: the records are probably not in memory
    last_physical: int = -1  # log offset of the last record looked at, -1 for none
    behind: int = 0  # from there to the log's end, bytes
    fetch: Fetch | None = None  # to be done before anything can be told: see Reader.get

    @property
    def count(self) -> int:
        return len(self.records)

    @property
    def bytes(self) -> int:
        """Of the records."""
        return self.records.bytes


def hot_bytes(config: StorageConfig) -> int:
    """How much of the log's end counts as being in memory."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return memory_bytes * config.hot_memory_percent // 100


@dataclass(frozen=True, slots=True)
class Selector:
    """Which messages of a queue a reader wants.

    tag_codes   hashes of the wanted tags (signed 32 bits), as queue entries have them; None takes all
    matches     judges a message by its properties as its record has them; asked only of those that tag_codes takes
    judged_max  of how many messages for one answer at most: fewer where a judgement is dear
    judged_bytes_max  after so many bytes of their properties an answer is due; of whole records, where these are not
                in memory
    """

    tag_codes: frozenset[int] | None = None
    matches: Callable[[bytes], bool] | None = None
    judged_max: int = 1 << 31
    judged_bytes_max: int = JUDGED_BYTES_MAX

    def may_want(self, tag_codes: Iterable[int]) -> bool:
        """Whether a message with one of these may be among the wanted ones."""
        return self.tag_codes is None or not self.tag_codes.isdisjoint(tag_codes)


EVERYTHING: Final = Selector()


class ReadingParts(NamedTuple):
    """What a reader in C looks up by itself: functions of one store, none of which acts.

    queue         (topic, queue id) -> it, if there is one; its window() and bounds are to be asked for
    segment       log offset -> the segment that covers it
    resident_end  (segment, log offset) -> see Residency.end
    records, gather  see gathering.py
    """

    queue: Callable[[str, int], ConsumeQueue | None]
    segment: Callable[[int], Segment | None]
    resident_end: Callable[[Segment, int], int]
    records: Callable[[], Records]
    gather: Callable[..., tuple[int, int, bool]]


class Reader:
    """Answers pulls. hot_bytes: of older records the kernel is asked whether they are in memory, a piece at a time;
    where they are not, or it does not tell, they are read from the file, not through the mapping.

    A page fault stops every thread, and a bad block under a mapping kills the process; a read does
    neither.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        config: StorageConfig,
        hot_bytes: int,
        clock: Clock,
        mending: QueueMending,
    ) -> None:
        self._log = log
        self._queues = queues
        self._hot_bytes = hot_bytes
        self._config = config
        self._mending = mending
        self.residency = Residency(clock)

    @property
    def hot_from(self) -> int:
        """From this log offset on the estimate says "in memory"."""
        return self._log.end - self._hot_bytes

    def parts(self) -> ReadingParts:
        return ReadingParts(
            self._queues.get, self._log.run.find, self.resident_end, Records, gather
        )

    def resident_end(self, segment: Segment, offset: int) -> int:
        """See Residency.end; nothing is in memory where nothing is to count as such."""
        return self.residency.end(segment, offset) if self._hot_bytes else 0

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int = PULL_BYTES_MAX,
        selector: Selector = EVERYTHING,
        *,
        patient: bool = False,
    ) -> GetResult:
        """At most count_max records of a queue from `offset` on, of those that are wanted.

        patient  does not wait for the disk: of records that are not in memory only `fetch` is given, which a thread
                 runs before the caller asks again
        An unknown queue is an empty one. Raises OSError.
        Source: RocketMQ's DefaultMessageStore.getMessage.
        """
        queue = self._queues.get(topic, queue_id)
        max_offset = queue.end.next_offset if queue is not None else 0
        if queue is None or max_offset == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0)
        min_offset = queue.min_offset
        if offset < min_offset:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, min_offset, min_offset, max_offset)
        if offset == max_offset:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, min_offset, max_offset)
        if offset > max_offset:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, max_offset, min_offset, max_offset)
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, min_offset, max_offset, Records())
        self._collect(queue, result, count_max, bytes_max, selector, patient)
        return result

    def _collect(
        self,
        queue: ConsumeQueue,
        result: GetResult,
        count_max: int,
        bytes_max: int,
        selector: Selector,
        patient: bool,
    ) -> None:
        """Walk the entries: by gather() in windows as far as it goes, then one by one."""
        config = self._config
        tag_codes = selector.tag_codes
        bytes_max = min(max(bytes_max, PULL_BYTES_MIN), PULL_BYTES_MAX)
        filter_bytes_max = max(config.filter_bytes_max, count_max * QUEUE_ENTRY_BYTES)
        offset = result.next_offset
        entries_max = min(-(-filter_bytes_max // QUEUE_ENTRY_BYTES), selector.judged_max)
        entries, at, stop = queue.window(offset, entries_max)
        if at == stop:
            result.status = GetStatus.OFFSET_FOUND_NULL
            result.next_offset = queue.next_file_offset(offset)
            return
        records = result.records
        begin, last_physical, full, removed = at, 0, False, False
        log_end = self._log.end
        hot_from = log_end - self._hot_bytes
        patient = patient and self._hot_bytes > 0
        if selector.matches is None:
            while at < stop and not full:
                physical = _PHYSICAL.unpack_from(entries, at)[0]
                segment = self._log.run.find(physical)
                if segment is None:
                    break
                if physical >= hot_from:
                    end = min(segment.start + segment.size, log_end)
                elif self._hot_bytes:  # what the kernel says is in memory is as good
                    end = min(self.residency.end(segment, physical), log_end)
                else:
                    break
                if end <= physical and patient:
                    # What is in memory comes first, and alone.
                    full = at > begin
                    break
                came = at
                at, last, full = gather(
                    entries, at, stop, segment.view, segment.start, physical, end,
                    min(config.transfer_bytes_max_hot, bytes_max),
                    min(config.transfer_count_max_hot, count_max),
                    tag_codes, records,
                )  # fmt: skip
                if at == came:
                    full = patient and at > begin and physical < hot_from
                    break
                last_physical = last
        if at < stop and not full:
            chunk = memoryview(bytes(entries[at:stop]))
            if patient and at == begin:
                result.fetch = self._fetch(chunk, hot_from)
                if result.fetch is not None:
                    return
            examined, last, removed = self._one_by_one(
                queue, offset + (at - begin) // QUEUE_ENTRY_BYTES, chunk,
                hot_from, records, count_max, bytes_max, selector,
            )  # fmt: skip
            at += examined * QUEUE_ENTRY_BYTES
            last_physical = last if examined else last_physical
        result.next_offset = offset + (at - begin) // QUEUE_ENTRY_BYTES
        if records:
            result.status = GetStatus.FOUND
        elif removed:
            result.status = GetStatus.MESSAGE_WAS_REMOVING
        result.last_physical = last_physical
        result.behind = behind = log_end - last_physical
        result.suggest_slave = behind > self._hot_bytes

    def _fetch(self, chunk: memoryview, hot_from: int) -> Fetch | None:
        """How to bring the records of the first entries into memory; None when they are there, or nowhere."""
        segment: Segment | None = None
        records = []
        for physical, size in _PLACE.iter_unpack(chunk[: FETCHED_ENTRIES * QUEUE_ENTRY_BYTES]):
            if physical >= hot_from or size == BLANK_SIZE:
                break
            if segment is None:
                segment = self._log.run.find(physical)
                if segment is None or self.residency.end(segment, physical) >= physical + size:
                    return None
            end = segment.start + segment.wrote
            if not segment.start <= physical < physical + size <= end:
                break
            records.append((physical, size))
        return self.residency.fetch(segment, records) if segment and records else None

    def _one_by_one(
        self,
        queue: ConsumeQueue,
        offset: int,
        chunk: memoryview,
        hot_from: int,
        records: Records,
        count_max: int,
        bytes_max: int,
        selector: Selector,
    ) -> tuple[int, int, bool]:
        """The walk over what gather() leaves: records that are not in memory, that a filter judges, or that are gone.

        chunk  of the queue, from `offset` on
        It ends in front of an entry that points at no record and may have one: who asks again, from there, is given
        the record, or passes over it when it is not in the log.
        Returns (entries examined, log offset that the last one names, whether records before the first found are gone).
        """
        config = self._config
        tag_codes, matches = selector.tag_codes, selector.matches
        find = self._log.run.find
        examined = last_physical = skip_below = segment_start = segment_end = judged = 0
        segment: Segment | None = None
        view = memoryview(b"")
        hot_limits = (
            min(config.transfer_bytes_max_hot, bytes_max),
            min(config.transfer_count_max_hot, count_max),
        )
        cold_limits = (
            min(config.transfer_bytes_max_cold, bytes_max),
            min(config.transfer_count_max_cold, count_max),
        )
        removed = False
        log_start = self._log.start
        for physical, size, tags_code in QUEUE_ENTRY.iter_unpack(chunk):
            hot = physical >= hot_from
            bytes_limit, count_limit = hot_limits if hot else cold_limits
            if records and (len(records) >= count_limit or records.bytes + size > bytes_limit):
                break
            if judged > selector.judged_bytes_max:
                break
            examined += 1
            before, last_physical = last_physical, physical
            if 0 <= physical < skip_below and size >= RECORD_BYTES_MIN:
                continue
            wanted = tag_codes is None or signed_int(tags_code) in tag_codes
            if not segment_start <= physical < segment_end:
                segment = find(physical)
                if segment is not None:
                    view, segment_start = segment.view, segment.start
                    segment_end = segment_start + segment.wrote
            record: memoryview | None = None
            position = physical - segment_start
            if position >= 0 and size >= RECORD_BYTES_MIN and physical + size <= segment_end:
                if not wanted:
                    skip_below = 0
                    continue
                if not hot and segment is not None:
                    record = memoryview(segment.pread(position, size))
                else:
                    record = view[position : position + size]
                # An entry that does not point at a record: never serve what lies there.
                found_size, magic = _SIZE_MAGIC.unpack_from(record)
                if found_size != size or (magic != MAGIC_V1 and magic != MAGIC_V2):
                    record = None
            if record is None:
                if size != BLANK_SIZE:
                    at = offset + examined - 1
                    if records or self._mending.mend(queue, at) is not Mended.GONE:
                        return examined - 1, before, removed
                    if names_deleted((physical, size, tags_code), log_start):
                        # the file is gone: so are its other records
                        skip_below = physical - physical % self._log.run.segment_bytes
                        skip_below += self._log.run.segment_bytes
                removed = removed or (wanted and not records)
                continue
            if matches is not None:
                properties = _properties(record)
                judged += len(properties) if hot else size
                if not matches(properties):
                    continue
            records.add(record)
            skip_below = 0
        return examined, last_physical, removed


def _properties(record: memoryview) -> bytes:
    """The encoded properties of a whole record, without touching its body."""
    magic, sys_flag = _MAGIC_SYS_FLAG.unpack_from(record)
    at = 84 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
    at += 4 + _INT.unpack_from(record, at)[0]
    at += 2 + _SHORT.unpack_from(record, at)[0] if magic == MAGIC_V2 else 1 + record[at]
    return record[at + 2 :].tobytes()
