"""One broker: builds the parts and runs them. Wiring only; decisions live in the parts."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import msgspec

from cluster.broker.acks import Acks
from cluster.broker.admission import Admission
from cluster.broker.classicgroup import ClassicMaster, ClassicSlave
from cluster.broker.config import (
    BrokerConfig,
    MetricsExporter,
    Role,
    check_startable,
    is_loopback,
)
from cluster.broker.delay import DelayLevels, DelaySchedule
from cluster.broker.duplicates import ASK_MS, Claim, NameTaken
from cluster.broker.fastpath import SendPath
from cluster.broker.groups import GroupTable
from cluster.broker.handlers.admin_config import ConfigAdminHandlers
from cluster.broker.handlers.admin_groups import GroupAdminHandlers
from cluster.broker.handlers.admin_offsets import OffsetAdminHandlers
from cluster.broker.handlers.admin_state import StateAdminHandlers
from cluster.broker.handlers.admin_topics import TopicAdminHandlers
from cluster.broker.handlers.client import ClientHandlers
from cluster.broker.handlers.locks import LockHandlers
from cluster.broker.handlers.masteronly import guarded
from cluster.broker.handlers.offsets import OffsetHandlers
from cluster.broker.handlers.pull import PullHandler
from cluster.broker.handlers.query import QueryHandler
from cluster.broker.handlers.send import SendHandler
from cluster.broker.handlers.sendback import SendBackHandler
from cluster.broker.handlers.tables import TableHandlers
from cluster.broker.jobs import (
    AckExpiry,
    Dispatch,
    Expiry,
    InsecureReminder,
    LogFlush,
    NextSegment,
    QueueFlush,
    Retention,
    StatsSampling,
    TableSaving,
)
from cluster.broker.locks import QueueLocks
from cluster.broker.longpoll import Arrival
from cluster.broker.members import ConsumerMembers, ProducerMembers
from cluster.broker.membership import Membership, find_membership
from cluster.broker.messages import UniqueIds
from cluster.broker.metasync import Tables, TableSync
from cluster.broker.offsets import OffsetTable
from cluster.broker.registration import Registration
from cluster.broker.replicagroup import Replica
from cluster.broker.slavereads import SlaveReads
from cluster.broker.standing import OnMaster, Standing
from cluster.broker.stats import BrokerStats
from cluster.broker.suspicion import SuspectMark
from cluster.broker.topics import TopicTable
from cluster.process import (
    Job,
    connections_affordable,
    raise_open_files_limit,
    running,
    stop_signals,
)
from cluster.remoting.channel import ChannelPool
from cluster.remoting.codes import RequestCode
from cluster.remoting.connection import Connection, Handler
from cluster.remoting.server import Listen, RemotingServer
from cluster.remoting.tls import TlsFiles, TlsMode, client_context
from storage import Clock, FlushFailed, MessageStore, SystemClock, open_store, pack_host

log = logging.getLogger(__name__)

#: the fast port serves everything but what may keep a connection waiting
NOT_ON_FAST_PORT: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    }
)
T = TypeVar("T")

DRAIN_MS: Final = 1_000
PORTS: Final = 2


class Broker:
    """Every part of a broker over one open store.

    Transactions, POP, timers, filters and access control have their codes and no handlers yet: the
    server answers REQUEST_CODE_NOT_SUPPORTED until their tables are added here.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        rng: random.Random,
        membership: Membership | None = None,
        claim: Claim | None = None,
    ) -> None:
        """membership: with a controller, which replica of its group this is. claim: without one, to
        its name and id."""
        self.config = config
        self.store = store
        self.clock = clock
        self.topics = TopicTable(config, config.config_path / "topics.json", clock)
        self.groups = GroupTable(config, config.config_path / "subscriptionGroup.json", clock)
        self.offsets = OffsetTable(config.config_path / "consumerOffset.json", clock)
        self.consumers = ConsumerMembers()
        self.producers = ProducerMembers()
        self.locks = QueueLocks()
        self.acks = Acks(clock, config.storage.sync_flush_timeout_ms)
        self.dispatch = Dispatch(store)
        self.log_flush = LogFlush(store, self.acks, clock, self._flushed)
        self.standing = self._stand(membership, rng)
        self.acks.overdue = self.standing.overdue
        self.stats = BrokerStats(config.cluster, self.put_counts, self._put_total, clock.now_ms())
        self.schedule = DelaySchedule(
            store,
            DelayLevels(config.storage.delay_levels),
            config.config_path / "delayOffset.json",
            clock,
        )
        self.retention = Retention(store)
        self.expiry = Expiry(
            self.consumers, self.producers, self.locks, clock, config.channel_expired_ms
        )
        self.table_sync = TableSync(
            lambda: self.standing.master,
            channels_to_master(config),
            Tables(
                self.topics,
                self.groups,
                self.offsets,
                self.schedule,
                self.forget_topic,
                self.stored_queues,
                store.max_offset,
            ),
            clock,
        )
        # In this order: tables are a master's before it works by them, and a slave stops what only
        # masters do before it says what it is.
        self.standing.changes.watch(self.table_sync.role_changed)
        self.standing.changes.watch(self._role_changed)
        self.on_master = OnMaster(self.standing, {"schedule": self.schedule.run})
        self.registration = Registration(config, self.topics, self.standing, rng)
        self.claim = claim
        self._rng = rng
        self._store_host = packed_host(config)
        self.slave_reads = SlaveReads(config, store, self.standing, clock)
        self.pulls = PullHandler(
            config,
            store,
            self.topics,
            self.groups,
            self.offsets,
            self.consumers,
            self.stats,
            self.slave_reads,
            clock,
        )
        self.table: Mapping[int, Handler] = self._table()
        self.send_path = SendPath(
            config,
            store,
            Admission(config, store, self.topics, self.acks, self.standing, clock),
            self.acks,
            held=self.standing.holds_answers,
            store_host=self._store_host,
            rng=rng,
            later=_call_soon,
        )
        self.listening = self.servers()
        store.confirm_limit = self.standing.confirmed
        store.on_append = self._appended
        store.before_put = self.send_path.release
        self.standing.changes.watch(lambda role: self.pulls.held.release_all())
        store.dispatcher.on_arrivals = self._arrived

    def _stand(self, membership: Membership | None, rng: random.Random) -> Standing:
        config, store, clock = self.config, self.store, self.clock
        if membership is not None:
            return Replica(
                config,
                store,
                self.acks,
                clock,
                rng,
                membership=membership,
                wake=self.dispatch.wake,
                flush=self.log_flush.want,
            )
        if config.role is Role.SLAVE:
            return ClassicSlave(
                config,
                store,
                clock,
                register_again=self._register_again,
                flush=self.log_flush.want,
            )
        return ClassicMaster(config, store, self.acks, clock, wake=self.dispatch.wake)

    def _role_changed(self, role: Role) -> None:
        if role is not Role.SLAVE:
            self.topics.reign_began(self.standing.epoch)

    def _register_again(self) -> None:
        self.registration.all_changed()

    def _table(self) -> dict[int, Handler]:
        config, store, clock = self.config, self.store, self.clock
        topics, groups, offsets = self.topics, self.groups, self.offsets
        consumers, producers = self.consumers, self.producers
        host, rng = self._store_host, self._rng
        sends = SendHandler(
            config,
            store,
            topics,
            groups,
            self.locks,
            self.acks,
            self.standing,
            UniqueIds(host, clock, rng),
            store_host=host,
            clock=clock,
            rng=rng,
        )
        sendbacks = SendBackHandler(
            config,
            store,
            topics,
            groups,
            self.acks,
            self.standing,
            self.stats,
            store_host=host,
            rng=rng,
        )
        standing = self.standing
        replica = (standing,) if isinstance(standing, Replica) else ()
        parts = (
            *replica,
            sends,
            sendbacks,
            self.pulls,
            QueryHandler(config, store),
            ClientHandlers(config, clock, topics, groups, consumers, producers),
            LockHandlers(self.locks, clock),
            OffsetHandlers(store, topics, groups, offsets),
            TopicAdminHandlers(config, store, topics, offsets, self.stats),
            GroupAdminHandlers(config, store, groups, offsets, consumers, producers),
            OffsetAdminHandlers(
                config, clock, store, topics, groups, offsets, consumers, self.stats
            ),
            StateAdminHandlers(
                config,
                clock,
                store,
                topics,
                self.stats,
                self.schedule,
                self.retention,
                self.standing,
            ),
            ConfigAdminHandlers(config, clock, self.permission_changed),
            TableHandlers(topics, groups, offsets, self.schedule),
        )
        table: dict[int, Handler] = {}
        for part in parts:
            for code, handler in part.table().items():
                assert code not in table, f"two handlers for request {code}"
                table[code] = handler
        if self.claim is not None:
            asked = RequestCode.GET_BROKER_CONFIG
            table[asked] = self.claim.answering(table[asked])
        return guarded(table, self.standing)

    def _appended(self) -> None:
        if not self.standing.holds_answers:
            self.dispatch.wake()
        self.standing.appended()

    def _arrived(self, arrivals: list[Arrival]) -> None:
        if self.topics.following:
            self.table_sync.noticed({arrival[0] for arrival in arrivals})
        self.pulls.held.arrived(arrivals)

    def _flushed(self, end: int) -> None:
        self.standing.flushed(end)
        self.dispatch.wake()

    def load(self) -> None:
        """Read topics, groups and progress. Raises storage.CorruptFile, OSError."""
        self.topics.load()
        self.groups.load()
        self.offsets.load()
        self.schedule.load()
        self.table_sync.start(self.standing.role)

    def save(self) -> None:
        """Write every table that is newer than its file. Raises OSError."""
        for table in (self.topics, self.groups, self.offsets, self.schedule):
            table.file.save()

    def jobs(self) -> dict[str, Job]:
        """What runs from before the first request until after the last."""
        config, clock = self.config, self.clock
        tables = (self.offsets.file, self.groups.file, self.topics.file, self.schedule.file)
        jobs: dict[str, Job] = {
            "dispatch": self.dispatch.run,
            "log_flush": self.log_flush.run,
            "ack_expiry": AckExpiry(self.acks, clock).run,
            "queue_flush": QueueFlush(self.store, clock).run,
            "next_segment": NextSegment(self.store).run,
            "retention": self.retention.run,
            "held_pulls": self.pulls.held.run,
            "on_master": self.on_master.run,
            "table_sync": self.table_sync.run,
            "table_saving": TableSaving(tables, config.offset_flush_interval_ms).run,
            "expiry": self.expiry.run,
            "stats": StatsSampling(self.stats, clock).run,
            **self.standing.jobs(),
        }
        if config.insecure and not is_loopback(config.bind_host):
            jobs["insecure"] = InsecureReminder(f"{config.bind_host}:{config.listen_port}").run
        return jobs

    def servers(self) -> list[RemotingServer]:
        """The main port, and the fast port two below it."""
        fast = {
            code: handler for code, handler in self.table.items() if code not in NOT_ON_FAST_PORT
        }
        port = self.config.listen_port
        return [self._server(port, self.table), self._server(port - 2, fast)]

    def _server(self, port: int, table: Mapping[int, Handler]) -> RemotingServer:
        config = self.config
        files = TlsFiles(
            key_path=config.tls_key_path,
            cert_path=config.tls_certificate_path,
            trust_cert_path=config.tls_trust_path,
        )
        listen = Listen(host=config.bind_host, port=port, tls=config.tls_mode, tls_files=files)
        return RemotingServer(
            listen.limited(*connections_affordable(PORTS)),
            table,
            chunk=self.send_path.process,
            on_close=self.connection_closed,
            clock=self.clock,
        )

    def connection_closed(self, connection: Connection) -> None:
        """Its client left every group; held pulls and answers look after themselves."""
        self.consumers.connection_closed(connection)
        self.producers.connection_closed(connection)

    def permission_changed(self) -> None:
        """brokerPermission changed: name servers must hear what may still be sent here."""
        self.topics.permission_changed()
        self.registration.all_changed()

    def forget_topic(self, topic: str) -> None:
        """The topic is deleted: its queues and everybody's progress in it. Raises OSError."""
        self.offsets.forget_topic(topic)
        self.stats.forget_topic(topic)
        self.store.delete_topic(topic)

    def stored_queues(self) -> dict[str, int]:
        """topic -> how many queues it has in the store."""
        counts: dict[str, int] = {}
        for queue in self.store.queues:
            counts[queue.topic] = max(queue.queue_id + 1, counts.get(queue.topic, 0))
        return counts

    def put_counts(self) -> Iterator[tuple[str, int]]:
        """topic -> messages ever put into it."""
        for topic, queues in self.store.log.queue_tails.items():
            yield (
                topic.decode("utf-8", "replace"),
                sum(tail.next_offset for tail in queues.values()),
            )

    def _put_total(self) -> int:
        return self.store.stats.appended_messages

    @property
    def started_text(self) -> str:
        """The line that health checks look for."""
        config = self.config
        text = f"The broker[{config.name}, {config.address}] boot success. serializeType=JSON"
        return f"{text} and name server is {config.namesrv}" if config.namesrv else text


