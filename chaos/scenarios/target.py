"""A run on a cluster that somebody else started: ours or Apache RocketMQ's. It breaks what it was given handles for.

A handle names a broker by the address that it is registered with: `127.0.0.1:10911=pid:4711` can be frozen; with
`,start:COMMAND` it can be killed as well, and COMMAND starts it again. What is judged comes over the wire: what
producers, readers and a group were told, and every queue of every replica, read to its end.
"""

from __future__ import annotations

import asyncio
import os
import random
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tandemmq.chaos.campaign import Say
from tandemmq.chaos.checking.findings import UNKNOWN, Judgement
from tandemmq.chaos.checking.judging import DRAINED_EVENT, RUN_EVENT, judge_history
from tandemmq.chaos.checking.lines import Extent, Holding
from tandemmq.chaos.deliveries import Readers
from tandemmq.chaos.faults.fault import Fault, FaultStory, NoEffect, NotHealed, until
from tandemmq.chaos.faults.processes import Killed, Paused, Stuttering
from tandemmq.chaos.journal import Journal
from tandemmq.chaos.load import body_hash
from tandemmq.chaos.processes import AsyncProcess
from tandemmq.chaos.scenarios.gathering import with_due
from tandemmq.chaos.scenarios.run import HISTORY, JOURNAL, SCHEDULE, Played
from tandemmq.chaos.scenarios.schedule import Planned, Schedule
from tandemmq.chaos.traffic import DELAYED_TOPIC, PROBE_TOPIC, TOPIC, Traffic, TrafficPlan
from tandemmq.cluster.client import Admin, ClientError
from tandemmq.cluster.remoting import (
    ChannelPool,
    Command,
    RemotingError,
    RequestCode,
    ResponseCode,
)
from tandemmq.storage import decode, fastjson

ASK_MS: Final = 2000
BREAKABLE: Final[Mapping[str, Callable[[AsyncProcess, str], Fault]]] = {
    "kill": Killed,
    "pause": Paused,
    "stutter": Stuttering,
}
TOPICS: Final = {TOPIC: 4, PROBE_TOPIC: 1, DELAYED_TOPIC: 1}
#: what the wire shows of any cluster: no bytes of logs, no epochs where a broker names none, no settings
CHECKED: Final = (
    "C-1",
    "C-2",
    "C-3",
    "C-4",
    "C-5",
    "C-6",
    "C-7",
    "C-8",
    "C-9",
    "C-12",
    "C-13",
    "C-17",
    "C-18",
)
ROUTED_S: Final = 60.0


class ForeignProcess(AsyncProcess):
    """A process that we did not start. After a kill it is ours: started by its command."""

    def __init__(self, name: str, pid: int, start: str, log: Path) -> None:
        super().__init__(name, shlex.split(start), log)
        self._foreign = pid

    @property
    def alive(self) -> bool:
        if self._process is not None:
            return super().alive
        return self.state not in ("", "Z")

    @property
    def pid(self) -> int:
        return self._foreign if self._process is None else super().pid

    @property
    def state(self) -> str:
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return text.rpartition(")")[2].split()[0]

    def signal(self, what: signal.Signals) -> None:
        if self._process is not None:
            super().signal(what)
        else:
            os.kill(self._foreign, what)

    def abandon(self) -> None:
        """It is not ours to end."""


def parse_handle(text: str, directory: Path) -> tuple[str, ForeignProcess]:
    """(address, process). Raises ValueError."""
    address, _, rest = text.partition("=")
    kind, _, value = rest.partition(":")
    pid, _, start = value.partition(",start:")
    if kind != "pid" or not pid.isdecimal() or ":" not in address:
        raise ValueError(
            f"--handle {text}: it is HOST:PORT=pid:PID, with ,start:COMMAND where it may be killed"
        )
    if not Path(f"/proc/{pid}").exists():
        raise ValueError(f"--handle {text}: there is no process {pid}")
    log = directory / f"{address.replace(':', '-')}.log"
    return address, ForeignProcess(address, int(pid), start, log)


