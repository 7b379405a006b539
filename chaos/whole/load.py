"""The load: the client's producers and a consumer, and the book of what they were told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tandemmq.chaos.whole.servers import NAMES_PORT
from tandemmq.cluster.client import (
    ClientConfig,
    ClientError,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
    StartFrom,
)
from tandemmq.cluster.process import _stopped_by_bugs

if TYPE_CHECKING:
    from tandemmq.chaos.whole.cluster import WholeCluster

TOPIC: Final = "Orders"
READERS: Final = "billing"
CALM_RATE: Final = 4.0
LEVEL_MS: Final = (0, 1000, 2000)
OFFSET_ID_HOST: Final = 16  # hex digits in front of the log offset


@dataclass(slots=True)
class Sent:
    """One message. acked_us: when its producer heard that it is stored, 0 before; offset: in the log."""

    number: int
    level: int
    asked_us: int
    acked_us: int = 0
    offset: int = -1
    queue: tuple[int, int] = (-1, -1)
    delivered: int = 0
    failed_once: bool = False


@dataclass(slots=True)
class Book:
    """What the clients were told."""

    sent: dict[int, Sent] = field(default_factory=dict)
    refused: int = 0
    acked_us: int = 0  # the last time
    deliveries: int = 0

    @property
    def acked(self) -> list[Sent]:
        return [each for each in self.sent.values() if each.acked_us]


class ClientLoad:
    """Mains of client processes over one book."""

    def __init__(self, cluster: WholeCluster) -> None:
        self.cluster = cluster
        self.book = Book()

    def _config(self, name: str) -> ClientConfig:
        address = self.cluster.names.address
        return ClientConfig(
            f"{address}:{NAMES_PORT}", name, route_interval_ms=2000, heartbeat_interval_ms=1500
        )

    # --- producers ---

    def producer_main(self, number: int) -> Coroutine[Any, Any, None]:
        return _stopped_by_bugs(lambda: self._produce(number))

    async def _produce(self, number: int) -> None:
        cluster = self.cluster
        scenario, draw = cluster.scenario, cluster.stage.chance
        async with Producer(
            "shop", config=self._config(f"producer-{number}"), timeout_ms=2000, retries=1, retry_unless_ok=True
        ) as producer:  # fmt: skip
            while True:
                rate = (scenario.send_rate if cluster.faulty else CALM_RATE) / scenario.producers
                await asyncio.sleep(draw.expovariate(rate))
                if cluster.silent:
                    continue
                level = (
                    draw.randint(1, 2) if draw.random() < scenario.delayed and cluster.faulty else 0
                )
                sent = Sent(len(self.book.sent) + 1, level, cluster.stage.now_us)
                self.book.sent[sent.number] = sent
                message = Message(
                    TOPIC, b"%d" % sent.number, keys=str(sent.number), delay_level=level
                )
                try:
                    result = await producer.send(message)
                except ClientError as problem:
                    self.book.refused += 1
                    cluster.stage.note("refused", sent.number, type(problem).__name__, problem)
                    continue
                if result.status is SendStatus.SEND_OK:
                    sent.acked_us = self.book.acked_us = cluster.stage.now_us
                    sent.offset = int(result.offset_message_id[OFFSET_ID_HOST:], 16)
                    sent.queue = (result.queue.queue_id, result.queue_offset)
                    cluster.judge.acknowledged(sent)

    # --- consumer ---

    def consumer_main(self) -> Coroutine[Any, Any, None]:
        return _stopped_by_bugs(self._consume)

    async def _consume(self) -> None:
        consumer = PushConsumer(
            READERS, self._delivered, config=self._config("consumer"), subscribe={TOPIC: "*"},
            start=StartFrom.FIRST, orderly=self.cluster.scenario.orderly, suspend_ms=100, concurrency=4,
        )  # fmt: skip
        async with consumer:
            await consumer.wait()

    async def _delivered(self, message: ReceivedMessage) -> None:
        cluster = self.cluster
        sent = self.book.sent.get(int(message.body))
        cluster.judge.delivered(sent, message)
        assert sent is not None
        self.book.deliveries += 1
        if not sent.failed_once and cluster.stage.chance.random() < cluster.scenario.retried:
            sent.failed_once = True
            raise ValueError("the listener fails this one once")
        sent.delivered += 1
