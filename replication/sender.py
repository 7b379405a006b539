"""Master side of the classic HA stream: takes slaves in and ships them the log. Shell of MasterCore.

Nothing is buffered here: what a slave's socket does not take stays in the log and is read there again when there is
room. So a slow slave costs one file descriptor, never memory, and no slice of the log outlives the call that sent it.
Source: replication spec "Frames" (1.3), "Master side per connection" (1.4), "Timers" (1.6). RocketMQ's DefaultHAService
and DefaultHAConnection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from replication.errors import PeerBrokeProtocol
from replication.frames import (
    Buffer,
    Dialect,
    Report,
    SlaveFrameReader,
    Transfer,
    encode_transfer_head,
)
from replication.master import (
    NEVER,
    Admit,
    Appended,
    Drop,
    Effect,
    MasterCore,
    SlaveGreeted,
    SlaveLost,
    SlaveReported,
    StreamFrom,
    Trimmed,
)
from storage import Clock

log = logging.getLogger(__name__)

TICK_MS: Final = 500  # granularity of heartbeats and housekeeping
RATE_WINDOW_MS: Final = 1000
REPORT_BYTES_MAX: Final = 4096  # read at once: 512 reports
PIECES_MAX: Final = 256  # frames in one write: two buffers each, the kernel takes 1024
CONNECTIONS_MAX: Final = 64
ACCEPTED_MAX: Final = 16  # per wake-up


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


class Wire(Protocol):
    """The bytes to and from one slave; nothing blocks."""

    def send(self, buffers: Sequence[Buffer]) -> int:
        """Hand bytes to the kernel; how many it took, 0 when it is full. Raises OSError."""

    def receive(self) -> bytes | None:
        """What came in, b"" at the end of the stream, None when nothing is there. Raises OSError."""

    def wait_writable(self, wanted: bool) -> None:
        """Whether Sender.writable() is to be called while there is room."""

    def close(self) -> None:
        """Let go of the connection; unsent bytes may be lost."""


@dataclass(slots=True)
class SlaveStatus:
    """One connected slave, for operators: request GET_BROKER_HA_STATUS."""

    peer: str
    acked: int  # NEVER before its first report
    next_offset: int  # NEVER before its first report
    bytes_per_second: int


@dataclass(slots=True)
class _Piece:
    """What is left of one frame: head bytes, then log[at:stop]."""

    head: Buffer
    at: int
    stop: int


class _LogGone(Exception):
    """Retention took what a slave still needs."""


class _Stream:
    """One connected slave: where its stream stands.

    next_offset  first byte that is in no frame yet; NEVER until the core said where to begin
    sent         everything below was handed to the kernel
    unfinished   the rest of a frame that was begun: it must be completed as announced
    """

    __slots__ = (
        "acked", "bytes_per_second", "heard_ms", "left", "next_offset", "number", "peer", "reader", "sent",
        "unfinished", "window_bytes", "window_ms", "wire", "wrote_ms",
    )  # fmt: skip

    def __init__(self, number: int, wire: Wire, peer: str, now_ms: int) -> None:
        self.number = number
        self.wire = wire
        self.peer = peer
        self.reader = SlaveFrameReader(Dialect.CLASSIC)
        self.left = b""  # less than one report
        self.acked = NEVER
        self.next_offset = NEVER
        self.sent = NEVER
        self.unfinished: _Piece | None = None
        self.heard_ms = self.wrote_ms = self.window_ms = now_ms
        self.window_bytes = 0
        self.bytes_per_second = 0

    def begin(self, offset: int, now_ms: int) -> None:
        self.next_offset = self.sent = offset
        self.wrote_ms = now_ms

    def behind(self, end: int) -> bool:
        """Whether there is something to write."""
        return self.unfinished is not None or NEVER < self.next_offset < end

    def ship(self, source: SourceLog, end: int, segment_bytes: int, batch_bytes: int) -> int:
        """Write once: what is unfinished and frames up to `end`, about batch_bytes; the bytes taken.

        Raises _LogGone, OSError.
        """
        pieces = self._plan(end, segment_bytes, batch_bytes)
        buffers: list[Buffer] = []
        bodies: list[memoryview] = []
        try:
            for piece in pieces:
                if piece.head:
                    buffers.append(piece.head)
                if piece.at < piece.stop:
                    body = source.read(piece.at, piece.stop - piece.at)
                    if body is None:
                        raise _LogGone(
                            f"needs {piece.at}, our log starts at {source.start}: it must be seeded anew"
                        )
                    bodies.append(body)
                    buffers.append(body)
            taken = self.wire.send(buffers)
        finally:
            for body in bodies:
                body.release()
        self._account(pieces, taken)
        self.window_bytes += taken
        return taken

    def _plan(self, end: int, segment_bytes: int, batch_bytes: int) -> list[_Piece]:
        """The frames of one write. None crosses the end of a file: a stock slave could not store it."""
        pieces: list[_Piece] = []
        at, room = self.next_offset, batch_bytes
        if self.unfinished is not None:
            pieces.append(self.unfinished)
            room -= self.unfinished.stop - self.unfinished.at
        while room > 0 and at < end and len(pieces) < PIECES_MAX:
            size = min(room, end - at, segment_bytes - at % segment_bytes)
            head = encode_transfer_head(Transfer(at), Dialect.CLASSIC, body_bytes=size)
            pieces.append(_Piece(head, at, at + size))
            at += size
            room -= size
        return pieces

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


class Sender:
    """Feeds a MasterCore what its slaves say, and slaves the log as the core decides.

    core           ours to step for slaves and for the growth of the log; who steps it elsewhere hands the effects to
                   perform()
    segment_bytes  size of the log's files
    on_effect      gets every effect that is not about a connection: Confirmed, Acknowledge, Propose ...

    wake() after each append; run() serves. A failed assertion in a callback comes out of run().
    """

    def __init__(
        self,
        source: SourceLog,
        core: MasterCore,
        clock: Clock,
        *,
        segment_bytes: int,
        on_effect: Callable[[Effect], None],
    ) -> None:
        self._source = source
        self._core = core
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._on_effect = on_effect
        self._streams: dict[int, _Stream] = {}
        self._last_number = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: socket.socket | None = None
        self._accepting = False
        self._woken = False
        self._kick = asyncio.Event()
        self._failure: Exception | None = None

    # --- what others ask and say ---

    def status(self) -> list[SlaveStatus]:
        """Every connection, oldest first."""
        return [
            SlaveStatus(each.peer, each.acked, each.next_offset, each.bytes_per_second)
            for each in self._streams.values()
        ]

    def wake(self) -> None:
        """The log has grown: ship it once the present callback of the loop is through."""
        if not self._woken and self._loop is not None:
            self._woken = True
            self._loop.call_soon(self._guarded, self.pump)

    def perform(self, effects: Iterable[Effect]) -> None:
        """Perform effects of the core in order."""
        for effect in effects:
            match effect:
                case Admit():
                    pass  # classic HA has no greeting
                case StreamFrom(number, offset, newest_file):
                    self._begin(number, offset, newest_file)
                case Drop(number, reason):
                    self._close(number, reason, logging.WARNING)
                case _:
                    self._on_effect(effect)

    def close(self, why: str) -> None:
        """Drop every slave."""
        for number in list(self._streams):
            self._lost(number, why, logging.INFO)

    # --- connections ---

    def attach(self, wire: Wire, peer: str) -> int:
        """Take a connection in; the number that readable() and writable() go by.

        Nothing is sent, and no slave counts, before its first report.
        """
        self._last_number += 1
        number = self._last_number
        self._streams[number] = _Stream(number, wire, peer, self._clock.monotonic_ms())
        log.info("slave connected peer=%s connection=%d", peer, number)
        return number

    def readable(self, number: int) -> None:
        """Take in what a slave sent."""
        stream = self._streams.get(number)
        if stream is None:
            return
        try:
            data = stream.wire.receive()
        except OSError as error:
            self._lost(number, str(error), logging.INFO)
            return
        if data is None:
            return
        if not data:
            self._lost(number, "closed by the slave", logging.INFO)
            return
        stream.heard_ms = self._clock.monotonic_ms()
        data = stream.left + data
        try:
            frames, consumed = stream.reader.read(memoryview(data), 0, len(data))
        except PeerBrokeProtocol as problem:
            self._lost(number, str(problem), logging.WARNING)
            return
        stream.left = data[consumed:]
        self._reported(stream, [frame for frame in frames if isinstance(frame, Report)])

    def _reported(self, stream: _Stream, reports: list[Report]) -> None:
        """The last of several reports speaks for all, unless one claims more: then each must be plausible."""
        if not reports:
            return
        if max(each.received for each in reports) == reports[-1].received:
            reports = reports[-1:]
        self._note_log()
        for report in reports:
            now_ms = self._clock.monotonic_ms()
            if stream.acked == NEVER:
                # classic slaves have no id: a number that no replica has, another per connection
                self.perform(self._core.step(SlaveGreeted(stream.number, -stream.number), now_ms))
            event = SlaveReported(stream.number, report.received, None, None, stream.sent)
            self.perform(self._core.step(event, now_ms))
            if stream.number not in self._streams:
                return  # refused
            stream.acked = report.received

    def writable(self, number: int) -> None:
        """Go on where a slave's socket was full."""
        stream = self._streams.get(number)
        if stream is not None:
            self._ship(stream)

    def _begin(self, number: int, offset: int, newest_file: bool) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        if newest_file:
            end = self._core.end
            offset = max(end - end % self._segment_bytes, self._source.start)
        stream.begin(offset, self._clock.monotonic_ms())
        log.info("slave follows peer=%s from=%d end=%d", stream.peer, offset, self._core.end)
        self._ship(stream)

    def _lost(self, number: int, why: str, level: int) -> None:
        if self._close(number, why, level):
            self.perform(self._core.step(SlaveLost(number), self._clock.monotonic_ms()))

    def _close(self, number: int, why: str, level: int) -> bool:
        stream = self._streams.pop(number, None)
        if stream is None:
            return False
        stream.wire.close()
        log.log(
            level, "slave dropped peer=%s connection=%d acked=%d sent=%d why=%s",
            stream.peer, number, stream.acked, stream.sent, why,
        )  # fmt: skip
        return True

    # --- the log ---

    def _note_log(self) -> None:
        """Tell the core how far our log reaches: no slave may hold more than it knows of."""
        now_ms = self._clock.monotonic_ms()
        end, start = self._source.end, self._source.start
        if end > self._core.end:
            self.perform(self._core.step(Appended(end), now_ms))
        if start > self._core.start:
            self.perform(self._core.step(Trimmed(start), now_ms))

    def pump(self) -> None:
        """Ship what the log has to every slave whose socket is not full: one write each."""
        self._woken = False
        self._note_log()
        for stream in list(self._streams.values()):
            if stream.behind(self._core.end):
                self._ship(stream)

    def _ship(self, stream: _Stream) -> None:
        """One write. When more is to be done the loop calls again as soon as there is room."""
        end = self._core.end
        try:
            if stream.behind(end):
                batch_bytes = self._core.rules.batch_bytes
                if stream.ship(self._source, end, self._segment_bytes, batch_bytes):
                    stream.wrote_ms = self._clock.monotonic_ms()
        except _LogGone as problem:
            self._lost(stream.number, str(problem), logging.ERROR)
        except OSError as error:
            self._lost(stream.number, str(error), logging.INFO)
        else:
            stream.wire.wait_writable(stream.behind(end))

    def tick(self) -> None:
        """Heartbeats, and an end to connections that are silent. Call it every TICK_MS."""
        now_ms = self._clock.monotonic_ms()
        rules = self._core.rules
        for stream in list(self._streams.values()):
            stream.note_rate(now_ms)
            if now_ms - stream.heard_ms >= rules.stream_silence_ms:
                why = f"silent for {rules.stream_silence_ms} ms"
                self._lost(stream.number, why, logging.WARNING)
            elif (
                now_ms - stream.wrote_ms >= rules.stream_heartbeat_ms
                and stream.next_offset != NEVER
                and not stream.behind(self._core.end)
            ):
                head = encode_transfer_head(Transfer(stream.next_offset), Dialect.CLASSIC)
                stream.unfinished = _Piece(head, stream.next_offset, stream.next_offset)
                self._ship(stream)

    # --- serving ---

    async def run(self, listener: socket.socket) -> None:
        """Serve until cancelled, on a socket of open_listener(), which stays the caller's to close."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._accept_again()
        try:
            while True:
                try:
                    async with asyncio.timeout(TICK_MS / 1000):
                        await self._kick.wait()
                except TimeoutError:
                    pass
                if self._failure is not None:
                    raise self._failure
                self._accept_again()
                self.tick()
        finally:
            if self._accepting:
                self._loop.remove_reader(listener)
                self._accepting = False
            self._loop = None
            self.close("the broker stops serving slaves")

    def _accept_again(self) -> None:
        if not self._accepting and self._loop is not None and self._listener is not None:
            self._accepting = True
            self._loop.add_reader(self._listener, self._guarded, self._accept)

    def _accept(self) -> None:
        assert self._loop is not None and self._listener is not None
        for _ in range(ACCEPTED_MAX):
            try:
                connected, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # out of descriptors, mostly: not again before the next tick, or the loop would spin
                log.warning("cannot accept a slave why=%s", error)
                self._loop.remove_reader(self._listener)
                self._accepting = False
                return
            peer = f"{address[0]}:{address[1]}"
            if len(self._streams) >= CONNECTIONS_MAX:
                log.warning("slave refused peer=%s why=%d are connected", peer, CONNECTIONS_MAX)
                connected.close()
                continue
            wire = SocketWire(connected, self._loop)
            number = self.attach(wire, peer)
            wire.watch(
                lambda number=number: self._guarded(self.readable, number),  # type: ignore[misc]
                lambda number=number: self._guarded(self.writable, number),  # type: ignore[misc]
            )

    def _guarded(self, step: Callable[..., None], *arguments: int) -> None:
        """Run a callback of the loop. The loop would log a failure and go on; a bug must end run()."""
        try:
            step(*arguments)
        except Exception as error:
            self._failure = self._failure or error
            self._kick.set()


def open_listener(host: str, port: int) -> socket.socket:
    """The HA port. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=CONNECTIONS_MAX)
    listener.setblocking(False)
    return listener


class SocketWire:
    """A TCP connection as a Wire: the log's pages go to the kernel in one sendmsg, without a copy in between."""

    def __init__(self, connected: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._loop = loop
        self._writable: Callable[[], None] | None = None
        self._waiting = False

    def watch(self, readable: Callable[[], None], writable: Callable[[], None]) -> None:
        """Call `readable` when bytes are there, and `writable` while wait_writable(True) holds."""
        self._writable = writable
        self._loop.add_reader(self._socket, readable)

    def send(self, buffers: Sequence[Buffer]) -> int:
        try:
            return self._socket.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            return 0

    def receive(self) -> bytes | None:
        try:
            return self._socket.recv(REPORT_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return None

    def wait_writable(self, wanted: bool) -> None:
        if wanted == self._waiting:
            return
        self._waiting = wanted
        if wanted:
            assert self._writable is not None, "watch() comes first"
            self._loop.add_writer(self._socket, self._writable)
        else:
            self._loop.remove_writer(self._socket)

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
