"""The faults of a schedule that was made for real processes (tandemmq.chaos.scenarios), in simulated time.

Steps begin as they do there: when the group is whole and has been under load for a while. Whom a fault meets is who has
the role then. What the simulation has no means for is a doubt, and a run with one proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tandemmq.chaos.faults.grudges import drawn, one_way
from tandemmq.chaos.scenarios.schedule import Planned, Schedule, Step
from tandemmq.chaos.whole.faults import Faults
from tandemmq.chaos.whole.judge import Promise
from tandemmq.chaos.whole.plan import Scenario
from tandemmq.chaos.whole.stage import Host
from tandemmq.replication.config import Mode

if TYPE_CHECKING:
    from tandemmq.chaos.whole.cluster import WholeCluster

LOOK_US: Final = 50_000
WHOLE_US: Final = 60_000_000  # as long as a run on real processes waits for it
NOBODY_US: Final = 5_000_000
STUTTER_US: Final = 50_000
STORM_US: Final = (1_000_000, 4_000_000)
KEEPER: Final = "names"  # the node of name server and controller, in the words of partitions
LINK_SETS: Final = {
    "clients": ("clients",), "stream": ("stream",), "controller": ("controller",), "names": ("controller",),
    "routes": ("routes",), "alone": ("controller", "stream"),
}  # fmt: skip
FORGETS: Final = ("power", "calls")
ALL: Final = 1 << 30  # calls


def scenario_of(schedule: Schedule, scenario: Scenario) -> Scenario:
    """What a seed draws, with the group that a schedule is for and no faults of its own.

    As on the stage "small", a full disk refuses: what it deletes to make room would be lost by its policy.
    """
    kinds = {fault.kind for step in schedule.steps for fault in step.faults}
    return replace(
        scenario, mode=Mode(schedule.mode), replicas=schedule.replicas, faults=(),
        forgetful=not kinds.isdisjoint(FORGETS), makes_room=False,
    )  # fmt: skip


class ScheduledFaults(Faults):
    """done: every step was played, and the group is whole again. doubts: of what could not be played."""

    def __init__(self, cluster: WholeCluster, schedule: Schedule) -> None:
        super().__init__(cluster)
        self.done = False
        self.doubts: list[str] = []
        self._steps = list(schedule.steps)
        self._under_way = 0
        self._whole_us = 0  # since when, 0: it is not
        self._changed_us = self._stage.now_us  # the last step's end: since then it may be broken
        self._stage.after(LOOK_US, self._look)

    # --- steps ---

    def _look(self) -> None:
        cluster, now_us = self._cluster, self._stage.now_us
        if self.done:
            return
        self._stage.after(LOOK_US, self._look)
        if self._under_way:
            return
        if not cluster.whole or cluster.load.book.acked_us < self._changed_us:
            self._whole_us = 0
            if now_us - self._changed_us > WHOLE_US:
                self._stage.fail(Promise.STUCK.name, f"not whole again\n{cluster.describe()}")
            return
        self._whole_us = self._whole_us or now_us
        if not self._steps:
            self.done = True
        elif now_us - self._whole_us >= self._steps[0].calm_s * 1e6:
            self._begin(self._steps.pop(0))

    def _begin(self, step: Step) -> None:
        self._stage.note("step", step)
        self._whole_us, self._changed_us = 0, self._stage.now_us
        for planned in step.faults:
            self._under_way += 1
            self._stage.after(int(planned.after_s * 1e6), self._fire, planned, self._stage.now_us)

    def _fire(self, planned: Planned, since_us: int) -> None:
        host = self._victim(planned)
        if host is None:
            if self._stage.now_us - since_us < planned.after_s * 1e6 + NOBODY_US:
                self._stage.after(LOOK_US, self._fire, planned, since_us)
                return
            self._cannot(planned, "nobody is master")
            return
        play: Callable[[Planned, Host], None] | None = getattr(
            self, f"_play_{planned.kind.replace('-', '_')}", None
        )
        if play is None:
            self._cannot(planned, "the simulation has no means for it")
            return
        self.count += 1
        self._lasts_us = int(planned.lasts_s * 1e6)
        self._stage.note("fault", self.count, planned.kind, host.number)
        self._stage.mark(planned.kind)
        play(planned, host)

    def _cannot(self, planned: Planned, why: str) -> None:
        self.doubts.append(f"{planned} never happened: {why}")
        self._over()

    def _over(self) -> None:
        self._under_way -= 1
        self._changed_us = self._stage.now_us

    def _until_over(self, undo: Callable[..., None], *arguments: Any) -> None:
        def undone() -> None:
            undo(*arguments)
            self._over()

        self._stage.after(self._lasts_us, undone)

    def _victim(self, planned: Planned) -> Host | None:
        cluster = self._cluster
        if planned.victim == "controller":
            return cluster.names
        if planned.victim in ("replicas", "all"):
            return cluster.replica_hosts[0]
        of_role = next(
            (each for each in cluster.replica_hosts if each.number == cluster.master_host), None
        )
        if planned.victim == "slave" and of_role is not None:
            return self._chance.choice(
                [each for each in cluster.replica_hosts if each is not of_role]
            )
        return of_role

    # --- processes and machines ---

    def _play_kill(self, planned: Planned, host: Host) -> None:
        self._cluster.held.add(host.number)
        if host.life is not None:
            host.life.die("kill -9")
        self._until_over(self._release, host)

    def _play_stop(self, planned: Planned, host: Host) -> None:
        self._cluster.held.add(host.number)
        if host.life is not None:
            host.life.loop.terminate()
        self._until_over(self._release, host)

    def _release(self, host: Host) -> None:
        self._cluster.held.discard(host.number)
        self._cluster.start(host)

    def _play_pause(self, planned: Planned, host: Host) -> None:
        if host.life is not None:
            host.life.pause(True)
        self._until_over(self._wake, host)

    def _wake(self, host: Host) -> None:
        if host.life is not None:
            host.life.pause(False)

    def _play_stutter(self, planned: Planned, host: Host) -> None:
        """Stopped half of the time."""
        end_us = self._stage.now_us + self._lasts_us

        def turn(stopped: bool) -> None:
            if host.life is not None:
                host.life.pause(stopped)
            if self._stage.now_us < end_us or stopped:
                self._stage.after(STUTTER_US, turn, not stopped)

        turn(True)
        self._until_over(self._wake, host)

    def _play_storm(self, planned: Planned, host: Host) -> None:
        """Every replica killed again and again."""
        end_us = self._stage.now_us + self._lasts_us

        def blow(each: Host) -> None:
            if self._stage.now_us < end_us:
                self._kill(each)
                self._stage.after(self._chance.randint(*STORM_US), blow, each)

        for each in self._cluster.replica_hosts:
            self._stage.after(self._chance.randint(*STORM_US), blow, each)
        self._until_over(self._nothing)

    def _nothing(self) -> None:
        return

    def _play_power(self, planned: Planned, host: Host) -> None:
        everybody = planned.victim in ("replicas", "all")
        hosts = self._cluster.replica_hosts if everybody else [host]
        for each in hosts:
            self._cluster.held.add(each.number)
            if each.powered:
                each.cut_power()
        self._until_over(self._boot, hosts)

    def _boot(self, hosts: Iterable[Host]) -> None:
        for host in hosts:
            if not host.powered:
                host.boot()
            self._release(host)

    # --- the network ---

    def _play_partition(self, planned: Planned, host: Host) -> None:
        """way: "up" is towards whom the link leads."""
        way = planned.with_.get("way", "both")
        pairs: set[tuple[int, int]] = set()
        for name in LINK_SETS[str(planned.with_["links"])]:
            for caller, called in self._ends(name, host):
                if way in ("both", "up"):
                    pairs.add((caller.number, called.number))
                if way in ("both", "down"):
                    pairs.add((called.number, caller.number))
        self._cut(pairs)

    def _ends(self, link: str, host: Host) -> list[tuple[Host, Host]]:
        """(who calls, who is called) of a link of this replica."""
        cluster = self._cluster
        if link == "controller":
            return [(host, cluster.names)]
        if link == "routes":
            return [(each, cluster.names) for each in cluster.client_hosts]
        others = cluster.client_hosts if link == "clients" else cluster.replica_hosts
        return [(each, host) for each in others if each is not host]

    def _play_packets(self, planned: Planned, host: Host) -> None:
        shape: Any = planned.with_["shape"]
        if shape == "loss":
            self.count -= 1
            self._cannot(planned, "connections of the simulation lose no packets")
            return
        nodes = {KEEPER: self._cluster.names} | {
            str(each.number): each for each in self._cluster.replica_hosts
        }
        victim = str(host.number)
        if shape == "one-way":
            named = one_way(victim, [KEEPER])
        else:
            named = drawn(shape, self._chance, list(nodes), victim)
        self._cut({(nodes[source].number, nodes[target].number) for source, target in named})

    def _cut(self, pairs: set[tuple[int, int]]) -> None:
        self._stage.wires.blocked.update(pairs)
        self._until_over(self._stage.wires.unblock, sorted(pairs))

    def _play_latency(self, planned: Planned, host: Host) -> None:
        self._stage.wires.slow_us = int(planned.with_["latency_ms"]) * 1000
        self._until_over(self._quick_wires)

    # --- disks ---

    def _play_disk_full(self, planned: Planned, host: Host) -> None:
        host.full = True
        self._until_over(self._room, host)

    def _play_calls(self, planned: Planned, host: Host) -> None:
        if "errno" in planned.with_:
            host.fail_syncs(ALL)
            self._until_over(host.disarm)
        else:
            host.slow_us = int(planned.with_["delay_ms"]) * 1000
            self._until_over(self._quick_disk, host)
