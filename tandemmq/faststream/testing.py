"""FastStream's own way to test: what is published goes to the handlers at once, without any cluster.

Where acknowledgements, retries and groups are to be seen, tandemmq.testing.MemoryCluster takes the real broker.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock

import anyio
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from tandemmq.cluster.client import Message, Sql92
from tandemmq.cluster.sql92.grammar import compile_expression
from tandemmq.faststream.broker import TandemBroker
from tandemmq.faststream.messages import Incoming, outgoing
from tandemmq.faststream.publishing import (
    TandemProducer,
    TandemPublishCommand,
    TandemPublisherUsecase,
)
from tandemmq.faststream.received import received
from tandemmq.faststream.subscribing import TandemSubscriber


class TestTandemBroker(TestBroker[TandemBroker, EnterType], broker=TandemBroker):
    """`async with TestTandemBroker(broker) as test: await test.publish(...)`.

    Subscribers get what their topic, tags or SQL92 want; of one group one subscriber.
    """

    __test__ = False

    def create_publisher_fake_subscriber(
        self, broker: TandemBroker, publisher: TandemPublisherUsecase
    ) -> tuple[TandemSubscriber, bool]:
        for each in (sub for one in self.brokers for sub in one.subscribers):
            assert isinstance(each, TandemSubscriber)
            if each.topic == publisher.topic:
                return each, True
        group = f"test-{publisher.topic}"
        return broker.subscriber(
            publisher.topic, group=group, batch=publisher.batch, persistent=False
        ), False

    @contextmanager
    def _patch_producer(self, broker: TandemBroker) -> Generator[None, None, None]:
        config = broker.config.broker_config
        config.handed_over = True
        try:
            with change_producer(config, HandOver(broker, self.brokers)):
                yield
        finally:
            config.handed_over = False

    async def _fake_connect(self, broker: TandemBroker, *args: Any, **kwargs: Any) -> Any:
        return MagicMock()


class HandOver(TandemProducer):
    """Hands over what is published."""

    def __init__(self, broker: TandemBroker, brokers: Sequence[TandemBroker]) -> None:
        super().__init__(broker._parser, broker._decoder)
        self._brokers = brokers
        if broker.config.broker_codec:
            self.codec = broker.config.broker_codec
        self._serializer = broker.config.fd_config._serializer

    def _subscribers(self) -> Iterable[TandemSubscriber]:
        for broker in self._brokers:
            for each in broker.subscribers:
                assert isinstance(each, TandemSubscriber)
                yield each

    def _wanting(self, messages: Sequence[Message]) -> Iterable[TandemSubscriber]:
        """One of each group that wants the first message."""
        groups: set[str] = set()
        for each in self._subscribers():
            if (
                each.topic == messages[0].topic
                and each.group not in groups
                and _wants(each, messages[0])
            ):
                groups.add(each.group)
                yield each

    async def publish(self, cmd: TandemPublishCommand) -> None:
        if cmd.answers is not None:
            cmd.answers = None  # whoever asked is given what the handler returned
            return
        message = await self.message(cmd, cmd.body)
        for each in self._wanting([message]):
            await each.process_message(_arrived([message]))

    async def publish_batch(self, cmd: TandemPublishCommand) -> None:
        messages = [await self.message(cmd, body) for body in cmd.batch_bodies]
        for each in self._wanting(messages) if messages else ():
            if each.wants.batch:
                await each.process_message(_arrived(messages))
            else:
                for message in messages:
                    await each.process_message(_arrived([message]))

    async def request(self, cmd: TandemPublishCommand) -> Incoming:
        message = await self.message(cmd, cmd.body)
        for each in self._wanting([message]):
            with anyio.fail_after(cmd.timeout or 30.0):
                result = await each.process_message(_arrived([message]))
            encoded, content_type = await self.codec.encode(result.body, self._serializer)
            reply = outgoing(
                cmd.destination, encoded, content_type, result.headers or {},
                correlation_id=result.correlation_id or "",
            )  # fmt: skip
            return _arrived([reply])
        raise SubscriberNotFound


def _arrived(messages: Sequence[Message]) -> Incoming:
    return Incoming(
        [
            received(each.topic, each.body, each.stored_properties(each.unique_id or "0"))
            for each in messages
        ]
    )


def _wants(subscriber: TandemSubscriber, message: Message) -> bool:
    expression = subscriber.wants.expression
    if isinstance(expression, Sql92):
        return compile_expression(expression.expression).matches(dict(message.properties))
    tags = {part.strip() for part in expression.split("||")} - {"", "*"}
    return not tags or message.tags in tags
