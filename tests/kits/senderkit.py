"""A master's sender over a log in memory and wires that take what a test lets them; on_loop() opens a listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from timekit import HandClock

from tandemmq.replication.comparing import Verdict
from tandemmq.replication.config import Mode, StreamRules
from tandemmq.replication.feed import Feed
from tandemmq.replication.frames import Buffer, Dialect, MasterFrameReader, Transfer
from tandemmq.replication.master import MasterCore
from tandemmq.replication.masterevents import (
    Acknowledge,
    CompareSlave,
    Confirmed,
    Effect,
    SlaveCompared,
)
from tandemmq.replication.sender import Sender, open_listener

SEGMENT_BYTES = 65536


def take_on_trust(feed: Feed) -> None:
    """Every slave's log is ours: what a classic master's gate would find by asking."""

    def same(effect: CompareSlave) -> None:
        feed.feed(SlaveCompared(effect.connection, effect.end, Verdict.SAME))

    feed._handlers[CompareSlave] = [same]


class MemoryLog:
    """Bytes in files of one size; no read crosses two of them, as in a CommitLog."""

    def __init__(self, data: bytes = b"", segment_bytes: int = SEGMENT_BYTES) -> None:
        self.data = bytearray(data)
        self.start = 0
        self.end = len(data)
        self.staged = False
        self.segment_bytes = segment_bytes
        self.out: list[memoryview] = []

    def read(self, offset: int, size: int) -> memoryview | None:
        if offset < self.start or offset + size > self.end:
            return None
        assert offset // self.segment_bytes == (offset + size - 1) // self.segment_bytes
        view = memoryview(self.data)[offset : offset + size].toreadonly()
        self.out.append(view)
        return view

    def file_at(self, offset: int) -> None:
        return None


class FakeWire:
    """A socket that takes `room` bytes until somebody reads."""

    def __init__(self, room: int = 1 << 40) -> None:
        self.room = room
        self.got = bytearray()
        self.writes: list[int] = []
        self.incoming: list[bytes | OSError | None] = []
        self.waits = False
        self.closed = False
        self.broken: OSError | None = None

    def send(self, buffers: Sequence[Buffer]) -> int:
        if self.broken is not None:
            raise self.broken
        data = b"".join(buffers)[: self.room]
        self.room -= len(data)
        self.got += data
        self.writes.append(len(data))
        return len(data)

    def receive(self) -> bytes | None:
        given = self.incoming.pop(0) if self.incoming else None
        if isinstance(given, OSError):
            raise given
        return given

    def wait_writable(self, wanted: bool) -> None:
        self.waits = wanted

    def close(self) -> None:
        self.closed = True


class Master:
    """A sender over a memory log, and what it told the rest of the broker."""

    def __init__(self, source: MemoryLog, *, mode: Mode = Mode.S0, **rules: int) -> None:
        self.log = source
        self.clock = HandClock()
        self.effects: list[Effect] = []
        self.core = MasterCore(0, mode, StreamRules(**rules), controlled=False)
        self.feed = Feed(self.core, self.clock)
        for effect in (Confirmed, Acknowledge):
            self.feed.register(effect, self.effects.append)
        self.sender = Sender(self.feed, source, self.clock, segment_bytes=source.segment_bytes)
        take_on_trust(self.feed)

    def slave(self, wire: FakeWire, report: int | None = None) -> int:
        number = self.sender.attach(wire, "10.0.0.9:41000")
        if report is not None:
            self.hear(number, wire, report)
        return number

    def hear(self, number: int, wire: FakeWire, *reports: int) -> None:
        wire.incoming.append(b"".join(each.to_bytes(8, "big", signed=True) for each in reports))
        self.sender.readable(number)

    def grow(self, data: bytes) -> None:
        self.log.data += data
        self.log.end += len(data)
        self.sender.pump()

    def acknowledged(self) -> int:
        return max((each.end for each in self.effects if isinstance(each, Acknowledge)), default=0)


def frames_of(stream: bytes | bytearray) -> list[Transfer]:
    view = memoryview(bytes(stream))
    frames, consumed = MasterFrameReader(Dialect.CLASSIC).read(view, 0, len(view))
    assert consumed == len(view), "the stream ends inside a frame"
    return [each for each in frames if isinstance(each, Transfer)]


@asynccontextmanager
async def on_loop(sender: Sender, feed: Feed) -> AsyncIterator[None]:
    """The sender has a loop inside the body, so shipments gather; by its end nothing has failed."""
    with open_listener("127.0.0.1", 0) as listener:
        job = asyncio.create_task(sender.run(listener))
        await asyncio.sleep(0)
        try:
            yield
        finally:
            job.cancel()
            await asyncio.wait({job})
    assert feed.failure is None
