"""FastStream's own tests for brokers, on ours: run by test_faststream_conformance.py inside FastStream's sources."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock, MagicMock
from uuid import uuid4

import pytest
from faststream import BaseMiddleware
from faststream._internal.context import ContextRepo
from tests.brokers.base.basic import BaseTestcaseConfig
from tests.brokers.base.connection import BrokerConnectionTestcase
from tests.brokers.base.consume import BrokerRealConsumeTestcase
from tests.brokers.base.include_router import IncludePublisherTestcase, IncludeSubscriberTestcase
from tests.brokers.base.middlewares import (
    ExceptionMiddlewareTestcase,
    MiddlewaresOrderTestcase,
    MiddlewareTestcase,
)
from tests.brokers.base.parser import CustomParserTestcase
from tests.brokers.base.publish import BrokerPublishTestcase
from tests.brokers.base.requests import RequestsTestcase
from tests.brokers.base.router import RouterLocalTestcase, RouterTestcase
from tests.brokers.base.testclient import BrokerTestclientTestcase

from tandemmq import StartFrom
from tandemmq.faststream import (
    TandemBroker,
    TandemPublisher,
    TandemRoute,
    TandemRouter,
    TestTandemBroker,
)
from tandemmq.faststream.testing import HandOver
from tandemmq.testing import MemoryCluster


class Config(BaseTestcaseConfig[TandemBroker]):
    """A cluster in memory, and the real client."""

    timeout = 10.0
    namesrv = ""
    route_class = TandemRoute
    publisher_class = TandemPublisher

    @pytest.fixture(autouse=True)
    def _cluster(self) -> Iterator[None]:
        with MemoryCluster() as self.cluster:
            self.namesrv = self.cluster.namesrv
            yield

    def get_broker(self, apply_types: bool = False, **kwargs: Any) -> TandemBroker:
        return TandemBroker(self.namesrv, apply_types=apply_types, **kwargs)

    def get_router(self, **kwargs: Any) -> TandemRouter:
        return TandemRouter(**kwargs)

    def get_subscriber_params(
        self, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {"start": StartFrom.FIRST, **kwargs}


class InTestBroker(Config):
    """FastStream's test broker."""

    def patch_broker(self, *brokers: TandemBroker, **kwargs: Any) -> Any:
        return TestTandemBroker(*brokers, **kwargs)


class Doubled(BaseMiddleware[Any, Any]):
    """What RequestsTestcase wants: the body twice on receipt, and twice before it is consumed."""

    async def on_receive(self) -> None:
        import msgspec

        (message,) = self.msg.messages
        self.msg.messages = [msgspec.structs.replace(message, body=message.body * 2)]

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        msg.body *= 2
        return await call_next(msg)


class TestConsume(Config, BrokerRealConsumeTestcase):
    async def test_iteration(self, queue: str, mock: MagicMock) -> None:
        self.cluster.create_topic(queue, 1)  # messages of several queues have no order
        await super().test_iteration(queue, mock)


class TestPublish(Config, BrokerPublishTestcase):
    pass


class TestConnection(BrokerConnectionTestcase):
    broker = TandemBroker

    @pytest.fixture(autouse=True)
    def _cluster(self) -> Iterator[None]:
        with MemoryCluster() as cluster:
            self.namesrv = cluster.namesrv
            yield

    def get_broker_args(self, settings: Any) -> dict[str, Any]:
        return {"namesrv": self.namesrv}


# What FastStream's tests ask for; their conftest needs more than they do


@pytest.fixture
def settings() -> None:
    """There are none."""


@pytest.fixture
def queue() -> str:
    return str(uuid4())


@pytest.fixture
def event() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def event2() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def event3() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def mock() -> MagicMock:
    return MagicMock()


@pytest.fixture
def mock2() -> MagicMock:
    return MagicMock()


@pytest.fixture
def async_mock() -> AsyncMock:
    return AsyncMock()


@pytest.fixture
def context() -> ContextRepo:
    return ContextRepo()


class TestIncludeSubscriber(Config, IncludeSubscriberTestcase):
    pass


class TestIncludePublisher(Config, IncludePublisherTestcase):
    pass


class TestOrder(InTestBroker, MiddlewaresOrderTestcase):
    pass


class TestMiddleware(Config, MiddlewareTestcase):
    broker_class = TandemBroker


class TestExceptions(Config, ExceptionMiddlewareTestcase):
    pass


class TestParser(Config, CustomParserTestcase):
    pass


class TestRequests(Config, RequestsTestcase):
    def get_middleware(self, **kwargs: Any) -> Any:
        return Doubled


class TestRequestsInTestBroker(InTestBroker, RequestsTestcase):
    def get_middleware(self, **kwargs: Any) -> Any:
        return Doubled


class TestRouter(Config, RouterTestcase):
    pass


class TestRouterInTestBroker(InTestBroker, RouterLocalTestcase):
    pass


class TestTestBroker(InTestBroker, BrokerTestclientTestcase):
    def get_fake_producer_class(self) -> type:
        return HandOver

    async def test_broker_gets_patched_attrs_within_cm(self) -> None:  # type: ignore[override]
        await super().test_broker_gets_patched_attrs_within_cm(HandOver)
