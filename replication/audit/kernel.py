"""The audit's inner loops over bytes of a log: where records begin, and where two replicas part.

The readable form; _kernel.pyx is the same, compiled. Nothing here reads files, hashes blocks or knows
of Spark. A *view* holds bytes of one segment; `base` is the log offset of its first byte and `limit`
the log offset where the segment ends. Everything else is a log offset, `end` exclusive.

A record is believed where it stands only if its magic is right, its lengths add up, room for a blank is
left behind it, and the physical offset stored in it is its own (INV-1). That last test is what lets a
reader find its way again after damage: bytes of a body that look like a record name another place.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tandemmq.storage import Bytes

try:
    from isal.isal_zlib import crc32
except ImportError:  # same sums, five times slower
    from zlib import crc32

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
BLANK_BYTES: Final = 8
RECORD_BYTES_MIN: Final = 91
TAIL_BYTES_MAX: Final = 2 + 32_767 + 2 + 32_767  # topic and properties with their lengths
CRC_MASK: Final = 0x7FFFFFFF
CONTENT_MASK: Final = (1 << 64) - 1

# What stands at a place of the log
NOTHING: Final = 0  # no record
RECORD: Final = 1
BLANK: Final = 2  # the rest of the segment is unused
MORE: Final = 3  # looks like a record; the view ends before it does
MISPLACED: Final = 4  # a whole record with a right checksum that names another place

#: names of the bits of Island.fields, lowest first
FIELDS: Final = (
    "magic", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag",
    "born_ms", "born_host", "store_ms", "store_host", "reconsume_times", "prepared_offset",
    "lengths", "body", "topic", "properties",
)  # fmt: skip
FIELD_BIT: Final = {name: 1 << bit for bit, name in enumerate(FIELDS)}

_SIZE_MAGIC: Final = struct.Struct(">iI")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_LONG: Final = struct.Struct(">q")
_MAGIC_BYTES: Final = MAGIC_V1.to_bytes(4, "big")[:3]
_BLANK_MAGIC_BYTES: Final = MAGIC_BLANK.to_bytes(4, "big")


class Island(NamedTuple):
    """A maximal run of records that are not the same on both sides, a the reference and b the replica.

    records_*    records found in it; junk_*: bytes that are no record, in breaks_* runs
    misplaced_*  records that name another place; bad_crc_*: records whose body fails its checksum
    paired       every record of a stands where one of b of the same size stands, and no junk
    fields       what differs in paired records, bits of FIELDS
    differing    bytes that differ at the same place, zeroed_*: those of them that are zero there
    content_*    sums over the records of what they hold apart from their places: equal sums, same
                 records in whatever order
    at_end       the island reaches the end of what was compared
    """

    start: int
    end: int
    records_a: int
    records_b: int
    junk_a: int
    junk_b: int
    breaks_a: int
    breaks_b: int
    misplaced_a: int
    misplaced_b: int
    bad_crc_a: int
    bad_crc_b: int
    paired: bool
    fields: int
    differing: int
    zeroed_a: int
    zeroed_b: int
    diff_start: int
    diff_end: int
    content_a: int
    content_b: int
    at_end: bool


class Parts(NamedTuple):
    """Where a record's parts lie, positions in the view; of a record whose lengths add up."""

    size: int
    hosts: tuple[int, int]  # bytes of born and store host
    body: tuple[int, int]
    topic: tuple[int, int]
    properties: tuple[int, int]


