"""Takes the master of a replicated group away, again and again, under load, and looks for anything lost.

    python -m chaos.failover --rounds 100 --fault kill --mode sync

Each round draws what happens: the master is killed -9 or frozen (SIGSTOP: a silent death), or the one that
was just elected, or master and slave in turn, or a slave first and the master while it comes back. A prober
that sends every 10 ms through the routes of the name server measures when the group takes writes again.
At the end nothing acknowledged may be missing (in async mode: nothing but what replicas reported and set
aside), nothing may be there that nobody sent, queue order and offsets must hold, and the logs of all
replicas must be one, byte for byte. The seed draws faults and messages; what was in flight differs.

Exit code 0: all held. 1: something did not (the directory is kept). 2: wrong usage.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from chaos import command
from chaos.groups import Group, GroupPlan, Replica, Servers
from chaos.history import HistoryMissing
from chaos.journal import Journal
from chaos.processes import ProcessBroken
from chaos.promises import percentile
from chaos.traffic import PROBE_TOPIC, TOPIC, Traffic, TrafficPlan
from chaos.verdict import Verdict, judge
from cluster.remoting import RemotingError
from replication.errors import CorruptEpochFile

WRITABLE_S: Final = 60.0
JAVA_TABLES_S: Final = 12.0  # a stock slave copies topics every 10 s

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """load_s: longest stretch of load between the group being whole and the next fault."""

    rounds: int
    seed: int
    directory: Path
    fault: str = "kill"
    synchronous: bool = True
    sync_flush: bool = False
    replicas: int = 2
    servers: Servers = "tandem"
    rate: float = 800.0
    load_s: float = 1.5


@dataclass(slots=True)
class Outcome:
    """What a run did and found; it is good when there are no problems.

    writable_ms  by what was done: from the fault (from the restart, where nobody was left) to writable
    """

    seed: int
    mode: str
    rounds: int = 0
    master_kills: int = 0
    slave_kills: int = 0
    freezes: int = 0
    restarts: int = 0
    sends: dict[str, int] = field(default_factory=dict)
    late_acknowledgements: int = 0
    messages_read: int = 0
    writable_ms: dict[str, list[float]] = field(default_factory=dict)
    whole_ms: list[float] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    verdict: Verdict | None = None
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems

    def distribution(self) -> dict[str, dict[str, float]]:
        """count, p50, p99 and max of writable_ms and whole_ms."""
        samples = {**self.writable_ms, "whole again": self.whole_ms}
        return {
            name: {
                "count": len(values),
                "p50": round(percentile(values, 0.5), 1),
                "p99": round(percentile(values, 0.99), 1),
                "max": round(max(values), 1),
            }
            for name, values in samples.items()
            if values
        }


class Campaign:
    """One run on one group. The kinds of rounds are the methods named in KINDS."""

    def __init__(self, settings: Settings, say: Say) -> None:
        self.settings = settings
        plan = GroupPlan(
            replicas=settings.replicas,
            synchronous=settings.synchronous,
            sync_flush=settings.sync_flush,
            servers=settings.servers,
        )
        self.outcome = Outcome(settings.seed, plan.mode)
        self._say = say
        self._rng = random.Random(settings.seed)
        self._schedule = random.Random(settings.seed ^ 0x5EED)
        self._group = Group(settings.directory, plan)
        self._journal_path = settings.directory / "journal.jsonl"
        self._notes: list[str] = []

    async def run(self) -> Outcome:
        """All rounds and the verdict; expected failures become problems of the outcome."""
        began = time.monotonic()
        try:
            with Journal(self._journal_path) as journal:
                async with self._group as group:
                    await self._start(group)
                    await self._traffic(group, journal)
                    await self._stop(group)
            self._judge()
        except (ProcessBroken, RemotingError, HistoryMissing, CorruptEpochFile) as problem:
            self._problem(f"{type(problem).__name__}: {problem}")
        self.outcome.seconds = round(time.monotonic() - began, 1)
        return self.outcome

    def _problem(self, text: str) -> None:
        self.outcome.problems.append(text)

    async def _start(self, group: Group) -> None:
        await group.start()
        await group.create_topic(TOPIC, TrafficPlan().queues)
        await group.create_topic(PROBE_TOPIC, 1)
        if self.settings.servers == "java":
            await asyncio.sleep(JAVA_TABLES_S)

    async def _traffic(self, group: Group, journal: Journal) -> None:
        outcome = self.outcome
        traffic_plan = TrafficPlan(rate=self.settings.rate)
        async with Traffic(group, journal, self._rng, traffic_plan) as traffic:
            round_ = Round(group, traffic, journal, self._schedule, outcome)
            kinds = KINDS[self.settings.fault]
            for number in range(1, self.settings.rounds + 1):
                name = self._schedule.choices(list(kinds), list(kinds.values()))[0]
                if not await self._round(number, name, round_):
                    break
            outcome.sends = dict(journal.counts)
            await group.whole()
            await traffic.quiet()
            for text in await traffic.settled(each.address for each in group.replicas):
                self._problem(text)
            outcome.sends = dict(journal.counts)
            outcome.messages_read = journal.seen_count
            outcome.late_acknowledgements = traffic.late
            outcome.answers = dict(traffic.unusual)

    async def _round(self, number: int, name: str, round_: Round) -> bool:
        """One round; whether to go on."""
        traffic, journal = round_.traffic, round_.journal
        before = journal.counts["ok"]
        traffic.round = number
        await round_.group.whole()
        await asyncio.sleep(self._schedule.uniform(0.2, self.settings.load_s))
        traffic.check()
        if journal.counts["ok"] == before:
            self._problem(f"EVIDENCE round {number}: nothing was acknowledged before the fault")
            return False
        journal.event("round", number=number, kind=name)
        round_.notes.clear()
        await getattr(round_, name)()
        whole_ns = time.monotonic_ns()
        await round_.group.whole()
        self.outcome.whole_ms.append((time.monotonic_ns() - whole_ns) / 1e6)
        self.outcome.rounds = number
        self._say(
            f"round {number}/{self.settings.rounds} {name}: {', '.join(round_.notes)}; whole "
            f"{self.outcome.whole_ms[-1] / 1000:.2f} s after that, "
            f"{journal.counts['ok']} acknowledged so far"
        )
        return not round_.stuck

    async def _stop(self, group: Group) -> None:
        """Slaves first: the last reign is one that all know."""
        view = await group.whole()
        slaves = [each for each in group.replicas if each.address != view.master]
        for replica in (*slaves, *(each for each in group.replicas if each not in slaves)):
            await replica.terminate(40)
        await group.name_server.terminate(40)

    def _judge(self) -> None:
        stores = [each.store for each in self._group.replicas]
        verdict = judge(
            self._journal_path,
            stores,
            synchronous=self.settings.synchronous,
            stock=self.settings.servers == "java",
        )
        self.outcome.verdict = verdict
        self.outcome.problems += verdict.problems


class Round:
    """What can happen in a round; each method leaves all replicas running."""

    def __init__(
        self, group: Group, traffic: Traffic, journal: Journal, rng: random.Random, outcome: Outcome
    ) -> None:
        self.group = group
        self.traffic = traffic
        self.journal = journal
        self.notes: list[str] = []
        self.stuck = False
        self._rng = rng
        self._outcome = outcome

    async def master(self) -> None:
        """The master is killed; it comes back a little later."""
        victim, whole = await self._master()
        fault_ns = await self._kill(victim)
        await self._writable("kill" if whole else "kill, not whole", fault_ns)
        await self._relaunch(victim)

    async def elected(self) -> None:
        """The master is killed, and whoever is elected as soon as it serves; both come back."""
        victim, whole = await self._master()
        fault_ns = await self._kill(victim)
        await self._writable("kill" if whole else "kill, not whole", fault_ns, stable=False)
        await asyncio.sleep(self._rng.uniform(0.0, 0.3))
        heir = self._current()
        if heir is victim or not heir.alive:
            await self._relaunch(victim)
            return
        await self._kill(heir)
        await self._both_back(victim, heir)

    async def both(self) -> None:
        """Master and slave are killed in turn, either first."""
        victim, _ = await self._master()
        slave = self._rng.choice(self._others(victim))
        order = [victim, slave] if self._rng.random() < 0.5 else [slave, victim]
        for replica in order:
            await self._kill(replica)
            await asyncio.sleep(self._rng.uniform(0.0, 0.25))
        await self._both_back(*order)

    async def straggler(self) -> None:
        """A slave is killed and comes back; the master is killed while it may or may not be in the set."""
        victim, _ = await self._master()
        slave = self._rng.choice(self._others(victim))
        await self._kill(slave)
        await asyncio.sleep(self._rng.uniform(0.0, 1.0))
        await self._relaunch(slave)
        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        master, whole = await self._master()
        fault_ns = await self._kill(master)
        if whole:
            await self._writable("kill", fault_ns)
            await self._relaunch(master)
            return
        await self._relaunch(master)
        await self._writable("restart", time.monotonic_ns())

    async def freeze(self) -> None:
        """The master falls silent (SIGSTOP) until another serves, wakes up later and must not acknowledge."""
        victim, whole = await self._master()
        fault_ns = time.monotonic_ns()
        await victim.pause()
        self._outcome.freezes += 1
        self._event("frozen", victim)
        await self._writable("freeze" if whole else "freeze, not whole", fault_ns)
        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        await victim.resume()
        self._event("thawed", victim)

    async def thaw(self) -> None:
        """The master falls silent for about as long as its lease: it wakes up while another may be elected."""
        victim, _ = await self._master()
        fault_ns = time.monotonic_ns()
        await victim.pause()
        self._outcome.freezes += 1
        self._event("frozen", victim)
        await asyncio.sleep(self._rng.uniform(1.5, 3.0))
        await victim.resume()
        self._event("thawed", victim)
        await self._writable("thaw", fault_ns)

    async def freeze_slave(self) -> None:
        """A slave falls silent, leaves the set, wakes up and comes back to it."""
        victim, _ = await self._master()
        slave = self._rng.choice(self._others(victim))
        fault_ns = time.monotonic_ns()
        await slave.pause()
        self._outcome.freezes += 1
        self._event("frozen", slave)
        await self._writable("slave frozen", fault_ns)
        await asyncio.sleep(self._rng.uniform(0.0, 1.0))
        await slave.resume()
        self._event("thawed", slave)

    # --- pieces

    async def _master(self) -> tuple[Replica, bool]:
        """The master of the moment by the controller, and whether the group is whole now."""
        while True:
            view = await self.group.view()
            if view is not None and view.master:
                break
            await asyncio.sleep(0.01)
        whole = len(view.in_sync) == len(self.group.replicas) and all(
            each.alive for each in self.group.replicas
        )
        return self.group.replica_at(view.master), whole

    def _current(self) -> Replica:
        """The master by the route that the prober just used."""
        assert self.traffic.route.master is not None
        return self.group.replica_at(self.traffic.route.master)

    def _others(self, master: Replica) -> list[Replica]:
        return [each for each in self.group.replicas if each is not master]

    async def _kill(self, replica: Replica) -> int:
        """kill -9; the time just before."""
        was_master = replica.address == self.traffic.route.master
        fault_ns = time.monotonic_ns()
        await replica.kill()
        if was_master:
            self._outcome.master_kills += 1
        else:
            self._outcome.slave_kills += 1
        self._event("killed", replica, master=was_master)
        return fault_ns

    async def _relaunch(self, replica: Replica) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, 1.0))
        replica.launch()
        self._outcome.restarts += 1
        self._event("launched", replica)

    async def _both_back(self, first: Replica, second: Replica) -> None:
        """Start both in any order; writable again is measured from the later start."""
        order = [first, second]
        self._rng.shuffle(order)
        for replica in order:
            await self._relaunch(replica)
        await self._writable("restart", time.monotonic_ns())

    async def _writable(self, what: str, fault_ns: int, *, stable: bool = True) -> None:
        found_ns = await self.traffic.writable(fault_ns, WRITABLE_S, stable=stable)
        if found_ns is None:
            view = await self.group.view()
            self._outcome.problems.append(
                f"STUCK not writable {WRITABLE_S:g} s after {what}: {view}, route "
                f"{self.traffic.route.addresses}"
            )
            self.stuck = True
            return
        took_ms = (found_ns - fault_ns) / 1e6
        self._outcome.writable_ms.setdefault(what, []).append(round(took_ms, 1))
        self.journal.event("writable", after=what, ms=took_ms)
        self.notes.append(f"writable {took_ms / 1000:.2f} s after {what}")

    def _event(self, what: str, replica: Replica, **fields: object) -> None:
        self.journal.event(what, replica=replica.number, address=replica.address, **fields)
        self.notes.append(f"{what} {replica.name}")


_KILLS: Final = {"master": 6, "elected": 1, "both": 1, "straggler": 1}
_STOPS: Final = {"freeze": 6, "thaw": 2, "freeze_slave": 2}
KINDS: Final[dict[str, dict[str, int]]] = {
    "kill": _KILLS,
    "stop": _STOPS,
    "mixed": {**_KILLS, **_STOPS},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Parses arguments, runs, prints; returns the exit code."""
    parser = command.parser("failover", __doc__)
    parser.epilog = (
        "example: python -m chaos.failover --rounds 100 --fault kill --mode sync --seed 7"
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--fault", choices=sorted(KINDS), default="kill")
    parser.add_argument("--mode", choices=("sync", "async"), default="sync")
    parser.add_argument("--sync-flush", action="store_true", help="wait for the disk as well")
    parser.add_argument("--replicas", type=int, default=2, choices=(2, 3))
    parser.add_argument("--servers", choices=("tandem", "java"), default="tandem")
    parser.add_argument("--rate", type=float, default=800, help="messages/s, 0: as many as go")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    run = command.begin(arguments, "failover")
    settings = Settings(
        arguments.rounds,
        run.seed,
        run.directory,
        fault=arguments.fault,
        synchronous=arguments.mode == "sync",
        sync_flush=arguments.sync_flush,
        replicas=arguments.replicas,
        servers=arguments.servers,
        rate=arguments.rate,
    )
    outcome = asyncio.run(Campaign(settings, command.say).run())
    lines = [
        f"mode {outcome.mode}: {outcome.rounds} rounds in {outcome.seconds:.0f} s, "
        f"{outcome.master_kills} masters and {outcome.slave_kills} slaves killed, "
        f"{outcome.freezes} frozen",
        *described(outcome),
    ]
    report = {**asdict(outcome), "distribution": outcome.distribution()}
    return command.end(run, report, lines, outcome.problems)


def described(outcome: Outcome) -> list[str]:
    """The figures, a line each."""
    lines = [
        f"{name}: {figures['count']:.0f} times, p50 {figures['p50']:.0f} ms, "
        f"p99 {figures['p99']:.0f} ms, max {figures['max']:.0f} ms"
        for name, figures in outcome.distribution().items()
    ]
    lines.append(
        f"sends {outcome.sends}, {outcome.late_acknowledgements} acknowledged late, "
        f"{outcome.messages_read} read while it went on; other answers {outcome.answers or 'none'}"
    )
    if (verdict := outcome.verdict) is not None:
        lines.append(
            f"log of {verdict.log_bytes} bytes in {verdict.reigns} reigns, {verdict.messages} messages; "
            f"{verdict.lost} acknowledged ones lost ({verdict.lost_bytes} bytes), "
            f"{verdict.cuts} cuts set aside with {verdict.cut_records} records"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
