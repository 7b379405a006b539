"""The simulator is only worth its time if it finds what is wrong: bugs planted one at a time must be found.

Each is a subclass that undoes one rule (for classic pairs, a change of what ships), and names the check that must
find it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mishapbugs import MISHAP_BUGS, judged_by
from shellbugs import answers_before_they_are_held

from tandemmq.chaos.sim.broker import Broker
from tandemmq.chaos.sim.checks import Check, Violation
from tandemmq.chaos.sim.control import Controller
from tandemmq.chaos.sim.disk import LOST, Disk
from tandemmq.chaos.sim.tables import TOPIC, Pulled, Schedule, Tables
from tandemmq.chaos.sim.world import Parts, simulate
from tandemmq.chaos.whole.judge import Promise
from tandemmq.chaos.whole.seeds import Plant, SeedRun, run_seed
from tandemmq.cluster.broker.reading.members import Peer
from tandemmq.cluster.broker.sending.steadytime import Arrivals
from tandemmq.cluster.broker.standing import comparison
from tandemmq.cluster.broker.tables.cuts import _SETTLED, Cuts
from tandemmq.cluster.broker.tables.resting import Resting
from tandemmq.replication import election as e
from tandemmq.replication import masterevents as m
from tandemmq.replication import slave as s
from tandemmq.replication.comparing import Verdict
from tandemmq.replication.config import Mode
from tandemmq.replication.election import ControllerCore
from tandemmq.replication.epochs import EpochHistory
from tandemmq.replication.evidence import GroupEvidence, Judge
from tandemmq.replication.master import MasterCore, Slave
from tandemmq.replication.replica import ReplicaCore
from tandemmq.replication.slave import SlaveCore

pytestmark = pytest.mark.simulation

ROOT = Path(__file__).parents[2]
EVENTS = 2000
PAIR_EVENTS = 3000  # of a classic pair, by what ships (chaos/whole)
SEEDS_MAX = 500
#: where the search for a rare one begins, to be quick: they are found at 332, 649 and 68, and by none before
FIRST_SEEDS = {
    "believes readers that come from a former master": 320,
    "moves readers of what it may not show yet": 630,
    "takes up a reign that was given to a copy of its store": 60,
}

#: checks that are asked beside another that finds the same bugs first
WITHOUT_A_BUG = {
    Check.COPIES: "who acknowledges alone is asked for the members that lack the message before",
    Check.DELETED: "no bug of retention is planted; a record behind a hole is found by it, too",
    Check.DIVERGED: "what differs after healing was confirmed before that",
    Check.FOREIGN: "a record behind a hole is found by it, too",
    Check.NOBODY: "no bug is planted that elects nobody",
    Check.POSITIONS: "the cores assert their positions themselves",
}


# --- in the master ---


class AcksAlone(MasterCore):
    """Acknowledges before the slaves have confirmed."""

    def _held_by(self, members: Iterable[int]) -> int:
        return self._own()


class TakesReceivedForFlushed(MasterCore):
    """S1 on the received position instead of the flushed one."""

    def _on_slave_reported(
        self, event: m.SlaveReported, now_ms: int, effects: list[m.Effect]
    ) -> None:
        super()._on_slave_reported(
            msgspec.structs.replace(event, flushed=event.received), now_ms, effects
        )


class ForgetsTheUnion(MasterCore):
    """A set change counts as soon as it is granted, and what was proposed does not (apache/rocketmq#5663)."""

    @property
    def union(self) -> frozenset[int]:
        return self.granted


class ShrinksAlone(MasterCore):
    """A lost slave leaves the set before the controller has agreed."""

    def _forget(self, slave: Slave, now_ms: int) -> None:
        super()._forget(slave, now_ms)
        self.granted = self.granted - {slave.replica}


class NeedsNoLease(MasterCore):
    """The lease is looked at before the append only (apache/rocketmq#7017, two masters after a pause)."""

    def _lease_valid(self, now_ms: int) -> bool:
        return True


class HearsWhoIsLeft(MasterCore):
    """Takes the word of those who are connected for that of the set."""

    def _held_by(self, members: Iterable[int]) -> int:
        return super()._held_by({self.replica, *self.slaves} & set(members))


class ConfirmsHalves(MasterCore):
    """Confirms up to the byte, in the middle of a record."""

    def _whole(self, reached: int) -> int:
        return reached


class AdmitsTooEarly(MasterCore):
    """Proposes a slave that does not hold everything confirmed yet."""

    def _joins(self, slave: Slave, now_ms: int) -> bool:
        return slave.received >= 0


# --- in the slave and the replica ---


class CutsByLength(SlaveCore):
    """Truncates at the shorter end instead of the last common epoch."""

    def _common_end(self, greeting: s.MasterGreeted) -> int | None:
        return min(self.end, greeting.end)


class CutsByConfirmed(SlaveCore):
    """Truncates at what it knows to be confirmed (Kafka before KIP-101, by the high watermark)."""

    def _common_end(self, greeting: s.MasterGreeted) -> int | None:
        return min(self.confirmed, self.end)


class SpeaksBeforeItWrites(SlaveCore):
    """Acknowledges more than it holds."""

    def _report(self, now_ms: int, effects: list[s.Effect]) -> None:
        super()._report(now_ms, effects)
        report = effects[-1]
        assert isinstance(report, s.ReportProgress)
        effects[-1] = msgspec.structs.replace(report, flushed=report.received)


@dataclass(frozen=True)
class KeepsEmptyReigns(EpochHistory):
    """Refuses an entry that starts where the last one starts, as RocketMQ does: silent divergence."""

    def begin(self, number: int, start: int) -> EpochHistory:
        if self.entries and self.entries[-1].start == start:
            return self
        return KeepsEmptyReigns(super().begin(number, start).entries)

    def cut(self, end: int) -> EpochHistory:
        return KeepsEmptyReigns(super().cut(end + 1).entries)


@dataclass(frozen=True)
class MovesTheFirstStart(EpochHistory):
    """Lets the first reign begin where the log begins, once retention took its first bytes."""

    def begin(self, number: int, start: int) -> EpochHistory:
        return MovesTheFirstStart(super().begin(number, start).entries)

    def cut(self, end: int) -> EpochHistory:
        return MovesTheFirstStart(super().cut(end).entries)

    def drop_before(self, start: int) -> EpochHistory:
        kept = super().drop_before(start).entries
        return MovesTheFirstStart((kept[0]._replace(start=start), *kept[1:]) if kept else kept)


@dataclass(frozen=True)
class ForgetsWhoWroteTheLastByte(EpochHistory):
    """Drops a reign that ends right at the log's start: a log may end there, too."""

    def begin(self, number: int, start: int) -> EpochHistory:
        return ForgetsWhoWroteTheLastByte(super().begin(number, start).entries)

    def cut(self, end: int) -> EpochHistory:
        return ForgetsWhoWroteTheLastByte(super().cut(end).entries)

    def drop_before(self, start: int) -> EpochHistory:
        return ForgetsWhoWroteTheLastByte(super().drop_before(start + 1).entries)


class KeepsAllReigns(MasterCore):
    """Lets a history outlive its log."""

    def _on_trimmed(self, event: m.Trimmed, now_ms: int, effects: list[m.Effect]) -> None:
        self.start = event.start


class FollowsWhoCannotLead(SlaveCore):
    """Cuts its log to where the master's no longer reaches back."""

    def _on_master_greeted(
        self, event: s.MasterGreeted, now_ms: int, effects: list[s.Effect]
    ) -> None:
        super()._on_master_greeted(msgspec.structs.replace(event, start=0), now_ms, effects)


class BelievesOldNews(ReplicaCore):
    """Believes the news of the group before this process is registered."""

    def _on_role_notified(self, event: Any, now_ms: int, effects: list[Any]) -> None:
        self._adopt(event.view, now_ms, effects)


# --- in the controller ---


class TrustsTheSuspect(ControllerCore):
    """Elects a replica that lost power with unflushed data (the last replica standing)."""

    def _restarted(
        self,
        group: GroupEvidence,
        replica: int,
        suspect: bool,
        now_ms: int,
        effects: list[e.Effect],
    ) -> None:
        super()._restarted(group, replica, False, now_ms, effects)


class ElectsAnybody(ControllerCore):
    """Elects outside the set, and does not say so."""

    def _elected(self, group: GroupEvidence, chosen: int, lossy: bool, *rest: Any) -> None:
        if lossy:
            changed = {
                **{name: getattr(group.record, name) for name in group.record.__struct_fields__}
            }
            group.record = e.GroupRecord(**{**changed, "sync_set": (chosen,), "electing_from": ()})
        super()._elected(group, chosen, False, *rest)


class OneWitnessIsEnough(Judge):
    """A closed session is taken for a dead master."""

    def may_lead(self, group: GroupEvidence, now_ms: int) -> bool:
        live = group.live.get(group.record.master)
        if live is not None and live.session == 0:
            return False
        return super().may_lead(group, now_ms)


class GoesByTheLastMode(Judge):
    """Of TakesTheLastMode."""

    said = ""

    def agreed_mode(self, group: GroupEvidence, now_ms: int) -> str:
        return self.said or group.record.mode


class TakesTheLastMode(ControllerCore):
    """The last to register sets the mode of its group, also when its configuration is the one that is wrong."""

    judge: GoesByTheLastMode

    def __post_init__(self) -> None:
        self.judge = GoesByTheLastMode(self.times, self.fast)

    def _on_register_broker(
        self, event: e.RegisterBroker, now_ms: int, effects: list[e.Effect]
    ) -> None:
        if event.replica == 1:
            event = msgspec.structs.replace(event, mode="A0")
        self.judge.said = event.mode
        super()._on_register_broker(event, now_ms, effects)


class KeepsTheEpoch(ControllerCore):
    """A restarted master goes on in its epoch (INV-28), and may overwrite what it lost."""

    def _restarted(
        self,
        group: GroupEvidence,
        replica: int,
        suspect: bool,
        now_ms: int,
        effects: list[e.Effect],
    ) -> None:
        return


class BelievesWhateverComesBack(Judge):
    """Compares no store with what it held before (INV-37, INV-38)."""

    def came_back_short(self, group: GroupEvidence, event: e.RegisterBroker) -> str:
        return ""

    def lacking(self, group: GroupEvidence) -> dict[int, int]:
        return {}


class ForgetsWhatWasConfirmed(ControllerCore):
    """What was confirmed is compared, and dies with the controller (INV-37)."""

    def load(self, records: Iterable[e.GroupRecord]) -> None:
        def forgotten(record: e.GroupRecord) -> e.GroupRecord:
            members = {
                each: msgspec.structs.replace(member, held=0)
                for each, member in record.members.items()
            }
            return msgspec.structs.replace(record, members=members, confirmed=0)

        super().load([forgotten(record) for record in records])


# --- in the shells ---


class ShowsEverything(Broker):
    """Consumers see beyond the confirmed offset."""

    def visible(self) -> int:
        return self.disk.end


class CountsQueuesToConfirmed(Broker):
    """Queue offsets restart at the confirmed offset (apache/rocketmq#7689)."""

    def recompute_queue_offsets(self) -> None:
        assert self.core is not None
        cells = self.disk.cells
        self.disk.cells = cells[: self.core.slave.confirmed]
        super().recompute_queue_offsets()
        self.disk.cells = cells


class KeepsEpochsInMemory(Broker):
    """The epoch entry is not durable before the first append."""

    def _persist_history(self, effect: s.PersistHistory) -> None:
        return


class RetriesTheSync(Broker):
    """Goes on after a failed sync, and the next one reports success."""

    def sync_failed(self) -> None:
        self.disk.holes.append((self.disk.flushed, self.disk.end))


class SkipsHoles(Disk):
    """Recovery uses a whole record behind a hole."""

    def recover(self) -> None:
        while self.cells and self.cells[-1] == LOST:
            self.cells.pop()
        for at, cell in enumerate(self.cells):
            if cell == LOST:
                self.cells[at] = self.cells[at - 1] if at else 0
        self.flushed = min(self.flushed, len(self.cells))
        self.confirmed = min(self.confirmed, len(self.cells))


class LeavesCutsInTheCache(Disk):
    """Cuts off what was flushed, and nothing is left to flush: zeros that no sync is asked for (INV-40)."""

    def sync_cut(self) -> None:
        return


class LosesPowerAfterACut(Broker):
    """No bug: bad luck that few seeds have. Cuts are rare, and a flush soon follows."""

    def _truncate(self, effect: s.Truncate) -> None:
        super()._truncate(effect)
        if self.up:
            self.world.fail(self, power=True)


class ActsBeforeItPersists(Controller):
    """Effects leave before the record is durable."""

    def _release(self, life: int) -> None:
        while self._held and self.up and life == self.life:
            effect = self._held.popleft()
            if isinstance(effect, e.Persist):
                self.world.after(self.world.rng.randrange(100, 3000), self._persisted, life, effect)
            else:
                self._perform(effect)


# --- in what follows from the log ---


class LeavesReaders(Cuts):
    """Readers go on from where they stand, whatever was lost (INV-42)."""

    def target(self, *reader: Any) -> int | None:
        return None


class TakesEveryCommit(Cuts):
    """A commit of before a loss passes over what came since (INV-42)."""

    def beyond(self, *commit: Any, kept: bool = False) -> bool:
        return False


class MovesToTheCut(Cuts):
    """Moves readers to the cut, and not to what their group has consumed (INV-42)."""

    def target(
        self, group: str, topic: str, queue_id: int, offset: int, reader: Peer
    ) -> int | None:
        moved = super().target(group, topic, queue_id, offset, reader)
        return None if moved is None else max(moved, self._ends.get((topic, queue_id), 0))


class BelievesWhoHeard(Cuts):
    """Who stood in the new history once is believed wherever it comes from (INV-42)."""

    def target(
        self, group: str, topic: str, queue_id: int, offset: int, reader: Peer
    ) -> int | None:
        heard = self._readers.get((self._client(group, reader), topic, queue_id)) == _SETTLED
        return None if heard else super().target(group, topic, queue_id, offset, reader)


class MovesWhoIsAhead(Tables):
    """Moves a reader of what is held and not confirmed here yet (INV-42)."""

    def _stored(self, number: int, offset: int) -> Pulled:
        found = super()._stored(number, offset)
        highest = self.store.max_offset(TOPIC, number)
        serves = self.broker.accepts and highest and offset > highest
        return Pulled(True, highest) if serves else found


class KeepsItsProgress(Schedule):
    """Progress of delay levels stays when the log is cut (INV-41)."""

    def cut(self, log_end: int) -> None:
        return


class SavesAtOnce(Tables):
    """Saves progress whatever its log's state (INV-41)."""

    saves_at_once = True
    make_schedule = KeepsItsProgress


class TakesOverAtOnce(Resting):
    """A slave takes over progress before it has the log that this rests on (INV-41)."""

    def holds(self, end: int) -> bool:
        return True


class DeliversAtOnce(Schedule):
    """Counts delays from nowhere."""

    def _reign_began(self) -> None:
        super()._reign_began()
        now_ms = self._clock.monotonic_ms()
        for level in self._arrivals:
            self._arrivals[level] = Arrivals(0, 0, now_ms)


# --- in classic pairs ---


def compares_lengths() -> None:
    """A classic slave's log is taken for its master's once it is no longer than that (INV-36)."""
    comparison.stretch_digest = lambda *_: b"the same"
    comparison.begins_entry = lambda *_: True


def compares_for_equality() -> None:
    """A classic slave that lacks what its master took since is taken for one with another log."""
    usual = comparison.ComparingMaster._compared

    async def compared(self: Any, request: Any, header: Any) -> Any:
        if 0 < header.log_end < self._store.end:
            return self._said(request, Verdict.DIFFERS, "ours is longer")
        return await usual(self, request, header)

    comparison.ComparingMaster._compared = compared  # type: ignore[method-assign]


def with_tables(**fields: Any) -> Parts:
    return Parts(tables=type("Planted", (Tables,), fields))


def with_master(core: type[MasterCore]) -> Parts:
    return Parts(broker=type("Planted", (Broker,), {"make_master": core}))


def with_slave(core: type[SlaveCore]) -> Parts:
    return Parts(broker=type("Planted", (Broker,), {"make_slave": core}))


def with_controller(core: type[ControllerCore], **fields: Any) -> Parts:
    return Parts(controller=type("Planted", (Controller,), {"make_core": core, **fields}))


def with_history(history: EpochHistory) -> Parts:
    class Planted(Broker):
        def reset(self) -> None:
            if not self.disk.history.entries:
                self.disk.history = history
            super().reset()

    return Parts(broker=Planted)


def with_disk(disk: type[Disk], broker: type[Broker] = Broker) -> Parts:
    class Planted(broker):  # type: ignore[misc, valid-type]
        def reset(self) -> None:
            if type(self.disk) is Disk:
                self.disk = disk(sizes=self.disk.sizes)
            super().reset()

    return Parts(broker=Planted)


class Unclean(ElectsAnybody):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.unclean = True


#: the bug: what runs instead, the modes whose promise the rule protects, and who must find it: a check of the
#: simulator, or an assertion of the core by how its text begins
BUGS: dict[str, tuple[Parts | Plant, tuple[Mode, ...], Check | Promise | str]] = {
    "acknowledges before the slave has confirmed": (
        with_master(AcksAlone),
        (Mode.S0, Mode.S1),
        Check.UNHELD,
    ),
    "takes received for flushed": (with_master(TakesReceivedForFlushed), (Mode.S1,), Check.UNHELD),
    "forgets the union while a set change is pending": (
        with_master(ForgetsTheUnion),
        (Mode.S0,),
        Check.UNHELD,
    ),
    "shrinks the set alone": (with_master(ShrinksAlone), (Mode.S0, Mode.S1), Check.UNHELD),
    "checks the lease before the wait only": (
        with_master(NeedsNoLease),
        (Mode.A1,),
        Check.MASTERS,
    ),
    "takes the word of those who are left": (
        with_master(HearsWhoIsLeft),
        (Mode.S0, Mode.S1),
        Check.UNHELD,
    ),
    "confirms half a record": (with_master(ConfirmsHalves), (Mode.S0, Mode.S1), Check.HALF),
    "admits a slave that lacks confirmed data": (
        with_master(AdmitsTooEarly),
        (Mode.S0, Mode.S1),
        Check.PROPOSED,
    ),
    "truncates by length": (with_slave(CutsByLength), (Mode.S0, Mode.S1), Check.STUCK),
    "truncates by what is confirmed": (
        with_slave(CutsByConfirmed),
        (Mode.S0, Mode.S1),
        Check.ALARM,
    ),
    "claims to have flushed what it received": (
        with_slave(SpeaksBeforeItWrites),
        (Mode.S1,),
        Check.UNHELD,
    ),
    "believes news from before it registered": (
        Parts(broker=type("Planted", (Broker,), {"make_replica": BelievesOldNews})),
        (Mode.S0, Mode.S1),
        "(<ReplicaRole.JOINING",
    ),
    "keeps an empty reign": (with_history(KeepsEmptyReigns()), (Mode.S0, Mode.A0), Check.WRITER),
    "moves the start of a trimmed reign": (
        with_history(MovesTheFirstStart()),
        (Mode.A0, Mode.S0),
        Check.ALARM,
    ),
    "forgets who wrote the last byte": (
        with_history(ForgetsWhoWroteTheLastByte()),
        (Mode.S0, Mode.S1),
        Check.ALARM,
    ),
    "keeps the reigns of deleted bytes": (
        with_master(KeepsAllReigns),
        (Mode.S0, Mode.S1),
        Check.HISTORY,
    ),
    "follows who cannot lead it": (
        with_slave(FollowsWhoCannotLead),
        (Mode.A0, Mode.S0),
        Check.STUCK,
    ),
    "keeps epochs in memory": (
        Parts(broker=KeepsEpochsInMemory),
        (Mode.S0, Mode.S1),
        Check.HISTORY,
    ),
    "trusts a replica that lost power": (
        with_controller(TrustsTheSuspect),
        (Mode.S0,),
        Check.CHANGED,
    ),
    "elects outside the set": (with_controller(Unclean), (Mode.S0, Mode.S1), Check.CHANGED),
    "elects on one witness": (
        with_controller(judged_by(OneWitnessIsEnough)),
        (Mode.A0, Mode.A1),
        Check.LEASE,
    ),
    "takes the mode of the last to register": (
        with_controller(TakesTheLastMode),
        (Mode.S0,),
        Check.LOST,
    ),
    "lets a restarted master keep its epoch": (
        with_controller(KeepsTheEpoch),
        (Mode.S0, Mode.S1),
        Check.CHANGED,
    ),
    "acts before the record is durable": (
        Parts(controller=ActsBeforeItPersists),
        (Mode.S0, Mode.A0),
        Check.UNHELD,
    ),
    "shows consumers what is not confirmed": (
        Parts(broker=ShowsEverything),
        (Mode.S0, Mode.S1),
        Check.CHANGED,
    ),
    "counts queue offsets to the confirmed offset": (
        Parts(broker=CountsQueuesToConfirmed),
        (Mode.S0,),
        Check.QUEUES,
    ),
    "goes on after a failed sync": (
        Parts(broker=RetriesTheSync),
        (Mode.A1, Mode.S1),
        Check.LOST,
    ),
    "uses a record behind a hole": (with_disk(SkipsHoles), (Mode.A0, Mode.S0), Check.CHANGED),
    "syncs no cut of what was flushed": (
        with_disk(LeavesCutsInTheCache, LosesPowerAfterACut),
        (Mode.S0, Mode.S1),
        Check.RETURNED,
    ),
    "believes whatever store comes back": (
        replace(with_controller(judged_by(BelievesWhateverComesBack)), short_stores=True),
        (Mode.S0, Mode.S1),
        Check.CHANGED,
    ),
    "leaves readers beyond what a loss left": (
        with_tables(make_cuts=LeavesReaders),
        (Mode.A0, Mode.A1),
        Check.DELIVERED,
    ),
    "takes commits of before a loss": (
        with_tables(make_cuts=TakesEveryCommit),
        (Mode.A0,),
        Check.DELIVERED,
    ),
    "moves readers over what they have not consumed": (
        with_tables(make_cuts=MovesToTheCut),
        (Mode.A1,),
        Check.DELIVERED,
    ),
    "believes readers that come from a former master": (
        with_tables(make_cuts=BelievesWhoHeard),
        (Mode.A1,),
        Check.DELIVERED,
    ),
    "moves readers of what it may not show yet": (
        Parts(tables=MovesWhoIsAhead),
        (Mode.S0,),
        Check.DELIVERED,
    ),
    "saves progress before its log": (Parts(tables=SavesAtOnce), (Mode.A0,), Check.DELAYED),
    "takes over progress before the log": (
        with_tables(rests=TakesOverAtOnce),
        (Mode.S1,),
        Check.DELAYED,
    ),
    "delivers delayed messages when they come": (
        with_tables(make_schedule=DeliversAtOnce),
        (Mode.S0, Mode.A1),
        Check.EARLY,
    ),
    "counts a classic slave uncompared": (
        compares_lengths,
        (Mode.S0,),
        Promise.FORKED,
    ),
    "stops a classic slave that is only behind": (
        compares_for_equality,
        tuple(Mode),
        Promise.ALARM,
    ),
    "answers before a classic slave has reported": (
        answers_before_they_are_held,
        (Mode.S0, Mode.S1),
        Promise.COPIES,
    ),
    "forgets what was confirmed when it restarts": (
        replace(with_controller(ForgetsWhatWasConfirmed), short_stores=True),
        (Mode.S0, Mode.S1),
        Check.ALARM,
    ),
    **MISHAP_BUGS,
}


def test_power_lost_after_every_cut_brings_nothing_back() -> None:
    """The bad luck of "syncs no cut of what was flushed" without its bug."""
    parts = Parts(broker=LosesPowerAfterACut)
    for seed in range(60):
        simulate(seed, EVENTS, mode=(Mode.S0, Mode.S1)[seed % 2], parts=parts)


class SaysNothingNew(MasterCore):
    """Stops with an exception that is no verdict: what a slip in a planted bug looks like."""

    def _on_slave_reported(
        self, event: m.SlaveReported, now_ms: int, effects: list[m.Effect]
    ) -> None:
        raise TypeError("replace() should be called on dataclass instances")


def found(parts: Parts | Plant, mode: Mode, seed: int, by: Check | Promise | str) -> bool:
    """Whether this seed finds the bug by the check, or the assertion, that is named.

    What another check finds does not count; an exception that is no verdict at all is a mistake in the test, and
    is raised.
    """
    try:
        if not isinstance(parts, Parts):
            pair = SeedRun(seed, PAIR_EVENTS, mode, plant=parts, classic=True)
            return run_seed(pair).promise == getattr(by, "name", None)
        simulate(seed, EVENTS, mode=mode, parts=parts)
    except Violation as violation:
        return violation.check is by
    except AssertionError as problem:
        return isinstance(by, str) and str(problem).startswith(by)
    return False


@pytest.mark.parametrize("bug", BUGS)
def test_simulation_finds_a_broker_that(bug: str) -> None:
    parts, modes, by = BUGS[bug]
    first = FIRST_SEEDS.get(bug, 0)
    seeds = range(first, first + SEEDS_MAX)
    if not any(found(parts, modes[seed % len(modes)], seed, by) for seed in seeds):
        pytest.fail(f"{SEEDS_MAX} seeds did not find it by: {by}")


def rolling_finds(parts: Parts, seed: int) -> Check | None:
    """What finds fault with a group that goes from S0 to S1 and back, replica by replica."""
    try:
        simulate(seed, EVENTS, mode=(Mode.S0, Mode.S1)[seed % 2], parts=parts, rolling=True)
    except Violation as violation:
        return violation.check
    return None


def test_a_rolling_change_of_the_flush_mode_keeps_every_promise() -> None:
    """INV-39. Eleven of these seeds lost acknowledged messages when broker.conf decided who is suspect."""
    assert {rolling_finds(Parts(), seed) for seed in range(150)} == {None}


def test_a_planted_bug_that_only_raises_is_not_found() -> None:
    with pytest.raises(TypeError, match="dataclass instances"):
        for seed in range(SEEDS_MAX):
            assert not found(with_master(SaysNothingNew), Mode.S0, seed, Check.UNHELD)


def test_what_another_check_finds_does_not_count() -> None:
    parts = with_master(AcksAlone)
    seed = next(each for each in range(SEEDS_MAX) if found(parts, Mode.S0, each, Check.UNHELD))
    assert not found(parts, Mode.S0, seed, Check.LOST)
    assert not found(parts, Mode.S0, seed, "(<ReplicaRole.JOINING")


def test_each_check_of_the_simulator_finds_a_planted_bug_or_says_why_none_is_planted() -> None:
    named = {by for _, _, by in BUGS.values() if isinstance(by, Check)}
    assert named | WITHOUT_A_BUG.keys() == set(Check)
    assert not named & WITHOUT_A_BUG.keys()


def test_the_lessons_count_and_name_the_bugs_that_are_planted() -> None:
    text = (ROOT / "docs/lessons.md").read_text(encoding="utf-8")
    assert lessons_table() in text, f"run {__file__} with tests/kits in PYTHONPATH"


def lessons_table() -> str:
    """The section of docs/lessons.md about planted bugs."""
    rows = "".join(
        f"| {bug} | {', '.join(mode.value for mode in modes)} | {_name(by)} |\n"
        for bug, (_, modes, by) in BUGS.items()
    )
    return (
        f"## {len(BUGS)} planted bugs\n\n"
        f"Each is a rule undone in the simulator, and found within {SEEDS_MAX} seeds by the check named. A finding of\n"
        "another check, or an exception that is none, does not count.\n\n"
        f"| a broker or controller that | modes | found by |\n| --- | --- | --- |\n{rows}"
    )


def _name(by: Check | Promise | str) -> str:
    if isinstance(by, Check | Promise):
        return by.value
    return f"an assertion: `{by}`"


if __name__ == "__main__":
    page = ROOT / "docs/lessons.md"
    rest = re.sub(r"## \d+ planted bugs\n.*", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    page.write_text(rest + lessons_table(), encoding="utf-8")
