"""One store's derived files as an audit reads them: consume queues, index files, small files.

Unlike the store's own readers nothing here refuses a damaged file: what is there is read, what is missing
is missing. Files are read, not mapped.
"""

from __future__ import annotations

import errno
import os
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from storage.config import QUEUE_ENTRY_BYTES
from storage.derivation import INDEX_ENTRY_BYTES, INDEX_HEADER, INDEX_HEADER_BYTES, SLOT_BYTES

INDEX_BYTES_DEFAULT: Final = 420_000_040
INDEX_SLOTS_DEFAULT: Final = 5_000_000
WINDOW_ENTRIES: Final = 1638  # 32 KiB of each queue that is being followed
BLANK_SIZE: Final = 0x7FFFFFFF
_STEP_BYTES: Final = 128 << 10
_ZEROS: Final = bytes(_STEP_BYTES)


class Entry(NamedTuple):
    """One entry of a consume queue."""

    physical_offset: int
    size: int
    tags_code: int


@dataclass(slots=True)
class Queue:
    """The files of one consume queue."""

    topic: bytes
    queue_id: int
    directory: Path
    files: list[tuple[int, int]] = field(default_factory=list)  # (start byte, size), by start
    _max: int = -1

    @property
    def min_offset(self) -> int:
        """The first queue offset that the files have room for."""
        return self.files[0][0] // QUEUE_ENTRY_BYTES if self.files else 0

    @property
    def max_offset(self) -> int:
        """Behind the last entry that is not all zeros. Raises OSError."""
        if self._max < 0:
            self._max = self._find_max()
        return self._max

    def _find_max(self) -> int:
        for start, size in reversed(self.files):
            used = _used_bytes(self._path(start), size)
            if used:
                return (start + used + QUEUE_ENTRY_BYTES - 1) // QUEUE_ENTRY_BYTES
        return self.min_offset

    def _path(self, start: int) -> Path:
        return self.directory / f"{start:020d}"

    def entries(self, queue_offset: int, count: int) -> bytes:
        """Raw entries from a queue offset on, at most to the end of that file. Raises OSError."""
        at = queue_offset * QUEUE_ENTRY_BYTES
        for start, size in self.files:
            if start <= at < start + size:
                descriptor = os.open(f"{self.directory}/{start:020d}", os.O_RDONLY)
                try:
                    wanted = min(count * QUEUE_ENTRY_BYTES, start + size - at)
                    data = os.pread(descriptor, wanted, at - start)
                finally:
                    os.close(descriptor)
                return data[: len(data) - len(data) % QUEUE_ENTRY_BYTES]
        return b""

    def entry(self, queue_offset: int) -> Entry | None:
        """None where there is no file. Raises OSError."""
        data = self.entries(queue_offset, 1)
        return parse_entry(data, 0) if data else None

    def walk(self, start: int, end: int) -> Iterator[tuple[int, Entry]]:
        """(queue offset, entry) of [start, end), blanks and places without a file left out."""
        at = start
        while at < end:
            data = self.entries(at, min(end - at, 50_000))
            if not data:
                following = [first for first, _ in self.files if first > at * QUEUE_ENTRY_BYTES]
                if not following:
                    return
                at = following[0] // QUEUE_ENTRY_BYTES
                continue
            for position in range(0, len(data), QUEUE_ENTRY_BYTES):
                entry = parse_entry(data, position)
                if entry.size not in (0, BLANK_SIZE):
                    yield at, entry
                at += 1


def parse_entry(data: bytes, position: int) -> Entry:
    """The entry at data[position:]."""
    return Entry(
        int.from_bytes(data[position : position + 8], "big", signed=True),
        int.from_bytes(data[position + 8 : position + 12], "big", signed=True),
        int.from_bytes(data[position + 12 : position + 20], "big", signed=True),
    )


class Queues:
    """All consume queues below a store's root."""

    def __init__(self, root: Path) -> None:
        self.by_name: dict[tuple[bytes, int], Queue] = {}
        self.strays: list[Path] = []
        directory = root / "consumequeue"
        if not directory.is_dir():
            return
        for topic in sorted(directory.iterdir()):
            for queue in sorted(topic.iterdir()) if topic.is_dir() else ():
                if queue.is_dir() and queue.name.isdigit():
                    self._add(topic.name, queue)

    def _add(self, topic: str, directory: Path) -> None:
        name = os.fsencode(topic), int(directory.name)
        queue = Queue(*name, directory)
        for file in directory.iterdir():
            size = file.stat().st_size
            if len(file.name) == 20 and file.name.isdigit():
                queue.files.append((int(file.name), size))
            else:
                self.strays.append(file)
        queue.files.sort()
        self.by_name[name] = queue

    def window(self, topic: bytes, queue_id: int, queue_offset: int) -> tuple[int, bytes]:
        """Entries around a queue offset, for the ledger: (first queue offset, raw entries)."""
        queue = self.by_name.get((topic, queue_id))
        if queue is None:
            return 0, b""
        return queue_offset, queue.entries(queue_offset, WINDOW_ENTRIES)

    def __iter__(self) -> Iterator[Queue]:
        return iter(self.by_name.values())


