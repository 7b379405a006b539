"""The standing of a master whose role its settings give: RocketMQ's classic replication.

Nobody fails over here. An ASYNC_MASTER acknowledges what it has itself; a SYNC_MASTER waits for a
slave, as RocketMQ 4 documents it. Where no slave is there to be waited for, it stores the
message and says so: SLAVE_NOT_AVAILABLE.
Source: RocketMQ's DefaultHAService, GroupTransferService.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from tandemmq.cluster.broker.duplicates import Requests
from tandemmq.cluster.broker.errors import NotYetServing, TooFewReplicas
from tandemmq.cluster.broker.sending.acks import DISK_UNKNOWN, Acks, Overdue
from tandemmq.cluster.broker.settings.config import BrokerConfig, Role
from tandemmq.cluster.broker.standing import hastatus
from tandemmq.cluster.broker.standing.alarms import Alarms
from tandemmq.cluster.broker.standing.comparison import (
    ComparingMaster,
    ExaminingMaster,
)
from tandemmq.cluster.broker.standing.haport import door_of, encrypted
from tandemmq.cluster.broker.standing.hastatus import Following, Passages, SlaveLag
from tandemmq.cluster.broker.standing.standing import (
    MASTER_ID,
    Follows,
    RoleChanges,
    SendRefused,
)
from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.process import Job
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.replication import MasterCore, Mode, StreamRules
from tandemmq.replication.comparing import Finding, Verdict
from tandemmq.replication.feed import Feed
from tandemmq.replication.master import NEVER, Slave, anybody
from tandemmq.replication.masterevents import Acknowledge, Appended, Flushed, StreamFrom
from tandemmq.replication.sender import Sender, SlaveStatus, open_listener
from tandemmq.storage import Clock, FlushMode, MessageStore

log = logging.getLogger(__name__)

REVIEW_MS: Final = 100  # how late a slave may be found to be late


class ClassicMaster:
    """A standing: ships the log to whoever connects, and knows what may be acknowledged.

    A slave is waited for from its first report on. One that let a sender wait for slaveTimeout is
    not waited for again before it has caught up, so a frozen slave holds up senders once. A slave
    that is further behind than haMaxGapNotInSync is not waited for either.
    A slave counts once its log was held against ours (INV-36, comparison.py); one that cannot be is
    refused, and looked at by a person.
    wake      have what is confirmed by now dispatched
    names, brokers  how name servers are asked where slaves are, and slaves what they hold
    unproven  another broker may have our name and id: no send is taken
    """

    broker_id = MASTER_ID
    epoch = incarnation = agreed = 0
    may_have_lost = False
    master = None
    in_sync = None
    stock_slaves: frozenset[int] = frozenset()

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        acks: Acks,
        clock: Clock,
        *,
        wake: Callable[[], None],
        names: Requests,
        brokers: Requests,
        encryption: Encryption | None = None,
    ) -> None:
        self._encryption = encryption or Encryption(config.tls)
        self.changes = RoleChanges()
        self.follows: Follows = anybody
        self.alarms = Alarms(clock)
        self.unproven = False
        self.role = config.role
        self._config = config
        self._store = store
        self._acks = acks
        self._clock = clock
        self._wake = wake
        flushed = config.storage.flush_mode is FlushMode.SYNC
        mode = Mode.of(synchronous=config.role is Role.SYNC_MASTER, flushed=flushed)
        self.core = MasterCore(
            MASTER_ID, mode, rules_of(config), controlled=False,
            start=store.start, end=store.end, flushed=store.flushed,
        )  # fmt: skip
        self.holds_answers = mode is not Mode.A0
        self.feed = Feed(self.core, clock)
        self._pools = (names, brokers)
        self._examiner = ExaminingMaster(config, store, names, brokers, self._sent_to)
        self.sender = Sender(
            self.feed, store.log, clock, segment_bytes=config.storage.segment_bytes,
            examine=self._examine,
        )  # fmt: skip
        self.sender.refused.append(self._refused)
        self.sender.round_trip = acks.latencies.round_trip
        self.feed.register(StreamFrom, self._follows)
        assert self.sender.gate is not None
        self._gate = self.sender.gate
        self._comparing = ComparingMaster(store, self._gate.give, (config.cluster, config.name))
        self.feed.register(Acknowledge, self._acknowledge)
        self.feed.failed.append(self._give_up)
        self._late: dict[int, int] = {}  # connection -> since when it is not waited for
        self._slaves_wanted = self.core.rules.copies_wanted - 1
        self._confirmed = 0
        self._unmoved: tuple[int, int] | None = None  # our end at a time; not acknowledged since
        self._passages = Passages()
        self._serving = False
        acks.timeout_ms = min(self._timeouts())

    def _timeouts(self) -> list[int]:
        mode = self.core.mode
        found = [self._config.storage.sync_flush_timeout_ms]
        if not mode.waits_for_disk:
            found.clear()
        if mode.waits_for_slaves or not found:
            found.append(self.core.rules.slave_timeout_ms)
        return found

    # --- what others ask ---

    def refusal(self) -> SendRefused | None:
        """A group that wants several copies may rather refuse than store one: minInSyncReplicas."""
        if self.unproven:
            why = "broker unable to service, until its name is known to be its own"
            return SendRefused(NotYetServing(why), wait_ms=None)
        rules = self.core.rules
        if rules.copies_min < 2 or not self.core.mode.waits_for_slaves:
            return None
        available = self._available()
        if 1 + available >= rules.copies_min:
            return None
        return SendRefused(TooFewReplicas("in-sync replicas not enough"))

    def confirmed(self) -> int:
        """What consumers see was acknowledged, or is known to be waited for in vain.

        So nobody reads what only this master holds while a slave is about to get it.
        """
        if not self.core.mode.waits_for_slaves or not self._serving:
            return self._store.end
        self._confirmed = max(self._confirmed, self._safe())
        return self._confirmed

    def _safe(self) -> int:
        if self.lost() is None:
            return self.core.acknowledged
        return self._store.flushed if self.core.mode.waits_for_disk else self._store.end

    def overdue(self, end: int, waited_ms: int) -> Overdue | None:
        """A slave that is late counts more than a disk that is: as in RocketMQ, its code wins."""
        mode, rules = self.core.mode, self.core.rules
        copies, durable = self.core.copies(end)
        if mode.waits_for_slaves and self._holding(end) < self._slaves_wanted:
            if waited_ms < rules.slave_timeout_ms:
                return None
            self._mark_late(end)
            return Overdue(ResponseCode.FLUSH_SLAVE_TIMEOUT, copies, durable)
        if waited_ms < self._config.storage.sync_flush_timeout_ms:
            return None
        return Overdue(ResponseCode.FLUSH_DISK_TIMEOUT, copies, durable)

    @property
    def unsucceeded(self) -> bool:
        return True

    def readable_elsewhere(self, offset: int) -> bool:
        return any(slave.received >= offset for slave in self.core.slaves.values())

    def slaves(self) -> list[SlaveLag]:
        """Every connected slave, in the order they came."""
        end, now_ms = self._store.end, self._clock.monotonic_ms()
        return [
            hastatus.lag_of(each, end, self._passages, now_ms, in_sync=self._near(each))
            for each in self.sender.status()
        ]

    @property
    def following(self) -> Following | None:
        return None

    def ha_status(self) -> dict[str, Any]:
        slaves = self.slaves()
        in_sync = sum(each.in_sync for each in slaves)
        return hastatus.of_master(self._store.end, slaves, in_sync)

    def _near(self, status: SlaveStatus) -> bool:
        behind = self._store.end - status.acked
        return status.counted and status.acked != NEVER and behind < self.core.rules.gap_bytes_max

    # --- who is let in ---

    def table(self) -> dict[int, Handler]:
        """Our slaves have their logs compared before they report anything."""
        return {RequestCode.COMPARE_LOGS: self._comparing.handle}

    def _sent_to(self, host: str, end: int) -> bool:
        return self._gate.sent_to(host, end)

    async def _examine(self, host: str, end: int) -> Finding:
        finding = await self._examiner.examine(host, end)
        if finding.verdict is not Verdict.SAME:
            self._refused(f"{host}:0", finding.why)
        return finding

    def _refused(self, peer: str, why: str) -> None:
        host = peer.rpartition(":")[0]
        self.alarms.raise_(host, f"the slave at {host} counts for nothing: {why}")

    def _follows(self, effect: StreamFrom) -> None:
        peer = self.sender.peer_of(effect.connection)
        if peer is not None and self.core.counts(effect.connection):
            self.alarms.clear(peer.rpartition(":")[0])

    def alarms_now(self) -> list[str]:
        return self.alarms.reasons

    def dispatch_broken(self, why: str) -> None:
        """The store refuses sends from here on; what slaves have of it is as it was."""

    # --- slaves that are waited for ---

    def lost(self) -> ResponseCode | None:
        """While fewer slaves can be waited for than are wanted."""
        if not self.core.mode.waits_for_slaves or self._available() >= self._slaves_wanted:
            return None
        return ResponseCode.SLAVE_NOT_AVAILABLE

    def _available(self) -> int:
        core, available = self.core, 0
        near = self._store.end - core.rules.gap_bytes_max
        for slave in core.slaves.values():
            if near < slave.received != NEVER and not (self._late and self._is_late(slave)):
                available += 1
        return available

    def _is_late(self, slave: Slave) -> bool:
        since_ms = self._late.get(slave.connection)
        if since_ms is None:
            return False
        if slave.caught_up_ms < since_ms:
            return True
        del self._late[slave.connection]
        log.info("slave has caught up, it is waited for again connection=%d", slave.connection)
        return False

    def _holding(self, end: int) -> int:
        return sum(self._position(slave) >= end for slave in self.core.slaves.values())

    def _position(self, slave: Slave) -> int:
        return slave.flushed if self.core.mode.waits_for_disk else slave.received

    def _mark_late(self, end: int) -> None:
        now_ms = self._clock.monotonic_ms()
        for slave in self.core.slaves.values():
            if self._position(slave) < end and slave.connection not in self._late:
                self._late[slave.connection] = now_ms
                log.warning(
                    "slave is late, it is not waited for until it has caught up "
                    "connection=%d behind=%d",
                    slave.connection, self._store.end - slave.received,
                )  # fmt: skip

    def review(self) -> None:
        """Find slaves that are late although no sender waits, and show consumers what follows."""
        now_ms, end = self._clock.monotonic_ms(), self._store.end
        self._passages.note(end, now_ms)
        self._note()
        if not self.core.mode.waits_for_slaves:
            return
        for gone in self._late.keys() - {each.connection for each in self.core.slaves.values()}:
            del self._late[gone]
        acknowledged = self.core.acknowledged
        if acknowledged >= end:
            self._unmoved = None
        elif self._unmoved is None or acknowledged >= self._unmoved[0]:
            self._unmoved = (end, now_ms)
        elif now_ms - self._unmoved[1] >= self.core.rules.slave_timeout_ms:
            self._mark_late(self._unmoved[0])
            self._unmoved = None
        if self.confirmed() > self._store.dispatched:
            self._wake()

    # --- what happens to our log ---

    def ship(self) -> None:
        if self.holds_answers or self.core.followed:
            self.sender.ship_now()

    def _note(self) -> None:
        """Let the core know of all of our log. A sender tells it, but not where a slave's report will."""
        if self._store.end > self.core.end:
            self.feed.feed(Appended(self._store.end))

    def flushed(self, end: int) -> None:
        if not self.core.mode.waits_for_disk:
            return
        self._note()
        self.feed.feed(Flushed(end))

    def _acknowledge(self, effect: Acknowledge) -> None:
        self._acks.reached(effect.end, effect.copies, effect.durable)
        if self.core.mode.waits_for_slaves:
            self._wake()

    def _give_up(self) -> None:
        """Something final happened: nothing more is acknowledged."""
        self._acks.give_up(DISK_UNKNOWN)

    def heard(self, master_address: str | None, ha_address: str | None) -> None:
        """Name servers tell a master nothing."""

    async def hand_over(self) -> None:
        """Nobody takes over from a master of classic replication."""

    def runtime(self) -> dict[str, str]:
        return {}

    def closing(self) -> None:
        """Nothing is left to be done."""

    # --- serving ---

    def jobs(self) -> Mapping[str, Job]:
        return {
            "replication": self.feed.run,
            "slaves": self._serve_slaves,
            "slave_review": self._review,
        }

    async def _serve_slaves(self) -> None:
        """Raises ConfigError when the HA port cannot be had."""
        config = self._config
        try:
            listener = open_listener(config.bind_host, config.ha_listen_port)
        except OSError as problem:
            raise ConfigError(
                "haListenPort", str(config.ha_listen_port),
                f"cannot listen there on {config.bind_host}: {problem}",
            ) from problem  # fmt: skip
        with listener:
            log.info("serving slaves address=%s mode=%s", config.ha_address, self.core.mode.value)
            try:
                tls = await encrypted(self._encryption)
                await self.sender.run(listener, door_of(config), tls)
            finally:
                for pool in self._pools:
                    await pool.close()

    async def _review(self) -> None:
        self._serving = True
        try:
            while True:
                self.review()
                await asyncio.sleep(REVIEW_MS / 1000)
        finally:
            self._serving = False  # the store closes with everything dispatched


def rules_of(config: BrokerConfig) -> StreamRules:
    """A SYNC_MASTER waits for a slave also where inSyncReplicas, 1 by default, does not ask for it:
    who wants one copy says ASYNC_MASTER."""
    rules = config.rules
    if config.role is not Role.SYNC_MASTER:
        return rules
    return msgspec.structs.replace(rules, copies_wanted=max(2, rules.copies_wanted))
