"""Routers: subscribers and publishers that a broker includes later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from tandemmq.faststream.config import TandemBrokerConfig
from tandemmq.faststream.messages import Incoming
from tandemmq.faststream.registrator import TandemRegistrator


class TandemPublisher(ArgsContainer):
    """Arguments of publisher(), for a TandemRoute."""

    def __init__(self, topic: str, **options: Any) -> None:
        super().__init__(topic, **options)


class TandemRoute(SubscriberRoute):
    """A handler, and the arguments of subscriber()."""

    def __init__(
        self, call: Callable[..., Any], topic: str, *, publishers: Iterable[TandemPublisher] = (), **options: Any
    ) -> None:  # fmt: skip
        super().__init__(call, topic, publishers=publishers, **options)


class TandemRouter(TandemRegistrator, BrokerRouter[Incoming, TandemBrokerConfig]):
    """prefix: in front of every topic."""

    def __init__(
        self, prefix: str = "", handlers: Iterable[TandemRoute] = (), *, dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (), routers: Iterable[TandemRegistrator] = (), parser: Any = None,
        decoder: Any = None, include_in_schema: bool | None = None, ack_policy: AckPolicy = EMPTY,
    ) -> None:  # fmt: skip
        super().__init__(
            handlers=handlers,
            config=TandemBrokerConfig(
                prefix=prefix, ack_policy=ack_policy, broker_dependencies=dependencies,
                broker_middlewares=middlewares, broker_parser=parser, broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )  # fmt: skip
