"""Cuts the connections inside a replicated group, wholly or one way, under load, and looks for anything lost.

Proxies of our own stand between each broker and the controller, and in front of each master's replication
stream. Each round holds, slows, breaks or refuses some of them for a while, or freezes or kills the
controller, or takes it away (--kind controller_stays_away --away-seconds 600). Where nobody but a slave is
affected the master must stay; where the master lost the controller the group must take writes again. What
must hold at the end is what tandemmq.chaos.failover asks for.

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
from tandemmq.chaos.proxied import ProxiedGroup, proxied
from tandemmq.chaos.proxy import Direction, ProxiedLink
from tandemmq.chaos.rounds import Rounds
from tandemmq.chaos.traffic import longest_stall_ms

DIRECTIONS: Final = (Direction.BOTH, Direction.UP, Direction.DOWN)
SLOW_BYTES_PER_S: Final = 50_000  # far below the load
RESETS: Final = 5
LASTS_S: Final = (5.0, 7.0)  # beyond lease and election
WRITABLE_WITHIN_S: Final = 1.0
AWAY_SAID_S: Final = 30.0
AWAY_STALL_MS: Final = 1000.0


class Partitions(Rounds):
    """Kinds of rounds are in KINDS, each of which comes once before any comes again."""

    load_s = 1.0
    away_s = 8.0  # four leases
    kinds: Sequence[str] = ()

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[ProxiedGroup]:
        async with proxied(self._directory, self.plan) as self.links:
            yield self.links

    @property
    def weights(self) -> Mapping[str, int]:
        return dict.fromkeys(self.kinds or KINDS, 1)

    def drawn(self, number: int) -> str:
        return list(self.weights)[(number - 1) % len(self.weights)]

    async def play(self, name: str) -> None:
        """One round, and what it did is healed."""
        try:
            await super().play(name)
        finally:
            self.links.heal(reset=self.rng.random() < 0.5)
        self.journal.event("healed")
        self.outcome.count(name.replace("_", " "))

    # --- kinds of rounds

    async def master_loses_controller(self) -> None:
        """No word between the master and the controller, or only one way: another must serve."""
        master, _ = await self.master()
        link = self.links.controller_link(master)
        await self._hold_all("master without controller", {link: self.rng.choice(DIRECTIONS)})

    async def master_is_alone(self) -> None:
        """The master hears neither controller nor slave."""
        master, _ = await self.master()
        links = (self.links.controller_link(master), self.links.stream_link(master))
        await self._hold_all("master alone", dict.fromkeys(links, Direction.BOTH))

    async def slave_loses_master(self) -> None:
        """The replication stream stands still, wholly or one way: the slave leaves, the master stays."""
        master, _ = await self.master()
        async with self._same_master():
            link = self.links.stream_link(master)
            await self._hold_all("stream held", {link: self.rng.choice(DIRECTIONS)})

    async def slave_loses_controller(self) -> None:
        """A slave without controller changes nothing for anybody."""
        master, _ = await self.master()
        slave = self.rng.choice(self.others(master))
        async with self._same_master():
            link = self.links.controller_link(slave)
            await self._hold_all("slave without controller", {link: self.rng.choice(DIRECTIONS)})

    async def stream_breaks(self) -> None:
        """The replication stream is reset again and again; in the end it is refused for a while."""
        master, _ = await self.master()
        link = self.links.stream_link(master)
        async with self._same_master():
            began_ns = time.monotonic_ns()
            for _ in range(RESETS):
                link.reset()
                await asyncio.sleep(self.rng.uniform(0.0, 0.3))
            link.refuse()
            self._note("refused", link)
            await self._endured("stream broken", began_ns)

    async def stream_is_slow(self) -> None:
        """The replication stream passes less than what is sent."""
        master, _ = await self.master()
        link = self.links.stream_link(master)
        async with self._same_master():
            began_ns = time.monotonic_ns()
            link.slow(SLOW_BYTES_PER_S)
            self._note("slowed", link)
            await self._endured("stream slow", began_ns)

    async def controller_freezes(self) -> None:
        """Controller and name server fall silent for a while, shorter or longer than a lease."""
        controller = self.group.name_server
        await controller.pause()
        self.event("froze", controller)
        await asyncio.sleep(self.rng.uniform(0.5, 5.0))
        back_ns = time.monotonic_ns()
        await controller.resume()
        self.event("thawed", controller)
        await self.writable("writable after a frozen controller", back_ns)

    async def controller_dies(self) -> None:
        """Controller and name server are killed -9 and come back with what they had on disk."""
        controller = self.group.name_server
        await controller.kill()
        self.event("killed", controller)
        await asyncio.sleep(self.rng.uniform(0.0, 3.0))
        back_ns = time.monotonic_ns()
        controller.launch()
        self.event("started", controller)
        await self.writable("writable after a killed controller", back_ns)

    async def controller_stays_away(self) -> None:
        """Controller and name server are dead for several leases: a whole synchronous group does not notice."""
        controller = self.group.name_server
        async with self._same_master():
            began_ns = time.monotonic_ns()
            await controller.kill()
            self.event("killed", controller)
            deadline = time.monotonic() + self.away_s
            while (left_s := deadline - time.monotonic()) > 0:
                await asyncio.sleep(min(left_s, AWAY_SAID_S))
                self.traffic.check()
                self.say(f"without a controller: {self.journal.counts['ok']} acknowledged so far")
            controller.launch()
            self.event("started", controller)
            await self.writable("writable after the controller was away", time.monotonic_ns())
        longest_ms = longest_stall_ms(self.traffic.stalls, began_ns)
        self.outcome.sample("stall, controller away", longest_ms)
        self.notes.append(f"stalled {longest_ms / 1000:.2f} s")
        if self.plan.synchronous and longest_ms > AWAY_STALL_MS:
            self.problem(f"STALL of {longest_ms:.0f} ms while only the controller was away")

    # --- pieces

    async def _hold_all(self, what: str, links: Mapping[ProxiedLink, Direction]) -> None:
        began_ns = time.monotonic_ns()
        for link, direction in links.items():
            await self._hold(link, direction)
        await self._endured(what, began_ns)

    async def _endured(self, what: str, began_ns: int) -> None:
        """Let it last; the group must take writes before it is healed. Sampled: the longest stall."""
        await asyncio.sleep(self.rng.uniform(*LASTS_S))
        now_ns = time.monotonic_ns()
        if await self.traffic.writable(now_ns, WRITABLE_WITHIN_S, stable=False) is None:
            view = await self.group.view()
            self.problem(
                f"STUCK not writable {(now_ns - began_ns) / 1e9:.1f} s after {what}: {view}"
            )
        longest_ms = longest_stall_ms(self.traffic.stalls, began_ns)
        self.outcome.sample(f"stall, {what}", longest_ms)
        self.notes.append(f"stalled {longest_ms / 1000:.2f} s")

    async def _hold(self, link: ProxiedLink, direction: Direction) -> None:
        if not link.used:
            self.problem(f"EVIDENCE nothing ever passed the link {link.name}")
        link.hold(direction)
        assert link.held(direction), link.name
        self._note(f"held {direction.name}", link)

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

    def _note(self, what: str, link: ProxiedLink) -> None:
        self.journal.event(what, link=link.name)
        self.notes.append(f"{what} {link.name}")


KINDS: Final = (
    "master_loses_controller",
    "slave_loses_master",
    "master_is_alone",
    "slave_loses_controller",
    "stream_breaks",
    "controller_dies",
    "stream_is_slow",
    "controller_freezes",
    "controller_stays_away",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Parses arguments, runs, prints; returns the exit code."""
    parser = command.parser("partitions", __doc__, "--rounds 24", rounds=3 * len(KINDS))
    parser.add_argument("--kind", choices=KINDS, action="append", help="only these (default: all)")
    parser.add_argument(
        "--away-seconds", type=command.amount, default=Partitions.away_s,
        help="how long the controller stays away in such a round (%(default)g)",
    )  # fmt: skip
    command.add_group_arguments(parser)
    arguments = parser.parse_args(argv)
    run = command.begin(arguments)
    campaign = command.group_campaign(Partitions, run, arguments)
    campaign.rounds = arguments.rounds
    campaign.kinds = arguments.kind or KINDS
    campaign.away_s = arguments.away_seconds
    return command.play(run, campaign.run())


if __name__ == "__main__":
    sys.exit(main())
