"""The demo's traffic: a producer at a steady rate, a push consumer beside it, and what became of each message."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from tandemmq.cluster.client import (
    ClientError,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendContext,
    StartFrom,
)

TOPIC: Final = "Demo"
WAIT_S: Final = 30.0
LARGE_EVERY: Final = 500  # each so manieth message is a large one, and compressed
LARGE_BYTES: Final = 50_000

Place = tuple[MessageQueue, int]  # a queue, and a queue offset in it


class DemoFailed(Exception):
    """Something that the demo promises did not happen."""


@dataclass(slots=True)
class Sent:
    """One message and what became of its send; times of the loop's clock.

    addresses  of the brokers that were tried, one per attempt
    """

    name: str
    began_s: float
    ended_s: float | None = None
    broker: str = ""
    acknowledged: bool = False
    addresses: list[str] = field(default_factory=list)

    @property
    def took_s(self) -> float:
        return 0.0 if self.ended_s is None else self.ended_s - self.began_s


class Traffic:
    """Sends and consumes while the body of `async with` does something to the cluster."""

    def __init__(self, name_server: str, per_second: int) -> None:
        self.sent: dict[str, Sent] = {}
        self.delivered: dict[str, list[Place]] = defaultdict(list)
        self._pause_s = 1 / per_second
        self._sending = True
        self._changed = asyncio.Event()  # a send ended, or a message came
        self._producer = Producer("demo-producer", namesrv=name_server, hooks=[self])
        self._consumer = PushConsumer(
            "demo-consumer", self._receive, namesrv=name_server, subscribe={TOPIC: "*"},
            start=StartFrom.FIRST,
        )  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pacing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._producer.start()
        await self._consumer.start()
        self._pacing = asyncio.create_task(self._send_steadily(), name="demo traffic")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._pacing is not None
        self._pacing.cancel()
        await asyncio.gather(self._pacing, *self._tasks, return_exceptions=True)
        await self._consumer.stop()
        await self._producer.stop()

    # Sending

    async def _send_steadily(self) -> None:
        due_s = self._loop.time()
        while self._sending:
            name = f"message {len(self.sent)}"
            found = self.sent[name] = Sent(name, self._loop.time())
            task = asyncio.create_task(self._send(found), name=name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            due_s += self._pause_s
            await asyncio.sleep(max(0.0, due_s - self._loop.time()))

    async def _send(self, found: Sent) -> None:
        try:
            result = await self._producer.send(Message(TOPIC, body_of(found.name)))
        except ClientError:
            pass  # whether it is stored is unknown, and not promised
        else:
            found.acknowledged = result.ok
            found.broker = result.queue.broker_name
        found.ended_s = self._loop.time()
        self._changed.set()

    def before_send(self, context: SendContext) -> None:
        """One more attempt."""
        name = name_of(context.messages[0].body)
        self.sent[name].addresses.append(context.address)

    def after_send(self, context: SendContext) -> None:
        """_send() has the result."""

    # Receiving

    async def _receive(self, message: ReceivedMessage) -> None:
        self.delivered[name_of(message.body)].append((message.queue, message.queue_offset))
        self._changed.set()

    # Watching

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a state of the traffic. Raises DemoFailed after 30 s."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise DemoFailed(f"not within {WAIT_S:g} s: {what}") from None

    async def first_from(self, address: str, since_s: float) -> Sent:
        """The first message not ended by since_s that the broker at this address acknowledged."""
        found: list[Sent] = []

        def there() -> bool:
            found.extend(
                each for each in self.since(since_s)
                if each.acknowledged and each.addresses[-1:] == [address]
            )  # fmt: skip
            return bool(found)

        await self.until(there, f"{address} acknowledges a message")
        return min(found, key=lambda each: each.ended_s or 0.0)

    def since(self, began_s: float) -> list[Sent]:
        """Sends that had not ended by then; oldest first."""
        return [each for each in self.sent.values() if (each.ended_s or began_s) >= began_s]

    async def drain(self) -> None:
        """Send nothing more; wait until every send has ended and what is acknowledged is delivered."""
        self._sending = False
        await self.until(
            lambda: all(each.ended_s is not None for each in self.sent.values()),
            "every send has ended",
        )
        await self.until(
            lambda: self.acknowledged <= self.delivered.keys(),
            "every acknowledged message is delivered",
        )

    @property
    def acknowledged(self) -> set[str]:
        """Names of the messages that got SEND_OK."""
        return {each.name for each in self.sent.values() if each.acknowledged}


def body_of(name: str) -> bytes:
    """A message's body is its name; some are long enough to be compressed."""
    number = name.rpartition(" ")[2]
    large = name.startswith("message") and int(number) % LARGE_EVERY == 0
    return name.ljust(LARGE_BYTES).encode() if large else name.encode()


