"""What befalls few seeds: each a module of its own, begun here and asked by the world.

Drawn by another generator than everything else, so that no older seed changes for a new kind.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from tandemmq.chaos.sim.clones import Clones
from tandemmq.chaos.sim.control import Controller
from tandemmq.chaos.sim.records import LostRecords
from tandemmq.replication import election as e

if TYPE_CHECKING:
    from tandemmq.chaos.sim.controllers import EtcdControllers
    from tandemmq.chaos.sim.world import World
    from tandemmq.replication.election import GroupRecord

RECORDS: Final = "records"
ETCD: Final = "etcd"
SHARE: Final = 0.08  # of the seeds, for each kind
CLONES: Final = "copies"
KINDS: Final = (RECORDS, ETCD, CLONES)


def drawn(seed: int) -> frozenset[str]:
    """Those of a seed: none or one."""
    number = random.Random(seed ^ 0x0DD5).random()
    chosen = int(number / SHARE)
    return frozenset(KINDS[chosen : chosen + 1])


def controller(
    world: World, kinds: frozenset[str], make: type[Controller | EtcdControllers], drift: float
) -> Controller | EtcdControllers:
    """One controller with a file, or several with an etcd."""
    if ETCD not in kinds or make is not Controller:
        return make(world, drift)
    # Imported when wanted: an HTTP client costs every start 200 ms.
    from tandemmq.chaos.sim.controllers import EtcdControllers

    return EtcdControllers(world, drift)


class Mishaps:
    """Those of one run."""

    def __init__(self, world: World, kinds: frozenset[str]) -> None:
        self.kinds = kinds
        self.records = LostRecords(world) if RECORDS in kinds else None
        self.clones = Clones(world) if CLONES in kinds else None

    def decided(
        self, life: int, event: e.Event, before: GroupRecord, effects: list[e.Effect]
    ) -> None:
        """What one event made a controller do."""
        if self.records is not None:
            self.records.decided(life, event, before, effects)
        if self.clones is not None:
            self.clones.decided(event, before, effects)

    def heal(self) -> None:
        """Nothing new befalls the run."""
        if self.clones is not None:
            self.clones.heal()

    def explains(self, alarm: str) -> bool:
        """Whether a replica may raise this alarm."""
        return self.records is not None and self.records.explains(alarm)

    def persisted(self, record: GroupRecord) -> None:
        """What a controller with a file made durable."""
        if self.records is not None:
            self.records.persisted(record)

    @property
    def forgotten(self) -> bool:
        """Whether the controller knows less than it did: an operator must elect."""
        return self.records is not None and self.records.lost
