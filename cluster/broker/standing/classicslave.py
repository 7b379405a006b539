"""The standing of a slave whose role its settings give: RocketMQ's classic replication. It never becomes a master.

Source: RocketMQ's DefaultHAClient.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from tandemmq.cluster.broker.duplicates import Requests
from tandemmq.cluster.broker.sending.acks import Overdue
from tandemmq.cluster.broker.settings.config import BrokerConfig, Role
from tandemmq.cluster.broker.standing import hastatus
from tandemmq.cluster.broker.standing.alarms import Alarms
from tandemmq.cluster.broker.standing.comparison import (
    AskingSlave,
)
from tandemmq.cluster.broker.standing.haport import dial_of
from tandemmq.cluster.broker.standing.hastatus import Following, Rate, SlaveLag
from tandemmq.cluster.broker.standing.standing import (
    Follows,
    RoleChanges,
    SendRefused,
    slave_refusal,
)
from tandemmq.cluster.process import Job
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.replication import SlaveCore
from tandemmq.replication.comparing import Finding, Verdict
from tandemmq.replication.feed import Feed
from tandemmq.replication.master import anybody
from tandemmq.replication.masterevents import Flushed
from tandemmq.replication.receiver import Receiver, parse_address
from tandemmq.replication.slave import Alarm, Append, DispatchBroken
from tandemmq.storage import Clock, FlushMode, MessageStore

log = logging.getLogger(__name__)

REVIEW_MS: Final = 100  # how late it is seen that a stream came or went
SEARCH_MS_MIN: Final = 500
SEARCH_MS_MAX: Final = 30_000
NO_LIMIT: Final = (1 << 63) - 1  # of what consumers may read
STREAM: Final = "stream"  # what a slave's alarms are about


class ClassicSlave:
    """A standing: follows the master that haMasterAddress or a name server names.

    It shows consumers what it has, takes no message, and goes on trying for as long as it lives.
    register_again  ask name servers again where the master is
    wake            have what is confirmed by now dispatched
    flush           have the log flushed up to an offset: in SYNC_FLUSH mode this slave reports only
                    what its disk has
    brokers         how the master is asked whether its log is ours: before anything is reported
    """

    epoch = incarnation = agreed = 0
    may_have_lost = False
    role = Role.SLAVE
    in_sync = None
    stock_slaves: frozenset[int] = frozenset()
    holds_answers = False

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        *,
        register_again: Callable[[], None],
        wake: Callable[[], None],
        flush: Callable[[int], None],
        brokers: Requests,
        encryption: Encryption | None = None,
    ) -> None:
        self.changes = RoleChanges()
        self.follows: Follows = anybody
        self.alarms = Alarms(clock)
        self.broker_id = config.broker_id
        self.master: str | None = None
        self._config = config
        self._store = store
        self._clock = clock
        self._register_again = register_again
        self._wake = wake
        self._flush = flush
        self._synchronous = config.storage.flush_mode is FlushMode.SYNC
        self._address = config.ha_master_address
        self._fixed = bool(config.ha_master_address)
        self._followed = ""
        self._rate = Rate()
        self.core = SlaveCore(
            config.rules, start=store.start, end=store.end, flushed=store.flushed, classic=True
        )
        self.feed = Feed(self.core, clock)
        self.feed.register(Alarm, self._alarm)
        self._brokers = brokers
        self._asking = AskingSlave(store, brokers, (config.cluster, config.name))
        self.receiver = Receiver(
            self.feed,
            store,
            clock,
            durable=self._synchronous,
            dial=dial_of(config, encryption or Encryption(config.tls)),
            compare=self._compare,
        )
        self.feed.register(Append, self._taken)  # behind the receiver, which appends

    # --- what others ask ---

    def refusal(self) -> SendRefused | None:
        return SendRefused(slave_refusal())

    def confirmed(self) -> int:
        return NO_LIMIT

    def overdue(self, end: int, waited_ms: int) -> Overdue | None:
        return Overdue(ResponseCode.SYSTEM_ERROR, 1, 0)  # a slave answers no send

    @property
    def unsucceeded(self) -> bool:
        return True

    def readable_elsewhere(self, offset: int) -> bool:
        return False

    def slaves(self) -> list[SlaveLag]:
        return []

    @property
    def following(self) -> Following | None:
        stats = self.receiver.stats
        return Following(
            self._followed or self._address, self.core.streaming, stats.connects, stats.last_problem
        )

    def ha_status(self) -> dict[str, Any]:
        assert self.following is not None
        return hastatus.of_slave(
            self.following, self.receiver.stats, self._store.end, self._rate.per_second
        )

    # --- one log or two ---

    async def _compare(self) -> Finding:
        known = self._config.ha_master_broker_address or self.master
        there = beside(self._followed)
        finding = await self._asking.compare(known or there)
        if finding.verdict is Verdict.UNKNOWN and not self._config.ha_master_broker_address:
            if known is None:
                why = f"{finding.why}; its address is a guess, say haMasterBrokerAddress"
                finding = Finding(Verdict.UNKNOWN, why)
            elif there != known:  # what it registers may be an address for clients alone
                other = await self._asking.compare(there)
                finding = finding if other.verdict is Verdict.UNKNOWN else other
        if finding.verdict is Verdict.SAME:
            self.alarms.clear(STREAM)
        return finding

    def _alarm(self, effect: Alarm) -> None:
        self.alarms.raise_(STREAM, effect.reason)

    def alarms_now(self) -> list[str]:
        return self.alarms.reasons

    def dispatch_broken(self, why: str) -> None:
        """What cannot be served is no copy: nothing more is reported."""
        self.feed.feed(DispatchBroken(f"not following, our log is broken: {why}"))

    # --- what happens to our log ---

    def ship(self) -> None:
        """Nobody follows a slave."""

    def lost(self) -> ResponseCode | None:
        return None

    def _taken(self, effect: Append) -> None:
        self._wake()
        if self._synchronous:
            self._flush(self._store.end)

    def flushed(self, end: int) -> None:
        self.feed.feed(Flushed(end))

    # --- whom to follow ---

    def heard(self, master_address: str | None, ha_address: str | None) -> None:
        """The master's address goes with the master; its HA address is kept: it may come back."""
        self.master = master_address
        if self._fixed or ha_address is None or ha_address == self._address:
            return
        try:
            parse_address(ha_address)
        except ValueError as problem:
            log.warning("name server names no address to follow why=%s", problem)
            return
        log.info("master heard of ha_address=%s before=%s", ha_address, self._address)
        self._address = ha_address
        self.follow()

    def follow(self) -> None:
        """Follow whom we heard of last. A stream that is up is not given up for it."""
        if self._address and self._address != self._followed and not self.core.streaming:
            self._followed = self._address
            self.receiver.follow(self._address)

    def jobs(self) -> Mapping[str, Job]:
        return {
            "replication": self.feed.run,
            "master_stream": self._follow,
            "master_search": self._search,
        }

    async def _follow(self) -> None:
        try:
            await self.receiver.run()
        finally:
            await self._brokers.close()

    async def hand_over(self) -> None:
        """A slave has nothing to hand over."""

    def table(self) -> dict[int, Handler]:
        return {}

    def runtime(self) -> dict[str, str]:
        return {}

    def closing(self) -> None:
        """Half a message at the end of the log is cut: so this stop is a clean one, and after the
        next start all of that message is asked for."""
        store = self._store
        while store.dispatch():
            pass
        reached = store.dispatched
        if store.flags.sound and not store.starved and reached < store.confirmed:
            log.info("half a message cut from=%d to=%d", reached, store.end)
            store.truncate(reached)

    async def _search(self) -> None:
        """While no master is there, or only its stream is, ask for it; with ever longer pauses, for
        an answer costs a registration."""
        wait_ms = SEARCH_MS_MIN
        since_ms = 0
        had_stream = False
        while True:
            self.follow()
            await asyncio.sleep(REVIEW_MS / 1000)
            now_ms = self._clock.monotonic_ms()
            self._rate.note(self.receiver.stats.received_bytes, now_ms)
            stream = self.core.streaming or self._fixed
            if stream and (self.master is not None or not had_stream):
                wait_ms, since_ms = SEARCH_MS_MIN, now_ms
            elif now_ms - since_ms >= wait_ms:
                since_ms, wait_ms = now_ms, min(wait_ms * 2, SEARCH_MS_MAX)
                self._register_again()
            had_stream = stream


def beside(ha_address: str) -> str | None:
    """Where a master answers clients that no name server knows: usually one port below."""
    try:
        host, port = parse_address(ha_address)
    except ValueError:
        return None
    return f"[{host}]:{port - 1}" if ":" in host else f"{host}:{port - 1}"
