"""The load: the client's producers and a consumer, and the book of what they were told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tandemmq.chaos.whole.book import Book, Sent
from tandemmq.chaos.whole.servers import NAMES_PORT
from tandemmq.chaos.whole.timing import timed
from tandemmq.chaos.whole.transacting import Transacting
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


class ClientLoad:
    """Mains of client processes over one book."""

    def __init__(self, cluster: WholeCluster) -> None:
        self.cluster = cluster
        self.book = Book()
        self.transacting = Transacting(cluster, self.book)

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
            "shop", config=self._config(f"producer-{number}"), timeout_ms=2000, retries=1, retry_unless_ok=True,
            check_transaction=partial(self.transacting.check, number),
        ) as producer:  # fmt: skip
            while True:
                rate = (scenario.send_rate if cluster.faulty else CALM_RATE) / scenario.producers
                await asyncio.sleep(draw.expovariate(rate))
                if cluster.silent:
                    continue
                sent = self.book.new(cluster.stage.now_us)
                if self._draws(scenario.transacted):
                    await self.transacting.one(producer, number, sent)
                elif self._draws(scenario.timed):
                    await self._send(producer, sent, timed(sent, TOPIC, cluster, number))
                else:
                    if draw.random() < scenario.delayed and cluster.faulty:
                        sent.level = draw.randint(1, 2)
                    await self._send(producer, sent)

    def _draws(self, share: float) -> bool:
        """Only while there are faults: what is seldom shall be over when all is to come to rest."""
        cluster = self.cluster
        return share > 0 and cluster.faulty and cluster.stage.chance.random() < share

    async def _send(self, producer: Producer, sent: Sent, message: Message | None = None) -> None:
        """message: one that is tried once only, for what is stored twice comes twice."""
        cluster = self.cluster
        selector = None if message is None else cluster.stage.chance.choice
        message = message or Message(
            TOPIC, b"%d" % sent.number, keys=str(sent.number), delay_level=sent.level
        )
        try:
            result = await producer.send(
                message, selector=selector and (lambda queues, _: selector(queues))
            )
        except ClientError as problem:
            self.book.refused += 1
            cluster.stage.note("refused", sent.number, type(problem).__name__, problem)
            return
        if result.status is SendStatus.SEND_OK:
            self.book.stored(sent, result, cluster.stage.now_us)
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
        sent = self.book.by_body(message.body)
        cluster.judge.delivered(sent, message)
        assert sent is not None
        self.book.deliveries += 1
        if not sent.failed_once and cluster.stage.chance.random() < cluster.scenario.retried:
            sent.failed_once = True
            raise ValueError("the listener fails this one once")
        sent.delivered += 1
