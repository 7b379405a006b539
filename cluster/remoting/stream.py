"""One TCP connection as bytes: cuts what comes into frames, gathers what goes, keeps its limits."""

from __future__ import annotations

import asyncio
import itertools
import logging
import mmap
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, cast

from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting.budget import OutputBudget
from tandemmq.cluster.remoting.errors import PeerBrokeProtocol
from tandemmq.cluster.remoting.frame import PREFIX_BYTES, FrameLimits, bytes_needed
from tandemmq.cluster.remoting.tls import TlsSession
from tandemmq.storage import Clock, SystemClock

log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 256 * 1024  # one buffer for all connections: 64 pipelined sends per read
WHOLE_BYTES: Final = (
    16 * 1024
)  # parts of so many bytes each are written as they are, not joined first
CLOSING_MS: Final = 5_000  # how long a closing connection may take to drain before it is cut

_broken_peers = once_per(10)
_slow_readers = once_per(10)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one peer may cost. Beyond it, the connection is closed."""

    frame: FrameLimits = field(default_factory=FrameLimits)
    first_frame_ms: int = 10_000  # from accept to the first whole frame, TLS handshake included
    frame_ms: int = 15_000  # from a frame's first byte to its last
    idle_ms: int = 120_000  # RocketMQ's serverChannelMaxIdleTimeSeconds
    drain_ms: int = 60_000  # output waiting without the peer reading any of it down
    output_high_bytes: int = 1 << 20  # above it we stop reading requests from this peer
    output_bytes_max: int = 64 << 20  # above it the peer is cut off
    tasks_max: int = 1024  # requests of one connection being worked on; more are refused as busy


@dataclass(slots=True)
class RemotingStats:
    """Plain counters of one endpoint, read by metrics."""

    connections_opened: int = 0
    connections_refused: int = 0
    requests: int = (
        0  # those that came through dispatch, or heard(); sends that took the short path are not
    )
    requests_unsupported: int = 0
    requests_refused: int = 0
    handler_failures: int = 0
    protocol_violations: int = 0
    slow_readers: int = 0
    timeouts: int = 0


class StreamEndpoint:
    """What all streams of one server, or of one client's pool, share; Endpoint adds the requests."""

    def __init__(
        self, limits: ConnectionLimits | None, clock: Clock | None, receive_bytes: int
    ) -> None:
        self.limits = limits or ConnectionLimits()
        self.clock = clock or SystemClock()
        # most endpoints never fill theirs: of a mapping only those pages are memory that were written
        self.receive_buffer = memoryview(mmap.mmap(-1, receive_bytes, mmap.MAP_PRIVATE))
        self.stats = RemotingStats()
        self.budget: OutputBudget | None = None  # shared by all connections of a process's servers
        self._plain_buffer: memoryview | None = None

    @property
    def plain_buffer(self) -> memoryview:
        """Where TLS connections decrypt to; made with the first of them."""
        if self._plain_buffer is None:
            self._plain_buffer = memoryview(bytearray(len(self.receive_buffer)))
        return self._plain_buffer


_ids = itertools.count(1)


