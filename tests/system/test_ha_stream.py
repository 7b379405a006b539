"""Classic HA over loopback: two stores, one stream that breaks at random places, and what comes out identical."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import uvloop
from appendkit import tell_of_appends

from tandemmq.replication.comparing import Finding, Verdict
from tandemmq.replication.config import Mode, StreamRules
from tandemmq.replication.feed import Feed
from tandemmq.replication.master import MasterCore
from tandemmq.replication.masterevents import Acknowledge
from tandemmq.replication.receiver import Link, Receiver
from tandemmq.replication.sender import CONNECTIONS_MAX, Sender, open_listener
from tandemmq.replication.slave import SlaveCore
from tandemmq.storage import (
    Clock,
    Draft,
    FlushMode,
    MessageStore,
    StorageConfig,
    SystemClock,
    open_store,
    pack_host,
)

pytestmark = pytest.mark.system

Main = Callable[[], Coroutine[Any, Any, None]]
HOST: Final = "127.0.0.1"
SEGMENT_BYTES: Final = 4 << 20
MESSAGES: Final = 50_000
BORN_HOST: Final = pack_host(HOST, 40000)


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> Callable[[Main], None]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(main: Main) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return run


class FastClock:
    """Monotonic time that runs faster: a receiver with it does not make a test wait for its pauses."""

    def __init__(self, factor: int) -> None:
        self._factor = factor

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() * self._factor // 1_000_000


def config_of(root: Path, segment_bytes: int = SEGMENT_BYTES) -> StorageConfig:
    return StorageConfig(
        root=str(root), segment_bytes=segment_bytes, queue_segment_bytes=40_000,
        index_enabled=False, flush_mode=FlushMode.ASYNC,
    )  # fmt: skip


def draft_of(rng: random.Random, topic: str, queue_id: int, size: int) -> Draft:
    return Draft(
        topic=topic, queue_id=queue_id, body=rng.randbytes(size),
        properties=b"TAGS\x01a\x02", born_host=BORN_HOST, store_host=BORN_HOST,
    )  # fmt: skip


async def put_messages(store: MessageStore, count: int, rng: random.Random) -> None:
    """Put messages of all sizes, a few at a time; now and then one larger than a batch of the stream."""
    for number in range(count):
        size = rng.randint(0, 1500) if number % 1000 else rng.randint(300_000, 900_000)
        store.put(draft_of(rng, f"topic-{rng.randrange(10)}", rng.randrange(8), size))
        if number % 40 == 0:
            while store.dispatch():
                pass
            await asyncio.sleep(0)
    while store.dispatch():
        pass


async def taken_for_ours(*where: object) -> Finding:
    """The logs are one: how that is found is not these tests' subject."""
    return Finding(Verdict.SAME)


class Master:
    """A store that is served to slaves."""

    def __init__(self, store: MessageStore, clock: Clock | None = None, **rules: int) -> None:
        self.store = store
        self.core = MasterCore(
            0, Mode.S0, StreamRules(**rules), controlled=False, start=store.log.start, end=store.end
        )
        self.acknowledged = 0
        self.changed = asyncio.Event()
        clock = clock or SystemClock()
        self.feed = Feed(self.core, clock)
        self.feed.register(Acknowledge, self._note)
        self.sender = Sender(
            self.feed,
            store.log,
            clock,
            segment_bytes=store.config.segment_bytes,
            examine=taken_for_ours,
        )
        tell_of_appends(store, self.sender.wake)
        self.address = ""

    def _note(self, effect: Acknowledge) -> None:
        self.acknowledged = effect.end
        self.changed.set()

    async def acknowledges(self, end: int, within_s: float) -> None:
        async with asyncio.timeout(within_s):
            while self.acknowledged < end:
                self.changed.clear()
                await self.changed.wait()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """host:port of the HA port."""
        with open_listener(HOST, 0) as listener:
            async with beside(self.feed.run()), beside(self.sender.run(listener)):
                yield f"{HOST}:{listener.getsockname()[1]}"