def parts_at(view: Bytes, at: int, room: int) -> Parts | None:
    """Take a record at view[at:at+room] apart; None when it is no whole record."""
    if room < RECORD_BYTES_MIN:
        return None
    size, magic = _SIZE_MAGIC.unpack_from(view, at)
    if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= size <= room:
        return None
    end = at + size
    (sys_flag,) = _INT.unpack_from(view, at + 36)
    hosts = (20 if sys_flag & 0x10 else 8, 20 if sys_flag & 0x20 else 8)
    body_start = at + 72 + hosts[0] + hosts[1]
    if body_start > end:
        return None
    body_end = body_start + max(0, _INT.unpack_from(view, body_start - 4)[0])
    topic_start = body_end + (1 if magic == MAGIC_V1 else 2)
    if topic_start > end:
        return None
    topic_bytes = int.from_bytes(view[body_end:topic_start], "big", signed=True)
    topic_end = topic_start + topic_bytes
    if topic_bytes < 0 or topic_end + 2 > end:
        return None
    properties_end = topic_end + 2 + max(0, _SHORT.unpack_from(view, topic_end)[0])
    if properties_end != end:
        return None
    return Parts(
        size, hosts, (body_start, body_end), (topic_start, topic_end), (topic_end + 2, end)
    )


def body_crc_right(view: Bytes, at: int, parts: Parts) -> bool:
    """Whether the body of the record at view[at:] has the checksum stored in it."""
    start, end = parts.body
    if start == end:
        return True
    with memoryview(view) as whole, whole[start:end] as body:
        stored: int = _INT.unpack_from(view, at + 8)[0]
        computed: int = crc32(body)
        return computed & CRC_MASK == stored


def kind_at(view: Bytes, offset: int, base: int, limit: int) -> tuple[int, int]:
    """(what stands at a log offset, its size): NOTHING, RECORD, BLANK or MORE.

    The size of a blank reaches to the segment's end; of MORE it is what the record claims, or 0 when
    even that is not known.
    """
    at = offset - base
    room = len(view) - at
    if room < BLANK_BYTES:
        return (MORE, 0) if offset + BLANK_BYTES <= limit and room >= 0 else (NOTHING, 0)
    size, magic = _SIZE_MAGIC.unpack_from(view, at)
    left = limit - offset
    if magic == MAGIC_BLANK:
        return (BLANK, left) if size == left else (NOTHING, 0)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return NOTHING, 0
    if not RECORD_BYTES_MIN <= size <= left - BLANK_BYTES:
        return NOTHING, 0
    if room >= 36 and _LONG.unpack_from(view, at + 28)[0] != offset:
        return NOTHING, 0
    if size <= room:
        return (RECORD, size) if parts_at(view, at, room) is not None else (NOTHING, 0)
    return (MORE, size) if _size_credible(view, at, size, room) else (NOTHING, 0)


def _size_credible(view: Bytes, at: int, size: int, room: int) -> bool:
    """Whether a record whose end is out of sight can be that long: body and size must nearly agree."""
    if room < 40:
        return True
    (sys_flag,) = _INT.unpack_from(view, at + 36)
    head = 72 + (20 if sys_flag & 0x10 else 8) + (20 if sys_flag & 0x20 else 8)
    if room < head:
        return True
    body: int = _INT.unpack_from(view, at + head - 4)[0]
    rest = size - head - max(0, body)
    return 3 <= rest <= TAIL_BYTES_MAX


def find_record(view: Bytes, start: int, base: int, limit: int) -> tuple[int, int]:
    """The first place at or behind `start` where the log goes on: (offset, kind), or (-1, NOTHING).

    A record counts when what follows it can follow a record (another one, a blank, zeros, the end of
    the view); a record standing alone could be the body of a message that was made to look like one.
    kind is RECORD, BLANK, or MORE when the view must be longer to tell.
    Source: docs/audit.md "Finding the way again".
    """
    data = bytes(view) if isinstance(view, memoryview) else view
    at = start - base + 4
    magic = data.find(_MAGIC_BYTES, at)
    blank = data.find(_BLANK_MAGIC_BYTES, at)
    while magic >= 0 or blank >= 0:
        if magic < 0 or 0 <= blank < magic:
            offset = base + blank - 4
            blank = data.find(_BLANK_MAGIC_BYTES, blank + 1)
        else:
            offset = base + magic - 4
            magic = data.find(_MAGIC_BYTES, magic + 1)
        kind, size = kind_at(view, offset, base, limit)
        if kind == RECORD and not _can_follow(view, offset + size, base, limit):
            continue
        if kind != NOTHING:
            return offset, kind
    return -1, NOTHING


