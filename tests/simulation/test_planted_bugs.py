"""The simulator is only worth its time if it finds what is wrong: bugs planted one at a time must be found.

Each is a subclass that undoes one rule. The modes are those whose promise the rule protects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from chaos.sim.broker import Broker
from chaos.sim.campaign import attempt
from chaos.sim.control import Controller
from chaos.sim.disk import LOST, Disk
from chaos.sim.world import Parts
from replication import election as e
from replication import masterevents as m
from replication import slave as s
from replication.config import Mode
from replication.election import ControllerCore
from replication.epochs import EpochHistory
from replication.evidence import Group
from replication.master import MasterCore, Slave
from replication.replica import ReplicaCore
from replication.slave import SlaveCore

pytestmark = pytest.mark.simulation

SEEDS_MAX = 500  # all are found within 100, most within 10


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
        super()._on_slave_reported(replace(event, flushed=event.received), now_ms, effects)


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
        effects[-1] = replace(report, flushed=report.received)


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
        super()._on_master_greeted(replace(event, start=0), now_ms, effects)


class BelievesOldNews(ReplicaCore):
    """Believes the news of the group before this process is registered."""

    def _on_role_notified(self, event: Any, now_ms: int, effects: list[Any]) -> None:
        self._adopt(event.view, now_ms, effects)


# --- in the controller ---


class TrustsTheSuspect(ControllerCore):
    """Elects a replica that lost power with unflushed data (the last replica standing)."""

    def _restarted(
        self, group: Group, replica: int, suspect: bool, now_ms: int, effects: list[e.Effect]
    ) -> None:
        super()._restarted(group, replica, False, now_ms, effects)


class ElectsAnybody(ControllerCore):
    """Elects outside the set, and does not say so."""

    def _elected(self, group: Group, chosen: int, lossy: bool, *rest: Any) -> None:
        if lossy:
            changed = {
                **{name: getattr(group.record, name) for name in group.record.__struct_fields__}
            }
            group.record = e.GroupRecord(**{**changed, "sync_set": (chosen,), "electing_from": ()})
        super()._elected(group, chosen, False, *rest)


class OneWitnessIsEnough(ControllerCore):
    """A closed session is taken for a dead master."""

    def _may_lead(self, group: Group, now_ms: int) -> bool:
        live = group.live.get(group.record.master)
        if live is not None and live.session == 0:
            return False
        return super()._may_lead(group, now_ms)


class TakesTheLastMode(ControllerCore):
    """The last to register sets the mode of its group, also when its configuration is the one that is wrong."""

    said = ""

    def _on_register_broker(
        self, event: e.RegisterBroker, now_ms: int, effects: list[e.Effect]
    ) -> None:
        if event.replica == 1:
            event = msgspec.structs.replace(event, mode="A0")
        self.said = event.mode
        super()._on_register_broker(event, now_ms, effects)

    def _agreed_mode(self, group: Group, now_ms: int) -> str:
        return self.said or group.record.mode


class KeepsTheEpoch(ControllerCore):
    """A restarted master goes on in its epoch (INV-28), and may overwrite what it lost."""

    def _restarted(
        self, group: Group, replica: int, suspect: bool, now_ms: int, effects: list[e.Effect]
    ) -> None:
        return


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


class ActsBeforeItPersists(Controller):
    """Effects leave before the record is durable."""

    def _release(self, life: int) -> None:
        while self._held and self.up and life == self.life:
            effect = self._held.popleft()
            if isinstance(effect, e.Persist):
                self.world.after(self.world.rng.randrange(100, 3000), self._persisted, life, effect)
            else:
                self._perform(effect)


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


def with_disk(disk: type[Disk]) -> Parts:
    class Planted(Broker):
        def reset(self) -> None:
            if type(self.disk) is Disk:
                self.disk = disk(sizes=self.disk.sizes)
            super().reset()

    return Parts(broker=Planted)


class Unclean(ElectsAnybody):
    def __post_init__(self) -> None:
        self.unclean = True


BUGS: dict[str, tuple[Parts, tuple[Mode, ...]]] = {
    "acknowledges before the slave has confirmed": (with_master(AcksAlone), (Mode.S0, Mode.S1)),
    "takes received for flushed": (with_master(TakesReceivedForFlushed), (Mode.S1,)),
    "forgets the union while a set change is pending": (with_master(ForgetsTheUnion), (Mode.S0,)),
    "shrinks the set alone": (with_master(ShrinksAlone), (Mode.S0, Mode.S1)),
    "checks the lease before the wait only": (with_master(NeedsNoLease), (Mode.S0, Mode.A1)),
    "confirms half a record": (with_master(ConfirmsHalves), (Mode.S0, Mode.S1)),
    "admits a slave that lacks confirmed data": (with_master(AdmitsTooEarly), (Mode.S0, Mode.S1)),
    "truncates by length": (with_slave(CutsByLength), (Mode.S0, Mode.S1)),
    "truncates by what is confirmed": (with_slave(CutsByConfirmed), (Mode.S0, Mode.S1)),
    "claims to have flushed what it received": (with_slave(SpeaksBeforeItWrites), (Mode.S1,)),
    "believes news from before it registered": (
        Parts(broker=type("Planted", (Broker,), {"make_replica": BelievesOldNews})),
        (Mode.S0, Mode.S1),
    ),
    "keeps an empty reign": (with_history(KeepsEmptyReigns()), (Mode.S0, Mode.A0)),
    "moves the start of a trimmed reign": (with_history(MovesTheFirstStart()), (Mode.A0, Mode.S0)),
    "forgets who wrote the last byte": (
        with_history(ForgetsWhoWroteTheLastByte()),
        (Mode.S0, Mode.S1),
    ),
    "keeps the reigns of deleted bytes": (with_master(KeepsAllReigns), (Mode.S0, Mode.S1)),
    "follows who cannot lead it": (with_slave(FollowsWhoCannotLead), (Mode.A0, Mode.S0)),
    "keeps epochs in memory": (Parts(broker=KeepsEpochsInMemory), (Mode.S0, Mode.S1)),
    "trusts a replica that lost power": (with_controller(TrustsTheSuspect), (Mode.S0,)),
    "elects outside the set": (with_controller(Unclean), (Mode.S0, Mode.S1)),
    "elects on one witness": (with_controller(OneWitnessIsEnough), (Mode.A0, Mode.A1)),
    "takes the mode of the last to register": (with_controller(TakesTheLastMode), (Mode.S0,)),
    "lets a restarted master keep its epoch": (with_controller(KeepsTheEpoch), (Mode.S0, Mode.S1)),
    "acts before the record is durable": (
        Parts(controller=ActsBeforeItPersists),
        (Mode.S0, Mode.A0),
    ),
    "shows consumers what is not confirmed": (Parts(broker=ShowsEverything), (Mode.S0, Mode.S1)),
    "counts queue offsets to the confirmed offset": (
        Parts(broker=CountsQueuesToConfirmed),
        (Mode.S0,),
    ),
    "goes on after a failed sync": (Parts(broker=RetriesTheSync), (Mode.A1, Mode.S1)),
    "uses a record behind a hole": (with_disk(SkipsHoles), (Mode.A0, Mode.S0)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_simulation_finds_a_broker_that(bug: str) -> None:
    parts, modes = BUGS[bug]
    for seed in range(SEEDS_MAX):
        found = attempt(seed, 2000, modes[seed % len(modes)], parts)
        if isinstance(found, str):
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not find it")
