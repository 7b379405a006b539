"""One store's derived files as an audit reads them: consume queues and index files.

Unlike the store's own readers nothing here refuses a damaged file: what is there is read, what is missing
is missing. Files are read, not mapped.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandemmq.replication.audit.files import StoreFiles
from tandemmq.storage import QUEUE_ENTRY_BYTES
from tandemmq.storage.derivation import (
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    SLOT_BYTES,
)

INDEX_BYTES_DEFAULT: Final = 420_000_040
INDEX_SLOTS_DEFAULT: Final = 5_000_000

WINDOW_ENTRIES: Final = 1638  # 32 KiB of each queue that is being followed
BLANK_SIZE: Final = 0x7FFFFFFF

#: log offset -> store time of the message there; None where that is not known
StoreMs = Callable[[int], int | None]


class Entry(NamedTuple):
    """One entry of a consume queue."""

    physical_offset: int
    size: int
    tags_code: int


@dataclass(slots=True)
class Queue:
    """The files of one consume queue. Everything raises what StoreFiles.read raises."""

    topic: bytes
    queue_id: int
    store: StoreFiles = field(repr=False)
    files: list[tuple[int, int]] = field(default_factory=list)  # (start byte, size), by start
    _max: int = -1

    @property
    def min_offset(self) -> int:
        """The first queue offset that the files have room for."""
        return self.files[0][0] // QUEUE_ENTRY_BYTES if self.files else 0

    @property
    def max_offset(self) -> int:
        """Behind the last entry that is not all zeros."""
        if self._max < 0:
            self._max = self._find_max()
        return self._max

    def _find_max(self) -> int:
        for start, size in reversed(self.files):
            used = self.store.used_bytes(self._path(start), size)
            if used:
                return (start + used + QUEUE_ENTRY_BYTES - 1) // QUEUE_ENTRY_BYTES
        return self.min_offset

    def _path(self, start: int) -> str:
        topic = self.topic.decode("utf-8", "surrogateescape")
        return f"consumequeue/{topic}/{self.queue_id}/{start:020d}"

    def entries(self, queue_offset: int, count: int) -> bytes:
        """Raw entries from a queue offset on, at most to the end of that file."""
        at = queue_offset * QUEUE_ENTRY_BYTES
        for start, size in self.files:
            if start <= at < start + size:
                wanted = min(count * QUEUE_ENTRY_BYTES, start + size - at)
                data = self.store.read(self._path(start), wanted, at - start)
                return data[: len(data) - len(data) % QUEUE_ENTRY_BYTES]
        return b""

    def entry(self, queue_offset: int) -> Entry | None:
        """None where there is no file."""
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
    """All consume queues of a store."""

    def __init__(self, store: StoreFiles, window_entries: int = WINDOW_ENTRIES) -> None:
        found, self.strays = store.queues()
        self.by_name: dict[tuple[bytes, int], Queue] = {
            (known.topic, known.queue_id): Queue(
                known.topic, known.queue_id, store, known.files, known.max_offset
            )
            for known in found
        }
        self.window_entries = window_entries

    def window(self, topic: bytes, queue_id: int, queue_offset: int) -> tuple[int, bytes]:
        """Entries around a queue offset, for the ledger: (first queue offset, raw entries)."""
        queue = self.by_name.get((topic, queue_id))
        if queue is None:
            return 0, b""
        return queue_offset, queue.entries(queue_offset, self.window_entries)

    def __iter__(self) -> Iterator[Queue]:
        return iter(self.by_name.values())


# --- index ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class IndexEntries:
    """Every entry of a store's index files by rising physical offset, and what is wrong in the files."""

    physical: array[int] = field(default_factory=lambda: array("q"))
    hashes: array[int] = field(default_factory=lambda: array("i"))
    problems: list[tuple[str, str]] = field(default_factory=list)  # (file, what)
    disagreeing: list[tuple[str, str, int]] = field(
        default_factory=list
    )  # (file, what, log offset): with the log there, if that is sound
    unread: list[str] = field(default_factory=list)
    first: int = 0  # the log offsets that the files cover
    last: int = -1


