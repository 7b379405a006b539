"""The broker's HTTP port: what it says of itself, its store's files for audits, and the rooms that others add."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tandemmq.cluster.broker.broker import Broker
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.replicagroup import ControlledReplica
from tandemmq.cluster.broker.watching.httpplane import StoreRoom
from tandemmq.cluster.broker.watching.measures import table_of
from tandemmq.cluster.httpport import Process, Room, serving_http
from tandemmq.cluster.metrics import MetricPage


def why_not_ready(broker: Broker) -> list[str]:
    """What this broker does not do now of what its role promises. Nothing: it serves.

    A master takes messages; a slave follows a master and, with a controller, is in the sync-state-set: it could take
    over without losing anything. Both are known to a name server, if one is configured.
    """
    why = []
    links = broker.registration.links
    if links and not any(link.registered for link in links):
        why.append("no name server knows this broker")
    if broker.standing.role is Role.SLAVE:
        why += _as_slave(broker)
    else:
        refused = broker.standing.refusal()
        if refused is not None:
            why.append(f"sends are refused: {refused.why}")
        if not broker.store.flags.writable:
            why.append(f"the store takes no messages: {broker.store.flags.why()}")
    return why


def _as_slave(broker: Broker) -> list[str]:
    standing = broker.standing
    following = standing.following
    if following is None:
        return ["it is about to become master"]
    if not following.streaming:
        problem = f": {following.problem}" if following.problem else ""
        return [f"it receives no log from a master{problem}"]
    if isinstance(standing, ControlledReplica):
        view = standing.core.view
        if standing.core.replica not in view.members:
            return ["it is not in the sync-state-set yet"]
    return []


@asynccontextmanager
async def serving_broker_http(broker: Broker, rooms: Sequence[Room]) -> AsyncIterator[None]:
    """Serve the port while the body runs. Raises ConfigError, TlsUnusable, OSError."""
    config = broker.config
    store = StoreRoom(config, broker.store, broker.standing, broker.clock)
    page = MetricPage([table_of(broker)])
    process = Process("broker", lambda: why_not_ready(broker), store.told, page)
    port = serving_http(
        process,
        config.http,
        broker.encryption,
        [store.room, *rooms],
        reads_unasked=not config.guarded,
        names=[config.advertised_host],
    )
    async with port:
        try:
            yield
        finally:
            store.close()  # first: who is in the middle of a file would hold up the port
