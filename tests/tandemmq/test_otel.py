"""Spans, metrics and contexts of the OpenTelemetry instrumentation, by its own exporters, on a cluster in memory."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="pip install 'tandemmq[otel]' opentelemetry-sdk")

from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tandemmq import (
    ClientError,
    ConsumeResult,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
    Subscription,
    TransactionState,
)
from tandemmq.blocking import Producer as BlockingProducer
from tandemmq.otel import TandemInstrumentor, context_from, names
from tandemmq.testing import MemoryCluster

ROOT = Path(__file__).parents[2]
SOON_S = 20


class Seen:
    """What was exported."""

    def __init__(self) -> None:
        self.spans = InMemorySpanExporter()
        self.metrics = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.meters = MeterProvider([self.metrics])
        self.tracer = self.tracers.get_tracer("application")

    def named(self, name: str) -> list[ReadableSpan]:
        return [each for each in self.spans.get_finished_spans() if each.name == name]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found

    def points(self, name: str) -> list[Any]:
        data = self.metrics.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def seen() -> Iterator[Seen]:
    found = Seen()
    TandemInstrumentor().instrument(tracer_provider=found.tracers, meter_provider=found.meters)
    try:
        yield found
    finally:
        TandemInstrumentor().uninstrument()
        found.tracers.shutdown()
        found.meters.shutdown()


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent is not None else None


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def until_ended(seen: Seen, name: str, count: int = 1) -> None:
    async with asyncio.timeout(SOON_S):
        while len(seen.named(name)) < count:  # noqa: ASYNC110 - an exporter tells nobody
            await asyncio.sleep(0.01)


async def test_a_request_a_topic_and_its_consumer_are_one_trace(
    seen: Seen, tandem_memory: MemoryCluster
) -> None:
    inside: list[int] = []

    async def bill(message: ReceivedMessage) -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)
        with seen.tracer.start_as_current_span("book"):
            pass

    async with (
        Producer("shop", namesrv=tandem_memory.namesrv) as producer,
        PushConsumer(
            "billing", bill, namesrv=tandem_memory.namesrv, subscribe={"Orders": "*"},
            start=StartFrom.FIRST,
        ),
    ):  # fmt: skip
        with seen.tracer.start_as_current_span("POST /orders", kind=SpanKind.SERVER):
            result = await producer.send(Message("Orders", b"17", tags="created", keys="k-17"))
        await until_ended(seen, "process Orders")
    web, send = seen.one("POST /orders"), seen.one("send Orders")
    process, book = seen.one("process Orders"), seen.one("book")
    assert len({trace_of(each) for each in (web, send, process, book)}) == 1
    assert (parent_of(send), parent_of(process), parent_of(book)) == (
        id_of(web), id_of(send), id_of(process),
    )  # fmt: skip
    assert inside == [id_of(process)]
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert [link.context.span_id for link in process.links] == [id_of(send)]
    placed = {
        names.MESSAGING_SYSTEM: "rocketmq", names.DESTINATION_NAME: "Orders",
        names.MESSAGE_ID: result.message_id, names.MESSAGE_BODY_SIZE: 2,
        names.ROCKETMQ_TAG: "created", names.ROCKETMQ_KEYS: ("k-17",),
        names.DESTINATION_PARTITION_ID: str(result.queue.queue_id),
        names.BROKER_NAME: result.queue.broker_name, names.QUEUE_OFFSET: 0,
        names.SERVER_ADDRESS: "127.0.0.1", names.SERVER_PORT: 10911,
    }  # fmt: skip
    assert told(send) == placed | {
        names.OPERATION_NAME: "send", names.OPERATION_TYPE: "send", names.ROCKETMQ_TYPE: "normal",
    }  # fmt: skip
    assert told(process) == placed | {
        names.OPERATION_NAME: "process", names.OPERATION_TYPE: "process",
        names.CONSUMER_GROUP_NAME: "billing", names.RECONSUME_TIMES: 0,
    }  # fmt: skip
    (stored,) = tandem_memory.messages("Orders")
    assert stored.properties["traceparent"].split("-")[2] == f"{id_of(send):016x}"


async def test_each_try_of_a_message_is_a_span_of_its_trace(
    seen: Seen, tandem_memory: MemoryCluster
) -> None:
    async def fails_twice(message: ReceivedMessage) -> ConsumeResult | None:
        if message.reconsume_times == 0:
            raise ValueError("not today")
        return ConsumeResult.RECONSUME_LATER if message.reconsume_times == 1 else None

    async with (
        Producer("shop", namesrv=tandem_memory.namesrv) as producer,
        PushConsumer(
            "billing", fails_twice, namesrv=tandem_memory.namesrv, subscribe={"Orders": "*"},
            start=StartFrom.FIRST,
        ),
    ):  # fmt: skip
        await producer.send(Message("Orders", b"17"))
        for count in (1, 2, 3):
            async with asyncio.timeout(SOON_S):
                while len(seen.named("process Orders")) < count:
                    tandem_memory.advance(30)
                    await asyncio.sleep(0.01)
    first, second, third = seen.named("process Orders")
    assert len({trace_of(each) for each in (first, second, third, seen.one("send Orders"))}) == 1
    assert [told(each)[names.RECONSUME_TIMES] for each in (first, second, third)] == [0, 1, 2]
    assert [each.status.status_code for each in (first, second, third)] == [
        StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET,
    ]  # fmt: skip
    assert told(first)[names.ERROR_TYPE] == "ValueError"
    assert second.status.description == "the message comes again"
    assert first.events[0].name == "exception"


@pytest.mark.parametrize("plain", [False, True])
async def test_a_batch_has_links_to_what_sent_its_messages(
    seen: Seen, tandem_memory: MemoryCluster, plain: bool
) -> None:
    inside: list[int] = []

    def look(messages: Sequence[ReceivedMessage]) -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    async def look_on_the_loop(messages: Sequence[ReceivedMessage]) -> None:
        look(messages)

    tandem_memory.create_topic("Orders", 1)
    async with Producer("shop", namesrv=tandem_memory.namesrv) as producer:
        await producer.send_batch([Message("Orders", b"%d" % number) for number in range(3)])
        async with PushConsumer(
            "billing", on_batch=look if plain else look_on_the_loop,
            namesrv=tandem_memory.namesrv, subscribe={"Orders": "*"}, start=StartFrom.FIRST,
        ):  # fmt: skip
            await until_ended(seen, "process Orders")
    made, sending = seen.named("create Orders"), seen.one("send Orders")
    process = seen.one("process Orders")
    assert [link.context.span_id for link in sending.links] == [id_of(each) for each in made]
    assert [link.context.span_id for link in process.links] == [id_of(each) for each in made]
    assert (process.parent, sending.kind) == (None, SpanKind.CLIENT)
    assert told(process)[names.BATCH_MESSAGE_COUNT] == told(sending)[names.BATCH_MESSAGE_COUNT] == 3
    assert inside == [id_of(process)]
    assert sum(point.value for point in seen.points(names.SENT_MESSAGES.name)) == 3
    assert sum(point.value for point in seen.points(names.CONSUMED_MESSAGES.name)) == 3


async def test_what_is_pulled_is_a_receive_with_links(
    seen: Seen, tandem_memory: MemoryCluster
) -> None:
    tandem_memory.create_topic("Orders", 1)
    async with Producer("shop", namesrv=tandem_memory.namesrv) as producer:
        for number in range(3):
            await producer.send(Message("Orders", b"%d" % number))
    async with PullConsumer(
        "report", namesrv=tandem_memory.namesrv, subscribe={"Orders": "*"}, start=StartFrom.FIRST
    ) as consumer:
        async with asyncio.timeout(SOON_S):
            found = await consumer.poll(2)
            while len(found) < 2:
                found += await consumer.poll(2 - len(found))
        alone = await anext(consumer)
        assert await consumer.poll(timeout_ms=10) == []
    sends, receives = seen.named("send Orders"), seen.named("receive Orders")
    assert [link.context.span_id for each in receives for link in each.links] == [
        id_of(each) for each in sends
    ]
    assert all(each.kind is SpanKind.CLIENT and each.parent is None for each in receives)
    assert told(receives[-1])[names.MESSAGE_ID] == alone.message_id
    with seen.tracer.start_as_current_span("book", context=context_from(alone)):
        pass
    assert parent_of(seen.one("book")) == id_of(sends[2])


async def test_deliveries_that_are_iterated_over_end_with_their_ack(
    seen: Seen, tandem_memory: MemoryCluster
) -> None:
    async with Producer("shop", namesrv=tandem_memory.namesrv) as producer:
        await producer.send(Message("Orders", b"17"))
    async with Subscription(
        "billing", namesrv=tandem_memory.namesrv, subscribe={"Orders": "*"}, start=StartFrom.FIRST
    ) as orders:
        async for delivery in orders:
            assert not seen.named("process Orders")
            delivery.ack()
            break
    assert parent_of(seen.one("process Orders")) == id_of(seen.one("send Orders"))


async def test_a_send_that_fails_says_why(seen: Seen, tandem_memory: MemoryCluster) -> None:
    async with Producer("shop", namesrv=tandem_memory.namesrv, timeout_ms=300) as producer:
        with tandem_memory.outage(), pytest.raises(ClientError) as failure:
            await producer.send(Message("Orders", b"17"))
        with pytest.raises(ClientError):
            await producer.send_oneway(Message("Orders", b"x" * (5 << 20)))
    first, oneway = seen.named("send Orders")
    kind = type(failure.value).__name__
    assert (first.status.status_code, told(first)[names.ERROR_TYPE]) == (StatusCode.ERROR, kind)
    assert told(oneway)[names.ERROR_TYPE] == "MessageRefused"
    counted = {
        point.attributes[names.ERROR_TYPE]: point.value
        for point in seen.points(names.SENT_MESSAGES.name)
    }
    assert counted == {kind: 1, "MessageRefused": 1}


async def test_a_request_and_a_transaction_carry_their_context(
    seen: Seen, tandem_memory: MemoryCluster
) -> None:
    async def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async def answer(message: ReceivedMessage) -> None:
        if message.topic == "Prices":
            await consumer.reply(message, b"9.99")

    async with (
        PushConsumer(
            "billing", answer, namesrv=tandem_memory.namesrv, start=StartFrom.FIRST,
            subscribe={"Prices": "*", "Orders": "*"},
        ) as consumer,
        Producer("shop", namesrv=tandem_memory.namesrv, check_transaction=check) as producer,
    ):  # fmt: skip
        async with producer.transaction(Message("Orders", b"17")):
            pass
        tandem_memory.create_topic("Prices")
        assert (await producer.request(Message("Prices", b"17"), timeout_ms=20_000)).body == b"9.99"
        await until_ended(seen, "process Orders")
        await until_ended(seen, "process Prices")
    assert parent_of(seen.one("process Orders")) == id_of(seen.one("create Orders"))
    assert parent_of(seen.one("process Prices")) == id_of(seen.one("request Prices"))


def test_a_blocking_producer_sends_in_the_span_of_its_caller(
    seen: Seen, tandem_memory: MemoryCluster
) -> None:
    with (
        BlockingProducer("shop", namesrv=tandem_memory.namesrv) as producer,
        seen.tracer.start_as_current_span("script"),
    ):
        producer.send("Orders", b"17")
    assert parent_of(seen.one("send Orders")) == id_of(seen.one("script"))


async def test_metrics_are_those_of_the_table(seen: Seen, tandem_memory: MemoryCluster) -> None:
    async def handle(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.02)

    async with (
        Producer("shop", namesrv=tandem_memory.namesrv) as producer,
        PushConsumer(
            "billing", handle, namesrv=tandem_memory.namesrv, subscribe={"Orders": "*"},
            start=StartFrom.FIRST,
        ),
    ):  # fmt: skip
        for _ in range(4):
            await producer.send(Message("Orders", b"17"))
        await until_ended(seen, "process Orders", 4)
    (sent,) = seen.points(names.SENT_MESSAGES.name)
    (consumed,) = seen.points(names.CONSUMED_MESSAGES.name)
    (process,) = seen.points(names.PROCESS_DURATION.name)
    (operation,) = seen.points(names.OPERATION_DURATION.name)
    assert (sent.value, consumed.value, process.count, operation.count) == (4, 4, 4, 4)
    assert process.sum >= 4 * 0.02
    assert process.explicit_bounds == names.BUCKETS_S
    assert dict(consumed.attributes) == {
        names.MESSAGING_SYSTEM: "rocketmq", names.OPERATION_NAME: "process",
        names.DESTINATION_NAME: "Orders", names.CONSUMER_GROUP_NAME: "billing",
    }  # fmt: skip


async def test_a_context_that_no_property_can_hold_costs_no_message(
    seen: Seen, tandem_memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inject(carrier: dict[str, str], context: object) -> None:
        carrier["x"] = "\x01"

    monkeypatch.setattr("opentelemetry.propagate.inject", inject)
    async with Producer("shop", namesrv=tandem_memory.namesrv) as producer:
        assert (await producer.send(Message("Orders", b"17"))).ok


async def test_baggage_travels_too(seen: Seen, tandem_memory: MemoryCluster) -> None:
    token = context.attach(baggage.set_baggage("customer", "17"))
    try:
        async with Producer("shop", namesrv=tandem_memory.namesrv) as producer:
            await producer.send(Message("Orders", b"17", properties={"own": "stays"}))
    finally:
        context.detach(token)
    (stored,) = tandem_memory.messages("Orders")
    assert baggage.get_baggage("customer", context_from(stored)) == "17"
    assert stored.properties["own"] == "stays"


async def test_switched_off_nothing_is_left(tandem_memory: MemoryCluster) -> None:
    before = {name: getattr(Producer, name) for name in ("send", "request", "send_batch")}
    TandemInstrumentor().instrument()
    assert Producer.send is not before["send"]
    TandemInstrumentor().uninstrument()
    assert {name: getattr(Producer, name) for name in before} == before
    async with Producer("shop", namesrv=tandem_memory.namesrv) as producer:
        await producer.send(Message("Orders", b"17"))
    (stored,) = tandem_memory.messages("Orders")
    assert "traceparent" not in stored.properties


def test_names_are_those_of_the_conventions() -> None:
    conventions = pytest.importorskip(
        "opentelemetry.semconv._incubating.attributes.messaging_attributes"
    )
    from opentelemetry.semconv._incubating.metrics import messaging_metrics
    from opentelemetry.semconv.attributes import error_attributes, server_attributes

    theirs = {
        value
        for module in (conventions, error_attributes, server_attributes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    ours = {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and name != "SYSTEM"
    }
    assert len(ours) > 15
    assert ours - set(names.OUR_ATTRIBUTES) <= theirs
    metrics = {
        value for name, value in vars(messaging_metrics).items() if name.startswith("MESSAGING_")
    }
    assert {each.name for each in names.METRICS} <= metrics
    types = {each.value for each in conventions.MessagingOperationTypeValues}
    operations = [names.SEND, names.REQUEST, names.CREATE, names.RECEIVE, names.PROCESS]
    assert {each.type for each in operations} <= types


def test_auto_instrumentation_finds_it() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (named,) = settings["project"]["entry-points"]["opentelemetry_instrumentor"].values()
    assert (
        named == f"{TandemInstrumentor.__module__.rpartition('.')[0]}:{TandemInstrumentor.__name__}"
    )
    assert TandemInstrumentor()._check_dependency_conflicts() is None
