"""A slave that lags is sent from file to socket what a thread has read ahead, and then the rest from memory."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from senderkit import SEGMENT_BYTES, FakeWire, Master, MemoryLog, frames_of, on_loop

from tandemmq.replication.frames import Buffer

HOT_BYTES = 1_000
DATA = random.Random(1).randbytes(3 * SEGMENT_BYTES + 1_234)


class FileLog(MemoryLog):
    """A log whose files are there, too."""

    def __init__(self, directory: Path, data: bytes) -> None:
        super().__init__(data)
        self.directory = directory
        for start in range(0, len(data), self.segment_bytes):
            self._path(start).write_bytes(data[start : start + self.segment_bytes])

    def _path(self, start: int) -> Path:
        return self.directory / f"{start:020d}"

    def file_at(self, offset: int) -> tuple[Path, int]:  # type: ignore[override]
        start = offset - offset % self.segment_bytes
        return self._path(start), start

    def lose(self, start: int) -> None:
        self._path(start).unlink()


class FileWire(FakeWire):
    """A socket that a file can be sent to; it counts the bytes that came from one."""

    def __init__(self, room: int = 1 << 40) -> None:
        super().__init__(room)
        self.from_files = 0

    def send_file(self, head: Buffer, descriptor: int, position: int, size: int) -> int:
        taken = self.send([head, os.pread(descriptor, size, position)])
        self.from_files += max(0, taken - len(head))
        return taken


@asynccontextmanager
async def serving(log: MemoryLog) -> AsyncIterator[Master]:
    master = Master(log, copies_wanted=2)
    async with on_loop(master.sender, master.feed):
        yield master


def lagging(master: Master, wire: FakeWire) -> int:
    """Connect a slave that has nothing; it is far behind when it lacks more than HOT_BYTES."""
    number = master.slave(wire)
    master.sender._streams[number].hot_bytes = HOT_BYTES
    master.hear(number, wire, 0)
    return number


async def served(master: Master, wire: FakeWire, number: int, room: int = 1 << 40) -> None:
    """Until no thread reads and nothing waits for room, of which there are `room` bytes each time."""
    fetches = master.sender._fetches
    async with asyncio.timeout(10):
        while fetches or wire.waits:
            if fetches:
                await asyncio.wait(set(fetches))
            if wire.waits:
                wire.room = room
                master.sender.writable(number)
            await asyncio.sleep(0)


def received(wire: FakeWire) -> bytes:
    """The log as the slave has it: no gap, and no byte twice."""
    data = bytearray()
    for frame in frames_of(wire.got):
        assert frame.offset == len(data)
        data += frame.body
    return bytes(data)


@pytest.mark.parametrize("room", [1 << 40, 5_000])
async def test_a_lagging_slave_gets_byte_for_byte_what_was_read_ahead(
    tmp_path: Path, room: int
) -> None:
    async with serving(FileLog(tmp_path, DATA)) as master:
        wire = FileWire(room)
        number = lagging(master, wire)
        assert not wire.got, "nothing that may have left memory is sent before a thread has read it"
        await served(master, wire, number, room)
        assert received(wire) == DATA
        assert wire.from_files >= len(DATA) - HOT_BYTES
        master.hear(number, wire, len(DATA))
        assert master.acknowledged() == len(DATA)


async def test_a_slave_that_caught_up_is_served_from_memory_again(tmp_path: Path) -> None:
    async with serving(FileLog(tmp_path, DATA)) as master:
        wire = FileWire()
        number = lagging(master, wire)
        await served(master, wire, number)
        master.hear(number, wire, len(DATA))
        before = wire.from_files
        master.grow(b"x" * 100)
        assert not master.sender._fetches and wire.from_files == before
        assert received(wire) == DATA + b"x" * 100


async def test_a_slave_lost_while_its_bytes_are_read_ahead_is_sent_nothing(tmp_path: Path) -> None:
    async with serving(FileLog(tmp_path, DATA)) as master:
        wire = FileWire()
        number = lagging(master, wire)
        wire.incoming.append(b"")
        master.sender.readable(number)
        await served(master, wire, number)
        assert wire.closed and not wire.got


async def test_a_file_that_cannot_be_read_costs_the_connection_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = FileLog(tmp_path, DATA)
    log.lose(0)
    async with serving(log) as master:
        wire = FileWire()
        number = lagging(master, wire)
        await served(master, wire, number)
        assert wire.closed and not wire.got and master.core.slaves == {}
        assert "cannot read the log" in caplog.text
