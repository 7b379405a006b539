"""One channel per address: opened when needed, shared, errors turned into the client's own."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from tandemmq.cluster.client.errors import BrokerUnreachable, CallTimedOut
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import (
    ConnectFailed,
    ConnectionLost,
    PeerBrokeProtocol,
    RequestTimedOut,
)

log = logging.getLogger(__name__)


class Wire(Protocol):
    """The part of a remoting channel that the client uses; tests put a fake in its place."""

    @property
    def closed(self) -> bool:
        """True once no request can be sent any more."""

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """Send and await the answer. Raises ConnectionLost, RequestTimedOut."""

    def oneway(self, command: Command) -> None:
        """Send without an answer; dropped when closed."""


Dial = Callable[[str], Awaitable[Wire]]
HangUp = Callable[[Sequence[Wire], str], Coroutine[Any, Any, None]]
Sign = Callable[[Command], None]


class Connections:
    """Requests by address. Not for use from other threads or loops.

    dial     opens a channel to "host:port"; raises ConnectFailed
    hang_up  closes channels and waits until their sockets are gone
    sign     adds the access key's signature to a request, or None
    """

    def __init__(self, dial: Dial, hang_up: HangUp, sign: Sign | None = None) -> None:
        self._dial = dial
        self._hang_up = hang_up
        self._sign = sign
        self._open: dict[str, Wire] = {}
        self._dialing: dict[str, asyncio.Task[Wire]] = {}
        self._dropping: set[asyncio.Task[None]] = set()
        self._heard_s: dict[str, float] = {}  # loop time of the last answer, by address
        self._met: set[str] = set()  # every address that ever was connected
        self._again_s: dict[str, float] = {}  # loop time of its last connection but the first
        self._versions: dict[str, int] = {}  # what the last answer said, by address

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Send a request and return the answer, whatever its code.

        Raises BrokerUnreachable, CallTimedOut. A peer that says nothing at all for a whole time-out
        is dropped, so that the next request dials again instead of waiting for a dead host.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        wire = self._open.get(address)
        if wire is None or wire.closed:
            wire = await self._channel(address, timeout_ms, command)
        left_ms = max(1, timeout_ms - int((loop.time() - began_s) * 1000))
        if self._sign is not None:
            self._sign(command)
        try:
            answer = await wire.request(command, left_ms)
        except RequestTimedOut as problem:
            if self._heard_s.get(address, 0.0) < began_s:
                await self.drop_silent(address, wire)
            raise CallTimedOut(
                f"no answer from {address} to request {command.code} in {timeout_ms} ms",
                address=address,
                topic=subject(command),
            ) from problem
        except (ConnectionLost, PeerBrokeProtocol) as problem:
            raise BrokerUnreachable(
                address, f"lost while waiting for an answer: {problem}", subject(command)
            ) from problem
        self._heard_s[address] = loop.time()
        self._versions[address] = answer.version
        return answer

    async def oneway(self, address: str, command: Command, timeout_ms: int) -> None:
        """Send a request that nobody answers.

        Raises BrokerUnreachable, CallTimedOut (no connection in time).
        """
        wire = await self._channel(address, timeout_ms, command)
        if self._sign is not None:
            self._sign(command)
        wire.oneway(command)

    def version(self, address: str) -> int:
        """RocketMQ's version number of a server, 0 before its first answer on this connection."""
        return self._versions.get(address, 0)

    def peek(self, address: str) -> Wire | None:
        """The open channel to an address, None when the next request would have to dial."""
        wire = self._open.get(address)
        return None if wire is None or wire.closed else wire

    def heard(self, address: str, at_s: float) -> None:
        """An answer came from there that request() did not see; at_s: loop time."""
        self._heard_s[address] = at_s

    def heard_since(self, address: str, since_s: float) -> bool:
        """Whether any answer came from there since then."""
        return self._heard_s.get(address, 0.0) >= since_s

    def again_since(self, address: str, since_s: float) -> bool:
        """Whether a connection was opened again since then, whoever had ended the one before."""
        return self._again_s.get(address, -math.inf) >= since_s

    def connected(self) -> list[str]:
        """Addresses with an open channel."""
        return sorted(address for address, wire in self._open.items() if not wire.closed)

    async def drop_silent(self, address: str, wire: Wire) -> None:
        """A server said nothing for a whole time-out: dial again next time."""
        if self._open.get(address) is wire:
            await self.drop(address, "silent for a whole time-out")

    def forget_silent(self, address: str, wire: Wire) -> None:
        """As drop_silent(), for callers that cannot wait: the wire ends in the background."""
        if self._open.get(address) is wire:
            del self._open[address]
            self._heard_s.pop(address, None)
            log.info("connection dropped address=%s why=silent for a whole time-out", address)
            task = asyncio.create_task(self._hang_up([wire], "silent"), name=f"drop {address}")
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def drop(self, address: str, why: str) -> None:
        """Close the channel to an address, if there is one."""
        wire = self._open.pop(address, None)
        self._heard_s.pop(address, None)
        if wire is not None:
            log.info("connection dropped address=%s why=%s", address, why)
            await self._hang_up([wire], why)

    async def close(self) -> None:
        """Close every channel and every attempt to open one."""
        dialing = list(self._dialing.values())
        for task in dialing:
            task.cancel()
        wires = list(self._open.values())
        self._open.clear()
        try:
            await asyncio.gather(*dialing, return_exceptions=True)
        finally:  # cancelled here: the channels close all the same
            wires += self._open.values()
            self._open.clear()
            await self._hang_up(wires, "closed by us")
        await asyncio.gather(*self._dropping, return_exceptions=True)

    async def _channel(self, address: str, timeout_ms: int, command: Command) -> Wire:
        wire = self._open.get(address)
        if wire is not None and not wire.closed:
            return wire
        task = self._dialing.get(address)
        if task is None:
            task = asyncio.create_task(self._connect(address), name=f"connect {address}")
            self._dialing[address] = task
            task.add_done_callback(lambda done: self._dialed(address, done))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.shield(task)  # one caller giving up must not fail the others
        except TimeoutError:
            raise CallTimedOut(
                f"no connection to {address} within {timeout_ms} ms",
                address=address,
                topic=subject(command),
            ) from None
        except (ConnectFailed, ConnectionLost) as problem:
            raise BrokerUnreachable(address, str(problem), subject(command)) from problem

    async def _connect(self, address: str) -> Wire:
        wire = await self._dial(address)
        if address in self._met:
            self._again_s[address] = asyncio.get_running_loop().time()
        self._met.add(address)
        self._versions.pop(address, None)  # it may have been replaced by an older one
        self._open[address] = wire
        return wire

    def _dialed(self, address: str, task: asyncio.Task[Wire]) -> None:
        self._dialing.pop(address, None)
        if not task.cancelled():
            task.exception()  # seen: every waiter gets it; without a waiter there is nobody to tell


def subject(command: Command) -> str:
    """The topic a request is about, "" when none; for the texts of errors."""
    ext = command.ext or {}
    return ext.get("topic") or ext.get("b") or ext.get("originTopic") or ""
