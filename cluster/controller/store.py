"""Where a controller's records live, and which of several controllers may lead: the interface, and a file.

The file `controller.json` holds every record, replaced as a whole:

    line   content
    1      {"format":1,"crc":CRC-32 of the second line without its line end}
    2      the records of all groups, a JSON array of tandemmq.replication.group.GroupRecord

It is never read in parts and has no older generation: a controller that forgot a decision could give an epoch twice.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from tandemmq.replication import GroupRecord
from tandemmq.storage import StorageError, StoreLocked, jsonfile, make_directory

log = logging.getLogger(__name__)

FILE_NAME: Final = "controller.json"
LOCK_NAME: Final = "controller.lock"
FORMAT: Final = 1

Changes = Mapping[str, GroupRecord | None]
"""By group; None: the group is forgotten."""


class CorruptControllerFile(StorageError):
    """The records of a controller cannot be read. To go on without them could give an epoch twice."""


class StoreUnreachable(Exception):
    """The change is not known to be durable; the same may be tried again."""


class LeadershipLost(Exception):
    """Another controller leads, or may lead: nothing may be decided here any more."""


class Leader(NamedTuple):
    """Who leads, as far as is known; "" for nobody."""

    id: str = ""
    address: str = ""


class Store(Protocol):
    """Durable records, and the right to change them. One task uses it."""

    async def open(self) -> None:
        """What must succeed for a start. Raises StorageError, OSError."""

    async def lead(self) -> list[GroupRecord]:
        """Wait until this controller leads; what the records are then. After open()."""

    def leading(self) -> bool:
        """Whether this controller leads, now. Cheap, and false in time: before anybody else can lead."""

    def leader(self) -> Leader:
        """Who leads."""

    async def write(self, changes: Changes) -> None:
        """Durable once this returns. Raises StoreUnreachable, LeadershipLost."""

    async def run(self) -> None:
        """Keep what needs keeping; serves until cancelled."""

    async def close(self) -> None:
        """Give leadership and records free."""


class FileStore:
    """One file, one controller: it leads as long as it has the lock."""

    def __init__(self, directory: Path, me: Leader) -> None:
        self._path = directory / FILE_NAME
        self._me = me
        self._records: dict[str, GroupRecord] = {}
        self._lock: int | None = None
        self._saving: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._lock = await asyncio.to_thread(_locked, self._path.with_name(LOCK_NAME))
        records = await asyncio.to_thread(load, self._path)
        self._records = {record.name: record for record in records}

    async def lead(self) -> list[GroupRecord]:
        return list(self._records.values())

    def leading(self) -> bool:
        return self._lock is not None

    def leader(self) -> Leader:
        return self._me

    async def write(self, changes: Changes) -> None:
        records = dict(self._records)
        for name, record in changes.items():
            if record is None:
                records.pop(name, None)
            else:
                records[name] = record
        work = asyncio.to_thread(save, self._path, list(records.values()))
        self._saving = asyncio.get_running_loop().create_task(work, name="controller.json")
        try:
            await asyncio.shield(self._saving)
        except OSError as problem:
            raise StoreUnreachable(f"{self._path}: {problem}") from problem
        self._records = records

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        if self._saving is not None:
            # A cancelled write goes on in its thread; it must not land on the next owner's records.
            await asyncio.wait([self._saving])
            if (problem := self._saving.exception()) is not None:
                log.warning("the last records were not written: %s", problem)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class NoStore:
    """Of several controllers without a common store only the first leads: this is one of the others."""

    def __init__(self, first: Leader) -> None:
        self._first = first

    async def open(self) -> None:
        """Nothing to open."""

    async def lead(self) -> list[GroupRecord]:
        await asyncio.Event().wait()
        raise AssertionError("waits for ever")

    def leading(self) -> bool:
        return False

    def leader(self) -> Leader:
        return self._first

    async def write(self, changes: Changes) -> None:
        raise LeadershipLost(f"{self._first.id} leads")

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is held."""


def load(path: Path) -> list[GroupRecord]:
    """The records in a file, none when there is no file. Blocks. Raises CorruptControllerFile, OSError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    try:
        return decode(content)
    except ValueError as problem:
        raise CorruptControllerFile(
            f"{path} cannot be read: {problem}. Without it epochs could be given out twice: restore the file "
            "from the disk or a backup taken since the last change; see docs/operations.md"
        ) from None


def save(path: Path, records: Iterable[GroupRecord]) -> None:
    """Replace the file; durable once this returns. Blocks. Raises OSError."""
    make_directory(path.parent)
    jsonfile.write_atomically(path, encode(records))


def encode(records: Iterable[GroupRecord]) -> bytes:
    line = msgspec.json.encode(sorted(records, key=lambda record: record.name))
    head = msgspec.json.encode(_Head(FORMAT, zlib.crc32(line)))
    return b"%b\n%b\n" % (head, line)


class _Head(msgspec.Struct):
    format: int
    crc: int


def decode(content: bytes) -> list[GroupRecord]:
    """Raises ValueError."""
    lines = content.split(b"\n")
    if len(lines) != 3 or lines[2]:
        raise ValueError(f"{len(content)} bytes in {len(lines) - 1} lines, not two")
    head = msgspec.json.decode(lines[0], type=_Head)
    if head.format != FORMAT:
        raise ValueError(f"format {head.format}, not {FORMAT}")
    if head.crc != zlib.crc32(lines[1]):
        raise ValueError("wrong checksum")
    return decode_records(lines[1])


def decode_records(content: bytes) -> list[GroupRecord]:
    """Raises ValueError."""
    records = msgspec.json.decode(content, type=list[GroupRecord])
    for record in records:
        check(record)
    return records


def check(record: GroupRecord) -> None:
    """What the core takes for granted about a record that comes from outside. Raises ValueError."""
    known = record.members.keys()
    named = {*record.sync_set, *record.electing_from, *record.suspects}
    if record.master:
        named.add(record.master)
    if not named <= known:
        raise ValueError(
            f"{record.name} names replicas {sorted(named - known)} that it does not know"
        )
    if record.epoch < 0 or record.set_number < 0 or not 0 <= record.lossy_epoch <= record.epoch:
        raise ValueError(f"{record.name} has impossible epochs")
    if known and (min(known) < 1 or record.next_id <= max(known)):
        raise ValueError(f"{record.name} has impossible replica ids")
    if record.confirmed < 0 or any(member.held < 0 for member in record.members.values()):
        raise ValueError(f"{record.name} has impossible offsets")
    if record.epoch == 0 and (record.master or record.electing_from):
        raise ValueError(f"{record.name} has a master of no epoch")


def _locked(path: Path) -> int:
    """A descriptor that holds the lock. Blocks. Raises StoreLocked, OSError."""
    make_directory(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(descriptor)
        raise StoreLocked(f"{path.parent} is in use by another controller") from problem
    return descriptor