@asynccontextmanager
async def beside(job: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a job beside the body; if it fails, the body is cancelled and the failure comes out."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(job)
        try:
            yield
        finally:
            task.cancel()


class Cuts:
    """Breaks each connection of a slave after a random number of bytes: what came after them is lost."""

    def __init__(self, rng: random.Random, budgets: list[int]) -> None:
        self._rng = rng
        self.budgets = budgets
        self.done = 0

    async def dial(self, host: str, port: int, make: Callable[[], Link]) -> object:
        def cutting() -> Link:
            link = make()
            if self.budgets:
                self._cut_after(link, self.budgets.pop())
            return link

        return await asyncio.get_running_loop().create_connection(cutting, host, port)

    def _cut_after(self, link: Link, budget: int) -> None:
        deliver = link.buffer_updated
        left = budget

        def delivered(count: int) -> None:
            nonlocal left
            if left <= 0:
                return
            taken = min(count, left)
            left -= taken
            deliver(taken)
            if left == 0:
                self.done += 1
                transport = link._transport
                assert transport is not None
                transport.abort()

        link.buffer_updated = delivered  # type: ignore[method-assign]


@asynccontextmanager
async def following(
    store: MessageStore, address: str, cuts: Cuts | None = None, derived: bool = True
) -> AsyncIterator[Receiver]:
    """A slave's receiver, with its store dispatching as it grows, if that is wanted."""
    core = SlaveCore(
        StreamRules(stream_silence_ms=1_000_000), start=store.log.start, end=store.end, classic=True
    )
    clock = FastClock(20)
    feed = Feed(core, clock)
    plain = {} if cuts is None else {"dial": cuts.dial}
    receiver = Receiver(feed, store, clock, compare=taken_for_ours, **plain)
    if derived:
        tell_of_appends(store, store.dispatch)
    receiver.follow(address)
    async with beside(feed.run()), beside(receiver.run()):
        yield receiver


def files_of(root: Path, kind: str) -> dict[str, bytes]:
    found = (root / kind).rglob("*")
    return {str(each.relative_to(root)): each.read_bytes() for each in found if each.is_file()}


def assert_identical(master: Path, slave: Path) -> None:
    for kind in ("commitlog", "consumequeue"):
        ours, theirs = files_of(master, kind), files_of(slave, kind)
        assert ours.keys() == theirs.keys() and len(ours) > 5
        assert [name for name in ours if ours[name] != theirs[name]] == []


@pytest.mark.parametrize("seed", [1])
def test_a_slave_whose_stream_breaks_at_random_places_ends_up_identical(
    tmp_path: Path, on_loop: Callable[[Main], None], seed: int
) -> None:
    rng = random.Random(seed)
    log_bytes_about = MESSAGES * 900
    cuts = Cuts(
        rng,
        [
            rng.choice((rng.randint(1, 300), rng.randint(1, log_bytes_about // 15)))
            for _ in range(20)
        ],
    )
    figures: list[str] = []

    async def main() -> None:
        async with AsyncExitStack() as stack:
            ours = stack.enter_context(open_store(config_of(tmp_path / "master")))
            theirs = stack.enter_context(open_store(config_of(tmp_path / "slave")))
            master = Master(ours, copies_wanted=2)
            address = await stack.enter_async_context(master.serving())
            receiver = await stack.enter_async_context(following(theirs, address, cuts))
            began = time.perf_counter()
            await put_messages(ours, MESSAGES, rng)
            await master.acknowledges(ours.end, within_s=60)
            took = time.perf_counter() - began
            assert cuts.done == 20 and cuts.budgets == []
            assert receiver.stats.connects == 21
            assert theirs.end == ours.end > 8 * SEGMENT_BYTES
            assert receiver.stats.appended_bytes == ours.end  # no byte was appended twice
            figures.append(
                f"{MESSAGES / took:,.0f} messages/s, {ours.end / took / 1e6:,.0f} MB/s over {cuts.done} cuts, "
                f"{receiver.stats.received_bytes / ours.end - 1:.3%} of the bytes beside the log"
            )
            while theirs.dispatch():
                pass
            for queue in ours.queues:
                assert theirs.max_offset(queue.topic, queue.queue_id) == queue.max_offset > 0

    on_loop(main)
    assert_identical(tmp_path / "master", tmp_path / "slave")
    print(f"\nput, streamed, acknowledged in one process: {figures[0]}")


def test_a_slave_that_crashes_in_mid_record_goes_on_where_its_log_is_whole(
    tmp_path: Path, on_loop: Callable[[Main], None]
) -> None:
    rng = random.Random(7)
    count = 4000

    async def main() -> None:
        with open_store(config_of(tmp_path / "master", 1 << 20)) as ours:
            master = Master(ours, copies_wanted=2)
            async with master.serving() as address:
                producing = asyncio.ensure_future(put_messages(ours, count, rng))
                ends = []
                for _ in range(4):
                    with open_store(config_of(tmp_path / "slave", 1 << 20)) as theirs:
                        cuts = Cuts(rng, [rng.randint(100_000, 900_000)])
                        ends.append(theirs.end)
                        async with asyncio.timeout(30), following(theirs, address, cuts):
                            grown = asyncio.Event()
                            tell_of_appends(theirs, grown.set)
                            while cuts.done == 0:
                                grown.clear()
                                await grown.wait()
                        theirs.close(clean=False)
                with open_store(config_of(tmp_path / "slave", 1 << 20)) as theirs:
                    assert 0 < theirs.end < ours.end
                    async with following(theirs, address):
                        await producing
                        await master.acknowledges(ours.end, within_s=30)
                    assert theirs.end == ours.end and ends == sorted(ends)

    on_loop(main)
    assert_identical(tmp_path / "master", tmp_path / "slave")


def test_a_frozen_slave_costs_no_memory_and_catches_up_when_it_thaws(
    tmp_path: Path, on_loop: Callable[[Main], None]
) -> None:
    rng = random.Random(3)

    async def main() -> None:
        with open_store(config_of(tmp_path)) as store:
            master = Master(store, copies_wanted=2)
            async with master.serving() as address:
                host, _, port = address.rpartition(":")
                reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
                writer.write(bytes(8))  # an empty slave; what it is sent stays in the kernel
                draft = draft_of(rng, "topic", 0, 100_000)
                store.put(draft)
                await reader.readexactly(12)
                tracemalloc.start()
                try:
                    for _ in range(600):
                        store.put(draft)
                        await asyncio.sleep(0)
                    _, peak = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
                assert peak < 4 << 20, f"{peak} bytes while {store.end} were appended"
                status = master.sender.status()[0]
                assert status.next_offset < store.end
                async with asyncio.timeout(30):
                    await reader.readexactly(status.next_offset)
                    while master.sender.status()[0].next_offset < store.end:
                        await reader.read(1 << 20)
                writer.close()

    on_loop(main)


def test_an_idle_stream_carries_a_message_at_once(
    tmp_path: Path, on_loop: Callable[[Main], None]
) -> None:
    rng = random.Random(4)
    delays_ms: list[float] = []

    async def main() -> None:
        async with AsyncExitStack() as stack:
            ours = stack.enter_context(open_store(config_of(tmp_path / "master")))
            theirs = stack.enter_context(open_store(config_of(tmp_path / "slave")))
            master = Master(ours, copies_wanted=2)
            address = await stack.enter_async_context(master.serving())
            await stack.enter_async_context(following(theirs, address))
            for _ in range(100):
                began = time.perf_counter()
                end = ours.put(draft_of(rng, "topic", 0, 100)).end
                await master.acknowledges(end, within_s=10)
                delays_ms.append((time.perf_counter() - began) * 1000)
                await asyncio.sleep(0.01)  # idle in between

    on_loop(main)
    delays_ms.sort()
    print(f"\nput to slave's ack, idle: p50 {delays_ms[50]:.2f} ms, p99 {delays_ms[98]:.2f} ms")
    assert delays_ms[50] < 10


def test_a_failed_assertion_while_serving_a_slave_ends_the_sender(
    tmp_path: Path, on_loop: Callable[[Main], None]
) -> None:
    async def main() -> None:
        with open_store(config_of(tmp_path)) as store:
            master = Master(store, copies_wanted=2)

            def fail(number: int) -> None:
                raise AssertionError(f"connection {number}")

            master.sender.readable = fail  # type: ignore[method-assign]
            async with asyncio.timeout(10), master.serving() as address:
                host, _, port = address.rpartition(":")
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(bytes(8))
                try:
                    await asyncio.Event().wait()
                finally:
                    writer.close()

    with pytest.raises(BaseExceptionGroup) as failed:
        on_loop(main)
    assert failed.group_contains(AssertionError, match="connection 1")


def test_a_crowd_at_the_port_is_refused_and_room_is_given_again(
    tmp_path: Path, on_loop: Callable[[Main], None]
) -> None:
    async def main() -> None:
        with open_store(config_of(tmp_path)) as store:
            store.put(draft_of(random.Random(1), "topic", 0, 10))
            master = Master(store, copies_wanted=2)
            async with asyncio.timeout(20), master.serving() as address:
                host, _, port = address.rpartition(":")
                crowd = [
                    await asyncio.open_connection(host, int(port)) for _ in range(CONNECTIONS_MAX)
                ]
                reader, late = await asyncio.open_connection(host, int(port))
                assert await reader.read() == b""  # refused
                late.close()
                for _, writer in crowd:
                    writer.close()
                while True:  # until the master has noticed
                    reader, writer = await asyncio.open_connection(host, int(port))
                    writer.write(bytes(8))
                    try:
                        head = await reader.readexactly(12)
                        break
                    except (asyncio.IncompleteReadError, ConnectionResetError):
                        pass
                    finally:
                        writer.close()
                assert head == bytes(8) + store.end.to_bytes(4, "big")

    on_loop(main)


def test_a_silent_crowd_keeps_no_slave_out(tmp_path: Path, on_loop: Callable[[Main], None]) -> None:
    async def main() -> None:
        with open_store(config_of(tmp_path)) as store:
            store.put(draft_of(random.Random(1), "topic", 0, 10))
            async with asyncio.timeout(20), Master(store).serving() as address:
                host, _, port = address.rpartition(":")
                crowd = [
                    await asyncio.open_connection(host, int(port)) for _ in range(CONNECTIONS_MAX)
                ]
                await asyncio.sleep(1.2)
                reader, late = await asyncio.open_connection(host, int(port))
                late.write(bytes(8))
                assert await reader.readexactly(8) == bytes(8)
                assert await crowd[0][0].read() == b"", "the first of the crowd made room"
                for writer in (late, *(writer for _, writer in crowd)):
                    writer.close()

    on_loop(main)


def test_throughput_of_a_catch_up_is_printed(
    tmp_path: Path, on_loop: Callable[[Main], None]
) -> None:
    rng = random.Random(5)
    figures: list[str] = []

    async def main() -> None:
        with open_store(config_of(tmp_path / "master", 64 << 20)) as ours:
            draft = draft_of(rng, "topic", 0, 4000)
            while ours.end < 400 << 20:
                ours.put(draft)
            master = Master(ours, copies_wanted=2)
            async with master.serving() as address:
                with open_store(config_of(tmp_path / "slave", 64 << 20)) as theirs:
                    began = time.perf_counter()
                    async with following(theirs, address, derived=False):
                        await master.acknowledges(ours.end, within_s=60)
                        took = time.perf_counter() - began
                    figures.append(f"store to store {ours.end / took / 1e6:,.0f} MB/s")
                drain = threading.Thread(target=read_stream, args=(address, ours.end))
                began = time.perf_counter()
                drain.start()
                await asyncio.get_running_loop().run_in_executor(None, drain.join)
                took = time.perf_counter() - began
                figures.append(
                    f"sender to a reader that discards {ours.end / took / 1e6:,.0f} MB/s"
                )

    on_loop(main)
    print(f"\ncatch-up of 400 MiB, both ends in one process: {', '.join(figures)}")
    assert len(figures) == 2


def read_stream(address: str, log_bytes: int) -> None:
    """A slave that throws away what it gets."""
    host, _, port = address.rpartition(":")
    room = bytearray(1 << 20)
    with socket.create_connection((host, int(port))) as connected:
        connected.sendall(bytes(8))
        got = 0
        while got < log_bytes:
            count = connected.recv_into(room)
            assert count > 0, "the master closed"
            got += count
