"""A slave that lags, over sockets: it catches up from file to socket, without memory and without the mapping."""

from __future__ import annotations

import asyncio
import random
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import uvloop
from appendkit import tell_of_appends

import tandemmq.replication.stream
from tandemmq.replication.config import LeaseTimes, Mode, StreamRules
from tandemmq.replication.election import GroupView
from tandemmq.replication.epochs import Epoch, EpochHistory
from tandemmq.replication.feed import Feed
from tandemmq.replication.keeping import EpochFile, LogKeeping
from tandemmq.replication.master import MasterCore
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
from tandemmq.replication.slave import SlaveCore
from tandemmq.storage import Draft, FlushMode, MessageStore, StorageConfig, SystemClock, open_store

pytestmark = pytest.mark.system

Main = Callable[[], Coroutine[Any, Any, None]]
HOST: Final = "127.0.0.1"
SEGMENT_BYTES: Final = 4 << 20
HOT_BYTES: Final = 1 << 20
LOG_BYTES: Final = 30 << 20
RULES: Final = StreamRules(copies_wanted=2)
KINDS: Final[dict[str, dict[str, Any]]] = {
    "classic": {},
    "auto-switch": {"extended": False},
    "extended": {"secret": b"shared"},
    "lz4": {"compressed": True},
}


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Main], None]:
    monkeypatch.setattr(tandemmq.replication.stream, "HOT_BYTES", HOT_BYTES)
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(main: Main) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return run


def config_of(root: Path) -> StorageConfig:
    return StorageConfig(
        root=str(root), segment_bytes=SEGMENT_BYTES, queue_segment_bytes=40_000,
        index_enabled=False, flush_mode=FlushMode.ASYNC,
    )  # fmt: skip


def fill(store: MessageStore, count: int, rng: random.Random) -> None:
    """Append messages until there are `count` bytes more."""
    end = store.end + count
    while store.end < end:
        size = rng.choice((10, 1000, 3000, 700_000 if rng.random() < 0.001 else 500))
        store.put(Draft(f"T{rng.randrange(4)}", rng.randrange(4), rng.randbytes(size), b""))
        if rng.random() < 0.01:
            while store.dispatch():
                pass


@asynccontextmanager
async def beside(*jobs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in jobs]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def agreed(feed: Feed, store: MessageStore, address: str) -> None:
    """A controller that gave epoch 2 to replica 1 and answers every heartbeat with a lease."""
    view = GroupView(2, 1, address, address, frozenset({1}), 1)

    def beat(effect: SendHeartbeat) -> None:
        feed.feed(HeartbeatAnswered(effect.number, True, effect.leading, view))

    def prepare(effect: Prepare) -> None:
        feed.feed(Prepared(effect.epoch, store.end, store.end))

    feed.register(SendHeartbeat, beat)
    feed.register(Prepare, prepare)
    feed.ignore(*feed.unhandled())
    feed.feed(ControllerUp())
    feed.feed(Registered(view))


@asynccontextmanager
async def master(store: MessageStore, kind: str) -> AsyncIterator[tuple[Sender, str]]:
    """Serve a store of two reigns: epoch 1 to its middle, then epoch 2."""
    clock = SystemClock()
    party = None
    if kind == "classic":
        core: Any = MasterCore(0, Mode.S0, RULES, controlled=False, end=store.end)
    else:
        history = EpochHistory((Epoch(1, 0),))
        core = ReplicaCore(
            1, 1, Mode.S0, LeaseTimes(), RULES, SlaveCore(RULES, history, end=store.end)
        )
        party = Party("c", "g", 1, 1, **KINDS[kind])
    feed = Feed(core, clock)
    sender = Sender(feed, store.log, clock, segment_bytes=SEGMENT_BYTES, party=party)
    tell_of_appends(store, sender.wake)
    with open_listener(HOST, 0) as listener:
        address = f"{HOST}:{listener.getsockname()[1]}"
        if kind == "classic":
            feed.ignore(*feed.unhandled())
        else:
            agreed(feed, store, address)
        async with beside(feed.run(), sender.run(listener)):
            yield sender, address


