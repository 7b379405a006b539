"""A replica without sockets: a controller in memory that speaks bytes, and a loop whose time jumps."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pytest
from messagekit import FakeConnection
from timekit import LoopClock

from tandemmq.cluster import controlanswers, controlplane
from tandemmq.cluster.broker.sending.acks import UNSETTLED, Acks
from tandemmq.cluster.broker.sending.release import Release
from tandemmq.cluster.broker.settings.config import BrokerConfig, Role
from tandemmq.cluster.broker.standing import controllerlink, identity
from tandemmq.cluster.broker.standing.membership import find_membership
from tandemmq.cluster.broker.standing.replicagroup import ControlledReplica
from tandemmq.cluster.broker.standing.suspicion import SuspectMark
from tandemmq.cluster.process import running
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection, Handler, Sign
from tandemmq.cluster.remoting.errors import ConnectFailed, ConnectionLost, RequestTimedOut
from tandemmq.replication import LeaseTimes
from tandemmq.replication import election as e
from tandemmq.storage import Draft, MessageStore, Owner, Placed, open_store, pack_host

Result = TypeVar("Result")
TIMES = LeaseTimes()
HOST = pack_host("127.0.0.1", 1)


@pytest.fixture
def controllers(monkeypatch: pytest.MonkeyPatch) -> Controllers:
    found = Controllers()

    async def at_once(function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        return function(*arguments, **more)

    monkeypatch.setattr(controllerlink, "open_channel", found.open_channel)
    monkeypatch.setattr(identity, "open_channel", found.open_channel)
    monkeypatch.setattr(asyncio, "to_thread", at_once)  # a thread would not wait for jumping time
    return found


class Controllers:
    """Who is reached at which address; nobody else is there."""

    def __init__(self) -> None:
        self.at: dict[str, MemoryController] = {}
        self.connects: list[str] = []

    def add(self, address: str = "c:1") -> MemoryController:
        self.at[address] = controller = MemoryController(address)
        return controller

    async def open_channel(
        self,
        host: str,
        port: int,
        *,
        tls: object = None,
        timeout_ms: int,
        table: Mapping[int, Handler] | None = None,
        sign: Sign | None = None,
    ) -> MemoryChannel:
        address = f"{host}:{port}"
        self.connects.append(address)
        controller = self.at.get(address)
        if controller is None:
            raise ConnectFailed(address, "refused")
        return MemoryChannel(controller, table or {})


class MemoryChannel:
    """The broker's end of a connection; every command goes through bytes."""

    numbers = itertools.count(1)

    def __init__(self, controller: MemoryController, table: Mapping[int, Handler]) -> None:
        self.controller = controller
        self.table = table
        self.session = next(self.numbers)
        self.closed = False
        self.close_reason = ""
        self.sent: list[Command] = []
        self._callbacks: list[Callable[[Any], None]] = []
        controller.channels[self.session] = self

    def on_close(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def close(self, reason: str = "closed by us") -> None:
        if not self.closed:
            self.closed, self.close_reason = True, reason
            self.controller.closed(self.session)
            for callback in self._callbacks:
                callback(self)

    abort = close

    def oneway(self, command: Command) -> None:
        self.sent.append(command)
        self.controller.take(self.session, bytes(command.encode()), None)

    def request_nowait(self, command: Command, timeout_ms: int) -> asyncio.Future[Command]:
        if self.closed:
            raise ConnectionLost("c", self.close_reason)
        self.sent.append(command)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Command] = loop.create_future()
        self.controller.take(self.session, bytes(command.encode()), future)
        timed_out = RequestTimedOut("c", command.code, timeout_ms)
        loop.call_later(timeout_ms / 1000, _fail, future, timed_out)
        return future

    async def request(self, command: Command, timeout_ms: int) -> Command:
        return await self.request_nowait(command, timeout_ms)

    def notify(self, command: Command) -> None:
        """The controller asks something of the broker."""
        handler = self.table[command.code]
        handler(Command.decode(bytes(command.encode())), None)  # type: ignore[arg-type]


def _fail(future: asyncio.Future[Command], problem: Exception) -> None:
    if not future.done():
        future.set_exception(problem)
        future.exception()  # looked at: nobody else may


def _answer(future: asyncio.Future[Command], answer: Command) -> None:
    if not future.done():
        future.set_result(Command.decode(bytes(answer.encode())))