def _can_follow(view: Bytes, offset: int, base: int, limit: int) -> bool:
    if offset - base + BLANK_BYTES > len(view):
        return True
    if kind_at(view, offset, base, limit)[0] != NOTHING:
        return True
    return int(_INT.unpack_from(view, offset - base)[0]) == 0


def skip(view: Bytes, start: int, base: int, limit: int) -> tuple[int, int]:
    """Pass over the records from a boundary on: where they end, and what stands there (kind_at)."""
    offset = start
    while True:
        kind, size = kind_at(view, offset, base, limit)
        if kind != RECORD:
            return offset, kind
        offset += size


class Line(NamedTuple):
    """What rows() tells of one record."""

    offset: int
    size: int
    magic: int  # 1 or 2
    body_crc: int
    computed_crc: int  # -1 when it was not computed
    queue_id: int
    flag: int
    queue_offset: int
    sys_flag: int
    born_ms: int
    store_ms: int
    reconsume_times: int
    prepared_offset: int
    born_host: bytes
    store_host: bytes
    topic: bytes
    properties: bytes
    body_start: int  # positions in the view
    body_end: int


def rows(
    view: Bytes, start: int, end: int, base: int, limit: int, crc_checked: bool = False
) -> Iterator[Line]:
    """The records from one boundary on, until `end` or the first place without a whole record."""
    offset = start
    while offset < end:
        kind, size = kind_at(view, offset, base, limit)
        if kind != RECORD:
            return
        at = offset - base
        parts = parts_at(view, at, size)
        assert parts is not None
        born, store = parts.hosts
        fixed = struct.unpack_from(f">iIiiiqqiq{born}sq{store}siq", view, at)
        computed = -1
        if crc_checked:
            computed = crc32(bytes(view[parts.body[0] : parts.body[1]])) & CRC_MASK
        yield Line(
            offset, size, 1 if fixed[1] == MAGIC_V1 else 2, fixed[2], computed, fixed[3], fixed[4],
            fixed[5], fixed[7], fixed[8], fixed[10], fixed[12], fixed[13], fixed[9], fixed[11],
            bytes(view[parts.topic[0] : parts.topic[1]]),
            bytes(view[parts.properties[0] : parts.properties[1]]), *parts.body,
        )  # fmt: skip
        offset += size


# --- two replicas ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Side:
    """What one replica holds in the open island."""

    offset: int
    records: int = 0
    junk: int = 0
    breaks: int = 0
    misplaced: int = 0
    bad_crc: int = 0
    content: int = 0
    in_junk: bool = False

    def forget(self) -> None:
        self.records = self.junk = self.breaks = self.misplaced = self.bad_crc = self.content = 0
        self.in_junk = False

    def add_junk(self, size: int) -> None:
        self.breaks += not self.in_junk
        self.in_junk = True
        self.junk += size
        self.offset += size

    def add_content(self, content: int) -> None:
        self.in_junk = False
        self.content = (self.content + content) & CONTENT_MASK


