"""The proxy between members of a group: what it holds, slows, breaks and refuses, and what it lets pass again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.proxy import Direction, ProxiedLink

pytestmark = pytest.mark.system

SHORT_S = 0.2


class Echo:
    """A server that sends back what it gets and keeps it."""

    def __init__(self) -> None:
        self.received = b""
        self.port = PORTS.take((0,))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(65536):
                self.received += chunk
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass  # the proxy broke it, as the tests ask it to
        finally:
            writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    made = Echo()
    server = await asyncio.start_server(made.serve, LOOPBACK, made.port)
    yield made
    server.close()


@pytest.fixture
async def link(echo: Echo) -> AsyncIterator[ProxiedLink]:
    async with ProxiedLink("echo", LOOPBACK, PORTS.take((0,)), LOOPBACK, echo.port) as made:
        yield made


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, data: bytes) -> bytes:
        self.writer.write(data)
        return await self.reader.readexactly(len(data))

    async def silent(self, data: bytes) -> bool:
        """Whether no answer comes for a while."""
        try:
            async with asyncio.timeout(SHORT_S):
                await self.ask(data)
        except TimeoutError:
            return True
        return False


@pytest.fixture
async def client(link: ProxiedLink) -> AsyncIterator[Client]:
    made = await connect(link)
    yield made
    made.writer.transport.abort()


async def connect(link: ProxiedLink) -> Client:
    return Client(*await asyncio.open_connection(*link.address))


async def test_everything_passes_a_healthy_link(link: ProxiedLink, client: Client) -> None:
    data = bytes(range(256)) * 4000
    assert await client.ask(data) == data
    assert link.used


async def test_held_bytes_come_late_when_the_link_heals(
    link: ProxiedLink, client: Client, echo: Echo
) -> None:
    link.hold()
    assert await client.silent(b"late")
    assert echo.received == b""
    link.heal()
    assert await client.reader.readexactly(4) == b"late"


async def test_one_way_up_keeps_requests_back(
    link: ProxiedLink, client: Client, echo: Echo
) -> None:
    link.hold(Direction.UP)
    assert await client.silent(b"up")
    assert echo.received == b""


async def test_one_way_down_keeps_only_answers_back(
    link: ProxiedLink, client: Client, echo: Echo
) -> None:
    link.hold(Direction.DOWN)
    assert link.held(Direction.DOWN)
    assert not link.held(Direction.BOTH)
    assert await client.silent(b"down")
    assert echo.received == b"down"


async def test_new_connections_are_held_as_well(link: ProxiedLink) -> None:
    link.hold()
    late = await connect(link)
    assert await late.silent(b"x")
    link.heal()
    assert await late.reader.readexactly(1) == b"x"
    late.writer.transport.abort()


async def test_a_partition_hides_that_a_peer_went_away(link: ProxiedLink, client: Client) -> None:
    assert await client.ask(b"1") == b"1"
    link.hold()
    client.writer.transport.abort()
    await asyncio.sleep(SHORT_S)
    assert link.connections == 1
    link.heal()
    async with asyncio.timeout(5):
        while link.connections:  # noqa: ASYNC110, the proxy tells nobody
            await asyncio.sleep(0.01)


async def test_healing_with_reset_breaks_old_connections(link: ProxiedLink, client: Client) -> None:
    link.hold()
    assert await client.silent(b"gone")
    link.heal(reset=True)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await client.reader.readexactly(4)
    fresh = await connect(link)
    assert await fresh.ask(b"new") == b"new"
    fresh.writer.transport.abort()


async def test_a_refusing_link_breaks_old_connections_and_takes_no_new_ones(
    link: ProxiedLink, client: Client
) -> None:
    assert await client.ask(b"1") == b"1"
    link.refuse()
    for each in (client, await connect(link)):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await each.ask(b"2")
        each.writer.transport.abort()


async def test_a_slow_link_passes_what_its_rate_allows(link: ProxiedLink, client: Client) -> None:
    link.slow(100_000)
    began = time.monotonic()
    assert len(await client.ask(bytes(20_000))) == 20_000
    assert time.monotonic() - began > 0.15


async def test_a_target_that_is_not_there_breaks_the_connection() -> None:
    async with ProxiedLink(
        "nobody", LOOPBACK, PORTS.take((0,)), LOOPBACK, PORTS.take((0,))
    ) as link:
        made = await connect(link)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await made.ask(b"1")
        made.writer.transport.abort()
