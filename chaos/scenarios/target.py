"""A run on a cluster that somebody else started: ours or Apache RocketMQ's. It breaks what it was given handles for.

What is judged comes over the wire: what producers, readers and a group were told, and every queue of every replica,
read to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tandemmq.chaos.campaign import Say
from tandemmq.chaos.checking.findings import UNKNOWN, Judgement
from tandemmq.chaos.checking.judging import DRAINED_EVENT, RUN_EVENT, judge_history
from tandemmq.chaos.checking.lines import Extent, Holding
from tandemmq.chaos.deliveries import Readers
from tandemmq.chaos.faults.fault import until
from tandemmq.chaos.gathering import with_due
from tandemmq.chaos.journal import Journal
from tandemmq.chaos.load import body_hash
from tandemmq.chaos.requests import messages_from, pull_command
from tandemmq.chaos.routes import brokers_of
from tandemmq.chaos.scenarios.handles import Handles
from tandemmq.chaos.scenarios.playing import Player
from tandemmq.chaos.scenarios.run import SCHEDULE, Played, merge
from tandemmq.chaos.scenarios.schedule import Schedule
from tandemmq.chaos.scenarios.served import Progress
from tandemmq.chaos.scenarios.workloads.chosen import Ground, Workload, chosen, topics_of
from tandemmq.chaos.traffic import DELAYED_TOPIC, PROBE_TOPIC, TOPIC, Traffic, TrafficPlan
from tandemmq.chaos.verdict import HISTORY
from tandemmq.cluster.client import Admin, ClientError
from tandemmq.cluster.remoting import ChannelPool, Command, RemotingError, RequestCode

ASK_MS: Final = 2000
TOPICS: Final = {TOPIC: 4, PROBE_TOPIC: 1, DELAYED_TOPIC: 1}
#: what the wire shows of any cluster: no bytes of logs, no epochs where a broker names none, no settings
CHECKED: Final = tuple(f"C-{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17, 18))
ROUTED_S: Final = 60.0


class Target:
    """A cluster by its name server; the first broker group that serves our topic is the one that is looked at."""

    def __init__(self, name_server: str) -> None:
        self.name_server_address = name_server
        self.pool = ChannelPool(connect_timeout_ms=ASK_MS)
        self.group = ""

    async def addresses(self, topic: str) -> dict[int, str] | None:
        """Broker id to address; None without a route."""
        brokers = await brokers_of(self.pool, self.name_server_address, topic, ASK_MS)
        self.group = self.group or next(iter(brokers), "")
        return brokers.get(self.group)


class TargetRun:
    """play() as a run on this machine has it. Raises ValueError for handles that fit nothing, Unfit."""

    def __init__(
        self,
        schedule: Schedule,
        name_server: str,
        handles: Sequence[str],
        directory: Path,
        say: Say,
        *,
        rate: float,
    ) -> None:
        self._rng = random.Random(schedule.seed)
        self.handles = Handles(handles, directory, self._rng)
        self.handles.check(schedule)
        self.schedule = schedule
        self.progress = Progress(schedule, name_server)
        self.kinds = chosen(schedule.workloads, "")
        self._topics = TOPICS | topics_of(self.kinds)
        self._problems: list[str] = []
        self._target = Target(name_server)
        self._directory = directory
        self._say = say
        self._plan = TrafficPlan(rate=rate)

    async def play(self) -> Played:
        """Everything. Our topics are made for it and deleted at the end."""
        began_s = time.monotonic()
        self.schedule.write(self._directory / SCHEDULE)
        journal_path, history = self._directory / "journal.jsonl", self._directory / HISTORY
        try:
            with Journal(journal_path) as journal:
                self.progress.journal = journal
                player = self.progress.player = Player(self.handles, journal, self._say)
                await self._loaded(journal, player)
            with_due(journal_path, history)
            judgement = judge_history(history)
        except (ClientError, RemotingError, TimeoutError) as problem:
            broke_off = f"the run broke off: {type(problem).__name__} {problem}"
            judgement = Judgement(UNKNOWN, [], [broke_off], {}, {}, 0, 0)
        done = self.progress.player
        merge(judgement, self._problems, done.doubts if done else [])
        return Played(
            self.schedule, self._target.name_server_address, self._directory, judgement,
            done.stories if done else [], round(time.monotonic() - began_s, 1),
        )  # fmt: skip

    async def _loaded(self, journal: Journal, player: Player) -> None:
        name_server = self._target.name_server_address
        async with Admin(name_server) as admin:
            await self._make_topics(admin)
            try:
                group = f"ChaosReaders-{self.schedule.seed}-{os.getpid()}"
                async with (
                    Readers(name_server, journal, group=group) as readers,
                    Traffic(self._target, journal, self._rng, self._plan) as traffic,
                    contextlib.AsyncExitStack() as beside,
                ):
                    self.handles.route = traffic.route
                    self.progress.traffic = traffic
                    journal.event(
                        RUN_EVENT, mode="", delayed=[DELAYED_TOPIC, *topics_of(self.kinds)], checks=CHECKED,
                        group=group,
                    )  # fmt: skip
                    journal.event("switchover", why="members of the group find each other")
                    workloads = [
                        await beside.enter_async_context(
                            kind(self._ground(kind, journal)).running()
                        )
                        for kind in self.kinds
                    ]
                    for step in self.schedule.steps:
                        await asyncio.sleep(step.calm_s)
                        traffic.check()
                        await player.step(step)
                        await traffic.writable(time.monotonic_ns(), ROUTED_S)
                        self.progress.steps_done += 1
                        self._say(f"{step}: {journal.counts['ok']} acknowledged")
                    for workload in workloads:
                        await workload.quiet()
                    await traffic.quiet()
                    await readers.drained()
                    for workload in workloads:
                        await workload.drained()
                    if not journal.undelivered:
                        journal.event(DRAINED_EVENT)
                    held = await self._final_read(journal)
                    for workload in workloads:
                        self._problems += workload.judged(held)
            finally:
                for topic in self._topics:
                    await admin.delete_topic(topic)
                await self._target.pool.close()

    def _ground(self, kind: type[Workload], journal: Journal) -> Ground:
        """Of a cluster of somebody else's: nothing is known of its mode, and no master is handed over."""
        return Ground(
            self._target.name_server_address, self._target.group, journal,
            random.Random(f"{kind.name}/{self.schedule.seed}"), self._directory,
        )  # fmt: skip

    async def _make_topics(self, admin: Admin) -> None:
        """Made for this run: what an earlier one left would be nobody's. Raises ClientError."""
        there = sorted(set(await admin.topics()) & set(self._topics))
        if there:
            raise ClientError(
                f"{', '.join(there)} exist: an earlier run? delete them (tandem admin deleteTopic)"
            )
        for topic, queues in self._topics.items():
            await admin.create_topic(topic, queues)
        for topic in self._topics:
            no_route = ClientError(f"no route for {topic}")
            await until(partial(self._target.addresses, topic), ROUTED_S, no_route)

    async def _final_read(self, journal: Journal) -> frozenset[str]:
        """Every queue of every replica from its first message to its last; unique ids of all that was there."""
        held: set[str] = set()
        for number, address in sorted((await self._target.addresses(TOPIC) or {}).items()):
            for topic, queues in self._topics.items():
                for queue_id in range(queues):
                    name = f"{number} at {address}"
                    held |= await self._read(journal, name, address, topic, queue_id)
        return frozenset(held)

    async def _read(
        self, journal: Journal, name: str, address: str, topic: str, queue_id: int
    ) -> set[str]:
        pool = self._target.pool
        start = await asked_offset(pool, address, RequestCode.GET_MIN_OFFSET, topic, queue_id)
        end = await asked_offset(pool, address, RequestCode.GET_MAX_OFFSET, topic, queue_id)
        journal.line(Extent(topic, queue_id, name, start, end))
        at = start
        held: set[str] = set()
        while at < end:
            found = await read_from(pool, address, topic, queue_id, at)
            if not found:
                break  # a hole: the checkers see it
            ids, offsets, hashes = (tuple(each) for each in zip(*found, strict=True))
            journal.line(Holding(topic, queue_id, name, at, ids, offsets, hashes))
            held |= set(ids)
            at += len(found)
        return held


async def asked_offset(
    pool: ChannelPool, address: str, code: RequestCode, topic: str, queue_id: int
) -> int:
    answer = await pool.request(
        address, Command(code, {"topic": topic, "queueId": str(queue_id)}), ASK_MS
    )
    return int((answer.ext or {}).get("offset", 0))


async def read_from(
    pool: ChannelPool, address: str, topic: str, queue_id: int, offset: int
) -> list[tuple[str, int, str]]:
    """(unique id, log offset, body hash) of messages from `offset` on; nothing when there is none."""
    ask = pull_command("ChaosFinal", topic, queue_id, offset)
    answer = await pool.request(address, ask, 5 * ASK_MS)
    return [
        (each.property_map["UNIQ_KEY"], each.physical_offset, body_hash(bytes(each.body)))
        for each in messages_from(answer, offset)
    ]