class Target:
    """A cluster by its name server; the first broker group that serves our topic is the one that is looked at."""

    def __init__(self, name_server: str) -> None:
        self.name_server_address = name_server
        self.pool = ChannelPool(connect_timeout_ms=ASK_MS)
        self.group = ""

    async def addresses(self, topic: str) -> dict[int, str] | None:
        """Broker id to address; None without a route."""
        ask = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        try:
            answer = await self.pool.request(self.name_server_address, ask, ASK_MS)
        except RemotingError:
            return None
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return None
        brokers = fastjson.loads(bytes(answer.body)).get("brokerDatas") or ()
        for broker in sorted(brokers, key=lambda each: str(each["brokerName"])):
            if self.group in ("", broker["brokerName"]):
                self.group = str(broker["brokerName"])
                return {int(number): str(at) for number, at in broker["brokerAddrs"].items()}
        return None


class TargetRun:
    """play() as a run on this machine has it. Raises ValueError for handles that fit nothing."""

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
        self.handles = dict(parse_handle(each, directory) for each in handles)
        self.schedule = schedule
        self.stories: list[FaultStory] = []
        self.doubts: list[str] = []
        self._target = Target(name_server)
        self._directory = directory
        self._say = say
        self._plan = TrafficPlan(rate=rate)
        self._rng = random.Random(schedule.seed)
        kinds = {each.kind for step in schedule.steps for each in step.faults}
        if strange := sorted(kinds - set(BREAKABLE)):
            raise ValueError(
                f"{', '.join(strange)} needs more than a handle: play {schedule.scenario} with --target local"
            )
        if kinds and not self.handles:
            raise ValueError(
                "--target breaks what it has a --handle for, and there is none; calm needs none"
            )
        if "kill" in kinds and not all(each.command for each in self.handles.values()):
            raise ValueError(
                "a broker that is killed must be started again: --handle ADDRESS=pid:PID,start:COMMAND"
            )

    async def play(self) -> Played:
        """Everything. Our topics are made for it and deleted at the end."""
        began_s = time.monotonic()
        self.schedule.write(self._directory / SCHEDULE)
        journal_path, history = self._directory / JOURNAL, self._directory / HISTORY
        problems: list[str] = []
        try:
            with Journal(journal_path) as journal:
                await self._loaded(journal)
            with_due(journal_path, history)
            judgement = judge_history(history)
        except (ClientError, RemotingError, TimeoutError) as problem:
            judgement = Judgement(
                UNKNOWN,
                [],
                [f"the run broke off: {type(problem).__name__} {problem}"],
                {},
                {},
                0,
                0,
            )
        judgement.doubts += self.doubts
        if self.doubts and judgement.good:
            judgement.word = UNKNOWN
        seconds = round(time.monotonic() - began_s, 1)
        return Played(
            self.schedule,
            self._target.name_server_address,
            self._directory,
            judgement,
            self.stories,
            seconds,
            problems,
        )

    async def _loaded(self, journal: Journal) -> None:
        name_server = self._target.name_server_address
        async with Admin(name_server) as admin:
            await self._topics(admin)
            try:
                group = f"ChaosReaders-{self.schedule.seed}-{os.getpid()}"
                async with (
                    Readers(name_server, journal, group=group) as readers,
                    Traffic(self._target, journal, self._rng, self._plan) as traffic,
                ):
                    journal.event(
                        RUN_EVENT, mode="", delayed=[DELAYED_TOPIC], checks=CHECKED, group=group
                    )
                    journal.event("switchover", why="members of the group find each other")
                    for step in self.schedule.steps:
                        await asyncio.sleep(step.calm_s)
                        traffic.check()
                        await asyncio.gather(
                            *(self._one(each, traffic, journal) for each in step.faults)
                        )
                        await traffic.writable(time.monotonic_ns(), ROUTED_S)
                        self._say(f"{step}: {journal.counts['ok']} acknowledged")
                    await traffic.quiet()
                    await readers.drained()
                    if not journal.undelivered:
                        journal.event(DRAINED_EVENT)
                    await self._final_read(journal)
            finally:
                for topic in TOPICS:
                    await admin.delete_topic(topic)
                await self._target.pool.close()

    async def _topics(self, admin: Admin) -> None:
        """Made for this run: what an earlier one left would be nobody's. Raises ClientError."""
        there = sorted(set(await admin.topics()) & set(TOPICS))
        if there:
            raise ClientError(
                f"{', '.join(there)} exist: an earlier run? delete them (tandem admin deleteTopic)"
            )
        for topic, queues in TOPICS.items():
            await admin.create_topic(topic, queues)
        await until(
            lambda: self._target.addresses(TOPIC), ROUTED_S, ClientError(f"no route for {TOPIC}")
        )

    async def _one(self, planned: Planned, traffic: Traffic, journal: Journal) -> None:
        await asyncio.sleep(planned.after_s)
        try:
            fault = self._fault(planned, traffic)
        except NoEffect as problem:
            self.doubts.append(f"{planned} never happened: {problem}")
            return
        fault.log = journal
        self.stories.append(fault.story)
        try:
            async with fault:
                self._say(f"  {fault.story.says}: {fault.story.evidence}")
                await asyncio.sleep(planned.lasts_s)
        except (NoEffect, NotHealed) as problem:
            self.doubts.append(f"{fault.story.says}: {problem}")

    def _fault(self, planned: Planned, traffic: Traffic) -> Fault:
        """Raises NoEffect when there is no handle for who has the role."""
        by_id = traffic.route.addresses
        wanted = (
            [by_id[0]]
            if planned.victim == "master" and 0 in by_id
            else [by_id[each] for each in by_id if each]
        )
        able = [address for address in wanted if address in self.handles]
        if not able:
            raise NoEffect(
                f"no handle for {planned.victim}, which is {', '.join(wanted) or 'nobody'}"
            )
        address = self._rng.choice(able)
        return BREAKABLE[planned.kind](self.handles[address], address)

    async def _final_read(self, journal: Journal) -> None:
        """Every queue of every replica from its first message to its last."""
        for number, address in sorted((await self._target.addresses(TOPIC) or {}).items()):
            for topic, queues in TOPICS.items():
                for queue_id in range(queues):
                    await self._read(journal, f"{number} at {address}", address, topic, queue_id)

    async def _read(
        self, journal: Journal, name: str, address: str, topic: str, queue_id: int
    ) -> None:
        pool = self._target.pool
        start = await asked_offset(pool, address, RequestCode.GET_MIN_OFFSET, topic, queue_id)
        end = await asked_offset(pool, address, RequestCode.GET_MAX_OFFSET, topic, queue_id)
        journal.line(Extent(topic, queue_id, name, start, end))
        at = start
        while at < end:
            found = await read_from(pool, address, topic, queue_id, at)
            if not found:
                break  # a hole: the checkers see it
            ids, offsets, hashes = (tuple(each) for each in zip(*found, strict=True))
            journal.line(Holding(topic, queue_id, name, at, ids, offsets, hashes))
            at += len(found)


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
    ext = {
        "consumerGroup": "ChaosFinal", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    answer = await pool.request(address, Command(RequestCode.PULL_MESSAGE, ext), 5 * ASK_MS)
    body, position = bytes(answer.body or b""), 0
    found: list[tuple[str, int, str]] = []
    while answer.code == ResponseCode.SUCCESS and position < len(body):
        record = decode(body, position)
        if record.queue_offset != offset + len(found):
            break
        unique_id = record.property_map["UNIQ_KEY"]
        found.append((unique_id, record.physical_offset, body_hash(bytes(record.body))))
        position += record.size
    return found
