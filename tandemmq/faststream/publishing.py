"""What is published: commands, the producer that carries them out, and publishers of topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as SchemaMessage
from faststream.specification.schema import Operation, PublisherSpec

from tandemmq.cluster.client import Message, NoReply, Producer, Reply, SendResult
from tandemmq.faststream.config import TandemBrokerConfig
from tandemmq.faststream.messages import Incoming, Parser, outgoing

REQUEST_S = 30.0


@dataclass(kw_only=True)
class How:
    """What a message of RocketMQ has beside body and headers; as arguments of tandemmq.Message and Producer.send."""

    tag: str | None = None
    keys: str | Sequence[str] = ()
    ordering_key: str | None = None
    delay_s: float = 0.0
    delay_level: int = 0

    def over(self, other: How) -> How:
        """These where they say something, else the other's."""
        return How(
            tag=self.tag or other.tag,
            keys=self.keys or other.keys,
            ordering_key=self.ordering_key or other.ordering_key,
            delay_s=self.delay_s or other.delay_s,
            delay_level=self.delay_level or other.delay_level,
        )

    @property
    def fields(self) -> dict[str, Any]:
        """Of Message."""
        return {
            "tags": self.tag, "keys": self.keys, "delay_s": self.delay_s, "delay_level": self.delay_level,
        }  # fmt: skip


class TandemPublishCommand(BatchPublishCommand):
    """One publish, or request, or batch. answers: the request that it replies to."""

    def __init__(
        self, message: Any, /, *messages: Any, topic: str = "", how: How | None = None,
        correlation_id: str | None = None, headers: dict[str, Any] | None = None, reply_to: str = "",
        timeout: float | None = None, _publish_type: PublishType,
    ) -> None:  # fmt: skip
        super().__init__(
            message, *messages, destination=topic, correlation_id=correlation_id, headers=headers,
            reply_to=reply_to, _publish_type=_publish_type,
        )  # fmt: skip
        self.how = how or How()
        self.timeout = timeout
        self.answers: Incoming | None = None

    @classmethod
    def from_cmd(
        cls, cmd: PublishCommand | TandemPublishCommand, *, batch: bool = False
    ) -> TandemPublishCommand:
        if isinstance(cmd, TandemPublishCommand):
            return cmd
        body, extra = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body, *extra, topic=cmd.destination, correlation_id=cmd.correlation_id, headers=cmd.headers,
            reply_to=cmd.reply_to, _publish_type=cmd.publish_type,
        )  # fmt: skip


