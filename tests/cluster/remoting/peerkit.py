"""A peer without a socket: chunks in, writes out, a clock moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from framekit import FrameSplitter
from timekit import HandClock

from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import ChunkHandler, Connection, Endpoint, Handler
from tandemmq.cluster.remoting.stream import ConnectionLimits


class FakeTransport(asyncio.Transport):
    """Keeps what is written; one entry per write."""

    def __init__(self, peer: tuple[str, int] = ("10.0.0.7", 4711)) -> None:
        super().__init__({"peername": peer})
        self.writes: list[bytes] = []
        self.buffered = 0
        self.reading = True
        self.ended = ""

    def write(self, data: Any) -> None:
        assert isinstance(data, bytes), "a transport may keep what it gets"
        assert not self.ended
        self.writes.append(data)

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def commands(self) -> list[Command]:
        return [
            Command.decode(frame) for data in self.writes for frame in FrameSplitter().feed(data)
        ]


class Peer:
    """The other end of a connection under test."""

    def __init__(
        self,
        table: Mapping[int, Handler] | None = None,
        *,
        chunk: ChunkHandler | None = None,
        limits: ConnectionLimits | None = None,
        error_reply: Callable[[Exception], tuple[int, str] | None] | None = None,
        mirrors: bool = True,
    ) -> None:
        self.clock = HandClock()
        self.endpoint = Endpoint(
            table or {}, limits=limits, chunk=chunk, clock=self.clock, error_reply=error_reply
        )
        self.connection = Connection(self.endpoint, mirrors=mirrors)
        self.transport = FakeTransport()
        self.connection.connection_made(self.transport)

    def sends(self, data: bytes) -> None:
        """Deliver bytes as the loop does: in reads of at most the shared buffer's size."""
        while data and not self.connection.closed:
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.connection.buffer_updated(count)
            buffer[:count] = b"\xee" * count  # the next connection's read overwrites it
            data = data[count:]

    def vanishes(self, problem: Exception | None = None) -> None:
        self.connection.connection_lost(problem)


def echo(request: Command, _: Connection) -> Command:
    return request.reply(ext=request.ext, body=request.body)


async def settled() -> None:
    """Let callbacks and ready tasks run."""
    for _ in range(5):
        await asyncio.sleep(0)
