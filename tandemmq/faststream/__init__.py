"""A broker for FastStream: `pip install 'tandemmq[faststream]'`.

    from faststream import FastStream
    from tandemmq.faststream import TandemBroker

    broker = TandemBroker("127.0.0.1:9876")
    app = FastStream(broker)

    @broker.subscriber("Orders", group="billing")
    async def bill(order: Order) -> None: ...

FastStream has no public interface for brokers: this is built, as its own are, on `faststream._internal`, and pinned to
the releases that it was tried with. docs/howto/faststream.md.
"""

from __future__ import annotations

from tandemmq.faststream.annotations import TandemMessage
from tandemmq.faststream.broker import TandemBroker
from tandemmq.faststream.publishing import TandemResponse
from tandemmq.faststream.router import TandemPublisher, TandemRoute, TandemRouter
from tandemmq.faststream.testing import TestTandemBroker

__all__ = [
    "TandemBroker",
    "TandemMessage",
    "TandemPublisher",
    "TandemResponse",
    "TandemRoute",
    "TandemRouter",
    "TestTandemBroker",
]
