"""One TCP connection that carries frames both ways, accepted by a server or opened by a client."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from cluster.logs import once_per
from cluster.remoting.codes import ResponseCode
from cluster.remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from cluster.remoting.errors import (
    ConnectionLost,
    HeaderProblem,
    PeerBrokeProtocol,
    RemotingError,
    RequestTimedOut,
)
from cluster.remoting.frame import PREFIX_BYTES, FrameLimits, bytes_needed
from cluster.remoting.tls import TlsSession
from storage import Clock, SystemClock

log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 256 * 1024  # one buffer for all connections: 64 pipelined sends per read
REMARK_LENGTH_MAX: Final = 512
CLOSING_MS: Final = 5_000  # how long a closing connection may take to drain before it is cut

_broken_peers = once_per(10)
_failed_handlers = once_per(10)
_slow_readers = once_per(10)

Handler = Callable[[Command, "Connection"], Command | Awaitable[Command | None] | None]
"""A Command: the answer, sent with the chunk. Awaitable: a task. None: send() later, or never."""

ChunkHandler = Callable[[memoryview, int, int, "Connection"], int]
"""(view, start, end, connection) -> where it stopped. Takes whole frames only, none of them kept:
the view is overwritten by the next read. Frames it does not want: connection.dispatch(view[a:b]),
or stop in front of one, which is then dispatched here. Output through connection.write."""


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
    requests: int = 0  # those that came through dispatch; a chunk handler counts its own
    requests_unsupported: int = 0
    requests_refused: int = 0
    handler_failures: int = 0
    protocol_violations: int = 0
    slow_readers: int = 0
    timeouts: int = 0


class Endpoint:
    """What all connections of one server, or of one client's pool, share."""

    def __init__(
        self,
        table: Mapping[int, Handler],
        *,
        limits: ConnectionLimits | None = None,
        chunk: ChunkHandler | None = None,
        clock: Clock | None = None,
        error_reply: Callable[[Exception], tuple[int, str] | None] | None = None,
        receive_bytes: int = RECEIVE_BYTES,
    ) -> None:
        self.table = table
        self.limits = limits or ConnectionLimits()
        self.chunk = chunk
        self.clock = clock or SystemClock()
        self.error_reply = error_reply
        self.receive_buffer = memoryview(bytearray(receive_bytes))
        self.stats = RemotingStats()
        self.tasks: set[asyncio.Task[None]] = set()
        self._opaque = itertools.count(1)
        self._plain_buffer: memoryview | None = None

    def next_opaque(self) -> int:
        """A request id: 31 bits, never 0 (the JavaScript client mis-assigns 0)."""
        return (next(self._opaque) & 0x7FFFFFFF) or self.next_opaque()

    @property
    def plain_buffer(self) -> memoryview:
        """Where TLS connections decrypt to; made with the first of them."""
        if self._plain_buffer is None:
            self._plain_buffer = memoryview(bytearray(len(self.receive_buffer)))
        return self._plain_buffer


_Waiting = tuple[asyncio.Future[Command], int, int, int]
"""A request of ours without its answer yet: future, deadline_ms, code, timeout_ms."""

_ids = itertools.count(1)


