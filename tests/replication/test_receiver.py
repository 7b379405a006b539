"""The slave's shell of classic HA: a recorded stream into a real store, cuts, lies, full disks, silent masters."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import lzma
import random
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from timekit import HandClock

from tandemmq.replication.comparing import Finding, Verdict
from tandemmq.replication.config import StreamRules
from tandemmq.replication.feed import Feed
from tandemmq.replication.frames import Dialect, Transfer, encode_master_frame
from tandemmq.replication.masterevents import Confirmed, Flushed
from tandemmq.replication.receiver import BUFFER_BYTES, Link, Receiver, parse_address
from tandemmq.replication.slave import Alarm, SlaveCore, SlaveState
from tandemmq.storage import FlushFailed, StorageConfig, StoreIsFull, open_store

GOLDEN = Path(__file__).parents[1] / "golden"
SEGMENT_BYTES = 65536
MASTER = "10.0.0.1:10912"


class MemoryStore:
    """A log in memory that refuses on request."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.refusal: Exception | None = None

    @property
    def end(self) -> int:
        return len(self.data)

    def append_raw(self, data: memoryview, offset: int) -> int:
        if self.refusal is not None:
            raise self.refusal
        assert offset == len(self.data), (offset, len(self.data))
        self.data += data
        return len(self.data)


class FakeTransport:
    """Remembers what was written. No asyncio.Transport, as uvloop's are none."""

    def __init__(self) -> None:
        self.reports: list[int] = []
        self.aborted = False
        self.limit = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limit = high or 0

    def write(self, data: Any) -> None:
        assert len(data) == 8 and not self.aborted
        self.reports.append(int.from_bytes(data, "big"))

    def abort(self) -> None:
        self.aborted = True


class Slave:
    """A receiver whose connects are answered by the test."""

    def __init__(self, store: Any = None, durable: bool = False, **rules: int) -> None:
        self.store = MemoryStore() if store is None else store
        self.clock = HandClock()
        self.effects: list[object] = []
        self.core = SlaveCore(StreamRules(**rules), end=self.store.end, classic=True)
        self.refusal: OSError | None = None
        self.dialled: list[tuple[str, int]] = []
        self.links: list[Link] = []
        self.transports: list[FakeTransport] = []
        self.feed = Feed(self.core, self.clock)
        for effect in (Confirmed, Alarm):
            self.feed.register(effect, self.effects.append)
        self.receiver = Receiver(
            self.feed,
            self.store,
            self.clock,
            durable=durable,
            dial=self._dial,
            compare=self._compare,
        )
        self.compared = 0

    async def _compare(self) -> Finding:
        self.compared += 1
        return Finding(Verdict.SAME)

    async def _dial(self, host: str, port: int, make: Callable[[], Link]) -> None:
        self.dialled.append((host, port))
        if self.refusal is not None:
            raise self.refusal
        transport = FakeTransport()
        link = make()
        self.transports.append(transport)
        self.links.append(link)
        link.connection_made(transport)

    async def connect(self) -> None:
        """Follow, or retry once its time has come, and let the connect be answered."""
        if self.core.state is SlaveState.IDLE:
            self.receiver.follow(MASTER)
        else:
            self.clock.ms += 2000
            self.feed.tick()
        for _ in range(3):  # the connect, the comparison, and what both lead to
            await asyncio.sleep(0)

    @property
    def link(self) -> Link:
        return self.links[-1]

    @property
    def wire(self) -> FakeTransport:
        return self.transports[-1]

    def hear(self, data: bytes, most: int = 1 << 30) -> None:
        """Deliver bytes as a transport would, at most so many at a time."""
        link, at = self.link, 0
        while at < len(data) and not link.closed:
            view = link.get_buffer(-1)
            size = min(len(view), len(data) - at, most)
            view[:size] = data[at : at + size]
            at += size
            link.buffer_updated(size)

    def check(self) -> None:
        """Nothing that a callback raised may hide."""
        if self.feed.failure is not None:
            raise self.feed.failure


def frame(offset: int, body: bytes = b"") -> bytes:
    return encode_master_frame(Transfer(offset, body), Dialect.CLASSIC)


def recorded(direction: str) -> list[bytes]:
    with lzma.open(GOLDEN / "wire" / "ha-classic.jsonl.xz", "rt") as file:
        lines = [json.loads(line) for line in file]
    return [
        base64.b64decode(line["b"])
        for line in lines
        if line["k"] == "bytes" and line["d"] == direction
    ]


