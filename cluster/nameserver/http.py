"""The HTTP port of a name server, and of the controller in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tandemmq.cluster.httpport import Process, Room, serving_http
from tandemmq.cluster.metrics import MetricPage
from tandemmq.cluster.nameserver.measures import table_of
from tandemmq.cluster.nameserver.server import ControllerBeside, NameServer
from tandemmq.cluster.remoting.encryption import Encryption


def why_not_ready(names: NameServer, beside: ControllerBeside | None) -> list[str]:
    """What this process does not do now: routes may have to wait until brokers had time to register."""
    why = []
    if names.waits_ms:
        why.append(f"needWaitForService: routes are given in {names.waits_ms / 1000:.1f} s")
    return why + (beside.why_not_ready() if beside is not None else [])


def told(names: NameServer) -> dict[str, Any]:
    """Who the name server is, for who shows the token at /healthz."""
    config = names.config
    return {
        "address": f"{config.bind_address}:{config.listen_port}",
        "controller": config.controller_embedded,
        "topics": len(names.routes.topics),
    }


@asynccontextmanager
async def serving_names_http(
    names: NameServer,
    encryption: Encryption,
    beside: ControllerBeside | None,
    rooms: Sequence[Room],
) -> AsyncIterator[None]:
    """Serve the port while the body runs. Raises ConfigError, TlsUnusable, OSError."""
    config = names.config
    own = table_of(names)
    page = MetricPage([own, beside.metrics()] if beside is not None else [own])
    process = Process(
        "name server", lambda: why_not_ready(names, beside), lambda: told(names), page
    )
    async with serving_http(
        process,
        config.http,
        encryption,
        rooms,
        reads_unasked=not config.access.authentication,
        names=[config.bind_address],
    ):
        yield
