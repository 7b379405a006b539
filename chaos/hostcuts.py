"""Cuts the power of machines, again and again, under load, and looks for anything lost beyond what the mode promises.

Each round cuts the power of the master's host, of a slave's, or of all at once; what no fsync had written is
gone. In the modes that promise to keep what was acknowledged nothing may be missing; in the others no more than
the last moment, and a replicated group must have said so. The promises are chaos/survival.py.

Exit code 0: all held. 1: something did not (the directory is kept). 2: wrong usage. 3: not possible here.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tandemmq.chaos import command
from tandemmq.chaos.campaign import GroupOutcome
from tandemmq.chaos.classichosts import ClassicHosts
from tandemmq.chaos.gathering import POWER_EVENT
from tandemmq.chaos.groups import ReplicaGroup, ReplicaProcess
from tandemmq.chaos.hosts import FILE_SYSTEMS, Disks, FileSystem, HostGroup, unsupported
from tandemmq.chaos.person import Person
from tandemmq.chaos.processes import ProcessBroken
from tandemmq.chaos.rounds import Rounds

UNSUPPORTED: Final = 3
DECLARED: Final = "confirmed messages may be lost"  # how a controller's log says it
KINDS: Final[dict[str, dict[str, int]]] = {
    "one": {"master_dark": 2, "slave_dark": 1},
    "slave": {"slave_dark": 1},
    "all": {"all_dark": 1},
    "mixed": {"master_dark": 3, "slave_dark": 1, "all_dark": 3},
}


class HostCuts(Rounds):
    """Rounds of power cuts. classic: nobody elects; where two logs are left, a person acts (tandemmq.chaos.person)."""

    fault = "mixed"
    kinds: Mapping[str, int] | None = None  # instead of those of `fault`
    file_system: FileSystem = "ext4"
    classic = False
    disks: Disks
    hosts: HostGroup
    person: Person | None = None

    @property
    def elected(self) -> bool:
        return not self.classic

    async def run(self) -> GroupOutcome:
        """As any campaign, while the disks are there. Raises ProcessBroken when there are none to be had."""
        with Disks(self._directory, self.plan.replicas, self.file_system) as self.disks:
            return await super().run()

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[ReplicaGroup]:
        made = ClassicHosts if self.classic else HostGroup
        async with made(self._directory, self.plan, self.disks) as self.hosts:
            await self.hosts.start()
            if isinstance(self.hosts, ClassicHosts):
                self.person = Person(self.hosts, self.journal, self.rng, self.outcome.count)
            yield self.hosts

    @property
    def weights(self) -> Mapping[str, int]:
        return self.kinds or KINDS[self.fault]

    # --- kinds of rounds

    async def master_dark(self) -> None:
        """The master's host loses power; its disk comes back a little later."""
        victim, view = await self.master()
        elects = self.whole(view) and not self.classic
        cut_ns = await self._cut(victim)
        if elects:
            await self.writable("host without power", cut_ns)
        await self._back(victim)
        if not elects:
            await self.writable("restart", time.monotonic_ns())

    async def slave_dark(self) -> None:
        """A slave's host loses power."""
        master, _ = await self.master()
        victim = self.rng.choice(self.others(master))
        # where nobody elects a synchronous master waits for a slave, whoever is there
        needed = self.classic and self.plan.synchronous and self.plan.replicas == 2
        cut_ns = await self._cut(victim)
        if not needed:
            await self.writable("slave without power", cut_ns)
        await self._back(victim)
        if needed:
            await self.writable("slave back", time.monotonic_ns())

    async def all_dark(self) -> None:
        """All lose power within the same moment, and come back in any order."""
        await self._cut(*self.group.replicas)
        order = list(self.group.replicas)
        self.rng.shuffle(order)
        await self._back(*order)
        await self.writable("all without power", time.monotonic_ns())

    # --- pieces

    async def _cut(self, *victims: ReplicaProcess) -> int:
        at_ns = await self.hosts.cut_power(victims)
        everybody = len(victims) == len(self.group.replicas)
        names = [each.name for each in victims]
        self.journal.event(
            POWER_EVENT, at_ns=at_ns, done_ns=time.monotonic_ns(), hosts=names, everybody=everybody
        )
        self.outcome.count("cuts of all" if everybody else "cuts of one")
        return at_ns

    async def _back(self, *dark: ReplicaProcess) -> None:
        for replica in dark:
            await asyncio.sleep(self.rng.uniform(0.0, 1.0))
            await self.hosts.power(replica)
            self.event("powered", replica)
        if self.person is not None:
            await self.person.until_whole()

    def _judge(self, stores: Sequence[Path]) -> None:
        super()._judge(stores)
        verdict = self.outcome.verdict
        assert verdict is not None
        if verdict.lost and self.plan.synchronous and not self.classic:
            said = self.group.name_server.log.read_text(errors="replace")
            if DECLARED not in said:
                self.problem(f"UNDECLARED {verdict.lost} acknowledged messages are gone")


def main(argv: Sequence[str] | None = None) -> int:
    """Parses arguments, runs, prints; returns the exit code."""
    example = "--rounds 20 --mode sync --sync-flush --fs xfs"
    parser = command.parser("hostcuts", __doc__, example, rounds=20)
    parser.add_argument("--fault", choices=sorted(KINDS), default="mixed")
    parser.add_argument("--fs", choices=FILE_SYSTEMS, default="ext4")
    parser.add_argument("--classic", action="store_true", help="no controller: roles by settings")
    command.add_group_arguments(parser)
    arguments = parser.parse_args(argv)
    if missing := unsupported(arguments.fs):
        command.say(f"unsupported: {missing}")
        return UNSUPPORTED
    run = command.begin(arguments)
    campaign = command.group_campaign(HostCuts, run, arguments)
    campaign.rounds, campaign.fault = arguments.rounds, arguments.fault
    campaign.file_system, campaign.classic = arguments.fs, arguments.classic
    try:
        return command.play(run, campaign.run())
    except ProcessBroken as problem:  # no disks
        command.say(f"unsupported: {problem}")
        return UNSUPPORTED


if __name__ == "__main__":
    sys.exit(main())
