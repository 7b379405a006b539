"""One slave's stream as the master keeps it: what it was sent, and frames cut from the log to be sent next.

Nothing is buffered: what the socket does not take stays in the log and is read there again when there is room. So a
slow slave costs descriptors, never memory, and no slice of the log outlives the call that sent it. (Compressed frames
are the exception: the rest of one is kept.) Bytes that were just appended are sent from the mapping, or when they are
many from file to socket; those that may have left memory only after a thread has read them (readahead.py).
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from tandemmq.replication.epochs import EpochHistory
from tandemmq.replication.frames import (
    Buffer,
    Challenge,
    Dialect,
    Hello,
    MasterFrame,
    SlaveFrameReader,
    Transfer,
    encode_classic_head,
    encode_master_frame,
    encode_transfer_head,
)
from tandemmq.replication.master import NEVER
from tandemmq.replication.readahead import Ahead, Ready
from tandemmq.replication.wire import Wire

RATE_WINDOW_MS: Final = 1000
GROUP_BYTES: Final = 64 << 10  # so much does not wait for the report of what was sent before
PIECES_MAX: Final = 256  # frames in one write: two buffers each, the kernel takes 1024
HOT_BYTES: Final = 32 << 20  # so far behind the end bytes are in memory: they were just written
AHEAD_BYTES: Final = 4 << 20  # read at once for a slave that is further behind
FILE_BYTES_MIN: Final = 64 << 10  # below, one write of head and body costs less than two calls
FILE_WRITES_MAX: Final = 4  # per turn, then others of the loop are served


class SourceLog(Protocol):
    """What is shipped. storage.CommitLog is one."""

    @property
    def start(self) -> int:
        """Smallest offset that can be read."""

    @property
    def end(self) -> int:
        """Offset behind the last whole record."""

    @property
    def staged(self) -> bool:
        """Whether more is about to be appended, in the loop's next turn."""

    def read(self, offset: int, size: int) -> memoryview | None:
        """A view of [offset, offset + size), all of it in one file; None when it is not there."""

    def file_at(self, offset: int) -> tuple[Path, int] | None:
        """The file that covers an offset, and the offset it starts with; None without one."""


class Shipped(msgspec.Struct, frozen=True):
    """What a master says of its log with every frame."""

    end: int
    confirmed: int
    history: EpochHistory
    segment_bytes: int
    batch_bytes: int


@dataclass(slots=True)
class _Piece:
    """What is left of one frame: head bytes, then log[at:stop], from the file or from its mapping."""

    head: Buffer
    at: int
    stop: int
    from_file: bool = False

    @property
    def size(self) -> int:
        return len(self.head) + self.stop - self.at


class LogGone(Exception):
    """Retention took what a slave still needs."""