@pytest.mark.parametrize("most", [1 << 30, 4000, 13])
async def test_a_recorded_stock_master_fills_a_store_like_the_recorded_stock_slave(
    tmp_path: Path, most: int
) -> None:
    config = StorageConfig(
        root=str(tmp_path / "ours"), segment_bytes=SEGMENT_BYTES, queue_segment_bytes=800,
        index_slots=500, index_entries=400,
    )  # fmt: skip
    with open_store(config) as store:
        slave = Slave(store)
        await slave.connect()
        for chunk in recorded("<"):
            slave.hear(chunk, most)
        slave.check()
        assert slave.wire.reports[0] == 0 and slave.wire.reports[-1] == store.end == 421747
        assert slave.wire.reports == sorted(slave.wire.reports)
        assert not slave.wire.aborted
        while store.dispatch():
            pass
        assert store.dispatcher.position == store.end
    with tarfile.open(GOLDEN / "stores" / "533-ha-slave.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    theirs, ours = tmp_path / "533-ha-slave", tmp_path / "ours"
    logs = sorted(each.name for each in (theirs / "commitlog").iterdir())
    assert sorted(each.name for each in (ours / "commitlog").iterdir()) == logs and len(logs) == 7
    for name in logs:
        assert (ours / "commitlog" / name).read_bytes() == (
            theirs / "commitlog" / name
        ).read_bytes()
    queues = [each for each in (theirs / "consumequeue").rglob("*") if each.is_file()]
    assert len(queues) > 5
    for each in queues:
        same = ours / "consumequeue" / each.relative_to(theirs / "consumequeue")
        assert same.read_bytes() == each.read_bytes(), each


async def test_one_read_is_answered_by_one_report_however_many_frames_it_held() -> None:
    slave = Slave()
    await slave.connect()
    slave.hear(frame(0, b"a" * 100) + frame(100, b"b" * 50) + frame(150) + frame(150, b"c"))
    assert slave.wire.reports == [0, 151] and slave.store.data == b"a" * 100 + b"b" * 50 + b"c"


async def test_slave_that_vouches_for_its_disk_reports_what_is_flushed_and_nothing_else() -> None:
    slave = Slave(durable=True)
    await slave.connect()
    slave.hear(frame(0, b"a" * 100))
    slave.feed.feed(Flushed(60))
    slave.hear(frame(100, b"b" * 100))
    slave.feed.feed(Flushed(200))
    assert slave.wire.reports == [0, 0, 60, 60, 200]
    slave.hear(frame(200, b"c" * 10))

    slave.link.connection_lost(None)
    await slave.connect()
    assert slave.wire.reports == []  # the first one says where we end, and that is not on disk
    slave.feed.feed(Flushed(210))
    assert slave.wire.reports == [210]


async def test_half_a_frame_changes_nothing_when_the_connection_breaks() -> None:
    slave = Slave()
    await slave.connect()
    slave.hear(frame(0, b"a" * 100) + frame(100, b"b" * 100)[:80])
    slave.link.connection_lost(ConnectionResetError("reset by peer"))
    assert slave.store.data == b"a" * 100 and slave.core.state is SlaveState.CONNECTING
    assert slave.receiver.stats.last_problem == "reset by peer"
    await slave.connect()
    assert slave.wire.reports == [100]
    slave.hear(frame(100, b"c" * 10))
    slave.check()
    assert slave.store.data == b"a" * 100 + b"c" * 10


@pytest.mark.parametrize("offset", [0, 99, 101])
@pytest.mark.parametrize("size", [0, 10])
async def test_a_frame_that_does_not_continue_our_log_closes_the_connection(
    offset: int, size: int
) -> None:
    slave = Slave()
    await slave.connect()
    slave.hear(frame(0, b"a" * 100) + frame(offset, b"x" * size))
    assert slave.wire.aborted and slave.store.data == b"a" * 100
    assert slave.receiver.stats.last_problem == f"frame at {offset}, our log ends at 100"
    assert slave.wire.reports == [0]  # what the same read appended is reported anew on reconnect
    await slave.connect()
    assert slave.wire.reports == [100]


@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 8 + b"\x80\0\0\0", b"\xff" * 12],
)
async def test_bytes_that_are_no_frame_close_the_connection_and_are_not_appended(
    garbage: bytes,
) -> None:
    slave = Slave()
    await slave.connect()
    slave.hear(garbage)
    slave.check()
    assert slave.wire.aborted and slave.store.data == b""
    assert slave.core.state is SlaveState.CONNECTING
    await slave.connect()
    assert len(slave.links) == 2


async def test_the_largest_frame_a_master_may_send_fits() -> None:
    slave = Slave()
    await slave.connect()
    body = random.Random(2).randbytes((4 << 20) - 12)
    slave.hear(frame(0, b"a" * 500) + frame(500, body) + frame(500 + len(body), b"z"), 70_000)
    slave.check()
    assert slave.store.data == b"a" * 500 + body + b"z"
    assert len(slave.link._view) == 4 << 20
    assert slave.wire.reports[-1] == len(slave.store.data)


