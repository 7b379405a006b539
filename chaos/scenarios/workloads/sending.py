"""Workloads of special messages: batches, messages with a time, transactions."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

from msgspec.structs import replace

from tandemmq.chaos.checking.lines import INFO, OK, Send
from tandemmq.chaos.scenarios.workloads.workload import (
    RETRY_S,
    Ground,
    Inbox,
    Outbox,
    Workload,
    new_body,
)
from tandemmq.chaos.transactor import SETTINGS, TransactionBook, Transactor, asked_late
from tandemmq.cluster.client import Message, Producer, Transaction

QUEUES: Final = 2
PAUSE_S: Final = 0.08  # between two sends, on average
BATCH_MAX: Final = 16
BULK: Final = 64
BULK_MESSAGES: Final = 100_000
DUE_S: Final = (0.5, 6.0)
LATE_S: Final = 3.0
SETTLED_S: Final = 45.0
TRANSACTIONS_PER_S: Final = 12.0


class Batches(Workload):
    """Requests of several messages: all of one or none, one behind the other."""

    name = "batch"
    says = "requests of 2 to 16 messages, all of them or none"
    topics: ClassVar = {"ChaosBatches": QUEUES}
    does: ClassVar = ("batch",)

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._sent: list[list[str]] = []
        self._inbox = Inbox(ground, f"{next(iter(self.topics))}Readers")

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[None]:
        async with (
            self.ground.producer(f"{next(iter(self.topics))}Senders", self.name) as producer,
            self._inbox.member(0, self.topics),
        ):
            self._outbox = Outbox(self.ground, producer)
            yield

    async def run(self) -> None:
        rng = self.ground.rng
        while not self.stopping.is_set():
            count = rng.randint(2, BATCH_MAX)
            topic = next(iter(self.topics))
            before = len(self._outbox.acknowledged)
            self._sent.append(await self._outbox.send_batch(topic, rng.randrange(QUEUES), count))
            failed = len(self._outbox.acknowledged) == before
            await self.pause(RETRY_S if failed else rng.uniform(0, 2 * PAUSE_S))

    async def drained(self) -> None:
        await self._inbox.has(self._outbox.acknowledged)

    def judged(self, held: Collection[str]) -> Sequence[str]:
        there = set(held)
        for ids in self._sent:
            count = len(there.intersection(ids))
            if count not in (0, len(ids)):
                self.problems.append(
                    f"TORN {count} of the {len(ids)} messages of a batch are there: {ids[0]}"
                )
        (what,) = self.does
        self.done[what] = len(there.intersection(itertools.chain.from_iterable(self._sent)))
        return super().judged(held)


class Bulk(Batches):
    """The same, for volume, and no less than that: it goes on behind the end of the traffic, until a send fails."""

    name = "bulk"
    says = f"{BULK_MESSAGES:,} messages in requests of {BULK}, one at once behind the other"
    topics: ClassVar = {"ChaosBulk": QUEUES}
    does: ClassVar = ("message in bulk",)

    async def run(self) -> None:
        rng, (topic,), acknowledged = self.ground.rng, self.topics, self._outbox.acknowledged
        while (before := len(acknowledged)) < BULK_MESSAGES:
            self._sent.append(await self._outbox.send_batch(topic, rng.randrange(QUEUES), BULK))
            if len(acknowledged) == before:
                if self.stopping.is_set():
                    return
                await self.pause(RETRY_S)


class Timed(Workload):
    """Messages that are due at a time, to the millisecond: never early, never lost."""

    name = "timed"
    says = "messages due after 0.5 to 6 s: not before, and all of them"
    topics: ClassVar = {"ChaosTimed": QUEUES}
    does: ClassVar = ("message in time",)
    settings: ClassVar = {"timerWheelEnable": "true"}

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._inbox = Inbox(ground, "ChaosTimedReaders")

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[None]:
        async with (
            self.ground.producer("ChaosTimers", "timed") as producer,
            self._inbox.member(0, self.topics),
        ):
            self._outbox = Outbox(self.ground, producer)
            yield

    async def run(self) -> None:
        rng, (topic,) = self.ground.rng, self.topics
        while not self.stopping.is_set():
            in_s = round(rng.uniform(*DUE_S), 3)
            at = datetime.now(UTC) + timedelta(seconds=in_s)
            sent = await self._outbox.send(topic, rng.randrange(QUEUES), in_s, deliver_at=at)
            await self.pause(rng.uniform(0, 2 * PAUSE_S) if sent else RETRY_S)

    async def drained(self) -> None:
        await asyncio.sleep(DUE_S[1])
        await self._inbox.has(self._outbox.acknowledged)
        self.done["message in time"] = len(self._inbox.given)


class Recorded(Transactor):
    """The campaign's producer of transactions, whose messages prove themselves; began: unique id -> (queue, ns)."""

    def __init__(
        self, book: TransactionBook, rng: random.Random, ground: Ground, topic: str
    ) -> None:
        super().__init__(book, rng)
        self._ground = ground
        self._topic = topic
        self.began: dict[str, tuple[int, int, int]] = {}  # queue id, ns, size

    def begin(self, producer: Producer, way: str) -> Transaction:
        body, unique_id = new_body(self._ground.rng)
        queue_id = self._ground.rng.randrange(QUEUES)
        self.began[unique_id] = (queue_id, time.monotonic_ns(), len(body))
        message = Message(self._topic, body, unique_id=unique_id, tags=way.replace(" ", "-"))
        return producer.transaction(message, queue=self._ground.queue(self._topic, queue_id))


