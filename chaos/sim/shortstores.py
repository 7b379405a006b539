"""One replica's store comes back emptied, shorter, or as an older copy of itself (INV-37, INV-38)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from tandemmq.chaos.sim.disk import Disk

if TYPE_CHECKING:
    from tandemmq.chaos.sim.broker import Broker
    from tandemmq.chaos.sim.world import World

MISHAP_US: Final = 800_000  # between two of them


class ShortStores:
    """Keeps copies of one replica's store, and takes it away again and again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(world.seed ^ 0x5704E)  # so that it moves no other draw
        self._kept: list[Disk] = []
        victim = world.brokers[self._rng.randint(1, world.plan.replicas)]
        world.after(200_000, self._keep_copy, victim)
        world.after(MISHAP_US, self._go_back, victim)

    def _keep_copy(self, victim: Broker) -> None:
        world = self._world
        if world.faulty:
            self._kept.append(victim.disk.snapshot())
            world.after(self._rng.randrange(50_000, 600_000), self._keep_copy, victim)

    def _go_back(self, victim: Broker) -> None:
        """A volume is not mounted, its last file is gone, or a snapshot is put back; always of the same replica."""
        world = self._world
        if not world.faulty:
            return
        world.after(self._rng.randrange(MISHAP_US // 2, 2 * MISHAP_US), self._go_back, victim)
        victim.crash(power=False)
        victim.powered = True
        disk, rng = victim.disk, self._rng
        before, kind = disk.end, rng.choice(("emptied", "shorter", "older"))
        if kind == "emptied":
            to = Disk(sizes=world.sizes)
        elif kind == "older" and self._kept:
            to = rng.choice(self._kept)
        else:
            to = disk.snapshot()
            to.truncate(to.boundary(rng.randint(0, to.end)))
            to.history = to.history.cut(to.end)
        if not self._noticeable(victim, to):
            world.after(1000, world.restart, victim)
            return
        end = disk.go_back(to)
        world.mark("store " + kind)
        world.note("store", kind, victim.replica, before, end)
        world.checks.went_back(victim, end, before)
        world.after(rng.randrange(3_000, 400_000), world.restart, victim)

    def _noticeable(self, victim: Broker, to: Disk) -> bool:
        """Whether what the controller has made durable tells: not what came with the last heartbeats."""
        record = self._world.controller.durable
        assert record is not None
        member = record.members[victim.replica]
        inside = victim.replica in record.base
        another_line = bool(to.lineage) and member.incarnation not in (0, *to.lineage)
        return to.end < max(member.held, record.confirmed if inside else 0) or another_line