@pytest.mark.parametrize("seed", range(10))
async def test_the_log_does_not_depend_on_how_the_stream_was_cut(seed: int) -> None:
    rng = random.Random(seed)
    data = rng.randbytes(3 * BUFFER_BYTES)
    stream, at = b"", 0
    while at < len(data):
        size = rng.choice((1, 300, 256 << 10, rng.randint(1, 1 << 20)))
        stream += frame(at, data[at : at + size])
        at = min(len(data), at + size)
    slave = Slave()
    await slave.connect()
    at = 0
    while at < len(stream):
        size = rng.choice((rng.randint(1, 20), rng.randint(1, 400_000)))
        slave.hear(stream[at : at + size])
        at += size
    slave.check()
    assert slave.store.data == data
    assert slave.receiver.stats.received_bytes == len(stream)
    assert slave.receiver.stats.appended_bytes == len(data)


async def test_a_full_disk_closes_the_connection_and_is_tried_again() -> None:
    slave = Slave()
    await slave.connect()
    slave.hear(frame(0, b"a" * 100))
    slave.store.refusal = StoreIsFull("no space for the next file")
    slave.hear(frame(100, b"b" * 100) + frame(200, b"c"))
    slave.check()
    assert slave.wire.aborted and slave.wire.reports == [0, 100] and slave.store.end == 100
    assert slave.core.end == 100
    slave.store.refusal = None
    await slave.connect()
    slave.hear(frame(100, b"b" * 100))
    assert slave.wire.reports == [100, 200]


async def test_a_disk_that_failed_ends_the_receiver() -> None:
    slave = Slave()
    slave.store.refusal = FlushFailed("input/output error")
    with pytest.raises(FlushFailed):
        async with asyncio.timeout(5), running(slave):
            await slave.connect()
            slave.hear(frame(0, b"a" * 100))
            assert slave.wire.aborted
            await asyncio.Event().wait()


