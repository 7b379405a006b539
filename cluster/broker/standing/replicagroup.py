"""The standing of one replica of a group that a controller watches over: roles, epochs and leases at work.

Shell of replication.replica.ReplicaCore: what it decides is performed here, on the store and towards clients, name
servers, the controller and the other replicas; each of those tells it what happened. What and why: decision 0004.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import crc32c  # noqa: F401 - of the stream's frames: loaded now, no slave waits for it
import msgspec

from tandemmq.cluster.broker.errors import NotMaster, TooFewReplicas
from tandemmq.cluster.broker.sending.acks import DISK_UNKNOWN, FATE_UNKNOWN, Acks, Overdue
from tandemmq.cluster.broker.settings.config import BrokerConfig, Role
from tandemmq.cluster.broker.settings.proofs import ha_secret
from tandemmq.cluster.broker.standing import hastatus, replicalog
from tandemmq.cluster.broker.standing.controllerlink import ControllerLink
from tandemmq.cluster.broker.standing.handover import HandOver
from tandemmq.cluster.broker.standing.haport import dial_of, door_of, encrypted
from tandemmq.cluster.broker.standing.hastatus import Following, Passages, Rate, SlaveLag
from tandemmq.cluster.broker.standing.membership import Membership
from tandemmq.cluster.broker.standing.standing import MASTER_ID, Follows, RoleChanges, SendRefused
from tandemmq.cluster.logs import once_per
from tandemmq.cluster.process import Job
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection, Handler
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.replication import (
    EpochHistory,
    GroupView,
    MasterCore,
    Refusal,
    ReplicaCore,
    ReplicaRole,
    SlaveCore,
)
from tandemmq.replication import masterevents as m
from tandemmq.replication import replica as r
from tandemmq.replication import slave as s
from tandemmq.replication.feed import Feed
from tandemmq.replication.keeping import LogKeeping
from tandemmq.replication.master import MasterState, anybody
from tandemmq.replication.party import Party
from tandemmq.replication.receiver import Receiver
from tandemmq.replication.registered import KnownReplica
from tandemmq.replication.sender import Sender, open_listener
from tandemmq.storage import Clock, FlushMode, MessageStore, Problem, fastjson, setaside

log = logging.getLogger(__name__)

ALARMS_KEPT: Final = 16
ALARM_AGAIN_S: Final = 60
REVIEW_MS: Final = 100
SWITCH_PAUSE_MS: Final = 1_000  # sends wait at most so long for a planned switchover
#: so long after a reign, refused senders wait a little before they are told
GENTLE_MS: Final = 1_000
GENTLE_PAUSE_MS: Final = 50  # in which their routes become those of the new master


class ControlledReplica:
    """A standing: what this replica is right now. See standing.Standing.

    membership  who we are, and what is known of our log
    wake        have what is confirmed by now dispatched
    flush       have the log flushed up to an offset: with SYNC_FLUSH somebody waits for our disk
    flushing_since_ms  by the clock, of the flush that runs now; None: none does
    """

    holds_answers = True  # in every mode: the lease is looked at when acknowledging, and not before

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        acks: Acks,
        clock: Clock,
        rng: random.Random,
        *,
        membership: Membership,
        wake: Callable[[], None],
        flush: Callable[[int], None],
        flushing_since_ms: Callable[[], int | None] = lambda: None,
        encryption: Encryption | None = None,
    ) -> None:
        self._encryption = encryption or Encryption(config.tls)
        self.changes = RoleChanges()
        self.follows: Follows = anybody
        self.alarms: deque[str] = deque(maxlen=ALARMS_KEPT)
        self._alarm_again = once_per(ALARM_AGAIN_S)
        self._config = config
        self._store = store
        self._acks = acks
        acks.timeout_ms = min(self._timeouts(config))
        self._clock = clock
        self._suspect = membership.suspect
        self._wake = wake
        self._flush = flush
        self._flushing_since_ms = flushing_since_ms
        self._synchronous = config.storage.flush_mode is FlushMode.SYNC
        self._open = False  # for puts
        self.agreed = 0  # so far our log was confirmed before our reign
        self._set_aside = setaside.listed(Path(config.storage.root))
        self._passages = Passages()
        self._rate = Rate()
        self._told_start = store.start
        self._held: dict[int, int] = {}  # what each slave had when we last looked
        self._told: r.RoleNotified | None = None  # the controller's last word
        self._registered: tuple[KnownReplica, ...] = ()  # nobody, until the controller says who
        self._announced = ("", "")  # a master's address, and where its slaves connect
        self._switched = True  # no planned switchover is under way
        self._gentle_until_ms = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        identity = membership.identity
        incarnation = membership.incarnation
        self.core = ReplicaCore(
            replica=identity.replica,
            incarnation=incarnation,
            mode=config.mode,
            times=config.lease,
            rules=config.rules,
            slave=self._slave_core(membership.history),
            suspect=membership.suspect.there,
            make_master=self._make_master,
        )
        store.hide_unconfirmed(self.core.slave.confirmed)
        store.flags.set(Problem.FENCED)  # no put gets by who forgets to ask for refusal()
        self.feed = Feed(self.core, clock)
        self.link = ControllerLink(
            config, clock, rng, replica=identity.replica, incarnation=incarnation,
            lineage=membership.lineage, feed=self._heard_of_group, registered=self._heard_of_replicas,
            space=lambda: not store.flags.full, tls=self._encryption.to_peers,
        )  # fmt: skip
        rules = config.rules
        self._hand_over = HandOver(self.link, store.flags, rules.copies_min, rules.disk_stall_ms)
        party = Party(
            config.cluster, config.name, identity.replica, incarnation, ha_secret(config),
            config.ha_extension, config.ha_compression,
        )  # fmt: skip
        self._sender = Sender(
            self.feed, store.log, clock, segment_bytes=config.storage.segment_bytes, party=party
        )
        self._sender.round_trip = acks.latencies.round_trip
        dial = dial_of(config, self._encryption)
        self._receiver = Receiver(self.feed, store, clock, party=party, dial=dial)
        LogKeeping(self.feed, store, membership.epochs)
        self._wire()

    @staticmethod
    def _timeouts(config: BrokerConfig) -> list[int]:
        """After which overdue() may have something to say."""
        found = [config.rules.slave_timeout_ms]
        if config.mode.waits_for_disk:
            found.append(config.storage.sync_flush_timeout_ms)
        return found

    def _make_master(self, **fields: Any) -> MasterCore:
        return MasterCore(**fields, follows=lambda replica, life: self.follows(replica, life))  # noqa: PLW0108 - set later

    def _slave_core(self, history: EpochHistory) -> SlaveCore:
        store = self._store
        end = store.end
        # A store from before epochs is taken on trust as far as it goes: it has no reign to compare.
        confirmed = end
        if history.entries:
            # What queues held on the disk had been confirmed, should the checkpoint be damaged.
            known = max(store.checkpoint.confirmed, store.recovered.derived_from)
            confirmed = min(max(known, store.start), end)
        return SlaveCore(
            rules=self._config.rules,
            history=history,
            start=store.start,
            end=end,
            flushed=store.flushed,
            confirmed=confirmed,
            confirmed_epoch=history.last,
            durable=self._synchronous,
        )

    def _wire(self) -> None:
        feed, link = self.feed, self.link
        feed.register(r.Register, link.register)
        feed.register(r.ForgetSuspicion, self._forget_suspicion)
        feed.register(r.AskForElection, lambda _: link.ask_for_election())
        feed.register(r.SendHeartbeat, self._beat)
        feed.register(r.Prepare, self._prepare)
        feed.register(r.OpenWrites, self._open_writes)
        feed.register(r.CloseWrites, self._close_writes)
        feed.register(r.RoleChanged, self._role_changed)
        feed.register(m.Confirmed, lambda _: self._wake())
        feed.register(m.Acknowledge, self._acknowledge)
        feed.register(m.Propose, link.propose)
        feed.register(m.SetChanged, self._set_changed)
        feed.register(m.Superseded, self._superseded)
        feed.register(m.Resigned, self._resigned)
        feed.register(m.SwitchAbandoned, self._switch_abandoned)
        feed.register(s.Append, self._taken)  # behind the receiver, which appends
        feed.register(s.ReportProgress, self._streaming)
        feed.register(s.Alarm, self._alarm)
        feed.failed.append(self._failed)
        feed.resumed.append(self._sender.wake)
        feed.register(s.SetAside, self._count_set_aside)
        missing = feed.unhandled()
        assert not missing, missing

    # --- what runs ---

    def jobs(self) -> Mapping[str, Job]:
        return {
            "replica": self._run,
            "controller_link": self.link.run,
            "slaves": self._serve_slaves,
            "master_stream": self._receiver.run,
            "replica_review": self._review,
        }

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.feed.run()

    async def _serve_slaves(self) -> None:
        config = self._config
        with open_listener(config.bind_host, config.ha_listen_port) as listener:
            await self._sender.run(listener, door_of(config), await encrypted(self._encryption))

    async def hand_over(self) -> None:
        """This process is to stop: have a member of the set take over first, if one is near."""
        await self._hand_over.before_stop(self._near())

    def _near(self) -> list[int]:
        """Connected members of the set besides this master, who has most of the log first."""
        master = self.core.master
        if master is None or not self._open:
            return []
        near = [slave for replica, slave in master.slaves.items() if replica in master.granted]
        return [slave.replica for slave in sorted(near, key=lambda slave: -slave.received)]

    def closing(self) -> None:
        """Note that nothing can be lost by whatever happens before the next start. Raises FlushFailed."""
        if self._store.flush_log() == self._store.end:
            self._suspect.stopped()

    async def _review(self) -> None:
        """What operators ask for needs a look now and then."""
        while True:
            self._unfence()
            now_ms = self._clock.monotonic_ms()
            start = self._store.start
            if start > self._told_start:
                self._told_start = start
                self.feed.feed(m.Trimmed(start))
            self._passages.note(self._store.end, now_ms)
            self._rate.note(self._receiver.stats.appended_bytes, now_ms)
            if self._open and not self._is_switching:
                self._hand_over.if_full(now_ms, self._near())
                began_ms = self._flushing_since_ms() if self._synchronous else None
                if self._hand_over.if_stalled(now_ms, began_ms, self._near()):
                    self.feed.feed(m.DiskStalled())
            if self.core.master is not None:
                for replica, slave in self.core.master.slaves.items():
                    self._held[replica] = max(slave.received, 0)
            await asyncio.sleep(REVIEW_MS / 1000)

    # --- what others ask ---

    @property
    def role(self) -> Role:
        if not self._open:
            return Role.SLAVE
        return Role.SYNC_MASTER if self._config.waits_for_slaves else Role.ASYNC_MASTER

    @property
    def broker_id(self) -> int:
        return MASTER_ID if self._open else self.core.replica

    @property
    def epoch(self) -> int:
        return self.core.epoch

    @property
    def incarnation(self) -> int:
        return self.core.incarnation

    @property
    def master(self) -> str | None:
        if self.core.role is not ReplicaRole.FOLLOWING:
            return None
        return self.core.view.address or None

    @property
    def may_have_lost(self) -> bool:
        """Whether our reign began without something that readers may have been given before it."""
        return self.core.may_have_lost

    @property
    def unsucceeded(self) -> bool:
        master = self.core.master
        return master is not None and master.unsucceeded(self._clock.monotonic_ms())

    def readable_elsewhere(self, offset: int) -> bool:
        master = self.core.master
        return master is not None and any(
            slave.received >= offset for slave in master.slaves.values()
        )

    @property
    def in_sync(self) -> frozenset[int]:
        master = self.core.master
        return frozenset() if master is None else frozenset(master.union) - {self.core.replica}

    @property
    def stock_slaves(self) -> frozenset[int]:
        slaves = self.core.master.slaves.values() if self.core.master is not None else ()
        return frozenset(each.replica for each in slaves if not each.incarnation)

    def refusal(self) -> SendRefused | None:
        if self.feed.failure is not None:
            return SendRefused(NotMaster("this broker is about to stop"))
        now_ms = self._clock.monotonic_ms()
        why = self.core.refusal(now_ms)
        if why is None and self._open:
            return None
        wait_ms = 0
        if self._is_switching:
            wait_ms = SWITCH_PAUSE_MS
        elif now_ms < self._gentle_until_ms:
            wait_ms = GENTLE_PAUSE_MS
        if why is Refusal.NOT_ENOUGH_COPIES:
            return SendRefused(TooFewReplicas(why.value), wait_ms)
        return SendRefused(NotMaster((why or Refusal.CLOSED).value), wait_ms)

    def confirmed(self) -> int:
        return self.core.confirmed

    def heard(self, master_address: str | None, ha_address: str | None) -> None:
        """What a name server says of our master. Who that is only the controller decides; but a stock controller does
        not say where a master's slaves connect, so that is taken from here."""
        if master_address and ha_address and (master_address, ha_address) != self._announced:
            self._announced = (master_address, ha_address)
            if self._told is not None and self._lacks_address(self._told.view):
                self._heard_of_group(self._told)

    def overdue(self, end: int, waited_ms: int) -> Overdue | None:
        """Slaves are given slaveTimeout, the disk alone syncFlushTimeout.

        The code says who lacks it: our disk, or a slave. The core is asked, which hears of a flush one
        turn later than the disk has it; in that turn the disk is named and not a slave.
        """
        mode, rules = self.core.mode, self.core.rules
        master = self.core.master
        copies, durable = master.copies(end) if master is not None else (1, 0)
        if mode.waits_for_disk and (master is None or master.flushed < end):
            if waited_ms < self._config.storage.sync_flush_timeout_ms:
                return None
            return Overdue(ResponseCode.FLUSH_DISK_TIMEOUT, copies, durable)
        if waited_ms < rules.slave_timeout_ms:
            return None
        return Overdue(ResponseCode.FLUSH_SLAVE_TIMEOUT, copies, durable)

    # --- planned switchovers ---

    def _heard_of_group(self, event: r.Event) -> None:
        """What the controller says."""
        match event:
            case r.SwitchAsked():
                self._begin_switch(event)
            case r.Registered(view) | r.RoleNotified(view) | r.HeartbeatAnswered(view=view):
                told = event if isinstance(event, r.RoleNotified) else r.RoleNotified(view)
                self._told = told
                self.feed.feed(msgspec.structs.replace(event, view=self._completed(view)))
            case _:
                self.feed.feed(event)

    def _heard_of_replicas(self, replicas: tuple[KnownReplica, ...]) -> None:
        """From a controller that does not say it with the rest of its view."""
        self._registered = replicas
        if self._told is not None:
            self._heard_of_group(self._told)

    def _completed(self, view: GroupView) -> GroupView:
        """With the address that name servers announce for the master's log, if it has none, and
        with the replicas that we heard of last. INV-44: a master always knows them, be it nobody."""
        if view.registered is not None:
            self._registered = view.registered
            if not self._config.ha_extension:  # then nobody says which process it is
                self._registered = tuple(
                    msgspec.structs.replace(each, incarnation=0) for each in view.registered
                )
        view = dataclasses.replace(view, registered=self._registered)
        if self._lacks_address(view):
            return dataclasses.replace(view, ha_address=self._announced[1])
        return view

    def _lacks_address(self, view: GroupView) -> bool:
        return not view.ha_address and view.address == self._announced[0]

    def _begin_switch(self, event: r.SwitchAsked) -> None:
        """Take no more messages and then, with everything in the log that was taken, hand over.

        What a connection has staged is in the log one turn later; were the core asked before, it
        would hand over without it, and its sender would be told to send again what is stored.
        """
        if self._open and self._gathering:
            asyncio.get_running_loop().call_soon(self._begin_switch, event)
            return
        if self._open:
            self._store.flags.set(Problem.FENCED)  # delayed messages stay where they are
        self._switched = False
        self.ship()
        self.feed.feed(event)
        self._unfence()

    def _unfence(self) -> None:
        """Where no switchover is under way, because the core would not have it or gave it up."""
        if self._open and not self._is_switching and not self.feed.busy:
            self._store.flags.clear(Problem.FENCED)

    @property
    def _gathering(self) -> bool:
        """Whether a connection has staged what becomes part of the log in the loop's next turn."""
        return self._store.staged

    # --- sends that wait ---

    @property
    def _is_switching(self) -> bool:
        """Whether a planned switchover is under way: it goes on until we know whom to follow."""
        master = self.core.master
        return master is not None and master.state in (MasterState.DRAINING, MasterState.RESIGNED)

    # --- what happens to our log ---

    def ship(self) -> None:
        """Tell the core, too, how far the log has grown: once slaves have been sent it, for the core may let answers
        go right then. So not even an asynchronous master that is killed takes what it has acknowledged with it, as
        long as its slaves keep up."""
        master = self.core.master
        if master is not None and self._store.end > master.end:
            self._sender.ship_now()

    def lost(self) -> ResponseCode | None:
        return None  # the sync-state-set shrinks, or it is waited for

    def _taken(self, effect: s.Append) -> None:
        self._wake()
        if self._synchronous:
            self._flush(self._store.end)  # the master waits for what our disk has

    def flushed(self, end: int) -> None:
        self.ship()
        self.feed.feed(m.Flushed(end))

    # --- effects ---

    async def _forget_suspicion(self, effect: r.ForgetSuspicion) -> None:
        await asyncio.to_thread(self._suspect.clear)

    async def _prepare(self, effect: r.Prepare) -> None:
        self.agreed = self._store.confirmed
        end = await replicalog.make_ready(self._store)
        self.feed.feed(r.Prepared(effect.epoch, end, self._store.flushed))

    async def _open_writes(self, effect: r.OpenWrites) -> None:
        # All that we hold is confirmed now: by what the log alone knows, others go in tell().
        await replicalog.dispatch_confirmed(self._store)
        self._store.flags.clear(Problem.FENCED)
        self._acks.epoch = effect.epoch
        self._held.clear()
        self._hand_over.succeeded.clear()
        self._open = True
        self._gentle_until_ms = 0
        self._switched = True
        self.changes.settle()
        await self.changes.tell(self.role)

    async def _close_writes(self, effect: r.CloseWrites) -> None:
        self._open = False
        self._store.flags.set(Problem.FENCED)
        self._hand_over.deposed(self._clock.monotonic_ms())
        self._gentle_until_ms = self._clock.monotonic_ms() + GENTLE_MS
        while self._gathering:  # noqa: ASYNC110 - one turn at most
            await asyncio.sleep(0)
        await self.changes.tell(self.role)
        # Stored here, and whether it stays is for the next reign to say: neither a success nor a
        # refusal (INV-7).
        self._acks.give_up(FATE_UNKNOWN)
        self.feed.feed(r.WritesClosed(self._store.end, self._store.flushed))

    async def _role_changed(self, effect: r.RoleChanged) -> None:
        log.info(
            "role changed to=%s epoch=%d master=%d address=%s why=%s",
            effect.role.value, effect.epoch, effect.master, effect.address, effect.why,
        )  # fmt: skip
        if effect.role in (ReplicaRole.WAITING, ReplicaRole.FOLLOWING):
            await self.changes.tell(self.role)

    def _acknowledge(self, effect: m.Acknowledge) -> None:
        self._acks.reached(effect.end, effect.copies, effect.durable)

    def _beat(self, effect: r.SendHeartbeat) -> None:
        """INV-37: the controller holds us to this number. If our store comes back with less, it is a suspect; so it
        must be the end of a whole record, for of half a record a restart keeps nothing."""
        confirmed = self._store.whole(effect.confirmed)
        self.link.beat(msgspec.structs.replace(effect, confirmed=confirmed))

    def _set_changed(self, effect: m.SetChanged) -> None:
        lone = len(effect.members) == 1 and self._config.waits_for_slaves
        now, before = (",".join(map(str, sorted(x))) for x in (effect.members, effect.before))
        log.log(
            logging.WARNING if lone else logging.INFO, "%s in_sync=%s before=%s number=%d",
            "one copy only" if lone else "set changed", now, before, effect.number,
        )  # fmt: skip

    def _superseded(self, effect: m.Superseded) -> None:
        log.warning("a slave knows a later epoch than ours epoch=%d", effect.epoch)

    def _resigned(self, effect: m.Resigned) -> None:
        log.info(
            "resigned epoch=%d end=%d successor=%d", effect.epoch, effect.end, effect.successor
        )

    def _switch_abandoned(self, effect: m.SwitchAbandoned) -> None:
        log.warning("switchover abandoned why=%s", effect.reason)
        self._unfence()
        self._switched = True
        self.changes.settle()

    def _streaming(self, effect: s.ReportProgress) -> None:
        """We follow the next master, so it takes messages: who waits for it need wait no longer."""
        self._hand_over.succeeded.set()
        if not self._switched:
            self._switched = True
            self.changes.settle()

    async def _count_set_aside(self, effect: s.SetAside) -> None:
        root = Path(self._config.storage.root)
        self._set_aside = await asyncio.to_thread(setaside.listed, root)

    def alarms_now(self) -> list[str]:
        return list(self.alarms)

    def dispatch_broken(self, why: str) -> None:
        """INV-36: what cannot be served is no copy."""
        self.feed.feed(s.DispatchBroken(f"not following, our log is broken: {why}"))

    def _alarm(self, effect: s.Alarm) -> None:
        known = effect.reason in self.alarms
        if not known:
            self.alarms.append(effect.reason)
        if self._alarm_again() or not known:  # who keeps asking keeps hearing of it
            log.error("a person must act why=%s", effect.reason)

    def _failed(self) -> None:
        """Something final happened: nobody is promised anything any more."""
        self._open = False
        self._acks.give_up(DISK_UNKNOWN)

    # --- what operators ask ---

    @property
    def lease_ms(self) -> int:
        """How long this master may go on without a word from its controller; 0 on others."""
        master = self.core.master
        left_ms = 0 if master is None else master.lease_until_ms - self._clock.monotonic_ms()
        return max(left_ms, 0)

    @property
    def set_size(self) -> int:
        """Replicas in the sync-state-set, as far as a master knows; 0 on others."""
        master = self.core.master
        return 0 if master is None else len(master.granted)

    @property
    def set_aside_records(self) -> int:
        """Messages that were cut off this log and kept in files, ever."""
        return sum(each.records for each in self._set_aside)

    def runtime(self) -> dict[str, str]:
        """Entries of the runtime table that only a replica has; all ours."""
        core, view = self.core, self.core.view
        members = core.master.granted if core.master else view.members
        ranges = [f"{each.epoch}:{each.start}-{each.end}" for each in self._set_aside]
        return {
            "replicaState": core.role.value,
            "replicaId": str(core.replica),
            "replicaMode": core.mode.value,
            "sequenceId": f"({core.epoch}, {self._store.end})",
            "leaseMillis": str(self.lease_ms),
            "syncStateSet": ",".join(map(str, sorted(members))),
            "syncStateSetEpoch": str(core.master.number if core.master else view.number),
            "controllerAddress": self.link.address,
            "masterReplicaId": str(view.master),
            "masterAddress": view.address,
            "setAsideRecords": str(self.set_aside_records),
            "setAsideRanges": " ".join(ranges),
        }

    def table(self) -> dict[int, Handler]:
        return {RequestCode.GET_BROKER_EPOCH_CACHE: self.handle_get_broker_epoch_cache}

    def handle_get_broker_epoch_cache(self, command: Command, connection: Connection) -> Command:
        """1007: whose reigns our log has seen. Source: RocketMQ's EpochEntryCache."""
        config, half = self._config, self.core.master or self.core.slave
        body = hastatus.epochs_of(half.history, half.end, self.core.replica)
        body |= {"brokerName": config.name, "clusterName": config.cluster}
        return command.reply(body=fastjson.dumps(body))

    def slaves(self) -> list[SlaveLag]:
        """Every connected slave, in the order they came; none while we are one."""
        master = self.core.master
        if master is None:
            return []
        end, now_ms = self._store.end, self._clock.monotonic_ms()
        return [
            hastatus.lag_of(
                each, end, self._passages, now_ms, in_sync=each.replica in master.granted
            )
            for each in self._sender.status()
        ]

    def absent(self) -> list[SlaveLag]:
        """Members of the set without a stream: until the controller takes them out of it any of them may be elected,
        and what it lacks would be lost without a word were it not named."""
        master = self.core.master
        if master is None:
            return []
        end, now_ms = self._store.end, self._clock.monotonic_ms()
        found = []
        for replica in sorted(master.granted - master.slaves.keys() - {self.core.replica}):
            held = self._held.get(replica, 0)
            behind_ms = self._passages.behind_ms(held, now_ms)
            found.append(SlaveLag("", replica, held, held, end - held, behind_ms, True, 0))
        return found

    @property
    def following(self) -> Following | None:
        """Our stream; None on a master."""
        if self.core.master is not None:
            return None
        view, stats = self.core.view, self._receiver.stats
        address = view.ha_address if view.master != self.core.replica else ""
        return Following(address, self.core.slave.streaming, stats.connects, stats.last_problem)

    def ha_status(self) -> dict[str, Any]:
        following, end = self.following, self._store.end
        if following is not None:
            stats = self._receiver.stats
            return hastatus.of_slave(following, stats, end, self._rate.per_second)
        master = self.core.master
        assert master is not None
        return hastatus.of_master(end, self.slaves(), len(master.granted) - 1)