class Transactions(Workload):
    """Transactions that are committed, rolled back, or left to the broker's question."""

    name = "transactions"
    says = "transactions committed, rolled back, or left to the broker's question"
    topics: ClassVar = {"ChaosTransactions": QUEUES}
    does: ClassVar = ("commit", "rollback")
    settings: ClassVar = SETTINGS

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._inbox = Inbox(ground, "ChaosTransactionReaders")
        self._book = TransactionBook(ground.directory / "transactions.sqlite")
        self._transactor = Recorded(self._book, ground.rng, ground, next(iter(self.topics)))

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[None]:
        try:
            async with (
                self.ground.producer(
                    "ChaosTransactors", "transactions", check_transaction=self._transactor.check
                ) as self._producer,
                self._inbox.member(0, self.topics),
            ):
                yield
        finally:
            self._book.close()

    async def run(self) -> None:
        await self._transactor.send(self._producer, TRANSACTIONS_PER_S, self.stopping.is_set)

    async def drained(self) -> None:
        """Until every committed one has come, and for as long as a question may take; then each is written down."""
        deadline = time.monotonic() + SETTLED_S
        while time.monotonic() < deadline:
            committed = [each for each, how in self._book.decisions().items() if how]
            if self._inbox.given.issuperset(committed):
                break
            await asyncio.sleep(0.2)
        await asyncio.sleep(LATE_S)
        self._write_down()
        self.problems += asked_late(self._book.ends(), self._book.questions())

    def _write_down(self) -> None:
        """Each ends when its fate is certain, which is now. Of one that never came to a decision nothing is promised
        but that nobody sees it: it has no fate, and to the checkers it is as good as never due."""
        decisions, now_ns = self._book.decisions(), time.monotonic_ns()
        (topic,) = self.topics
        for sequence, (unique_id, (queue_id, began_ns, size)) in enumerate(
            self._transactor.began.items()
        ):
            line = Send(
                unique_id, topic, queue_id, 0, sequence, 0, began_ns, now_ns, INFO, 0, "", size=size, due_ns=began_ns
            )  # fmt: skip
            decided = decisions.get(unique_id)
            if decided is not None:
                fate = "commit" if decided else "rollback"
                self.done[fate] += 1
                line = replace(line, outcome=OK, due_ns=0, fate=fate)
            elif unique_id in self._inbox.given:
                self.problems.append(
                    f"SEEN {unique_id} was given to a group, and nobody committed it"
                )
            self.ground.journal.line(line)