class PairDiff:
    """Walks two replicas of a log in step and reports islands. Fed with views of both, piece by piece.

    offset_a, offset_b  how far each side was read; bytes below the smaller one are not needed again
    equal_records, equal_bytes  what was the same, blanks included in the bytes
    padding             bytes behind blanks, which mean nothing and were not compared
    """

    def __init__(self, start: int) -> None:
        """start: a boundary of both logs."""
        self._a = _Side(start)
        self._b = _Side(start)
        self._open = -1  # where the open island began
        self._paired = True
        self._fields = 0
        self._counted = start  # bytes below were compared one by one
        self._differing = self._zeroed_a = self._zeroed_b = 0
        self._diff_start = self._diff_end = -1
        self.equal_records = 0
        self.equal_bytes = 0
        self.padding = 0

    @property
    def offset_a(self) -> int:
        return self._a.offset

    @property
    def offset_b(self) -> int:
        return self._b.offset

    @property
    def offset(self) -> int:
        """Both sides were read up to here."""
        return min(self._a.offset, self._b.offset)

    @property
    def in_island(self) -> bool:
        return self._open >= 0

    def step(
        self, a: Bytes, b: Bytes, base: int, limit: int, stop: int, final: bool
    ) -> list[Island]:
        """Go on with views of equal length that start at `base` <= offset; returns islands that ended.

        stop   go no further than this unless an island is open
        final  nothing follows these views: what they hold is all
        Stops when a record reaches beyond the views (then offset tells how far it came), at `stop`, or
        at the views' end.
        """
        if len(a) != len(b) or base > self.offset:
            raise ValueError(f"views of {len(a)} and {len(b)} bytes from {base}, at {self.offset}")
        found: list[Island] = []
        end = base + len(a)
        while True:
            left, right = self._a, self._b
            if left.offset == right.offset:
                if left.offset >= end or (self._open < 0 and left.offset >= stop):
                    break
                if not self._both(a, b, base, limit, final, found):
                    break
            elif left.offset < right.offset:
                if left.offset >= end or not self._advance(left, a, base, limit, final):
                    break
            elif right.offset >= end or not self._advance(right, b, base, limit, final):
                break
        self._count(a, b, base)
        return found

    def finish(self) -> list[Island]:
        """The island still open at the end, if any."""
        if self._open < 0:
            return []
        return [self._close(max(self._a.offset, self._b.offset), at_end=True)]

    def _both(
        self, a: Bytes, b: Bytes, base: int, limit: int, final: bool, found: list[Island]
    ) -> bool:
        """One step from a place where both sides stand; False when the views end too early."""
        offset = self._a.offset
        at = offset - base
        kind_a, size_a = kind_at(a, offset, base, limit)
        kind_b, size_b = kind_at(b, offset, base, limit)
        if MORE in (kind_a, kind_b) and not final:
            return False
        if kind_a == RECORD and kind_b == RECORD and size_a == size_b:
            same = a[at : at + size_a] == b[at : at + size_b]
            if same:
                if self._open >= 0:
                    self._count(a, b, base)
                    found.append(self._close(offset, at_end=False))
                self.equal_records += 1
                self.equal_bytes += size_a
            else:
                self._enter(offset)
                self._compare_fields(a, b, at)
                self._take(self._a, a, at, RECORD)
                self._take(self._b, b, at, RECORD)
            self._a.offset = self._b.offset = offset + size_a
            if same:
                self._counted = self._a.offset
            return True
        if kind_a == BLANK and kind_b == BLANK:
            if self._open >= 0:
                self._count(a, b, base)
                found.append(self._close(offset, at_end=False))
            self.equal_bytes += BLANK_BYTES
            self.padding += size_a - BLANK_BYTES
            self._a.offset = self._b.offset = self._counted = offset + size_a
            return True
        self._enter(offset)
        kind_a, size_a = self._as_misplaced(a, offset, base, limit, kind_a, size_a)
        kind_b, size_b = self._as_misplaced(b, offset, base, limit, kind_b, size_b)
        if {kind_a, kind_b} <= {RECORD, MISPLACED} and size_a == size_b:
            self._compare_fields(a, b, at)
            self._take(self._a, a, at, kind_a)
            self._take(self._b, b, at, kind_b)
            self._a.offset = self._b.offset = offset + size_a
            return True
        self._paired = False
        went_a = self._advance(self._a, a, base, limit, final)
        went_b = self._advance(self._b, b, base, limit, final)
        return went_a or went_b

    def _advance(self, side: _Side, view: Bytes, base: int, limit: int, final: bool) -> bool:
        """Take what one side holds next; False when the view ends too early to tell."""
        self._paired = False
        offset = side.offset
        end = base + len(view)
        kind, size = kind_at(view, offset, base, limit)
        kind, size = self._as_misplaced(view, offset, base, limit, kind, size)
        if kind == MORE and not final:
            return False
        if kind in (RECORD, MISPLACED):
            self._take(side, view, offset - base, kind)
            side.offset = offset + size
            return True
        if kind == BLANK:
            side.add_content(size)
            side.offset = limit
            return True
        next_offset, _ = find_record(view, offset + 1, base, limit)
        if next_offset < 0 and kind == MORE and size and side.records:
            side.records += 1  # the end cuts a record of another history in two
            side.add_content(size)
            side.offset = end
            return True
        if next_offset < 0:
            # a record may begin in the last bytes: too few of them to tell
            next_offset = end if final or end >= limit else max(offset, end - RECORD_BYTES_MIN)
        if next_offset == offset:
            return False
        side.add_junk(next_offset - offset)
        return True

    def _as_misplaced(
        self, view: Bytes, offset: int, base: int, limit: int, kind: int, size: int
    ) -> tuple[int, int]:
        if kind != NOTHING:
            return kind, size
        at = offset - base
        parts = parts_at(view, at, min(len(view) - at, limit - offset - BLANK_BYTES))
        if parts is None or not body_crc_right(view, at, parts):
            return kind, size
        return MISPLACED, parts.size

    def _take(self, side: _Side, view: Bytes, at: int, kind: int) -> None:
        parts = parts_at(view, at, len(view) - at)
        assert parts is not None
        side.records += 1
        if kind == MISPLACED:
            side.misplaced += 1
        elif not body_crc_right(view, at, parts):
            side.bad_crc += 1
        with (
            memoryview(view) as whole,
            whole[at : at + 28] as head,
            whole[at + 36 : at + parts.size] as rest,
        ):
            side.add_content(crc32(rest) << 32 | crc32(head))

    def _compare_fields(self, a: Bytes, b: Bytes, at: int) -> None:
        left = parts_at(a, at, len(a) - at)
        right = parts_at(b, at, len(b) - at)
        assert left is not None and right is not None
        if left != right:
            self._fields |= FIELD_BIT["lengths"]
            return
        born, store = left.hosts
        edges = [4, 8, 12, 16, 20, 28, 36, 40, 48, 48 + born, 56 + born, 56 + born + store]
        edges += [60 + born + store, 68 + born + store, 72 + born + store]
        for bit, (start, end) in enumerate(itertools.pairwise(edges)):
            if a[at + start : at + end] != b[at + start : at + end]:
                self._fields |= 1 << bit
        ends = (left.body[1], left.topic[0]), (left.topic[1], left.properties[0])
        if any(a[start:end] != b[start:end] for start, end in ends):
            self._fields |= FIELD_BIT["lengths"]
        for name, (start, end) in (
            ("body", left.body),
            ("topic", left.topic),
            ("properties", left.properties),
        ):
            if a[start:end] != b[start:end]:
                self._fields |= FIELD_BIT[name]

    def _enter(self, offset: int) -> None:
        if self._open < 0:
            self._open = offset
            self._counted = offset

    def _count(self, a: Bytes, b: Bytes, base: int) -> None:
        """Compare byte by byte what both sides have passed in the open island."""
        end = min(self.offset, base + len(a))
        if self._open < 0 or end <= self._counted:
            return
        start = self._counted
        self._counted = end
        left, right = a[start - base : end - base], b[start - base : end - base]
        if left == right:
            return
        for index, (x, y) in enumerate(zip(left, right, strict=True)):
            if x != y:
                self._differing += 1
                self._zeroed_a += x == 0
                self._zeroed_b += y == 0
                if self._diff_start < 0:
                    self._diff_start = start + index
                self._diff_end = start + index + 1

    def _close(self, end: int, *, at_end: bool) -> Island:
        a, b = self._a, self._b
        island = Island(
            self._open, end, a.records, b.records, a.junk, b.junk, a.breaks, b.breaks,
            a.misplaced, b.misplaced, a.bad_crc, b.bad_crc, self._paired, self._fields,
            self._differing, self._zeroed_a, self._zeroed_b, self._diff_start, self._diff_end,
            a.content, b.content, at_end,
        )  # fmt: skip
        a.forget()
        b.forget()
        self._open = -1
        self._paired = True
        self._fields = 0
        self._differing = self._zeroed_a = self._zeroed_b = 0
        self._diff_start = self._diff_end = -1
        return island
