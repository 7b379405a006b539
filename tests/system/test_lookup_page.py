"""The page that lists name servers, read from a real socket: every form of answer, and every way to fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tandemmq import Admin
from tandemmq.chaos.servers import NameServer
from tandemmq.cluster.client.reaching.lookup import PAGE_BYTES_MAX, fetch_page

pytestmark = pytest.mark.system

TEXT = "10.0.0.1:9876;10.0.0.2:9876"
OK = b"HTTP/1.1 200 OK\r\n"
WITH_LENGTH = OK + b"Content-Length: 27\r\n\r\n" + TEXT.encode()
CHUNKED = (
    OK + b"Transfer-Encoding: chunked\r\n\r\n"
    b"9;why=not\r\n10.0.0.1:\r\n12\r\n9876;10.0.0.2:9876\r\n0\r\n\r\n"
)


@asynccontextmanager
async def page(*answers: bytes, keeps_open: bool = False) -> AsyncIterator[tuple[str, list[bytes]]]:
    """(address of a page that is answered with these in turn, the requests so far)."""
    left, requests = list(answers), []
    served: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(left.pop(0))
        if keeps_open:
            await reader.read()
        writer.close()
        with suppress(ConnectionError):  # a client that has refused the page does not read it
            await writer.wait_closed()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.create_task(answer(reader, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"http://127.0.0.1:{port}/rocketmq/nsaddr?unit=a", requests
        await asyncio.gather(*served)


@pytest.mark.parametrize("keeps_open", [False, True])
@pytest.mark.parametrize("answer", [WITH_LENGTH, CHUNKED])
async def test_a_page_ends_where_it_says_even_if_the_connection_stays(
    answer: bytes, keeps_open: bool
) -> None:
    async with page(answer, keeps_open=keeps_open) as (url, requests):
        assert await fetch_page(url, 2_000) == TEXT
    lines = requests[0].split(b"\r\n")
    assert lines[0] == b"GET /rocketmq/nsaddr?unit=a HTTP/1.1"
    assert f"Host: {url.split('/')[2]}".encode() in lines


async def test_a_page_without_a_length_ends_with_its_connection() -> None:
    async with page(b"HTTP/1.0 200 OK\r\n\r\n" + TEXT.encode()) as (url, _):
        assert await fetch_page(url, 2_000) == TEXT


async def test_redirects_are_followed_but_not_forever() -> None:
    away = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
    async with page(away, WITH_LENGTH) as (url, requests):
        assert await fetch_page(url, 2_000) == TEXT
        assert requests[1].startswith(b"GET /elsewhere HTTP/1.1\r\n")
    async with page(*[away] * 9) as (url, _):
        with pytest.raises(ValueError, match="more than 5 redirects"):
            await fetch_page(url, 2_000)


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", ValueError, "HTTP status 404"),
        (OK + b"Content-Length: 99\r\n\r\nshort", OSError, "closed within the answer"),
        (CHUNKED[:-9], OSError, "closed within the answer"),
        (OK, OSError, "closed within the answer"),
        (OK + b"Content-Length: 70000\r\n\r\n", ValueError, "more than 65536 bytes"),
        (OK + b"Content-Length: -1\r\n\r\n", ValueError, "-1 bytes"),
        (OK + b"\r\n" + bytes(PAGE_BYTES_MAX + 1), ValueError, "more than 65536 bytes"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nfffff\r\n", ValueError, "more than 65536"),
        (OK + b"x: y\r\n" * 20_000, ValueError, "head is longer"),
        (OK + b"x: y\r\n" * 200 + b"\r\n", ValueError, "not an HTTP answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", ValueError, "not an HTTP answer"),
        (b"HTTP/1.1 301 Moved\r\nLocation: file:///a\r\n\r\n", ValueError, "no HTTP address"),
    ],
)
async def test_what_is_no_whole_page_is_an_error(
    answer: bytes, error: type[Exception], text: str
) -> None:
    async with page(answer) as (url, _):
        with pytest.raises(error, match=text):
            await fetch_page(url, 2_000)


async def test_the_deadline_holds_for_the_whole_page() -> None:
    async with page(OK + b"Content-Length: 5\r\n\r\n1", keeps_open=True) as (url, _):
        with pytest.raises(TimeoutError):
            await fetch_page(url, 200)


async def test_a_client_finds_its_name_server_by_a_page(tmp_path: Path) -> None:
    with NameServer(tmp_path).start() as server:
        text = server.address.encode()
        answer = OK + b"Content-Length: %d\r\n\r\n" % len(text) + text
        async with page(answer) as (url, _), Admin(namesrv=url) as admin:
            assert await admin.brokers() == {}
