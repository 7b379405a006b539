"""Slave side of the classic HA stream: follows a master and appends what it ships. Shell of SlaveCore.

Bodies go from the receive buffer to the log as they are; the buffer holds a frame at most, and a slave that cannot
append does not read on. Of the reports that one read earns only the last leaves: it speaks for all.
Source: replication spec "Frames" (1.3), "Slave side" (1.5), "Timers" (1.6). RocketMQ's DefaultHAClient.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, cast

from replication.errors import PeerBrokeProtocol
from replication.frames import (
    Buffer,
    Dialect,
    MasterFrameReader,
    Report,
    Transfer,
    encode_slave_frame,
)
from replication.master import Tick
from replication.slave import (
    ANSWER_MS_MAX,
    NO_CONNECTION,
    RETRY_MS_MIN,
    Append,
    AppendFailed,
    CloseStream,
    Connect,
    Connected,
    Effect,
    Event,
    Follow,
    FrameReceived,
    ReportProgress,
    SlaveCore,
    StreamClosed,
    Unfollow,
)
from storage import Clock, SegmentUnavailable, StoreIsFull

log = logging.getLogger(__name__)

TICK_MS: Final = 500  # granularity of heartbeats and housekeeping while a stream is up
BUFFER_BYTES: Final = (
    1 << 20
)  # grows to the largest frame there may be, 4 MiB, when a master sends such
UNSENT_BYTES_MAX: Final = 4096  # reports the master does not read; beyond, only the newest is kept


class RawLog(Protocol):
    """The log that is appended to. storage.CommitLog is one."""

    def append_raw(self, data: memoryview, offset: int) -> int:
        """Write bytes that continue the log; its new end.

        Raises StoreIsFull, SegmentUnavailable; FlushFailed, which is final.
        """


class ReplicaStore(Protocol):
    """What of a store a slave needs. storage.MessageStore is one."""

    @property
    def log(self) -> RawLog: ...

    @property
    def end(self) -> int:
        """Log offset of the next byte."""

    def note_appended(self, count: int, size: int) -> None:
        """Count what was appended, and have it dispatched."""


Dial = Callable[[str, int, "Callable[[], Link]"], Awaitable[object]]
"""Open a connection to host and port and attach a Link to it. Raises OSError."""


@dataclass(slots=True)
class ReceiverStats:
    """Plain counters since the start, and what went wrong last."""

    connects: int = 0
    received_bytes: int = 0
    appended_bytes: int = 0
    last_read_ms: int = 0  # wall time
    last_write_ms: int = 0  # wall time
    last_problem: str = ""


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port". Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not host or not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


class Link(asyncio.BufferedProtocol):
    """One connection to a master: the buffer between its socket and our log.

    The kernel writes into the buffer, view[start:fill] is what is not taken yet, at most one partial frame.
    """

    def __init__(self, receiver: Receiver, number: int) -> None:
        self.number = number
        self.closed = False
        self._receiver = receiver
        self._reader = MasterFrameReader(Dialect.CLASSIC)
        self._transport: asyncio.Transport | None = None
        self._view = memoryview(bytearray(BUFFER_BYTES))
        self._start = 0
        self._fill = 0
        self._paused = False
        self._unsent = b""

    # --- what the transport calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's have no common base
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self._receiver.guarded(lambda: self._receiver.link_up(self))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self.closed:
            self._start = self._fill = 0  # whatever still comes is not looked at
        assert self._fill < len(self._view)  # make_room() saw to it
        return self._view[self._fill :]

    def buffer_updated(self, nbytes: int) -> None:
        self._fill += nbytes
        if not self.closed:
            self._receiver.guarded(lambda: self._receiver.received(self, nbytes))

    def connection_lost(self, exc: Exception | None) -> None:
        why = "closed by the master" if exc is None else str(exc)
        self._receiver.guarded(lambda: self._receiver.link_down(self, why))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._unsent:
            self.write(self._unsent)

    # --- what the receiver calls ---

    def frames(self) -> list[Transfer]:
        """The whole frames that are there. Release their bodies, then call make_room(). Raises PeerBrokeProtocol."""
        found, self._start = self._reader.read(self._view, self._start, self._fill)
        return [frame for frame in found if isinstance(frame, Transfer)]

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

    def write(self, report: bytes) -> None:
        """Send a report; while the master does not read, the newest one waits."""
        assert self._transport is not None
        self._unsent = report if self._paused else b""
        if not self._paused:
            self._transport.write(report)

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()


async def _dial_tcp(host: str, port: int, make: Callable[[], Link]) -> object:
    return await asyncio.get_running_loop().create_connection(make, host, port)


class Receiver:
    """Feeds a SlaveCore with `classic` what its master sends, and the store as the core decides.

    core       made with the store's end; nobody else steps it meanwhile
    on_effect  gets every effect that is neither about the connection nor an append: Alarm, Confirmed

    follow() says whom to follow; run() serves. What is final, a failed assertion or the store's FlushFailed, comes out
    of run().
    """

    def __init__(
        self,
        store: ReplicaStore,
        core: SlaveCore,
        clock: Clock,
        *,
        on_effect: Callable[[Effect], None],
        dial: Dial = _dial_tcp,
    ) -> None:
        assert core.classic, "epochs need a greeting, which classic HA has not"
        self.stats = ReceiverStats()
        self._store = store
        self._core = core
        self._clock = clock
        self._on_effect = on_effect
        self._dial = dial
        self._links: dict[int, Link] = {}  # one; two while the core refuses the later of them
        self._last_number = NO_CONNECTION
        self._connecting: asyncio.Task[None] | None = None
        self._body: Buffer = b""  # of the frame the core is deciding about
        self._report: ReportProgress | None = None
        self._kick = asyncio.Event()
        self._failure: Exception | None = None

    # --- whom to follow ---

    def follow(self, address: str) -> None:
        """Follow the master at "host:port" from now on; the one it follows already changes nothing.

        Call it on the loop. Raises ValueError for what is no address.
        """
        parse_address(address)
        self._step(Follow(0, address, 0))

    def unfollow(self, why: str) -> None:
        """Leave the master: our role changes, or nobody knows where it is."""
        self._step(Unfollow(why))

    async def run(self) -> None:
        """Serve until cancelled; leaving closes the connection."""
        try:
            while True:
                interval_ms = TICK_MS if self._core.streaming else RETRY_MS_MIN
                try:
                    async with asyncio.timeout(interval_ms / 1000):
                        await self._kick.wait()
                except TimeoutError:
                    pass
                self._kick.clear()
                if self._failure is not None:
                    raise self._failure
                self.tick()
        finally:
            self.unfollow("the broker stops")
            if self._connecting is not None:
                self._connecting.cancel()
                await asyncio.wait({self._connecting})

    def tick(self) -> None:
        """Retries, heartbeats, and an end to a silent master. Call it every TICK_MS, more often without a stream."""
        self._step(Tick())

    # --- events ---

    def _step(self, event: Event) -> None:
        self._perform(self._core.step(event, self._clock.monotonic_ms()))
        self._send_report()

    def link_up(self, link: Link) -> None:
        """A connect succeeded."""
        self._links[link.number] = link
        self.stats.connects += 1
        log.info("connected to master connection=%d end=%d", link.number, self._store.end)
        self._step(Connected(link.number))
        self._kick.set()  # tick in the rhythm of a stream

    def link_down(self, link: Link, why: str) -> None:
        """The connection ended, by whomever."""
        if self._links.pop(link.number, None) is not None:  # else it was we who closed it
            log.warning(
                "lost master connection=%d end=%d why=%s", link.number, self._store.end, why
            )
            self.stats.last_problem = why
        link.closed = True
        self._step(StreamClosed(link.number, why))
        self._kick.set()

    def received(self, link: Link, count: int) -> None:
        """Bytes came in: append what is whole."""
        self.stats.received_bytes += count
        self.stats.last_read_ms = self._clock.now_ms()
        frames: list[Transfer] = []
        try:
            try:
                frames = link.frames()
                for frame in frames:
                    self._take(link, frame)
                    if link.closed:
                        break
            finally:
                self._body = b""
                for frame in frames:
                    if isinstance(frame.body, memoryview):
                        frame.body.release()
            if not link.closed:
                link.make_room()
        except PeerBrokeProtocol as problem:
            self._close(link.number, str(problem))
            self._step(StreamClosed(link.number, str(problem)))
        self._send_report()

    def _take(self, link: Link, frame: Transfer) -> None:
        self._body = frame.body
        event = FrameReceived(link.number, frame.offset, len(frame.body))
        self._perform(self._core.step(event, self._clock.monotonic_ms()))

    # --- effects ---

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Connect(_, address):
                    self._connect(address)
                case CloseStream(number, reason):
                    self._close(number, reason)
                case Append(offset, size):
                    if not self._append(offset, size):
                        return  # what follows counts on it
                case ReportProgress():
                    self._report = effect
                case _:
                    self._on_effect(effect)

    def _append(self, offset: int, size: int) -> bool:
        with memoryview(self._body) as body:
            assert len(body) == size
            try:
                self._store.log.append_raw(body, offset)
            except (StoreIsFull, SegmentUnavailable) as error:
                failed = AppendFailed(self._store.end, str(error))
                self._perform(self._core.step(failed, self._clock.monotonic_ms()))
                return False
        self.stats.appended_bytes += size
        self._store.note_appended(0, size)  # how many records, dispatch finds out
        return True

    def _send_report(self) -> None:
        report, self._report = self._report, None
        link = self._links.get(report.connection) if report is not None else None
        if report is not None and link is not None:
            link.write(encode_slave_frame(Report(report.received), Dialect.CLASSIC))
            self.stats.last_write_ms = self._clock.now_ms()

    def _close(self, number: int, why: str) -> None:
        link = self._links.pop(number, None)
        if link is None:
            return
        log.warning("left master connection=%d end=%d why=%s", number, self._store.end, why)
        self.stats.last_problem = why
        link.close()
        self._kick.set()

    # --- connecting ---

    def _connect(self, address: str) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        self._connecting = asyncio.get_running_loop().create_task(
            self._open(address), name="connect to master"
        )

    async def _open(self, address: str) -> None:
        def make() -> Link:
            self._last_number += 1
            return Link(self, self._last_number)

        host, port = parse_address(address)
        try:
            async with asyncio.timeout(ANSWER_MS_MAX / 1000):
                await self._dial(host, port, make)
        except (OSError, TimeoutError) as error:
            why = f"cannot connect to {address}: {error or 'no answer'}"
            if why != self.stats.last_problem:
                log.warning("no master why=%s", why)
            self.stats.last_problem = why
            self.guarded(lambda: self._step(StreamClosed(NO_CONNECTION, why)))

    def guarded(self, step: Callable[[], None]) -> None:
        """Run a callback of the loop. The loop would log a failure and go on; what is final must end run()."""
        try:
            step()
        except Exception as error:
            self._failure = self._failure or error
            self._kick.set()
            for link in self._links.values():
                link.close()
