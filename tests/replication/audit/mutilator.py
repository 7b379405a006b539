"""A seeded mutilator of stores that knows what its damage must be called.

It finds records with the store's own scanner and names damage by where it lies in them, so it shares no
judgement with the audit. Every change is undone afterwards.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storekit import LogFiles, Place, places

from tandemmq.replication.audit.plan import Outcome
from tandemmq.storage import Draft, encode

ENTRY = 20


@dataclass(frozen=True)
class Expected:
    """What an audit must say: one of these classes over each range, or one of these checks."""

    fault: str
    kinds: tuple[str, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    checks: tuple[str, ...] = ()


class Mutilator:
    """Damages one store of a pair, one fault at a time."""

    def __init__(self, root: Path, seed: int, index_slots: int, side: str = "slave") -> None:
        self.root = root
        self.rng = random.Random(seed)
        self.log = LogFiles(root)
        self.places = places(root)
        self.index_slots = index_slots
        self.side = side
        self._before: dict[Path, bytes | None] = {}

    def faults(self) -> list[str]:
        """The faults that this store has room for."""
        names = ["bit_flip", "header_field", "zero_range", "torn_range", "rewrite", "checkpoint"]
        if len(self.places) > 6:
            names += ["swap_records", "swap_ranges", "tail"]
        if self._queue_files():
            names += ["entry_zero", "entry_other", "entry_tags", "entry_drop", "entry_repeat"]
        if self.index_slots and self._index_files():
            names += ["index_entry", "index_slot"]
            if not (self.root / "abort").exists():
                names.append("index_stale")  # a killed broker's index may be behind
        if len(self.log.starts) > 2:
            names += ["segment_gone", "segment_short"]
        return names

    @contextmanager
    def damaged(self, fault: str) -> Iterator[Expected]:
        """Apply one fault; leaving undoes it."""
        act: Callable[[], Expected] = getattr(self, f"_{fault}")
        try:
            yield act()
        finally:
            for path, data in self._before.items():
                if data is None:
                    path.unlink(missing_ok=True)
                else:
                    path.write_bytes(data)
            self._before.clear()

    # --- the log ---

    def _keep(self, path: Path) -> Path:
        if path not in self._before:
            self._before[path] = path.read_bytes()
        return path

    def _write(self, offset: int, data: bytes) -> None:
        self._keep(self.log.path(offset))
        self.log.write(offset, data)

    def _place(self, count: int = 1) -> int:
        """The number of a record that has `count` - 1 followers in its segment."""
        size = self.log.segment_bytes
        while True:
            at = self.rng.randrange(len(self.places) - count + 1)
            if self.places[at].offset // size == self.places[at + count - 1].offset // size:
                return at

    def _crc(self) -> str:
        return "CRC_SLAVE" if self.side == "slave" else "CRC_MASTER"

    def _bit_flip(self) -> Expected:
        place = self.places[self._place()]
        at = self.rng.randrange(place.size)
        byte = self.log.read(place.offset + at, place.offset + at + 1)[0]
        self._write(place.offset + at, bytes([byte ^ 1 << self.rng.randrange(8)]))
        return self._named("bit_flip", place, at, self._changed(place, at, byte))

    def _changed(self, place: Place, at: int, byte: int) -> int:
        return self.log.read(place.offset + at, place.offset + at + 1)[0] ^ byte

    def _named(self, fault: str, place: Place, at: int, bits: int) -> Expected:
        ranges = ((place.offset, place.end),)
        return Expected(fault, (self._zone(place, at, bits),), ranges)

    def _zone(self, place: Place, at: int, bits: int) -> str:
        """The class of damage at one byte of a record."""
        body_start, body_end = place.body[0] - place.offset, place.body[1] - place.offset
        properties = place.size - len(place.head.properties)
        topic = properties - 2 - len(place.head.topic)
        if at < 8 or body_start - 4 <= at < body_start or body_end <= at < topic:
            return "FRAMING"
        if at < 12:
            return self._crc() if body_end > body_start else "CONTENT_DIFF"
        if at == 39 and bits & 0x30:
            return "FRAMING"  # hosts get another length
        if at < body_start:
            return "HEADER_DIFF"
        if at < body_end:
            return self._crc()
        if topic <= at < properties - 2:
            return "TOPIC_DIFF"
        return "PROPS_DIFF" if at >= properties else "FRAMING"

    def _header_field(self) -> Expected:
        place = self.places[self._place()]
        at = self.rng.choice((3, 6, 9, 13, 18, 25, 33, 37, 45, 50))
        byte = self.log.read(place.offset + at, place.offset + at + 1)[0]
        self._write(place.offset + at, bytes([byte ^ 0x41]))
        return self._named("header_field", place, at, 0x41)

    def _overwritten(self, fault: str, start: int, end: int, zero: bool) -> Expected:
        """What random or zero bytes in [start, end) make of the records there."""
        touched = [p for p in self.places if p.end > start and p.offset < end]
        inside = [p for p in touched if p.body[0] <= start and end <= p.body[1]]
        ranges = ((touched[0].offset, touched[-1].end),)
        if inside:
            return Expected(fault, (self._crc(),), ranges)
        if zero and end - start >= 700:
            return Expected(fault, ("HOLE",), ranges)
        lost = len(touched)
        if zero:
            return Expected(fault, ("HOLE", "FRAMING" if lost == 1 else "GARBAGE"), ranges)
        return Expected(fault, ("FRAMING" if lost == 1 else "GARBAGE",), ranges)

    def _span(self, sizes: tuple[int, ...]) -> tuple[int, int]:
        """A range that begins in a record and ends before the written part of the segment does; what it
        leaves of the records it touches is never readable by chance."""
        while True:
            place = self.places[self._place()]
            start = place.offset + self.rng.randrange(place.size)
            segment = place.offset // self.log.segment_bytes
            last = max(p.end for p in self.places if p.offset // self.log.segment_bytes == segment)
            end = min(last, start + self.rng.choice(sizes))
            touched = [p for p in self.places if p.end > start and p.offset < end]
            first, final = touched[0], touched[-1]
            inside = first.body[0] <= start and end <= first.body[1]
            properties = [p.end - len(p.head.properties) - 3 for p in (first, final)]
            # both ends inside what makes a record readable, or all of it inside one body
            if end - start >= 48 and (
                inside or (start < properties[0] and end > final.offset + 12 and first is not final)
            ):
                return start, end

    def _zero_range(self) -> Expected:
        start, end = self._span((512, 4096, 9000))
        before = self.log.read(start, end)
        if before.count(0) * 3 > len(before):
            return self._bit_flip()
        self._write(start, bytes(end - start))
        return self._overwritten("zero_range", start, end, True)

    def _torn_range(self) -> Expected:
        start, end = self._span((256, 512, 4096))
        self._write(start, self.rng.randbytes(end - start))
        return self._overwritten("torn_range", start, end, False)

    def _swap_records(self) -> Expected:
        at = self._place(2)
        first, second = self.places[at : at + 2]
        a = bytearray(self.log.read(first.offset, first.end))
        b = bytearray(self.log.read(second.offset, second.end))
        if self.rng.random() < 0.5:  # as a wrong writer would, or bytes as they were
            b[28:36] = struct.pack(">q", first.offset)
            a[28:36] = struct.pack(">q", first.offset + len(b))
        self._write(first.offset, bytes(b + a))
        return Expected("swap_records", ("ORDER",), ((first.offset, second.end),))

    def _swap_ranges(self) -> Expected:
        big = [p for p in self.places if p.body[1] - p.body[0] >= 40]
        if len(big) < 2:
            return self._bit_flip()
        first, second = self.rng.sample(big, 2)
        size = min(first.body[1] - first.body[0], second.body[1] - second.body[0]) - 8
        a = self.log.read(first.body[0] + 4, first.body[0] + 4 + size)
        b = self.log.read(second.body[0] + 4, second.body[0] + 4 + size)
        if a == b:
            return self._bit_flip()
        self._write(first.body[0] + 4, b)
        self._write(second.body[0] + 4, a)
        near = abs(self.places.index(first) - self.places.index(second)) == 1
        ranges = sorted([(first.offset, first.end), (second.offset, second.end)])
        if near and ranges[0][1] == ranges[1][0]:
            ranges = [(ranges[0][0], ranges[1][1])]
        return Expected("swap_ranges", (self._crc(),), tuple(ranges))

    def _rewrite(self) -> Expected:
        """A body exchanged for another one, with its checksum."""
        place = self.places[self._place()]
        size = place.body[1] - place.body[0]
        if size < 2:
            return self._bit_flip()
        body = self.rng.randbytes(size)
        self._write(place.body[0], body)
        self._write(place.offset + 8, struct.pack(">I", zlib.crc32(body) & 0x7FFFFFFF))
        return Expected("rewrite", ("CONTENT_DIFF",), ((place.offset, place.end),))

    def _tail(self) -> Expected:
        """From one record of the last segment on, another history of the same length."""
        size = self.log.segment_bytes
        last = self.places[-1].offset // size
        mine = [p for p in self.places if p.offset // size == last]
        if len(mine) < 4:
            return self._bit_flip()
        first = self.rng.randrange(1, len(mine) - 2)
        start, end = mine[first].offset, mine[-1].end
        at, records = start, []
        while end - at >= 400:
            room = end - at
            record = self._foreign(at, 200 if room >= 800 else 0)
            records.append(record)
            at += len(record)
        fill = self._foreign(at, 0)
        if end - at >= len(fill):
            records.append(self._foreign(at, end - at - len(fill)))
        else:  # too short for one more: the last one takes the rest
            rest = end - at
            at -= len(records[-1])
            records[-1] = self._foreign(at, len(records[-1]) + rest - len(fill))
        self._write(start, b"".join(records))
        return Expected("tail", ("FORK",), ((start, end),))

    def _foreign(self, offset: int, body: int) -> bytes:
        draft = Draft("Elsewhere", 0, self.rng.randbytes(body), b"UNIQ_KEY\x01other\x02")
        return encode(draft, 7, offset, 1_800_000_000_000)

    def _segment_gone(self) -> Expected:
        start = self.rng.choice(self.log.starts[1:-1])
        self._keep(self.log.path(start)).unlink()
        end = start + self.log.segment_bytes
        return Expected("segment_gone", ("MISSING_SEGMENT",), ((start, end),))

    def _segment_short(self) -> Expected:
        size = self.log.segment_bytes
        start = self.rng.choice(self.log.starts[1:-1])
        mine = [p for p in self.places if p.offset // size * size == start]
        if not mine:
            return self._bit_flip()
        cut = self.rng.choice(mine)
        at = cut.offset + cut.size // 2
        with self._keep(self.log.path(start)).open("r+b") as file:
            file.truncate(at - start)
        return Expected("segment_short", ("SHORT_FILE",), ((cut.offset, mine[-1].end),))

    # --- derived files ---

    def _queue_files(self) -> list[tuple[Path, int]]:
        """(file, written entries) of queues with at least three live entries in it."""
        found = []
        for file in sorted((self.root / "consumequeue").glob("*/*/*")):
            data = file.read_bytes()
            entries = [data[at : at + ENTRY] for at in range(0, len(data), ENTRY)]
            count = next((n for n, e in enumerate(entries) if e[8:12] == bytes(4)), len(entries))
            blank = sum(entry[8:12] == b"\x7f\xff\xff\xff" for entry in entries)
            if count >= 3 and not blank and "SCHEDULE" not in str(file):
                found.append((file, count))
        return found

    def _entries(self) -> tuple[Path, bytearray, int]:
        file, count = self.rng.choice(self._queue_files())
        return self._keep(file), bytearray(file.read_bytes()), count

    def _entry_zero(self) -> Expected:
        file, data, count = self._entries()
        at = self.rng.randrange(count - 1) * ENTRY
        data[at : at + ENTRY] = bytes(ENTRY)
        file.write_bytes(data)
        return Expected("entry_zero", checks=("cq_missing",))

    def _entry_other(self) -> Expected:
        file, data, count = self._entries()
        at = self.rng.randrange(count) * ENTRY
        data[at + 7 - self.rng.randrange(2)] ^= 1 << self.rng.randrange(8)
        file.write_bytes(data)
        return Expected("entry_other", checks=("cq_wrong_record",))

    def _entry_tags(self) -> Expected:
        file, data, count = self._entries()
        at = self.rng.randrange(count) * ENTRY
        data[at + 12 + self.rng.randrange(4, 8)] ^= 1 << self.rng.randrange(8)
        file.write_bytes(data)
        return Expected("entry_tags", checks=("cq_tags_code",))

    def _entry_drop(self) -> Expected:
        file, data, count = self._entries()
        at = self.rng.randrange(count - 1) * ENTRY
        end = count * ENTRY
        data[at:end] = data[at + ENTRY : end] + bytes(ENTRY)
        file.write_bytes(data)
        return Expected("entry_drop", checks=("cq_wrong_record",))

    def _entry_repeat(self) -> Expected:
        file, data, count = self._entries()
        at = self.rng.randrange(count - 1) * ENTRY
        data[at + ENTRY : at + 2 * ENTRY] = data[at : at + ENTRY]
        file.write_bytes(data)
        return Expected("entry_repeat", checks=("cq_wrong_record",))

    def _index_files(self) -> list[Path]:
        """Index files with at least two entries."""
        files = sorted((self.root / "index").glob("*"))
        return [f for f in files if struct.unpack(">i", f.read_bytes()[36:40])[0] > 3]

    def _index(self) -> tuple[Path, bytearray, int, int]:
        file = self.rng.choice(self._index_files())
        data = bytearray(self._keep(file).read_bytes())
        return file, data, struct.unpack_from(">i", data, 36)[0], 40 + 4 * self.index_slots

    def _index_stale(self) -> Expected:
        """An index as it was some entries ago."""
        file, data, following, entries_at = self._index()
        back = self.rng.randrange(1, following - 1)
        for number in range(following - 1, following - 1 - back, -1):
            at = entries_at + ENTRY * number
            hashed, _, _, older = struct.unpack_from(">iqii", data, at)
            struct.pack_into(">i", data, 40 + 4 * (hashed % self.index_slots), older)
            data[at : at + ENTRY] = bytes(ENTRY)
        last = struct.unpack_from(">q", data, entries_at + ENTRY * (following - 1 - back) + 4)[0]
        struct.pack_into(">q", data, 24, last)
        struct.pack_into(">i", data, 36, following - back)
        used = min(struct.unpack_from(">i", data, 32)[0], following - back - 1)
        struct.pack_into(">i", data, 32, used)
        file.write_bytes(data)
        return Expected("index_stale", checks=("index_behind", "index_missing"))

    def _index_entry(self) -> Expected:
        file, data, following, entries_at = self._index()
        at = entries_at + ENTRY * self.rng.randrange(1, following)
        data[at + self.rng.choice((2, 3, 10, 11))] ^= 1 << self.rng.randrange(7)
        file.write_bytes(data)
        return Expected(
            "index_entry", checks=("index_missing", "index_wrong", "index_broken", "index_dangling")
        )

    def _index_slot(self) -> Expected:
        file, data, following, entries_at = self._index()
        number = self.rng.randrange(1, following)
        hashed = struct.unpack_from(">i", data, entries_at + ENTRY * number)[0]
        struct.pack_into(">i", data, 40 + 4 * (hashed % self.index_slots), 0)
        file.write_bytes(data)
        return Expected("index_slot", checks=("index_broken",))

    def _checkpoint(self) -> Expected:
        path = self._keep(self.root / "checkpoint")
        data = bytearray(path.read_bytes())
        kind = self.rng.randrange(3)
        if kind == 0 or (self.root / "abort").exists():
            struct.pack_into(">q", data, self.rng.choice((0, 8)), 1_900_000_000_000)
        elif kind == 1:
            data = bytearray(4096)
        else:
            struct.pack_into(">q", data, 32, 1 << 40)
        path.write_bytes(data)
        return Expected("checkpoint", checks=("checkpoint",))


def judge(expected: Expected, outcome: Outcome, before: Outcome) -> tuple[bool, bool, list[str]]:
    """(found, named right, false alarms) of one fault."""
    known = {(row.check, row.replica, row.queue_offset, row.topic) for row in before.findings}
    fresh = [
        row
        for row in outcome.findings
        if row.severity != "info"
        and (row.check, row.replica, row.queue_offset, row.topic) not in known
    ]
    if expected.checks:
        false = [f"{row.kind} {row.start}" for row in outcome.divergences if row.severity != "info"]
        named = any(row.check in expected.checks for row in fresh)
        return bool(fresh), named, false
    rows = [row for row in outcome.divergences if row.kind != "LAG" or row.severity != "info"]
    false = [
        f"{row.kind} {row.start}-{row.end}"
        for row in rows
        if not any(row.start < end and start < row.end for start, end in expected.ranges)
    ]
    false += [f"{row.check} {row.detail}" for row in fresh]
    found = all(
        any(row.start < end and start < row.end for row in rows) for start, end in expected.ranges
    )
    named = found and all(row.kind in expected.kinds for row in rows)
    return found, named, false
