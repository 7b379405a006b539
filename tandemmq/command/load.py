"""`tandem bench`: a quick load from one process. For comparisons of brokers there is `make bench`."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from tandemmq.cluster.client import (
    ClientConfig,
    ClientError,
    Message,
    NoRoute,
    Producer,
    PullConsumer,
)
from tandemmq.cluster.client.admin.admin import Admin
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.outcome import client_errors
from tandemmq.command.reach import reach
from tandemmq.command.screen import Progress

GROUP: Final = "TANDEM_BENCH"
READ_GROUP: Final = "TOOLS_CONSUMER"  # exists on every broker, for tools
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)
LOOK_S: Final = 0.2  # between two looks at the progress
QUIET_MS: Final = 5_000  # nothing came for so long: what is missing will not come


def run_bench(arguments: argparse.Namespace) -> ExitCode:
    """Send, read back, print rates and latencies. FAILED when a message failed or is missing."""
    for name in ("count", "size", "in_flight", "queues"):
        if getattr(arguments, name) < 1:
            option = name.replace("_", "-")
            raise CommandFailed(f"--{option} must be at least 1", ExitCode.USAGE)
    for name in ("seconds", "rate"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise CommandFailed(f"--{name} must be above 0", ExitCode.USAGE)
    with client_errors():
        found = asyncio.run(measure(arguments, reach(arguments)))
    print(json.dumps(found) if arguments.json else as_text(found))
    wrong = found["failed"] or found.get("missing")
    return ExitCode.FAILED if wrong else ExitCode.OK


async def measure(arguments: argparse.Namespace, config: ClientConfig) -> dict[str, Any]:
    """Send, and read back unless `no_read`; rates, and latencies in ms. Raises ClientError."""
    async with Admin(config=config) as admin:
        await _make_topic(admin, arguments.topic, arguments.queues)
        queues = (await admin.route(arguments.topic)).read_queues(arguments.topic)
        begins = {queue: await admin.max_offset(queue) for queue in queues}
    sender = _Sender(arguments)
    async with Producer(GROUP, config=config, in_flight_max=arguments.in_flight) as producer:
        await sender.run(producer)
    found = sender.result()
    if not arguments.no_read and sender.acked:
        consumer = PullConsumer(READ_GROUP, config=config, auto_commit=False, pull_count=256)
        async with consumer:
            await consumer.assign(begins)
            for queue, offset in begins.items():
                await consumer.seek(queue, offset)
            found |= await _read(consumer, sender)
    return found


async def _make_topic(admin: Admin, topic: str, queue_count: int) -> None:
    """Make the topic where it is not there, and wait until the name server knows it everywhere."""
    masters = await admin.masters()
    with suppress(NoRoute):
        await admin.route(topic)
        return
    await admin.create_topic(topic, queue_count)
    async with asyncio.timeout(30):
        while True:
            with suppress(NoRoute):
                if set((await admin.route(topic)).addresses) >= set(masters):
                    return
            await asyncio.sleep(LOOK_S)


class _Sender:
    """in_flight tasks that send one message after the other."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.topic: str = arguments.topic
        self.run_id = f"{time.time_ns():x}"  # what is read back must be of this run
        self.acked = 0
        self.failed = 0
        self.not_promised = 0
        self.failure = ""
        self._took_s = 0.0
        self._latencies_s: list[float] = []
        self._started = 0
        self._body = b"x" * arguments.size
        self._count: int | None = None if arguments.seconds is not None else arguments.count
        self._seconds: float | None = arguments.seconds
        self._rate: float | None = arguments.rate
        self._tasks = arguments.in_flight
        self._began_s = 0.0

    async def run(self, producer: Producer) -> None:
        await producer.queues(self.topic)  # the route is no part of the measurement
        self._began_s = time.perf_counter()
        watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._tasks):
                    tasks.create_task(self._send_on(producer))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        self._took_s = time.perf_counter() - self._began_s

    async def _send_on(self, producer: Producer) -> None:
        message = Message(self.topic, self._body, properties={"bench": self.run_id})
        while await self._turn():
            began = time.perf_counter()
            try:
                result = await producer.send(message)
            except ClientError as problem:
                self.failed += 1
                self.failure = str(problem)
                if self.failed > 100 and not self.acked:
                    raise
                continue
            self._latencies_s.append(time.perf_counter() - began)
            self.acked += 1
            self.not_promised += not result.ok

    async def _turn(self) -> bool:
        """Wait for this send's moment; False when there is nothing more to send."""
        number = self._started
        spent_s = time.perf_counter() - self._began_s
        if self._count is not None and number >= self._count:
            return False
        due_s = number / self._rate if self._rate is not None else spent_s
        if self._seconds is not None and max(spent_s, due_s) >= self._seconds:
            return False
        self._started += 1
        if due_s > spent_s:
            await asyncio.sleep(due_s - spent_s)
        return True

    async def _watch(self) -> None:
        progress = Progress()
        last, last_s = 0, time.perf_counter()
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                now_s = time.perf_counter()
                rate = (self.acked - last) / (now_s - last_s)
                last, last_s = self.acked, now_s
                share = f" of {self._count:,}" if self._count is not None else ""
                failed = f", {self.failed} failed" if self.failed else ""
                progress.show(f"sent {self.acked:,}{share}, {rate:,.0f}/s{failed}")
        finally:
            progress.clear()

    def result(self) -> dict[str, Any]:
        """Rates and latencies; times in ms."""
        ordered = sorted(self._latencies_s)
        latency = {f"p{_short(each)}": _ms(percentile(ordered, each)) for each in PERCENTILES}
        latency["max"] = _ms(ordered[-1] if ordered else 0.0)
        mean = sum(ordered) / len(ordered) if ordered else 0.0
        return {
            "topic": self.topic,
            "size_bytes": len(self._body),
            "in_flight": self._tasks,
            "sent": self.acked,
            "failed": self.failed,
            "failure": self.failure,
            "not_promised": self.not_promised,
            "seconds": round(self._took_s, 3),
            "sent_per_second": round(self.acked / self._took_s) if self._took_s else 0,
            "mib_per_second": round(self.acked * len(self._body) / self._took_s / 2**20, 1),
            "latency_ms": {**latency, "mean": _ms(mean)},
        }


