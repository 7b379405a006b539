"""What a controller does on its own with brokers' addresses: notices to stock brokers, and probes."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting.channel import ChannelPool, Tls, split_address
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Sign
from tandemmq.cluster.remoting.errors import RemotingError

log = logging.getLogger(__name__)

PROBE_MS: Final = 500
CONNECT_MS: Final = 1_000
ADDRESSES_MAX: Final = 1_024  # notices under way

_unreached = once_per(10)


async def refuses(address: str, timeout_ms: int = PROBE_MS) -> bool:
    """Whether this "host:port" refuses a connection: no process listens there. Silence and detours are no refusal."""
    try:
        host, port = split_address(address)
        async with asyncio.timeout(timeout_ms / 1000):
            transport, _ = await asyncio.get_running_loop().create_connection(
                asyncio.Protocol, host, port
            )
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError, ValueError):
        return False
    transport.abort()
    return False


class Notices:
    """Oneway commands to brokers' own ports, one at a time for each address; only the newest waits."""

    def __init__(self, sign: Sign | None = None, tls: Tls = None) -> None:
        """sign: adds credentials, which a broker with access control asks for"""
        self._pool = ChannelPool(tls=tls, connect_timeout_ms=CONNECT_MS, sign=sign)
        self._waiting: dict[str, Command] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def send(self, address: str, command: Command) -> None:
        """Send it soon, or nothing when the address cannot be reached: the broker asks by itself then."""
        if address not in self._tasks and len(self._tasks) >= ADDRESSES_MAX:
            return
        self._waiting[address] = command
        if address not in self._tasks:
            task = asyncio.get_running_loop().create_task(
                self._deliver(address), name=f"notify {address}"
            )
            self._tasks[address] = task

    async def _deliver(self, address: str) -> None:
        try:
            while address in self._waiting:
                command = self._waiting.pop(address)
                try:
                    (await self._pool.get(address)).oneway(command)
                except (RemotingError, ValueError) as problem:
                    _unreached.warning(log, "broker not told address=%s why=%s", address, problem)
        finally:
            del self._tasks[address]

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.close()