@asynccontextmanager
async def serving(broker: Broker) -> AsyncIterator[None]:
    """Everything up inside the body. Top-down is start order, bottom-up is stop order.

    Raises NameTaken, also in the body's place when that raised it.
    """
    async with AsyncExitStack() as stack:
        with _sends_waiting(broker):
            await stack.enter_async_context(running(**broker.jobs()))
            for server in broker.listening:
                await stack.enter_async_context(_listening(server))
            if broker.config.metrics_exporter is MetricsExporter.PROM:
                # Imported when wanted: an HTTP server costs every start 200 ms and 15 MB.
                from cluster.broker.measures import exposing

                await stack.enter_async_context(exposing(broker))
            if broker.config.http_port:
                from cluster.broker.httpplane import serving_http  # as above

                await stack.enter_async_context(
                    serving_http(broker.config, broker.store, broker.standing, broker.clock)
                )
            await stack.enter_async_context(_settled(broker))
            if broker.claim is not None:
                await broker.claim.last_look()
            await stack.enter_async_context(_parting(broker.registration))
            await stack.enter_async_context(running(registration=broker.registration.run))
            await broker.registration.first_round()
            if broker.claim is not None:
                await broker.claim.open(broker.registration)
        yield


@contextmanager
def _sends_waiting(broker: Broker) -> Iterator[None]:
    """While the body runs sends wait; then they are taken, or refused if it failed.

    So a broker that must give up its name has acknowledged nothing.
    """
    standing = broker.standing
    if broker.claim is None or not isinstance(standing, ClassicMaster):
        yield
        return
    standing.unproven = True
    standing.changes.pause = pause = asyncio.get_running_loop().create_future()
    try:
        yield
        standing.unproven = False
    finally:
        standing.changes.pause = None
        pause.set_result(None)


