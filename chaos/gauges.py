"""Reads what a broker exports: its metrics page, as text, and values in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from tandemmq.chaos.ports import LOOPBACK
from tandemmq.chaos.processes import ProcessBroken

SCRAPE_S: Final = 2.0


async def page_of(port: int) -> tuple[str, str]:
    """(head, body) of a broker's metrics page, on loopback. Raises ProcessBroken when there is none in time."""
    try:
        async with asyncio.timeout(SCRAPE_S):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(
                    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                page = await reader.read(-1)
            finally:
                writer.close()
    except (OSError, TimeoutError) as problem:
        raise ProcessBroken(f"no metrics at port {port}: {problem!r}") from None
    head, _, body = page.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise ProcessBroken(f"no metrics at port {port}: {head[:200]!r}")
    return head.decode(errors="replace"), body.decode()


async def scrape(port: int) -> str:
    """The metrics page of a broker on loopback. Raises ProcessBroken when there is none in time."""
    return (await page_of(port))[1]


def metric_values(text: str, name: str) -> Iterator[float]:
    """The values of one metric, one for each set of labels."""
    for line in text.splitlines():
        found, _, value = line.rpartition(" ")
        if found.partition("{")[0] == name:
            yield float(value)
