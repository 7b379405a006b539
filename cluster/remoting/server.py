"""A listening port: accepts connections, keeps their number and pace within limits, and drains."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting.budget import OutputBudget
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import (
    ChunkHandler,
    Connection,
    Endpoint,
    Gate,
    Handler,
    close_all,
)
from tandemmq.cluster.remoting.stream import ConnectionLimits, RemotingStats
from tandemmq.cluster.remoting.tls import (
    CLIENT_HELLO,
    TlsFiles,
    TlsMode,
    TlsSession,
    server_context,
)
from tandemmq.storage import Clock

log = logging.getLogger(__name__)

SWEEP_S: Final = 1.0
_NO_TLS: Final = (
    "it speaks plain text, and tls.server.mode=enforcing demands TLS: set tls.enable=true there, "
    "-Dtls.enable=true at a Java client, --ca or tls= at ours"
)
_TLS_IS_OFF: Final = (
    "it speaks TLS, and tls.server.mode=disabled takes none: set it, or tls.enable=false there"
)

_refused_connections = once_per(10)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen, and what to accept there.

    port            0 lets the system choose; RemotingServer.port says which
    tls_test_mode   with no certificate configured, use a self-signed one (RocketMQ's default)
    """

    host: str = "127.0.0.1"
    port: int = 0
    tls: TlsMode = TlsMode.DISABLED
    tls_files: TlsFiles = field(default_factory=TlsFiles)
    tls_test_mode: bool = True
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    connections_max: int = 16_384  # below the descriptor limit that process.py asks for
    connections_per_address_max: int = 12_288  # one NAT gateway may hide a whole site
    backlog: int = 1_024

    def limited(self, connections: int, backlog: int) -> Listen:
        """The same with at most so many connections, one address at most three quarters of them."""
        most = min(connections, self.connections_max)
        per_address = min(self.connections_per_address_max, most * 3 // 4)
        return replace(
            self,
            connections_max=most,
            connections_per_address_max=max(1, per_address),
            backlog=min(backlog, self.backlog),
        )


class RemotingServer:
    """One port and its connections. Everything runs on the loop that start() ran on.

    table         request code -> handler
    chunk         fast path for received bytes, tried before the table
    on_close      called for every connection that ended
    error_reply   (code, remark) for an exception of a handler; None: SYSTEM_ERROR
    on_unsupported  told of each request that no handler is for
    gate          asked of each request before its handler; None: everybody may come in
    budget        of unread output over all connections, of several servers perhaps; None: no limit
    """

    def __init__(
        self,
        listen: Listen,
        table: Mapping[int, Handler],
        *,
        chunk: ChunkHandler | None = None,
        on_close: Callable[[Connection], None] | None = None,
        error_reply: Callable[[Exception], tuple[int, str] | None] | None = None,
        clock: Clock | None = None,
        budget: OutputBudget | None = None,
        on_unsupported: Callable[[Command, Connection], None] | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.listen = listen
        self.endpoint = Endpoint(
            table, limits=listen.limits, chunk=chunk, clock=clock, error_reply=error_reply
        )
        self.connections: dict[int, Connection] = {}
        self.endpoint.budget = budget
        self.endpoint.on_unsupported = on_unsupported
        self.endpoint.gate = gate
        if budget is not None:
            budget.watch(self.connections.values)
        self._per_address: Counter[str] = Counter()
        self._on_close = on_close
        self._context: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closing = False

    @property
    def stats(self) -> RemotingStats:
        """Counters since the start."""
        return self.endpoint.stats

    @property
    def port(self) -> int:
        """The port listened on."""
        assert self._server is not None, "start() first"
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had, TlsUnusable."""
        await self.reload_tls()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Accepted(self),
            self.listen.host,
            self.listen.port,
            backlog=self.listen.backlog,
            reuse_address=True,
        )
        self._sweep_timer = loop.call_later(SWEEP_S, self._sweep)

    async def reload_tls(self) -> None:
        """Read key and certificate again; connections made from now on use them."""
        if self.listen.tls is not TlsMode.DISABLED:
            self._context = await asyncio.to_thread(
                server_context, self.listen.tls_files, test_mode=self.listen.tls_test_mode
            )

    async def close(self, drain_ms: int = 2_000) -> None:
        """Stop accepting, let requests being worked on finish within drain_ms, close everything."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        tasks = self.endpoint.tasks
        if tasks and drain_ms > 0:
            await asyncio.wait(list(tasks), timeout=drain_ms / 1000)
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await close_all(list(self.connections.values()), "the server stops")
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        if self._server is not None:
            await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _sweep(self) -> None:
        now_ms = self.endpoint.clock.monotonic_ms()
        for connection in list(self.connections.values()):
            connection.check_deadlines(now_ms)
        if self.endpoint.budget is not None:
            self.endpoint.budget.look()
        self._sweep_timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    # ---- what accepted connections tell us

    def _admit(self, connection: Connection) -> str | None:
        """Count the connection in; or why it must go."""
        if self._closing:
            return "the server stops"
        if len(self.connections) >= self.listen.connections_max:
            return f"{len(self.connections)} connections are open"
        ip = connection.peer[0]
        if self._per_address[ip] >= self.listen.connections_per_address_max:
            return f"{self._per_address[ip]} connections from {ip} are open"
        self.connections[connection.id] = connection
        self._per_address[ip] += 1
        return None

    def _dismiss(self, connection: Connection) -> None:
        if self.connections.pop(connection.id, None) is None:
            return
        ip = connection.peer[0]
        self._per_address[ip] -= 1
        if not self._per_address[ip]:
            del self._per_address[ip]
        if self._on_close is not None:
            self._on_close(connection)

    def _tls_for(self, first_byte: int) -> TlsSession | str | None:
        """What a connection beginning with this byte gets: TLS, None (plain), or a refusal."""
        mode = self.listen.tls
        if first_byte != CLIENT_HELLO:
            return _NO_TLS if mode is TlsMode.ENFORCING else None
        if mode is TlsMode.DISABLED or self._context is None:
            return _TLS_IS_OFF
        return TlsSession(self._context, server_side=True)


class _Accepted(Connection):
    """A connection of a server's: admitted by it, plain or TLS by its first byte."""

    __slots__ = ("_server",)

    def __init__(self, server: RemotingServer) -> None:
        super().__init__(server.endpoint, mirrors=True)
        self._server = server
        self._undecided = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        refusal = self._server._admit(self)
        if refusal is not None:
            self._endpoint.stats.connections_refused += 1
            _refused_connections.warning(
                log, "connection refused peer=%s why=%s", self.address, refusal
            )
            self.abort(refusal)

    def connection_lost(self, problem: Exception | None) -> None:
        super().connection_lost(problem)
        self._server._dismiss(self)

    def _decide(self, first_byte: int) -> None:
        choice = self._server._tls_for(first_byte)
        if isinstance(choice, str):
            self._endpoint.stats.protocol_violations += 1
            _refused_connections.warning(
                log, "connection refused peer=%s why=%s", self.address, choice
            )
            self.abort(choice)
        else:
            self._tls = choice