@asynccontextmanager
async def _settled(broker: Broker) -> AsyncIterator[None]:
    """Leaving in good order answers everybody who waits; after a failure nobody is promised more."""
    refused: NameTaken | None = None
    try:
        yield
    except NameTaken as problem:
        refused = problem
    await broker.log_flush.settle()
    broker.pulls.held.release_all()
    if refused is not None:
        raise refused


@asynccontextmanager
async def _parting(registration: Registration) -> AsyncIterator[None]:
    """Name servers are told when we leave, but not to forget who has our name."""
    goodbye = True
    try:
        yield
    except NameTaken:
        goodbye = False
        raise
    finally:
        await registration.close(goodbye=goodbye)


@asynccontextmanager
async def _listening(server: RemotingServer) -> AsyncIterator[None]:
    await server.start()
    try:
        yield
    finally:
        await server.close(DRAIN_MS)


async def serve_broker(config: BrokerConfig, ready: Callable[[str], None]) -> None:
    """Run a broker until SIGTERM or SIGINT, then stop within 5 s and leave a clean store.

    ready    called with the start line once clients are served and name servers were told
    Raises ConfigError, storage errors of a store that cannot be opened, OSError of a port that
    cannot be had, and FlushFailed: the disk refused, what it holds is unknown, and the process
    must end.
    """
    check_startable(config)
    raise_open_files_limit()
    if config.listen_port == 0:
        config = with_free_port(config)
    clock, rng = SystemClock(), random.Random()
    suspect = SuspectMark(config.storage)
    if config.controller_mode:
        suspect.look()
    refused: NameTaken | None = None
    with open_store(config.storage, clock) as store, stop_signals() as stop:
        membership = None
        if config.controller_mode:
            membership = await unless(stop, find_membership(config, store, suspect, clock, rng))
            if membership is None:
                log.info("stop requested before this replica was given an id")
                return
        claim = None
        if membership is None:
            claim = Claim(
                config, ChannelPool(connect_timeout_ms=ASK_MS), channels_to_rivals(config)
            )
        try:
            if claim is not None:
                await claim.first_look()
            broker = Broker(config, store, clock, rng, membership, claim)
            await _serve(broker, stop, ready)
        except NameTaken as problem:
            refused = problem  # no harm to the store: it is closed as after any stop
        finally:
            if claim is not None:
                await claim.close()
    if refused is not None:
        raise refused
    log.info("broker stopped name=%s", config.name)


