"""Replication stream, store to store: `python -m bench.replication`.

Two processes on loopback: a master whose store is full already, and a slave with an empty one that follows. Printed for
each dialect: GB/s from the first byte to the last report, and seconds of CPU per GB on both sides, all threads counted.
With `--live` the master appends while it streams, in batches as a loaded broker's turns do, and the figures are about
that. A process's CPU seconds are the trustworthy column on a machine that has other work; of the rates the best run
counts, the one least disturbed.
"""

from __future__ import annotations

import argparse
import asyncio
import filecmp
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.load import warm_memory
from tandemmq.replication.config import LeaseTimes, Mode, StreamRules
from tandemmq.replication.election import GroupView
from tandemmq.replication.epochs import Epoch, EpochHistory
from tandemmq.replication.feed import Feed
from tandemmq.replication.keeping import EpochFile, LogKeeping
from tandemmq.replication.master import MasterCore
from tandemmq.replication.masterevents import Acknowledge, Confirmed
from tandemmq.replication.party import Party
from tandemmq.replication.receiver import Receiver
from tandemmq.replication.replica import (
    ControllerUp,
    HeartbeatAnswered,
    Prepare,
    Prepared,
    Registered,
    ReplicaCore,
    SendHeartbeat,
)
from tandemmq.replication.sender import Sender, open_listener
from tandemmq.replication.slave import Append, SlaveCore
from tandemmq.storage import (
    BatchItem,
    Draft,
    FlushMode,
    MessageStore,
    StorageConfig,
    SystemClock,
    join_batch,
    open_store,
    pack_host,
)

HOST: Final = "127.0.0.1"
REQUIRED: Final = 1.0  # GB/s
GIB: Final = 1 << 30
BATCH: Final = 64
RULES: Final = StreamRules(copies_wanted=2)
DIALECTS: Final = ("classic", "auto-switch", "extended")
DRAIN_S_MAX: Final = 300
SECRET: Final = b"a bench's secret"
LIVE_TURN_BYTES: Final = 64 << 10


@dataclass(slots=True)
class Side:
    """What one process spent."""

    seconds: float
    cpu_user: float
    cpu_system: float
    bytes: int

    def line(self, name: str) -> str:
        cpu = self.cpu_user + self.cpu_system
        gigabytes = self.bytes / 1e9
        return (
            f"{name} {cpu / gigabytes:5.2f} CPU s/GB "
            f"(user {self.cpu_user / gigabytes:4.2f}, system {self.cpu_system / gigabytes:4.2f})"
        )


