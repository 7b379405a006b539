"""flushDiskType of every replica, as broker.conf has it, and the person who changes it in rolling order."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from tandemmq.replication.config import Mode

if TYPE_CHECKING:
    from tandemmq.chaos.sim.world import World

CHANGE_US: Final = (20_000, 300_000)  # between two replicas
FLUSH_US: Final = {
    # that of the disk is slower than a plan's: a byte that is not flushed lives long enough to be counted
    True: (500, 20_000),
    False: (5_000, 120_000),
}


class Configuration:
    """What each broker reads when it starts next.

    rolling  a synchronous group goes from S0 to S1, replica by replica, and back, and so on. A replica is restarted
             for it, or the change waits until something else restarts it, a power cut among them
    """

    def __init__(self, world: World, *, rolling: bool) -> None:
        plan = world.plan
        self._world = world
        self.rolling = rolling and plan.mode.waits_for_slaves
        self._modes = dict.fromkeys(range(1, plan.replicas + 1), plan.mode)
        self._rng = random.Random(world.seed * 2 + 1)  # so that it moves no other draw
        self._next = self._rng.randint(1, plan.replicas)
        if self.rolling:
            world.after(self._rng.randrange(*CHANGE_US), self._change)

    def mode(self, replica: int) -> Mode:
        return self._modes[replica]

    def flush_us(self, mode: Mode) -> tuple[int, int]:
        return FLUSH_US[mode.waits_for_disk] if self.rolling else self._world.plan.flush_us

    def _change(self) -> None:
        world = self._world
        if not world.faulty:
            return
        replica, modes = self._next, self._modes
        modes[replica] = Mode.of(synchronous=True, flushed=not modes[replica].waits_for_disk)
        self._next = replica % world.plan.replicas + 1
        world.note("configured", replica, modes[replica].value)
        if self._rng.random() < 0.5:
            world.fail(world.brokers[replica], power=False)
        world.after(self._rng.randrange(*CHANGE_US), self._change)
