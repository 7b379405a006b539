"""What one pass over a log says of its queues: gaps, checksums, and whether derived files agree.

The readable form; _kernel.pyx has the same class, compiled. A *shelf* is one store's derived files:
several stores can be held against the one log that they share.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.replication.audit.kernel import (
    BLANK,
    MORE,
    NOTHING,
    RECORD,
    body_crc_right,
    kind_at,
    parts_at,
)
from tandemmq.storage import Bytes, get_property, has_index_entries, has_queue_entry
from tandemmq.storage.derivation import key_hash

# What a Mark says
CRC_WRONG: Final = 0  # the body's checksum; first, second: 0
GAP: Final = 1  # queue offsets are missing; first: the one expected, second: the record before
REPEAT: Final = 2  # a queue offset came again; first, second as above
RESTART: Final = 3  # the queue began anew at 0; first, second as above
ENTRY_MISSING: Final = 4  # no entry in the consume queue; first, second: 0
ENTRY_OTHER: Final = 5  # it points elsewhere; first: its physical offset, second: its size
ENTRY_TAGS: Final = 6  # its tags code is wrong; first: the one found, second: the right one
KEY_MISSING: Final = 7  # a key of the record is not in the index; first: its hash
KEY_OTHER: Final = 8  # the index holds a key that the record does not have; first: its hash
KEY_DANGLING: Final = 9  # the index names a place where no record begins; first: its hash

MARK_NAMES: Final = (
    "crc", "queue_gap", "queue_repeat", "queue_restart", "cq_missing", "cq_wrong_record",
    "cq_tags_code", "index_missing", "index_wrong", "index_dangling",
)  # fmt: skip

MARKS_MAX: Final = 10_000  # kept of each kind and shelf; all are counted

DELAY_TOPIC: Final = b"SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = b"RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = b"RMQ_SYS_TRANS_OP_HALF_TOPIC"
SPECIAL_TOPICS: Final = frozenset({DELAY_TOPIC, HALF_TOPIC, OP_TOPIC})

_ENTRY_BYTES: Final = 20
# An address in consumequeue_ext is -2**63 plus a file position. RocketMQ takes everything below -2**31
# for one; a flipped bit makes such numbers, so only credible positions count here.
_EXTENSION_ADDRESS_MAX: Final = -(1 << 62)


class Mark(NamedTuple):
    """One thing that is not as the log says. shelf is -1 when the log itself is meant."""

    code: int
    shelf: int
    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    first: int = 0
    second: int = 0


class Special(NamedTuple):
    """A record of a topic that has rules of its own (SPECIAL_TOPICS)."""

    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_ms: int
    tags_code: int
    properties: bytes
    body: bytes


@dataclass(slots=True)
class QueueSpan:
    """What was seen of one queue: the first and the last record, and how many."""

    first: int
    first_physical: int
    last: int
    last_physical: int
    count: int
    windows: list[tuple[int, bytes]] = field(default_factory=list)  # by shelf


#: (shelf, topic, queue id, queue offset) -> (queue offset of the first entry, raw entries);
#: entries are those around the one asked for, or none
Window = Callable[[int, bytes, int, int], tuple[int, bytes]]
#: (topic, properties, store ms) -> the tags code that a queue entry has
TagsCode = Callable[[bytes, bytes, int], int]


class Ledger:
    """Reads records in order, keeps account of queues, and marks what does not fit."""

    def __init__(self, shelves: int, window: Window, tags_code: TagsCode) -> None:
        self.spans: dict[tuple[bytes, int], QueueSpan] = {}
        self.marks: list[Mark] = []
        self.counts = [[0] * (shelves + 1) for _ in MARK_NAMES]  # by code, by shelf + 1
        self.special: list[Special] = []
        self.records = 0
        self.bytes = 0
        self.last_store_ms = 0
        #: by shelf: records with keys behind the last indexed place, and the first of them
        self.unindexed = [0] * shelves
        self.first_unindexed = [-1] * shelves
        self._shelves = shelves
        self._window = window
        self._tags_code = tags_code
        self._indexes: list[_IndexCursor | None] = [None] * shelves

    def set_index(
        self, shelf: int, physical: Sequence[int], hashes: Sequence[int], first: int, last: int
    ) -> None:
        """Index entries of a shelf by rising physical offset; first and last: what its files cover."""
        self._indexes[shelf] = _IndexCursor(array("q", physical), array("i", hashes), first, last)

    def skip_index(self, shelf: int, offset: int) -> None:
        """Entries below a log offset are not looked at."""
        cursor = self._indexes[shelf]
        if cursor is not None:
            cursor.at = bisect_left(cursor.physical, offset, cursor.at)

    def walk(
        self, view: Bytes, start: int, end: int, base: int, limit: int, mask: int
    ) -> tuple[int, int]:
        """Take the records in [start, end): how far it came, and RECORD, BLANK, MORE or NOTHING.

        mask  bits of the shelves that are held against these records
        RECORD: the end was reached (a record that begins before it is taken whole). BLANK: the offset
        is the segment's end. Otherwise what stands at the offset where the walk stopped.
        """
        offset = start
        while offset < end:
            kind, size = kind_at(view, offset, base, limit)
            if kind == BLANK:
                return limit, BLANK
            if kind != RECORD:
                return offset, kind
            self._take(view, offset - base, offset, mask)
            offset += size
        return offset, RECORD

    def _take(self, view: Bytes, at: int, offset: int, mask: int) -> None:
        parts = parts_at(view, at, len(view) - at)
        assert parts is not None
        self.records += 1
        self.bytes += parts.size
        topic = bytes(view[parts.topic[0] : parts.topic[1]])
        queue_id = int.from_bytes(view[at + 12 : at + 16], "big", signed=True)
        queue_offset = int.from_bytes(view[at + 20 : at + 28], "big", signed=True)
        sys_flag = int.from_bytes(view[at + 36 : at + 40], "big", signed=True)
        store_at = at + 48 + parts.hosts[0]
        store_ms = int.from_bytes(view[store_at : store_at + 8], "big", signed=True)
        self.last_store_ms = store_ms  # not the highest: a damaged one would win
        if not body_crc_right(view, at, parts):
            self._mark(CRC_WRONG, -1, topic, queue_id, queue_offset, offset)
        properties = bytes(view[parts.properties[0] : parts.properties[1]])
        if has_index_entries(sys_flag) and any(self._indexes):
            self._check_keys(topic, queue_id, queue_offset, offset, properties, mask)
        if not has_queue_entry(sys_flag):
            return
        span = self._follow(topic, queue_id, queue_offset, offset)
        code = self._tags_code(topic, properties, store_ms)
        if topic in SPECIAL_TOPICS:
            body = b"" if topic == DELAY_TOPIC else bytes(view[parts.body[0] : parts.body[1]])
            self.special.append(
                Special(topic, queue_id, queue_offset, offset, store_ms, code, properties, body)
            )
        for shelf in range(self._shelves):
            if mask >> shelf & 1:
                self._check_entry(
                    span, shelf, (topic, queue_id, queue_offset, offset), parts.size, code
                )

    def _follow(self, topic: bytes, queue_id: int, queue_offset: int, offset: int) -> QueueSpan:
        key = (topic, queue_id)
        span = self.spans.get(key)
        if span is None:
            span = QueueSpan(queue_offset, offset, queue_offset, offset, 1)
            span.windows = [(0, b"")] * self._shelves
            self.spans[key] = span
            return span
        expected = span.last + 1
        if queue_offset != expected:
            code = GAP if queue_offset > expected else RESTART if queue_offset == 0 else REPEAT
            self._mark(
                code, -1, topic, queue_id, queue_offset, offset, expected, span.last_physical
            )
        span.count += 1
        span.last = queue_offset
        span.last_physical = offset
        return span

    def _check_entry(
        self,
        span: QueueSpan,
        shelf: int,
        place: tuple[bytes, int, int, int],
        size: int,
        code: int,
    ) -> None:
        topic, queue_id, queue_offset, offset = place
        first, entries = span.windows[shelf]
        at = (queue_offset - first) * _ENTRY_BYTES
        if at < 0 or at + _ENTRY_BYTES > len(entries):
            first, entries = self._window(shelf, topic, queue_id, queue_offset)
            span.windows[shelf] = first, entries
            at = (queue_offset - first) * _ENTRY_BYTES
            if at < 0 or at + _ENTRY_BYTES > len(entries):
                self._mark(ENTRY_MISSING, shelf, *place)
                return
        found_offset = int.from_bytes(entries[at : at + 8], "big", signed=True)
        found_size = int.from_bytes(entries[at + 8 : at + 12], "big", signed=True)
        found_code = int.from_bytes(entries[at + 12 : at + 20], "big", signed=True)
        if found_size == 0:
            self._mark(ENTRY_MISSING, shelf, *place)
        elif found_offset != offset or found_size != size:
            self._mark(ENTRY_OTHER, shelf, *place, found_offset, found_size)
        elif found_code != code and (found_code > _EXTENSION_ADDRESS_MAX or topic == DELAY_TOPIC):
            self._mark(ENTRY_TAGS, shelf, *place, found_code, code)

    def _check_keys(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        offset: int,
        properties: bytes,
        mask: int,
    ) -> None:
        expected = expected_hashes(topic, properties)
        for shelf, cursor in enumerate(self._indexes):
            if cursor is None or not mask >> shelf & 1:
                continue
            for dangling, hashed in cursor.below(offset):
                self._mark(KEY_DANGLING, shelf, b"", -1, -1, dangling, hashed)
            found = cursor.take(offset)
            if offset > cursor.last:
                if expected:
                    self.unindexed[shelf] += 1
                    if self.first_unindexed[shelf] < 0:
                        self.first_unindexed[shelf] = offset
                continue
            place = (topic, queue_id, queue_offset, offset)
            if offset >= cursor.first:
                for hashed in expected:
                    if hashed not in found:
                        self._mark(KEY_MISSING, shelf, *place, hashed)
            for hashed in found:
                if hashed not in expected:
                    self._mark(KEY_OTHER, shelf, *place, hashed)

    def _mark(
        self,
        code: int,
        shelf: int,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        offset: int,
        first: int = 0,
        second: int = 0,
    ) -> None:
        self.counts[code][shelf + 1] += 1
        if self.counts[code][shelf + 1] <= MARKS_MAX:
            self.marks.append(
                Mark(code, shelf, topic, queue_id, queue_offset, offset, first, second)
            )


class _IndexCursor:
    """Index entries in the log's order, and how far the log was read."""

    __slots__ = ("at", "first", "hashes", "last", "physical")

    def __init__(self, physical: array[int], hashes: array[int], first: int, last: int) -> None:
        self.physical = physical
        self.hashes = hashes
        self.first = first
        self.last = last
        self.at = 0

    def below(self, offset: int) -> list[tuple[int, int]]:
        """Entries that the log has passed."""
        start = self.at
        while self.at < len(self.physical) and self.physical[self.at] < offset:
            self.at += 1
        return [(self.physical[i], self.hashes[i]) for i in range(start, self.at)]

    def take(self, offset: int) -> list[int]:
        """Hashes of the entries for this place."""
        start = self.at
        while self.at < len(self.physical) and self.physical[self.at] == offset:
            self.at += 1
        return list(self.hashes[start : self.at])


def expected_hashes(topic: bytes, properties: bytes) -> list[int]:
    """Hashes of the keys that an index holds for a record: its unique key, then each of its keys."""
    found = []
    unique = get_property(properties, b"UNIQ_KEY")
    if unique:
        found.append(key_hash(topic, unique))
    keys = get_property(properties, b"KEYS")
    if keys:
        found += [key_hash(topic, key) for key in keys.split(b" ") if key]
    return found


__all__ = [
    "BLANK",
    "MORE",
    "NOTHING",
    "RECORD",
    "Ledger",
    "Mark",
    "QueueSpan",
    "Special",
    "expected_hashes",
]