class Stream:
    """One connected slave: where its stream stands.

    replica      its id; 0 until it said it, and in classic HA
    greeted      the core knows it; admitted: it shall be answered, and was
    compared     CLASSIC: up to where its log was held against ours before it connected; NEVER: it was not
    next_offset  first byte that is in no frame yet; NEVER until the core said where to begin
    sent         everything below was handed to the kernel
    unfinished   the rest of a frame that was begun: it must be completed as announced
    ready        frames that were read ahead, the first of them at next_offset
    reading      more of them are on their way
    hot_bytes    so far behind the log's end nothing is read ahead
    probe_end    up to where it was sent the log at probe_ns, and has not reported yet; NEVER: nothing is timed
    """

    __slots__ = (
        "_bodies", "_file", "_file_start", "acked", "admitted", "bytes_per_second", "challenge", "compared",
        "greeted",
        "heard_ms", "hello", "hot_bytes", "left", "next_offset", "number", "peer", "probe_end", "probe_ns", "reader",
        "reading", "ready", "replica", "said_confirmed", "sent", "unfinished", "window_bytes",
        "window_ms", "wire", "wrote_ms",
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
        self.admitted = False
        self.challenge: Challenge | None = None
        self.hello: Hello | None = None
        self.compared = NEVER
        self.acked = NEVER
        self.next_offset = NEVER
        self.sent = NEVER
        self.said_confirmed = NEVER
        self.unfinished: _Piece | None = None
        self.ready: deque[Ready] = deque()
        self.reading = False
        self.hot_bytes = HOT_BYTES
        self.probe_end, self.probe_ns = NEVER, 0
        self.heard_ms = self.wrote_ms = self.window_ms = now_ms
        self.window_bytes = 0
        self.bytes_per_second = 0
        self._bodies: list[memoryview] = []
        self._file = -1
        self._file_start = NEVER

    @property
    def host(self) -> str:
        """Where it connects from, an IP address."""
        return self.peer.rpartition(":")[0].strip("[]")

    @property
    def dialect(self) -> Dialect:
        return self.reader.dialect

    @property
    def compressed(self) -> bool:
        return self.hello is not None and self.hello.compressed

    def begin(self, offset: int, now_ms: int) -> None:
        """The core said where to begin."""
        self.next_offset = self.sent = offset
        self.probe_end = NEVER
        self.wrote_ms = now_ms

    def behind(self, end: int) -> bool:
        """Whether it lacks anything."""
        return self.unfinished is not None or NEVER < self.next_offset < end

    def waits_for_room(self, end: int) -> bool:
        """Whether there is something to write right now."""
        if self.unfinished is not None or self.ready:
            return True
        return NEVER < self.next_offset < end and not (self.reading or self.lags(end))

    def lags(self, end: int) -> bool:
        """Whether it is so far behind that its bytes may have left memory."""
        return NEVER < self.next_offset < end - self.hot_bytes

    def gathers(self, end: int) -> bool:
        """Whether what is new may wait a moment, to go in one frame with more: little is new, and the slave still has
        something to report, so no sender is kept from its answer by this."""
        return self.sent > self.acked and end - self.next_offset < GROUP_BYTES

    def close(self) -> None:
        self.wire.close()
        self._close_file()

    # --- frames ---

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

    def next_ahead(self, source: SourceLog, log: Shipped) -> list[Ahead]:
        """The frames to be read ahead now; none when enough are. Raises LogGone."""
        at = self.ready[-1].stop if self.ready else self.next_offset
        if (
            self.reading
            or at - self.next_offset > AHEAD_BYTES // 2
            or not NEVER < at < log.end - self.hot_bytes
        ):
            return []
        frames: list[Ahead] = []
        stop = min(at + AHEAD_BYTES, log.end)
        while at < stop:
            place = source.file_at(at)
            if place is None:
                raise self._gone(source, at)
            path, start = place
            size = self._frame_size(log, at, min(log.batch_bytes, stop - at))
            frames.append(Ahead(path, at - start, at, at + size))
            at += size
        return frames

    def _frame_size(self, log: Shipped, at: int, room: int) -> int:
        """Of the frame at an offset: of one file, a stock slave could not store another, and of one reign."""
        size = min(room, log.end - at, log.segment_bytes - at % log.segment_bytes)
        if self.dialect is Dialect.CLASSIC:
            return size
        entry = log.history.at(at)
        if entry is not None:
            return min(size, log.history.end_of_reign(entry.number, log.end) - at)
        entries = log.history.entries  # from before epochs
        return min(size, entries[0].start - at) if entries else size

    def _transfer(self, log: Shipped, at: int, body: Buffer = b"") -> Transfer:
        self.said_confirmed = log.confirmed
        number, start = log.history.at(at) or (0, 0)
        return Transfer(at, body, number, start, log.confirmed)

    # --- writing ---

    def ship(self, source: SourceLog, log: Shipped) -> int:
        """Write what is unfinished and frames up to the log's end, about batch_bytes, more of a
        lagging stream; the bytes taken.

        Raises LogGone, OSError.
        """
        if self._is_brief(log):
            return self._ship_brief(source, log)
        total = 0
        for _ in range(FILE_WRITES_MAX):
            try:
                pieces = self._plan(source, log)
                taken = self._write(source, pieces)
            finally:
                for body in self._bodies:
                    body.release()
                self._bodies.clear()
            whole = taken == sum(piece.size for piece in pieces)
            from_file = bool(pieces) and pieces[-1].from_file
            self._account(pieces, taken)
            total += taken
            if not (whole and from_file):
                break
        self.window_bytes += total
        return total

    def _is_brief(self, log: Shipped) -> bool:
        """Whether all there is to write is one frame that goes from the mapping: nearly always, of
        a slave that keeps up."""
        at, size = self.next_offset, log.end - self.next_offset
        return (
            self.unfinished is None
            and 0 < size < FILE_BYTES_MIN
            and at != NEVER
            and size <= min(log.batch_bytes, self.hot_bytes)
            and not (self.ready or self.reading)
            and at % log.segment_bytes + size <= log.segment_bytes
            and (
                self.reader.dialect is Dialect.CLASSIC
                or (at >= log.history.last_start and not self.compressed)
            )
        )

    def _ship_brief(self, source: SourceLog, log: Shipped) -> int:
        at, stop = self.next_offset, log.end
        body = source.read(at, stop - at)
        if body is None:
            raise self._gone(source, at)
        with body:
            if self.reader.dialect is Dialect.CLASSIC:
                head = encode_classic_head(at, stop - at)
            else:
                head = encode_transfer_head(self._transfer(log, at, body), self.reader.dialect)
            taken = self.wire.send((head, body))
        if taken == len(head) + stop - at:
            self.next_offset = self.sent = stop
        else:
            self._account([_Piece(head, at, stop)], taken)
        self.window_bytes += taken
        return taken

    def _write(self, source: SourceLog, pieces: list[_Piece]) -> int:
        if not pieces:
            return 0
        first = pieces[0]
        if first.from_file and first.at < first.stop:
            if not self._open_file(source, first.at):
                raise self._gone(source, first.at)
            position = first.at - self._file_start
            return self.wire.send_file(first.head, self._file, position, first.stop - first.at)
        buffers: list[Buffer] = []
        for piece in pieces:
            if piece.head:
                buffers.append(piece.head)
            if piece.at < piece.stop:
                buffers.append(self._body(source, piece.at, piece.stop))
        return self.wire.send(buffers)

    def _plan(self, source: SourceLog, log: Shipped) -> list[_Piece]:
        """The frames of one write: one that goes from the file, or any number of others."""
        unfinished = self.unfinished
        if unfinished is not None and (unfinished.from_file or self.ready):
            return [unfinished]
        if self.ready:
            return [self._ready_piece(source, log)]
        pieces: list[_Piece] = []
        at, room = self.next_offset, log.batch_bytes
        if unfinished is not None:
            pieces.append(unfinished)
            room -= unfinished.stop - unfinished.at
        if self.reading or self.lags(log.end):
            return pieces
        while room > 0 and NEVER < at < log.end and len(pieces) < PIECES_MAX:
            piece = self._piece(source, log, at, self._frame_size(log, at, room), not pieces)
            if piece is None:
                break
            pieces.append(piece)
            room -= piece.stop - at
            at = piece.stop
            if piece.from_file:
                break
        return pieces

    def _piece(
        self, source: SourceLog, log: Shipped, at: int, size: int, alone: bool
    ) -> _Piece | None:
        """The frame at an offset; None when it has to wait for the next write."""
        stop, dialect = at + size, self.dialect
        if dialect is Dialect.EXTENDED:
            frame = self._transfer(log, at, self._body(source, at, stop))
            if self.compressed:
                return _Piece(encode_master_frame(frame, dialect, compressed=True), stop, stop)
            return _Piece(encode_transfer_head(frame, dialect), at, stop)
        from_file = size >= FILE_BYTES_MIN and self._open_file(source, at)
        if from_file and not alone:
            return None
        head = encode_transfer_head(self._transfer(log, at), dialect, body_bytes=size)
        return _Piece(head, at, stop, from_file)

    def _ready_piece(self, source: SourceLog, log: Shipped) -> _Piece:
        """The next frame that was read ahead."""
        ready = self.ready[0]
        assert ready.start == self.next_offset, (ready, self.next_offset)
        size = ready.stop - ready.start
        if self.compressed or not self._open_file(source, ready.start):
            piece = self._piece(source, log, ready.start, size, True)
            assert piece is not None
            return piece
        frame = self._transfer(log, ready.start)
        crc = ready.crc if self.dialect is Dialect.EXTENDED else None
        head = encode_transfer_head(frame, self.dialect, body_bytes=size, body_crc=crc)
        return _Piece(head, ready.start, ready.stop, from_file=True)

    def _account(self, pieces: list[_Piece], taken: int) -> None:
        """Note how much of each planned frame the socket took. One that was begun is finished as it is; one of which
        nothing was taken is forgotten, and the next write plans it anew with what the log has by then."""
        for piece in pieces:
            if piece is not self.unfinished:
                if taken == 0:
                    return
                self.next_offset = piece.stop
                if self.ready:
                    self.ready.popleft()
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

    # --- the log's bytes ---

    def _gone(self, source: SourceLog, at: int) -> LogGone:
        return LogGone(f"needs {at}, our log starts at {source.start}: it must be seeded anew")

    def _body(self, source: SourceLog, at: int, stop: int) -> memoryview:
        """A view of the log that lives as long as this write."""
        body = source.read(at, stop - at)
        if body is None:
            raise self._gone(source, at)
        self._bodies.append(body)
        return body

    def _open_file(self, source: SourceLog, at: int) -> bool:
        """Have the file with an offset open, one at a time; False when there is none to be had."""
        if self._file >= 0 and self._file_start <= at:
            place = source.file_at(at)
            if place is not None and place[1] == self._file_start:
                return True
        else:
            place = source.file_at(at)
        if place is None:
            return False
        self._close_file()
        try:
            self._file, self._file_start = os.open(place[0], os.O_RDONLY), place[1]
        except OSError:
            return False  # no descriptor is free: the mapping will do
        return True

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def note_rate(self, now_ms: int) -> None:
        elapsed_ms = now_ms - self.window_ms
        if elapsed_ms >= RATE_WINDOW_MS:
            self.bytes_per_second = self.window_bytes * 1000 // elapsed_ms
            self.window_bytes, self.window_ms = 0, now_ms