class FrameStream(asyncio.BufferedProtocol):
    """The bytes of a peer. Everything here runs on the loop's thread.

    id            unique in this process
    peer          (ip, port) of the other end
    peer_host     the same as 4 or 16 address bytes and 4 port bytes, big-endian: storage's form
    queued_bytes  of output that has not gone to the transport yet: it goes at the end of a chunk, or of the iteration
    """

    __slots__ = (
        "__weakref__",
        "_chunk_active",
        "_close_callbacks",
        "_closed_at_ms",
        "_deferred",
        "_endpoint",
        "_flush_scheduled",
        "_frame_since_ms",
        "_loop",
        "_needed",
        "_opened_ms",
        "_out",
        "_paused_since_ms",
        "_pending",
        "_room",
        "_spoke",
        "_tls",
        "_transport",
        "_undecided",
        "active_ms",
        "close_reason",
        "closed",
        "id",
        "peer",
        "peer_host",
        "queued_bytes",
    )

    def __init__(self, endpoint: StreamEndpoint) -> None:
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._tls: TlsSession | None = None
        self._undecided = False  # whether the first byte says what this is
        self._pending: bytearray | None = None  # a frame that has begun
        self._needed = 0  # bytes until _pending is a whole frame, or its size is known
        self._frame_since_ms = 0
        self._deferred: bytearray | None = None  # received; waits until the peer reads its answers
        self._out: list[bytes | memoryview] = []
        self.queued_bytes = 0
        self._room: asyncio.Event | None = None  # what those wait for that wait in room()
        self._spoke = False  # whether a whole frame has come
        self._chunk_active = False
        self._flush_scheduled = False
        self._paused_since_ms: int | None = None
        self._close_callbacks: list[Callable[[Self], None]] = []
        self._closed_at_ms = 0
        self._opened_ms = self.active_ms = endpoint.clock.monotonic_ms()
        self.id = next(_ids)
        self.peer: tuple[str, int] = ("", 0)
        self.peer_host = b""
        self.closed = False
        self.close_reason = ""

    # ---- what owners use

    @property
    def address(self) -> str:
        """The peer as text, "ip:port"."""
        return f"{self.peer[0]}:{self.peer[1]}"

    @property
    def secured(self) -> bool:
        """Whether this connection is encrypted."""
        return self._tls is not None

    @property
    def output_bytes(self) -> int:
        """Bytes that the peer has not taken from us yet."""
        transport = self._transport
        waiting = transport.get_write_buffer_size() if transport is not None else 0
        return waiting + self.queued_bytes

    def on_close(self, callback: Callable[[Self], None]) -> None:
        """Call once when the connection has ended, whoever ended it; at once if it already has."""
        if self._transport is None and self.closed:
            callback(self)
        else:
            self._close_callbacks.append(callback)

    def write(self, data: bytes | memoryview) -> None:
        """Queue whole frames, or consecutive parts of one; a chunk's output is one transport.write.

        A memoryview must stay valid until the end of this chunk, or of this loop iteration.
        """
        if self.closed:
            return
        self._out.append(data)
        self.queued_bytes += len(data)
        if not self._chunk_active and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def write_now(self, data: bytes) -> None:
        """As write(), and not waiting for the end of this loop iteration."""
        transport = self._transport
        if self._out or self._chunk_active or self._tls is not None or transport is None:
            if not self.closed:
                self._out.append(data)
                self.queued_bytes += len(data)
                if not self._chunk_active:
                    self._flush()
            return
        if self.closed:
            return
        endpoint = self._endpoint
        output_bytes = transport.get_write_buffer_size() + len(data)
        if output_bytes > endpoint.limits.output_bytes_max:
            self._cut_off(output_bytes)
            return
        self.active_ms = endpoint.clock.monotonic_ms()
        transport.write(data)

    def writelines(self, parts: Sequence[bytes | memoryview]) -> None:
        """As write() for many parts: they are copied once, with the rest of the chunk's output."""
        if parts:
            self.write(parts[0])
            if not self.closed:
                self._out += parts[1:]
                self.queued_bytes += sum(map(len, parts[1:]))

    async def room(self) -> None:
        """Wait until there is room for output, or the connection is closed: no more than output_high_bytes are queued,
        and the peer reads.

        For tasks that make large answers: _defer() holds back what a chunk asks for only while it is answered at once.
        """
        high = self._endpoint.limits.output_high_bytes
        while not self.closed and (self._paused_since_ms is not None or self.queued_bytes > high):
            if self._room is None:
                self._room = asyncio.Event()
            await self._room.wait()

    def _make_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    def close(self, reason: str = "closed by us") -> None:
        """Send what is queued, then end the connection. Further output is dropped."""
        if self.closed:
            return
        self._flush()
        self._mark_closed(reason)
        if self._transport is not None:
            if self._tls is not None:
                self._tls.say_goodbye()
                self._send_ciphertext()
            self._transport.close()

    def abort(self, reason: str) -> None:
        """End the connection now; queued output is lost."""
        self._mark_closed(reason)
        if self._transport is not None:
            self._transport.abort()

    # ---- bytes in

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._endpoint.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._undecided and nbytes:
            self._undecided = False
            self._decide(self._endpoint.receive_buffer[0])
        if self.closed:
            return
        endpoint = self._endpoint
        self.active_ms = endpoint.clock.monotonic_ms()
        if self._tls is None:
            self._received(endpoint.receive_buffer, nbytes)
        else:
            self._received_ciphertext(endpoint.receive_buffer[:nbytes])

    def _decide(self, first_byte: int) -> None:
        """By the first byte that comes: plain, TLS, or an end. A server's part."""

    def _received(self, view: memoryview, end: int) -> None:
        if self._deferred is not None:
            self._deferred += view[:end]
            return
        self._chunk_active = True
        try:
            # nearly always whole frames
            start = 0 if self._pending is None else self._complete(self._pending, view, end)
            if start < end and not self.closed:
                start = self._take_frames(view, start, end)
                if start < end and not self.closed:
                    self._begin_frame(view, start, end)
        except PeerBrokeProtocol as problem:
            self._broken(problem)
        finally:
            self._chunk_active = False
        if self._out:
            self._flush()

    def _begin_frame(self, view: memoryview, start: int, end: int) -> None:
        """Keep the first bytes of a frame until the rest has come."""
        limits = self._endpoint.limits.frame
        self._needed = bytes_needed(view, start, end - start, limits)
        self._pending = bytearray(view[start:end])
        self._frame_since_ms = self.active_ms

    def _complete(self, pending: bytearray, view: memoryview, end: int) -> int:
        """Add to the frame that has begun, act on it when whole; where the next one starts."""
        start = 0
        while len(pending) < self._needed:
            stop = min(start + self._needed - len(pending), end)
            pending += view[start:stop]
            start = stop
            if len(pending) < self._needed:
                return end
            if self._needed == PREFIX_BYTES:
                limits = self._endpoint.limits.frame
                self._needed = bytes_needed(pending, 0, PREFIX_BYTES, limits)
        self._pending = None
        self._take_frames(memoryview(pending), 0, len(pending))
        return start

    def _take_frames(self, view: memoryview, start: int, end: int) -> int:
        """Act on the whole frames in view[start:end]; where the first partial one begins.

        A Connection's part. It may _defer() what it has no room to answer. Raises PeerBrokeProtocol.
        """
        raise NotImplementedError

    def _defer(self, rest: memoryview) -> None:
        """Leave the rest of a chunk for when the answers so far are on their way."""
        self._deferred = bytearray(rest)
        if self._transport is not None:
            self._transport.pause_reading()
        self._loop.call_soon(self._take_deferred)

    def _take_deferred(self) -> None:
        if self._deferred is None or self.closed or self._paused_since_ms is not None:
            return  # resume_writing comes back to it
        deferred, self._deferred = self._deferred, None
        self._received(memoryview(deferred), len(deferred))
        if self._deferred is None and self._paused_since_ms is None:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if self._pending is not None:
            self._frame_since_ms = self.active_ms  # that it took so long was our doing
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()

    def _received_ciphertext(self, ciphertext: memoryview) -> None:
        tls = cast(TlsSession, self._tls)
        plain = self._endpoint.plain_buffer
        try:
            tls.feed(ciphertext)
            if not tls.established:
                done = tls.shake_hands()
                self._send_ciphertext()
                if not done:
                    return
                self.handshake_done()
            while not self.closed and (count := tls.read_into(plain)):
                self._received(plain, count)
            if tls.ended and not self.closed:
                self.close("the peer ended TLS")
        except PeerBrokeProtocol as problem:
            self._send_ciphertext()  # the alert that says why
            self._broken(problem)

    def handshake_done(self) -> None:
        """TLS is established; what was queued before goes out now."""
        self._send_ciphertext()

    def _broken(self, problem: PeerBrokeProtocol) -> None:
        self._endpoint.stats.protocol_violations += 1
        _broken_peers.warning(log, "peer broke protocol peer=%s why=%s", self.address, problem)
        self.close(f"broke protocol: {problem}")

    # ---- bytes out

    def _flush(self) -> None:
        self._flush_scheduled = False
        out = self._out
        transport = self._transport
        if not out or transport is None or self.closed:
            return
        buffered = transport.get_write_buffer_size()
        queued = self.queued_bytes
        if buffered + queued > self._endpoint.limits.output_bytes_max:
            self._cut_off(buffered + queued)  # instead of copying more than it may have
            return
        self._out = []
        self.queued_bytes = 0
        self.active_ms = self._endpoint.clock.monotonic_ms()
        tls = self._tls
        first = out[0]
        if len(out) == 1 and isinstance(first, bytes):
            whole = [first]
        elif queued >= len(out) * WHOLE_BYTES and all([type(part) is bytes for part in out]):
            whole = cast(list[bytes], out)
        else:  # even a lone memoryview: a transport would keep it, and with it a mapped segment
            whole = [b"".join(out)]
        if tls is not None:
            for part in whole:
                tls.write(part)
            self._send_ciphertext()
        elif len(whole) == 1:
            transport.write(whole[0])
        else:
            transport.writelines(whole)
        self._make_room()

    def _cut_off(self, output_bytes: int) -> None:
        self._endpoint.stats.slow_readers += 1
        _slow_readers.warning(
            log,
            "slow reader disconnected peer=%s output_bytes=%d",
            self.address,
            output_bytes,
        )
        self._drop_output()
        self.abort("output buffer full: the peer reads too slowly")

    def _drop_output(self) -> None:
        self._out = []
        self.queued_bytes = 0

    def _send_ciphertext(self) -> None:
        if self._tls is not None and self._transport is not None:
            ciphertext = self._tls.take_output()
            if ciphertext and not self._transport.is_closing():
                self._transport.write(ciphertext)

    # ---- life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        if peername:
            self.peer = (_unmapped(peername[0]), peername[1])
            self.peer_host = _pack(*self.peer)
        high = self._endpoint.limits.output_high_bytes
        self._transport.set_write_buffer_limits(high, high // 4)
        self._endpoint.stats.connections_opened += 1
        if self._out:
            self._flush()

    def pause_writing(self) -> None:
        """The peer does not read: take no more requests from it until it does."""
        self._paused_since_ms = self._endpoint.clock.monotonic_ms()
        if self._endpoint.budget is not None:
            self._endpoint.budget.stuck(self)
        if self._transport is not None and not self.closed:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused_since_ms = None
        self._make_room()
        if self._endpoint.budget is not None:
            self._endpoint.budget.moving(self)
        self.active_ms = self._endpoint.clock.monotonic_ms()
        if self._deferred is not None:
            self._loop.call_soon(self._take_deferred)
        else:
            self._resume_reading()

    def eof_received(self) -> bool:
        if not self.closed:
            self._mark_closed("closed by the peer")
        return False  # the transport closes itself

    def connection_lost(self: Self, problem: Exception | None) -> None:
        self._mark_closed(f"lost: {problem}" if problem else "closed by the peer")
        self._transport = None
        if self._endpoint.budget is not None:
            self._endpoint.budget.moving(self)
        self._drop_output()
        self._pending = None
        self._deferred = None
        self._give_up_requests()
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            callback(self)

    def _give_up_requests(self) -> None:
        """The stream has ended: what waits for the peer fails, before owners hear. A Connection's part."""
        raise NotImplementedError

    def _mark_closed(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self.close_reason = reason
            self._closed_at_ms = self._endpoint.clock.monotonic_ms()
            self._make_room()

    def check_deadlines(self, now_ms: int) -> None:
        """Close when the peer is too slow or has gone quiet. Called once a second by the owner."""
        limits = self._endpoint.limits
        if self.closed:
            if now_ms - self._closed_at_ms > CLOSING_MS and self._transport is not None:
                self._transport.abort()
        elif self._paused_since_ms is not None:
            # We do not read from it either: a frame that has begun cannot go on.
            if now_ms - self._paused_since_ms > limits.drain_ms:
                self._endpoint.stats.slow_readers += 1
                self.abort(f"read nothing for {limits.drain_ms} ms while output waited")
        elif self._pending is not None and now_ms - self._frame_since_ms > limits.frame_ms:
            self._too_slow(f"a frame took longer than {limits.frame_ms} ms")
        elif not self._spoke and now_ms - self._opened_ms > limits.first_frame_ms:
            self._too_slow(f"no frame within {limits.first_frame_ms} ms")
        elif now_ms - self.active_ms > limits.idle_ms:
            self._too_slow(f"idle for {limits.idle_ms} ms")

    def _too_slow(self, why: str) -> None:
        self._endpoint.stats.timeouts += 1
        log.debug("connection closed peer=%s why=%s", self.address, why)
        self.close(why)


def _unmapped(ip: str) -> str:
    """An IPv4 address that an IPv6 socket shows as ::ffff:a.b.c.d, as itself."""
    return ip[7:] if ip.startswith("::ffff:") and "." in ip else ip


def _pack(ip: str, port: int) -> bytes:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    return socket.inet_pton(family, ip.partition("%")[0]) + struct.pack(">i", port)
