"""Cuts the connections inside a replicated group, wholly or one way, under load, and looks for anything lost.

Proxies of our own stand between each broker and the controller, and in front of each master's replication
stream. Each round holds, slows, breaks or refuses some of them for a while, or freezes or kills the
controller. Where nobody but a slave is affected the master must stay; where the master lost the controller
the group must take writes again. What must hold at the end is what chaos.failover asks for.

Exit code 0: all held. 1: something did not (the directory is kept). 2: wrong usage.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

from chaos import command
from chaos.campaign import Campaign
from chaos.proxied import ProxiedGroup, proxied
from chaos.proxy import Direction, Link
from chaos.traffic import TrafficPlan

DIRECTIONS: Final = (Direction.BOTH, Direction.UP, Direction.DOWN)
SLOW_BYTES_PER_S: Final = 50_000  # far below the load
RESETS: Final = 5


class Partitions(Campaign):
    """Rounds of partitions; each kind of round is a method named in KINDS and heals what it did."""

    rounds = 1
    load_s = 1.0
    held_s = (0.5, 6.0)
    kinds: Sequence[str] = ()

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[ProxiedGroup]:
        async with proxied(self._directory, self.plan) as self.links:
            yield self.links

    async def faults(self) -> None:
        self._notes: list[str] = []
        kinds = self.kinds or KINDS
        for number in range(1, self.rounds + 1):
            # every kind once before any comes again
            name = kinds[(number - 1) % len(kinds)]
            self.traffic.round = number
            self._notes.clear()
            await self.group.whole()
            await asyncio.sleep(self.rng.uniform(0.2, self.load_s))
            self.traffic.check()
            self.journal.event("round", number=number, kind=name)
            try:
                await getattr(self, name)()
            finally:
                self.links.heal(reset=self.rng.random() < 0.5)
            self.journal.event("healed")
            if not self.outcome.good:
                return
            began = time.monotonic()
            await self.group.whole()
            self.outcome.sample("whole again", (time.monotonic() - began) * 1000)
            self.outcome.rounds = number
            self.outcome.count(name.replace("_", " "))
            self.say(
                f"round {number}/{self.rounds} {name}: {', '.join(self._notes)}; whole after "
                f"{time.monotonic() - began:.2f} s; {self.journal.counts['ok']} acknowledged so far"
            )

    # --- kinds of rounds

    async def master_loses_controller(self) -> None:
        """No word between the master and the controller, or only one way: another must serve."""
        master, _ = await self.master()
        link = self.links.controller_link(master)
        fault_ns = time.monotonic_ns()
        await self._hold(link, self.rng.choice(DIRECTIONS))
        await self._until_writable("master without controller", fault_ns, link)
        await asyncio.sleep(self.rng.uniform(0.0, 2.0))

    async def master_is_alone(self) -> None:
        """The master hears neither controller nor slave."""
        master, _ = await self.master()
        links = (self.links.controller_link(master), self.links.stream_link(master))
        fault_ns = time.monotonic_ns()
        for link in links:
            await self._hold(link, Direction.BOTH)
        await self._until_writable("master alone", fault_ns, *links)
        await asyncio.sleep(self.rng.uniform(0.0, 2.0))

    async def slave_loses_master(self) -> None:
        """The replication stream stands still, wholly or one way: the slave leaves, the master stays."""
        master, _ = await self.master()
        link = self.links.stream_link(master)
        async with self._same_master():
            fault_ns = time.monotonic_ns()
            await self._hold(link, self.rng.choice(DIRECTIONS))
            await self._until_writable("stream held", fault_ns, link)
            await asyncio.sleep(self.rng.uniform(*self.held_s))

    async def slave_loses_controller(self) -> None:
        """A slave without controller changes nothing for anybody."""
        master, _ = await self.master()
        slave = self.rng.choice(self.others(master))
        link = self.links.controller_link(slave)
        async with self._same_master():
            fault_ns = time.monotonic_ns()
            await self._hold(link, self.rng.choice(DIRECTIONS))
            await self._until_writable("slave without controller", fault_ns, link)
            await asyncio.sleep(self.rng.uniform(*self.held_s))

    async def stream_breaks(self) -> None:
        """The replication stream is reset again and again; in the end it is refused for a while."""
        master, _ = await self.master()
        link = self.links.stream_link(master)
        async with self._same_master():
            for _ in range(RESETS):
                link.reset()
                await asyncio.sleep(self.rng.uniform(0.0, 0.3))
            fault_ns = time.monotonic_ns()
            link.refuse()
            self._note("refused", link)
            await self._until_writable("stream refused", fault_ns, link)

    async def stream_is_slow(self) -> None:
        """The replication stream passes less than what is sent."""
        master, _ = await self.master()
        link = self.links.stream_link(master)
        async with self._same_master():
            fault_ns = time.monotonic_ns()
            link.slow(SLOW_BYTES_PER_S)
            self._note("slowed", link)
            await self._until_writable("stream slow", fault_ns, link)
            await asyncio.sleep(self.rng.uniform(*self.held_s))

    async def controller_freezes(self) -> None:
        """Controller and name server fall silent for a while."""
        fault_ns = time.monotonic_ns()
        await self.group.name_server.pause()
        self.event("froze", self.group.name_server)
        await asyncio.sleep(self.rng.uniform(*self.held_s))
        await self.group.name_server.resume()
        self.event("thawed", self.group.name_server)
        await self._until_writable("controller frozen", fault_ns)

    async def controller_dies(self) -> None:
        """Controller and name server are killed -9 and come back with what they had on disk."""
        fault_ns = time.monotonic_ns()
        await self.group.name_server.kill()
        self.event("killed", self.group.name_server)
        await asyncio.sleep(self.rng.uniform(0.0, 3.0))
        self.group.name_server.launch()
        self.event("started", self.group.name_server)
        await self._until_writable("controller killed", fault_ns)

    # --- pieces

    async def _hold(self, link: Link, direction: Direction) -> None:
        link.hold(direction)
        assert link.held(direction), link.name
        self._note(f"held {direction.name}", link)

    async def _until_writable(self, what: str, fault_ns: int, *links: Link) -> None:
        """With evidence that the links were in use: held and unused, nothing would have been shown."""
        took_ms = await self.writable(what, fault_ns)
        if took_ms is not None:
            self._notes.append(f"writable {took_ms / 1000:.2f} s after that")
        for link in links:
            if not link.used:
                self.problem(f"EVIDENCE nothing ever passed {link.name}")

    @contextlib.asynccontextmanager
    async def _same_master(self) -> AsyncIterator[None]:
        before = await self.group.whole()
        yield
        _, after = await self.master()
        if (after.master, after.epoch) != (before.master, before.epoch):
            self.problem(
                f"CHANGED master {before.master} of epoch {before.epoch} to {after.master} of "
                f"{after.epoch}, and only a slave was affected"
            )

    def _note(self, what: str, link: Link) -> None:
        self.journal.event(what, link=link.name)
        self._notes.append(f"{what} {link.name}")


KINDS: Final = (
    "master_loses_controller",
    "slave_loses_master",
    "master_is_alone",
    "slave_loses_controller",
    "stream_breaks",
    "controller_dies",
    "stream_is_slow",
    "controller_freezes",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Parses arguments, runs, prints; returns the exit code."""
    parser = command.parser("partitions", __doc__)
    parser.epilog = "example: python -m chaos.partitions --rounds 24"
    parser.add_argument("--rounds", type=int, default=3 * len(KINDS))
    parser.add_argument("--kind", choices=KINDS, action="append", help="only these (default: all)")
    command.add_group_arguments(parser)
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    if arguments.servers != "tandem":
        parser.error("a stock broker listens on every address: no proxy fits in front of it")
    run = command.begin(arguments, "partitions")
    plan, traffic_plan = command.group_plan(arguments), TrafficPlan(rate=arguments.rate)
    campaign = Partitions(plan, traffic_plan, run.directory, run.seed, command.say)
    campaign.rounds = arguments.rounds
    campaign.kinds = arguments.kind or KINDS
    return command.end(run, asyncio.run(campaign.run()))


if __name__ == "__main__":
    sys.exit(main())
