"""Workloads of special consumers: in order, by pull, and each member reading everything."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import ClassVar, Final

from tandemmq.chaos.checking.lines import Commit, Seen
from tandemmq.chaos.load import body_hash
from tandemmq.chaos.ordering import MEMBERS, OrderJudge, OrderlyMembers
from tandemmq.chaos.scenarios.workloads.workload import (
    LOOK_S,
    RETRY_S,
    STALLED_S,
    Ground,
    Inbox,
    Outbox,
    Workload,
)
from tandemmq.chaos.traffic import TOPIC
from tandemmq.cluster.client import (
    Admin,
    ClientError,
    MessageModel,
    MessageQueue,
    PullConsumer,
    ReceivedMessage,
    StartFrom,
)

MOVES_S: Final = (1.5, 5.0)  # a member joins or leaves so often
LISTENERS: Final = 2
PAUSE_S: Final = 0.1
READER: Final = 1000  # of the history: those of the traffic have lower numbers
POLL_MS: Final = 500
LOCK_S: Final = 45.0  # a lock that nobody gave back is trusted for 30 s


class Ends:
    """Where queues end now, asked until somebody answers."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    async def of(self, topic: str, within_s: float = STALLED_S) -> Mapping[MessageQueue, int]:
        """Queue -> its end. Raises ClientError."""
        deadline = time.monotonic() + within_s
        async with Admin(self._ground.name_server) as admin:
            while True:
                try:
                    route = await admin.route(topic)
                    queues = route.read_queues(topic)
                    return {each: await admin.max_offset(each) for each in queues}
                except ClientError:
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(LOOK_S)


class Orderly(Workload):
    """A group that consumes the traffic's topic in order while its members come and go."""

    name = "orderly"
    does = ("message in order",)
    says = "a group that consumes in order, its members joining and leaving: nothing overtakes, no queue in two hands"

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._judge = OrderJudge()
        self._members = OrderlyMembers(ground.name_server, self._judge, ground.rng)

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[None]:
        try:
            for _ in range(MEMBERS):
                await self._members.join()
            yield
        finally:
            await self._members.stop()

    async def run(self) -> None:
        while not self.stopping.is_set():
            await self.pause(self.ground.rng.uniform(*MOVES_S))
            if not self.stopping.is_set():
                await self._members.move()

    async def drained(self) -> None:
        """Until every queue was handled to its end."""
        ends = {each.queue_id: end for each, end in (await Ends(self.ground).of(TOPIC)).items()}
        deadline = time.monotonic() + LOCK_S
        while left := self._left(ends):
            if time.monotonic() > deadline:
                self.problems.append(
                    f"SKIPPED queues {left} of the group in order: handled to {self._judge.highs()}, ends {ends}"
                )
                break
            await asyncio.sleep(LOOK_S)
        self.problems += self._judge.problems
        self.done["message in order"] = self._judge.handled

    def _left(self, ends: Mapping[int, int]) -> list[int]:
        highs = self._judge.highs()
        return [each for each, end in ends.items() if highs.get(each, -1) < end - 1]


class Pull(Workload):
    """A consumer that polls all queues of the traffic's topic, from their first message on."""

    name = "pull"
    does = ("message by pull",)
    says = "a pull consumer on every queue: one message behind the other, none twice"

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._next: dict[int, int] = {}
        self._readers: dict[int, int] = {}

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[None]:
        async with PullConsumer(
            "ChaosPullers", config=self.ground.config("puller"), start=StartFrom.FIRST
        ) as self._consumer:
            yield

    async def run(self) -> None:
        consumer = self._consumer
        while not self.stopping.is_set():
            with contextlib.suppress(ClientError):
                await consumer.assign(await consumer.queues(TOPIC))
                break
            await self.pause(RETRY_S)
        while not self.stopping.is_set():
            self._take(await consumer.poll(timeout_ms=POLL_MS))

    def _take(self, messages: list[ReceivedMessage]) -> None:
        """A line for each stretch of one queue."""
        stretch: list[ReceivedMessage] = []
        for message in messages:
            if stretch and (
                message.queue != stretch[-1].queue
                or message.queue_offset != stretch[-1].queue_offset + 1
            ):
                self._write(stretch)
                stretch = []
            stretch.append(message)
        if stretch:
            self._write(stretch)

    def _write(self, stretch: list[ReceivedMessage]) -> None:
        first, queue_id = stretch[0].queue_offset, stretch[0].queue.queue_id
        back = first < self._next.get(queue_id, first)
        if (
            back and not self.ground.keeps_all
        ):  # moved back to where a loss cut the log: it begins anew
            self._readers[queue_id] = self._readers.get(queue_id, READER) + 1
        self._next[queue_id] = first + len(stretch)
        self.done["message by pull"] += len(stretch)
        self.ground.journal.line(
            Seen(
                TOPIC, queue_id, first, tuple(each.message_id for each in stretch), stretch[0].store_host,
                time.monotonic_ns(), tuple(body_hash(each.body) for each in stretch),
                self._readers.get(queue_id, READER),
            )
        )  # fmt: skip

    async def drained(self) -> None:
        """To the ends: what was never read of a queue is skipped."""
        ends = {each.queue_id: end for each, end in (await Ends(self.ground).of(TOPIC)).items()}
        last_s = time.monotonic()
        while any(self._next.get(each, 0) < end for each, end in ends.items()):
            messages = await self._consumer.poll(timeout_ms=POLL_MS)
            if messages:
                self._take(messages)
                last_s = time.monotonic()
            elif time.monotonic() - last_s > STALLED_S:
                self.problems.append(
                    f"SKIPPED by the pull consumer: read to {self._next}, ends {ends}"
                )
                return


class Broadcast(Workload):
    """Members of a broadcasting group, each of which is given everything."""

    name = "broadcast"
    says = "a broadcasting group: every member is given every message"
    does = ("message to every member",)
    topics: ClassVar = {"ChaosBroadcast": 2}

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        # to the checkers each member is a group: it has everything, and a progress of its own
        self._inboxes = [Inbox(ground, f"ChaosListeners-{number}") for number in range(LISTENERS)]

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[None]:
        offsets = self.ground.directory / "broadcast"
        async with contextlib.AsyncExitStack() as stack:
            self._outbox = Outbox(
                self.ground,
                await stack.enter_async_context(self.ground.producer("ChaosSpeakers", "speaker")),
            )
            for number, inbox in enumerate(self._inboxes):
                member = inbox.member(
                    number, self.topics, model=MessageModel.BROADCASTING, offsets_dir=offsets
                )
                await stack.enter_async_context(member)
            yield

    async def run(self) -> None:
        rng, (topic,) = self.ground.rng, self.topics
        while not self.stopping.is_set():
            sent = await self._outbox.send(topic, rng.randrange(self.topics[topic]))
            await self.pause(rng.uniform(0, 2 * PAUSE_S) if sent else RETRY_S)

    async def drained(self) -> None:
        """A member keeps its progress itself: that it has come to the end is what is asked of it."""
        (topic,) = self.topics
        for inbox in self._inboxes:
            await inbox.has(self._outbox.acknowledged)
        everybody = set.intersection(*(inbox.given for inbox in self._inboxes))
        self.done["message to every member"] = len(everybody)
        for queue, end in (await Ends(self.ground).of(topic)).items():
            for inbox in self._inboxes:
                self.ground.journal.line(
                    Commit(inbox.group, topic, queue.queue_id, end, "a file", time.monotonic_ns())
                )