class TandemResponse(Response):
    """What a handler returns to say more than a body: tag, keys, headers and the like of what is published.

    Example: return TandemResponse({"id": 17}, tag="billed", keys="order-17")
    """

    def __init__(
        self, body: Any, *, headers: dict[str, Any] | None = None, correlation_id: str | None = None,
        tag: str | None = None, keys: str | Sequence[str] = (), ordering_key: str | None = None,
        delay_s: float = 0.0, delay_level: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(body=body, headers=headers, correlation_id=correlation_id)
        self.how = How(
            tag=tag, keys=keys, ordering_key=ordering_key, delay_s=delay_s, delay_level=delay_level
        )

    def as_publish_command(self) -> TandemPublishCommand:
        return TandemPublishCommand(
            self.body, headers=self.headers, correlation_id=self.correlation_id, how=self.how,
            _publish_type=PublishType.PUBLISH,
        )  # fmt: skip


class TandemProducer(ProducerProto[TandemPublishCommand]):
    """Carries commands out with a tandemmq.Producer."""

    def __init__(self, parser: Any, decoder: Any) -> None:
        default = Parser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec: Any = DefaultCodec()
        self._serializer: Any = None
        self._producer: Producer | None = None

    def connect(self, producer: Producer, serializer: Any, codec: Any) -> None:
        """From now on it can send."""
        self._producer, self._serializer = producer, serializer
        self.codec = codec or DefaultCodec()

    def disconnect(self) -> None:
        """Not any more."""
        self._producer = None

    def _connected(self) -> Producer:
        if self._producer is None:
            raise IncorrectState(
                "the broker is not connected: use `async with broker`, or start the app"
            )
        return self._producer

    async def message(self, cmd: TandemPublishCommand, body: Any) -> Message:
        """A body of a command as it is sent."""
        encoded, content_type = await self.codec.encode(body, self._serializer)
        return outgoing(
            cmd.destination, encoded, content_type, cmd.headers or {},
            correlation_id=cmd.correlation_id or "", reply_to=cmd.reply_to, **cmd.how.fields,
        )  # fmt: skip

    async def publish(self, cmd: TandemPublishCommand) -> SendResult | None:
        """Where it was stored; None for the reply to a request. Raises what Producer.send does."""
        if cmd.answers is not None:
            message = await self.message(_addressed(cmd, "reply"), cmd.body)
            await cmd.answers.answer(message.body, message.properties)
            return None
        message = await self.message(cmd, cmd.body)
        return await self._connected().send(message, ordering_key=cmd.how.ordering_key)

    async def publish_batch(self, cmd: TandemPublishCommand) -> SendResult | None:
        """All or none, in one queue."""
        messages = [await self.message(cmd, body) for body in cmd.batch_bodies]
        return await self._connected().send_batch(messages) if messages else None

    async def request(self, cmd: TandemPublishCommand) -> Incoming:
        """The reply. Raises TimeoutError where none comes in time."""
        message = await self.message(cmd, cmd.body)
        timeout_ms = max(1, round((cmd.timeout or REQUEST_S) * 1000))
        try:
            reply = await self._connected().request(
                message, ordering_key=cmd.how.ordering_key, timeout_ms=timeout_ms
            )
        except NoReply as problem:  # what FastStream's brokers raise
            raise TimeoutError(str(problem)) from problem
        return replied(reply, cmd.destination)


def _addressed(cmd: TandemPublishCommand, topic: str) -> TandemPublishCommand:
    cmd.destination = cmd.destination or topic
    return cmd


def replied(reply: Reply, topic: str) -> Incoming:
    """A reply as a message that came."""
    from tandemmq.faststream.received import received

    return Incoming([received(topic, reply.body, dict(reply.properties))])


class ReplyPublisher(FakePublisher):
    """Publishes what a handler returned to whoever asked: to the request, or to the topic of its reply_to."""

    def __init__(self, producer: ProducerProto[Any], incoming: Incoming, topic: str) -> None:
        super().__init__(producer=producer)
        self._incoming = incoming
        self._topic = topic

    def patch_command(self, cmd: PublishCommand) -> TandemPublishCommand:
        found = TandemPublishCommand.from_cmd(super().patch_command(cmd))
        found.destination = self._topic
        found.reply_to = ""
        if self._incoming.answer is not None:
            found.answers, found.destination = self._incoming, ""
        return found


@dataclass(kw_only=True)
class TandemPublisherSpecificationConfig(PublisherSpecificationConfig):
    """What AsyncAPI says of a publisher."""

    topic: str


@dataclass(kw_only=True)
class TandemPublisherConfig(PublisherUsecaseConfig):
    """Of one publisher."""

    topic: str
    how: How
    headers: Mapping[str, str] = field(default_factory=dict)
    batch: bool = False


class TandemPublisherSpecification(
    PublisherSpecification[TandemBrokerConfig, TandemPublisherSpecificationConfig]
):
    """AsyncAPI of a publisher."""

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(
                    message=SchemaMessage(title=f"{self.name}:Message", payload=payload),
                    bindings=None,
                ),
                bindings=None,
            )
        }


class TandemPublisherUsecase(PublisherUsecase):
    """Publishes to one topic."""

    def __init__(
        self, config: TandemPublisherConfig, specification: PublisherSpecification[Any, Any]
    ) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self.how = config.how
        self.headers = dict(config.headers)
        self.batch = config.batch

    @property
    def topic(self) -> str:
        """With the prefix of its routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self, message: Any = None, /, *messages: Any, topic: str = "", headers: dict[str, Any] | None = None,
        correlation_id: str | None = None, reply_to: str = "", tag: str | None = None,
        keys: str | Sequence[str] = (), ordering_key: str | None = None, delay_s: float = 0.0,
        delay_level: int = 0,
    ) -> SendResult | None:  # fmt: skip
        """Send a message; with batch=True several, all or none."""
        how = How(
            tag=tag, keys=keys, ordering_key=ordering_key, delay_s=delay_s, delay_level=delay_level
        )
        cmd = TandemPublishCommand(
            message, *messages, topic=topic or self.topic, how=how.over(self.how), reply_to=reply_to,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            _publish_type=PublishType.PUBLISH,
        )  # fmt: skip
        return await self._send(cmd, ())

    async def _publish(
        self, cmd: PublishCommand | TandemPublishCommand, *, _extra_middlewares: Iterable[Any]
    ) -> None:
        """What a handler returned."""
        found = TandemPublishCommand.from_cmd(cmd, batch=self.batch)
        found.destination = self.topic
        found.add_headers(self.headers, override=False)
        found.how = found.how.over(self.how)
        await self._send(found, _extra_middlewares)

    async def _send(self, cmd: TandemPublishCommand, more: Iterable[Any]) -> SendResult | None:
        send = self._basic_publish_batch if self.batch else self._basic_publish
        result: SendResult | None = await send(
            cmd, producer=self._outer_config.producer, _extra_middlewares=more
        )
        return result

    async def request(
        self, message: Any, topic: str = "", *, headers: dict[str, Any] | None = None,
        correlation_id: str | None = None, timeout: float | None = REQUEST_S,
    ) -> Any:  # fmt: skip
        """The reply of a consumer. Raises TimeoutError where none comes in time."""
        cmd = TandemPublishCommand(
            message, topic=topic or self.topic, how=self.how, headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(), timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )  # fmt: skip
        return await self._basic_request(cmd, producer=self._outer_config.producer)
