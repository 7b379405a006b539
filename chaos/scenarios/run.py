"""One run of a scenario on this machine: its schedule on disk first, then the group, the faults, the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tandemmq.chaos.campaign import JAVA_TABLES_S, Campaign, Say
from tandemmq.chaos.checking.findings import INVALID, UNKNOWN, Finding, Judgement
from tandemmq.chaos.checking.judging import DRAINED_EVENT, RUN_EVENT
from tandemmq.chaos.checking.lines import OK
from tandemmq.chaos.faults.fault import FaultStory, Unsupported
from tandemmq.chaos.gathering import run_fields
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup
from tandemmq.chaos.journal import read_sends
from tandemmq.chaos.ports import LOOPBACK
from tandemmq.chaos.processes import ProcessBroken
from tandemmq.chaos.scenarios.breaking import Breaker
from tandemmq.chaos.scenarios.playing import Player
from tandemmq.chaos.scenarios.schedule import Schedule
from tandemmq.chaos.scenarios.served import Progress
from tandemmq.chaos.scenarios.stages import staged
from tandemmq.chaos.scenarios.watching import SETTING_TOPIC, Watchers
from tandemmq.chaos.scenarios.workloads.chosen import (
    Ground,
    Workload,
    chosen,
    settings_of,
    topics_of,
)
from tandemmq.chaos.traffic import PROBE_TOPIC, TOPIC, TrafficPlan
from tandemmq.cluster.client import ClientError

SCHEDULE: Final = "schedule.json"
LOOKED_UP: Final = 40
WHOLE_S: Final = 60.0
LOCAL: Final = "local"
#: checkers that a run on this machine must have fed
CHECKED: Final = tuple(f"C-{number}" for number in range(1, 21))
#: words of a campaign, its topic made again and workloads -> the id of the property that they say is broken
WORDS: Final = {
    "UNDECLARED": "C-1", "TORN": "C-1", "GHOST": "C-2", "REPLACED": "C-4", "TOGETHER": "C-8", "OVERTOOK": "C-8",
    "SKIPPED": "C-11", "UNEQUAL": "C-15", "STUCK": "C-17", "STALL": "C-17", "CHANGED": "C-17", "SEEN": "C-18",
    "ASKED": "C-18",
}  # fmt: skip


@dataclass(slots=True)
class Played:
    """A run and its verdict. problems: of the run itself, as far as they are no findings."""

    schedule: Schedule
    target: str
    directory: Path
    judgement: Judgement
    stories: list[FaultStory] = field(default_factory=list)
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    machine: str = ""


class ScenarioRun(Campaign):
    """A campaign that plays a schedule. stories: what became of each fault."""

    schedule: Schedule
    ground: contextlib.ExitStack

    def __init__(
        self,
        schedule: Schedule,
        directory: Path,
        say: Say,
        *,
        rate: float = 400.0,
        servers: str = "tandem",
    ) -> None:
        mode = schedule.mode
        self.kinds = chosen(schedule.workloads, mode)
        plan = GroupPlan(
            replicas=schedule.replicas,
            synchronous=mode.startswith("S"),
            sync_flush=mode.endswith("1"),
            servers="java" if servers == "java" else "tandem",
            settings=settings_of(self.kinds),
        )
        super().__init__(plan, TrafficPlan(rate=rate), directory, schedule.seed, say)
        self.schedule = schedule
        self.progress = Progress(schedule, LOCAL)
        self.workloads: list[Workload] = []
        self.judgement: Judgement | None = None

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[ReplicaGroup]:
        async with (
            staged(self.schedule.stage, self._directory, self.plan, self.ground) as group,
            contextlib.AsyncExitStack() as self.beside,
        ):
            self.progress.journal = self.journal
            self.progress.exporters = {
                each.name: f"{LOOPBACK}:{each.metrics_port}"
                for each in group.replicas
                if each.metrics_port
            }
            yield group

    async def play(self) -> Played:
        """Everything: the schedule is on disk before anything starts. Raises Unsupported."""
        self.schedule.write(self._directory / SCHEDULE)
        with contextlib.ExitStack() as self.ground:
            outcome = await self.run()
        judgement = self.judgement
        if judgement is None:
            judgement = Judgement(
                UNKNOWN, [], ["the run broke off: nothing was judged"], {}, {}, 0, 0
            )
        player = self.progress.player
        stories, doubts = (player.stories, player.doubts) if player is not None else ([], [])
        outcome.problems = merge(judgement, outcome.problems, doubts)
        return Played(
            self.schedule, LOCAL, self._directory, judgement, stories,
            outcome.seconds, outcome.problems,
            f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        )  # fmt: skip

    async def faults(self) -> None:
        for topic, queues in {SETTING_TOPIC: 1, **topics_of(self.kinds)}.items():
            await self.group.create_topic(topic, queues)
        if self.plan.servers == "java":
            await asyncio.sleep(JAVA_TABLES_S)
        self.journal.event(
            RUN_EVENT, mode=self.plan.mode, scenario=self.schedule.scenario, seed=self.schedule.seed,
            checks=self._checks(), unconfirmed_settings=True, **run_fields(topics_of(self.kinds)),
            names={each.address: each.name for each in self.group.replicas},
        )  # fmt: skip
        self.journal.event("switchover", why="members of the group find each other")
        maker = Breaker(self.group, self.journal, self.rng)
        player = self.progress.player = Player(maker, self.journal, self.say)
        self.progress.traffic = self.traffic
        queues = self._traffic_plan.queues
        await self._begin_workloads()
        async with Watchers(self.group, self.journal, self.traffic.route, queues):
            for number, step in enumerate(self.schedule.steps, 1):
                await self.loaded(number, step.calm_s)
                began = time.monotonic()
                await player.step(step)
                await self.group.whole(WHOLE_S if self.plan.servers == "tandem" else None)
                self.outcome.rounds = self.progress.steps_done = number
                self.say(
                    f"step {number}/{len(self.schedule.steps)} {', '.join(map(str, step.faults)) or 'calm'}: whole "
                    f"again {time.monotonic() - began:.1f} s after it began, {self.journal.counts['ok']} acknowledged"
                )
            await asyncio.sleep(1.0)
        await self._each_workload(lambda each: each.quiet())

    async def _begin_workloads(self) -> None:
        tandem = self.plan.servers == "tandem"
        for kind in self.kinds:
            rng = random.Random(f"{kind.name}/{self._seed}")
            ground = Ground(
                self.group.routes_address, self.plan.name, self.journal, rng, self._directory,
                self.group.controller_address if tandem else "",
                keeps_all=self.plan.mode.startswith("S"),
            )  # fmt: skip
            try:
                self.workloads.append(await self.beside.enter_async_context(kind(ground).running()))
            except ClientError as problem:
                raise ProcessBroken(f"workload {kind.name} did not begin: {problem}") from None

    async def _each_workload(self, do: Callable[[Workload], Awaitable[None]]) -> None:
        """What one cannot do is told, and the others go on."""
        for each in self.workloads:
            try:
                await do(each)
            except ClientError as problem:
                self.problem(f"WORKLOAD {each.name}: {type(problem).__name__} {problem}")

    def _checks(self) -> list[str]:
        checks = list(CHECKED)
        if (
            self.plan.servers == "java"
        ):  # nothing says so: no epochs in acknowledgements, other small files
            checks = [each for each in checks if each not in ("C-14", "C-20")]
        return checks

    async def drained(self) -> None:
        """Everybody has read everything: say so, and look some of it up."""
        master, _ = await self.master()
        self.traffic.route.addresses.setdefault(0, master.address)
        queues = self._traffic_plan.queues
        watchers = Watchers(self.group, self.journal, self.traffic.route, queues)
        async with watchers.asking() as asking:
            await asking.caught_up()
            await asking.look_up(self._wanted())
        await self._each_workload(lambda each: each.drained())
        await self.beside.aclose()
        if not self.journal.undelivered:
            self.journal.event(DRAINED_EVENT)

    def _wanted(self) -> list[tuple[str, int, str]]:
        """Some acknowledged messages, from the whole run."""
        self.journal.flush()
        topics = {TOPIC, PROBE_TOPIC}
        acknowledged = [
            (each.topic, each.queue_id, each.unique_id)
            for each in read_sends(self.journal.path)
            if each.outcome == OK and each.topic in topics
        ]
        return random.Random(self.schedule.seed).sample(
            acknowledged, min(LOOKED_UP, len(acknowledged))
        )

    def _judge(self, stores: Sequence[Path]) -> None:
        """As every campaign, and what workloads know beside: of findings there are ids here, not sentences."""
        found = self.judged(stores, topics_of(self.kinds))
        self.outcome.verdict, self.judgement = found.verdict, found.judgement
        held = found.gathered.reference.ids()
        self.outcome.problems += found.problems
        for workload in self.workloads:
            self.outcome.problems += workload.judged(held)


def merge(judgement: Judgement, problems: Sequence[str], doubts: Sequence[str]) -> list[str]:
    """What was found beside the checkers: findings where it names a property, doubts else; the latter, whole."""
    left = []
    for problem in problems:
        check = WORDS.get(problem.split()[0])
        if check is None:
            left.append(problem)
            judgement.doubts.append(problem.splitlines()[0])
        else:
            judgement.counts[check] = judgement.counts.get(check, 0) + 1
            judgement.findings.append(Finding(check, problem))
    judgement.doubts += [each for each in doubts if each not in judgement.doubts]
    if judgement.counts:
        judgement.word = INVALID
    elif judgement.doubts:
        judgement.word = UNKNOWN
    return left


__all__ = ["Played", "ScenarioRun", "Unsupported"]
