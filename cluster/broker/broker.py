"""One broker: builds the parts and joins them. Wiring only; decisions live in the parts."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tandemmq.cluster.broker.access.unguarded import guarding_of
from tandemmq.cluster.broker.duplicates import Claim
from tandemmq.cluster.broker.handlers.capabilities import table_of
from tandemmq.cluster.broker.handlers.pull import PullHandler
from tandemmq.cluster.broker.jobs import (
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
from tandemmq.cluster.broker.reading.locks import QueueLocks
from tandemmq.cluster.broker.reading.longpoll import Arrival
from tandemmq.cluster.broker.reading.members import ConsumerMembers, ProducerMembers
from tandemmq.cluster.broker.reading.shortpulls import PullPath, in_turns
from tandemmq.cluster.broker.registration import Registration
from tandemmq.cluster.broker.sending.acks import Acks
from tandemmq.cluster.broker.sending.admission import Admission
from tandemmq.cluster.broker.sending.delay import DelayLevels, DelaySchedule
from tandemmq.cluster.broker.sending.fastpath import SendPath
from tandemmq.cluster.broker.sending.release import Release
from tandemmq.cluster.broker.settings.config import BrokerConfig, Role, packed_host
from tandemmq.cluster.broker.settings.startable import exposure
from tandemmq.cluster.broker.standing.classicmaster import ClassicMaster
from tandemmq.cluster.broker.standing.classicslave import ClassicSlave
from tandemmq.cluster.broker.standing.slavereads import SlaveReads
from tandemmq.cluster.broker.standing.standing import OnMaster, Standing
from tandemmq.cluster.broker.tables.cuts import Cuts, ends_below
from tandemmq.cluster.broker.tables.groups import LOCKS_OF, GroupTable
from tandemmq.cluster.broker.tables.lives import Lives
from tandemmq.cluster.broker.tables.metasync import Tables, TableSync
from tandemmq.cluster.broker.tables.offsets import OffsetTable
from tandemmq.cluster.broker.tables.queuestarts import QueueStarts
from tandemmq.cluster.broker.tables.resting import Resting
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.broker.tables.tablereaders import TableReaders
from tandemmq.cluster.broker.tables.topics import TopicTable
from tandemmq.cluster.broker.timers.door import TimerDoor
from tandemmq.cluster.broker.timers.schedule import timers_of
from tandemmq.cluster.broker.transactions.transactions import Transactions
from tandemmq.cluster.broker.watching.latencies import Latencies
from tandemmq.cluster.broker.watching.putsizes import PutSizes
from tandemmq.cluster.broker.watching.refusals import Refusals
from tandemmq.cluster.broker.watching.stats import BrokerStats
from tandemmq.cluster.process import Job, connections_affordable
from tandemmq.cluster.remoting.budget import OutputBudget
from tandemmq.cluster.remoting.channel import ChannelPool
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.cluster.remoting.connection import ChunkHandler, Connection, Handler
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.cluster.remoting.server import Listen, RemotingServer
from tandemmq.cluster.remoting.stream import ConnectionLimits
from tandemmq.storage import Clock, FlushMode, MessageStore, Owner

if TYPE_CHECKING:
    from tandemmq.cluster.broker.standing.membership import Membership

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
PORTS: Final = 2


class Broker:
    """Every part of a broker over one open store."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        rng: random.Random,
        membership: Membership | None = None,
        claim: Claim | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        """membership: with a controller, which replica of its group this is. claim: without one, to
        its name and id."""
        self.config = config
        self.encryption = encryption or Encryption(config.tls)
        self.store = store
        self.clock = clock
        self.rng = rng
        self.store_host = packed_host(config)
        self.output_budget = OutputBudget(config.unread_output_bytes_max)  # of both ports
        self.topics = TopicTable(config, config.config_path / "topics.json", clock)
        self.groups = GroupTable(config, config.config_path / "subscriptionGroup.json", clock)
        self.guarding = guarding_of(
            config,
            store,
            clock,
            lambda: self.groups.file.changed(""),  # slaves learn of users with the groups
            lambda code: code in self.table,
        )
        self.offsets = OffsetTable(config.config_path / "consumerOffset.json", clock)
        self.deletions = SavedFile(store.tombstones.path, store.tombstones.to_json)
        if store.tombstones.unsaved:
            self.deletions.changed()
        self.consumers = ConsumerMembers()
        self.producers = ProducerMembers(self.guarding.may_send)
        self.cuts = Cuts(
            config.config_path / "queueCuts.json",
            self.offsets,
            self.consumers,
            Lives(store, clock),
            clock,
        )
        store.tombstones.listen(self._deletions_changed, self._topic_deleted)
        self.locks = QueueLocks(
            config.config_path / "queueLocks.json",
            lambda group: self.groups.file.changed(LOCKS_OF + group),  # slaves learn of them, too
        )
        synchronous = config.storage.flush_mode is FlushMode.SYNC
        self.latencies = Latencies(config.mode)
        self.acks = Acks(
            clock,
            config.storage.sync_flush_timeout_ms,
            disk_too=synchronous,
            latencies=self.latencies,
        )
        self.dispatch = Dispatch(store)
        self.log_flush = LogFlush(store, self.acks, clock, self._flushed)
        self.standing = self._stand(membership, rng)
        self.release = Release(
            store, self.acks, self.standing,
            wake=self.dispatch.wake, flush=self.log_flush.hurry, later=_call_soon,
        )  # fmt: skip
        self.stats = BrokerStats(
            config.cluster,
            self.put_counts,
            self._put_total,
            clock.now_ms(),
            self.topics.is_system,
        )
        self.put_sizes = PutSizes(store, lambda: self.acks.waited)
        self.schedule = DelaySchedule(
            store,
            self.release.put,
            DelayLevels(config.storage.delay_levels),
            config.config_path / "delayOffset.json",
            clock,
        )
        self.timers = timers_of(
            config, store, self.release.put, self.schedule.time, clock, self.store_host
        )
        self.timer_door = TimerDoor(config, self.timers.pending, self.timers.now_ms, rng.random)
        self.resting = Resting(store, self.standing, self.log_flush.reach)
        self.offsets.file.rests = self.schedule.file.rests = self.resting
        self.retention = Retention(store)
        self.expiry = Expiry(
            self.consumers, self.producers, self.locks, clock, config.channel_expired_ms
        )
        self.table_sync = TableSync(
            lambda: self.standing.master,
            self._channels_to_peers(),
            Tables(
                self.topics,
                self.deletions,
                self.groups,
                self.offsets,
                self.schedule,
                self.forget_topic,
                self.stored_queues,
                store,
                lambda: (self.standing.broker_id, self.standing.incarnation),
                self.resting.holds,
                self.guarding,
                self.locks,
            ),
            clock,
            QueueStarts(self.topics, store),
        )
        self.table_readers = TableReaders(
            self.standing,
            {
                RequestCode.GET_ALL_TOPIC_CONFIG: self.topics.file,
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.groups.file,
            },
            clock,
        )
        # In this order: tables are a master's before it works by them, and a slave stops what only
        # masters do before it says what it is.
        self.standing.changes.watch(self.table_sync.role_changed)
        self.standing.changes.watch(self._role_changed)
        self.transactions = Transactions(
            config,
            store,
            self.release,
            self.topics,
            self.offsets,
            self.producers,
            self.standing,
            clock,
            store_host=self.store_host,
        )
        reigning: dict[str, Job] = {
            "schedule": self.schedule.run,
            "transactions": self.transactions.run,
        }
        if config.timer_wheel_enabled:
            reigning["timers"] = self.timers.deliver
        self.on_master = OnMaster(self.standing, reigning)
        self.registration = Registration(
            config, self.topics, self.standing, rng, self.encryption.to_peers
        )
        self.claim = claim
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
            self.cuts,
            clock,
            took=self.latencies.pull,
        )
        self.refusals = Refusals(clock.monotonic_ms)
        self.table: Mapping[int, Handler] = self.latencies.timing(
            self.refusals.noticing(table_of(self))
        )
        self.send_path = SendPath(
            config,
            store,
            Admission(config, store, self.topics, self.acks, self.standing, clock, self.guarding),
            self.release,
            store_host=self.store_host,
            rng=rng,
        )
        self.pull_path = PullPath(self.pulls, ConnectionLimits().output_high_bytes)
        self._chunk = self.guarding.in_front_of(self.send_path.process)
        self.listening = self.servers()
        self.standing.changes.watch(lambda role: self.pulls.held.release_all())
        standing = self.standing
        store.belong_to(
            Owner(standing.confirmed, self._arrived, standing.dispatch_broken, self._cut)
        )
        if not store.flags.queue_writable:  # recovery has met it already
            self.standing.dispatch_broken(store.flags.why())

    def _stand(self, membership: Membership | None, rng: random.Random) -> Standing:
        config, store, clock = self.config, self.store, self.clock
        if membership is not None:
            # Imported when wanted: what speaks with controllers would cost every start time and memory.
            from tandemmq.cluster.broker.standing.replicagroup import ControlledReplica

            return ControlledReplica(
                config,
                store,
                self.acks,
                clock,
                rng,
                membership=membership,
                wake=self.dispatch.wake,
                flush=self.log_flush.want,
                flushing_since_ms=lambda: self.log_flush.began_ms,
                encryption=self.encryption,
            )
        if config.role is Role.SLAVE:
            return ClassicSlave(
                config,
                store,
                clock,
                register_again=self._register_again,
                wake=self.dispatch.wake,
                flush=self.log_flush.want,
                brokers=self._channels_to_peers(),
                encryption=self.encryption,
            )
        return ClassicMaster(
            config,
            store,
            self.acks,
            clock,
            wake=self.dispatch.wake,
            names=self._channels_to_peers(),
            brokers=self._channels_to_peers(),
            encryption=self.encryption,
        )

    def _channels_to_peers(self) -> ChannelPool:
        """How name servers and the brokers of our group are asked."""
        return ChannelPool(tls=self.encryption.to_peers, sign=self.config.access.signer)

    def _role_changed(self, role: Role) -> None:
        self.cuts.following = self.locks.following = role is Role.SLAVE
        if role is Role.SLAVE:
            self.cuts.end()
            return
        self.topics.reign_began(self.standing.epoch)
        self.locks.reign_began(self.clock.monotonic_ms())
        if self.standing.may_have_lost:
            why = "an election that may have lost what readers had"
            self.lost(why, self.standing.agreed)

    def lost(self, why: str, agreed: int | None = None) -> None:
        """The log may be shorter than what readers were given: they are moved to its end (INV-42).

        agreed  up to where all of it was confirmed before: what lies above may be of this replica alone, and readers
                may have been given something else in its place
        """
        ends = ends_below(self.store.queues, self.store.end if agreed is None else agreed)
        self.cuts.lose(ends, why)

    def _register_again(self) -> None:
        self.registration.all_changed()

    def _arrived(self, arrivals: list[Arrival]) -> None:
        if self.topics.following:
            self.table_sync.noticed({arrival[0] for arrival in arrivals})
        self.pulls.held.arrived(arrivals)

    def _cut(self, log_end: int) -> None:
        """The log was cut: nothing that follows from it may speak for more than is left (INV-41)."""
        self.schedule.cut(log_end)
        self.timers.pending.cut(log_end)
        for file in (self.schedule.file, self.offsets.file):
            file.cut(log_end)
        # What comes behind the cut is another master's, which may know nothing of a deletion there.
        self.store.tombstones.log_ends_at(log_end)
        self.table_sync.save_deletions()
        if beyond := self.offsets.limit(self.store.max_offset):
            log.warning("progress beyond the cut taken back queues=%d end=%d", beyond, log_end)
        for file in (self.schedule.file, self.offsets.file):
            file.take_back()

    def _flushed(self, end: int) -> None:
        self.release.flushed(end)

    def load(self) -> None:
        """Read topics, groups, progress and users. Raises storage.CorruptFile, OSError, ConfigError."""
        self.topics.load()
        self.groups.load()
        self.offsets.load()
        self.schedule.load()
        self.guarding.load()
        if self.config.timer_wheel_enabled:
            self.timers.pending.load()
        self.table_sync.start(self.standing.role)
        self.cuts.load()
        self.locks.load(self.clock.monotonic_ms())
        self.cuts.following = self.locks.following = self.standing.role is Role.SLAVE
        if self.cuts.following:
            self.cuts.end()
        elif why := self._why_shorter():
            self.lost(why)

    def _why_shorter(self) -> str:
        """Why readers may have been given more than this log has; "" when they were not."""
        store = self.store
        found = store.recovered
        if found.dropped_bytes or store.checkpoint.confirmed > store.end:
            return "the log is shorter than it was"
        if not found.clean and not found.same_boot:
            return "it did not stop in order, and the machine may have gone down"
        if self.offsets.reach_beyond(store.max_offset):
            return "progress was saved that is beyond the log"
        return "the log is a former master's" if found.received else ""

    def save(self) -> None:
        """Write every table that is newer than its file. Raises OSError."""
        self.deletions.save()
        self.guarding.file.save()
        self.transactions.metrics.save()
        self.timers.pending.flush_now()
        for table in (self.topics, self.groups, self.offsets, self.schedule, self.cuts, self.locks):
            table.file.save()
            if table.file.unsaved:  # INV-41: some messages will come twice
                log.warning("left as it was, its log is not confirmed path=%s", table.file.path)

    def jobs(self) -> dict[str, Job]:
        """What runs from before the first request until after the last."""
        config, clock = self.config, self.clock
        loaded = (self.offsets, self.groups, self.topics, self.schedule, self.cuts, self.locks)
        tables = [self.deletions, self.guarding.file, *(each.file for each in loaded)]
        jobs: dict[str, Job] = {
            "dispatch": self.dispatch.run,
            "log_flush": self.log_flush.run,
            "ack_expiry": AckExpiry(self.acks, self.standing.overdue, clock).run,
            "queue_flush": QueueFlush(self.store, clock).run,
            "next_segment": NextSegment(self.store).run,
            "retention": self.retention.run,
            "held_pulls": self.pulls.held.run,
            "on_master": self.on_master.run,
            "table_sync": self.table_sync.run,
            "table_saving": TableSaving(tables, config.offset_flush_interval_ms).run,
            "expiry": self.expiry.run,
            "clock": self.schedule.time.run,
            "stats": StatsSampling(self.stats, self.put_sizes, clock).run,
            **self.standing.jobs(),
            **self.guarding.jobs(),
            **self.encryption.jobs(),
        }
        if config.timer_wheel_enabled:
            jobs["timers"] = self.timers.run
        if config.is_exposed:
            jobs["insecure"] = InsecureReminder(exposure(config), said=not config.insecure).run
        return jobs

    def servers(self) -> list[RemotingServer]:
        """The main port, and the fast port two below it."""
        fast = {
            code: handler for code, handler in self.table.items() if code not in NOT_ON_FAST_PORT
        }
        port = self.config.listen_port
        chunk = self._chunk
        if self.guarding.keeper is None:  # the short path of pulls asks nobody who they are
            chunk = in_turns(self.pull_path.process, chunk)
        return [
            self._server(port, self.table, chunk),
            self._server(port - 2, fast, self._chunk),
        ]

    def _server(
        self, port: int, table: Mapping[int, Handler], chunk: ChunkHandler
    ) -> RemotingServer:
        config = self.config
        listen = Listen(
            host=config.bind_host,
            port=port,
            tls=config.tls.mode,
            tls_files=config.tls.own_files,
            tls_test_mode=config.tls.test_mode,
        )
        server = RemotingServer(
            listen.limited(*connections_affordable(PORTS)),
            table,
            chunk=chunk,
            on_close=self.connection_closed,
            clock=self.clock,
            budget=self.output_budget,
            on_unsupported=self.refusals.unsupported,
            gate=self.guarding.keeper,
        )
        self.encryption.also(server.reload_tls)
        return server

    def connection_closed(self, connection: Connection) -> None:
        """Its client left every group; held pulls and answers look after themselves."""
        self.consumers.connection_closed(connection)
        self.producers.connection_closed(connection)

    def permission_changed(self) -> None:
        """brokerPermission changed: name servers must hear what may still be sent here."""
        self.topics.permission_changed()
        self.registration.all_changed()

    def forget_topic(self, topic: str, below: int) -> None:
        """The topic is deleted: everybody's progress in it, and its messages below a log offset. Raises OSError."""
        self.offsets.forget_topic(topic)
        self.stats.forget_topic(topic)
        self.put_sizes.forget(topic)
        self.store.burials.bury(topic, below)

    def _topic_deleted(self, topic: str, below: int) -> None:
        self.cuts.deleted(topic, below)
        self.pulls.held.deleted(topic)

    def _deletions_changed(self) -> None:
        self.deletions.changed()
        self.topics.file.changed("")  # slaves learn of them with the topics

    def stored_queues(self) -> dict[str, int]:
        """topic -> how many queues it has in the store."""
        counts: dict[str, int] = {}
        for queue in self.store.queues:
            counts[queue.topic] = max(queue.queue_id + 1, counts.get(queue.topic, 0))
        return counts

    def put_counts(self) -> Iterator[tuple[str, int]]:
        """topic -> messages ever put into it."""
        return self.store.put_counts()

    def _put_total(self) -> int:
        return self.store.stats.appended_messages

    @property
    def started_text(self) -> str:
        """The line that health checks look for."""
        config = self.config
        text = f"The broker[{config.name}, {config.address}] boot success. serializeType=JSON"
        return f"{text} and name server is {config.namesrv}" if config.namesrv else text


def _call_soon(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(call)