@asynccontextmanager
async def running(slave: Slave) -> AsyncIterator[None]:
    """Run the receiver beside the body; what it raises ends the body and comes out."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(slave.receiver.run()), group.create_task(slave.feed.run())]
            yield
            for task in tasks:
                task.cancel()
    except* FlushFailed as failures:
        raise failures.exceptions[0] from None


async def test_a_master_that_cannot_be_reached_is_tried_with_growing_pauses() -> None:
    slave = Slave()
    slave.refusal = ConnectionRefusedError("connection refused")
    slave.receiver.follow(MASTER)
    await asyncio.sleep(0)
    times = []
    for _ in range(2000):
        slave.clock.ms += 10
        before = len(slave.dialled)
        slave.feed.tick()
        await asyncio.sleep(0)
        if len(slave.dialled) > before:
            times.append(slave.clock.ms)
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[:5] == [100, 200, 400, 800, 1600] and set(pauses[5:]) == {2000}
    assert set(slave.dialled) == {("10.0.0.1", 10912)}
    assert "connection refused" in slave.receiver.stats.last_problem
    slave.refusal = None
    await slave.connect()
    assert slave.wire.reports == [0]


async def test_a_master_that_does_not_answer_the_connect_is_given_up() -> None:
    slave = Slave()
    hung = asyncio.Event()
    cancelled = 0

    async def hang(host: str, port: int, make: Callable[[], Link]) -> None:
        nonlocal cancelled
        try:
            await hung.wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise

    slave.receiver._dial = hang
    slave.receiver.follow(MASTER)
    for _ in range(3):
        await asyncio.sleep(0)
        slave.clock.ms += 5000
        slave.feed.tick()
    await asyncio.sleep(0)
    assert cancelled == 3
    assert slave.receiver._connecting is not None
    slave.receiver._connecting.cancel()
    await asyncio.wait({slave.receiver._connecting})


async def test_we_report_every_five_seconds_and_leave_a_master_silent_for_twenty() -> None:
    slave = Slave()
    await slave.connect()
    first = slave.link
    start = slave.clock.ms
    while not first.closed:
        slave.clock.ms += 500
        slave.feed.tick()
    assert slave.clock.ms - start == 20_000
    assert slave.transports[0].reports == [0] * 4  # on connect, and after 5, 10 and 15 seconds
    assert "silent" in slave.receiver.stats.last_problem


async def test_a_heartbeat_keeps_the_master() -> None:
    slave = Slave()
    await slave.connect()
    slave.hear(frame(0, b"abc"))
    for _ in range(120):
        slave.clock.ms += 500
        slave.feed.tick()
        if slave.clock.ms % 5000 == 0:
            slave.hear(frame(3))
    assert not slave.wire.aborted and len(slave.links) == 1


async def test_a_master_that_does_not_read_gets_the_newest_report_later() -> None:
    slave = Slave()
    await slave.connect()
    assert slave.wire.limit == 4096
    slave.link.pause_writing()
    for at in range(100):
        slave.hear(frame(at, b"x"))
    assert slave.wire.reports == [0]
    slave.link.resume_writing()
    assert slave.wire.reports == [0, 100]
    slave.hear(frame(100, b"x"))
    assert slave.wire.reports == [0, 100, 101]


async def test_what_was_appended_is_reported_although_the_next_frame_breaks_the_protocol() -> None:
    slave = Slave()
    await slave.connect()
    head = frame(100, b"b" * 50)[:8]
    slave.hear(frame(0, b"a" * 100) + head)
    assert slave.wire.reports == [0, 100]
    slave.hear(b"\x7f\xff\xff\xff")
    assert slave.wire.aborted and slave.wire.reports == [0, 100]
    slave.check()


async def test_a_report_leaves_before_anything_that_can_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slave = Slave()
    await slave.connect()
    seen: list[list[int]] = []
    make_room = Link.make_room
    monkeypatch.setattr(
        Link, "make_room", lambda link: (seen.append(slave.wire.reports[:]), make_room(link))
    )
    slave.hear(frame(0, b"a" * 100) + frame(100, b"b"))
    assert seen == [[0, 101]]


async def test_unfollow_leaves_and_what_still_comes_is_not_appended() -> None:
    slave = Slave()
    await slave.connect()
    slave.hear(frame(0, b"abc"))
    link = slave.link
    slave.receiver.unfollow("our role changed")
    assert slave.wire.aborted
    data = frame(3, b"def")
    link.get_buffer(-1)[: len(data)] = data
    link.buffer_updated(len(data))
    link.connection_lost(None)
    slave.check()
    assert slave.store.data == b"abc" and slave.core.state is SlaveState.IDLE


async def test_following_another_master_leaves_the_first() -> None:
    slave = Slave()
    await slave.connect()
    slave.receiver.follow(MASTER)  # the same: nothing happens
    assert len(slave.dialled) == 1 and not slave.wire.aborted
    slave.receiver.follow("10.0.0.2:10912")
    await asyncio.sleep(0)
    assert slave.transports[0].aborted and slave.dialled[-1] == ("10.0.0.2", 10912)
    slave.links[0].connection_lost(None)  # late news of the first
    slave.hear(frame(0, b"abc"))
    slave.check()
    assert slave.transports[1].reports == [0, 3]


async def test_an_empty_slave_takes_a_log_that_begins_later(tmp_path: Path) -> None:
    config = StorageConfig(root=str(tmp_path), segment_bytes=SEGMENT_BYTES, index_enabled=False)
    with open_store(config) as store:
        slave = Slave(store)
        await slave.connect()
        slave.hear(frame(3 * SEGMENT_BYTES, b"a" * 100))
        slave.check()
        assert (store.log.start, store.end) == (3 * SEGMENT_BYTES, 3 * SEGMENT_BYTES + 100)
        assert slave.wire.reports == [0, store.end]


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:x", "host:65536", "host:-1"])
async def test_an_address_that_is_none_is_refused(address: str) -> None:
    slave = Slave()
    with pytest.raises(ValueError, match="host:port"):
        slave.receiver.follow(address)
    assert slave.core.state is SlaveState.IDLE


def test_addresses_of_both_families_are_understood() -> None:
    assert parse_address("127.0.0.1:10912") == ("127.0.0.1", 10912)
    assert parse_address("[::1]:10912") == ("::1", 10912)


# -- one log or two ----------------------------------------------------------------------------------


async def test_a_comparison_that_outlives_its_connection_is_let_go_on() -> None:
    """It may be cutting our log, and a master hangs up on who says nothing for 20 s."""
    store = MemoryStore()
    store.data += bytes(100)
    slave = Slave(store)
    may_end, begun = asyncio.Event(), []

    async def compare() -> Finding:
        begun.append(len(slave.links))
        await may_end.wait()
        return Finding(Verdict.SAME)

    slave.receiver._compare = compare
    for _ in range(3):
        await slave.connect()
        assert begun == [1]
        if len(slave.links) < 3:
            slave.link.connection_lost(None)
    may_end.set()
    for _ in range(9):
        await asyncio.sleep(0)
    slave.check()
    assert begun == [1, 3] and slave.core.streaming
    assert slave.wire.reports == [100]
