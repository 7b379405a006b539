"""The controller's file is lost, or an older copy of it is put back (docs/howto/controller.md, "Its records are lost").

A controller cannot know by itself that it is older than its groups: brokers tell it, by the epochs of their logs and
reigns. So what is asked is what the how-to says: as soon as somebody told it of a later epoch it elects nobody unless
an operator does, gives no lease and changes no set, and an operator's election is declared lossy and above every epoch
that it was told. Where nobody was there to tell it, whatever follows is the fault of who put an old copy back: such a
run ends there, unjudged.
"""

from __future__ import annotations

import random
import re
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
OLDER_SET: Final = re.compile(  # ReplicaCore._remind
    r"the controller knows set number (\d+) of epoch (\d+), it had given number (\d+): an older state of it was"
)


class Unjudged(Exception):
    """From here on nobody promises anything; the text says why."""


class LostRecords:
    """Takes records away, and judges what the controller does then.

    newest  the highest epoch that was durable when records were lost
    told    the highest epoch that this life of the controller was told
    given   epoch -> the highest set number in it that was ever durable
    back    epoch -> the lowest set number in it of a copy that was put back
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(world.seed ^ 0x4EC04D)  # so that it moves no other draw
        self._copies: list[GroupRecord] = []
        self._life = 0
        self.newest = 0
        self.told = 0
        self.given: dict[int, int] = {}
        self.back: dict[int, int] = {}
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
        after = controller.durable = rng.choice(older) if kind == "older" else None
        if after is not None:
            self.back[after.epoch] = min(
                after.set_number, self.back.get(after.epoch, after.set_number)
            )
        self.newest = max(self.newest, before.epoch)
        world.mark("records " + kind)
        world.note("records", kind, before.epoch, controller.record.epoch)
        world.after(rng.randrange(*AWAY_US), self._restart)

    def _restart(self) -> None:
        if not self._world.controller.up:
            self._world.controller.start()

    # --- judging ---

    def persisted(self, record: GroupRecord) -> None:
        self.given[record.epoch] = max(record.set_number, self.given.get(record.epoch, 0))

    def explains(self, alarm: str) -> bool:
        """Whether a replica is right to raise this alarm.

        A copy of the records may be of the reign of a master that was paused or cut off while others came after it.
        When that one hears of the controller again, before it hears of them, it is told a lower set number than it was
        given: it alarms, and must. Not so where no such number was durable before, or none so low was put back.
        """
        if alarm.endswith("its state was lost; restore it"):
            return True
        older = OLDER_SET.match(alarm)
        if older is None:
            return False
        known, epoch, had = map(int, older.groups())
        self._world.mark("a master heard of an older set than its own")
        return self.back.get(epoch, had) <= known < had <= self.given.get(epoch, 0)

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
