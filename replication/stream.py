"""One slave's stream as the master keeps it: what it was sent, frames cut from the log, one write at a time.

Nothing is buffered: what the socket does not take stays in the log and is read there again when there is room. So a
slow slave costs descriptors, never memory, and no slice of the log outlives the call that sent it. (Compressed frames
are the exception: the rest of one is kept.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from replication.epochs import EpochHistory
from replication.frames import (
    Buffer,
    Challenge,
    Dialect,
    Hello,
    MasterFrame,
    SlaveFrameReader,
    Transfer,
    encode_master_frame,
    encode_transfer_head,
)
from replication.master import NEVER
from replication.wire import Wire

RATE_WINDOW_MS: Final = 1000
PIECES_MAX: Final = 256  # frames in one write: two buffers each, the kernel takes 1024


class SourceLog(Protocol):
    """What is shipped. storage.CommitLog is one."""

    @property
    def start(self) -> int:
        """Smallest offset that can be read."""

    @property
    def end(self) -> int:
        """Offset behind the last whole record."""

    def read(self, offset: int, size: int) -> memoryview | None:
        """A view of [offset, offset + size), all of it in one file; None when it is not there."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """What a master says of its log with every frame."""

    end: int
    confirmed: int
    history: EpochHistory
    segment_bytes: int
    batch_bytes: int


@dataclass(slots=True)
class _Piece:
    """What is left of one frame: head bytes, then log[at:stop]."""

    head: Buffer
    at: int
    stop: int


class LogGone(Exception):
    """Retention took what a slave still needs."""


class Stream:
    """One connected slave: where its stream stands.

    replica      its id; 0 until it said it, and in classic HA
    greeted      the core knows it
    next_offset  first byte that is in no frame yet; NEVER until the core said where to begin
    sent         everything below was handed to the kernel
    unfinished   the rest of a frame that was begun: it must be completed as announced
    """

    __slots__ = (
        "_bodies", "acked", "bytes_per_second", "challenge", "greeted", "heard_ms", "hello", "left",
        "next_offset", "number", "peer", "reader", "replica", "said_confirmed", "sent", "unfinished",
        "window_bytes", "window_ms", "wire", "wrote_ms",
    )  # fmt: skip

    def __init__(
        self, number: int, wire: Wire, peer: str, now_ms: int, dialect: Dialect = Dialect.CLASSIC
    ) -> None:
        self.number = number
        self.wire = wire
        self.peer = peer
        self.reader = SlaveFrameReader(dialect)
        self.left = b""  # less than one frame
        self.replica = 0
        self.greeted = False
        self.challenge: Challenge | None = None
        self.hello: Hello | None = None
        self.acked = NEVER
        self.next_offset = NEVER
        self.sent = NEVER
        self.said_confirmed = NEVER
        self.unfinished: _Piece | None = None
        self.heard_ms = self.wrote_ms = self.window_ms = now_ms
        self.window_bytes = 0
        self.bytes_per_second = 0
        self._bodies: list[memoryview] = []

    @property
    def dialect(self) -> Dialect:
        return self.reader.dialect

    def begin(self, offset: int, now_ms: int) -> None:
        """The core said where to begin."""
        self.next_offset = self.sent = offset
        self.wrote_ms = now_ms

    def behind(self, end: int) -> bool:
        """Whether there is something to write."""
        return self.unfinished is not None or NEVER < self.next_offset < end

    def say(self, frame: MasterFrame) -> None:
        """Let a frame without a body of the log be what is written next. None may be under way."""
        assert self.unfinished is None, "inside another frame"
        at = self.next_offset
        self.unfinished = _Piece(encode_master_frame(frame, self.dialect), at, at)

    def heartbeat(self, log: Shipped) -> Transfer:
        """The frame of an idle stream."""
        self.said_confirmed = log.confirmed
        last = log.history
        return Transfer(self.next_offset, b"", last.last, last.last_start, log.confirmed)

    def ship(self, source: SourceLog, log: Shipped) -> int:
        """Write once: what is unfinished and frames up to the log's end, about batch_bytes; the
        bytes taken.

        Raises LogGone, OSError.
        """
        buffers: list[Buffer] = []
        try:
            pieces = self._plan(source, log)
            for piece in pieces:
                if piece.head:
                    buffers.append(piece.head)
                if piece.at < piece.stop:
                    buffers.append(self._body(source, piece.at, piece.stop))
            taken = self.wire.send(buffers)
        finally:
            for body in self._bodies:
                body.release()
            self._bodies.clear()
        self._account(pieces, taken)
        self.window_bytes += taken
        return taken

    def _body(self, source: SourceLog, at: int, stop: int) -> memoryview:
        """A view of the log that lives as long as this write."""
        body = source.read(at, stop - at)
        if body is None:
            raise LogGone(f"needs {at}, our log starts at {source.start}: it must be seeded anew")
        self._bodies.append(body)
        return body

    def _plan(self, source: SourceLog, log: Shipped) -> list[_Piece]:
        """The frames of one write. None crosses the end of a file: a stock slave could not store it."""
        pieces: list[_Piece] = []
        at, room = self.next_offset, log.batch_bytes
        if self.unfinished is not None:
            pieces.append(self.unfinished)
            room -= self.unfinished.stop - self.unfinished.at
        while room > 0 and NEVER < at < log.end and len(pieces) < PIECES_MAX:
            size = min(room, log.end - at, log.segment_bytes - at % log.segment_bytes)
            piece = self._frame(source, log, at, size)
            pieces.append(piece)
            room -= piece.stop - at
            at = piece.stop
        return pieces

    def _frame(self, source: SourceLog, log: Shipped, at: int, size: int) -> _Piece:
        """The frame at an offset, of at most `size` bytes of one reign."""
        dialect = self.dialect
        if dialect is Dialect.CLASSIC:
            head = encode_transfer_head(Transfer(at), dialect, body_bytes=size)
            return _Piece(head, at, at + size)
        history = log.history
        entry = history.at(at)
        if entry is not None:
            number, start = entry
            limit = history.end_of_reign(number, log.end)
        else:  # from before epochs
            number = start = 0
            limit = history.entries[0].start if history.entries else log.end
        stop = min(at + size, limit)
        self.said_confirmed = log.confirmed
        if dialect is Dialect.AUTO_SWITCH:
            frame = Transfer(at, b"", number, start, log.confirmed)
            return _Piece(encode_transfer_head(frame, dialect, body_bytes=stop - at), at, stop)
        body = self._body(source, at, stop)
        frame = Transfer(at, body, number, start, log.confirmed)
        if self.hello is not None and self.hello.compressed:
            return _Piece(encode_master_frame(frame, dialect, compressed=True), stop, stop)
        return _Piece(encode_transfer_head(frame, dialect), at, stop)

    def _account(self, pieces: list[_Piece], taken: int) -> None:
        """A frame of which nothing was taken is planned anew: by then it may be larger."""
        for piece in pieces:
            if piece is not self.unfinished:
                if taken == 0:
                    return
                self.next_offset = piece.stop
            head = min(taken, len(piece.head))
            piece.head = piece.head[head:]
            body = min(taken - head, piece.stop - piece.at)
            piece.at += body
            taken -= head + body
            if not piece.head:
                self.sent = max(self.sent, piece.at)
            if piece.head or piece.at < piece.stop:
                self.unfinished = piece
                return
            self.unfinished = None

    def note_rate(self, now_ms: int) -> None:
        elapsed_ms = now_ms - self.window_ms
        if elapsed_ms >= RATE_WINDOW_MS:
            self.bytes_per_second = self.window_bytes * 1000 // elapsed_ms
            self.window_bytes, self.window_ms = 0, now_ms
