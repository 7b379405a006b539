"""A client's connection to a server in the same process: calls of Python, each on the client's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tandemmq.cluster.remoting import Command, ConnectionLost, Handler, RequestTimedOut

if TYPE_CHECKING:
    from tandemmq.testing.memory.server import Server

#: what a server does with a request: the answer, or what brings it
Handle = Callable[[Command, "MemoryWire"], "Command | Awaitable[Command]"]


class MemoryWire:
    """One client's connection to one server. table: what the client answers, by request code."""

    def __init__(self, server: Server, table: Mapping[int, Handler]) -> None:
        self.closed = False
        self.client_id = ""  # once it said it
        self._server = server
        self._table = table
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Command]] = set()

    @property
    def address(self) -> str:
        """Of the server."""
        return self._server.address

    @property
    def alive(self) -> bool:
        """Whether its client still hears: the event loop may be gone, and nobody said goodbye."""
        return not self.closed and not self._loop.is_closed()

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """As of a remoting channel. Raises ConnectionLost, RequestTimedOut."""
        await asyncio.sleep(0)  # as on a network, other tasks run meanwhile
        self._check()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                answer = await self._server.answer(command, self)
        except TimeoutError:
            raise RequestTimedOut(self.address, command.code, timeout_ms) from None
        self._check()
        return answer

    def _check(self) -> None:
        if self.closed or self._server.down:
            self.closed = True
            raise ConnectionLost(self.address, "the server in this process is down")

    def oneway(self, command: Command) -> None:
        """Send without an answer; dropped when closed."""
        if self.closed or self._server.down:
            return
        task = self._loop.create_task(self._server.answer(command, self))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Command]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler(
                {"message": "a oneway request failed", "exception": task.exception()}
            )

    def push(self, command: Command) -> None:
        """The server asks the client; nobody waits for what it says."""
        if self.alive:
            with suppress(RuntimeError):  # its loop was closed just now
                self._loop.call_soon_threadsafe(self._pushed, command)

    def _pushed(self, command: Command) -> None:
        if not self.closed:
            connection: Any = self  # handlers want its address and no more
            self._table[command.code](command, connection)

    def close(self) -> None:
        """The client hangs up."""
        self.closed = True
        for task in self._tasks:
            task.cancel()
        self._server.left(self)


class Arrivals:
    """Who waits for messages, on whichever loop. Guarded by the cluster's lock."""

    def __init__(self) -> None:
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def watch(self) -> asyncio.Event:
        """Set when something arrives; belongs to the running loop."""
        event = asyncio.Event()
        self._waiting.add((asyncio.get_running_loop(), event))
        return event

    def tell(self) -> None:
        """Something arrived: everybody looks again."""
        waiting, self._waiting = self._waiting, set()
        for loop, event in waiting:
            with suppress(RuntimeError):  # closed: nobody waits there any more
                loop.call_soon_threadsafe(event.set)