@asynccontextmanager
async def slave(store: MessageStore, kind: str, address: str) -> AsyncIterator[Receiver]:
    clock = SystemClock()
    if kind == "classic":
        feed = Feed(SlaveCore(RULES, end=store.end, classic=True), clock)
        receiver = Receiver(feed, store, clock)
        feed.ignore(*feed.unhandled())
        receiver.follow(address)
    else:
        core = ReplicaCore(2, 1, Mode.S0, LeaseTimes(), RULES, SlaveCore(RULES, end=store.end))
        feed = Feed(core, clock)
        receiver = Receiver(feed, store, clock, party=Party("c", "g", 2, 1, **KINDS[kind]))
        LogKeeping(feed, store, EpochFile(Path(store.config.root) / "epochFileCheckpoint"))
        agreed(feed, store, address)
    async with beside(feed.run(), receiver.run()):
        yield receiver


async def grown(store: MessageStore, end: int) -> None:
    """Until a store's log reaches `end`."""
    reached = asyncio.Event()
    tell_of_appends(store, lambda: reached.set() if store.end >= end else None)
    async with asyncio.timeout(60):
        if store.end < end:
            await reached.wait()


def assert_identical(ours: Path, theirs: Path) -> None:
    names = sorted(each.name for each in (ours / "commitlog").iterdir())
    assert sorted(each.name for each in (theirs / "commitlog").iterdir()) == names
    for name in names:
        same = (ours / "commitlog" / name).read_bytes() == (
            theirs / "commitlog" / name
        ).read_bytes()
        assert same, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_slave_catches_up_without_the_loop_touching_cold_bytes(
    tmp_path: Path, on_loop: Callable[[Main], None], kind: str
) -> None:
    rng = random.Random(1)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            ours = stack.enter_context(open_store(config_of(tmp_path / "master")))
            theirs = stack.enter_context(open_store(config_of(tmp_path / "slave")))
            fill(ours, LOG_BYTES // 2, rng)
            _, address = await stack.enter_async_context(master(ours, kind))
            fill(ours, LOG_BYTES // 2, rng)
            end, read = ours.end, ours.log.read
            touched: list[int] = []

            def noted(offset: int, size: int) -> memoryview | None:
                touched.append(offset)
                return read(offset, size)

            ours.log.read = noted  # type: ignore[method-assign]
            await stack.enter_async_context(slave(theirs, kind, address))
            await grown(theirs, end)
            if kind != "lz4":  # compressing needs the bytes; they were read ahead all the same
                assert not touched or min(touched) > end - 2 * HOT_BYTES
            fill(ours, 3 << 20, rng)  # and goes on live
            await grown(theirs, ours.end)

    on_loop(main)
    assert_identical(tmp_path / "master", tmp_path / "slave")


@pytest.mark.parametrize("kind", ["classic", "auto-switch"])
def test_a_slave_that_reads_slowly_costs_no_memory_while_it_lags(
    tmp_path: Path, on_loop: Callable[[Main], None], kind: str
) -> None:
    rng = random.Random(2)

    async def main() -> None:
        with open_store(config_of(tmp_path)) as store:
            fill(store, LOG_BYTES, rng)
            async with master(store, kind) as (sender, address):
                host, _, port = address.rpartition(":")
                slow = socket.create_connection((host, int(port)))
                slow.setblocking(False)
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                loop = asyncio.get_running_loop()
                if kind == "classic":
                    slow.send(bytes(8))
                    head = 12
                else:
                    slow.send(bytes.fromhex("00000001000000000000000000000002"))
                    head = len(await loop.sock_recv(slow, 20 + 24))
                    slow.send((2).to_bytes(4, "big") + bytes(8))
                    head = 36
                assert len(await loop.sock_recv(slow, head)) == head
                tracemalloc.start()
                try:
                    for _ in range(200):
                        fill(store, 1 << 16, rng)
                        await loop.sock_recv(slow, 1 << 14)
                    _, peak = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
                status = sender.status()[0]
                assert status.next_offset < store.end - HOT_BYTES
                assert peak < 4 << 20, f"{peak} bytes for {store.end - status.next_offset} of lag"
                slow.close()

    on_loop(main)


def test_a_lagging_slave_is_dropped_when_its_file_is_gone(
    tmp_path: Path, on_loop: Callable[[Main], None], caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(3)

    async def main() -> None:
        with open_store(config_of(tmp_path)) as store:
            fill(store, LOG_BYTES, rng)
            (tmp_path / "commitlog" / f"{0:020d}").rename(tmp_path / "away")
            async with asyncio.timeout(30), master(store, "classic") as (_, address):
                host, _, port = address.rpartition(":")
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(bytes(8))
                assert await reader.read() == b""
                writer.close()
            (tmp_path / "away").rename(tmp_path / "commitlog" / f"{0:020d}")

    on_loop(main)
    assert caplog.text.count("cannot read the log") == 1