def read_index(
    store: StoreFiles,
    slots: int = 0,
    start: int = 0,
    end: int = 1 << 62,
    *,
    chained: bool = True,
    growing: bool = False,
    store_ms_at: StoreMs | None = None,
) -> IndexEntries:
    """Read the index files of a store that name places in [start, end) of its log.

    slots    maxHashSlotNum, 0 for files of the default size only
    chained  also check that every entry is reached through its slot
    growing  a broker puts entries while we read: slots of its newest file may be ahead of the header
    store_ms_at  what the log says of the messages that a header is about; None where headers may be behind: RocketMQ
                 writes times and places late, and a process that was killed not at all
    Raises what StoreFiles.read raises.
    """
    found = IndexEntries()
    files = store.indexes()
    covered = False
    for number, (name, size) in enumerate(files):
        count = slots or (INDEX_SLOTS_DEFAULT if size == INDEX_BYTES_DEFAULT else 0)
        if not count:
            found.unread.append(name)
            continue
        head = _read_head(store, name, size, count, found, growing)
        if head is None or not head.entries:
            continue
        if not covered:
            found.first, covered = head.begin, True
        found.last = max(found.last, head.end)
        if head.end < start or head.begin >= end:
            continue
        newest = growing and number == len(files) - 1
        slots_used = _read_entries(store, name, head, found, chained=chained, growing=newest)
        if chained and store_ms_at is not None:
            _check_head(name, head, slots_used, found, store_ms_at)
    if found.physical:
        rising = sorted(zip(found.physical, found.hashes, strict=True))
        found.physical = array("q", [physical for physical, _ in rising])
        found.hashes = array("i", [hashed for _, hashed in rising])
    return found


class _Head(NamedTuple):
    """What an index file says of itself."""

    slots: int
    entries: int
    begin: int
    end: int
    begin_ms: int
    end_ms: int
    used: int  # slots

    @property
    def entries_at(self) -> int:
        return INDEX_HEADER_BYTES + SLOT_BYTES * self.slots


def _read_head(
    store: StoreFiles, name: str, size: int, slots: int, found: IndexEntries, growing: bool
) -> _Head | None:
    entries_at = INDEX_HEADER_BYTES + SLOT_BYTES * slots
    data = store.read(f"index/{name}", INDEX_HEADER_BYTES, 0)
    if growing and not data:
        return None  # retention took it since it was listed
    if len(data) < INDEX_HEADER_BYTES or size < entries_at + INDEX_ENTRY_BYTES:
        found.problems.append((name, f"only {size} bytes long"))
        return None
    begin_ms, end_ms, begin, end, used, following = INDEX_HEADER.unpack(data)
    count = max(1, following) - 1
    room = (size - entries_at) // INDEX_ENTRY_BYTES - 1
    if count > room or used > count or begin > end or begin_ms > end_ms:
        found.problems.append(
            (name, f"header: {count} entries, {used} slots, offsets {begin} to {end}")
        )
        count = min(count, room)
    return _Head(slots, count, begin, end, begin_ms, end_ms, used)


def _check_head(
    name: str, head: _Head, slots_used: int, found: IndexEntries, store_ms_at: StoreMs
) -> None:
    """Searches and recovery go by what a header says of the file's first and last message.

    Its entries, and the log where those point, say the same.
    """
    first, last = found.physical[-head.entries], found.physical[-1]
    if (head.begin, head.end, head.used) != (first, last, slots_used):
        found.problems.append(
            (name, f"header: offsets {head.begin} to {head.end} in {head.used} slots, its entries name {first} to "
                   f"{last} in {slots_used}")
        )  # fmt: skip
    for which, said_ms, physical in (("first", head.begin_ms, first), ("last", head.end_ms, last)):
        store_ms = store_ms_at(physical)
        if store_ms is not None and store_ms != said_ms:
            text = f"header: its {which} message is of {said_ms}, the log says {store_ms}"
            found.disagreeing.append((name, text, physical))


def _read_entries(
    store: StoreFiles,
    name: str,
    head: _Head,
    found: IndexEntries,
    *,
    chained: bool,
    growing: bool,
) -> int:
    """Take the entries of a file; each must be the newest of its slot or be reached from a newer one. The slots used,
    where that was looked at."""
    at = head.entries_at + INDEX_ENTRY_BYTES
    entries = store.read(f"index/{name}", INDEX_ENTRY_BYTES * head.entries, at)
    newest: dict[int, int] = {}
    wrong = 0
    places = range(0, len(entries) - INDEX_ENTRY_BYTES + 1, INDEX_ENTRY_BYTES)
    for number, position in enumerate(places, start=1):
        hashed = int.from_bytes(entries[position : position + 4], "big", signed=True)
        physical = int.from_bytes(entries[position + 4 : position + 12], "big", signed=True)
        found.physical.append(physical)
        found.hashes.append(hashed)
        if chained:
            older = int.from_bytes(entries[position + 16 : position + 20], "big", signed=True)
            slot = hashed % head.slots
            wrong += hashed < 0 or older != newest.get(slot, 0)
            newest[slot] = number
    if not chained:
        return 0
    slots = store.read(f"index/{name}", SLOT_BYTES * head.slots, INDEX_HEADER_BYTES)
    heads = array("i", slots[: len(slots) - len(slots) % SLOT_BYTES])
    if sys.byteorder == "little":
        heads.byteswap()
    wrong += sum(
        slot >= len(heads)
        or (heads[slot] != number and not (growing and heads[slot] > head.entries))
        for slot, number in newest.items()
    )
    if wrong:
        found.problems.append((name, f"{wrong} entries cannot be reached through their slots"))
    return len(newest)
