"""Requests that wait for an answer without a task each: found by opaque, timed by one timer."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from tandemmq.cluster.client.errors import BrokerUnreachable, CallTimedOut, ClientError
from tandemmq.cluster.client.hot import peek_opaque, scan_sends
from tandemmq.cluster.client.message import SendResult
from tandemmq.cluster.client.reaching.connections import Connections
from tandemmq.cluster.remoting import Channel, Command, Connection, FrameLimits
from tandemmq.cluster.remoting.frame import bytes_needed

#: the answer to a batch names the id of every message in its header: 33 bytes each, 190,000 at most
ANSWER_LIMITS: Final = FrameLimits(header_bytes_max=8 << 20)


class Pending(Protocol):
    """One request without its answer yet."""

    opaque: int
    channel: Channel
    began_s: float  # loop time
    deadline_s: float

    def stored(self, result: SendResult) -> None:
        """A send's answer, read by the fast path."""

    def answered(self, answer: Command) -> None:
        """Any other answer."""

    def failed(self, problem: ClientError) -> None:
        """There will be none."""

    def about(self) -> str:
        """The topic, for the texts of errors."""


class Answers:
    """Takes the answers out of what a channel has received, before the general path sees them.

    Everything runs on the loop's thread.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, Pending] = {}
        self._limits = ANSWER_LIMITS
        self._watched: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._check_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: Connections | None = None

    def begin(self, connections: Connections) -> None:
        """Call before the first request."""
        self._loop = asyncio.get_running_loop()
        self._connections = connections

    def close(self) -> None:
        """No more timers; what still waits fails with its channel."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def expect(self, opaque: int, pending: Pending) -> None:
        """The request goes out now."""
        self.waiting[opaque] = pending
        if self._timer is None or pending.deadline_s < self._check_s:
            self._arm(pending.deadline_s)

    def watch(self, channel: Channel) -> None:
        """Fail what waits for this channel when it is lost."""
        if channel.id not in self._watched:
            self._watched.add(channel.id)
            channel.on_close(self._lost)

    def take(self, view: memoryview, start: int, end: int, connection: Connection) -> int:
        """The endpoint's chunk handler: settle what we wait for; stop at anything else."""
        waiting = self.waiting
        if not waiting:
            return start
        assert self._loop is not None and self._connections is not None
        self._connections.heard(connection.address, self._loop.time())
        while start < end:
            start, settled = scan_sends(view, start, end, waiting)
            for pending, result in settled:
                del waiting[pending.opaque]
                pending.stored(result)
            if start == end:
                break
            size = bytes_needed(view, start, end - start, self._limits)
            if start + size > end or not self._take_any(view, start, start + size):
                break  # not whole yet, or not ours
            start += size
        return start

    def _take_any(self, view: memoryview, start: int, end: int) -> bool:
        opaque = peek_opaque(view, start, end)
        pending = None if opaque is None else self.waiting.pop(opaque, None)
        if pending is None:
            return False
        pending.answered(Command.decode(view[start:end], self._limits))
        return True

    def _lost(self, channel: Connection) -> None:
        self._watched.discard(channel.id)
        gone = [opaque for opaque, each in self.waiting.items() if each.channel is channel]
        for opaque in gone:
            pending = self.waiting.pop(opaque)
            why = f"lost while waiting for an answer: {channel.close_reason}"
            pending.failed(BrokerUnreachable(channel.address, why, pending.about()))

    def _arm(self, deadline_s: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._check_s = deadline_s
        self._timer = self._loop.call_at(deadline_s, self._expire)

    def _expire(self) -> None:
        assert self._loop is not None
        self._timer = None
        now_s = self._loop.time()
        late = [opaque for opaque, each in self.waiting.items() if each.deadline_s <= now_s]
        for opaque in late:
            pending = self.waiting.pop(opaque, None)
            if pending is None:
                continue  # gone with a channel that an earlier one closed
            address = pending.channel.address
            if self._connections is not None and not self._connections.heard_since(
                address, pending.began_s
            ):
                self._connections.forget_silent(address, pending.channel)
            took_ms = round((now_s - pending.began_s) * 1000)
            pending.failed(
                CallTimedOut(
                    f"no answer from {address} in {took_ms} ms",
                    address=address,
                    topic=pending.about(),
                )
            )
        if self.waiting:
            self._arm(min(each.deadline_s for each in self.waiting.values()))