def name_of(body: bytes) -> str:
    """The other way."""
    return body.decode().strip()


async def read_log(name_server: str) -> dict[str, list[Place]]:
    """What the masters' queues hold from end to end: name -> where it is stored."""
    stored: dict[str, list[Place]] = defaultdict(list)
    async with PullConsumer("demo-reader", namesrv=name_server, auto_commit=False) as consumer:
        queues = await consumer.queues(TOPIC)
        ends = {queue: await consumer.max_offset(queue) for queue in queues}
        await consumer.assign(queues)
        for queue in consumer.assignment:
            await consumer.seek(queue, await consumer.min_offset(queue))
        left = sum(ends.values())
        while left > 0:
            batch = await consumer.poll(1_000, timeout_ms=5_000)
            if not batch:
                raise DemoFailed(f"the queues' ends are at {ends}, and {left} of it do not come")
            for message in batch:
                stored[name_of(message.body)].append((message.queue, message.queue_offset))
            left -= len(batch)
    return stored


@dataclass(frozen=True, slots=True)
class Count:
    """What became of all messages. Every field a number of messages but `repeats`, of deliveries."""

    sent: int
    acknowledged: int
    unknown: int  # sends that failed: stored or not, nobody was promised anything
    unknown_stored: int
    stored_twice: int  # sent again because the answer did not come
    repeats: int  # deliveries of what had been delivered from the same place before


def count(traffic: Traffic, stored: Mapping[str, list[Place]], others: Iterable[str]) -> Count:
    """Judge. others: what somebody else sent. Raises DemoFailed for anything lost, made up or doubled.

    stored  the whole log, by read_log()
    """
    acknowledged, known = traffic.acknowledged, {*traffic.sent, *others}
    for reader, found in (("the consumer", traffic.delivered), ("the log", stored)):
        _none(f"{reader} lacks acknowledged messages", acknowledged - found.keys())
        _none(f"{reader} has messages that nobody sent", found.keys() - known)
    twice = {name for name, places in stored.items() if len(places) > 1}
    once_sent = {
        name for name in twice if len(getattr(traffic.sent.get(name), "addresses", ())) < 2
    }
    _none("stored twice although sent once", once_sent)
    for name, places in traffic.delivered.items():
        if not set(places) <= set(stored.get(name, ())):
            raise DemoFailed(
                f"{name} was delivered from {places}, but stored at {stored.get(name)}"
            )
    unknown = traffic.sent.keys() - acknowledged
    return Count(
        sent=len(traffic.sent),
        acknowledged=len(acknowledged),
        unknown=len(unknown),
        unknown_stored=len(unknown & stored.keys()),
        stored_twice=len(twice),
        repeats=sum(
            sum(Counter(places).values()) - len(set(places))
            for places in traffic.delivered.values()
        ),
    )


def _none(problem: str, names: Iterable[str]) -> None:
    found = sorted(names)
    if found:
        raise DemoFailed(f"{problem}: {len(found)}, e.g. {', '.join(found[:5])}")
