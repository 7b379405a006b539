"""One replica's life in its group: registration, role, lease. Core; the only one that decides a broker's role.

It owns the SlaveCore of this store and, while it reigns, a MasterCore; their events go through it, so a shell has one
object to feed. Effects are performed in order, each to its end, before the next event is fed.

    JOINING -> WAITING -> FOLLOWING                         registered; somebody else is master
                       -> PREPARING -> ACTIVATING -> MASTER we were elected; ready; the first lease came
    MASTER -> SETTLING -> FOLLOWING, PREPARING, WAITING     the reign is over; puts in flight are drained

Order of a promotion (INV-31): stream left, incomplete tail cut, everything dispatched, queue offsets recomputed, epoch
entry durable, then the heartbeat that asks for the lease, and only its answer opens the log for puts.
Source: RocketMQ's ReplicasManager.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tandemmq.replication import masterevents as m
from tandemmq.replication import slave as s
from tandemmq.replication.config import LeaseTimes, Mode, StreamRules
from tandemmq.replication.group import NOBODY, GroupView
from tandemmq.replication.master import HANDLERS, MasterCore, MasterState, Refusal
from tandemmq.replication.registered import KnownReplica
from tandemmq.replication.slave import Alarm, NoRoom, PersistHistory, SlaveCore
from tandemmq.replication.story import Story

DISK_MODES: Final = frozenset(mode.value for mode in Mode if mode.waits_for_disk)
ASK_AGAIN_MS: Final = 50  # at most so often the controller is asked whether a stranger registered
HEARTBEATS_MAX: Final = 64  # sent and not answered; older ones can no longer renew a lease


class ReplicaRole(enum.Enum):
    JOINING = "joining"
    WAITING = "waiting"
    FOLLOWING = "following"
    PREPARING = "preparing"
    ACTIVATING = "activating"
    MASTER = "master"
    SETTLING = "settling"


LEGAL_MOVES: Final = {
    ReplicaRole.JOINING: {ReplicaRole.WAITING},
    ReplicaRole.WAITING: {ReplicaRole.FOLLOWING, ReplicaRole.PREPARING},
    ReplicaRole.FOLLOWING: {ReplicaRole.WAITING, ReplicaRole.PREPARING},
    ReplicaRole.PREPARING: {ReplicaRole.ACTIVATING, ReplicaRole.WAITING, ReplicaRole.FOLLOWING},
    ReplicaRole.ACTIVATING: {
        ReplicaRole.MASTER,
        ReplicaRole.WAITING,
        ReplicaRole.FOLLOWING,
        ReplicaRole.PREPARING,
    },
    ReplicaRole.MASTER: {ReplicaRole.SETTLING},
    ReplicaRole.SETTLING: {ReplicaRole.WAITING, ReplicaRole.FOLLOWING, ReplicaRole.PREPARING},
}

LEADING: Final = (ReplicaRole.PREPARING, ReplicaRole.ACTIVATING, ReplicaRole.MASTER)

# --- events ---


class ControllerUp(msgspec.Struct, frozen=True):
    """A connection to the controller is open."""


class ControllerLost(msgspec.Struct, frozen=True):
    """It closed. The role stays; the lease runs."""


class Registered(msgspec.Struct, frozen=True):
    """The controller took our registration."""

    view: GroupView


class RegistrationRefused(msgspec.Struct, frozen=True):
    why: str


class HeartbeatAnswered(msgspec.Struct, frozen=True):
    """known False: the controller has forgotten us. lease: granted from when heartbeat `number` was sent."""

    number: int
    known: bool
    lease: bool
    view: GroupView


class RoleNotified(msgspec.Struct, frozen=True):
    """1008, or any other news of the group.

    answer  to a request that says our id and not which process we are
    """

    view: GroupView
    answer: bool = False


class SwitchAsked(msgspec.Struct, frozen=True):
    """The controller asks us to hand over to `successor`."""

    epoch: int
    successor: int


class Prepared(msgspec.Struct, frozen=True):
    """The log is ready for a reign of `epoch`; it ends at `end`, on a record boundary."""

    epoch: int
    end: int
    flushed: int


class WritesClosed(msgspec.Struct, frozen=True):
    """No put is in flight any more; the log ends at `end`."""

    end: int
    flushed: int


class Tick(msgspec.Struct, frozen=True):
    """Time passed: at least every quarter of a heartbeat interval."""


# --- effects ---


class Register(msgspec.Struct, frozen=True):
    """1003. `suspect`: this machine lost power while the log was not flushed."""

    suspect: bool
    epoch: int
    end: int


class ForgetSuspicion(msgspec.Struct, frozen=True):
    """The controller has recorded it: the mark on our disk may go."""


class AskForElection(msgspec.Struct, frozen=True):
    """1002 for ourselves: the group never had a master."""


class SendHeartbeat(msgspec.Struct, frozen=True):
    """904 with these fields. Dropped when there is no connection: its time only counts when it is answered."""

    number: int
    epoch: int
    end: int
    confirmed: int
    leading: bool
    streaming: bool
    resigned: bool


class Prepare(msgspec.Struct, frozen=True):
    """Cut an incomplete tail, dispatch everything, recompute queue offsets; then feed Prepared."""

    epoch: int


class OpenWrites(msgspec.Struct, frozen=True):
    """We are master of `epoch`: take puts, start the services that run on one replica, register as id 0."""

    epoch: int


class CloseWrites(msgspec.Struct, frozen=True):
    """Take no more puts; answer or refuse what is in flight; stop the single services; then feed WritesClosed."""

    why: str


class RoleChanged(msgspec.Struct, frozen=True):
    """For the log line `role changed`, the name servers and the metadata synchronisation."""

    role: ReplicaRole
    epoch: int
    master: int
    address: str
    why: str


Event = (
    ControllerUp
    | ControllerLost
    | Registered
    | RegistrationRefused
    | HeartbeatAnswered
    | RoleNotified
    | SwitchAsked
    | Prepared
    | WritesClosed
    | Tick
    | m.Event
    | s.Event
)
Effect = (
    Register
    | ForgetSuspicion
    | AskForElection
    | SendHeartbeat
    | Prepare
    | OpenWrites
    | CloseWrites
    | RoleChanged
    | m.Effect
    | s.Effect
)


@dataclass(slots=True)
class ReplicaCore:
    """The role of one replica.

    incarnation  of this process; the controller and the master tell a restarted replica from the one they knew by it
    suspect      power was lost with unflushed data, and the controller does not know yet
    INV-32: an epoch is entered once, by a higher number only. INV-33: writes are open only in Role.MASTER
    """

    replica: int
    incarnation: int
    mode: Mode
    times: LeaseTimes
    rules: StreamRules
    slave: SlaveCore
    suspect: bool = False
    make_master: Callable[..., MasterCore] = MasterCore
    role: ReplicaRole = ReplicaRole.JOINING
    epoch: int = 0
    view: GroupView = field(default_factory=GroupView)
    master: MasterCore | None = None
    connected: bool = False
    story: Story = field(default_factory=Story)
    _sent_ms: dict[int, int] = field(default_factory=dict)
    _number: int = 0
    _beat_ms: int = -(1 << 60)
    _asked_ms: int = -(1 << 60)
    _learned_ms: int = -(1 << 60)  # when the number of our view became what it is
    _reminded_ms: int = -(1 << 60)
    _resigned: bool = False

    def __post_init__(self) -> None:
        slave = self.slave
        self.epoch = slave.epoch = max(slave.epoch, slave.history.last)
        slave.history = slave.history.drop_before(slave.start)  # the file may say more: as true

    # --- what others ask ---

    @property
    def confirmed(self) -> int:
        """Below it consumers may read, here and now."""
        return self.master.confirmed if self.master else self.slave.confirmed

    @property
    def may_have_lost(self) -> bool:
        """Whether our reign began without something that readers may have been given, and hear of from nobody else: no
        reign wrote anything since the last declared loss. The one that was declared need not be ours: who was elected
        then may have gone before it had its lease."""
        if not self.mode.waits_for_slaves:
            return True
        return self.view.lossy_epoch > self.slave.history.before_last

    def refusal(self, now_ms: int) -> Refusal | None:
        """Why a put is refused before anything is appended; None when it may go ahead."""
        if self.role is not ReplicaRole.MASTER or self.master is None:
            return Refusal.CLOSED
        return self.master.refusal(now_ms)

    # --- the one way in ---

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event; perform the effects in order."""
        effects: list[Effect] = []
        kind = type(event)
        if kind in OWN:
            getattr(self, OWN[kind])(event, now_ms, effects)
        elif kind in TO_MASTER and self.master is not None:
            self._from_master(self.master.step(event, now_ms), now_ms, effects)  # type: ignore[arg-type]
        elif kind in TO_SLAVE and (self.master is None or kind is s.DispatchBroken):
            self._slave(event, now_ms, effects)  # type: ignore[arg-type]
        elif kind is m.SlaveGreeted:
            effects.append(m.Drop(event.connection, "not a master"))  # type: ignore[union-attr]
        return effects

    def _move(self, to: ReplicaRole, why: str, now_ms: int, effects: list[Effect]) -> None:
        if to is self.role:
            return
        assert to in LEGAL_MOVES[self.role], (self.role, to, str(self.story))
        self.story.add(now_ms, f"{self.role.value} -> {to.value} epoch {self.epoch}: {why}")
        self.role = to
        effects.append(RoleChanged(to, self.epoch, self.view.master, self.view.address, why))

    # --- the controller ---

    def _on_controller_up(self, event: ControllerUp, now_ms: int, effects: list[Effect]) -> None:
        self.connected = True
        if self.role is ReplicaRole.JOINING:
            self._register(now_ms, effects)
        else:
            self._beat(now_ms, effects)

    def _on_controller_lost(
        self, event: ControllerLost, now_ms: int, effects: list[Effect]
    ) -> None:
        self.connected = False

    def _register(self, now_ms: int, effects: list[Effect]) -> None:
        self._asked_ms = now_ms
        effects.append(Register(self.suspect, self.slave.history.last, self.slave.end))

    def _on_registered(self, event: Registered, now_ms: int, effects: list[Effect]) -> None:
        if event.view.epoch < self.epoch:
            reason = (
                f"the controller knows epoch {event.view.epoch}, our log has epoch {self.epoch}: "
                "its state was lost; restore it"
            )
            self.story.add(now_ms, reason)
            effects.append(Alarm(reason))
            return
        if self.suspect:
            self.suspect = False
            effects.append(ForgetSuspicion())
        if self.role is ReplicaRole.JOINING:
            self._move(ReplicaRole.WAITING, "registered", now_ms, effects)
        self._adopt(event.view, now_ms, effects)
        self._beat(now_ms, effects)

    def _on_registration_refused(
        self, event: RegistrationRefused, now_ms: int, effects: list[Effect]
    ) -> None:
        self.story.add(now_ms, f"registration refused: {event.why}")

    def _beat(self, now_ms: int, effects: list[Effect]) -> None:
        if not self.connected or self.role is ReplicaRole.JOINING:
            return
        self._number += 1
        self._beat_ms = now_ms
        sent = self._sent_ms
        sent[self._number] = now_ms
        if len(sent) > HEARTBEATS_MAX:
            del sent[next(iter(sent))]
        leading = self.role in (ReplicaRole.ACTIVATING, ReplicaRole.MASTER)
        core = self.master or self.slave
        epoch = self.epoch if leading else self.slave.history.last
        confirmed = core.confirmed
        if self.master is None and self.mode.waits_for_disk:
            confirmed = min(confirmed, core.flushed)  # with less we do not come back: INV-37
        effects.append(
            SendHeartbeat(
                self._number, epoch, core.end, confirmed,
                leading, self.slave.streaming, leading and self._resigned,
            )
        )  # fmt: skip

    def _on_heartbeat_answered(
        self, event: HeartbeatAnswered, now_ms: int, effects: list[Effect]
    ) -> None:
        if not event.known:
            if now_ms - self._asked_ms >= self.times.heartbeat_ms:
                self._register(now_ms, effects)
            return
        self._adopt(event.view, now_ms, effects)
        sent_ms = self._sent_ms.pop(event.number, None)
        if sent_ms is not None and sent_ms > self._learned_ms:
            self._remind(event.view, now_ms, effects)
        if not event.lease or sent_ms is None or event.view.epoch != self.epoch:
            return
        until_ms = sent_ms + self.times.lease_ms
        if self.role is ReplicaRole.ACTIVATING:
            self._reign(event.view, until_ms, now_ms, effects)
        elif self.master is not None and self.role is ReplicaRole.MASTER:
            self._from_master(self.master.step(m.LeaseRenewed(until_ms), now_ms), now_ms, effects)

    def _remind(self, view: GroupView, now_ms: int, effects: list[Effect]) -> None:
        """A controller that was asked after it had given a set its number, and knows an older one, was restored from
        an older state of the same epoch. It may elect by that: tell it the set by which we acknowledge."""
        core = self.master
        if view.epoch != self.epoch or view.number >= self.view.number:
            return
        if core is None or self.role is not ReplicaRole.MASTER:
            return
        if now_ms - self._reminded_ms < self.rules.proposal_retry_ms:
            return
        self._reminded_ms = now_ms
        reason = (
            f"the controller knows set number {view.number} of epoch {view.epoch}, it had given number {core.number}: "
            "an older state of it was restored; it is told the set anew"
        )
        self.story.add(now_ms, reason)
        effects.append(Alarm(reason))
        known = tuple(
            (each.replica, each.incarnation)
            for each in core.slaves.values()
            if each.replica in core.granted
        )
        effects.append(m.Propose(core.granted, core.number, self.epoch, known, True))

    def _on_role_notified(self, event: RoleNotified, now_ms: int, effects: list[Effect]) -> None:
        if self.role is ReplicaRole.JOINING:
            return  # until this process is registered the news may be of its predecessor
        if event.answer and self._elects_us(event.view):
            # INV-38: us, or a copy that took our place. Who beats is known by its process.
            self._beat(now_ms, effects)
        else:
            self._adopt(event.view, now_ms, effects)

    def _elects_us(self, view: GroupView) -> bool:
        """Whether it gives our id a reign that we have not taken up."""
        taken_up = self.role in LEADING and view.epoch == self.epoch
        return view.master == self.replica and not taken_up

    def _on_switch_asked(self, event: SwitchAsked, now_ms: int, effects: list[Effect]) -> None:
        if (
            self.master is not None
            and self.role is ReplicaRole.MASTER
            and event.epoch == self.epoch
        ):
            self._from_master(self.master.step(m.Resign(event.successor), now_ms), now_ms, effects)

    # --- roles ---

    def _adopt(self, view: GroupView, now_ms: int, effects: list[Effect]) -> None:
        """News of the group. Old news changes nothing; a higher epoch is a new life."""
        if view.epoch < self.epoch or (
            view.epoch == self.view.epoch and view.number < self.view.number
        ):
            return
        older, self.view = self.view, view
        if (view.epoch, view.number) != (older.epoch, older.number):
            self._learned_ms = now_ms
        if view.epoch == self.epoch and self.role in LEADING:
            if view.master == self.replica:
                if self.master is not None:
                    if view.registered not in (None, self.master.registered):
                        self._learn_replicas(view.registered, now_ms, effects)
                    learned = m.SetLearned(view.members, view.number)
                    self._from_master(self.master.step(learned, now_ms), now_ms, effects)
                return
            if view.master != NOBODY:
                raise AssertionError(f"two masters of epoch {view.epoch}: {older} {view}")  # INV-28
            # the controller took another process of ours for the master's end; there is no way back in this epoch
        self.epoch = view.epoch
        if self.role is ReplicaRole.MASTER and self.master is not None:
            self._settle(f"epoch {view.epoch} of replica {view.master}", now_ms, effects)
        elif self.role is not ReplicaRole.SETTLING:
            self._take_role(now_ms, effects)

    def _learn_replicas(
        self, replicas: tuple[KnownReplica, ...] | None, now_ms: int, effects: list[Effect]
    ) -> None:
        assert self.master is not None and replicas is not None
        learned = m.ReplicasLearned(replicas)
        self._from_master(self.master.step(learned, now_ms), now_ms, effects)

    def _settle(self, why: str, now_ms: int, effects: list[Effect]) -> None:
        """The reign is over. First no more puts, then nobody to acknowledge them, then the next role."""
        assert self.master is not None
        self._move(ReplicaRole.SETTLING, why, now_ms, effects)
        effects.append(CloseWrites(why))
        effects.extend(self.master.close(why, now_ms))

    def _on_writes_closed(self, event: WritesClosed, now_ms: int, effects: list[Effect]) -> None:
        core = self.master
        assert core is not None and self.role is ReplicaRole.SETTLING, str(self.story)
        slave = self.slave
        slave.start, slave.end, slave.flushed = core.start, event.end, event.flushed
        slave.history, slave.confirmed = core.history, min(core.confirmed, event.end)
        slave.confirmed_epoch = core.epoch
        self.master = None
        self._take_role(now_ms, effects)

    def _take_role(self, now_ms: int, effects: list[Effect]) -> None:
        """The role that the present view gives us."""
        view = self.view
        if view.master == self.replica and view.epoch > self.slave.history.last:
            if self.role is ReplicaRole.PREPARING and self.slave.epoch == view.epoch:
                return
            why = f"elected in epoch {view.epoch}"
            self._slave(s.Unfollow(why), now_ms, effects)
            self.slave.epoch = view.epoch
            self._move(ReplicaRole.PREPARING, why, now_ms, effects)
            effects.append(Prepare(view.epoch))
        elif view.master not in (NOBODY, self.replica):
            self._move(ReplicaRole.FOLLOWING, f"replica {view.master} is master", now_ms, effects)
            address = view.ha_address or view.address
            counts_disk = view.mode in DISK_MODES
            follow = s.Follow(view.master, address, view.epoch, view.lossy_epoch, counts_disk)
            self._slave(follow, now_ms, effects)
        else:
            self._slave(s.Unfollow("no master"), now_ms, effects)
            self._move(ReplicaRole.WAITING, "no master", now_ms, effects)

    def _on_prepared(self, event: Prepared, now_ms: int, effects: list[Effect]) -> None:
        if self.role is not ReplicaRole.PREPARING or event.epoch != self.epoch:
            return
        slave = self.slave
        assert event.end <= slave.end, (event, slave.end)
        slave.end, slave.flushed = event.end, event.flushed
        slave.confirmed = min(slave.confirmed, event.end)
        slave.history = slave.history.cut(event.end).begin(self.epoch, event.end)
        effects.append(PersistHistory(slave.history))
        self._resigned = False
        self._move(ReplicaRole.ACTIVATING, f"log ready at {event.end}", now_ms, effects)
        self._beat(now_ms, effects)

    def _reign(self, view: GroupView, until_ms: int, now_ms: int, effects: list[Effect]) -> None:
        slave = self.slave
        self.master = self.make_master(
            replica=self.replica, mode=self.mode, rules=self.rules, history=slave.history, incarnation=self.incarnation,
            start=slave.start, end=slave.end, flushed=slave.flushed, confirmed=slave.confirmed,
            granted=view.members, number=view.number, lease_until_ms=until_ms, since_ms=now_ms,
            registered=view.registered,
        )  # fmt: skip
        self._move(ReplicaRole.MASTER, "lease granted", now_ms, effects)
        effects.append(OpenWrites(self.epoch))
        self._from_master(self.master.step(m.LeaseRenewed(until_ms), now_ms), now_ms, effects)

    # --- the two halves ---

    def _on_trimmed(self, event: m.Trimmed, now_ms: int, effects: list[Effect]) -> None:
        """Retention. A master half knows of no file, and in classic HA there is none."""
        core = self.master
        if core is None:
            self._slave(event, now_ms, effects)
            return
        before = core.history
        self._from_master(core.step(event, now_ms), now_ms, effects)
        if core.history is not before:
            effects.append(PersistHistory(core.history, NoRoom.LEAVE))

    def _from_master(self, found: list[m.Effect], now_ms: int, effects: list[Effect]) -> None:
        for effect in found:
            effects.append(effect)
            if isinstance(effect, m.Resigned):
                self._resigned = True
                self._beat(now_ms, effects)
            elif isinstance(effect, m.Superseded):
                self._beat(now_ms, effects)
            elif isinstance(effect, m.Drop) and effect.unregistered and self._may_ask(now_ms):
                self._beat(now_ms, effects)  # it may have registered just now

    def _may_ask(self, now_ms: int) -> bool:
        return now_ms - self._beat_ms >= ASK_AGAIN_MS

    def _slave(self, event: s.Event, now_ms: int, effects: list[Effect]) -> None:
        streamed = self.slave.streaming
        effects.extend(self.slave.step(event, now_ms))
        if streamed != self.slave.streaming and self.role is ReplicaRole.FOLLOWING:
            self._beat(now_ms, effects)  # the controller's second witness

    def _on_tick(self, event: Tick, now_ms: int, effects: list[Effect]) -> None:
        if self.role is ReplicaRole.JOINING:
            if self.connected and now_ms - self._asked_ms >= self.times.heartbeat_ms:
                self._register(now_ms, effects)
            return
        if now_ms - self._beat_ms >= self.times.heartbeat_ms:
            self._beat(now_ms, effects)
            founds = self.view.epoch == 0 and not self.rules.learner  # a learner never leads
            if self.connected and founds and self.role is ReplicaRole.WAITING:
                effects.append(AskForElection())
        if self.master is not None:
            if self.master.state is not MasterState.CLOSED:
                self._from_master(self.master.step(m.Tick(), now_ms), now_ms, effects)
        else:
            self._slave(m.Tick(), now_ms, effects)


OWN: Final[dict[type, str]] = {
    ControllerUp: "_on_controller_up",
    ControllerLost: "_on_controller_lost",
    Registered: "_on_registered",
    RegistrationRefused: "_on_registration_refused",
    HeartbeatAnswered: "_on_heartbeat_answered",
    RoleNotified: "_on_role_notified",
    SwitchAsked: "_on_switch_asked",
    Prepared: "_on_prepared",
    WritesClosed: "_on_writes_closed",
    m.Trimmed: "_on_trimmed",
    Tick: "_on_tick",
}
TO_MASTER: Final[frozenset[type]] = frozenset(HANDLERS) - {
    m.Tick,
    m.Trimmed,
    m.Resign,
    m.LeaseRenewed,
    m.SetLearned,
    m.ReplicasLearned,
}
TO_SLAVE: Final[frozenset[type]] = frozenset(s.HANDLERS) - {
    m.Tick,
    m.Trimmed,
    s.Follow,
    s.Unfollow,
}
