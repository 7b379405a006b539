"""What a pull gets: walks a consume queue and collects slices of the log within limits."""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tandemmq.storage.commitlog import CommitLog
from tandemmq.storage.config import QUEUE_ENTRY_BYTES, StorageConfig
from tandemmq.storage.consumequeue import ConsumeQueue
from tandemmq.storage.consumequeues import ConsumeQueues
from tandemmq.storage.derivation import QUEUE_ENTRY
from tandemmq.storage.queuefiles import BLANK_SIZE
from tandemmq.storage.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from tandemmq.storage.twins import compiled

#: the front of _collect's walk, compiled; without it the loop there does it all
gather: Callable[..., tuple[int, int, int, bool]] | None = None
compiled(globals(), "tandemmq.storage._reading")

PULL_BYTES_MIN: Final = 100
PULL_BYTES_MAX: Final = 128 << 20

#: see Selector
JUDGED_BYTES_MAX: Final = 1 << 20

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
    """Records are slices of the log: copy them before the event loop runs anything else."""

    status: GetStatus
    next_offset: int
    min_offset: int = 0
    max_offset: int = 0
    records: list[memoryview] = field(default_factory=list)
    bytes: int = 0
    suggest_slave: bool = False  # RocketMQ's estimate: the records are probably not in memory
    last_physical: int = -1  # log offset of the last record looked at, -1 for none

    @property
    def count(self) -> int:
        return len(self.records)


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


class Reader:
    """Answers pulls. hot_bytes: older records are read from the file, not through the mapping.

    A page fault stops every thread, and a bad block under a mapping kills the process; a read does
    neither.
    """

    def __init__(
        self, log: CommitLog, queues: ConsumeQueues, config: StorageConfig, hot_bytes: int
    ) -> None:
        self._log = log
        self._queues = queues
        self._hot_bytes = hot_bytes
        self._filter_bytes_max = config.filter_bytes_max
        self._hot_limits = (config.transfer_bytes_max_hot, config.transfer_count_max_hot)
        self._cold_limits = (config.transfer_bytes_max_cold, config.transfer_count_max_cold)

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int = PULL_BYTES_MAX,
        selector: Selector = EVERYTHING,
    ) -> GetResult:
        """At most count_max records of a queue from `offset` on, of those that are wanted.

        An unknown queue is an empty one. Raises OSError.
        Source: RocketMQ's DefaultMessageStore.getMessage.
        """
        queue = self._queues.get(topic, queue_id)
        max_offset = queue.max_offset if queue is not None else 0
        if queue is None or max_offset == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0)
        min_offset = queue.min_offset
        if offset < min_offset:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, min_offset, min_offset, max_offset)
        if offset == max_offset:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, min_offset, max_offset)
        if offset > max_offset:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, max_offset, min_offset, max_offset)
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, min_offset, max_offset)
        self._collect(queue, result, count_max, bytes_max, selector)
        return result

    def _collect(
        self,
        queue: ConsumeQueue,
        result: GetResult,
        count_max: int,
        bytes_max: int,
        selector: Selector,
    ) -> None:
        tag_codes, matches = selector.tag_codes, selector.matches
        bytes_max = min(max(bytes_max, PULL_BYTES_MIN), PULL_BYTES_MAX)
        filter_bytes_max = max(self._filter_bytes_max, count_max * QUEUE_ENTRY_BYTES)
        offset = result.next_offset
        entries_max = min(-(-filter_bytes_max // QUEUE_ENTRY_BYTES), selector.judged_max)
        chunk = queue.chunk(offset, entries_max)
        if not chunk:
            result.status = GetStatus.OFFSET_FOUND_NULL
            result.next_offset = queue.next_file_offset(offset)
            return
        hot_from = self._log.end - self._hot_bytes
        find = self._log.run.find
        records = result.records
        total = examined = last_physical = skip_below = segment_start = segment_end = judged = 0
        view = memoryview(b"")
        bytes_limit, count_limit = self._limits(True, count_max, bytes_max)
        cold_limits = self._limits(False, count_max, bytes_max)
        was_hot = True
        removed = False
        if gather is not None and matches is None:
            segment = find(QUEUE_ENTRY.unpack_from(chunk)[0])
            if segment is not None:
                examined, total, last_physical, full = gather(
                    chunk, segment.view, segment.start, segment.start + segment.wrote,
                    hot_from, bytes_limit, count_limit, tag_codes, records,
                )  # fmt: skip
                chunk = chunk[:0] if full else chunk[examined * QUEUE_ENTRY_BYTES :]
        for physical, size, tags_code in QUEUE_ENTRY.iter_unpack(chunk):
            if was_hot != (physical >= hot_from):
                was_hot = not was_hot
                bytes_limit, count_limit = (
                    self._limits(True, count_max, bytes_max) if was_hot else cold_limits
                )
            if records and (len(records) >= count_limit or total + size > bytes_limit):
                break
            if judged > selector.judged_bytes_max:
                break
            examined += 1
            last_physical = physical
            if physical < skip_below:
                continue
            if tag_codes is not None and _signed_int(tags_code) not in tag_codes:
                continue
            if not segment_start <= physical < segment_end:
                segment = find(physical)
                if segment is not None:
                    view, segment_start = segment.view, segment.start
                    segment_end = segment_start + segment.wrote
            record: memoryview | None = None
            position = physical - segment_start
            if position >= 0 and size >= RECORD_BYTES_MIN and physical + size <= segment_end:
                if not was_hot and segment is not None:
                    record = memoryview(segment.pread(position, size))
                else:
                    record = view[position : position + size]
                # An entry that does not point at a record: never serve what lies there.
                found_size, magic = _SIZE_MAGIC.unpack_from(record)
                if found_size != size or (magic != MAGIC_V1 and magic != MAGIC_V2):
                    record = None
            if record is None:
                removed = removed or not records
                if size != BLANK_SIZE:  # the file is gone: so are its other records
                    skip_below = physical - physical % self._log.run.segment_bytes
                    skip_below += self._log.run.segment_bytes
                continue
            if matches is not None:
                properties = _properties(record)
                judged += len(properties) if was_hot else size
                if not matches(properties):
                    continue
            records.append(record)
            total += size
            skip_below = 0
        result.next_offset = offset + examined
        result.bytes = total
        if records:
            result.status = GetStatus.FOUND
        elif removed:
            result.status = GetStatus.MESSAGE_WAS_REMOVING
        result.suggest_slave = self._log.end - last_physical > self._hot_bytes
        result.last_physical = last_physical

    def _limits(self, hot: bool, count_max: int, bytes_max: int) -> tuple[int, int]:
        limits = self._hot_limits if hot else self._cold_limits
        return min(limits[0], bytes_max), min(limits[1], count_max)


def _signed_int(code: int) -> int:
    """Java's (int) cast; delivery times in the delay topic are longer than 32 bits."""
    code &= 0xFFFFFFFF
    return code - (1 << 32) if code & 0x80000000 else code


def _properties(record: memoryview) -> bytes:
    """The encoded properties of a whole record, without touching its body."""
    magic, sys_flag = _MAGIC_SYS_FLAG.unpack_from(record)
    at = 84 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
    at += 4 + _INT.unpack_from(record, at)[0]
    at += 2 + _SHORT.unpack_from(record, at)[0] if magic == MAGIC_V2 else 1 + record[at]
    return record[at + 2 :].tobytes()
