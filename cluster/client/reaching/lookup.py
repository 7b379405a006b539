"""The page that lists name servers, read over HTTP or HTTPS with what Python brings along."""

from __future__ import annotations

import asyncio
import http.client
import io
from contextlib import closing
from dataclasses import dataclass
from email.message import Message
from typing import Final
from urllib.parse import urljoin, urlsplit

PAGE_BYTES_MAX: Final = 64 << 10
HEAD_BYTES_MAX: Final = 64 << 10
REDIRECTS_MAX: Final = 5
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class _Answer:
    """One answer. location: where a redirect leads, else empty."""

    status: int
    location: str
    body: bytes


async def fetch_page(url: str, timeout_ms: int) -> str:
    """The text at an HTTP address; redirects are followed.

    Raises OSError, TimeoutError, ValueError (not 200, too long, not HTTP, redirected too often).
    """
    async with asyncio.timeout(timeout_ms / 1000):
        for _ in range(1 + REDIRECTS_MAX):
            answer = await _get(url)
            if not answer.location:
                break
            url = urljoin(url, answer.location)
        else:
            raise ValueError(f"more than {REDIRECTS_MAX} redirects")
    if answer.status != 200:
        raise ValueError(f"HTTP status {answer.status}")
    return answer.body.decode("utf-8", "replace")


async def _get(url: str) -> _Answer:
    page = urlsplit(url)
    if page.scheme not in {"http", "https"} or not page.hostname:
        raise ValueError(f"{url} is no HTTP address")
    reader, writer = await asyncio.open_connection(
        page.hostname,
        page.port or (443 if page.scheme == "https" else 80),
        ssl=page.scheme == "https" or None,
        limit=HEAD_BYTES_MAX,
    )
    with closing(writer):
        target = (page.path or "/") + (f"?{page.query}" if page.query else "")
        writer.write(
            f"GET {target} HTTP/1.1\r\nHost: {page.netloc.rpartition('@')[2]}\r\n"
            "User-Agent: tandemmq\r\nAccept: */*\r\nConnection: close\r\n\r\n".encode()
        )
        try:
            status, fields = _head(await reader.readuntil(b"\r\n\r\n"))
            if status in REDIRECTS and fields["Location"]:
                return _Answer(status, fields["Location"], b"")
            return _Answer(status, "", await _body(reader, fields) if status == 200 else b"")
        except asyncio.IncompleteReadError as short:
            raise OSError("the connection was closed within the answer") from short
        except asyncio.LimitOverrunError as long:
            raise ValueError(f"the answer's head is longer than {HEAD_BYTES_MAX} bytes") from long


def _head(head: bytes) -> tuple[int, Message]:
    """Status and fields of an answer."""
    first, _, rest = head.partition(b"\r\n")
    version, _, status = first.decode("latin-1").partition(" ")
    if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
        raise ValueError(f"not an HTTP answer: {first[:80]!r}")
    try:
        return int(status[:3]), http.client.parse_headers(io.BytesIO(rest))
    except http.client.HTTPException as damage:
        raise ValueError(f"not an HTTP answer: {damage!r}") from damage


async def _body(reader: asyncio.StreamReader, fields: Message) -> bytes:
    body = bytearray()
    if fields.get("Transfer-Encoding", "").strip().lower() == "chunked":
        while size := _size((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            _check_size(len(body) + size)
            body += await reader.readexactly(size)
            await reader.readexactly(2)
    elif length := fields.get("Content-Length"):
        size = _size(length.encode("latin-1"), 10)
        _check_size(size)
        body += await reader.readexactly(size)
    else:
        while part := await reader.read(PAGE_BYTES_MAX):
            body += part
            _check_size(len(body))
    return bytes(body)


def _size(digits: bytes, base: int) -> int:
    size = int(digits, base)
    if size < 0:
        raise ValueError(f"a size of {size} bytes")
    return size


def _check_size(size: int) -> None:
    if size > PAGE_BYTES_MAX:
        raise ValueError(f"more than {PAGE_BYTES_MAX} bytes")