async def _serve(broker: Broker, stop: asyncio.Future[str], ready: Callable[[str], None]) -> None:
    """From loading tables to saving them. Raises NameTaken when that is why it ended."""
    config, claim = broker.config, broker.claim
    broker.load()
    settle_memory()
    refused: NameTaken | None = None
    try:
        async with serving(broker):
            log.info("broker started name=%s address=%s", config.name, config.address)
            ready(broker.started_text)
            if claim is not None:
                await unless(stop, claim.settle(broker.registration))
            log.info("stop requested signal=%s", await stop)
            if isinstance(broker.standing, Replica):
                await broker.standing.hand_over()
    except NameTaken as problem:
        refused = problem
    except BaseExceptionGroup as failures:
        # Several jobs notice a failing disk at once; which of them first does not matter.
        flush_failures = failures.subgroup(FlushFailed)
        if flush_failures is None:
            raise
        raise first_of(flush_failures) from failures
    broker.standing.closing()
    broker.save()
    if refused is not None:
        raise refused


async def unless(stop: asyncio.Future[str], work: Coroutine[Any, Any, T]) -> T | None:
    """What the work gives; None when a stop is asked for first. Raises what the work raises."""
    task = asyncio.create_task(work)
    either: set[asyncio.Future[Any]] = {task, stop}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        await asyncio.wait({task})


