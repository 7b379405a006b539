"""The controller's file is lost, or an older copy of it is put back (docs/howto/controller.md, "Its records are lost").

A controller cannot know by itself that it is older than its groups: brokers tell it, by the epochs of their logs and
reigns. So what is asked is what the how-to says: as soon as somebody told it of a later epoch it elects nobody unless
an operator does, gives no lease and changes no set, and an operator's election is declared lossy and above every epoch
that it was told. Where nobody was there to tell it, whatever follows is the fault of who put an old copy back: such a
run ends there, unjudged.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from tandemmq.chaos.sim.checks import Check, Violation
from tandemmq.chaos.sim.control import Controller
from tandemmq.replication import election as e

if TYPE_CHECKING:
    from tandemmq.chaos.sim.world import World
    from tandemmq.replication.election import GroupRecord

MISHAP_US: Final = (600_000, 2_000_000)  # between two of them
COPY_US: Final = (50_000, 500_000)  # between two copies that somebody keeps
AWAY_US: Final = (5_000, 300_000)


class Unjudged(Exception):
    """From here on nobody promises anything; the text says why."""


class LostRecords:
    """Takes records away, and judges what the controller does then.

    newest  the highest epoch that was durable when records were lost
    told    the highest epoch that this life of the controller was told
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(world.seed ^ 0x4EC04D)  # so that it moves no other draw
        self._copies: list[GroupRecord] = []
        self._life = 0
        self.newest = 0
        self.told = 0
        world.after(self._rng.randrange(*COPY_US), self._copy)
        world.after(self._rng.randrange(*MISHAP_US), self._lose)

    @property
    def lost(self) -> bool:
        """Whether the controller knows less than it once did."""
        return self.newest > self._world.controller.record.epoch

    def _copy(self) -> None:
        world = self._world
        if world.faulty:
            if world.controller.durable is not None and not self.lost:
                self._copies.append(world.controller.durable)
            world.after(self._rng.randrange(*COPY_US), self._copy)

    def _lose(self) -> None:
        world, rng = self._world, self._rng
        if not world.faulty:
            return
        world.after(rng.randrange(*MISHAP_US), self._lose)
        controller, before = world.controller, world.controller.durable
        if before is None or not before.epoch:
            return
        older = [each for each in self._copies if each.epoch < before.epoch]
        kind = rng.choice(("gone", "older"))
        if kind == "older" and not older:
            return
        assert isinstance(controller, Controller), "what is in etcd is not lost"
        controller.crash()
        controller.durable = rng.choice(older) if kind == "older" else None
        self.newest = max(self.newest, before.epoch)
        world.mark("records " + kind)
        world.note("records", kind, before.epoch, controller.record.epoch)
        world.after(rng.randrange(*AWAY_US), self._restart)

    def _restart(self) -> None:
        if not self._world.controller.up:
            self._world.controller.start()

    # --- judging ---

    def decided(
        self, life: int, event: e.Event, before: GroupRecord, effects: list[e.Effect]
    ) -> None:
        """What one event made the controller do. Raises Violation, Unjudged."""
        if life != self._life:
            self._life, self.told = life, 0
        if isinstance(event, e.RegisterBroker | e.Heartbeat) and _believed(effects):
            self.told = max(self.told, event.epoch)
        known, after = self.told > before.epoch, self._world.controller.record
        if after.epoch > before.epoch:
            self._elected(event, known, after)
        leased = any(isinstance(each, e.AnswerHeartbeat) and each.lease for each in effects)
        if leased or (isinstance(event, e.AlterSyncSet) and after.sync_set != before.sync_set):
            if known:
                self._forgotten(f"trusts the master of epoch {before.epoch}")
            if before.epoch < self.newest:
                self._nobody_knew(f"the master of epoch {before.epoch} is trusted again")

    def _elected(self, event: e.Event, known: bool, after: GroupRecord) -> None:
        by_hand = isinstance(event, e.ElectMaster) and event.unclean
        if after.epoch <= self.told or (known and not by_hand):
            self._forgotten(f"elects {after.master} in epoch {after.epoch}")
        if known and after.lossy_epoch != after.epoch:
            self._forgotten(f"declares no loss with epoch {after.epoch}")
        if after.epoch <= self.newest:
            self._nobody_knew(f"epoch {after.epoch} is given out again")

    def _nobody_knew(self, what: str) -> None:
        self._world.mark("records lost, and nobody there who knew")
        raise Unjudged(what)

    def _forgotten(self, what: str) -> None:
        raise Violation(
            Check.FORGOTTEN,
            f"the controller {what}, and was told of epoch {self.told}\n{self._world.describe()}",
        )


def _believed(effects: list[e.Effect]) -> bool:
    """Whether who spoke is a replica, or the one that it said to be and forgotten: not another one's copy."""
    for each in effects:
        if isinstance(each, e.Answer) and each.code is e.Code.BROKER_ID_INVALID:
            return False
        if isinstance(each, e.AnswerHeartbeat) and not each.known:
            return False
    return True
