"""A TCP proxy in front of one address that can hold, slow, cut and refuse what passes: partitions of a link.

Byte streams only: nothing is lost or reordered within a connection. Holding a direction is what a peer sees
of a one-way partition until its own time-outs; heal(reset=True) then breaks the connections as a firewall
that forgot them would, heal() lets the held bytes through late.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field
from typing import Final, Self

CHUNK_BYTES: Final = 64 * 1024
CONNECT_S: Final = 1.0
LATENCY_S: Final = 0.01  # granularity of a slow link


class Direction(enum.Flag):
    """Seen from whoever connects: its requests go UP, answers come DOWN."""

    UP = enum.auto()
    DOWN = enum.auto()
    BOTH = UP | DOWN


@dataclass(slots=True)
class _Lane:
    """One direction of all connections."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    bytes_per_s: int = 0  # 0: as fast as it goes
    passed_bytes: int = 0


class ProxiedLink:
    """Listens on `host:port` and forwards to `target_host:target_port`."""

    def __init__(self, name: str, host: str, port: int, target_host: str, target_port: int) -> None:
        self.name = name
        self.address = (host, port)
        self._target = (target_host, target_port)
        self._lanes = {Direction.UP: _Lane(), Direction.DOWN: _Lane()}
        self._refusing = False
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        for lane in self._lanes.values():
            lane.open.set()

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def used(self) -> bool:
        """Whether anything ever passed in either direction."""
        return any(lane.passed_bytes for lane in self._lanes.values())

    def held(self, direction: Direction) -> bool:
        """Whether all of `direction` stands still."""
        return all(not self._lanes[each].open.is_set() for each in direction)

    def hold(self, direction: Direction = Direction.BOTH) -> None:
        """Nothing passes in this direction any more, on old connections and new ones."""
        for each in direction:
            self._lanes[each].open.clear()

    def slow(self, bytes_per_s: int, direction: Direction = Direction.BOTH) -> None:
        """Let no more than this pass, all connections together."""
        for each in direction:
            self._lanes[each].bytes_per_s = bytes_per_s

    def refuse(self) -> None:
        """Break every connection and accept no other."""
        self._refusing = True
        self.reset()

    def reset(self) -> None:
        """Break every connection; new ones are welcome."""
        for writers in self._connections.values():
            for writer in writers:
                writer.transport.abort()

    def heal(self, *, reset: bool = False) -> None:
        """Everything passes again, at full speed; reset: only on new connections."""
        if reset:
            self.reset()
        self._refusing = False
        for lane in self._lanes.values():
            lane.bytes_per_s = 0
            lane.open.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, *self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "never entered"
        self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        writers = self._connections[task] = [writer]
        try:
            if not self._refusing:
                await self._serve(reader, writer, writers)
        except OSError:
            pass  # a peer or the target is gone: so is this connection
        finally:
            del self._connections[task]
            for each in writers:
                each.transport.abort()

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        writers: list[asyncio.StreamWriter],
    ) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                target_reader, target_writer = await asyncio.open_connection(*self._target)
        except TimeoutError:
            return
        writers.append(target_writer)
        pumps = [
            asyncio.create_task(self._pump(reader, target_writer, self._lanes[Direction.UP])),
            asyncio.create_task(self._pump(target_reader, writer, self._lanes[Direction.DOWN])),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            results = await asyncio.gather(*pumps, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lane: _Lane
    ) -> None:
        while True:
            limit = lane.bytes_per_s
            size = max(1, int(limit * LATENCY_S)) if limit else CHUNK_BYTES
            try:
                chunk = await reader.read(size)
            except OSError:
                chunk = b""
            if not chunk:
                await lane.open.wait()  # a partition hides the end of a peer, too
                return
            if limit:
                await asyncio.sleep(len(chunk) / limit)
            await lane.open.wait()
            lane.passed_bytes += len(chunk)
            writer.write(chunk)
            await writer.drain()
