"""What workloads have in common: sends that are written down with their outcome, and what consumers are given.

All of it goes into the run's history, of which the checkers judge it as they judge the traffic. What no checker knows
(a batch that is torn, two listeners at one queue) a workload says itself.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from tandemmq.chaos.checking.lines import FAIL, INFO, OK, Delivered, Send
from tandemmq.chaos.deliveries import watchful
from tandemmq.chaos.journal import Journal
from tandemmq.chaos.load import body_hash
from tandemmq.chaos.requests import place_of
from tandemmq.chaos.traffic import NO_ANSWER, NOT_SENT, REFUSED
from tandemmq.cluster.client import (
    BrokerRefused,
    ClientConfig,
    ClientError,
    Message,
    MessageQueue,
    NoNameServer,
    NoRoute,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    SendStatus,
    StartFrom,
)

TIMEOUT_MS: Final = 3000
RETRY_S: Final = 0.05
BODY_BYTES_MAX: Final = 800
LOOK_S: Final = 0.05
STALLED_S: Final = 15.0  # without a delivery: what is missing then does not come
_numbers: Final = itertools.count(1 << 48)  # above those of the traffic: no two messages share one


@dataclass(frozen=True, slots=True)
class Ground:
    """What a workload knows of the cluster that it is on.

    broker_name   of the group that has its topics
    controllers   who may be asked for a switchover, "" where nobody elects or none is to be asked for
    keeps_all     whether the mode loses nothing that was acknowledged, nor what was read
    """

    name_server: str
    broker_name: str
    journal: Journal
    rng: random.Random
    directory: Path
    controllers: str = ""
    keeps_all: bool = True

    def config(self, instance_name: str) -> ClientConfig:
        return watchful(self.name_server, instance_name)

    def producer(self, group: str, instance_name: str, **more: Any) -> Producer:
        """One whose sends are tried once. more: arguments of Producer."""
        config = self.config(instance_name)
        return Producer(group, config=config, retries=0, timeout_ms=TIMEOUT_MS, **more)

    def queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self.broker_name, queue_id)


class Workload(ABC):
    """One kind of load, from entering running() until the traffic has ended.

    topics  made before it, read to their ends behind it: name -> queues
    """

    name: ClassVar[str]
    says: ClassVar[str]
    topics: ClassVar[Mapping[str, int]] = {}
    #: what it must have done, or it has shown nothing
    does: ClassVar[tuple[str, ...]] = ()
    #: what brokers need for it beyond RocketMQ's defaults
    settings: ClassVar[Mapping[str, object]] = {}

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.problems: list[
            str
        ] = []  # each begins with a word of tandemmq.chaos.scenarios.run.WORDS
        self.done: Counter[str] = Counter()
        self.stopping = asyncio.Event()
        self._job: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Workload]:
        """With its clients, and run() as a task."""
        async with self.clients():
            self._job = asyncio.create_task(self.run(), name=self.name)
            try:
                yield self
            finally:
                self._job.cancel()
                await asyncio.gather(self._job, return_exceptions=True)

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[None]:
        """Producers and consumers, for as long as it runs."""
        yield

    @abstractmethod
    async def run(self) -> None:
        """Load the cluster until `stopping` is set."""

    async def quiet(self) -> None:
        """No new sends; wait for those under way. Raises what ended run()."""
        self.stopping.set()
        if self._job is not None:
            await self._job

    @abstractmethod
    async def drained(self) -> None:
        """Wait until consumers have had everything, or nothing comes any more; write down what is known only now."""

    def judged(self, held: Collection[str]) -> Sequence[str]:
        """Sentences about what no checker knows. held: unique ids of this workload's topics in the final log."""
        idle = [
            f"IDLE workload {self.name}: no {what}" for what in self.does if not self.done[what]
        ]
        return [*self.problems, *idle]

    async def pause(self, seconds: float) -> None:
        """Sleep, no longer than until `stopping`."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        except TimeoutError:
            return


class Outbox:
    """Sends messages of one workload, each a message of its own with one attempt, and writes them down.

    acknowledged  unique ids of all that were
    """

    def __init__(self, ground: Ground, producer: Producer) -> None:
        self.acknowledged: set[str] = set()
        self._ground = ground
        self._producer = producer
        self._sequences = itertools.count(1)

    def body_and_id(self) -> tuple[bytes, str]:
        """A new body, and the unique id that proves it."""
        return new_body(self._ground.rng)

    async def send(self, topic: str, queue_id: int, deliver_in_s: float = 0.0, **more: Any) -> bool:
        """Send one; whether it was acknowledged. deliver_in_s: it is timed; more: arguments of Message."""
        body, unique_id = self.body_and_id()
        message = Message(topic, body, unique_id=unique_id, **more)
        began_ns = time.monotonic_ns()
        due_ns = began_ns + int(1e9 * deliver_in_s) if deliver_in_s else 0
        result = await answered(
            lambda: self._producer.send(message, queue=self._ground.queue(topic, queue_id))
        )
        self.write(topic, queue_id, [unique_id], [len(body)], began_ns, result, due_ns)
        return is_ok(result)

    async def send_batch(self, topic: str, queue_id: int, count: int) -> list[str]:
        """Send several at once; their unique ids."""
        made = [self.body_and_id() for _ in range(count)]
        ids = [unique_id for _, unique_id in made]
        messages = [Message(topic, body, unique_id=unique_id) for body, unique_id in made]
        began_ns = time.monotonic_ns()
        result = await answered(
            lambda: self._producer.send_batch(messages, queue=self._ground.queue(topic, queue_id))
        )
        self.write(topic, queue_id, ids, [len(body) for body, _ in made], began_ns, result)
        return ids

    def write(
        self,
        topic: str,
        queue_id: int,
        unique_ids: Sequence[str],
        sizes: Sequence[int],
        began_ns: int,
        result: SendResult | ClientError,
        due_ns: int = 0,
    ) -> None:
        """A line for each message of one request."""
        ended_ns, sequence = time.monotonic_ns(), next(self._sequences)
        places: list[tuple[str, int]] = [("", -1)] * len(unique_ids)
        queue_offset, epoch, copies, durable = -1, -1, -1, -1
        if isinstance(result, SendResult):
            queue_offset, copies, durable = result.queue_offset, result.copies, result.durable
            epoch = result.epoch or -1
            places = [place_of(each) for each in result.offset_message_id.split(",")]
        outcome, code = judged_outcome(result)
        if outcome == OK:
            self.acknowledged |= set(unique_ids)
        for number, (unique_id, size, (broker, offset)) in enumerate(
            zip(unique_ids, sizes, places, strict=True)
        ):
            at = queue_offset + number if queue_offset >= 0 else -1
            self._ground.journal.line(
                Send(
                    unique_id, topic, queue_id, 0, sequence, 0, began_ns, ended_ns, outcome, code, broker, at,
                    offset, epoch, copies, durable, size, due_ns,
                )
            )  # fmt: skip


class Inbox:
    """What the members of one group were given, written down. given: unique ids."""

    def __init__(self, ground: Ground, group: str) -> None:
        self.group = group
        self.given: set[str] = set()
        self.last_s = time.monotonic()
        self._ground = ground

    def take(self, message: ReceivedMessage, member: int) -> None:
        self.last_s = time.monotonic()
        self.given.add(message.message_id)
        self._ground.journal.line(
            Delivered(
                message.topic, message.queue.queue_id, message.queue_offset, message.message_id, member,
                time.monotonic_ns(), body_hash(message.body), self.group, message.reconsume_times,
            )
        )  # fmt: skip

    def member(self, number: int, topics: Collection[str], **more: Any) -> PushConsumer:
        """A consumer that reads these topics from their beginning. more: arguments of PushConsumer."""

        async def take(message: ReceivedMessage) -> None:
            self.take(message, number)

        return PushConsumer(
            self.group, take, subscribe=dict.fromkeys(sorted(topics), "*"), start=StartFrom.FIRST,
            config=self._ground.config(f"{self.group}-{number}"), **more,
        )  # fmt: skip

    async def has(self, wanted: Collection[str]) -> bool:
        """Wait until all of it was given, or nothing comes any more; whether it was."""
        began_s = time.monotonic()
        while not self.given.issuperset(wanted):
            if time.monotonic() - max(self.last_s, began_s) > STALLED_S:
                return False
            await asyncio.sleep(LOOK_S)
        return True


def new_body(rng: random.Random) -> tuple[bytes, str]:
    """A body and the unique id that says what it hashes to, as the traffic's (tandemmq.chaos.load)."""
    number = next(_numbers)
    body = rng.randbytes(rng.randrange(1, BODY_BYTES_MAX)) + number.to_bytes(8, "big")
    return body, f"{number:016x}{body_hash(body)}"


async def answered(send: Callable[[], Any]) -> SendResult | ClientError:
    """What a send came to."""
    try:
        result: SendResult = await send()
    except ClientError as problem:
        return problem
    return result


def is_ok(result: SendResult | ClientError) -> bool:
    return isinstance(result, SendResult) and result.status is SendStatus.SEND_OK


def judged_outcome(result: SendResult | ClientError) -> tuple[str, int]:
    """(outcome, code) as the checkers have them: SEND_OK is a promise, a refusal says that it is not there."""
    match result:
        case SendResult(status=SendStatus.SEND_OK):
            return OK, 0
        case SendResult(status=status):
            return INFO, status.value
        case NoRoute() | NoNameServer():
            return FAIL, NOT_SENT
        case BrokerRefused(code=code):
            return (FAIL if code in REFUSED else INFO), code
    return INFO, NO_ANSWER
