"""The client's side of a connection, and one connection per address."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping

from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import (
    Connection,
    Endpoint,
    Handler,
    Sign,
    close_all,
)
from tandemmq.cluster.remoting.errors import ConnectFailed
from tandemmq.cluster.remoting.tls import TlsSession
from tandemmq.cluster.remoting.tlsproblems import HUNG_UP

CONNECT_TIMEOUT_MS = 3_000
CHANNEL_RECEIVE_BYTES = 256 * 1024
_PEER_LEFT = ("closed by the peer", "lost: ")  # reasons that say nothing of TLS

Tls = ssl.SSLContext | Callable[[], ssl.SSLContext | None] | None
"""What a connection is encrypted with, or who says so when it begins; None: plain TCP."""


class Channel(Connection):
    """A connection that we opened. Requests of the peer go to the endpoint's table."""

    __slots__ = ("_ready", "target")

    def __init__(self, endpoint: Endpoint, target: str, tls: ssl.SSLContext | None) -> None:
        super().__init__(endpoint, mirrors=False)
        self.target = target
        self._ready: asyncio.Future[None] = self._loop.create_future()
        if tls is not None:
            host = split_address(target)[0]
            self._tls = TlsSession(tls, server_side=False, server_name=host)

    @property
    def address(self) -> str:
        """The address that was asked for, "host:port"."""
        return self.target

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._tls is None:
            self._ready.set_result(None)
        else:
            self._tls.shake_hands()
            self._send_ciphertext()

    def handshake_done(self) -> None:
        super().handshake_done()
        if not self._ready.done():
            self._ready.set_result(None)

    def connection_lost(self, problem: Exception | None) -> None:
        super().connection_lost(problem)
        if not self._ready.done():
            why = self.close_reason
            if self._tls is not None and why.startswith(_PEER_LEFT):
                why = f"{why}: {HUNG_UP}"
            self._ready.set_exception(ConnectFailed(self.target, why))

    def pause_writing(self) -> None:
        """The server reads slowly: its answers are taken all the same, or both sides would wait."""

    def resume_writing(self) -> None:
        """Nothing was stopped."""

    async def ready(self) -> None:
        """Wait until requests can go out. Raises ConnectFailed."""
        await self._ready


def split_address(address: str) -> tuple[str, int]:
    """("host", port) of "host:port"; an IPv6 host may stand in brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"address {address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def open_channel(
    host: str,
    port: int,
    *,
    tls: Tls = None,
    timeout_ms: int = CONNECT_TIMEOUT_MS,
    table: Mapping[int, Handler] | None = None,
    endpoint: Endpoint | None = None,
    sign: Sign | None = None,
) -> Channel:
    """Connect, handshake included, within timeout_ms. Raises ConnectFailed, TlsUnusable.

    table      handlers of the peer's requests; ignored when an endpoint brings its own
    endpoint   shared with other channels: receive buffer, request ids, table, signature
    sign       adds credentials to our requests; as table
    """
    if endpoint is None:
        endpoint = Endpoint(table or {}, receive_bytes=CHANNEL_RECEIVE_BYTES)
        endpoint.sign = sign
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    shared = endpoint
    context = tls() if callable(tls) else tls
    loop = asyncio.get_running_loop()
    channel: Channel | None = None
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, channel = await loop.create_connection(
                lambda: Channel(shared, target, context), host, port
            )
            await channel.ready()
    except TimeoutError:
        if channel is not None:
            channel.abort("connect timed out")
        raise ConnectFailed(target, f"not within {timeout_ms} ms") from None
    except OSError as problem:
        raise ConnectFailed(target, str(problem)) from problem
    except asyncio.CancelledError:
        if channel is not None:
            channel.abort("connect cancelled")
        raise
    return channel


class ChannelPool:
    """One channel per address, opened when first asked for and again after it was lost."""

    def __init__(
        self,
        table: Mapping[int, Handler] | None = None,
        *,
        tls: Tls = None,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        endpoint: Endpoint | None = None,
        sign: Sign | None = None,
    ) -> None:
        self.endpoint = endpoint or Endpoint(table or {}, receive_bytes=CHANNEL_RECEIVE_BYTES)
        self.endpoint.sign = sign
        self._tls = tls
        self._connect_timeout_ms = connect_timeout_ms
        self._channels: dict[str, Channel] = {}
        self._opening: dict[str, asyncio.Task[Channel]] = {}
        self._closed = False

    def peek(self, address: str) -> Channel | None:
        """The open channel to `address`, if there is one."""
        channel = self._channels.get(address)
        return channel if channel is not None and not channel.closed else None

    def channels(self) -> list[Channel]:
        """All open channels."""
        return [channel for channel in self._channels.values() if not channel.closed]

    async def get(self, address: str) -> Channel:
        """The channel to "host:port"; callers that ask at the same time share one attempt.

        Raises ConnectFailed, ValueError.
        """
        channel = self._channels.get(address)
        if channel is not None and not channel.closed:
            return channel
        if self._closed:
            raise ConnectFailed(address, "the pool is closed")
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.create_task(self._open(address), name=f"connect {address}")
            self._opening[address] = opening
            opening.add_done_callback(lambda _: self._opening.pop(address, None))
        # shielded: one caller's cancellation must not fail the others
        return await asyncio.shield(opening)

    async def renewed(self, address: str) -> Channel:
        """A new channel to "host:port", the one that get() gives from now on. The one before is the caller's to end.

        Raises ConnectFailed, ValueError.
        """
        return await self._open(address)

    async def _open(self, address: str) -> Channel:
        host, port = split_address(address)
        channel = await open_channel(
            host,
            port,
            tls=self._tls,
            timeout_ms=self._connect_timeout_ms,
            endpoint=self.endpoint,
        )
        if self._closed:
            channel.abort("the pool is closed")
            raise ConnectFailed(address, "the pool is closed")
        self._channels[address] = channel
        channel.on_close(lambda lost: self._forget(address, lost))
        return channel

    def _forget(self, address: str, lost: Connection) -> None:
        if self._channels.get(address) is lost:
            del self._channels[address]

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        """get() and request(). Raises ConnectFailed, ConnectionLost, RequestTimedOut."""
        return await (await self.get(address)).request(command, timeout_ms)

    def drop(self, address: str, why: str) -> None:
        """Cut the channel to "host:port": what waits for an answer of it fails now."""
        channel = self.peek(address)
        if channel is not None:
            channel.abort(why)

    async def close(self) -> None:
        """Close every channel and wait until the sockets are gone."""
        self._closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        await close_all(list(self._channels.values()), "closed by us")
        tasks = list(self.endpoint.tasks)
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