class Connection(asyncio.BufferedProtocol):
    """A peer. Everything here runs on the loop's thread.

    id            unique in this process
    peer          (ip, port) of the other end
    peer_host     the same as 4 or 16 address bytes and 4 port bytes, big-endian: storage's form
    language, version, binary_last   as the last frame of the peer said
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
        "_mirrors",
        "_needed",
        "_opened_ms",
        "_out",
        "_paused_since_ms",
        "_pending",
        "_spoke",
        "_tasks",
        "_timer",
        "_timer_at_ms",
        "_tls",
        "_transport",
        "_waiting",
        "active_ms",
        "binary_last",
        "close_reason",
        "closed",
        "id",
        "language",
        "peer",
        "peer_host",
        "version",
    )

    def __init__(self, endpoint: Endpoint, *, mirrors: bool) -> None:
        """mirrors: our own requests take the header form of the peer's last frame (server side)."""
        self._endpoint = endpoint
        self._mirrors = mirrors
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._tls: TlsSession | None = None
        self._pending: bytearray | None = None  # a frame that has begun
        self._needed = 0  # bytes until _pending is a whole frame, or its size is known
        self._frame_since_ms = 0
        self._deferred: bytearray | None = None  # received; waits until the peer reads its answers
        self._out: list[bytes | memoryview] = []
        self._spoke = False  # whether a whole frame has come
        self._chunk_active = False
        self._flush_scheduled = False
        self._paused_since_ms: int | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._tasks = 0
        self._close_callbacks: list[Callable[[Connection], None]] = []
        self._closed_at_ms = 0
        self._opened_ms = self.active_ms = endpoint.clock.monotonic_ms()
        self.id = next(_ids)
        self.peer: tuple[str, int] = ("", 0)
        self.peer_host = b""
        self.closed = False
        self.close_reason = ""
        self.language = 0
        self.version = 0
        self.binary_last = False

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
        return waiting + sum(map(len, self._out))

    def on_close(self, callback: Callable[[Connection], None]) -> None:
        """Call once when the connection has ended, whoever ended it; at once if it already has."""
        if self._transport is None and self.closed:
            callback(self)
        else:
            self._close_callbacks.append(callback)

    def send(self, command: Command) -> None:
        """Write one command. Dropped when closed, and when it would answer a oneway request."""
        if self.closed or command.flag & 3 == RESPONSE_FLAG | ONEWAY_FLAG:
            return
        body = command.body
        if body is None:
            self.write(command.encode_head(0))
        else:
            self.write(command.encode_head(len(body)))
            self.write(body)

    def write(self, data: bytes | memoryview) -> None:
        """Queue whole frames, or consecutive parts of one; a chunk's output is one transport.write.

        A memoryview must stay valid until the end of this chunk, or of this loop iteration.
        """
        if self.closed:
            return
        self._out.append(data)
        if not self._chunk_active and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def write_now(self, data: bytes) -> None:
        """As write(), and not waiting for the end of this loop iteration."""
        if not self.closed:
            self._out.append(data)
            if not self._chunk_active:
                self._flush()

    def writelines(self, parts: Sequence[bytes | memoryview]) -> None:
        """As write() for many parts: they are copied once, with the rest of the chunk's output."""
        if parts:
            self.write(parts[0])
            if not self.closed:
                self._out += parts[1:]

    def oneway(self, command: Command) -> None:
        """Send a request that nobody answers."""
        command.flag |= ONEWAY_FLAG
        command.opaque = self._endpoint.next_opaque()
        if self._mirrors:
            command.binary = self.binary_last
        self.send(command)

    def request_nowait(self, command: Command, timeout_ms: int) -> asyncio.Future[Command]:
        """Send a request; the future brings its response, RequestTimedOut or ConnectionLost.

        Raises ConnectionLost at once when the connection is closed: nothing was sent.
        """
        if self.closed:
            raise ConnectionLost(self.address, self.close_reason)
        opaque = command.opaque = self._endpoint.next_opaque()
        if self._mirrors:
            command.binary = self.binary_last
        future: asyncio.Future[Command] = self._loop.create_future()
        now_ms = self._endpoint.clock.monotonic_ms()
        deadline_ms = now_ms + timeout_ms
        self._waiting[opaque] = (future, deadline_ms, command.code, timeout_ms)
        if self._timer is None or deadline_ms < self._timer_at_ms:
            self._arm_timer(deadline_ms, now_ms)
        self.send(command)
        return future

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """The response to `command`. Raises RequestTimedOut, ConnectionLost."""
        future = self.request_nowait(command, timeout_ms)
        try:
            return await future
        except asyncio.CancelledError:
            self._waiting.pop(command.opaque, None)
            raise

    @property
    def requests_waiting(self) -> int:
        """Requests of ours without an answer yet."""
        return len(self._waiting)

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

    # ---- frames

    def dispatch(self, frame: memoryview) -> None:
        """Read one whole frame and act on it. Raises PeerBrokeProtocol."""
        endpoint = self._endpoint
        command = Command.decode(frame, endpoint.limits.frame)
        self.language = command.language
        self.version = command.version
        self.binary_last = command.binary
        if command.flag & RESPONSE_FLAG:
            self._settle(command)
            return
        endpoint.stats.requests += 1
        handler = endpoint.table.get(command.code)
        if handler is None:
            endpoint.stats.requests_unsupported += 1
            self.send(
                command.reply(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {command.code} not supported",
                )
            )
            return
        try:
            result = handler(command, self)
        except AssertionError:
            raise  # our bug: the process stops
        except Exception as problem:
            self.send(self._failure_reply(command, problem))
            return
        if result is None:
            return
        if isinstance(result, Command):
            self.send(result)
        elif self._tasks >= endpoint.limits.tasks_max:
            _abandon(result)
            endpoint.stats.requests_refused += 1
            self.send(
                command.reply(
                    ResponseCode.SYSTEM_BUSY,
                    f"[OVERLOAD]{self._tasks} requests of this connection are being worked on",
                )
            )
        else:
            self._tasks += 1
            task = self._loop.create_task(
                self._finish(command, result), name=f"request {command.code} of {self.address}"
            )
            endpoint.tasks.add(task)
            task.add_done_callback(self._task_done)

    async def _finish(self, command: Command, result: Awaitable[Command | None]) -> None:
        try:
            answer = await result
        except AssertionError:
            raise
        except Exception as problem:
            answer = self._failure_reply(command, problem)
        if answer is not None:
            self.send(answer)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks -= 1
        self._endpoint.tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": f"{task.get_name()} failed", "exception": problem, "task": task}
            )

    def _failure_reply(self, command: Command, problem: Exception) -> Command:
        """SYSTEM_ERROR with a short text, or what the endpoint's own table says."""
        known = self._endpoint.error_reply
        if known is not None and (mapped := known(problem)) is not None:
            return command.reply(mapped[0], mapped[1])
        if not isinstance(problem, HeaderProblem):
            self._endpoint.stats.handler_failures += 1
            if _failed_handlers():
                log.error(
                    "request failed code=%d peer=%s", command.code, self.address, exc_info=problem
                )
            remark = f"{type(problem).__name__}: {problem}"
        else:
            remark = str(problem)
        return command.reply(ResponseCode.SYSTEM_ERROR, remark[:REMARK_LENGTH_MAX])

    def _settle(self, response: Command) -> None:
        waiting = self._waiting.pop(response.opaque, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(response)

    # ---- bytes

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._endpoint.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        self.active_ms = self._endpoint.clock.monotonic_ms()
        if self._tls is None:
            self._received(self._endpoint.receive_buffer, nbytes)
        else:
            self._received_ciphertext(self._endpoint.receive_buffer[:nbytes])

    def _received(self, view: memoryview, end: int) -> None:
        if self._deferred is not None:
            self._deferred += view[:end]
            return
        self._chunk_active = True
        try:
            self._take(view, end)
        except PeerBrokeProtocol as problem:
            self._broken(problem)
        finally:
            self._chunk_active = False
        if self._out:
            self._flush()

    def _take(self, view: memoryview, end: int) -> None:
        """Feed view[:end] to the frame that has begun, the handlers, and the next beginning."""
        start = 0
        if self._pending is not None:
            start = self._complete(self._pending, view, end)
        if start < end and not self.closed:
            start = self._take_frames(view, start, end)
            if start < end and not self.closed:
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
        """Act on the whole frames in view[start:end]; where the first partial one begins."""
        endpoint = self._endpoint
        chunk = endpoint.chunk
        limits = endpoint.limits.frame
        begin = start
        counted = queued = 0  # answers to dispatched frames: how many parts, how many bytes
        while start < end and not self.closed:
            if chunk is not None:
                start = chunk(view, start, end, self)
                if start >= end or self.closed:
                    break
            size = bytes_needed(view, start, end - start, limits)
            if start + size > end:
                break
            self.dispatch(view[start : start + size])
            start += size
            out = self._out
            queued += sum(map(len, out[counted:]))
            counted = len(out)
            if queued > endpoint.limits.output_high_bytes and start < end:
                # A few hundred pulls in one chunk ask for a hundred MB: first what we have.
                self._defer(view[start:end])
                start = end
        if start > begin:
            self._spoke = True
        return start

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

    def _flush(self) -> None:
        self._flush_scheduled = False
        out = self._out
        transport = self._transport
        if not out or transport is None or self.closed:
            return
        buffered = transport.get_write_buffer_size()
        queued = sum(map(len, out))
        if buffered + queued > self._endpoint.limits.output_bytes_max:
            self._cut_off(buffered + queued)  # instead of copying more than it may have
            return
        # join even a lone memoryview: a transport would keep it, and with it a mapped segment
        first = out[0]
        data = first if len(out) == 1 and isinstance(first, bytes) else b"".join(out)
        out.clear()
        self.active_ms = self._endpoint.clock.monotonic_ms()
        if self._tls is None:
            transport.write(data)
        else:
            self._tls.write(data)
            self._send_ciphertext()

    def _cut_off(self, output_bytes: int) -> None:
        self._endpoint.stats.slow_readers += 1
        _slow_readers.warning(
            log,
            "slow reader disconnected peer=%s output_bytes=%d",
            self.address,
            output_bytes,
        )
        self._out.clear()
        self.abort("output buffer full: the peer reads too slowly")

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
        if self._transport is not None and not self.closed:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused_since_ms = None
        self.active_ms = self._endpoint.clock.monotonic_ms()
        if self._deferred is not None:
            self._loop.call_soon(self._take_deferred)
        else:
            self._resume_reading()

    def eof_received(self) -> bool:
        if not self.closed:
            self._mark_closed("closed by the peer")
        return False  # the transport closes itself

    def connection_lost(self, problem: Exception | None) -> None:
        self._mark_closed(f"lost: {problem}" if problem else "closed by the peer")
        self._transport = None
        self._out.clear()
        self._pending = None
        self._deferred = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for future, *_ in waiting.values():
            _fail(future, ConnectionLost(self.address, self.close_reason))
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            callback(self)

    def _mark_closed(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self.close_reason = reason
            self._closed_at_ms = self._endpoint.clock.monotonic_ms()

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

    # ---- deadlines of our own requests: one timer, set to the earliest

    def _arm_timer(self, deadline_ms: int, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        delay_s = max(deadline_ms - now_ms, 1) / 1000
        self._timer = self._loop.call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_ms = self._endpoint.clock.monotonic_ms()
        next_ms: int | None = None
        for opaque, (future, deadline_ms, code, timeout_ms) in list(self._waiting.items()):
            if deadline_ms <= now_ms:
                del self._waiting[opaque]
                _fail(future, RequestTimedOut(self.address, code, timeout_ms))
            elif next_ms is None or deadline_ms < next_ms:
                next_ms = deadline_ms
        if next_ms is not None:
            self._arm_timer(next_ms, now_ms)


def _fail(future: asyncio.Future[Command], problem: RemotingError) -> None:
    """Fail a request; a caller who dropped its future is not told through the log as well."""
    if not future.done():
        future.set_exception(problem)
        future.exception()  # counts as retrieved: a lost connection may fail thousands at once


def _abandon(result: Awaitable[Command | None]) -> None:
    """Drop an awaitable that will not be awaited."""
    if isinstance(result, asyncio.Future):
        result.cancel()
    elif isinstance(result, Coroutine):
        result.close()


def _unmapped(ip: str) -> str:
    """An IPv4 address that an IPv6 socket shows as ::ffff:a.b.c.d, as itself."""
    return ip[7:] if ip.startswith("::ffff:") and "." in ip else ip


def _pack(ip: str, port: int) -> bytes:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    return socket.inet_pton(family, ip.partition("%")[0]) + struct.pack(">i", port)


async def close_all(
    connections: Sequence[Connection], reason: str, timeout_ms: int = 1_000
) -> None:
    """Close these and wait until each is gone; cut those that take longer than timeout_ms."""
    loop = asyncio.get_running_loop()
    gone: list[asyncio.Future[None]] = []
    for connection in connections:
        gone.append(loop.create_future())
        connection.on_close(partial(_note_gone, gone[-1]))
        connection.close(reason)
    if gone:
        _, late = await asyncio.wait(gone, timeout=timeout_ms / 1000)
        if late:
            for connection in connections:
                connection.abort(reason)
            await asyncio.wait(late)


def _note_gone(gone: asyncio.Future[None], _: Connection) -> None:
    gone.set_result(None)
