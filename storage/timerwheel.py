"""The timer wheel: which messages are due in which second, as the ends of chains in the timer log.

`timerwheel` has 1,209,600 slots of 32 bytes (RocketMQ's TimerWheel and Slot), big-endian:

    time in units of the precision, long | position of the first unit long | of the last long | messages int | 0 int

The slot of a time is the one with the number (time / precision) % 1,209,600; one that names another time is empty, so
nothing is erased. `config/timercheck` has 4,096 bytes: until when was delivered (ms) long, end of the flushed timer log
long, next queue offset to enqueue long, the master's long, data version (state, ms, counter) 3 longs. What is ours in
it follows at byte 64: a mark, the precision, and the same 56 bytes again, by which our own are told from RocketMQ's;
then, after a clean stop alone, a checksum over timer log and wheel.
Both files can be derived from the message log.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tandemmq.storage.directories import fsync_directory, make_directory
from tandemmq.storage.errors import CorruptFile
from tandemmq.storage.timerlog import NO_UNIT

SLOT: Final = struct.Struct(">qqqii")
SLOT_BYTES: Final = SLOT.size  # 32
SLOTS: Final = 7 * 86_400 * 2
WHEEL_BYTES: Final = SLOTS * SLOT_BYTES
PAGE_BYTES: Final = 4096
CHECK_BYTES: Final = 4096
_CHECK: Final = struct.Struct(">7q")
_OURS_AT: Final = 64
_OURS: Final = struct.Struct(">4si")
_OURS_MARK: Final = b"TNDM"
_CHECKSUM: Final = struct.Struct(">I")
_CHECKSUM_AT: Final = _OURS_AT + _OURS.size + _CHECK.size


class Slot(NamedTuple):
    """The messages of one moment: a chain of units from last to first. num does not shrink when they are delivered."""

    first: int = NO_UNIT
    last: int = NO_UNIT
    num: int = 0


EMPTY: Final = Slot()


class TimerWheel:
    """The slots, in memory; changed pages are written to the file now and then.

    A file that a crash left behind is no longer the memory's: whoever opens it derives the slots from the timer log.
    """

    def __init__(self, path: Path, precision_ms: int) -> None:
        self.path = path
        self.precision_ms = precision_ms
        self._slots = mmap.mmap(-1, WHEEL_BYTES)  # pages that nobody writes take no memory
        self._dirty: set[int] = set()

    def load(self) -> None:
        """Read the file. Raises CorruptFile for one of another size, OSError; FileNotFoundError when there is none."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            if size != WHEEL_BYTES:
                raise CorruptFile(f"{self.path} has {size} bytes, a timer wheel has {WHEEL_BYTES}")
            end = 0
            while end < WHEEL_BYTES:
                try:
                    start = os.lseek(fd, end, os.SEEK_DATA)
                except OSError:  # only a hole follows
                    break
                end = os.lseek(fd, start, os.SEEK_HOLE)
                data = os.pread(fd, end - start, start)
                self._slots[start : start + len(data)] = data
        finally:
            os.close(fd)

    def clear(self) -> None:
        """Forget every slot."""
        self._slots.close()
        self._slots = mmap.mmap(-1, WHEEL_BYTES)
        self._dirty = set(range(WHEEL_BYTES // PAGE_BYTES))

    def _at(self, slot_ms: int) -> int:
        return slot_ms // self.precision_ms % SLOTS * SLOT_BYTES

    def slot(self, slot_ms: int) -> Slot:
        """The slot of a time, a multiple of the precision."""
        ticks, first, last, num, _ = SLOT.unpack_from(self._slots, self._at(slot_ms))
        return Slot(first, last, num) if ticks == slot_ms // self.precision_ms else EMPTY

    def held_ms(self, slot_ms: int) -> int:
        """The time that has this time's place now; 0: none."""
        ticks: int = SLOT.unpack_from(self._slots, self._at(slot_ms))[0]
        return ticks * self.precision_ms

    def put(self, slot_ms: int, slot: Slot) -> None:
        at = self._at(slot_ms)
        SLOT.pack_into(self._slots, at, slot_ms // self.precision_ms, *slot, 0)
        self._dirty.add(at // PAGE_BYTES)

    def pending(self, from_ms: int) -> Iterator[tuple[int, Slot]]:
        """Every slot that holds anything due at or after a time, in no order."""
        low = from_ms // self.precision_ms
        for page in range(0, WHEEL_BYTES, PAGE_BYTES):
            data = self._slots[page : page + PAGE_BYTES]
            if data.count(0) == PAGE_BYTES:
                continue
            for ticks, first, last, num, _ in SLOT.iter_unpack(data):
                if ticks >= low and ticks and last != NO_UNIT:
                    yield ticks * self.precision_ms, Slot(first, last, num)

    def to_write(self) -> list[tuple[int, bytes]]:
        """(position, bytes) of what changed since the last call: for write_wheel()."""
        found = [
            (page * PAGE_BYTES, self._slots[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])
            for page in sorted(self._dirty)
        ]
        self._dirty.clear()
        return found

    def dirty_again(self, pages: Sequence[tuple[int, bytes]]) -> None:
        """These could not be written."""
        self._dirty.update(position // PAGE_BYTES for position, _ in pages)

    def checksum(self, before: int) -> int:
        """CRC-32 of all slots, going on from another. Some 30 ms."""
        return zlib.crc32(self._slots, before)

    def close(self) -> None:
        self._slots.close()


def write_wheel(path: Path, pages: Sequence[tuple[int, bytes]]) -> None:
    """Write changed pages, durably. [thread] Raises OSError."""
    make_directory(path.parent)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        empty = os.fstat(fd).st_size != WHEEL_BYTES
        if empty:
            os.ftruncate(fd, WHEEL_BYTES)
        for position, data in pages:
            if empty and data.count(0) == len(data):
                continue  # stays a hole
            os.pwrite(fd, data, position)
        os.fdatasync(fd)
    finally:
        os.close(fd)
    if empty:
        fsync_directory(path.parent)


class TimerCheckpoint(NamedTuple):
    """What timercheck says. ours: this broker wrote it, with precision_ms, and RocketMQ did not since.

    checksum   of timer log and wheel as a clean stop left them; 0: not known
    """

    read_ms: int = 0  # every message of an earlier slot was delivered
    timer_log_end: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    version_ms: int = 0
    version_counter: int = 0
    ours: bool = False
    precision_ms: int = 0
    checksum: int = 0

    def body(self) -> bytes:
        """The 56 bytes that RocketMQ knows, on the wire and in the file."""
        return _CHECK.pack(*self[:7])

    def encode(self) -> bytes:
        """The file."""
        known = self.body()
        mine = _OURS.pack(_OURS_MARK, self.precision_ms) + known + _CHECKSUM.pack(self.checksum)
        return (known.ljust(_OURS_AT, b"\0") + mine).ljust(CHECK_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> TimerCheckpoint:
        """Of a file or an answer; older brokers write 32 bytes. What is too short reads as zeros."""
        if len(data) < 32:
            return cls()
        found = cls(*_CHECK.unpack_from(data.ljust(_CHECK.size, b"\0")))
        if min(found[:4]) < 0:
            return cls()
        if len(data) < _OURS_AT + _OURS.size + _CHECK.size:
            return found
        mark, precision_ms = _OURS.unpack_from(data, _OURS_AT)
        copy = data[_OURS_AT + _OURS.size :][: _CHECK.size]
        if mark == _OURS_MARK and copy == data[: _CHECK.size]:
            (checksum,) = _CHECKSUM.unpack_from(data.ljust(CHECK_BYTES, b"\0"), _CHECKSUM_AT)
            return found._replace(ours=True, precision_ms=precision_ms, checksum=checksum)
        return found


def load_timer_checkpoint(path: Path) -> TimerCheckpoint:
    """A missing file reads as zeros. Raises OSError."""
    try:
        return TimerCheckpoint.decode(path.read_bytes())
    except FileNotFoundError:
        return TimerCheckpoint()


def save_timer_checkpoint(path: Path, checkpoint: TimerCheckpoint) -> None:
    """In place: RocketMQ maps the file. [thread] Raises OSError."""
    make_directory(path.parent)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.pwrite(fd, checkpoint.encode(), 0)
        os.fdatasync(fd)
    finally:
        os.close(fd)