def channels_to_rivals(config: BrokerConfig) -> ChannelPool:
    """How a broker is asked that may have our name: as its clients have to. Nothing secret is said,
    and it may be we ourselves under a former address, so its certificate is not checked."""
    tls = client_context(verify=False) if config.tls_mode is TlsMode.ENFORCING else None
    return ChannelPool(tls=tls, connect_timeout_ms=ASK_MS)


def channels_to_master(config: BrokerConfig) -> ChannelPool:
    """How a slave reaches its master: as its clients have to.

    The master's certificate is checked where roots are configured. Raises TlsUnusable.
    """
    if config.tls_mode is not TlsMode.ENFORCING:
        return ChannelPool()
    roots = config.tls_trust_path
    return ChannelPool(tls=client_context(ca_path=roots, verify=bool(roots)))


def _call_soon(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(call)


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first single exception in a group of groups."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first


def settle_memory() -> None:
    """What was built so far stays.

    Collections need not look at it again, and need not run so often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def packed_host(config: BrokerConfig) -> bytes:
    """The advertised address as records store it; a host name is looked up once, here."""
    host = config.advertised_host
    try:
        return pack_host(host, config.listen_port)
    except ValueError:
        found = socket.getaddrinfo(host, config.listen_port, type=socket.SOCK_STREAM)
        return pack_host(str(found[0][4][0]), config.listen_port)


def with_free_port(config: BrokerConfig) -> BrokerConfig:
    """listenPort=0, for tests: ports that are free just now, the fast one two below it, and the
    one for slaves above."""
    while True:
        with ExitStack() as stack:
            probes = [stack.enter_context(socket.socket()) for _ in range(3)]
            probes[0].bind((config.bind_host, 0))
            port = int(probes[0].getsockname()[1])
            try:
                probes[1].bind((config.bind_host, port - 2))
                probes[2].bind((config.bind_host, port + 1))
            except OSError:
                continue
        return msgspec.structs.replace(config, listen_port=port, ha_listen_port=port + 1)
