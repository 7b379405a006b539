"""The timer log: one unit of 52 bytes per timed message, chained by the second in which it is due.

A unit, big-endian (RocketMQ's TimerLog and TimerMessageStore):

    size int (52) | position of the slot's unit before it long, -1: none | magic int | write ms long |
    delay ms int: write ms + delay ms is the slot's time | log offset of the message long | its size int |
    hash of the real topic int | reserved long (0)

Files have one size and are named by the offset of their first byte. Where fewer than 52 + 16 bytes are left, a blank
follows (remaining bytes int, 0 long, magic int) and the next file goes on; behind the end everything is zero.
All of it can be derived from the message log.
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
from tandemmq.storage.segments import NAME_DIGITS, segment_name

UNIT: Final = struct.Struct(">iqiqiqiiq")
UNIT_BYTES: Final = UNIT.size  # 52
BLANK: Final = struct.Struct(">iqi")
BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)
NO_UNIT: Final = -1  # in the place of a position

TIMER_DEFAULT: Final = 1
TIMER_ROLL: Final = 2  # the message waits longer than this slot: it is put back then
TIMER_DELETE: Final = 4  # no message of its own: it deletes another of the slot
TIMER_BITS: Final = 0xF  # of them all


class TimerUnit(NamedTuple):
    """One unit: a message waits in a slot."""

    previous: int  # position of the slot's unit before, or NO_UNIT
    magic: int
    write_ms: int
    delay_ms: int
    log_offset: int
    size: int
    topic_hash: int

    @property
    def slot_ms(self) -> int:
        """The time of its slot."""
        return self.write_ms + self.delay_ms

    @property
    def rolls(self) -> bool:
        """Whether the message is put back when its slot comes."""
        return bool(self.magic & TIMER_ROLL)

    @property
    def deletes(self) -> bool:
        """Whether it is no message but deletes one, at the latest now."""
        return self.magic & (TIMER_DELETE | TIMER_ROLL) == TIMER_DELETE

    def encode(self) -> bytes:
        return UNIT.pack(
            UNIT_BYTES, self.previous, self.magic, self.write_ms, self.delay_ms,
            self.log_offset, self.size, self.topic_hash, 0,
        )  # fmt: skip


def decode_unit(view: mmap.mmap | bytes, position: int) -> TimerUnit | None:
    """The unit at a position; None where none is."""
    size, previous, magic, write_ms, delay_ms, log_offset, record_size, topic_hash, _ = (
        UNIT.unpack_from(view, position)
    )
    if size != UNIT_BYTES or magic & ~TIMER_BITS or not magic:
        return None
    return TimerUnit(previous, magic, write_ms, delay_ms, log_offset, record_size, topic_hash)


class _File:
    """One file, open for reading by its mapping and for writing by its descriptor: a full disk is then an error and
    no signal."""

    def __init__(self, path: Path, start: int, file_bytes: int, *, create: bool) -> None:
        self.path = path
        self.start = start
        self.fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
        try:
            if create:
                os.ftruncate(self.fd, file_bytes)
            self.view = mmap.mmap(self.fd, file_bytes, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(self.fd)
            raise

    def close(self) -> None:
        self.view.close()
        os.close(self.fd)


class TimerLog:
    """The files of one timer log. Everything runs on one thread, sync() beside it.

    file_bytes  length of each file; a store keeps the one it was made with
    """

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        #: where the last unit of a full file starts
        self.last_in_file = (file_bytes - BLANK.size) // UNIT_BYTES * UNIT_BYTES - UNIT_BYTES
        if self.last_in_file < 0:
            raise ValueError(f"mappedFileSizeTimerLog must hold a unit, got {file_bytes}")
        self._files: list[_File] = []
        self._dirty: set[_File] = set()
        self.end = 0

    @property
    def start(self) -> int:
        return self._files[0].start if self._files else self.end

    def load(self) -> None:
        """Open the files and find the end. Raises CorruptFile for what is no timer log, OSError."""
        assert not self._files, "load() is the first call"
        if not self.directory.is_dir():
            return
        for path in sorted(each for each in self.directory.iterdir() if each.is_file()):
            start = int(path.name) if path.name.isdigit() else -1
            expected = self._files[-1].start + self.file_bytes if self._files else start
            if len(path.name) != NAME_DIGITS or start % self.file_bytes or start != expected:
                raise CorruptFile(f"{path} is not the next file of a timer log")
            if path.stat().st_size != self.file_bytes:
                raise CorruptFile(
                    f"{path} has not the {self.file_bytes} bytes of mappedFileSizeTimerLog"
                )
            self._files.append(_File(path, start, self.file_bytes, create=False))
        while self._files and decode_unit(self._files[-1].view, 0) is None and len(self._files) > 1:
            self._forget_last()
        if self._files:
            self.end = self._files[-1].start + self._units_in(self._files[-1]) * UNIT_BYTES

    def _units_in(self, file: _File) -> int:
        low, high = 0, self.last_in_file // UNIT_BYTES + 1
        while low < high:  # behind the end all is zero
            middle = (low + high) // 2
            if decode_unit(file.view, middle * UNIT_BYTES) is None:
                high = middle
            else:
                low = middle + 1
        return low

    def positions(self, count: int) -> list[int]:
        """Where the next units would go."""
        found, position = [], self.end
        for _ in range(count):
            if position % self.file_bytes > self.last_in_file:
                position += self.file_bytes - position % self.file_bytes
            found.append(position)
            position += UNIT_BYTES
        return found

    def append(self, units: Sequence[TimerUnit]) -> None:
        """Write units where positions() said. Raises OSError; nothing of them counts then."""
        run: list[bytes] = []
        run_start = self.end
        for unit, position in zip(units, self.positions(len(units)), strict=True):
            if position != run_start + len(run) * UNIT_BYTES:
                self._write(run_start, b"".join(run))
                self._end_file(run_start + len(run) * UNIT_BYTES)
                run, run_start = [], position
            run.append(unit.encode())
        self._write(run_start, b"".join(run))
        self.end = run_start + len(run) * UNIT_BYTES

    def _end_file(self, position: int) -> None:
        room = self.file_bytes - position % self.file_bytes
        if room < self.file_bytes:
            self._write(position, BLANK.pack(room, 0, BLANK_MAGIC))

    def _write(self, position: int, data: bytes) -> None:
        if not data:
            return
        file = self._file(position)
        at = position - file.start
        written = os.pwrite(file.fd, data, at)
        if written != len(data):
            raise OSError(f"{file.path} took {written} of {len(data)} bytes")
        self._dirty.add(file)

    def _file(self, position: int) -> _File:
        start = position - position % self.file_bytes
        if not self._files or self._files[-1].start < start:
            make_directory(self.directory)
            path = self.directory / segment_name(start)
            self._files.append(_File(path, start, self.file_bytes, create=True))
        found = self._files[(start - self._files[0].start) // self.file_bytes]
        assert found.start == start
        return found

    def unit(self, position: int) -> TimerUnit | None:
        """The unit at a position; None where none is, or none any more."""
        if not self.start <= position < self.end:
            return None
        file = self._files[(position - self._files[0].start) // self.file_bytes]
        at = position - file.start
        return decode_unit(file.view, at) if at <= self.last_in_file else None

    def fields(self) -> Iterator[tuple[int, Iterator[tuple[int, ...]]]]:
        """Per file: position of its first unit, and the fields of each unit as UNIT has them, checked by nobody."""
        for file in self._files:
            count = min(self.last_in_file // UNIT_BYTES + 1, (self.end - file.start) // UNIT_BYTES)
            yield file.start, UNIT.iter_unpack(file.view[: count * UNIT_BYTES])

    def checksum(self) -> int:
        """CRC-32 of everything up to the end. 50 MB take some 30 ms."""
        found = 0
        for file in self._files:
            with memoryview(file.view) as view:
                found = zlib.crc32(view[: min(self.end - file.start, self.file_bytes)], found)
        return found

    def before(self, position: int) -> int:
        """Position of the unit in front of a position; NO_UNIT: there is none."""
        at = position % self.file_bytes
        found = position - UNIT_BYTES if at else position - self.file_bytes + self.last_in_file
        return found if found >= self.start and self._files else NO_UNIT

    def truncate(self, position: int) -> None:
        """Cut everything from a position on. Raises OSError."""
        if position >= self.end:
            return
        while self._files and self._files[-1].start >= position:
            self._forget_last()
        if self._files:
            last = self._files[-1]
            if position - last.start < self.file_bytes:
                os.ftruncate(
                    last.fd, position - last.start
                )  # and back: what is behind is zero then
                os.ftruncate(last.fd, self.file_bytes)
                self._dirty.add(last)
        self.end = position if self._files else 0

    def clear(self) -> None:
        """Remove every file, also what load() would not take. Raises OSError."""
        while self._files:
            self._forget_last()
        if self.directory.is_dir():
            for path in self.directory.iterdir():
                path.unlink()
        self.end = 0

    def drop_before(self, log_start: int) -> int:
        """Delete files of which every message has left the message log; how many. Raises OSError."""
        dropped = 0
        while len(self._files) > 1:
            unit = decode_unit(self._files[0].view, self.last_in_file)
            if unit is None or unit.log_offset >= log_start:
                break
            file = self._files.pop(0)
            self._dirty.discard(file)
            file.close()
            file.path.unlink()
            dropped += 1
        return dropped

    def _forget_last(self) -> None:
        file = self._files.pop()
        self._dirty.discard(file)
        file.close()
        file.path.unlink()

    def to_sync(self) -> list[tuple[int, Path]]:
        """Descriptors (the caller's, to be closed by sync_files) of what was written since the last call."""
        found = [(os.dup(file.fd), file.path.parent) for file in self._dirty]
        self._dirty.clear()
        return found

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()
        self._dirty.clear()


def sync_files(files: Sequence[tuple[int, Path]]) -> None:
    """Put files and their names on the disk, and let go of them. [thread] Raises OSError."""
    try:
        for fd, _ in files:
            os.fdatasync(fd)
        for directory in {directory for _, directory in files}:
            fsync_directory(directory)
    finally:
        for fd, _ in files:
            os.close(fd)
