"""What a run is doing now, for Prometheus: a page of metrics, and where the brokers that it started have theirs.

    GET /metrics    the run: faults under way, sends by outcome, how long nothing was acknowledged
    GET /targets    the exporters of its brokers, as Prometheus' http_sd_configs take them

On loopback alone, and only while the run goes on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from tandemmq.chaos.journal import Journal
from tandemmq.chaos.ports import LOOPBACK
from tandemmq.chaos.scenarios.playing import Player
from tandemmq.chaos.scenarios.schedule import Schedule
from tandemmq.chaos.traffic import Traffic

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: name -> (type, what it is)
METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "tandem_chaos_run_info": ("gauge", "1, with what the run is as labels."),
    "tandem_chaos_steps": ("gauge", "Steps of the schedule."),
    "tandem_chaos_steps_done": ("gauge", "Steps after which the cluster was whole again."),
    "tandem_chaos_fault_active": ("gauge", "1 from a fault's order until it was seen to be over."),
    "tandem_chaos_faults_total": ("counter", "Faults that were ordered, by kind."),
    "tandem_chaos_doubts": ("gauge", "Faults that showed no effect: the run proves nothing."),
    "tandem_chaos_sends_total": ("counter", "Sends by outcome: ok, fail (refused), info (unknown)."),
    "tandem_chaos_undelivered_messages": ("gauge", "Acknowledged, and not given to the consumer group yet."),
    "tandem_chaos_silence_seconds": ("gauge", "Since the last acknowledgement."),
}  # fmt: skip
Row = tuple[Mapping[str, str], float]


class PortTaken(Exception):
    """The port for the metrics cannot be opened."""


@dataclass(slots=True)
class Progress:
    """How far a run is; filled in as its parts begin. exporters: of its brokers, by name."""

    schedule: Schedule
    target: str
    steps_done: int = 0
    player: Player | None = None
    journal: Journal | None = None
    traffic: Traffic | None = None
    exporters: dict[str, str] = field(default_factory=dict)


def page(progress: Progress, now_ns: int) -> str:
    """The metrics of this moment; those of parts that have not begun are left out."""
    lines = []
    for name, rows in _rows(progress, now_ns):
        kind, text = METRICS[name]
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for labels, value in rows:
            written = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
            lines.append(f"{name}{{{written}}} {value:g}" if written else f"{name} {value:g}")
    return "\n".join(lines) + "\n"


def _rows(progress: Progress, now_ns: int) -> Iterator[tuple[str, Iterable[Row]]]:
    schedule = progress.schedule
    about = {
        "scenario": schedule.scenario, "seed": str(schedule.seed), "mode": schedule.mode,
        "target": progress.target,
    }  # fmt: skip
    yield "tandem_chaos_run_info", [(about, 1)]
    yield "tandem_chaos_steps", [({}, len(schedule.steps))]
    yield "tandem_chaos_steps_done", [({}, progress.steps_done)]
    if progress.player is not None:
        stories = progress.player.stories
        active: Counter[tuple[str, str]] = Counter()
        for each in stories:
            active[each.kind, each.victim] += bool(each.began_ns and not each.healed_ns)
        yield (
            "tandem_chaos_fault_active",
            [({"kind": kind, "victim": victim}, count) for (kind, victim), count in active.items()],
        )
        ordered = Counter(each.kind for each in stories)
        yield "tandem_chaos_faults_total", [({"kind": kind}, n) for kind, n in ordered.items()]
        yield "tandem_chaos_doubts", [({}, len(progress.player.doubts))]
    if progress.journal is not None:
        sends = progress.journal.counts
        yield "tandem_chaos_sends_total", [({"outcome": what}, n) for what, n in sends.items()]
        yield "tandem_chaos_undelivered_messages", [({}, len(progress.journal.undelivered))]
    if progress.traffic is not None:
        silent_ns = now_ns - progress.traffic.last_acknowledged_ns
        yield "tandem_chaos_silence_seconds", [({}, silent_ns / 1e9)]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def targets(progress: Progress) -> list[dict[str, object]]:
    """One group for each broker, labelled as the dashboards ask for them."""
    return [
        {"targets": [address], "labels": {"job": "tandem", "replica": name}}
        for name, address in progress.exporters.items()
    ]


@asynccontextmanager
async def serving(progress: Progress, port: int) -> AsyncIterator[str]:
    """Both pages inside the block; the address. port 0: any. Raises PortTaken."""

    async def metrics(_: web.Request) -> web.Response:
        text = page(progress, time.monotonic_ns())
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def exporters(_: web.Request) -> web.Response:
        return web.json_response(targets(progress))

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    application.router.add_get("/targets", exporters)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, LOOPBACK, port)
        try:
            await site.start()
        except OSError as problem:
            raise PortTaken(f"{LOOPBACK}:{port}: {problem.strerror}") from None
        _, taken = runner.addresses[0][:2]
        yield f"{LOOPBACK}:{taken}"
    finally:
        await runner.cleanup()
