"""The HTTP port of a controller that is a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tandemmq.cluster.controller.measures import table_of
from tandemmq.cluster.controller.server import Controller
from tandemmq.cluster.httpport import Process, Room, serving_http
from tandemmq.cluster.metrics import MetricPage
from tandemmq.cluster.remoting.channel import split_address
from tandemmq.cluster.remoting.encryption import Encryption


def told(controller: Controller) -> dict[str, Any]:
    """Who the controller is, for who shows the token at /healthz."""
    config, leader = controller.config, controller.store.leader()
    return {
        "group": config.group,
        "id": config.self_id,
        "address": config.me.address,
        "leading": controller.reign is not None and controller.store.leading(),
        "leader": leader.address,
    }


@asynccontextmanager
async def serving_controller_http(
    controller: Controller, encryption: Encryption, rooms: Sequence[Room]
) -> AsyncIterator[None]:
    """Serve the port while the body runs. Raises ConfigError, TlsUnusable, OSError."""
    config, page = controller.config, MetricPage([table_of(controller)])
    process = Process("controller", controller.why_not_ready, lambda: told(controller), page)
    async with serving_http(
        process,
        config.http,
        encryption,
        rooms,
        reads_unasked=not config.access.authentication,
        names=[split_address(config.me.address)[0]],
    ):
        yield
