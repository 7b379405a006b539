"""The broker: one producer for all that is published, one consumer for each subscriber."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from fast_depends import Provider, dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from tandemmq.cluster.client import ClientConfig, ClientError, Credentials, Producer, SendResult
from tandemmq.faststream.config import GROUP, TandemBrokerConfig
from tandemmq.faststream.logs import make_tandem_logger_state
from tandemmq.faststream.messages import Incoming
from tandemmq.faststream.publishing import How, TandemProducer, TandemPublishCommand
from tandemmq.faststream.registrator import TandemRegistrator
from tandemmq.faststream.subscribing import TandemSubscriber

PING_TOPIC = "TBW102"


class TandemBroker(TandemRegistrator, BrokerUsecase[Incoming, Producer, TandemBrokerConfig]):
    """A FastStream broker on RocketMQ's protocol.

    namesrv  "host:9876;host:9876", or None for the environment's NAMESRV_ADDR
    group    producer group, and in front of the group of subscribers that name none
    config   instead of namesrv and credentials: a tandemmq.ClientConfig with TLS, namespace and more
    producer_options, consumer_options  further arguments of tandemmq.Producer and PushConsumer
    The others are those of every FastStream broker.

    Example:
        broker = TandemBroker("127.0.0.1:9876")

        @broker.subscriber("Orders", group="billing", tags="created")
        @broker.publisher("Bills")
        async def bill(order: Order) -> Bill: ...
    """

    def __init__(
        self, namesrv: str | Sequence[str] | None = None, *, group: str = GROUP,
        credentials: Credentials | None = None, config: ClientConfig | None = None,
        producer_options: dict[str, Any] | None = None, consumer_options: dict[str, Any] | None = None,
        graceful_timeout: float | None = 15.0, decoder: Any = None, parser: Any = None, codec: Any = None,
        dependencies: Sequence[Any] = (), middlewares: Sequence[Any] = (),
        routers: Iterable[TandemRegistrator] = (), ack_policy: AckPolicy = EMPTY,
        id_generator: Any = gen_cor_id, specification_url: str | None = None, description: str | None = None,
        tags: Iterable[Any] = (), logger: Any = EMPTY, log_level: int = logging.INFO,
        apply_types: bool = True, serializer: Any = EMPTY, provider: Provider | None = None,
        context: ContextRepo | None = None,
    ) -> None:  # fmt: skip
        shown = namesrv if isinstance(namesrv, str) else ";".join(namesrv or ())
        super().__init__(
            namesrv=namesrv, credentials=credentials, config_=config, producer_options=producer_options or {},
            routers=routers,
            config=TandemBrokerConfig(
                group=group, consumer_options=consumer_options or {},
                producer=TandemProducer(parser, decoder), broker_middlewares=middlewares,
                broker_parser=parser, broker_decoder=decoder, broker_codec=codec,
                logger=make_tandem_logger_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types, serializer=serializer,
                    provider=provider or dependency_provider, context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies, graceful_timeout=graceful_timeout, ack_policy=ack_policy,
                id_generator=id_generator, extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                description=description, url=[specification_url or shown or "127.0.0.1:9876"],
                protocol="rocketmq", protocol_version="5", tags=tags, security=None,
            ),
        )  # fmt: skip

    async def _connect(self) -> Producer:
        given = self._connection_kwargs
        config = given["config_"] or ClientConfig(
            given["namesrv"], credentials=given["credentials"]
        )
        broker_config = self.config.broker_config
        producer = Producer(broker_config.group, config=config, **given["producer_options"])
        await producer.start()
        broker_config.client = config
        codec = self.config.broker_codec
        broker_config.producer.connect(producer, self.config.fd_config._serializer, codec)  # type: ignore[attr-defined]
        return producer

    async def start(self) -> None:
        """Connect, and have every subscriber join its group. Raises SetupError, ClientError."""
        self._check_groups()
        await self.connect()
        context = TandemSubscriber.build_log_context(None)
        self.config.logger.log("connection established", logging.INFO, context)
        await super().start()

    def _check_groups(self) -> None:
        """RocketMQ: all members of a group must want the same, or messages are lost to those that do not."""
        wanted: dict[str, tuple[str, Any]] = {}
        for each in self.subscribers:
            assert isinstance(each, TandemSubscriber)
            mine = (each.topic, each.wants.expression)
            if wanted.setdefault(each.group, mine) != mine:
                raise SetupError(
                    f"group {each.group} would read {wanted[each.group]} and {mine}: all members of a group must "
                    "want the same; give each subscriber a group of its own"
                )

    async def stop(
        self, exc_type: type[BaseException] | None = None, exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:  # fmt: skip
        """Let handlers finish, commit, and leave."""
        await super().stop(exc_type, exc_val, exc_tb)
        producer, self._connection = self._connection, None
        if producer is not None:
            await producer.stop()
        broker_config = self.config.broker_config
        broker_config.client = None
        broker_config.producer.disconnect()  # type: ignore[attr-defined]

    async def ping(self, timeout: float | None = None) -> bool:
        """Whether a name server answers and knows a broker."""
        if self._connection is None:
            return False
        try:
            await self._connection.queues(PING_TOPIC)
        except ClientError:
            return False
        return True

    async def publish(
        self, message: Any = None, topic: str = "", *, tag: str | None = None, keys: str | Sequence[str] = (),
        ordering_key: str | None = None, delay_s: float = 0.0, delay_level: int = 0,
        headers: dict[str, Any] | None = None, correlation_id: str | None = None, reply_to: str = "",
    ) -> SendResult | None:  # fmt: skip
        """Send a message; where it was stored.

        tag, keys, delay_s, delay_level  as of tandemmq.Message; ordering_key as of Producer.send
        headers   properties of the message
        reply_to  a topic where a handler's answer goes
        Raises what tandemmq.Producer.send does.
        """
        how = How(
            tag=tag, keys=keys, ordering_key=ordering_key, delay_s=delay_s, delay_level=delay_level
        )
        cmd = TandemPublishCommand(
            message, topic=topic, how=how, headers=headers, reply_to=reply_to,
            correlation_id=correlation_id or self.config.id_generator(), _publish_type=PublishType.PUBLISH,
        )  # fmt: skip
        result: SendResult | None = await self._basic_publish(cmd, producer=self.config.producer)
        return result

    async def publish_batch(  # type: ignore[override]
        self, *messages: Any, topic: str, tag: str | None = None, keys: str | Sequence[str] = (),
        headers: dict[str, Any] | None = None, correlation_id: str | None = None,
    ) -> SendResult | None:  # fmt: skip
        """Send several together: all or none, in one queue."""
        cmd = TandemPublishCommand(
            *(messages or (None,)), topic=topic, how=How(tag=tag, keys=keys), headers=headers,
            correlation_id=correlation_id or self.config.id_generator(), _publish_type=PublishType.PUBLISH,
        )  # fmt: skip
        result: SendResult | None = await self._basic_publish_batch(
            cmd, producer=self.config.producer
        )
        return result

    async def request(  # type: ignore[override]
        self, message: Any = None, topic: str = "", *, tag: str | None = None, timeout: float = 3.0,
        headers: dict[str, Any] | None = None, correlation_id: str | None = None,
    ) -> Any:  # fmt: skip
        """The reply of whoever consumes it. Raises TimeoutError after so many seconds."""
        cmd = TandemPublishCommand(
            message, topic=topic, how=How(tag=tag), headers=headers, timeout=timeout,
            correlation_id=correlation_id or self.config.id_generator(), _publish_type=PublishType.REQUEST,
        )  # fmt: skip
        return await self._basic_request(cmd, producer=self.config.producer)