class Meter:
    """Seconds and CPU seconds since it was made, all threads."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._used = resource.getrusage(resource.RUSAGE_SELF)

    def read(self, count: int) -> Side:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return Side(
            time.perf_counter() - self._began,
            used.ru_utime - self._used.ru_utime,
            used.ru_stime - self._used.ru_stime,
            count,
        )


def config_of(root: Path) -> StorageConfig:
    return StorageConfig(
        root=str(root), segment_bytes=GIB // 4, index_enabled=False, flush_mode=FlushMode.ASYNC
    )


def fill(store: MessageStore, count: int, body_bytes: int) -> None:
    """Append messages until the log holds at least `count` bytes more."""
    end = store.end + count
    host = pack_host(HOST, 10911)
    item = BatchItem(0, memoryview(bytes(body_bytes)), b"TAGS\x01a\x02")
    body = join_batch([item] * BATCH)
    number = 0
    while store.end < end:
        envelope = Draft(
            f"topic-{number % 8}", number % 4, body, b"", born_host=host, store_host=host
        )
        tail = store.queue_tail(envelope.topic, envelope.queue_id)
        store.log.append_batch(envelope, tail, store.clock.now_ms())
        number += 1


def controlled(feed: Feed, store: MessageStore, view: GroupView) -> None:
    """A controller that agrees: it gave `view` out, and every heartbeat is answered with a lease."""

    def beat(effect: SendHeartbeat) -> None:
        feed.feed(HeartbeatAnswered(effect.number, True, effect.leading, view))

    def prepare(effect: Prepare) -> None:
        feed.feed(Prepared(effect.epoch, store.end, store.end))

    feed.register(SendHeartbeat, beat)
    feed.register(Prepare, prepare)
    feed.ignore(*feed.unhandled())
    feed.feed(ControllerUp())
    feed.feed(Registered(view))


def master_feed(store: MessageStore, dialect: str, clock: SystemClock) -> tuple[Feed, Sender]:
    segment_bytes = store.config.segment_bytes
    if dialect == "classic":
        feed = Feed(
            MasterCore(0, Mode.S0, RULES, controlled=False, start=store.log.start, end=store.end),
            clock,
        )
        return feed, Sender(feed, store.log, clock, segment_bytes=segment_bytes)
    history = EpochHistory((Epoch(1, 0),))
    slave = SlaveCore(RULES, history, start=store.log.start, end=store.end, flushed=store.end)
    core = ReplicaCore(1, 1, Mode.S0, LeaseTimes(), RULES, slave)
    feed = Feed(core, clock)
    party = Party("bench", "pair", 1, 1, SECRET)
    if dialect == "auto-switch":
        party = Party("bench", "pair", 1, 1, extended=False)
    sender = Sender(feed, store.log, clock, segment_bytes=segment_bytes, party=party)
    return feed, sender


def slave_feed(store: MessageStore, dialect: str, address: str) -> tuple[Feed, Receiver]:
    clock = SystemClock()
    if dialect == "classic":
        feed = Feed(SlaveCore(RULES, end=store.end, classic=True), clock)
        receiver = Receiver(feed, store, clock)
        feed.ignore(Confirmed)
        receiver.follow(address)
        return feed, receiver
    core = ReplicaCore(2, 1, Mode.S0, LeaseTimes(), RULES, SlaveCore(RULES))
    feed = Feed(core, clock)
    party = Party("bench", "pair", 2, 1, SECRET)
    if dialect == "auto-switch":
        party = Party("bench", "pair", 2, 1, extended=False)
    receiver = Receiver(feed, store, clock, party=party)
    LogKeeping(feed, store, EpochFile(Path(store.config.root) / "epochFileCheckpoint"))
    controlled(feed, store, view_of(address))
    return feed, receiver


def view_of(address: str) -> GroupView:
    return GroupView(2, 1, address, address, frozenset({1}), 1)


@asynccontextmanager
async def beside(*jobs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run jobs beside the body; one that fails ends it."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in jobs]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Look every few milliseconds: what is measured must not work for who measures."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def housekeeping(store: MessageStore) -> None:
    """What a broker does beside: flush, and the next file of the log in time."""
    flushed_s = time.monotonic()
    while True:
        await asyncio.sleep(0.1)
        if store.log.next_segment_needed():
            await asyncio.to_thread(store.prepare_next_segment)
        if time.monotonic() - flushed_s >= 0.5:
            await asyncio.to_thread(store.flush_log, 4)
            flushed_s = time.monotonic()


async def run_master(given: argparse.Namespace) -> None:
    """Fill a store, say where it is served, and print what serving took."""
    with open_store(config_of(given.root)) as store:
        fill(store, 0 if given.live else given.bytes, given.body)
        store.flush_log()  # not part of the stream
        clock = SystemClock()
        feed, sender = master_feed(store, given.dialect, clock)
        feed.ignore(Acknowledge, Confirmed)
        target = store.end + (given.bytes if given.live else 0)
        with open_listener(HOST, 0) as listener:
            address = f"{HOST}:{listener.getsockname()[1]}"
            if given.dialect != "classic":
                controlled(feed, store, view_of(address))
            async with beside(feed.run(), sender.run(listener), housekeeping(store)):
                print(json.dumps({"address": address, "end": target}), flush=True)
                async with asyncio.timeout(DRAIN_S_MAX):
                    await until(lambda: any(each.acked >= 0 for each in sender.status()))
                    meter = Meter()
                    while store.end < target:
                        fill(store, LIVE_TURN_BYTES, given.body)
                        sender.wake()
                        await asyncio.sleep(0)
                    await until(lambda: any(each.acked >= target for each in sender.status()))
                print(json.dumps(asdict(meter.read(given.bytes))), flush=True)


async def run_slave(given: argparse.Namespace) -> None:
    """Follow into an empty store, and print what that took."""
    loop = asyncio.get_running_loop()
    with open_store(config_of(given.root)) as store:
        due = False

        def turn() -> None:
            nonlocal due
            due = False
            if store.dispatch(2048) == 2048:
                wake()

        def wake() -> None:
            nonlocal due
            if not due:
                due = True
                loop.call_soon(turn)

        meter = Meter()
        feed, receiver = slave_feed(store, given.dialect, given.address)
        if given.dispatch:
            feed.register(Append, lambda _: wake())
        async with beside(feed.run(), receiver.run(), housekeeping(store)):
            async with asyncio.timeout(DRAIN_S_MAX):
                await until(lambda: store.end >= given.end)
                await until(lambda: not given.dispatch or store.dispatcher.position == store.end)
            print(json.dumps(asdict(meter.read(given.bytes))), flush=True)
            await asyncio.sleep(0.2)  # the last report is on its way


def measure(given: argparse.Namespace, dialect: str) -> float:
    """One run in two fresh processes; prints one line. The rate, in GB/s."""
    root = Path(tempfile.mkdtemp(prefix="replication-", dir=given.data))
    common = [
        sys.executable, "-m", "bench.replication", "--dialect", dialect, "--bytes", str(given.bytes),
        "--body", str(given.body), *(["--live"] if given.live else []),
        *(["--dispatch"] if given.dispatch else []),
    ]  # fmt: skip
    try:
        with subprocess.Popen(
            [*pinned(0), *common, "--side", "master", "--root", str(root / "master")],
            stdout=subprocess.PIPE, text=True,
        ) as master:  # fmt: skip
            try:
                assert master.stdout is not None
                ready = json.loads(master.stdout.readline())
                with warm_memory(2 * given.bytes):
                    slave = subprocess.run(
                        [*pinned(1), *common, "--side", "slave", "--root", str(root / "slave"),
                         "--address", ready["address"], "--end", str(ready["end"])],
                        stdout=subprocess.PIPE, text=True, check=True,
                    )  # fmt: skip
                sent = Side(**json.loads(master.stdout.readline()))
                taken = Side(**json.loads(slave.stdout))
            finally:
                master.terminate()
        same = compare(root) if given.check else ""
    finally:
        shutil.rmtree(root)
    rate: float = given.bytes / taken.seconds / 1e9
    print(
        f"{dialect:12} {rate:5.2f} GB/s  {sent.line('master')}  {taken.line('slave')}{same}",
        flush=True,
    )
    if "DIFFERS" in same:
        sys.exit("the slave's log is not the master's")
    return rate


def pinned(core: int) -> list[str]:
    """Each side on a core of its own where there are two."""
    return (
        ["taskset", "-c", str(core)]
        if (os.cpu_count() or 1) > 1 and shutil.which("taskset")
        else []
    )


def compare(root: Path) -> str:
    for ours in sorted((root / "master" / "commitlog").iterdir()):
        theirs = root / "slave" / "commitlog" / ours.name
        if theirs.exists() and not filecmp.cmp(ours, theirs, shallow=False):
            return f"  DIFFERS in {ours.name}"
    return "  identical"


def main() -> None:
    """Parse the command line and measure, or be one side of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.replication", description=__doc__)
    parser.add_argument("--bytes", type=int, default=2 * GIB, help="of log (default 2 GiB)")
    parser.add_argument("--body", type=int, default=1024, help="bytes of each message")
    parser.add_argument("--dialect", choices=DIALECTS, help="default: all of them")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--live", action="store_true", help="append while streaming")
    parser.add_argument("--dispatch", action="store_true", help="the slave builds its queues, too")
    parser.add_argument("--check", action="store_true", help="compare the logs afterwards")
    parser.add_argument("--data", type=Path, help="where the stores are made")
    parser.add_argument("--require", action="store_true", help="exit 3 when a dialect is too slow")
    parser.add_argument("--side", choices=("master", "slave"), help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--end", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side is not None:
        uvloop.run(run_master(given) if given.side == "master" else run_slave(given))
        return
    rates: dict[str, list[float]] = defaultdict(list)
    for _ in range(given.runs):
        for dialect in [given.dialect] if given.dialect else DIALECTS:
            rates[dialect].append(measure(given, dialect))
    for dialect, found in rates.items():
        verdict = "met" if max(found) >= REQUIRED else "MISSED"
        print(
            f"figure {dialect}: best {max(found):.2f} GB/s, median {statistics.median(found):.2f}, "
            f"best required {REQUIRED:.2f}: {verdict}"
        )
    if given.require and any(max(found) < REQUIRED for found in rates.values()):
        sys.exit(3)


if __name__ == "__main__":
    main()