async def _read(consumer: PullConsumer, sender: _Sender) -> dict[str, Any]:
    progress = Progress()
    began = time.perf_counter()
    found, seen_s = 0, 0.0
    while found < sender.acked:
        batch = await consumer.poll(1_024, QUIET_MS)
        if not batch:
            break
        found += sum(each.properties.get("bench") == sender.run_id for each in batch)
        seen_s = time.perf_counter() - began
        progress.show(f"read {found:,} of {sender.acked:,}")
    progress.clear()
    return {
        "read": found,
        "missing": max(0, sender.acked - found),
        "read_seconds": round(seen_s, 3),
        "read_per_second": round(found / seen_s) if seen_s else 0,
    }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value that `percent` of the sorted values do not exceed; 0 of none."""
    if not ordered:
        return 0.0
    place = -int(-len(ordered) * percent // 100) - 1
    return ordered[max(0, min(len(ordered) - 1, place))]


def _short(percent: float) -> str:
    return f"{percent:g}".replace(".", "")


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def as_text(found: dict[str, Any]) -> str:
    """The result for people."""
    latency = found["latency_ms"]
    lines = [
        f"sent   {found['sent']:,} messages of {found['size_bytes']:,} bytes in "
        f"{found['seconds']:.2f} s: {found['sent_per_second']:,}/s, "
        f"{found['mib_per_second']:,.1f} MiB/s, {found['in_flight']} under way at once",
        f"ack    p50 {latency['p50']:.2f}  p90 {latency['p90']:.2f}  p99 {latency['p99']:.2f}  "
        f"p99.9 {latency['p999']:.2f}  max {latency['max']:.2f} ms",
    ]
    if found["failed"]:
        lines.append(f"FAILED {found['failed']:,} sends, the last one: {found['failure']}")
    if found["not_promised"]:
        lines.append(f"note   {found['not_promised']:,} answers were not SEND_OK")
    if "read" in found:
        lines.append(
            f"read   {found['read']:,} messages in {found['read_seconds']:.2f} s: "
            f"{found['read_per_second']:,}/s"
        )
    if found.get("missing"):
        lines.append(f"MISSING {found['missing']:,} acknowledged messages were not read back")
    return "\n".join(lines)
