"""A synchronous classic master whose sender runs on a loop, where shipments gather: what it promises stays true."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from messagekit import UNIQUE, FakeConnection, java_frame, open_kit, send_ext
from senderkit import on_loop

from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.remoting.command import Command
from tandemmq.replication import StreamRules
from tandemmq.replication.frames import (
    Dialect,
    MasterFrameReader,
    Report,
    Transfer,
    encode_slave_frame,
)
from tandemmq.storage import Draft, FlushFailed, encode_properties

from .test_classicgroup import SLAVE_MS, FakeWire, Group, SlaveBeside, safety
from .test_sendpath_twins import KINDS

SEEDS = 15
EVENTS = 300
SEGMENT_BYTES = 1 << 16
ONE_WAY = 2
UNLIMITED = 1 << 60


class LiveGroup(Group):
    """A group whose sender has a loop."""

    def expire(self, after_ms: int) -> None:
        """Senders waited, and no job but that of their answers had its turn."""
        self.kit.clock.pass_ms(after_ms)
        self.kit.acks.expire(self.kit.clock.monotonic_ms(), self.master.overdue)


@asynccontextmanager
async def live(root: Path, **settings: Any) -> AsyncIterator[LiveGroup]:
    settings.setdefault("role", Role.SYNC_MASTER)
    with open_kit(root, **settings) as kit:
        group = LiveGroup(kit)
        async with on_loop(group.master.sender, group.master.feed):
            yield group


async def test_message_is_shipped_within_its_append_and_the_core_hears_of_it_with_the_report(
    tmp_path: Path,
) -> None:
    async with live(tmp_path) as group:
        slave = SlaveBeside(group)
        before = group.kit.store.end
        assert group.kit.send(e="0") is None  # and no turn of the loop
        assert len(slave.wire.sent) > group.kit.store.end - before > 0
        assert group.master.core.end == before
        slave.catch_up()
        assert group.master.core.end == group.kit.store.end
        assert group.answers() == [(0, "2", "0")]


async def test_core_hears_of_what_is_shipped_though_the_slave_that_would_report_it_is_gone(
    tmp_path: Path,
) -> None:
    async with live(tmp_path) as group:
        slave = SlaveBeside(group)
        assert group.kit.send(e="0") is None
        slave.lose()
        group.pass_ms(100)
        assert group.master.core.end == group.kit.store.end
        group.pass_ms(SLAVE_MS)
        assert [code for code, _, _ in group.answers()] == [12]
        assert group.visible == 1


async def test_gathering_ends_when_the_log_cannot_be_committed(tmp_path: Path) -> None:
    with pytest.raises(FlushFailed):  # as a store says it once more that closes
        async with live(tmp_path) as group:
            SlaveBeside(group)
            assert group.kit.send(e="0") is None
            assert group.kit.send(e="0") is None  # gathers
            log = group.kit.store.log
            log.tail.append(Draft("T", 0, b"never"), 2, 0)
            await turns()
            assert group.master.sender._gathering, "more is about to be appended"
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, log.run.segments[-1]._descriptor)
            os.close(full)
            with pytest.raises(FlushFailed):
                group.kit.store.commit()
            await turns()
            assert not group.master.sender._gathering, "it would keep the loop busy for nothing"


async def turns(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# -- what answers say, and who is woken -----------------------------------------------------------


@pytest.mark.parametrize("slave_stays", [True, False])
async def test_answer_that_timed_out_counts_our_own_copy(tmp_path: Path, slave_stays: bool) -> None:
    async with live(tmp_path) as group:
        slave = SlaveBeside(group)
        assert group.send() is None
        assert group.send() is None  # gathers: the core was not told of its end
        assert group.master.core.end < group.kit.store.end
        if not slave_stays:
            slave.lose()
        group.expire(SLAVE_MS)
        assert group.answers() == [(12, "1", "0")] * 2


async def test_one_way_message_wakes_dispatch_at_once_while_the_slave_is_late(
    tmp_path: Path,
) -> None:
    async with live(tmp_path) as group:
        SlaveBeside(group)
        group.send()
        await turns()
        group.pass_ms(SLAVE_MS + 200)
        assert group.answers() == [(12, "1", "0")]
        assert group.visible == 1
        group.kit.wakes = 0
        group.kit.send(e="0", flag=ONE_WAY)
        assert group.kit.wakes == 1
        assert group.visible == 2


async def test_one_way_message_wakes_dispatch_although_somebody_else_saw_first_that_the_slave_is_late(
    tmp_path: Path,
) -> None:
    async with live(tmp_path) as group:
        SlaveBeside(group)
        group.send()
        group.kit.send(e="0", flag=ONE_WAY)
        await turns()
        group.expire(SLAVE_MS)
        assert group.answers() == [(12, "1", "0")]
        assert group.kit.store.confirmed == group.kit.store.end  # a checkpoint asks, or an operator
        group.kit.wakes = 0
        group.master.review()
        assert group.kit.wakes == 1
        assert group.visible == 2
        group.master.review()
        assert group.kit.wakes == 1, "nothing is left to be dispatched"


async def test_frozen_slave_is_not_waited_for_beyond_the_gap(tmp_path: Path) -> None:
    async with live(tmp_path, rules=StreamRules(gap_bytes_max=1_000)) as group:
        SlaveBeside(group)
        held = 0
        while (answer := group.send()) is None:  # in one turn: what is gathered counts, too
            held += 1
            assert held < 50
        assert safety(answer) == (11, "1", "0")
        assert held > 1
        assert group.kit.store.end > 1_000


# -- a random life ------------------------------------------------------------------------------------


class NarrowWire(FakeWire):
    """A socket that takes `room` bytes until somebody reads, or none at all once it is broken."""

    def __init__(self) -> None:
        super().__init__()
        self.room = UNLIMITED
        self.waits = False
        self.broken = False

    def send(self, buffers: Any) -> int:
        if self.broken:
            raise BrokenPipeError("broken pipe")
        taken = b"".join(buffers)[: self.room]
        self.room -= len(taken)
        self.sent += taken
        return len(taken)

    def send_file(self, head: Any, descriptor: int, position: int, size: int) -> int:
        return self.send([head, os.pread(descriptor, size, position)])

    def wait_writable(self, wanted: bool) -> None:
        self.waits = wanted


class LiveSlave:
    """A classic slave that keeps what it is sent, and reports it when told to."""

    def __init__(self, group: Group, start: int) -> None:
        self.master = group.master
        self.wire = NarrowWire()
        self.start = self.reported = start
        self.data = bytearray()
        self._consumed = 0
        self.number = self.master.sender.attach(self.wire, "10.0.0.2:50000")
        self._say(encode_slave_frame(Report(start), Dialect.CLASSIC))

    def _say(self, data: bytes) -> None:
        self.wire.inbox.append(data)
        self.master.feed.guarded(self.master.sender.readable, self.number)

    @property
    def connected(self) -> bool:
        return not self.wire.closed

    @property
    def sound(self) -> bool:
        return self.connected and not self.wire.broken

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def read(self) -> None:
        """Take in the whole frames that arrived: each continues the one before."""
        view = memoryview(bytes(self.wire.sent))
        reader = MasterFrameReader(Dialect.CLASSIC)
        frames, self._consumed = reader.read(view, self._consumed, len(view))
        for frame in frames:
            assert isinstance(frame, Transfer)
            assert frame.offset == self.end
            self.data += frame.body

    def report(self) -> None:
        self.read()
        self.reported = self.end
        self._say(encode_slave_frame(Report(self.end), Dialect.CLASSIC))

    def lose(self) -> None:
        self._say(b"")

    def make_room(self) -> None:
        self.wire.room = UNLIMITED
        if self.wire.waits:
            self.master.feed.guarded(self.master.sender.writable, self.number)


class Life:
    """Producers and up to two slaves of one master; what was asked, answered and reported.

    Each event is a method. check() holds after every one of them, finish() once at the end.
    """

    def __init__(self, group: LiveGroup, kind: Any, rng: random.Random) -> None:
        self.group = group
        self.rng = rng
        self.store = group.kit.store
        self.path = group.kit.send_path(kind, later=self._later)
        self.producers = [FakeConnection() for _ in range(6)]
        self.slaves: list[LiveSlave] = []  # everyone who ever connected
        self.opaque = 0  # of the last request: messages so far
        self.asked: dict[int, list[int]] = defaultdict(list)
        self.answered: dict[int, list[int]] = defaultdict(list)
        self.stored: dict[int, list[int]] = defaultdict(list)
        self.codes: Counter[int] = Counter()
        self._events: list[tuple[Callable[[], Any], int]] = [
            (self.send_chunk, 45), (self.put, 5), (self.report, 25), (self.connect, 4),
            (self.lose, 1), (self.break_pipe, 1), (self.fill_socket, 3), (self.drain_sockets, 6),
            (self.pass_time, 3), (self.take_turns, 7),
        ]  # fmt: skip

    def _later(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(self.group.master.feed.guarded, call)

    async def run(self) -> None:
        events, weights = zip(*self._events, strict=True)
        for event in self.rng.choices(events, weights, k=EVENTS):
            done = event()
            if done is not None:
                await done
            self.check()
        await self.finish()

    def _sound(self) -> list[LiveSlave]:
        return [each for each in self.slaves if each.sound]

    def _connected(self) -> list[LiveSlave]:
        return [each for each in self.slaves if each.connected]

    # --- producers ---

    def _producer(self) -> FakeConnection:
        producer = self.rng.choice(self.producers)
        producer.active_ms = self.group.kit.clock.monotonic_ms()
        return producer

    def _next_opaque(self, producer: FakeConnection, flag: int = 0) -> int:
        self.opaque += 1
        if flag != ONE_WAY:
            self.asked[producer.id].append(self.opaque)
        return self.opaque

    def send_chunk(self) -> None:
        """A read of one to three frames: by the short path, or by the long one where that rolls the log."""
        producer, chunk = self._producer(), b""
        for _ in range(self.rng.choice((1, 1, 1, 3))):
            flag = ONE_WAY if self.rng.random() < 0.2 else 0
            body = self.rng.randbytes(self.rng.choice((10, 200, 3_000)))
            chunk += java_frame(310, send_ext(), body, self._next_opaque(producer, flag), flag)
        view, at = memoryview(chunk), 0
        while (at := self.path.process(view, at, len(view), producer)) < len(view):
            end = at + 4 + int.from_bytes(view[at : at + 4], "big")
            self._ask(Command.decode(view[at:end]), producer)
            at = end

    def put(self) -> None:
        """A message of no short path, although frames of it may be staged."""
        producer = self._producer()
        properties = encode_properties({"UNIQ_KEY": UNIQUE, "KEYS": "a"}).decode()
        opaque = self._next_opaque(producer)
        self._ask(Command(310, send_ext(properties=properties), b"y" * 50, opaque=opaque), producer)

    def _ask(self, request: Command, producer: Any) -> None:
        answer = self.group.kit.table[request.code](request, producer)
        if answer is not None:
            assert isinstance(answer, Command)
            producer.send(answer)

    # --- slaves ---

    def report(self) -> None:
        if connected := self._connected():
            self.rng.choice(connected).report()

    def connect(self) -> None:
        """An empty one, or one that has everything."""
        if len(self._connected()) < 2:
            self.slaves.append(LiveSlave(self.group, self.rng.choice((0, self.store.end))))

    def lose(self) -> None:
        if connected := self._connected():
            self.rng.choice(connected).lose()

    def break_pipe(self) -> None:
        if connected := self._connected():
            self.rng.choice(connected).wire.broken = True

    def fill_socket(self) -> None:
        if connected := self._connected():
            self.rng.choice(connected).wire.room = self.rng.choice((0, 5, 100, 5_000))

    def drain_sockets(self) -> None:
        for slave in self._connected():
            slave.make_room()

    # --- time ---

    def pass_time(self) -> None:
        self.group.pass_ms(self.rng.choice((100, 100, 500, SLAVE_MS)))

    async def take_turns(self) -> None:
        await turns(self.rng.choice((1, 1, 2, 5)))

    # --- what must be so ---

    def check(self) -> None:
        assert self.group.master.feed.failure is None
        for producer in self.producers:
            for answer in producer.take():
                self.answered[producer.id].append(answer.opaque)
                self.codes[answer.code] += 1
                self._check_promise(answer)
                if answer.code == 0:
                    self.stored[producer.id].append(answer.opaque)

    def _check_promise(self, answer: Command) -> None:
        code, copies, durable = safety(answer)
        assert code in (0, 11, 12)
        assert durable == "0"
        assert answer.ext is not None
        holders = self._holders(int(answer.ext["msgId"][16:], 16))
        assert 1 <= int(copies) <= 1 + holders
        if code == 0:
            assert int(copies) >= 2

    def _holders(self, offset: int) -> int:
        """Slaves that ever reported all of the record at an offset."""
        record = self.store.log.record_at(offset)
        assert record is not None, "answered before it is part of the log"
        with record:
            end = offset + len(record)
        return sum(slave.reported >= end for slave in self.slaves)

    async def finish(self) -> None:
        await turns(40)
        assert self.store.log.tail.end == self.store.end, "staged and never committed"
        assert not self.group.master.sender._gathering
        for slave in self._sound():
            await self._let_catch_up(slave)
        for _ in range(3):
            self.group.pass_ms(SLAVE_MS + 500)
            await turns()
        self.check()
        self._check_slaves()
        self._check_answers()
        assert self.group.visible == self.opaque

    async def _let_catch_up(self, slave: LiveSlave) -> None:
        for _ in range(200):
            slave.make_room()
            slave.report()
            await turns(2)
            if slave.reported == self.store.end:
                return
        pytest.fail(f"the slave stands at {slave.reported}, the log ends at {self.store.end}")

    def _check_slaves(self) -> None:
        segments = self.store.log.run.segments
        log = b"".join(bytes(each.view[: each.wrote]) for each in segments)
        assert len(segments) > 1, "the log never rolled"
        for slave in self.slaves:
            slave.read()
            assert slave.data == log[slave.start : slave.end]

    def _check_answers(self) -> None:
        for producer in self.producers:
            assert sorted(self.answered[producer.id]) == self.asked[producer.id]
            assert self.stored[producer.id] == sorted(self.stored[producer.id])
        assert self.path.messages > EVENTS // 5, "hardly anything went the short way"
        assert self.codes[0] > EVENTS // 10, "hardly anything was acknowledged"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__module__)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_whatever_happens_nothing_is_promised_that_no_slave_reported(
    tmp_path: Path, seed: int, kind: Any
) -> None:
    async with live(tmp_path, storage={"segment_bytes": SEGMENT_BYTES}) as group:
        await Life(group, kind, random.Random(seed)).run()
