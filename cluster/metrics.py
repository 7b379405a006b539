"""The page that Prometheus reads a process' metrics from, made between other work. The rows: metrictable.py."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from tandemmq.cluster.histogram import Histogram
from tandemmq.cluster.httplog import http_logger
from tandemmq.cluster.metrictable import METRICS, Metric
from tandemmq.cluster.processmeasures import process_readers

__all__ = [
    "METRICS",
    "SERIES_MAX",
    "Metric",
    "MetricPage",
    "MetricTable",
    "Reader",
    "exposition",
    "page",
]

log = logging.getLogger(__name__)

#: rows of one metric that are shown; a page of a broker with a million topics helps nobody
SERIES_MAX: Final = 5_000
ROWS_AT_ONCE: Final = 32  # then others may have their turn
SLICE_S: Final = 0.001  # of the loop's time, in one go
DEAR_S: Final = 0.02  # a page that cost so much is given again to who asks at once
DEAR_TIMES: Final = 10  # for so many times what it cost: all scrapes take a tenth of a core at most
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Reading = Iterable[tuple[tuple[str, ...], float | Histogram]]
Reader = Callable[[], Reading]
"""Values by labels. Others run between any two of them: it must go over copies of what may change meanwhile."""


class MetricTable:
    """Reads every metric when somebody looks.

    readers   one for each metric it has: a name that METRICS lacks is our bug
    base      labels that every series carries
    prepare   run before the readers of each page, step by step: what several of them share
    """

    def __init__(
        self,
        readers: Mapping[str, Reader],
        base: Mapping[str, str],
        prepare: Callable[[], Iterable[object]] = tuple,
    ) -> None:
        known = {metric.name: metric for metric in METRICS}
        assert readers.keys() <= known.keys(), readers.keys() - known.keys()
        self.base = dict(base)
        self._families = [_Family(known[name], base, reader) for name, reader in readers.items()]
        self._prepare = prepare

    def parts(self) -> Iterator[str]:
        """The page in pieces, some of them empty: after each of them others may have their turn."""
        for _ in self._prepare():
            yield ""
        for family in self._families:
            yield from family.parts()


class _Family:
    """One metric and how its lines are written; labels in the order of their names."""

    def __init__(self, metric: Metric, base: Mapping[str, str], reader: Reader) -> None:
        self._metric = metric
        self._reader = reader
        values = {name: _escaped(value).replace("%", "%%") for name, value in base.items()}
        places = {name: place for place, name in enumerate(metric.labels)}
        names = sorted([*values, *places])
        self._order = [places[name] for name in names if name in places]
        self._labels = ",".join(f'{name}="{values.get(name, "%s")}"' for name in names)
        self._head = (
            f"# HELP {metric.name} {_escaped(metric.help)}\n# TYPE {metric.name} {metric.kind}\n"
        )

    def parts(self) -> Iterator[str]:
        yield self._head
        write = self._buckets if self._metric.kind == "histogram" else self._line
        lines: list[str] = []
        for count, (labels, value) in enumerate(self._reader()):
            if count >= SERIES_MAX:
                break
            lines += write([_escaped(labels[place]) for place in self._order], value)
            if len(lines) >= ROWS_AT_ONCE:
                yield "".join(lines)
                lines.clear()
        yield "".join(lines)

    def _line(self, labels: list[str], value: float | Histogram) -> Iterable[str]:
        assert not isinstance(value, Histogram), self._metric.name
        shown = f"{{{self._labels % tuple(labels)}}}" if self._labels else ""
        return (f"{self._metric.name}{shown} {float(value)!r}\n",)

    def _buckets(self, labels: list[str], value: float | Histogram) -> Iterable[str]:
        assert isinstance(value, Histogram), self._metric.name
        metric, shown = self._metric, self._labels % tuple(labels)
        comma = "," if shown else ""
        below = value.below(metric.bounds)
        ends = [repr(bound / metric.scale) for bound in metric.bounds]
        yield from (
            f'{metric.name}_bucket{{{shown}{comma}le="{end}"}} {count}\n'
            for end, count in zip([*ends, "+Inf"], below, strict=True)
        )
        shown = f"{{{shown}}}" if shown else ""
        yield f"{metric.name}_sum{shown} {value.sum / metric.scale!r}\n"
        yield f"{metric.name}_count{shown} {below[-1]}\n"


def _escaped(text: str) -> str:
    if "\\" in text or "\n" in text or '"' in text:
        return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return text


def page(table: MetricTable) -> bytes:
    """The text that Prometheus reads, at once."""
    return "".join(table.parts()).encode()


class MetricPage:
    """The text that Prometheus reads, made in slices of the loop's time.

    Who asks while it is made gets the same. One that was dear stays for a while: a Prometheus that asks every second
    costs no more than one that does not.

    tables  of all that this process is, at least one; no metric is in two of them
    """

    def __init__(self, tables: Sequence[MetricTable]) -> None:
        process = {**process_readers(), "tandem_scrape_seconds": self._cost}
        self._tables = (*tables, MetricTable(process, tables[0].base))
        self._making: asyncio.Task[bytes] | None = None
        self._kept = b""
        self._kept_until = 0.0
        self.cost_s = 0.0  # processor time of the last one, without what others did meanwhile

    async def text(self) -> bytes:
        """The page as it is now, or was a moment ago."""
        if time.perf_counter() < self._kept_until:
            return self._kept
        if self._making is None:
            self._making = asyncio.create_task(self._make(), name="metrics page")
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    async def _make(self) -> bytes:
        parts: list[str] = []
        worked, began = time.thread_time(), time.perf_counter()
        cost = 0.0
        for part in itertools.chain.from_iterable(table.parts() for table in self._tables):
            parts.append(part)
            if time.perf_counter() - began >= SLICE_S:
                cost += time.thread_time() - worked
                await asyncio.sleep(0)
                worked, began = time.thread_time(), time.perf_counter()
        text = "".join(parts).encode()
        self.cost_s = cost + time.thread_time() - worked
        if self.cost_s >= DEAR_S:
            self._kept = text
            self._kept_until = time.perf_counter() + DEAR_TIMES * self.cost_s
        return text

    def _cost(self) -> Reading:
        yield (), self.cost_s

    def _made(self, task: asyncio.Task[bytes]) -> None:
        self._making = None


async def answer(made: MetricPage) -> web.Response:
    """The page as a response."""
    return web.Response(body=await made.text(), headers={"Content-Type": CONTENT_TYPE})


@asynccontextmanager
async def exposition(table: MetricTable, host: str, port: int) -> AsyncIterator[None]:
    """Serve the page at any path of http://host:port while the body runs."""
    made = MetricPage([table])

    async def handle(request: web.Request) -> web.Response:
        return await answer(made)

    application = web.Application(client_max_size=1024)
    application.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(application, access_log=None, logger=http_logger("metrics"))
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        log.info("metrics served address=%s:%d", host, port)
        yield
    finally:
        await runner.cleanup()
