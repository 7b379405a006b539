"""Subscribers: a consumer of a group each, whose messages FastStream's handlers get."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import IncorrectState
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as SchemaMessage
from faststream.specification.schema import Operation, SubscriberSpec

from tandemmq.cluster.client import (
    ConsumeResult,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Sql92,
    StartFrom,
)
from tandemmq.faststream.config import TandemBrokerConfig
from tandemmq.faststream.messages import BatchParser, Incoming, Parser, Verdict
from tandemmq.faststream.publishing import ReplyPublisher

POLL_MS = 500


@dataclass(kw_only=True)
class Subscribed:
    """What a subscriber wants."""

    topic: str
    group: str = ""
    expression: str | Sql92 = "*"
    start: StartFrom = StartFrom.LAST
    orderly: bool = False
    batch: bool = False
    batch_count: int = 32
    max_workers: int = 20
    retries_max: int | None = None
    retry_level: int = 0


@dataclass(kw_only=True)
class TandemSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """What AsyncAPI says of a subscriber."""

    wants: Subscribed


@dataclass(kw_only=True)
class TandemSubscriberConfig(SubscriberUsecaseConfig):
    """Of one subscriber."""

    _outer_config: Any = field(default_factory=TandemBrokerConfig)
    wants: Subscribed

    @property
    def ack_policy(self) -> AckPolicy:
        """Default NACK_ON_ERROR: what fails comes again, and after so many tries is a dead letter."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        outer = self._outer_config.ack_policy
        return outer if outer is not EMPTY else AckPolicy.NACK_ON_ERROR


class TandemSubscriberSpecification(
    SubscriberSpecification[TandemBrokerConfig, TandemSubscriberSpecificationConfig]
):
    """AsyncAPI of a subscriber."""

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.wants.topic}"

    @property
    def channel_labels(self) -> list[str]:
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        payload = resolve_payloads(self.get_payloads())
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(
                    message=SchemaMessage(title=f"{self.name}:Message", payload=payload),
                    bindings=None,
                ),
                bindings=None,
            )
        }


class TandemSubscriber(SubscriberUsecase[Incoming]):
    """One topic in one group."""

    _outer_config: TandemBrokerConfig

    def __init__(self, config: TandemSubscriberConfig, specification: Any, calls: Any) -> None:
        self.wants = config.wants
        parser = BatchParser() if config.wants.batch else Parser()
        config.parser = parser.parse_message
        config.decoder = (
            parser.decode_batch if isinstance(parser, BatchParser) else parser.decode_message
        )
        super().__init__(config, specification, calls)
        self._consumer: PushConsumer | None = None
        self._puller: PullConsumer | None = None

    @property
    def topic(self) -> str:
        """With the prefix of its routers."""
        return f"{self._outer_config.prefix}{self.wants.topic}"

    @property
    def group(self) -> str:
        """Its own, or one that is made of the broker's and the topic: members of one group must want the same."""
        return self.wants.group or f"{self._outer_config.group}-{self.topic}"

    def _options(self) -> dict[str, Any]:
        if self._outer_config.client is None:
            raise IncorrectState(
                "the broker is not connected: use `async with broker`, or start the app"
            )
        return {
            "config": self._outer_config.client,
            "subscribe": {self.topic: self.wants.expression},
            "start": self.wants.start,
        }

    async def start(self) -> None:
        """Join the group, where there is a handler."""
        await super().start()
        self._post_start()
        if not self.calls or self._consumer is not None or self._outer_config.handed_over:
            return
        wants = self.wants
        listener = {"on_batch": self._many} if wants.batch else {"on_message": self._one}
        self._consumer = PushConsumer(
            self.group, **self._options(), **listener, **self._outer_config.consumer_options,
            orderly=wants.orderly, concurrency=wants.max_workers, batch_count=wants.batch_count,
            reconsume_times_max=wants.retries_max,
        )  # fmt: skip
        await self._consumer.start()

    async def stop(self) -> None:
        """Let handlers finish, commit, leave the group."""
        self.running = False
        consumer, self._consumer = self._consumer, None
        puller, self._puller = self._puller, None
        if consumer is not None:
            await consumer.stop()
        if puller is not None:
            await puller.stop()
        await super().stop()

    async def _one(self, message: ReceivedMessage) -> Verdict:
        return await self._handled(Incoming([message], retry_level=self.wants.retry_level))

    async def _many(self, messages: Sequence[ReceivedMessage]) -> Verdict:
        return await self._handled(Incoming(list(messages), retry_level=self.wants.retry_level))

    async def _handled(self, incoming: Incoming) -> Verdict:
        """What becomes of it: what was acknowledged in any way, else it comes again."""
        message = incoming.message
        if "REPLY_TO_CLIENT" in message.properties and self._consumer is not None:
            consumer = self._consumer

            async def answer(body: bytes, properties: dict[str, str]) -> None:
                await consumer.reply(message, body, properties=properties)

            incoming.answer = answer
        await self.consume(incoming)
        return incoming.verdict or ConsumeResult.RECONSUME_LATER

    def _make_response_publisher(self, message: StreamMessage[Incoming]) -> Sequence[Any]:
        return (ReplyPublisher(self._outer_config.producer, message.raw_message, message.reply_to),)

    # Without a handler

    async def _pulling(self) -> PullConsumer:
        if self._puller is None:
            self._puller = PullConsumer(self.group, **self._options())
            await self._puller.start()
        return self._puller

    async def _parsed(self, message: ReceivedMessage | None) -> Any:
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        incoming = None if message is None else Incoming([message])
        return await process_msg(
            msg=incoming,
            middlewares=(m(incoming, context=context) for m in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )

    async def get_one(self, *, timeout: float = 5.0) -> Any:
        """The next message of the group; None after so many seconds."""
        assert not self.calls, "get_one() is for subscribers without handlers"
        found = await (await self._pulling()).poll(1, max(1, round(timeout * 1000)))
        return await self._parsed(found[0] if found else None)

    async def __aiter__(self) -> AsyncIterator[Any]:
        assert not self.calls, "iterating is for subscribers without handlers"
        puller = await self._pulling()
        while True:
            for message in await puller.poll(1, POLL_MS):
                yield await self._parsed(message)

    # Logs

    @staticmethod
    def build_log_context(
        message: StreamMessage[Incoming] | None, topic: str = "", group: str = ""
    ) -> dict[str, str]:
        """What each line of a log begins with."""
        return {"topic": topic, "group": group, "message_id": getattr(message, "message_id", "")}

    def get_log_context(self, message: StreamMessage[Incoming] | None) -> dict[str, str]:
        return self.build_log_context(message, self.topic, self.group)
