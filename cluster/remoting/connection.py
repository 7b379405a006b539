"""A peer: requests and answers both ways, over the bytes that stream.py carries."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Final

from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from tandemmq.cluster.remoting.errors import (
    ConnectionLost,
    HeaderProblem,
    RemotingError,
    RequestTimedOut,
)
from tandemmq.cluster.remoting.frame import bytes_needed
from tandemmq.cluster.remoting.stream import (
    RECEIVE_BYTES,
    ConnectionLimits,
    FrameStream,
    StreamEndpoint,
)
from tandemmq.storage import Clock

log = logging.getLogger(__name__)

REMARK_LENGTH_MAX: Final = 512

_failed_handlers = once_per(10)

Handler = Callable[[Command, "Connection"], Command | Awaitable[Command | None] | None]
"""A Command: the answer, sent with the chunk. Awaitable: a task. None: send() later, or never."""

Sign = Callable[[Command], None]
"""Adds credentials to a request of ours."""

Gate = Callable[[Command, "Connection"], Command | None]
"""Asked before the handler, also where there is none: the answer of a request that goes no further, or None."""

ChunkHandler = Callable[[memoryview, int, int, "Connection"], int]
"""(view, start, end, connection) -> where it stopped. Takes whole frames only, none of them kept:
the view is overwritten by the next read. Frames it does not want: connection.dispatch(view[a:b]),
or stop in front of one, which is then dispatched here. Output through connection.write."""


class Endpoint(StreamEndpoint):
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
        super().__init__(limits, clock, receive_bytes)
        self.table = table
        self.chunk = chunk
        self.error_reply = error_reply
        self.on_unsupported: Callable[[Command, Connection], None] | None = None
        self.gate: Gate | None = None
        self.sign: Sign | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self._opaque = itertools.count(1)

    def next_opaque(self) -> int:
        """A request id: 31 bits, never 0 (the JavaScript client mis-assigns 0)."""
        return (next(self._opaque) & 0x7FFFFFFF) or self.next_opaque()


_Waiting = tuple[asyncio.Future[Command], int, int, int]
"""A request of ours without its answer yet: future, deadline_ms, code, timeout_ms."""


class Connection(FrameStream):
    """A peer that asks and answers. Everything here runs on the loop's thread.

    language, version, binary_last   as the last frame of the peer said
    """

    __slots__ = (
        "_mirrors",
        "_tasks",
        "_timer",
        "_timer_at_ms",
        "_waiting",
        "binary_last",
        "language",
        "version",
    )

    _endpoint: Endpoint

    def __init__(self, endpoint: Endpoint, *, mirrors: bool) -> None:
        """mirrors: our own requests take the header form of the peer's last frame (server side)."""
        super().__init__(endpoint)
        self._mirrors = mirrors
        self._waiting: dict[int, _Waiting] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._tasks = 0
        self.language = 0
        self.version = 0
        self.binary_last = False

    # ---- what owners use

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

    def oneway(self, command: Command) -> None:
        """Send a request that nobody answers."""
        if self._endpoint.sign is not None:
            self._endpoint.sign(command)
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
        if self._endpoint.sign is not None:
            self._endpoint.sign(command)
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

    def heard(self, language: int, version: int, *, binary: bool, count: int = 1) -> None:
        """A chunk handler took requests: what dispatch() notes of them."""
        self.language = language
        self.version = version
        self.binary_last = binary
        self._endpoint.stats.requests += count

    # ---- frames

    def _take_frames(self, view: memoryview, start: int, end: int) -> int:
        """Act on the whole frames in view[start:end]; where the first partial one begins."""
        endpoint = self._endpoint
        chunk = endpoint.chunk
        limits = endpoint.limits.frame
        begin = start
        queued = self.queued_bytes
        while start < end and not self.closed:
            if chunk is not None:
                start = chunk(view, start, end, self)
                if start >= end or self.closed:
                    break
            high = endpoint.limits.output_high_bytes
            if self.queued_bytes - queued <= high:
                size = bytes_needed(view, start, end - start, limits)
                if start + size > end:
                    break
                self.dispatch(view[start : start + size])
                start += size
            if self.queued_bytes - queued > high and start < end:
                # A few hundred pulls in one chunk ask for a hundred MB: first what we have.
                self._defer(view[start:end])
                start = end
        if start > begin:
            self._spoke = True
        return start

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
        if endpoint.gate is not None:
            try:
                refusal = endpoint.gate(command, self)
            except AssertionError:
                raise  # our bug: the process stops
            except Exception as problem:  # whoever cannot be judged is not let in
                refusal = self._failure_reply(command, problem)
            if refusal is not None:
                endpoint.stats.requests_refused += 1
                self.send(refusal)
                return
        handler = endpoint.table.get(command.code)
        if handler is None:
            endpoint.stats.requests_unsupported += 1
            if endpoint.on_unsupported is not None:
                endpoint.on_unsupported(command, self)
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

    # ---- our own requests: they end with the connection, or at their deadline

    def _give_up_requests(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for future, *_ in waiting.values():
            _fail(future, ConnectionLost(self.address, self.close_reason))

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
