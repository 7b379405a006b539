"""`subscriber` and `publisher` of a broker and of its routers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

from tandemmq.cluster.client import Sql92, StartFrom
from tandemmq.cluster.client.message import check_group, check_topic
from tandemmq.faststream.config import TandemBrokerConfig
from tandemmq.faststream.messages import Incoming
from tandemmq.faststream.publishing import (
    How,
    TandemPublisherConfig,
    TandemPublisherSpecification,
    TandemPublisherSpecificationConfig,
    TandemPublisherUsecase,
)
from tandemmq.faststream.subscribing import (
    Subscribed,
    TandemSubscriber,
    TandemSubscriberConfig,
    TandemSubscriberSpecification,
    TandemSubscriberSpecificationConfig,
)


class TandemRegistrator(Registrator[Incoming, TandemBrokerConfig]):
    """Includable to a TandemBroker and to routers."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str = "",
        tags: str = "*",
        sql92: str = "",
        start: StartFrom = StartFrom.LAST,
        orderly: bool = False,
        batch: bool = False,
        batch_count: int = 32,
        max_workers: int = 20,
        retries_max: int | None = None,
        retry_level: int = 0,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> TandemSubscriber:
        """Handle the messages of a topic.

        group        members of one group share its messages, and must want the same of it; "": one of the broker's
                     group and the topic
        tags         "*", "TagA", "TagA || TagB"; or
        sql92        an expression over properties, as "amount > 100"
        start        where a new group begins
        orderly      one message after the other in each queue
        batch        the handler gets a list, of at most batch_count
        max_workers  handlers at work at once
        retries_max  tries after the first before a message is a dead letter; None: 16, without end when orderly
        retry_level  of the broker's delay table, for what comes again; 0: longer from try to try
        ack_policy   default NACK_ON_ERROR: a message whose handler raised comes again. REJECT_ON_ERROR: it is a dead
                     letter at once
        """
        check_topic(topic)
        if group:
            check_group(group)
        if sql92 and tags != "*":
            raise SetupError("give tags or sql92, one of the two")
        wants = Subscribed(
            topic=topic, group=group, expression=Sql92(sql92) if sql92 else tags, start=start,
            orderly=orderly, batch=batch, batch_count=batch_count, max_workers=max_workers,
            retries_max=retries_max, retry_level=retry_level,
        )  # fmt: skip
        calls: CallsCollection[Any] = CallsCollection()
        specification = TandemSubscriberSpecification(
            self.config,  # type: ignore[arg-type]
            TandemSubscriberSpecificationConfig(
                wants=wants, title_=title, description_=description, include_in_schema=include_in_schema
            ),
            calls,
        )  # fmt: skip
        config = TandemSubscriberConfig(
            wants=wants, no_reply=no_reply, _outer_config=self.config, _ack_policy=ack_policy
        )
        found = TandemSubscriber(config, specification, calls)
        super().subscriber(found, persistent=persistent)
        return found.add_call(
            parser_=parser or self._parser, decoder_=decoder or self._decoder, codec_=codec,
            dependencies_=dependencies,
        )  # fmt: skip

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] = (),
        ordering_key: str | None = None,
        delay_s: float = 0.0,
        delay_level: int = 0,
        headers: dict[str, str] | None = None,
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
    ) -> TandemPublisherUsecase:
        """Publish to a topic: what a handler returns, or by its own publish()."""
        check_topic(topic)
        how = How(
            tag=tag, keys=keys, ordering_key=ordering_key, delay_s=delay_s, delay_level=delay_level
        )
        specification = TandemPublisherSpecification(
            self.config,  # type: ignore[arg-type]
            TandemPublisherSpecificationConfig(
                topic=topic, schema_=schema, title_=title, description_=description,
                include_in_schema=include_in_schema,
            ),
        )  # fmt: skip
        config = TandemPublisherConfig(
            topic=topic, how=how, headers=headers or {}, batch=batch,
            _outer_config=self.config,  # type: ignore[arg-type]
        )  # fmt: skip
        found = TandemPublisherUsecase(config, specification)
        super().publisher(found, persistent=persistent)
        return found

    def include_router(self, router: Any, **options: Any) -> None:
        """Take over its subscribers and publishers."""
        if not isinstance(router, TandemRegistrator):
            raise TypeError(f"a router must be a TandemRouter, got {type(router).__name__}")
        super().include_router(router, **options)