def _used_bytes(path: Path, size: int) -> int:
    """Up to where a file holds anything but zeros; holes are skipped. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        descriptor = file.fileno()
        runs = []
        at = 0
        while at < size:
            try:
                start = os.lseek(descriptor, at, os.SEEK_DATA)
                at = os.lseek(descriptor, start, os.SEEK_HOLE)
            except OSError as problem:
                if problem.errno != errno.ENXIO:
                    raise
                break
            runs.append((start, at))
        for start, end in reversed(runs):
            while end > start:
                first = max(start, end - _STEP_BYTES)
                data = os.pread(descriptor, end - first, first)
                if data != _ZEROS[: len(data)]:  # stripping long zeros byte by byte costs 6 s a GB
                    return first + len(data.rstrip(b"\0"))
                end = first
    return 0


# --- index ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class IndexEntries:
    """Every entry of a store's index files by rising physical offset, and what is wrong in the files."""

    physical: array[int] = field(default_factory=lambda: array("q"))
    hashes: array[int] = field(default_factory=lambda: array("i"))
    problems: list[tuple[str, str]] = field(default_factory=list)  # (file, what)
    unread: list[str] = field(default_factory=list)
    first: int = 0  # the log offsets that the files cover
    last: int = -1


def read_index(root: Path, slots: int = 0) -> IndexEntries:
    """Read all index files of a store; `slots` is maxHashSlotNum, 0 for the default size only.

    Raises OSError.
    """
    found = IndexEntries()
    directory = root / "index"
    files = sorted(directory.iterdir()) if directory.is_dir() else []
    for path in files:
        if path.name.isdigit():
            count = slots or (
                INDEX_SLOTS_DEFAULT if path.stat().st_size == INDEX_BYTES_DEFAULT else 0
            )
            if count:
                _read_index_file(path, count, found)
            else:
                found.unread.append(path.name)
    if found.physical:
        rising = sorted(zip(found.physical, found.hashes, strict=True))
        found.physical = array("q", [physical for physical, _ in rising])
        found.hashes = array("i", [hashed for _, hashed in rising])
    return found


def _read_index_file(path: Path, slots: int, found: IndexEntries) -> None:
    entries_at = INDEX_HEADER_BYTES + SLOT_BYTES * slots
    size = path.stat().st_size
    with open(path, "rb", buffering=0) as file:
        descriptor = file.fileno()
        head = os.pread(descriptor, INDEX_HEADER_BYTES, 0)
        if len(head) < INDEX_HEADER_BYTES or size < entries_at + INDEX_ENTRY_BYTES:
            found.problems.append((path.name, f"only {size} bytes long"))
            return
        begin_ms, end_ms, begin, end, used, following = INDEX_HEADER.unpack(head)
        count = max(1, following) - 1
        room = (size - entries_at) // INDEX_ENTRY_BYTES - 1
        if count > room or used > count or begin > end or begin_ms > end_ms:
            found.problems.append(
                (path.name, f"header: {count} entries, {used} slots, offsets {begin} to {end}")
            )
            count = min(count, room)
        raw = os.pread(descriptor, SLOT_BYTES * slots, INDEX_HEADER_BYTES)
        heads = array("i", raw)
        entries = _read_all(descriptor, INDEX_ENTRY_BYTES * count, entries_at + INDEX_ENTRY_BYTES)
    if sys.byteorder == "little":
        heads.byteswap()
    _check_chains(path.name, entries, heads, found)
    if count:
        if not found.physical:
            found.first = begin
        found.last = max(found.last, end)


def _read_all(descriptor: int, size: int, at: int) -> bytes:
    parts = []
    while size > 0:
        data = os.pread(descriptor, min(size, 8 << 20), at)
        if not data:
            break
        parts.append(data)
        at += len(data)
        size -= len(data)
    return b"".join(parts)


def _check_chains(name: str, entries: bytes, heads: array[int], found: IndexEntries) -> None:
    """Take the entries; each must be the newest of its slot or be reached from a newer one."""
    slots = len(heads)
    newest: dict[int, int] = {}
    wrong = 0
    places = range(0, len(entries) - INDEX_ENTRY_BYTES + 1, INDEX_ENTRY_BYTES)
    for number, position in enumerate(places, start=1):
        hashed = int.from_bytes(entries[position : position + 4], "big", signed=True)
        physical = int.from_bytes(entries[position + 4 : position + 12], "big", signed=True)
        older = int.from_bytes(entries[position + 16 : position + 20], "big", signed=True)
        found.physical.append(physical)
        found.hashes.append(hashed)
        slot = hashed % slots
        wrong += hashed < 0 or older != newest.get(slot, 0)
        newest[slot] = number
    wrong += sum(heads[slot] != number for slot, number in newest.items())
    if wrong:
        found.problems.append((name, f"{wrong} entries cannot be reached through their slots"))
