"""What is watched beside the traffic of a run: who is master, how far slaves are behind, a group's progress, and a
setting that is written and read on and on. All of it goes into the journal; a report is drawn from it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from typing import Final, Self

from tandemmq.chaos.checking.lines import FAIL, INFO, OK, Admin, Commit, Line, Lookup, Route
from tandemmq.chaos.deliveries import GROUP
from tandemmq.chaos.gauges import metric_values, scrape
from tandemmq.chaos.groups import ReplicaGroup
from tandemmq.chaos.journal import Journal
from tandemmq.chaos.processes import ProcessBroken
from tandemmq.chaos.requests import answer_of
from tandemmq.chaos.routes import topic_fields
from tandemmq.chaos.traffic import PROBE_TOPIC, TOPIC
from tandemmq.chaos.traffic import Route as Routed
from tandemmq.cluster.remoting import (
    ChannelPool,
    Command,
    ConnectFailed,
    RemotingError,
    RequestCode,
    ResponseCode,
)
from tandemmq.storage import fastjson

SAMPLE_S: Final = 0.2
LAG_S: Final = 1.0
SETTING_S: Final = 0.25
SETTING_TOPIC: Final = "ChaosSetting"
ASK_MS: Final = 1000
QUEUES_MAX: Final = 16
SAMPLE_EVENT: Final = "sample"
LOOKUP_TRIES: Final = 40
LOOKUP_PAUSE_S: Final = 0.25


class Watchers:
    """Jobs beside the traffic, until the end of the block."""

    def __init__(self, group: ReplicaGroup, journal: Journal, route: Routed, queues: int) -> None:
        self._group = group
        self._journal = journal
        self._route = route
        self._queues = [(TOPIC, number) for number in range(queues)] + [(PROBE_TOPIC, 0)]
        self._pool = ChannelPool(connect_timeout_ms=ASK_MS)
        self._jobs: list[asyncio.Task[None]] = []
        self._lag_bytes = 0.0

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Self]:
        """Without the jobs: for what is asked when traffic has stopped."""
        try:
            yield self
        finally:
            await self._pool.close()

    async def __aenter__(self) -> Self:
        jobs = {
            "sample": self._sample,
            "lag": self._lag,
            "setting": self._setting,
            "progress": self._progress,
        }
        self._jobs = [asyncio.create_task(job(), name=name) for name, job in jobs.items()]
        return self

    async def __aexit__(self, *_: object) -> None:
        for job in self._jobs:
            job.cancel()
        results = await asyncio.gather(*self._jobs, return_exceptions=True)
        await self._pool.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    def line(self, line: Line) -> None:
        """One more line of the history."""
        self._journal.line(line)

    async def _sample(self) -> None:
        while True:
            view = await self._group.view()
            fields: dict[str, object] = {
                "controller": view is not None,
                "lag_bytes": int(self._lag_bytes),
            }
            if view is not None:
                fields |= {
                    "master": view.master, "epoch": view.epoch, "in_sync": sorted(view.in_sync),
                    "alive": [each.address for each in view.members if each.alive],
                }  # fmt: skip
                if view.master:
                    self.line(
                        Route(
                            self._group.name_server_address,
                            self._group.plan.name,
                            view.epoch,
                            time.monotonic_ns(),
                        )
                    )
            self._journal.event(SAMPLE_EVENT, **fields)
            await asyncio.sleep(SAMPLE_S)

    async def _lag(self) -> None:
        """What the master exports on how far its slaves are behind."""
        while True:
            ports = {each.address: each.metrics_port for each in self._group.replicas}
            port = ports.get(self._route.master or "", 0)
            if port:
                try:
                    text = await scrape(port)
                    self._lag_bytes = max(
                        metric_values(text, "tandem_slave_lag_bytes"), default=0.0
                    )
                except ProcessBroken:
                    self._lag_bytes = 0.0  # it is being broken: no word
            await asyncio.sleep(LAG_S)

    async def _progress(self) -> None:
        """What the master says that the group has consumed."""
        while True:
            for topic, queue_id in self._queues:
                await self.progress(topic, queue_id)
            await asyncio.sleep(LAG_S)

    async def progress(self, topic: str, queue_id: int) -> int | None:
        """Ask once and write it down; None without an answer."""
        master = self._route.master
        if master is None:
            return None
        ext = {"consumerGroup": GROUP, "topic": topic, "queueId": str(queue_id)}
        ask = Command(RequestCode.QUERY_CONSUMER_OFFSET, ext)
        answer = await answer_of(self._pool, master, ask, ASK_MS)
        if answer is None:
            return None
        offset = int((answer.ext or {})["offset"])
        self.line(Commit(GROUP, topic, queue_id, offset, master, time.monotonic_ns()))
        return offset

    async def _setting(self) -> None:
        """The queue count of a topic: written and read by turns at whoever the route says is master."""
        for number in itertools.count(1):
            value = str(number % QUEUES_MAX + 1)
            await self._write(value)
            await self._read()
            await asyncio.sleep(SETTING_S)

    async def _write(self, value: str) -> None:
        ext = topic_fields(SETTING_TOPIC, value)
        began_ns = time.monotonic_ns()
        outcome, _ = await self._asked(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        self.line(Admin(SETTING_TOPIC, "write", value, began_ns, time.monotonic_ns(), outcome))

    async def _read(self) -> None:
        began_ns = time.monotonic_ns()
        outcome, body = await self._asked(RequestCode.GET_TOPIC_CONFIG, {"topic": SETTING_TOPIC})
        if outcome == OK:
            tree = fastjson.loads(body)
            config = tree.get("topicConfig", tree)
            value = str(config["readQueueNums"])
            self.line(Admin(SETTING_TOPIC, "read", value, began_ns, time.monotonic_ns(), OK, 1))

    async def _asked(self, code: RequestCode, ext: dict[str, str]) -> tuple[str, bytes]:
        """(outcome, body) of a request to the master of the moment."""
        master = self._route.master
        if master is None:
            return FAIL, b""
        try:
            answer = await self._pool.request(master, Command(code, ext), ASK_MS)
        except ConnectFailed:
            return FAIL, b""
        except RemotingError:
            return INFO, b""
        if answer.code == ResponseCode.SUCCESS:
            return OK, bytes(answer.body or b"")
        return INFO, b""  # an error may come after the change

    # --- when traffic has stopped

    async def caught_up(self, within_s: float = 20.0) -> None:
        """Wait until the group's stored progress stands still: members commit every few seconds."""
        deadline = time.monotonic() + within_s
        before: list[int | None] = []
        while time.monotonic() < deadline:
            now = [await self.progress(*queue) for queue in self._queues]
            if now == before and None not in now:
                return
            before = now
            await asyncio.sleep(1.5)

    async def look_up(self, wanted: list[tuple[str, int, str]]) -> None:
        """Ask for acknowledged messages by their keys, (topic, queue id, unique id) each."""
        master = self._route.master
        assert master is not None
        for topic, queue_id, unique_id in wanted:
            found = False
            for _ in range(LOOKUP_TRIES):
                found = await self._found(master, topic, unique_id)
                if found:
                    break
                await asyncio.sleep(LOOKUP_PAUSE_S)  # the index follows the log
            self.line(Lookup(topic, queue_id, unique_id, "key", found, master))

    async def _found(self, master: str, topic: str, unique_id: str) -> bool:
        ext = {
            "topic": topic, "key": unique_id[:16], "maxNum": "8", "beginTimestamp": "0",
            "endTimestamp": str(1 << 53),
        }  # fmt: skip
        ask = Command(RequestCode.QUERY_MESSAGE, ext)
        answer = await answer_of(self._pool, master, ask, ASK_MS)
        return answer is not None and unique_id.encode() in bytes(answer.body or b"")
