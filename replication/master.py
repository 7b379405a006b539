"""Progress of each slave, the confirmed offset and the sync-state-set: what a master may acknowledge. Core.

Source: RocketMQ's GroupTransferService, AutoSwitchHAService and the deciding half of DefaultHAConnection; promises per
mode: decision 0004.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from tandemmq.replication.comparing import Verdict
from tandemmq.replication.config import Mode, StreamRules
from tandemmq.replication.epochs import EpochHistory
from tandemmq.replication.masterevents import (
    Acknowledge,
    Admit,
    Appended,
    CompareSlave,
    Confirmed,
    DiskStalled,
    Drop,
    Effect,
    Event,
    Flushed,
    LeaseRenewed,
    Propose,
    ReplicasLearned,
    Resign,
    Resigned,
    SetChanged,
    SetLearned,
    SlaveCompared,
    SlaveGreeted,
    SlaveLost,
    SlaveReported,
    StreamFrom,
    Superseded,
    SwitchAbandoned,
    Tick,
    Trimmed,
)
from tandemmq.replication.registered import KnownReplica, Registry
from tandemmq.replication.story import Story

NEVER: Final = -1
ENDS_MAX: Final = (
    4096  # record boundaries above the confirmed offset; beyond, every second one is forgotten
)


class MasterState(enum.Enum):
    SERVING = "serving"
    DRAINING = "draining"  # no new puts; what was appended is still acknowledged
    RESIGNED = "resigned"  # never acknowledges again in this epoch
    CLOSED = "closed"


LEGAL_MOVES: Final = {
    MasterState.SERVING: {MasterState.DRAINING, MasterState.CLOSED},
    MasterState.DRAINING: {MasterState.SERVING, MasterState.RESIGNED, MasterState.CLOSED},
    MasterState.RESIGNED: {MasterState.CLOSED},
    MasterState.CLOSED: set[MasterState](),
}


class Refusal(enum.Enum):
    """Why a put is refused before the append."""

    NO_LEASE = "the controller has not renewed the lease"
    SWITCHING = "a planned switchover is under way"
    CLOSED = "this broker is no longer the master"
    NOT_ENOUGH_COPIES = "in-sync replicas not enough"


@dataclass(slots=True)
class Slave:
    """What a master knows of one connected slave.

    flushed        as far as it says; where its dialect does not say (`silent`), what it received stands in for it
    caught_up_ms   the latest time of which we know that the slave holds what our log held then
    compared       classic HA: its log was held against ours up to here; NEVER: it was not
    comparing      classic HA: what it reported first, while its log is held against ours
    """

    replica: int
    connection: int
    incarnation: int
    learner: bool
    from_last_file: bool
    greeted_ms: int
    host: str = ""
    received: int = NEVER
    flushed: int = NEVER
    silent: bool = False
    caught_up_ms: int = NEVER
    mark_end: int = 0
    mark_ms: int = 0
    compared: int = NEVER
    comparing: int = NEVER


def anybody(replica: int, incarnation: int) -> bool:
    """`MasterCore.follows` where nobody knows of more than the log."""
    return True


@dataclass(slots=True)
class MasterCore:
    """One reign of one master.

    epoch, epoch_start  0 for classic HA, which has no controller: `controlled` is False, no set, no lease
    confirmed           what every member of the set holds, in the strength of the mode. INV-21: it never falls within
                        a reign. INV-22: it is at most what each member of the union of the granted set and of every
                        set proposed since reported on a live connection
    acknowledged        answers were released up to here. INV-23: while every other member of the union holds them by
                        its own word, or while the lease was valid, looked at then
    registered          INV-44: whom the controller named; nobody else is let in, so `slaves` holds nobody else.
                        None for classic HA, which has no controller
    follows             whether a replica (id, incarnation) has now, besides the log, whatever else it would reign with.
                        Asked of our own replicas only: stock ones say nothing of it
    """

    replica: int
    mode: Mode
    rules: StreamRules
    history: EpochHistory = field(default_factory=EpochHistory)
    controlled: bool = True
    registered: tuple[KnownReplica, ...] | None = None
    incarnation: int = 0
    start: int = 0
    end: int = 0
    flushed: int = 0
    confirmed: int = 0
    acknowledged: int = 0
    granted: frozenset[int] = frozenset()
    number: int = 0
    lease_until_ms: int = NEVER
    since_ms: int = 0
    state: MasterState = MasterState.SERVING
    follows: Callable[[int, int], bool] = anybody
    slaves: dict[int, Slave] = field(default_factory=dict)  # by replica: whose reports count
    story: Story = field(default_factory=Story)
    _by_connection: dict[int, Slave] = field(default_factory=dict)
    _lost_ms: dict[int, int] = field(default_factory=dict)
    _proposed: frozenset[int] = frozenset()  # every member of every proposal against `number`
    _target: frozenset[int] = frozenset()
    _proposed_ms: int = NEVER
    _joining: dict[int, int] = field(default_factory=dict)  # replica -> since when it counts
    _ends: deque[int] = field(default_factory=deque)
    disk_stalled: bool = False  # our own, while a flush does not end
    _successor: int = 0
    _registry: Registry | None = None
    _drain_until_ms: int = 0

    def __post_init__(self) -> None:
        if self.controlled:
            assert self.replica in self.granted, (self.replica, self.granted)
        for member in self.granted:
            self._lost_ms[member] = self.since_ms
        if self.registered is not None:
            self._registry = self._registry_of(self.registered)
        self._ends.append(self.end)

    # --- what others ask ---

    @property
    def epoch(self) -> int:
        return self.history.last

    @property
    def union(self) -> frozenset[int]:
        """Whose positions count: the granted set, what was proposed since, and who is about to be proposed."""
        if self._joining:
            return self.granted | self._proposed | self._joining.keys()
        return self.granted | self._proposed

    def refusal(self, now_ms: int) -> Refusal | None:
        """Why a put must be refused now, before anything is appended; None when it may go ahead."""
        if self.state is not MasterState.SERVING:
            return Refusal.SWITCHING if self.state is MasterState.DRAINING else Refusal.CLOSED
        if not self.controlled:
            return None
        if now_ms >= self.lease_until_ms and not self._goes_on_without_lease(now_ms):
            return Refusal.NO_LEASE
        members = max(len(self.granted), len(self._proposed))
        return Refusal.NOT_ENOUGH_COPIES if members < self._copies_min else None

    def unsucceeded(self, now_ms: int) -> bool:
        """Whether nobody was elected after us, or we go on as if nobody had been (LeasePolicy).

        Whoever is elected is of the union: while all of it follows us nobody was, and without it we confirm nothing.
        """
        if self.state not in (MasterState.SERVING, MasterState.DRAINING):
            return False
        if not self.controlled or self._goes_on_without_lease(now_ms):
            return True
        return self._lease_valid(now_ms) and not self._fenced_by(self.union)

    @property
    def _copies_min(self) -> int:
        """How many the set must have before anything can be acknowledged. Source: RocketMQ never takes fewer than
        inSyncReplicas either."""
        counts = self.mode.waits_for_slaves and not self.rules.all_in_set
        return max(self.rules.copies_min, self.rules.copies_wanted if counts else 1)

    @property
    def followed(self) -> bool:
        """Whether anybody is connected, counted or not."""
        return bool(self._by_connection)

    def counts(self, connection: int) -> bool:
        """Whether what this connection reports counts as a copy."""
        slave = self._by_connection.get(connection)
        return slave is not None and self.slaves.get(slave.replica) is slave

    def copies(self, end: int) -> tuple[int, int]:
        """How many replicas hold everything below `end`, which our log does, and how many of them say on disk;
        ourselves included."""
        held = 1
        durable = int(self.flushed >= end)
        for slave in self.slaves.values():
            held += slave.received >= end
            durable += slave.flushed >= end and not slave.silent
        return held, durable

    # --- the one way in ---

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event; perform the effects in order. A RESIGNED or CLOSED core goes on tracking, silently."""
        effects: list[Effect] = []
        getattr(self, HANDLERS[type(event)])(event, now_ms, effects)
        self._advance(now_ms, effects)
        return effects

    def close(self, why: str, now_ms: int) -> list[Effect]:
        """The reign is over: every slave is dropped and nothing is acknowledged any more."""
        self._move(MasterState.CLOSED, why, now_ms)
        effects: list[Effect] = [Drop(each, why) for each in self._by_connection]
        self._by_connection.clear()
        self.slaves.clear()
        return effects

    def _move(self, to: MasterState, why: str, now_ms: int) -> None:
        assert to in LEGAL_MOVES[self.state], (self.state, to, str(self.story))
        self.story.add(now_ms, f"{self.state.value} -> {to.value}: {why}")
        self.state = to

    # --- our own log ---

    def _on_appended(self, event: Appended, now_ms: int, effects: list[Effect]) -> None:
        assert event.end >= self.end, f"our own log shrank: {event.end} < {self.end}"
        self._grow(event.end)

    def _grow(self, end: int) -> None:
        self.end = end
        self._ends.append(end)
        if len(self._ends) > ENDS_MAX:
            self._ends = deque(list(self._ends)[::-2][::-1])

    def _on_flushed(self, event: Flushed, now_ms: int, effects: list[Effect]) -> None:
        assert event.end <= self.end, f"flushed {event.end} of {self.end}"
        self.flushed = max(self.flushed, event.end)
        self.disk_stalled = False

    def _on_trimmed(self, event: Trimmed, now_ms: int, effects: list[Effect]) -> None:
        assert self.start <= event.start <= self.end
        self.start = event.start
        self.history = self.history.drop_before(event.start)  # ReplicaCore has it persisted

    # --- slaves ---

    def _on_slave_greeted(self, event: SlaveGreeted, now_ms: int, effects: list[Effect]) -> None:
        problem = None
        if self.state is MasterState.CLOSED:
            problem = "not a master"
        elif event.replica == self.replica:
            problem = f"claims our own id {event.replica}"
        elif (stranger := self._stranger(event)) is not None:
            effects.append(Drop(event.connection, stranger, unregistered=True))
            return
        elif self.controlled and event.epoch > self.epoch:
            problem = f"knows epoch {event.epoch}, ours is {self.epoch}"
            effects.append(Superseded(event.epoch))
        if problem is not None:
            effects.append(Drop(event.connection, problem))
            return
        older = self.slaves.get(event.replica)
        if older is not None:
            effects.append(Drop(older.connection, f"replica {event.replica} connected again"))
            self._forget(older, now_ms)
        slave = Slave(
            event.replica,
            event.connection,
            event.incarnation,
            event.learner,
            event.from_last_file,
            now_ms,
            event.host,
            compared=event.compared,
        )
        self._by_connection[event.connection] = slave
        if self.controlled:  # else it counts once its log was compared (INV-36)
            self.slaves[event.replica] = slave
        self.story.add(now_ms, f"replica {event.replica} greeted")
        effects.append(Admit(event.connection))

    def _stranger(self, event: SlaveGreeted) -> str | None:
        if self._registry is None:
            return None
        return self._registry.refuse(event.replica, event.incarnation, event.host)

    def _registry_of(self, replicas: tuple[KnownReplica, ...]) -> Registry:
        return Registry(replicas, self.replica, by_host=self.rules.replica_host_check)

    def _on_replicas_learned(
        self, event: ReplicasLearned, now_ms: int, effects: list[Effect]
    ) -> None:
        self.registered = event.replicas
        self._registry = registry = self._registry_of(event.replicas)
        for slave in list(self.slaves.values()):
            problem = registry.refuse(slave.replica, slave.incarnation, slave.host)
            if problem is not None:
                effects.append(Drop(slave.connection, problem))
                self._forget(slave, now_ms)

    def _on_slave_reported(self, event: SlaveReported, now_ms: int, effects: list[Effect]) -> None:
        slave = self._by_connection.get(event.connection)
        if event.end > self.end:
            self._grow(event.end)
        if slave is None:
            return  # dropped while the report was on its way
        problem = self._implausible(slave, event)
        if problem is not None:
            effects.append(Drop(event.connection, problem))
            self._forget(slave, now_ms)
            return
        if slave.received == NEVER:
            if not self.controlled and not self._admit_classic(slave, event, effects):
                return
            self._stream_from(slave, event.received, now_ms, effects)
        slave.received = event.received
        slave.silent = event.flushed is None
        slave.flushed = event.received if event.flushed is None else event.flushed
        position = slave.flushed if self.mode.waits_for_disk else slave.received
        if position >= self.end:
            slave.caught_up_ms = now_ms
            slave.mark_end, slave.mark_ms = self.end, now_ms
        elif position >= slave.mark_end:
            slave.caught_up_ms = slave.mark_ms
            slave.mark_end, slave.mark_ms = self.end, now_ms
        if self.controlled and slave.replica not in self.granted:
            self._review_set(now_ms, effects)

    def _stream_from(self, slave: Slave, received: int, now_ms: int, effects: list[Effect]) -> None:
        slave.mark_end, slave.mark_ms = self.end, now_ms
        newest = received == 0 and slave.from_last_file
        effects.append(StreamFrom(slave.connection, max(received, self.start), newest))

    def _admit_classic(self, slave: Slave, event: SlaveReported, effects: list[Effect]) -> bool:
        """Whether a classic slave's first report may be taken now.

        INV-36: it counts from then on, and only when its log is empty or was held against ours. A log that is longer
        than ours was is refused before, and one that parted from ours is not mended by our growing past it.
        """
        if slave.comparing != NEVER:
            return False  # it says again what it said
        if event.received == 0 or slave.compared == event.received:
            self.slaves[slave.replica] = slave
            return True
        slave.comparing = event.received
        effects.append(CompareSlave(slave.connection, event.received))
        return False

    def _on_slave_compared(self, event: SlaveCompared, now_ms: int, effects: list[Effect]) -> None:
        slave = self._by_connection.get(event.connection)
        if slave is None or slave.comparing != event.end or slave.received != NEVER:
            return  # dropped meanwhile
        counted = event.verdict is Verdict.SAME
        followed = event.verdict is Verdict.UNKNOWN and self.rules.uncompared_followed
        if not counted and not followed:
            effects.append(Drop(event.connection, event.why))
            self._forget(slave, now_ms)
            return
        self.story.add(now_ms, f"replica {slave.replica} compared: {event.verdict.value}")
        if counted:
            slave.compared = event.end
            self.slaves[slave.replica] = slave
        self._stream_from(slave, event.end, now_ms, effects)
        slave.received = slave.flushed = event.end
        slave.silent = True

    def _implausible(self, slave: Slave, event: SlaveReported) -> str | None:
        """Why this report cannot be true; None when it can. INV-24: such a report changes nothing."""
        if event.received > self.end:
            return f"reports {event.received}, beyond our end {self.end}"
        if slave.received == NEVER:
            if 0 < event.received < self.start:
                return f"reports {event.received}, before our start {self.start}: it must be seeded anew"
        elif event.received > max(event.sent, slave.received):
            return f"reports {event.received}, we sent up to {event.sent}"
        elif event.received < slave.received:
            return f"reports {event.received} after {slave.received}"
        if event.flushed is not None and event.flushed > event.received:
            return f"reports flushed {event.flushed} of {event.received}"
        if self.controlled and event.epoch is not None and event.received > self.start:
            writer = self.history.at(event.received - 1)
            if writer is not None and writer.number != event.epoch:
                return f"holds epoch {event.epoch} below {event.received}, we hold {writer.number}"
        return None

    def _on_slave_lost(self, event: SlaveLost, now_ms: int, effects: list[Effect]) -> None:
        slave = self._by_connection.get(event.connection)
        if slave is not None:
            self.story.add(now_ms, f"replica {slave.replica} lost")
            self._forget(slave, now_ms)

    def _forget(self, slave: Slave, now_ms: int) -> None:
        """Its acknowledgements go with its connection; its seat in the set is the controller's to take."""
        self._by_connection.pop(slave.connection, None)
        if self.slaves.get(slave.replica) is slave:
            del self.slaves[slave.replica]
            self._lost_ms[slave.replica] = now_ms
        self._joining.pop(slave.replica, None)

    # --- what is safe ---

    def _on_lease_renewed(self, event: LeaseRenewed, now_ms: int, effects: list[Effect]) -> None:
        self.lease_until_ms = max(self.lease_until_ms, event.until_ms)

    def _own(self) -> int:
        return self.flushed if self.mode.waits_for_disk else self.end

    def _held_by(self, members: Iterable[int]) -> int:
        """Up to where every one of these replicas has the log: on its disk where the mode waits for disks, else in
        memory. While one of them is not connected, this does not grow."""
        reached = self._own()
        for member in members:
            if member == self.replica:
                continue
            slave = self.slaves.get(member)
            if slave is None:
                return self.confirmed
            position = slave.flushed if self.mode.waits_for_disk else slave.received
            reached = min(reached, position)
        return reached

    def _held_by_copies(self, slaves: Collection[Slave]) -> int:
        """Up to where so many different replicas have the log as the mode wants copies: this one, and those of the
        slaves that have most of it."""
        own, count = self._own(), self.rules.copies_wanted
        if count <= 1:
            return own
        disk = self.mode.waits_for_disk
        positions = [slave.flushed if disk else slave.received for slave in slaves]
        if len(positions) < count - 1:
            return 0
        positions.sort()
        return min(own, positions[1 - count])

    def _whole(self, reached: int) -> int:
        """The last record boundary at or below `reached`.

        A slave holds half a record while the rest is on its way. Were the half confirmed and the slave elected, the
        new master would cut it and write something else there.
        """
        whole, ends = self.confirmed, self._ends
        while ends and ends[0] <= reached:
            whole = max(whole, ends.popleft())
        return whole

    def _lease_valid(self, now_ms: int) -> bool:
        return not self.controlled or now_ms < self.lease_until_ms

    def _fenced_by(self, members: Collection[int]) -> bool:
        """Whether these must all speak before anything is acknowledged, so that no lease is needed. INV-23.

        Whoever is elected is of the union, and takes no frame of this epoch once it knows: what all of them reported
        in this epoch the next master has. A set of one has nobody to ask.
        """
        return self.mode.waits_for_slaves and len(members) > 1

    def _goes_on_without_lease(self, now_ms: int) -> bool:
        """Whether puts are taken though the controller is silent: those who must speak follow us, as of late."""
        union = self.union
        if not self._fenced_by(union):
            return self.rules.lease_policy.goes_on(self.mode)
        others = union - {self.replica}
        return others <= self.slaves.keys() and all(self._stays(each, now_ms) for each in others)

    def _advance(self, now_ms: int, effects: list[Effect]) -> None:
        if self.state is MasterState.CLOSED or self.state is MasterState.RESIGNED:
            return
        leased = self._lease_valid(now_ms)
        if self.mode.waits_for_slaves and self.controlled:
            union = self.union
            if len(union) < self.rules.copies_min:
                return
            if not (leased or self._fenced_by(union) or self.rules.lease_policy.goes_on(self.mode)):
                return
            confirmed = acknowledged = self._held_by(union)
            if not self.rules.all_in_set:
                # Only who may be elected counts as a copy: not who merely is about to join.
                members = [each for each in self.slaves.values() if each.replica in self.granted]
                copies = self._held_by_copies(members)
                acknowledged = copies if leased else min(confirmed, copies)
        elif leased or self.rules.lease_policy.goes_on(self.mode):
            confirmed = acknowledged = self._own()
            if self.mode.waits_for_slaves:
                acknowledged = self._held_by_copies(self.slaves.values())
        else:
            return
        confirmed = self._whole(confirmed)
        if confirmed > self.confirmed:
            self.confirmed = confirmed
            effects.append(Confirmed(confirmed))
        if acknowledged > self.acknowledged:
            self.acknowledged = acknowledged
            held, durable = self.copies(acknowledged)
            effects.append(Acknowledge(acknowledged, self.history.last, held, durable))
        assert self.confirmed <= self.end  # INV-21
        if self.state is MasterState.DRAINING:
            self._resign_when_drained(now_ms, effects)

    # --- the sync-state-set ---

    def _on_set_learned(self, event: SetLearned, now_ms: int, effects: list[Effect]) -> None:
        if event.number <= self.number or self.state is MasterState.CLOSED:
            return
        if self.replica not in event.members:
            return  # another reign has begun; the role change is on its way
        self.story.add(
            now_ms, f"set {sorted(self.granted)} -> {sorted(event.members)} no {event.number}"
        )
        for member in event.members - self.granted:
            self._lost_ms.setdefault(member, now_ms)
        if event.members != self.granted:
            effects.append(SetChanged(self.granted, event.members, event.number))
        self.granted, self.number = event.members, event.number
        self._proposed, self._target, self._proposed_ms = frozenset(), frozenset(), NEVER
        for member in event.members:
            self._joining.pop(member, None)

    def _on_tick(self, event: Tick, now_ms: int, effects: list[Effect]) -> None:
        if self.controlled and self.state is not MasterState.CLOSED:
            for slave in self.slaves.values():
                if slave.silent and slave.received >= self.end:
                    slave.caught_up_ms = now_ms  # it holds everything, and says so every 5 s only
            self._review_set(now_ms, effects)
        if self.state is MasterState.DRAINING and now_ms >= self._drain_until_ms:
            reason = f"replica {self._successor} did not catch up in {self.rules.drain_ms_max} ms"
            self._move(MasterState.SERVING, reason, now_ms)
            effects.append(SwitchAbandoned(reason))

    def _stays(self, member: int, now_ms: int) -> bool:
        if member == self.replica:
            return True
        slave = self.slaves.get(member)
        if slave is None:
            return now_ms - self._lost_ms.get(member, self.since_ms) <= self.rules.lost_grace_ms
        since = max(slave.caught_up_ms, slave.greeted_ms)
        return now_ms - since <= self.rules.catch_up_ms_max

    def _joins(self, slave: Slave, now_ms: int) -> bool:
        """Whether a slave that is no member shall become one. INV-25: it holds what is confirmed before it is proposed.

        Under load a slave never holds all that is confirmed by a set without it. So it counts from the moment it has
        nearly caught up; that holds the confirmed offset until the slave reaches it, one round trip later. What is
        changed from then on waits for it too, so what it follows in this moment it will not lack later (INV-43).
        """
        if slave.learner or slave.received == NEVER or slave.caught_up_ms == NEVER:
            return False
        if now_ms - slave.caught_up_ms > self.rules.catch_up_ms_max // 2:
            self._joining.pop(slave.replica, None)
            return False
        position = slave.flushed if self.mode.waits_for_disk else slave.received
        if position < self.history.last_start:
            return False
        if slave.incarnation and not self.follows(slave.replica, slave.incarnation):
            self._joining.pop(slave.replica, None)
            return False
        self._joining.setdefault(slave.replica, now_ms)
        return not self.mode.waits_for_slaves or position >= self.confirmed

    def _review_set(self, now_ms: int, effects: list[Effect]) -> None:
        """Propose who should be in the set; the union of both counts until the controller has answered."""
        for replica, since_ms in list(self._joining.items()):
            if now_ms - since_ms > self.rules.catch_up_ms_max:
                del self._joining[replica]  # nothing was proposed: it simply no longer counts
        target = {member for member in self.granted if self._stays(member, now_ms)}
        for slave in self.slaves.values():
            if slave.replica not in self.granted and self._joins(slave, now_ms):
                target.add(slave.replica)
        members = frozenset(target)
        reaffirm = members == self.granted
        if reaffirm and self._proposed <= self.granted:
            self._target = members
            return
        again = now_ms - self._proposed_ms >= self.rules.proposal_retry_ms
        if members == self._target and self._proposed_ms != NEVER and not again:
            return
        self._target, self._proposed_ms = members, now_ms
        self._proposed |= members
        for member in members:
            self._joining.pop(member, None)
        known = tuple(
            (slave.replica, slave.incarnation)
            for slave in self.slaves.values()
            if slave.replica in members
        )
        self.story.add(now_ms, f"propose {sorted(members)} for no {self.number}")
        effects.append(Propose(members, self.number, self.epoch, known, reaffirm))

    # --- planned switchover ---

    def _on_resign(self, event: Resign, now_ms: int, effects: list[Effect]) -> None:
        if self.state is not MasterState.SERVING or event.successor not in self.slaves:
            return
        self._successor = event.successor
        self._drain_until_ms = now_ms + self.rules.drain_ms_max
        self._move(MasterState.DRAINING, f"hand over to replica {event.successor}", now_ms)

    def _on_disk_stalled(self, event: DiskStalled, now_ms: int, effects: list[Effect]) -> None:
        self.disk_stalled = True

    def _resign_when_drained(self, now_ms: int, effects: list[Effect]) -> None:
        """What was acknowledged, every member holds, the successor among them. What only our own disk lacks is not
        acknowledged any more, and waiting for it would keep everybody waiting: the fate of that is unknown."""
        slave = self.slaves.get(self._successor)
        if slave is None or (self.acknowledged < self.end and not self.disk_stalled):
            return
        position = slave.flushed if self.mode.waits_for_disk else slave.received
        if position == self.end:
            self._move(MasterState.RESIGNED, f"everything up to {self.end} is handed over", now_ms)
            effects.append(Resigned(self.epoch, self.end, self._successor))


HANDLERS: Final = {
    Appended: "_on_appended",
    Flushed: "_on_flushed",
    Trimmed: "_on_trimmed",
    LeaseRenewed: "_on_lease_renewed",
    SlaveGreeted: "_on_slave_greeted",
    SlaveReported: "_on_slave_reported",
    SlaveLost: "_on_slave_lost",
    SlaveCompared: "_on_slave_compared",
    SetLearned: "_on_set_learned",
    ReplicasLearned: "_on_replicas_learned",
    Resign: "_on_resign",
    DiskStalled: "_on_disk_stalled",
    Tick: "_on_tick",
}
