"""A controller core and the brokers of one group, driven by hand."""

from __future__ import annotations

from typing import Any

from tandemmq.replication.config import LeaseTimes
from tandemmq.replication.election import (
    AlterSyncSet,
    Announce,
    Answer,
    AnswerHeartbeat,
    ApplyBrokerId,
    ControllerCore,
    Effect,
    ElectMaster,
    GroupRecord,
    Heartbeat,
    Kind,
    Persist,
    RegisterBroker,
)


class Bench:
    """A controller and the brokers of group "a", driven by hand."""

    def __init__(self, replicas: int = 2, mode: str = "S0", **fields: Any) -> None:
        self.core = ControllerCore(LeaseTimes(), **fields)
        self.now_ms = 0
        self.durable: dict[str, GroupRecord] = {}
        for replica in range(1, replicas + 1):
            self.step(ApplyBrokerId(0, "c", "a", replica, f"code{replica}"))
            self.register(replica, mode=mode, lineage=(10 + replica,))
        self.step(ElectMaster(0, "c", "a", 1))
        self.beat(1, leading=True)
        if replicas > 1:
            self.alter(frozenset(range(1, replicas + 1)))

    def step(self, event: Any) -> list[Effect]:
        effects = self.core.step(event, self.now_ms)
        for effect in effects:
            if isinstance(effect, Persist) and effect.record is not None:
                self.durable[effect.group] = effect.record
        return effects

    @property
    def record(self) -> GroupRecord:
        return self.core.groups["a"].record

    def answer(self, event: Any) -> Answer:
        return next(each for each in self.step(event) if isinstance(each, Answer))

    def register(self, replica: int, incarnation: int = 0, **fields: Any) -> Answer:
        incarnation = incarnation or 10 + replica
        session = fields.pop("session", incarnation)
        event = RegisterBroker(
            0, session, "c", "a", replica, f"host{replica}:1", incarnation=incarnation, **fields
        )
        return self.answer(event)

    def beat(self, replica: int, **fields: Any) -> AnswerHeartbeat:
        incarnation = self.record.members[replica].incarnation
        fields.setdefault("epoch", self.record.epoch)
        event = Heartbeat(incarnation, "a", replica, incarnation, **fields)
        return next(each for each in self.step(event) if isinstance(each, AnswerHeartbeat))

    def alter(self, members: frozenset[int], **fields: Any) -> Answer:
        incarnations = tuple(
            (each, self.record.members[each].incarnation)
            for each in members
            if each in self.record.members
        )
        values = {
            "master": self.record.master, "epoch": self.record.epoch, "number": self.record.set_number,
            "incarnations": incarnations, **fields,
        }  # fmt: skip
        return self.answer(AlterSyncSet(0, "a", members=members, **values))


def told(effects: list[Effect]) -> list[Announce]:
    return [each for each in effects if isinstance(each, Announce)]


def kinds(effects: list[Effect]) -> list[Kind]:
    return [each.kind for each in told(effects)]
