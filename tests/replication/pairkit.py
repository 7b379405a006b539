"""Replicas over real stores and a network in memory; the test plays the controller and breaks the network."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from timekit import HandClock

from tandemmq.replication.config import LeaseTimes, Mode, StreamRules
from tandemmq.replication.election import GroupView
from tandemmq.replication.feed import Feed
from tandemmq.replication.frames import Buffer
from tandemmq.replication.keeping import EpochFile, LogKeeping
from tandemmq.replication.masterevents import Acknowledge, Confirmed
from tandemmq.replication.party import Party
from tandemmq.replication.receiver import Receiver
from tandemmq.replication.replica import (
    CloseWrites,
    ControllerUp,
    HeartbeatAnswered,
    Prepare,
    Prepared,
    Registered,
    ReplicaCore,
    RoleNotified,
    SendHeartbeat,
    WritesClosed,
)
from tandemmq.replication.sender import Sender
from tandemmq.replication.slave import Alarm, SlaveCore
from tandemmq.storage import Draft, MessageStore, Owner, StorageConfig, open_store

SEGMENT_BYTES = 16384


class Connection:
    """Bytes under way between a slave's link and its master. Each direction may end after so many bytes.

    damage   position in the bytes to the slave -> what is xored there
    """

    def __init__(self, net: Net, master: Replica) -> None:
        self.net = net
        self.master = master
        self.number = 0
        self.link: Any = None
        self.up = bytearray()
        self.down = bytearray()
        self.said_up = bytearray()
        self.said_down = bytearray()
        self.reading = True
        self.wants_room = False
        self.ended = ""
        self._incoming: list[bytes] = []

    # --- the master's end: a Wire ---

    def send(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        self.down += data
        return len(data)

    def send_file(self, head: Buffer, descriptor: int, position: int, size: int) -> int:
        return self.send([head, os.pread(descriptor, size, position)])

    def receive(self) -> bytes | None:
        return self._incoming.pop(0) if self._incoming else None

    def wait_writable(self, wanted: bool) -> None:
        self.wants_room = wanted

    def close(self) -> None:
        self.ended = self.ended or "master"

    # --- the slave's end: a transport ---

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.up += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.ended = self.ended or "slave"

    # --- the network ---

    def move(self) -> bool:
        """Deliver what is under way; whether anything happened."""
        sender, net = self.master.sender, self.net
        happened = False
        if self.up and self.ended != "master":
            data = net.allowed(bytes(self.up), self.said_up, net.cut_up)
            self.up.clear()
            self.said_up += data
            if data:
                self._incoming.append(data)
                sender.readable(self.number)
                happened = True
            if net.cut_up is not None and len(self.said_up) >= net.cut_up:
                self._break()
        if self.wants_room and not self.ended:
            sender.writable(self.number)
            happened = True
        if self.down and self.reading and not self.link.closed:
            size = min(len(self.down), net.chunk)
            data = net.allowed(bytes(self.down[:size]), self.said_down, net.cut_down)
            del self.down[:size]
            data = bytes(
                byte ^ net.damage.get(len(self.said_down) + at, 0) for at, byte in enumerate(data)
            )
            self.said_down += data
            self._deliver(data)
            if net.cut_down is not None and len(self.said_down) >= net.cut_down:
                self._break()
            happened = True
        if self.ended and not (self.down and self.ended == "master" and not self.link.closed):
            self._finish()
            happened = True
        return happened

    def _deliver(self, data: bytes) -> None:
        while data and not self.link.closed:
            view = self.link.get_buffer(-1)
            count = min(len(view), len(data))
            view[:count] = data[:count]
            data = data[count:]
            self.link.buffer_updated(count)

    def _break(self) -> None:
        self.ended = self.ended or "network"

    def _finish(self) -> None:
        self.net.connections.remove(self)
        self._incoming.append(b"")
        self.master.sender.readable(self.number)
        self.link.connection_lost(None)


class Net:
    """Every connection, and how the network treats them from now on."""

    def __init__(self) -> None:
        self.replicas: dict[str, Replica] = {}
        self.connections: list[Connection] = []
        self.made: list[Connection] = []
        self.chunk = 1 << 20
        self.cut_up: int | None = None
        self.cut_down: int | None = None
        self.damage: dict[int, int] = {}

    def heal(self) -> None:
        self.cut_up = self.cut_down = None
        self.damage = {}

    @staticmethod
    def allowed(data: bytes, said: bytearray, cut: int | None) -> bytes:
        return data if cut is None else data[: max(0, cut - len(said))]

    async def dial(self, host: str, port: int, make: Callable[[], Any]) -> None:
        master = self.replicas[host]
        if not master.up:
            raise ConnectionRefusedError("connection refused")
        connection = Connection(self, master)
        connection.number = master.sender.attach(connection, "slave:1")
        connection.link = make()
        self.connections.append(connection)
        self.made.append(connection)
        connection.link.connection_made(connection)

    async def settle(self) -> None:
        """Until nothing moves any more, and no effect is under way."""
        quiet = 0
        while quiet < 4:
            moved = [connection.move() for connection in list(self.connections)]
            pending = {
                each.feed._under_way for each in self.replicas.values() if each.feed._under_way
            }
            if pending:
                await asyncio.wait(pending)
            await asyncio.sleep(0)
            quiet = 0 if any(moved) or pending else quiet + 1


class Replica:
    """One replica of the group; `lease` False: the controller grants none."""

    def __init__(
        self,
        net: Net,
        root: Path,
        number: int,
        clock: HandClock,
        *,
        cluster: str = "cluster",
        group: str = "group",
        secret: bytes = b"",
        extended: bool = True,
        compressed: bool = False,
        mode: Mode = Mode.S0,
        **rules: Any,
    ) -> None:
        self.net = net
        self.root = root
        self.number = number
        self.name = f"replica-{number}"
        self.clock = clock
        self.up = False
        self.alarms: list[str] = []
        self.acknowledged = 0
        self.view = GroupView()
        self._party = (cluster, group, secret, extended, compressed)
        self._mode = mode
        self._rules = StreamRules(**rules)
        self._stack = ExitStack()
        self._lives = 0
        self._messages = 0

    # --- life ---

    def start(self) -> Replica:
        self._lives += 1
        cluster, group, secret, extended, compressed = self._party
        config = StorageConfig(
            root=str(self.root), segment_bytes=SEGMENT_BYTES, queue_segment_bytes=400,
            index_slots=50, index_entries=100,
        )  # fmt: skip
        self.store: MessageStore = self._stack.enter_context(open_store(config, self.clock))
        store, epochs = self.store, EpochFile(self.root / "epochFileCheckpoint")
        history = epochs.load(store.end)
        slave = SlaveCore(
            self._rules, history, start=store.log.start, end=store.end, flushed=store.flushed,
            confirmed=min(store.checkpoint.confirmed, store.end), confirmed_epoch=history.last,
        )  # fmt: skip
        self.core = ReplicaCore(
            self.number, self._lives, self._mode, LeaseTimes(), self._rules, slave
        )
        store.belong_to(Owner(confirmed=lambda: self.core.confirmed))
        self.feed = feed = Feed(self.core, self.clock)
        party = Party(cluster, group, self.number, self._lives, secret, extended, compressed)
        self.sender = Sender(feed, store.log, self.clock, segment_bytes=SEGMENT_BYTES, party=party)
        self.receiver = Receiver(feed, store, self.clock, party=party, dial=self.net.dial)
        LogKeeping(feed, store, epochs)
        feed.register(SendHeartbeat, self._beat)
        feed.register(Prepare, self._prepare)
        feed.register(CloseWrites, self._close_writes)
        feed.register(Acknowledge, self._acknowledge)
        feed.register(Confirmed, lambda effect: self.dispatch())
        feed.register(Alarm, lambda effect: self.alarms.append(effect.reason))
        feed.ignore(*feed.unhandled())
        self.net.replicas[self.name] = self
        self.up = True
        feed.feed(ControllerUp())
        feed.feed(Registered(GroupView()))
        return self

    async def stop(self) -> None:
        """As kill -9: what is under way in the network is lost, the page cache stays."""
        self.up = False
        self.sender.close("killed")
        self.receiver._close_all()
        await self.net.settle()
        self.store.close(clean=False)
        self._stack.close()

    async def restart(self) -> Replica:
        await self.stop()
        return self.start()

    def check(self) -> None:
        """Nothing that is final may hide."""
        if self.feed.failure is not None:
            raise self.feed.failure

    # --- the controller ---

    def _told(self, view: GroupView) -> None:
        self.view = view
        self.feed.feed(RoleNotified(view))

    def lead(self, epoch: int, *others: int, number: int = 1) -> None:
        members = frozenset({self.number, *others})
        self._told(
            GroupView(epoch, self.number, f"{self.name}:1", f"{self.name}:1", members, number)
        )

    def follow(self, master: Replica, epoch: int, lossy_epoch: int = 0) -> None:
        address = f"{master.name}:1"
        members = frozenset({master.number})
        self._told(GroupView(epoch, master.number, address, address, members, 1, lossy_epoch))

    def _beat(self, effect: SendHeartbeat) -> None:
        self.feed.feed(HeartbeatAnswered(effect.number, True, effect.leading, self.view))

    def _prepare(self, effect: Prepare) -> None:
        self.dispatch()
        self.store.ends_whole()
        self.feed.feed(Prepared(effect.epoch, self.store.end, self.store.flushed))

    def _close_writes(self, effect: CloseWrites) -> None:
        self.feed.feed(WritesClosed(self.store.end, self.store.flushed))

    def _acknowledge(self, effect: Acknowledge) -> None:
        self.acknowledged = effect.end

    # --- messages ---

    def dispatch(self) -> None:
        while self.store.dispatch():
            pass

    def put(self, count: int, body_bytes: int = 100) -> None:
        """Append messages, and let slaves have them."""
        for _ in range(count):
            self._messages += 1
            body = f"{self.number}.{self._messages}.".encode().ljust(body_bytes, b"x")
            properties = f"KEYS\x01k{self._messages}\x02".encode()
            self.store.put(Draft("T", self._messages % 3, body, properties))
        self.sender.pump()

    def tick(self, ms: int) -> None:
        self.clock.ms += ms
        self.feed.tick()
        self.sender.tick()

    def log_bytes(self) -> bytes:
        return b"".join(bytes(each.view[: each.wrote]) for each in self.store.log.run.segments)
