"""Takes the master of a replicated group away, again and again, under load, and looks for anything lost.

Each round draws what happens: the master is killed -9, or its host is gone with what it had not sent, or it is
frozen (SIGSTOP: a silent death), or the one that was just elected is killed, or master and slave in turn, or a
slave first and the master while it comes back. A prober
that sends every 10 ms through the routes of the name server measures when the group takes writes again.
At the end nothing acknowledged may be missing (in async mode: nothing but what replicas reported and set
aside), nothing may be there that nobody sent, queue order and offsets must hold, and the logs of all
replicas must be one, byte for byte. The seed draws faults and messages; what was in flight differs.

Exit code 0: all held. 1: something did not (the directory is kept). 2: wrong usage.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from tandemmq.chaos import command
from tandemmq.chaos.checking.judging import LAG_EVENT
from tandemmq.chaos.gauges import metric_values, scrape
from tandemmq.chaos.groups import ReplicaGroup, ReplicaProcess
from tandemmq.chaos.processes import AsyncProcess
from tandemmq.chaos.proxied import ProxiedGroup, proxied
from tandemmq.chaos.rounds import Rounds

BEHIND_S: Final = (0.05, 1.0)  # below haMaxTimeSlaveNotCatchup


class Failover(Rounds):
    """Kinds of rounds are in KINDS."""

    fault = "kill"
    links: ProxiedGroup | None = None

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[ReplicaGroup]:
        """With proxies inside only where slaves are to be held back: they cost time when all goes well."""
        if "host_dies" not in self.weights:
            async with super().started() as group:
                yield group
        else:
            async with proxied(self._directory, self.plan) as self.links:
                yield self.links

    @property
    def weights(self) -> Mapping[str, int]:
        kinds = NEEDS_ALL if self._needs_all else KINDS[self.fault]
        if self.plan.servers == "java":  # it listens on every address: no proxy fits in front
            return {name: weight for name, weight in kinds.items() if name != "host_dies"}
        return kinds

    @property
    def _needs_all(self) -> bool:
        """Whether nobody is written to before everybody is back: minInSyncReplicas asks for all."""
        return self.plan.copies_min >= self.plan.replicas

    # --- kinds of rounds

    async def master_dies(self) -> None:
        """The master is killed; it comes back a little later."""
        victim, what = await self._victim("kill")
        fault_ns = await self._kill(victim)
        if self._needs_all:
            await self._all_back(victim)
            return
        await self._until_writable(what, fault_ns)
        await self._relaunch(victim)

    async def host_dies(self) -> None:
        """The master's host is gone, with all that its slaves had not been sent; for less than makes them leave the
        set they were behind. (What a killed process gave to the kernel would still arrive: a proxy drops it.)"""
        assert self.links is not None
        victim, what = await self._victim("host gone")
        link = self.links.stream_link(victim)
        link.hold()
        self._note("held back the slaves of", victim)
        await asyncio.sleep(self.rng.uniform(*BEHIND_S))
        fault_ns = await self._kill(victim)
        link.heal(reset=True)
        await self._until_writable(what, fault_ns)
        await self._relaunch(victim)

    async def elected_dies(self) -> None:
        """The master is killed, and whoever is elected as soon as it serves; both come back."""
        victim, what = await self._victim("kill")
        fault_ns = await self._kill(victim)
        await self._until_writable(what, fault_ns, stable=False)
        await asyncio.sleep(self.rng.uniform(0.0, 0.3))
        heir, _ = await self.master()
        if heir.alive:
            await self._kill(heir)
            await self._all_back(victim, heir)
        else:
            await self._relaunch(victim)

    async def both_die(self) -> None:
        """Master and slave are killed in turn, either first; both come back."""
        victim, _ = await self.master()
        order = [victim, self.rng.choice(self.others(victim))]
        self.rng.shuffle(order)
        for replica in order:
            await self._kill(replica)
            await asyncio.sleep(self.rng.uniform(0.0, 0.25))
        await self._all_back(*order)

    async def straggler(self) -> None:
        """A slave is killed and comes back; the master is killed while that is, or is not, in the set."""
        victim, _ = await self.master()
        slave = self.rng.choice(self.others(victim))
        await self._kill(slave)
        await asyncio.sleep(self.rng.uniform(0.0, 1.0))
        await self._relaunch(slave)
        await asyncio.sleep(self.rng.uniform(0.0, 2.0))
        victim, view = await self.master()
        somebody_follows = self.whole(view)
        fault_ns = await self._kill(victim)
        await self._back(victim, "kill", fault_ns, followed=somebody_follows)

    async def controller_dies_too(self) -> None:
        """Controller and master are killed in turn; the controller comes back first, then the master."""
        victim, view = await self.master()
        somebody_follows = self.whole(view)
        controller = self.group.name_server
        order = [controller, victim]
        self.rng.shuffle(order)
        for process in order:
            await process.kill()
            self._note("killed", process)
            await asyncio.sleep(self.rng.uniform(0.0, 0.5))
        self.outcome.count("masters killed")
        self.outcome.count("controllers killed")
        back_ns = time.monotonic_ns()
        controller.launch()
        self._note("started", controller)
        await self._back(victim, "controller back", back_ns, followed=somebody_follows)

    async def master_freezes(self) -> None:
        """The master falls silent until another serves, wakes up later and must not acknowledge."""
        victim, what = await self._victim("freeze")
        fault_ns = await self._freeze(victim)
        await self._until_writable(what, fault_ns)
        await asyncio.sleep(self.rng.uniform(0.0, 2.0))
        await self._thaw(victim)

    async def master_naps(self) -> None:
        """The master falls silent for about as long as its lease: it wakes up while another may be elected."""
        victim, _ = await self.master()
        fault_ns = await self._freeze(victim)
        await asyncio.sleep(self.rng.uniform(1.5, 3.0))
        await self._thaw(victim)
        await self._until_writable("nap", fault_ns)

    async def slave_freezes(self) -> None:
        """A slave falls silent, leaves the set, wakes up and comes back to it."""
        victim, _ = await self.master()
        slave = self.rng.choice(self.others(victim))
        fault_ns = await self._freeze(slave)
        await self._until_writable("slave frozen", fault_ns)
        await asyncio.sleep(self.rng.uniform(0.0, 1.0))
        await self._thaw(slave)

    # --- pieces

    async def _victim(self, what: str) -> tuple[ReplicaProcess, str]:
        """The master, and the name of the sample: only faults of a whole group count for the goal."""
        victim, view = await self.master()
        return victim, what if self.whole(view) else f"{what}, not whole before"

    async def _sample_lag(self, master: ReplicaProcess) -> None:
        """In async modes: into the journal, what the master exports now on how far its slaves are behind."""
        if self.plan.synchronous or not master.metrics_port:
            return
        asked_ns = time.monotonic_ns()
        text = await scrape(master.metrics_port)
        (end,) = metric_values(text, "tandem_log_end_bytes")
        (epoch,) = metric_values(text, "tandem_epoch")
        lag = max(metric_values(text, "tandem_slave_lag_bytes"), default=0)
        self.journal.event(LAG_EVENT, at_ns=asked_ns, epoch=int(epoch), end=int(end), lag=int(lag))
        self.notes.append(f"slaves lack {lag:.0f} bytes")

    async def _kill(self, replica: ReplicaProcess) -> int:
        """kill -9, and its effect seen; the time just before."""
        was_master = replica.address == self.traffic.route.master
        if was_master:
            await self._sample_lag(replica)
        fault_ns = time.monotonic_ns()
        await replica.kill()
        self.outcome.count("masters killed" if was_master else "slaves killed")
        self._note("killed", replica)
        return fault_ns

    async def _freeze(self, replica: ReplicaProcess) -> int:
        if replica.address == self.traffic.route.master:
            await self._sample_lag(replica)
        fault_ns = time.monotonic_ns()
        await replica.pause()
        self.outcome.count("frozen")
        self._note("froze", replica)
        return fault_ns

    async def _thaw(self, replica: ReplicaProcess) -> None:
        await replica.resume()
        self._note("thawed", replica)

    async def _relaunch(self, replica: ReplicaProcess) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, 1.0))
        replica.launch()
        self._note("started", replica)

    async def _back(self, victim: ReplicaProcess, what: str, at_ns: int, *, followed: bool) -> None:
        """Start a master that died; who followed it serves before that, and nobody else would."""
        if followed:
            await self._until_writable(what, at_ns)
            await self._relaunch(victim)
        else:
            await self._all_back(victim)

    async def _all_back(self, *dead: ReplicaProcess) -> None:
        """Start them in any order; writable again is measured from the last start."""
        order = list(dead)
        self.rng.shuffle(order)
        for replica in order:
            await self._relaunch(replica)
        await self._until_writable("restart", time.monotonic_ns())

    async def _until_writable(self, what: str, fault_ns: int, *, stable: bool = True) -> None:
        took_ms = await self.writable(what, fault_ns, stable=stable)
        if took_ms is not None:
            self.notes.append(f"writable {took_ms / 1000:.2f} s after {what}")

    def _note(self, what: str, process: AsyncProcess) -> None:
        self.event(what, process)
        self.notes.append(f"{what} {process.name}")


_KILLS: Final = {"master_dies": 6, "elected_dies": 1, "both_die": 1, "straggler": 1}
_STOPS: Final = {"master_freezes": 6, "master_naps": 2, "slave_freezes": 2}
KINDS: Final[dict[str, dict[str, int]]] = {
    "kill": _KILLS,
    "stop": _STOPS,
    "host": {"host_dies": 1},
    "mixed": {**_KILLS, **_STOPS, "host_dies": 4, "controller_dies_too": 2},
}
NEEDS_ALL: Final = {"master_dies": 4, "both_die": 1}


def main(argv: Sequence[str] | None = None) -> int:
    """Parses arguments, runs, prints; returns the exit code."""
    example = "--rounds 100 --fault kill --mode sync"
    parser = command.parser("failover", __doc__, example, rounds=100)
    parser.add_argument("--fault", choices=sorted(KINDS), default="kill")
    command.add_group_arguments(parser, stock=True)
    arguments = parser.parse_args(argv)
    if arguments.servers == "java" and arguments.fault == "host":
        parser.error("a stock broker listens on every address: no proxy fits in front of it")
    if arguments.copies_min >= arguments.replicas and arguments.fault != "kill":
        parser.error("a group that needs all of its replicas takes nothing while one is frozen")
    run = command.begin(arguments)
    campaign = command.group_campaign(Failover, run, arguments)
    campaign.rounds, campaign.fault = arguments.rounds, arguments.fault
    return command.play(run, campaign.run())


if __name__ == "__main__":
    sys.exit(main())