class MemoryController:
    """A controller whose records are durable at once.

    delay_s how late it is with everything
    silent  it takes requests and answers none; leads: False answers that another one does
    names_replicas  False: as a release from before it named them to the master
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.core = e.ControllerCore(TIMES, start_ms=-100_000)
        self.channels: dict[int, MemoryChannel] = {}
        self.silent = False
        self.delay_s = 0.0
        self.leads = True
        self.names_replicas = True
        self.leader = address
        self.seen: list[e.Event] = []
        self.probes: list[e.Probe] = []
        self._asked: dict[int, tuple[Command, asyncio.Future[Command] | None]] = {}
        self._beats: dict[int, tuple[Command, asyncio.Future[Command] | None]] = {}
        self._numbers = itertools.count(1)

    @property
    def record(self) -> e.GroupRecord:
        (group,) = self.core.groups.values()
        return group.record

    def events(self, kind: type[Any]) -> list[Any]:
        """What came in of a kind."""
        return [event for event in self.seen if type(event) is kind]

    def hang_up(self) -> None:
        """Close every connection."""
        for channel in list(self.channels.values()):
            channel.close("closed by the controller")

    def closed(self, session: int) -> None:
        self.channels.pop(session, None)
        self.feed(e.SessionClosed(session))

    def take(self, session: int, frame: bytes, future: asyncio.Future[Command] | None) -> None:
        if self.delay_s:
            later = asyncio.get_running_loop().call_later
            later(self.delay_s, self._take, session, frame, future)
        else:
            self._take(session, frame, future)

    def _take(self, session: int, frame: bytes, future: asyncio.Future[Command] | None) -> None:
        if self.silent:
            return
        command = Command.decode(frame)
        request = next(self._numbers)
        if command.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
            leadership = controlanswers.Leadership("g", "n0", self.leader, self.leads, "")
            assert future is not None
            _answer(future, controlanswers.answer_metadata(command, leadership))
            return
        if not self.leads:
            assert future is not None
            code = ResponseCode.CONTROLLER_NOT_LEADER
            _answer(future, controlanswers.refusal(command, code, "not here"))
            return
        if command.code == RequestCode.BROKER_HEARTBEAT:
            self._beats[session] = (command, future)
            self.feed(controlplane.read_heartbeat(command, session))
            return
        self._asked[request] = (command, future)
        self.feed(self._read(command, request, session))

    @staticmethod
    def _read(command: Command, request: int, session: int) -> e.Event:
        match command.code:
            case RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
                return controlplane.read_next_broker_id(command, request)
            case RequestCode.CONTROLLER_APPLY_BROKER_ID:
                return controlplane.read_apply_broker_id(command, request)
            case RequestCode.CONTROLLER_REGISTER_BROKER:
                return controlplane.read_register_broker(command, request, session, TIMES)
            case RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET:
                return controlplane.read_alter_sync_set(command, request)
            case RequestCode.CONTROLLER_ELECT_MASTER:
                return controlplane.read_elect_master(command, request)
            case RequestCode.CONTROLLER_GET_SYNC_STATE_DATA:
                return controlplane.read_sync_state_data(command, request)
            case _:
                raise AssertionError(command.code)

    def feed(self, event: e.Event) -> None:
        self.seen.append(event)
        now_ms = round(asyncio.get_running_loop().time() * 1000)
        for effect in self.core.step(event, now_ms):
            self._perform(effect)

    def _perform(self, effect: e.Effect) -> None:
        match effect:
            case e.Answer() if effect.request in self._asked:  # else a test asked
                command, future = self._asked.pop(effect.request)
                if future is not None:
                    _answer(future, self._written(command, effect))
            case e.AnswerHeartbeat() if effect.session in self._beats:
                command, future = self._beats.pop(effect.session)
                if future is not None:
                    answer = controlanswers.answer_heartbeat(command, effect)
                    if not self.names_replicas:
                        (answer.ext or {}).pop("registeredReplicas", None)
                    _answer(future, answer)
            case e.NotifyRole():
                self._notify(effect.session, controlanswers.encode_role_notice(effect.view))
            case e.AskToSwitch():
                self._notify(effect.session, controlanswers.encode_switch_request(effect))
            case e.Probe():
                self.probes.append(effect)
            case _:
                pass

    def _notify(self, session: int, command: Command) -> None:
        channel = self.channels.get(session)
        if channel is not None:
            asyncio.get_running_loop().call_soon(channel.notify, command)

    @staticmethod
    def _written(command: Command, effect: e.Answer) -> Command:
        match command.code:
            case RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
                return controlanswers.answer_next_broker_id(command, effect)
            case RequestCode.CONTROLLER_APPLY_BROKER_ID:
                return controlanswers.answer_apply_broker_id(command, effect)
            case RequestCode.CONTROLLER_REGISTER_BROKER:
                return controlanswers.answer_register_broker(command, effect, TIMES)
            case RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET:
                return controlanswers.answer_alter_sync_set(command, effect)
            case RequestCode.CONTROLLER_GET_SYNC_STATE_DATA:
                return controlanswers.answer_sync_state_data(command, effect)
            case _:
                return controlanswers.answer_elect_master(command, effect)


def config_of(root: Path, **settings: str) -> BrokerConfig:
    properties = {
        "storePathRootDir": str(root),
        "brokerClusterName": "C",
        "brokerName": "broker-a",
        "brokerId": "-1",
        "brokerIP1": "127.0.0.1",
        "enableControllerMode": "true",
        "controllerAddr": "c:1;c:2",
        "brokerRole": "SYNC_MASTER",
        "mappedFileSizeCommitLog": str(64 << 10),
        "mappedFileSizeConsumeQueue": "2000",
        "maxHashSlotNum": "100",
        "maxIndexNum": "400",
        **settings,
    }
    return BrokerConfig.from_properties(properties, environment={})


class Kit:
    """One replica over an open store, with what a broker would give it."""

    def __init__(self, config: BrokerConfig, store: MessageStore) -> None:
        self.config = config
        self.store = store
        self.clock = LoopClock()
        self.acks = Acks(self.clock, config.storage.sync_flush_timeout_ms)
        self.suspect = SuspectMark(config.storage)
        self.flushes: list[int] = []
        self.flushing_since_ms: int | None = None
        self.told: list[str] = []
        self.replica: ControlledReplica

    async def join(self) -> ControlledReplica:
        rng = random.Random()  # another process each time
        membership = await find_membership(self.config, self.store, self.suspect, self.clock, rng)
        self.replica = ControlledReplica(
            self.config, self.store, self.acks, self.clock, rng, membership=membership,
            wake=self.dispatch, flush=self.flushes.append,
            flushing_since_ms=lambda: self.flushing_since_ms,
        )  # fmt: skip
        self.release = Release(
            self.store, self.acks, self.replica, wake=self.dispatch, flush=lambda: None,
            later=asyncio.get_running_loop().call_soon,
        )  # fmt: skip
        self.store.belong_to(Owner(confirmed=self.replica.confirmed))
        self.replica.changes.watch(lambda role: self.told.append(role.value))
        return self.replica

    def put(self, message: Draft) -> Placed:
        return self.release.put(message)

    def dispatch(self) -> None:
        while self.store.dispatch(10_000):
            pass


@contextmanager
def open_kit(root: Path, **settings: str) -> Iterator[Kit]:
    config = config_of(root, **settings)
    SuspectMark(config.storage).look()
    with open_store(config.storage, LoopClock()) as store:
        yield Kit(config, store)


async def until(holds: Callable[[], object], what: str, within_ms: int = 10_000) -> None:
    """Let time jump until something holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_ms / 1000
    while not holds():
        assert loop.time() < deadline, f"not within {within_ms} ms: {what}"
        await asyncio.sleep(0.005)


