"""One connection to a master as the slave keeps it: the buffer between its socket and our log."""

from __future__ import annotations

import asyncio
import mmap
from typing import Final, Protocol, cast

from tandemmq.replication.frames import (
    Challenge,
    Dialect,
    Hello,
    MasterFrame,
    MasterFrameReader,
    encode_report,
)

BUFFER_BYTES: Final = (
    1 << 20
)  # grows to the largest frame there may be, 4 MiB, when a master sends such
UNSENT_BYTES_MAX: Final = 4096  # reports the master does not read; beyond, only the newest is kept


class Listener(Protocol):
    """Who is told what happens to a link; what is final must not be raised into the loop."""

    def link_up(self, link: Link) -> None:
        """The connection is there."""

    def received(self, link: Link, count: int) -> None:
        """Bytes came in."""

    def link_down(self, link: Link, why: str) -> None:
        """The connection ended, by whomever."""


class Link(asyncio.BufferedProtocol):
    """One connection. The kernel writes into the buffer; view[start:fill] is what is not taken yet.

    Of a link that is held nothing is read, so a slave that cannot append does not collect.
    """

    def __init__(self, listener: Listener, number: int, dialect: Dialect, *, offers: bool) -> None:
        self.number = number
        self.closed = False
        self.held = False  # nothing is read of it
        self.challenge: Challenge | None = None
        self.hello: Hello | None = None
        self.greeted = False
        self.reported = False
        self.frames: list[MasterFrame] = []  # read and not done with
        self._listener = listener
        self._reader = MasterFrameReader(dialect, offers=offers)
        self._transport: asyncio.Transport | None = None
        # of a mapping only those pages are memory that were written
        self._view = memoryview(mmap.mmap(-1, BUFFER_BYTES, mmap.MAP_PRIVATE))
        self._start = 0
        self._fill = 0
        self._paused = False
        self._unsent = b""

    @property
    def dialect(self) -> Dialect:
        return self._reader.dialect

    # --- what the transport calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's have no common base
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self._listener.link_up(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self.closed:
            self._start = self._fill = 0  # whatever still comes is not looked at
        assert self._fill < len(self._view)  # make_room() saw to it
        return self._view[self._fill :] if self._fill else self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._fill += nbytes
        if not self.closed:
            self._listener.received(self, nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.link_down(self, "closed by the master" if exc is None else str(exc))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._unsent:
            assert self._transport is not None
            self._transport.write(self._unsent)
            self._unsent = b""

    # --- what the receiver calls ---

    def read(self) -> None:
        """Find the frames that are whole. Take them off, then make_room(). Raises PeerBrokeProtocol."""
        assert not self.frames, "make_room() has to come first: their bodies are in the buffer"
        self.frames, self._start = self._reader.read(self._view, self._start, self._fill)

    def make_room(self) -> None:
        """Let the frame that has begun fit, and be read in few pieces. Raises PeerBrokeProtocol."""
        left = self._fill - self._start
        if left == 0:
            self._start = self._fill = 0
            return
        needed = self._reader.needed(self._view, self._start, self._fill)
        size = len(self._view)
        if needed <= size - self._start and self._fill <= size - size // 4:
            return
        view = self._view
        if needed > len(view):
            view = memoryview(bytearray(needed))
        view[:left] = self._view[self._start : self._fill]
        self._view, self._start, self._fill = view, 0, left

    def hold(self, held: bool) -> None:
        """Read nothing more, or again."""
        if held == self.held or self.closed or self._transport is None:
            return
        self.held = held
        if held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def say(self, frame: bytes) -> None:
        """Send a frame of the handshake, in one piece."""
        assert self._transport is not None
        self._transport.write(frame)

    def report(self, received: int, flushed: int, epoch: int) -> None:
        """Send a report (see Report); while the master does not read, the newest one waits."""
        assert self._transport is not None
        frame = encode_report(received, flushed, epoch, self._reader.dialect)
        if self._paused:
            self._unsent = frame
        else:
            self._transport.write(frame)

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
