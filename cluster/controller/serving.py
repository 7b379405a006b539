"""A controller as a process, or as a part of a name server's: its store, its port, its metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandemmq.cluster.access.doorkeeper import super_keeper
from tandemmq.cluster.access.needs import CONTROLLER_OPEN, CONTROLLER_SUPER
from tandemmq.cluster.controller.config import (
    ControllerConfig,
    Exporter,
    StoreKind,
    check_startable,
)
from tandemmq.cluster.controller.notices import Notices
from tandemmq.cluster.controller.server import Controller, reply_to
from tandemmq.cluster.controller.store import FileStore, Leader, NoStore, Store
from tandemmq.cluster.process import (
    connections_affordable,
    raise_open_files_limit,
    running,
    stop_signals,
)
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.cluster.remoting.server import Listen, RemotingServer
from tandemmq.cluster.remoting.stream import ConnectionLimits
from tandemmq.storage import SystemClock

if TYPE_CHECKING:
    from tandemmq.cluster.httpport import Room
    from tandemmq.cluster.metrics import MetricTable

log = logging.getLogger(__name__)

INSECURE_REMINDER_S: Final = 3600
CONNECTIONS_MAX: Final = 4_096  # brokers and tools, no clients


def make_store(config: ControllerConfig) -> Store:
    """The store that the settings ask for, not opened."""
    me = Leader(*config.me)
    if config.store_kind is StoreKind.ETCD:
        # Imported when wanted: an HTTP client costs every start 200 ms and 15 MB.
        from tandemmq.cluster.controller.etcdstore import EtcdStore

        return EtcdStore(config, me, SystemClock())
    first = Leader(*config.all_peers[0])
    if me == first:
        if len(config.all_peers) > 1:
            log.warning(
                "only the first of several controllers leads, for their records are in its file: for one to take "
                "over from another set controllerStore=etcd leader=%s",
                first.id,
            )
        return FileStore(Path(config.store_path), me)
    log.warning(
        "this controller never leads, for the records are in the file of the first one: for one to take over from "
        "another set controllerStore=etcd leader=%s address=%s",
        first.id,
        first.address,
    )
    return NoStore(first)


@dataclass(frozen=True, slots=True)
class ServingController:
    """What a name server in the same process asks its controller."""

    controller: Controller

    def refuse_route(self, group: str, broker_id: int, address: str, host: str) -> str | None:
        """Why routes of this group do not follow a request from `host`; None when they do."""
        return self.controller.refuse_route(group, broker_id, address, host)

    def why_not_ready(self) -> list[str]:
        """What it does not do now; nothing when it decides, or knows who does."""
        return self.controller.why_not_ready()

    def metrics(self) -> MetricTable:
        """What Prometheus is shown."""
        # Imported when wanted: Prometheus costs every start time and memory.
        from tandemmq.cluster.controller.measures import table_of

        return table_of(self.controller)


@asynccontextmanager
async def serving_controller(
    config: ControllerConfig,
    *,
    ports: int = 1,
    rooms: Sequence[Room] = (),
    own_http: bool = False,
) -> AsyncIterator[ServingController]:
    """A controller serves while the body runs; when the body begins it leads, or knows that it does not.

    ports      how many this process listens on in all
    own_http   it has the HTTP port of its settings; else that is the name server's in the same process
    rooms      what that port serves besides its own
    Raises ConfigError, StorageError (the store), OSError (the port), TlsUnusable.
    """
    check_startable(config)
    if own_http and config.http.port:
        # Now, for it takes a while and nobody waits for us yet; only when wanted, for it costs memory.
        import tandemmq.cluster.controller.http  # noqa: F401
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        store = make_store(config)
        stack.push_async_callback(store.close)
        await store.open()
        encryption = Encryption(config.tls)
        await asyncio.to_thread(encryption.load)
        notices = Notices(config.access.signer, encryption.to_peers)
        stack.push_async_callback(notices.close)
        controller = Controller(config, store, clock, notify=notices.send)
        served, opened = CONTROLLER_SUPER, CONTROLLER_OPEN
        server = RemotingServer(
            Listen(
                config.bind_host,
                config.port,
                tls=config.tls.mode,
                tls_files=config.tls.own_files,
                tls_test_mode=config.tls.test_mode,
                limits=ConnectionLimits(idle_ms=config.idle_s_max * 1000),
                connections_max=CONNECTIONS_MAX,
            ).limited(*connections_affordable(ports)),
            controller.table(),
            on_close=controller.connection_closed,
            error_reply=reply_to,
            clock=clock,
            gate=super_keeper(config.access, served, opened, clock.monotonic_ms),
        )
        controller.connections = server.connections
        encryption.also(server.reload_tls)
        if config.metrics_exporter is Exporter.PROM:
            await stack.enter_async_context(_exposing(controller))
        jobs = {
            "store": store.run,
            "lead": controller.run,
            "remind": lambda: _remind_of_exposure(config),
            **encryption.jobs(),
        }
        await stack.enter_async_context(running(**jobs))
        await stack.enter_async_context(server)
        if own_http and config.http.port:
            from tandemmq.cluster.controller.http import serving_controller_http  # loaded before

            await stack.enter_async_context(serving_controller_http(controller, encryption, rooms))
        await controller.settled.wait()
        log.info(
            "controller serves id=%s address=%s store=%s leading=%s",
            config.self_id,
            config.me.address,
            config.store_kind.value,
            controller.reign is not None,
        )
        yield ServingController(controller)


async def serve_controller(
    config: ControllerConfig, ready: Callable[[str], None], rooms: Sequence[Room] = ()
) -> None:
    """Serve until SIGTERM or SIGINT.

    ready   called once with the line that says so; scripts wait for it
    rooms   what its HTTP port serves besides its own
    Raises ConfigError, StorageError (the store), OSError (the port), TlsUnusable.
    """
    raise_open_files_limit()
    with stop_signals() as stop:
        async with serving_controller(config, rooms=rooms, own_http=True):
            line = (
                "The Controller Server boot success. serializeType=JSON, "
                f"address {config.bind_host}:{config.port}"
            )
            log.info("%s", line)
            ready(line)
            log.info("stop requested signal=%s", await stop)


@asynccontextmanager
async def _exposing(controller: Controller) -> AsyncIterator[None]:
    """Serve the controller's metrics while the body runs."""
    from tandemmq.cluster.controller.measures import table_of
    from tandemmq.cluster.metrics import exposition

    config, table = controller.config, table_of(controller)
    async with exposition(table, config.metrics_host, config.metrics_port):
        yield


async def _remind_of_exposure(config: ControllerConfig) -> None:
    """Say every hour that strangers may come in; serves until cancelled."""
    while True:
        if config.is_exposed:
            log.warning(
                "controller without TLS on a reachable address bind=%s port=%d flag=--insecure",
                config.bind_host,
                config.port,
            )
        await asyncio.sleep(INSECURE_REMINDER_S)
