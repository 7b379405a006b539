"""Snapshots made by hand, and a console on a port of its own that has no cluster behind it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from aiohttp import ClientSession, CookieJar, web
from aiohttp.test_utils import TestServer

from tandemmq.cluster.client import (
    BrokerMembers,
    ClientConfig,
    GroupProgress,
    GroupSettings,
    MessageQueue,
    QueueProgress,
    Replica,
    ReplicaSet,
    TopicSettings,
)
from tandemmq.cluster.httpport import Process, Room, application
from tandemmq.cluster.httpsettings import HttpConfig
from tandemmq.cluster.metrics import MetricPage, MetricTable
from tandemmq.console import assets
from tandemmq.console.room import Console
from tandemmq.console.seen import servers, snapshot
from tandemmq.console.seen.snapshot import Snapshot
from tandemmq.console.sessions import Sessions

TOKEN: Final = "a-token-of-more-than-16-letters"
NOW_MS: Final = 1_758_241_815_000
MASTER, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"


def status(role: str, end: int, **more: str) -> dict[str, str]:
    """What a broker says of itself."""
    return {
        "brokerRole": role, "commitLogMaxOffset": str(end), "masterEpoch": "3", "confirmOffset": str(end),
        "putTps": "12.5 3.0 1.0", "getTransferredTps": "4.0 1.0 0.5", "commitLogDiskRatio": "0.2",
        "consumeQueueDiskRatio": "0.3", "bootTimestamp": str(NOW_MS - 60_000), **more,
    }  # fmt: skip


def group(
    statuses: dict[str, dict[str, str] | str] | None = None,
    *,
    master: int | None = 1,
    in_sync: tuple[int, ...] = (1, 2),
    epoch: int = 3,
) -> servers.BrokerGroup:
    """broker-a of two members under a controller."""
    replicas = {1: Replica(1, MASTER, True), 2: Replica(2, SLAVE, True)}
    led = ReplicaSet(
        "broker-a", master, MASTER, epoch, 5,
        tuple(replicas[each] for each in in_sync),
        tuple(each for number, each in replicas.items() if number not in in_sync),
    )  # fmt: skip
    if statuses is None:
        statuses = {MASTER: status("SYNC_MASTER", 5_000), SLAVE: status("SLAVE", 4_000)}
    members = {"broker-a": BrokerMembers("broker-a", "C", {0: MASTER, 2: SLAVE})}
    return servers.groups_of(members, statuses, {"broker-a": led}, {})[0]


def seen(topic_count: int = 3, group_count: int = 2, **more: object) -> Snapshot:
    """A cluster of one broker group with so many topics and consumer groups."""
    table = {
        f"Topic{number:05}": TopicSettings(f"Topic{number:05}", 8, 8)
        for number in range(topic_count)
    }
    settings = {
        f"group-{number:04}": GroupSettings(f"group-{number:04}") for number in range(group_count)
    }
    progress = {
        name: GroupProgress(
            {MessageQueue("Topic00000", "broker-a", queue): QueueProgress(100, 90, 95, NOW_MS) for queue in range(4)},
            1.5,
        )
        for name in settings
    }  # fmt: skip
    topics = snapshot.topics_of({MASTER: table}, frozenset({"C", "broker-a"}))
    groups = snapshot.groups_of({MASTER: settings}, {MASTER: progress}, frozenset(table))
    made = Snapshot(
        1, NOW_MS, brokers=(group(),), topics=topics, topics_ms=NOW_MS, groups=groups, groups_ms=NOW_MS,
        name_servers=("10.0.0.1:9876",), controllers=("10.0.0.1:9878",),
    )  # fmt: skip
    return replace(made, **more) if more else made  # type: ignore[arg-type]


def silent_port() -> int:
    """A port of loopback where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def console(
    known: Snapshot | None = None, *, reads_unasked: bool = True, reports: Path | None = None
) -> AsyncIterator[tuple[ClientSession, Console, str]]:
    """A client with a cookie jar, the console, and its address."""
    found: list[Console] = []

    def furnish(app: web.Application) -> None:
        made = Console(
            ClientConfig(f"127.0.0.1:{silent_port()}"), assets.load(),
            Sessions(TOKEN, iter(f"word-{number}" for number in range(10_000)).__next__), reports, "",
        )  # fmt: skip
        if known is not None:
            made.watcher.seen = known
        made.open(app)
        found.append(made)

    async with served(furnish, reads_unasked=reads_unasked) as (client, address):
        yield client, found[0], address


@contextlib.asynccontextmanager
async def served(
    room: Room, *, reads_unasked: bool = True
) -> AsyncIterator[tuple[ClientSession, str]]:
    """A client with a cookie jar, and the address of a port with this room."""
    page = MetricPage([MetricTable({}, {"node_type": "console"})])
    process = Process("console", list, dict, page)
    config = HttpConfig(port=1, token=TOKEN)
    app = application(process, config, [room], reads_unasked=reads_unasked)
    async with (
        TestServer(app) as server,
        ClientSession(cookie_jar=CookieJar(unsafe=True)) as client,
    ):
        yield client, str(server.make_url("/")).rstrip("/")


async def signed_in(client: ClientSession, address: str) -> str:
    """Show the token; the word that this session's forms carry."""
    async with client.post(f"{address}/console/enter", data={"token": TOKEN}) as answer:
        page = await answer.text()
    assert "Sign out" in page
    return page.partition('name="word" value="')[2].partition('"')[0]
