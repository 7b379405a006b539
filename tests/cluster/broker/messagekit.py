"""A broker's message handlers over a real store, without sockets and without a loop."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from senderkit import take_on_trust

from tandemmq.cluster.broker.handlers.pull import PullHandler
from tandemmq.cluster.broker.handlers.query import QueryHandler
from tandemmq.cluster.broker.handlers.send import SendHandler
from tandemmq.cluster.broker.handlers.sendback import SendBackHandler
from tandemmq.cluster.broker.handlers.timers import TimerHandlers
from tandemmq.cluster.broker.handlers.transaction import TransactionHandler
from tandemmq.cluster.broker.reading.locks import QueueLocks
from tandemmq.cluster.broker.reading.members import ConsumerMembers, ProducerMembers
from tandemmq.cluster.broker.sending.acks import Acks
from tandemmq.cluster.broker.sending.admission import Admission, Identities
from tandemmq.cluster.broker.sending.delay import DelayLevels, DelaySchedule
from tandemmq.cluster.broker.sending.messages import UniqueIds
from tandemmq.cluster.broker.sending.release import Release
from tandemmq.cluster.broker.settings.config import BrokerConfig, Role
from tandemmq.cluster.broker.standing.classicmaster import ClassicMaster
from tandemmq.cluster.broker.standing.classicslave import ClassicSlave
from tandemmq.cluster.broker.standing.slavereads import SlaveReads
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.cluster.broker.tables.cuts import Cuts
from tandemmq.cluster.broker.tables.groups import GroupTable
from tandemmq.cluster.broker.tables.lives import Lives
from tandemmq.cluster.broker.tables.offsets import OffsetTable
from tandemmq.cluster.broker.tables.topics import TopicConfig, TopicTable
from tandemmq.cluster.broker.timers.door import TimerDoor
from tandemmq.cluster.broker.timers.schedule import timers_of
from tandemmq.cluster.broker.transactions.transactions import Transactions
from tandemmq.cluster.broker.watching.stats import BrokerStats
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.cluster.remoting.errors import ConnectFailed
from tandemmq.storage import (
    FlushMode,
    MessageStore,
    Owner,
    Record,
    StorageConfig,
    decode,
    open_store,
    pack_host,
)

STORE_HOST = pack_host("10.9.9.1", 29911)
START_MS = 1_795_260_706_282
UNIQUE = "0A09090351ED4E0E2F2A697885E70000"


class FakeClock:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.wall_ms = START_MS
        self.mono_ms = 1_000

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.mono_ms

    def pass_ms(self, duration_ms: int) -> None:
        self.wall_ms += duration_ms
        self.mono_ms += duration_ms


class Everybody:
    """Nobody is asked who they are."""

    def vouches(self, connection: object) -> bool:
        return True


class FakeConnection:
    """What handlers need of a connection; it remembers what was written."""

    _next_id = 1

    def __init__(self, host: str = "10.9.9.3", port: int = 48932) -> None:
        self.id = FakeConnection._next_id
        FakeConnection._next_id += 1
        self.peer = (host, port)
        self.peer_host = pack_host(host, port)
        self.closed = False
        self.active_ms = 0  # when its last bytes came: Kit.ask says
        self.waited_ms = 0
        self.written = b""
        self.writes = 0
        self.queued_bytes = 0
        self.rooms = 0  # how often somebody asked for room
        self._callbacks: list[Callable[[Any], None]] = []

    @property
    def close_callbacks(self) -> int:
        return len(self._callbacks)

    async def room(self) -> None:
        self.rooms += 1

    def on_close(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def close(self, reason: str = "") -> None:
        self.closed = True
        for callback in self._callbacks:
            callback(self)

    def write(self, data: bytes | memoryview) -> None:
        self.writes += 1
        self.written += bytes(data)

    def write_now(self, data: bytes) -> None:
        self.write(data)

    def writelines(self, parts: list[bytes | memoryview]) -> None:
        self.write(b"".join(parts))

    def send(self, command: Command) -> None:
        if command.flag & 3 != 3:
            self.write(command.encode())

    def answers(self) -> list[Command]:
        """Every answer written so far."""
        return decode_frames(self.written)

    def take(self) -> list[Command]:
        """The answers written since the last take."""
        answers, self.written = self.answers(), b""
        return answers


def decode_frames(data: bytes) -> list[Command]:
    frames = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        frames.append(Command.decode(data[at:end]))
        at = end
    return frames


def java_frame(
    code: int, ext: dict[str, str], body: bytes, opaque: int = 1, flag: int = 0
) -> bytes:
    """A request as a Java client writes it, JSON header."""
    header = json.dumps(
        {
            "code": code,
            "extFields": dict(sorted(ext.items())),
            "flag": flag,
            "language": "JAVA",
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": 479,
        },
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def send_ext(topic: str = "T", properties: str | None = None, **fields: str) -> dict[str, str]:
    """The header of a send; fields by their letters override."""
    ext = {
        "a": "PG",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1795260706282",
        "h": "0",
        "i": f"KEYS\x01k1\x02UNIQ_KEY\x01{UNIQUE}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
        if properties is None
        else properties,
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "broker-a",
    }
    ext.update(fields)
    return ext


class Unreachable:
    """Other brokers and name servers, of which none answers."""

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        raise ConnectFailed(address, "nobody is there")

    async def close(self) -> None:
        pass


class Kit:
    """The parts of a broker that handle messages."""

    def __init__(self, store: MessageStore, config: BrokerConfig, clock: FakeClock) -> None:
        self.store, self.config, self.clock = store, config, clock
        path = config.config_path
        self.topics = TopicTable(config, path / "topics.json", clock)
        self.topics.load()
        self.groups = GroupTable(config, path / "subscriptionGroup.json", clock)
        self.groups.load()
        self.offsets = OffsetTable(path / "consumerOffset.json", clock)
        self.members = ConsumerMembers()
        self.locks = QueueLocks(path / "queueLocks.json", lambda group: None)
        synchronous = config.storage.flush_mode is FlushMode.SYNC
        self.acks = Acks(clock, config.storage.sync_flush_timeout_ms, disk_too=synchronous)
        self.wakes = 0
        self.standing = self._standing()
        self.later: Callable[[Callable[[], None]], object] = lambda call: call()
        self.release = Release(
            store, self.acks, self.standing, wake=self.wake, flush=lambda: None,
            later=self._soon,
        )  # fmt: skip
        self.stats = BrokerStats(config.cluster, lambda: [], lambda: 0, clock.now_ms())
        self.rng = random.Random(7)
        self.levels = DelayLevels(config.storage.delay_levels)
        self.schedule = DelaySchedule(
            store, self.release.put, self.levels, path / "delayOffset.json", clock
        )
        self.producers = ProducerMembers()
        self.transactions = Transactions(
            config,
            store,
            self.release,
            self.topics,
            self.offsets,
            self.producers,
            self.standing,
            clock,
            store_host=STORE_HOST,
        )
        self.ends = TransactionHandler(self.transactions, self.release, self.standing)
        self.timers = timers_of(
            config, store, self.release.put, self.schedule.time, clock, STORE_HOST
        )
        self.door = TimerDoor(config, self.timers.pending, self.timers.now_ms, self.rng.random)
        self.sends = SendHandler(
            config,
            store,
            self.topics,
            self.groups,
            self.locks,
            self.release,
            self.standing,
            UniqueIds(STORE_HOST, clock, self.rng),
            self.transactions,
            store_host=STORE_HOST,
            clock=clock,
            rng=self.rng,
            timers=self.door,
        )
        self.timer_requests = TimerHandlers(
            config, clock, store, self.topics, self.release, self.standing, self.door,
            self.timers.pending, store_host=STORE_HOST,
        )  # fmt: skip
        self.backs = SendBackHandler(
            config,
            store,
            self.topics,
            self.groups,
            self.release,
            self.standing,
            self.stats,
            store_host=STORE_HOST,
            rng=self.rng,
        )
        self.pulls = PullHandler(
            config,
            store,
            self.topics,
            self.groups,
            self.offsets,
            self.members,
            self.stats,
            SlaveReads(config, store, self.standing, clock),
            Cuts(path / "queueCuts.json", self.offsets, self.members, Lives(store, clock), clock),
            clock,
        )
        self.queries = QueryHandler(config, store)
        self.identities: Identities = Everybody()
        self.admission = Admission(
            config, store, self.topics, self.acks, self.standing, clock, self
        )
        self.table = {
            **self.sends.table(),
            **self.ends.table(),
            **self.backs.table(),
            **self.pulls.table(),
            **self.queries.table(),
            **self.timer_requests.table(),
        }
        store.belong_to(Owner(arrived=self.pulls.held.arrived))
        self.connection = FakeConnection()

    def _standing(self) -> Standing:
        if self.config.role is Role.SLAVE:
            return ClassicSlave(
                self.config,
                self.store,
                self.clock,
                register_again=lambda: None,
                wake=self.wake,
                flush=lambda end: None,
                brokers=Unreachable(),
            )
        standing = ClassicMaster(
            self.config,
            self.store,
            self.acks,
            self.clock,
            wake=self.wake,
            names=Unreachable(),
            brokers=Unreachable(),
        )
        take_on_trust(standing.feed)
        return standing

    def send_path(self, kind: Any, later: Callable[..., Any] | None = None) -> Any:
        """A send path of either kind over this broker's parts.

        later   for all that this broker puts; without it everything is released at once
        """
        if later is not None:
            self.later = later
        return kind(
            self.config,
            self.store,
            self.admission,
            self.release,
            store_host=STORE_HOST,
            rng=random.Random(7),
        )

    def wake(self) -> None:
        self.wakes += 1

    def _soon(self, call: Callable[[], None]) -> None:
        self.later(call)

    def vouches(self, connection: Connection) -> bool:
        """Who the short path asks."""
        return self.identities.vouches(connection)

    def topic(self, name: str = "T", queues: int = 4, **changes: Any) -> TopicConfig:
        made = self.topics.create_for_retry(name, queues)
        assert made is not None
        for field, value in changes.items():
            setattr(made, field, value)
        return made

    def ask(self, command: Command, connection: FakeConnection | None = None) -> Command | None:
        """The answer of the handler, or what it wrote itself; None when there is none yet."""
        connection = connection or self.connection
        connection.active_ms = self.clock.monotonic_ms() - connection.waited_ms
        answer = self.table[command.code](command, connection)
        if answer is not None:
            assert isinstance(answer, Command)
            connection.send(answer)
        answers = connection.take()
        return answers[0] if answers else None

    def send(
        self, body: bytes | None = b"hello", code: int = 310, flag: int = 0, **ext: Any
    ) -> Command | None:
        return self.ask(Command(code, send_ext(**ext), body, opaque=3, flag=flag))

    def dispatch(self) -> None:
        """Bring queues and index up to date, which wakes held pulls."""
        while self.store.dispatch(10_000):
            pass

    def records(self) -> list[Record]:
        """Every record of the log, in order."""
        found = []
        at = self.store.log.start
        while at < self.store.end:
            view = self.store.log.record_at(at)
            if view is None:  # a blank: on to the next file
                at += self.config.storage.segment_bytes - at % self.config.storage.segment_bytes
                continue
            record = decode(view)
            view.release()
            found.append(record)
            at += record.size
        return found


@contextmanager
def open_kit(root: Path, clock: FakeClock | None = None, **settings: Any) -> Iterator[Kit]:
    """A kit over a store, fresh or not. settings: of BrokerConfig; `storage` is a dict."""
    clock = clock or FakeClock()
    storage = {
        "segment_bytes": 1 << 20,
        "queue_segment_bytes": 20 * 1000,
        "index_slots": 1000,
        "index_entries": 4000,
        **settings.pop("storage", {}),
    }
    config = BrokerConfig(
        storage=StorageConfig(root=str(root), **storage),
        **{"name": "broker-a", "cluster": "GoldCluster", "advertised_ip": "10.9.9.1", **settings},
    )
    with open_store(config.storage, clock) as store:
        yield Kit(store, config, clock)
