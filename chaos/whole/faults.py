"""What goes wrong: drawn by the seed's generator, undone by itself after a while, and all of it when the run heals."""

from __future__ import annotations

from collections.abc import Callable
from random import Random as Chance  # as it was before calls.py replaced it
from typing import TYPE_CHECKING, Final

from tandemmq.chaos.whole.stage import Host

if TYPE_CHECKING:
    from tandemmq.chaos.whole.cluster import WholeCluster

FIRST_US: Final = 600_000  # until the group is up, mostly
LASTS_US: Final = (50_000, 2_500_000)
FUSE_CALLS: Final = 40
SLOW_DISK_US: Final = 400_000
STALLED_DISK_US: Final = 4_000_000  # haDiskStallMillis is 1500
SLOW_WIRES_US: Final = 60_000


class Faults:
    """One after the other, and sometimes several at once."""

    def __init__(self, cluster: WholeCluster) -> None:
        self._cluster = cluster
        self._stage = cluster.stage
        self._chance = Chance(~cluster.stage.seed)  # of its own: a fault left out changes no other
        self.count = 0
        if cluster.scenario.faults:
            self._stage.after(FIRST_US, self._next)

    def _next(self) -> None:
        cluster, chance = self._cluster, self._chance
        if not cluster.faulty:
            return
        pause_us = int(chance.expovariate(cluster.scenario.fault_rate) * 1e6) + 1
        self._stage.after(pause_us, self._next)
        kind, host = chance.choice(cluster.scenario.faults), chance.choice(cluster.replica_hosts)
        at_master, self._lasts_us = chance.random() < 0.5, chance.randint(*LASTS_US)
        self.count += 1
        if self.count in cluster.left_out:
            return
        master = cluster.master()
        if master is not None and at_master:
            host = next(
                each
                for each in cluster.replica_hosts
                if each.address == master.config.advertised_host
            )
        self._stage.note("fault", self.count, kind, host.number)
        self._stage.mark(kind)
        getattr(self, f"_{kind}")(host)

    def _later(self, undo: Callable[..., None], *arguments: object) -> None:
        self._stage.after(self._lasts_us, undo, *arguments)

    # --- of processes and machines ---

    def _kill(self, host: Host) -> None:
        if host.life is not None:
            host.life.die("kill -9")
            self._cluster.start_later(host)

    def _power(self, host: Host) -> None:
        if host.powered:
            host.cut_power()
            self._cluster.start_later(host)

    def _kill_all(self, host: Host) -> None:
        for each in self._cluster.replica_hosts:
            self._kill(each)

    def _power_all(self, host: Host) -> None:
        for each in self._cluster.replica_hosts:
            self._power(each)

    def _fuse(self, host: Host) -> None:
        host.arm(self._chance.randint(1, FUSE_CALLS), self._kill)

    def _fuse_power(self, host: Host) -> None:
        host.arm(self._chance.randint(1, FUSE_CALLS), self._power)

    def _stop(self, host: Host) -> None:
        life = host.life
        if life is not None and not life.paused:
            life.loop.terminate()
            if life.dead:  # it was not far enough to listen
                self._cluster.start_later(host)

    def _pause(self, host: Host) -> None:
        if host.life is not None:
            host.life.pause(True)
            self._later(host.life.pause, False)

    def _controller(self, host: Host) -> None:
        names = self._cluster.names
        if self._chance.random() < 0.5:
            self._kill(names)
        else:
            self._pause(names)

    def _consumer(self, host: Host) -> None:
        self._kill(self._cluster.client_hosts[-1])

    def _switch(self, host: Host) -> None:
        """An operator moves the group: the master is stopped in good order, which hands it over."""
        master = self._cluster.master()
        if master is not None:
            self._stop(
                next(
                    each
                    for each in self._cluster.replica_hosts
                    if each.address == master.config.advertised_host
                )
            )

    # --- of the network ---

    def _partition(self, host: Host) -> None:
        others = [each for each in self._stage.hosts if each is not host]
        chosen = [each for each in others if self._chance.random() < 0.5]
        self._block(
            [
                pair
                for each in chosen
                for pair in ((host.number, each.number), (each.number, host.number))
            ]
        )

    def _one_way(self, host: Host) -> None:
        other = self._chance.choice(self._stage.hosts)
        self._block([(host.number, other.number)])

    def _isolate(self, host: Host) -> None:
        others = [each.number for each in self._stage.hosts if each is not host]
        self._block(
            [pair for each in others for pair in ((host.number, each), (each, host.number))]
        )

    def _block(self, pairs: list[tuple[int, int]]) -> None:
        self._stage.wires.blocked.update(pairs)
        self._later(self._stage.wires.unblock, pairs)

    def _slow_wires(self, host: Host) -> None:
        self._stage.wires.slow_us = SLOW_WIRES_US
        self._later(self._quick_wires)

    def _quick_wires(self) -> None:
        self._stage.wires.slow_us = 0

    # --- of disks ---

    def _slow_disk(self, host: Host) -> None:
        host.slow_us = SLOW_DISK_US
        stalls = self._cluster.scenario.stalls
        if stalls and self._chance.random() < stalls:
            self._stage.mark("stalled_disk")
            host.slow_us = STALLED_DISK_US
        self._later(self._quick_disk, host)

    def _quick_disk(self, host: Host) -> None:
        host.slow_us = 0

    def _sync_error(self, host: Host) -> None:
        host.fail_syncs(self._chance.randint(1, 2))

    def _full(self, host: Host) -> None:
        host.full = True
        self._later(self._room, host)

    def _room(self, host: Host) -> None:
        host.full = False

    # --- healing ---

    def heal(self) -> None:
        """Undo everything; whoever is down comes back."""
        stage = self._stage
        stage.wires.slow_us = 0
        stage.wires.unblock(sorted(stage.wires.blocked))
        for host in stage.hosts:
            host.slow_us, host.full = 0, False
            host.disarm()
            if host.life is not None:
                host.life.pause(False)