def draft(body: bytes = b"x", topic: str = "T", queue_id: int = 0) -> Draft:
    return Draft(
        topic=topic, queue_id=queue_id, body=body, properties=b"", born_host=HOST, store_host=HOST
    )


@asynccontextmanager
async def joined(root: Path, **settings: str) -> AsyncIterator[Kit]:
    """A replica that runs; its HA port is left out."""
    with open_kit(root, **settings) as kit:
        jobs = dict((await kit.join()).jobs())
        del jobs["slaves"]
        async with running(**jobs):
            yield kit


@asynccontextmanager
async def reigning(root: Path, **settings: str) -> AsyncIterator[Kit]:
    async with joined(root, **settings) as kit:
        await until(lambda: kit.replica.role is not Role.SLAVE, "no master")
        await until(lambda: kit.replica.link.connected, "no controller")
        await know(kit, 2, 3, 4)
        yield kit


async def know(kit: Kit, *replicas: int) -> None:
    """Others of the group, of incarnation 5, are registered too, and our master has heard of it."""
    channel = kit.replica.link._channel
    assert isinstance(channel, MemoryChannel)
    (group,) = channel.controller.core.groups.values()
    others = {each: e.Member(f"10.0.0.{each}:10911", "", "code", 5) for each in replicas}
    group.record = msgspec.structs.replace(group.record, members={**group.record.members, **others})
    master = kit.replica.core.master
    assert master is not None
    await until(lambda: len(master.registered or ()) > len(others), "did not hear of the others")


def hold(kit: Kit, end: int) -> FakeConnection:
    connection = FakeConnection()
    answer = Command(310, opaque=9).reply(ext=dict(UNSETTLED))
    kit.acks.hold(end, cast(Connection, connection), answer)
    return connection


def answered(connection: FakeConnection) -> Command | None:
    answers = connection.answers()
    return answers[0] if answers else None


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
