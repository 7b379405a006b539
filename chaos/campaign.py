"""A run on a replicated group: start it, load it, let something happen to it, stop it, judge what is left."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tandemmq.chaos.churn import Churn
from tandemmq.chaos.deliveries import Readers
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup, ReplicaProcess, SeenGroup
from tandemmq.chaos.history import HistoryMissing
from tandemmq.chaos.journal import Journal
from tandemmq.chaos.outcome import Outcome
from tandemmq.chaos.processes import AsyncProcess, ProcessBroken
from tandemmq.chaos.promises import figures
from tandemmq.chaos.traffic import DELAYED_TOPIC, PROBE_TOPIC, TOPIC, Traffic, TrafficPlan
from tandemmq.chaos.verdict import Judged, Verdict, judge
from tandemmq.cluster.remoting import RemotingError
from tandemmq.replication.config import Mode
from tandemmq.replication.errors import CorruptEpochFile

JAVA_TABLES_S: Final = 12.0  # a stock slave copies topics every 10 s
STOP_S: Final = 40.0
WRITABLE_S: Final = 60.0
ACKNOWLEDGED_S: Final = 5.0

Say = Callable[[str], None]


@dataclass(slots=True)
class GroupOutcome(Outcome):
    """What a run on a replicated group did and found.

    counts      of what was done, by name
    samples_ms  times that were measured, by what they are
    """

    mode: str
    rounds: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    samples_ms: dict[str, list[float]] = field(default_factory=dict)
    sends: dict[str, int] = field(default_factory=dict)
    late_acknowledgements: int = 0
    messages_read: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    verdict: Verdict | None = None

    @property
    def held(self) -> str:
        kept = "nothing lost" if self.mode.startswith("S") else "no loss but what was reported"
        return f"{kept}, nothing unsent, order kept, one log everywhere"

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def sample(self, what: str, took_ms: float) -> None:
        self.samples_ms.setdefault(what, []).append(round(took_ms, 1))

    def distribution(self) -> dict[str, dict[str, float]]:
        """count, p50, p99 and max of each kind of sample."""
        return {what: figures(values) for what, values in self.samples_ms.items()}

    def report(self) -> dict[str, Any]:
        return {**asdict(self), "distribution": self.distribution()}

    def lines(self) -> list[str]:
        done = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        lines = [f"mode {self.mode}: {self.rounds} rounds in {self.seconds:.0f} s; {done}"]
        lines += [
            f"{what}: {figures['count']} times, p50 {figures['p50']:.0f} ms, "
            f"p99 {figures['p99']:.0f} ms, max {figures['max']:.0f} ms"
            for what, figures in self.distribution().items()
        ]
        sends = ", ".join(f"{count} {outcome}" for outcome, count in self.sends.items())
        lines.append(
            f"sends: {sends}; {self.late_acknowledgements} acknowledged after the sender gave up; "
            f"{self.messages_read} messages read on the way"
        )
        if self.answers:
            lines.append(f"refusals: {self.answers}")
        if (verdict := self.verdict) is not None:
            lines.append(
                f"log: {verdict.log_bytes} bytes in {verdict.reigns} epochs, {verdict.messages} "
                f"messages; {verdict.lost} of {verdict.acknowledged} acknowledged ones lost "
                f"({verdict.lost_bytes} bytes); {verdict.cuts} cuts set aside, {verdict.cut_records} "
                "records in them"
            )
            lines.append(
                f"delivered to a consumer group: {verdict.delivered} messages, {verdict.undelivered} undelivered"
            )
        return lines


class Campaign(ABC):
    """One run on one group. A subclass says what happens to it in faults()."""

    def __init__(
        self, plan: GroupPlan, traffic_plan: TrafficPlan, directory: Path, seed: int, say: Say
    ) -> None:
        self.outcome = GroupOutcome(seed, plan.mode)
        self.say = say
        self.rng = random.Random(seed ^ 0x5EED)  # what happens; messages have their own
        self.plan = plan
        self.group: ReplicaGroup
        self.traffic: Traffic
        self.journal: Journal
        self._directory = directory
        self._traffic_plan = traffic_plan
        self._seed = seed

    @abstractmethod
    async def faults(self) -> None:
        """Do things to the group while traffic goes on; all replicas run when it returns."""

    async def drained(self) -> None:
        """Nobody sends any more and everybody has read everything; servers still answer."""
        self.journal.flush()

    @property
    def elected(self) -> bool:
        """Whether a controller says who is master; else a person does."""
        return True

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[ReplicaGroup]:
        """The group, up and whole; whatever still runs at the end is killed."""
        async with ReplicaGroup(self._directory, self.plan) as group:
            await group.start()
            yield group

    async def run(self) -> GroupOutcome:
        """All of it; expected failures become problems of the outcome."""
        began = time.monotonic()
        try:
            with Journal(self._directory / "journal.jsonl") as self.journal:
                async with self.started() as self.group:
                    await self._topics()
                    await self._loaded()
                    await self._stop()
            self.say("everything has stopped; judging journal and stores")
            self._judge([each.store for each in self.group.replicas])
        except (ProcessBroken, RemotingError, HistoryMissing, CorruptEpochFile) as problem:
            self.problem(f"{type(problem).__name__} {problem}")
            self._judge_what_is_left()
        self.outcome.seconds = round(time.monotonic() - began, 1)
        return self.outcome

    def _judge(self, stores: Sequence[Path]) -> None:
        self.outcome.verdict = self.judged(stores).verdict
        self.outcome.problems += self.outcome.verdict.problems

    def judged(self, stores: Sequence[Path], more_topics: Collection[str] = ()) -> Judged:
        """What journal and stores say. more_topics: that the run had beside the traffic's."""
        return judge(
            self._directory / "journal.jsonl", stores, mode=Mode(self.plan.mode),
            stock=self.plan.servers == "java", elected=self.elected, more_topics=more_topics,
        )  # fmt: skip

    def _judge_what_is_left(self) -> None:
        """Of a run that broke off: what the last master's log lacks tells what went wrong."""
        group: ReplicaGroup | None = getattr(self, "group", None)
        if group is None or group.last_master is None:
            return
        try:
            self._judge([group.replica_at(group.last_master).store])
        except (HistoryMissing, CorruptEpochFile, OSError) as problem:
            self.problem(f"UNJUDGED {type(problem).__name__} {problem}")

    async def _topics(self) -> None:
        await self.group.create_topic(TOPIC, self._traffic_plan.queues)
        await self.group.create_topic(PROBE_TOPIC, 1)
        await self.group.create_topic(DELAYED_TOPIC, 1)
        if self.plan.servers == "java":
            await asyncio.sleep(JAVA_TABLES_S)

    async def _loaded(self) -> None:
        messages = random.Random(self._seed)
        async with (
            Readers(self.group.routes_address, self.journal) as readers,
            Traffic(self.group, self.journal, messages, self._traffic_plan) as self.traffic,
        ):
            churn = Churn(self.group, self.journal, self.traffic, self._seed)
            # a stock broker refuses the deletion, having done it: asked again and again it never says yes
            churns = self.plan.servers != "java"
            churning = asyncio.create_task(
                churn.run() if churns else asyncio.sleep(0), name="churn"
            )
            try:
                await self.faults()
                await self.group.whole()
                addresses = [each.address for each in self.group.replicas]
                if churns:
                    self.outcome.problems += await churn.finish(churning, addresses)
                self.outcome.counts["topics made again"] = churn.lives
                await self.traffic.quiet()
                await readers.drained()
                self.outcome.problems += await self.traffic.settled(addresses)
                await self.drained()
            finally:
                churning.cancel()
                self.outcome.sends = dict(self.journal.counts)
                self.outcome.messages_read = self.journal.seen_count
                self.outcome.late_acknowledgements = self.traffic.late
                self.outcome.answers = dict(self.traffic.unusual)

    async def _stop(self) -> None:
        """Slaves first: the last reign is one that all know."""
        view = await self.group.whole()
        replicas = sorted(self.group.replicas, key=lambda each: each.address == view.master)
        for process in (*replicas, self.group.name_server):
            await process.terminate(STOP_S)

    # --- pieces of what may happen

    async def loaded(self, number: int, load_s: float) -> None:
        """Wait until the group is whole and has acknowledged something: a fault of an idle one shows nothing.

        load_s  longest stretch of load; a busy machine may need more for a first acknowledgement
        """
        acknowledged = self.journal.counts["ok"]
        self.traffic.round = number
        await self.group.whole()
        await asyncio.sleep(self.rng.uniform(0.2, load_s))
        deadline = time.monotonic() + ACKNOWLEDGED_S
        while self.journal.counts["ok"] == acknowledged:
            if time.monotonic() > deadline:
                self.problem(f"EVIDENCE round {number}: nothing was acknowledged before the fault")
                break
            await asyncio.sleep(0.01)
        self.traffic.check()

    def problem(self, text: str) -> None:
        self.outcome.problems.append(text)

    def event(self, what: str, process: AsyncProcess, **fields: object) -> None:
        """Into the journal, so that findings can be laid beside what was done."""
        if isinstance(process, ReplicaProcess):
            fields["address"] = process.address
        self.journal.event(what, process=process.name, **fields)

    async def master(self) -> tuple[ReplicaProcess, SeenGroup]:
        """The master of the moment by the controller, and all of its view."""
        while True:
            view = await self.group.view()
            if view is not None and view.master:
                return self.group.replica_at(view.master), view
            await asyncio.sleep(0.01)

    def whole(self, view: SeenGroup) -> bool:
        """Whether everybody is in the set and runs."""
        everybody = all(each.alive and not each.paused for each in self.group.replicas)
        return everybody and len(view.in_sync) == len(self.group.replicas)

    def others(self, master: ReplicaProcess) -> list[ReplicaProcess]:
        return [each for each in self.group.replicas if each is not master]

    async def writable(self, what: str, fault_ns: int, *, stable: bool = True) -> float | None:
        """Wait until the group takes writes; ms since the fault, a sample. None and a problem: never."""
        found_ns = await self.traffic.writable(fault_ns, WRITABLE_S, stable=stable)
        if found_ns is None:
            view, route = await self.group.view(), self.traffic.route.addresses
            self.problem(f"STUCK not writable {WRITABLE_S:g} s after {what}: {view}, route {route}")
            return None
        took_ms = (found_ns - fault_ns) / 1e6
        self.outcome.sample(what, took_ms)
        self.journal.event("writable", after=what, ms=took_ms)
        return took_ms
