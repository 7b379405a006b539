"""Planted bugs that need a mishap of their own: a copied store, lost records, an etcd, a rolling change of modes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tandemmq.chaos.sim.broker import Broker
from tandemmq.chaos.sim.checks import Check
from tandemmq.chaos.sim.control import Controller
from tandemmq.chaos.sim.controllers import EtcdController, EtcdControllers
from tandemmq.chaos.sim.mishaps import CLONES, ETCD, RECORDS
from tandemmq.chaos.sim.world import Parts
from tandemmq.cluster.controller.etcdstore import PAST, EtcdStore, _put
from tandemmq.cluster.controller.store import Changes
from tandemmq.replication import election as e
from tandemmq.replication import slave as s
from tandemmq.replication.config import Mode
from tandemmq.replication.election import ControllerCore, GroupRecord
from tandemmq.replication.evidence import GroupEvidence, Judge
from tandemmq.replication.group import NO_SESSION, GroupView
from tandemmq.replication.replica import ReplicaCore
from tandemmq.replication.slave import SlaveCore


class BelievesWhoeverSaysAnId(ControllerCore):
    """A registration under a known id is that replica's (INV-38, INV-44)."""

    def _on_register_broker(
        self, event: e.RegisterBroker, now_ms: int, effects: list[e.Effect]
    ) -> None:
        group = self.groups.get(event.group)
        if group is not None:
            live = self.judge.live_of(group, event.replica)
            if live.session != event.session:
                live.session, live.heard_ms = NO_SESSION, -(1 << 60)
        self.start_ms = -(1 << 60)
        super()._on_register_broker(event, now_ms, effects)


class TakesEveryAnswerForItsOwn(ReplicaCore):
    """A reign of its id is its own, though an answer does not say which process was elected (INV-38)."""

    def _elects_us(self, view: GroupView) -> bool:
        return False


class HasACopyBesideIt(Broker):
    make_replica = TakesEveryAnswerForItsOwn


class GoesByWhatIsLeft(Judge):
    """Elects by an older record, whatever epoch the logs have."""

    def has_forgotten(self, group: GroupEvidence) -> bool:
        return False


class TrustsTheOlderMaster(ControllerCore):
    """Elects nobody by an older record, but gives the master of that one its lease."""

    def load(self, records: Iterable[GroupRecord]) -> None:
        super().load(records)
        for group in self.groups.values():
            group.loaded = frozenset()


class DeclaresNoLossByHand(ControllerCore):
    """Whom an operator elects inside the set of an older record has everything."""

    def _elected(self, group: GroupEvidence, chosen: int, lossy: bool, *rest: Any) -> None:
        super()._elected(group, chosen, lossy, *rest)
        if not lossy:
            group.record = msgspec.structs.replace(group.record, lossy_epoch=0)


class WritesUnfenced(EtcdStore):
    """A write does not ask who leads, nor what was written last (INV-34)."""

    async def _write(self, changes: Changes) -> None:
        self._number += 1
        token = f"{self._process}:{self._number}".encode()
        puts = [_put(self._writes_key, token), *self._operations(changes)]
        await self._open_etcd.transact([], puts, [])
        self._written = token


class BelievesInItsLease(EtcdStore):
    """Leads until etcd says otherwise, and not until the lease may be over."""

    def leading(self) -> bool:
        return self._leads_until_ms != PAST


class WaitsForNoLease(ControllerCore):
    """Takes over, and elects, while a lease of its predecessor may hold."""

    def load(self, records: Iterable[GroupRecord]) -> None:
        self.start_ms -= 10 * self.times.election_wait_ms
        super().load(records)


class GoesByTheNewConfiguration(Broker):
    """After a power cut asks broker.conf, not the mark of the process that died (INV-39)."""

    def suspects(self, ran: Mode) -> bool:
        return super().suspects(self.mode)


class ReportsWhatItReceived(SlaveCore):
    """A slave with SYNC_FLUSH tells a master that may count it of bytes that it only received (INV-39)."""

    def _report(self, now_ms: int, effects: list[s.Effect]) -> None:
        durable, self.durable = self.durable, False
        super()._report(now_ms, effects)
        self.durable = durable


def judged_by(judge: type[Judge]) -> type[ControllerCore]:
    """A controller that believes this judge."""

    class Judged(ControllerCore):
        def __post_init__(self) -> None:
            self.judge = judge(self.times, self.fast)

    return Judged


def controller_of(mishap: str, core: type[ControllerCore]) -> Parts:
    planted = type("Planted", (Controller,), {"make_core": core})
    return Parts(controller=planted, mishaps=frozenset({mishap}))


def etcd_of(**fields: Any) -> Parts:
    planted = type("Planted", (EtcdController,), fields)
    every = type("AllPlanted", (EtcdControllers,), {"make_controller": planted})
    return Parts(controller=every, mishaps=frozenset({ETCD}))


class SlavesReportWhatTheyReceived(Broker):
    make_slave = ReportsWhatItReceived


def rolling(broker: type[Broker]) -> Parts:
    return Parts(broker=broker, mishaps=frozenset(), rolling=True, plan=ROLLING)


#: hosts of a group that is changed in rolling order fail together, while its disks are slow
ROLLING = {
    "replicas": 2,
    "learner": 0,
    "drifts": (0.01, -0.01, 0.0),
    "fault_kinds": ("power_all", "slow_disk"),
    "fault_rate": 6.0,
    "put_rate": 120.0,
}
SYNCHRONOUS = (Mode.S0, Mode.S1)

#: as BUGS of test_planted_bugs.py
MISHAP_BUGS: dict[str, tuple[Parts, tuple[Mode, ...], Check | str]] = {
    "believes whoever says a replica's id": (
        controller_of(CLONES, BelievesWhoeverSaysAnId), SYNCHRONOUS, Check.CLONE,
    ),
    "takes up a reign that was given to a copy of its store": (
        Parts(broker=HasACopyBesideIt, mishaps=frozenset({CLONES})), (Mode.A0, Mode.A1), Check.TAKEN,
    ),
    "goes by what is left of its records": (
        controller_of(RECORDS, judged_by(GoesByWhatIsLeft)), SYNCHRONOUS, Check.FORGOTTEN,
    ),
    "trusts the master of an older record": (
        controller_of(RECORDS, TrustsTheOlderMaster), SYNCHRONOUS, Check.FORGOTTEN,
    ),
    "declares no loss by hand inside an older set": (
        controller_of(RECORDS, DeclaresNoLossByHand), SYNCHRONOUS, Check.FORGOTTEN,
    ),
    "writes to etcd without asking who leads": (
        etcd_of(make_store=WritesUnfenced), SYNCHRONOUS, Check.FENCED,
    ),
    "leads by etcd until it is told otherwise": (
        etcd_of(make_store=BelievesInItsLease), SYNCHRONOUS, Check.FENCED,
    ),
    "takes over without waiting for a lease": (
        etcd_of(make_core=WaitsForNoLease), SYNCHRONOUS, Check.LEASE,
    ),
    "goes by the new configuration": (
        rolling(GoesByTheNewConfiguration), SYNCHRONOUS, Check.CHANGED,
    ),
    "reports received bytes from a disk that counts": (
        rolling(SlavesReportWhatTheyReceived), SYNCHRONOUS, Check.CHANGED,
    ),
}  # fmt: skip
