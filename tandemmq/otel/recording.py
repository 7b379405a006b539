"""What is told of an operation: attributes of its span, and its metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.trace import Span, Status, StatusCode

from tandemmq import __version__
from tandemmq.cluster.client import Message, ReceivedMessage, SendResult
from tandemmq.otel import names
from tandemmq.otel.names import Operation
from tandemmq.storage import parse_offset_message_id, unpack_host

SCHEMA = "https://opentelemetry.io/schemas/1.36.0"
Attributes = dict[str, Any]


class Recording:
    """One tracer and the four instruments."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self.tracer = trace.get_tracer("tandemmq.otel", __version__, tracer_provider, SCHEMA)
        meter = metrics.get_meter("tandemmq.otel", __version__, meter_provider, SCHEMA)
        buckets = names.BUCKETS_S
        self._operation = meter.create_histogram(
            names.OPERATION_DURATION.name, names.OPERATION_DURATION.unit,
            names.OPERATION_DURATION.description, explicit_bucket_boundaries_advisory=buckets,
        )  # fmt: skip
        self._process = meter.create_histogram(
            names.PROCESS_DURATION.name, names.PROCESS_DURATION.unit,
            names.PROCESS_DURATION.description, explicit_bucket_boundaries_advisory=buckets,
        )  # fmt: skip
        self._sent = meter.create_counter(
            names.SENT_MESSAGES.name, names.SENT_MESSAGES.unit, names.SENT_MESSAGES.description
        )
        self._consumed = meter.create_counter(
            names.CONSUMED_MESSAGES.name, names.CONSUMED_MESSAGES.unit, names.CONSUMED_MESSAGES.description
        )  # fmt: skip

    def sent(
        self, operation: Operation, topic: str, count: int, took_s: float, problem: BaseException | None
    ) -> None:  # fmt: skip
        """One send is over, well or not."""
        told = _of_metric(operation, topic, problem)
        self._operation.record(took_s, told)
        self._sent.add(count, told)

    def received(
        self, topic: str, group: str, count: int, took_s: float, problem: BaseException | None
    ) -> None:
        """One receive is over."""
        told = _of_metric(names.RECEIVE, topic, problem) | {names.CONSUMER_GROUP_NAME: group}
        self._operation.record(took_s, told)
        if count:
            self._consumed.add(count, told)

    def handed_over(self, topic: str, group: str, count: int) -> None:
        """Messages reached the application by a listener."""
        told = _of_metric(names.PROCESS, topic, None) | {names.CONSUMER_GROUP_NAME: group}
        self._consumed.add(count, told)

    def processed(
        self, topic: str, group: str, took_s: float, problem: BaseException | None
    ) -> None:
        """A listener is done."""
        told = _of_metric(names.PROCESS, topic, problem) | {names.CONSUMER_GROUP_NAME: group}
        self._process.record(took_s, told)


def _of_metric(operation: Operation, topic: str, problem: BaseException | None) -> Attributes:
    told: Attributes = {
        names.MESSAGING_SYSTEM: names.SYSTEM,
        names.OPERATION_NAME: operation.name,
        names.DESTINATION_NAME: topic,
    }
    if problem is not None:
        told[names.ERROR_TYPE] = type(problem).__name__
    return told


def operation_attributes(operation: Operation, topic: str) -> Attributes:
    """What every span has."""
    return {
        names.MESSAGING_SYSTEM: names.SYSTEM,
        names.OPERATION_NAME: operation.name,
        names.OPERATION_TYPE: operation.type,
        names.DESTINATION_NAME: topic,
    }


def send_attributes(operation: Operation, message: Message) -> Attributes:
    """Of one message on its way."""
    told = operation_attributes(operation, message.topic)
    told[names.MESSAGE_BODY_SIZE] = len(message.body)
    told |= _words(message.tags, tuple(message.keys))
    if message.delay_level:
        told[names.ROCKETMQ_DELAY_LEVEL] = message.delay_level
    told[names.ROCKETMQ_TYPE] = "delay" if message.delayed else "normal"
    return told


def _words(tags: str | None, keys: Sequence[str]) -> Attributes:
    told: Attributes = {}
    if tags:
        told[names.ROCKETMQ_TAG] = tags
    if keys:
        told[names.ROCKETMQ_KEYS] = list(keys)
    return told


def result_attributes(result: SendResult) -> Attributes:
    """Where a message went. A batch has no id of its own."""
    told: Attributes = {
        names.DESTINATION_PARTITION_ID: str(result.queue.queue_id),
        names.BROKER_NAME: result.queue.broker_name,
        names.QUEUE_OFFSET: result.queue_offset,
    }
    if "," not in result.message_id:
        told[names.MESSAGE_ID] = result.message_id
    try:
        host, port = unpack_host(
            parse_offset_message_id(result.offset_message_id.partition(",")[0])[0]
        )
    except ValueError:
        return told  # a broker in front of brokers has ids of its own
    return told | {names.SERVER_ADDRESS: host, names.SERVER_PORT: port}


def received_attributes(
    operation: Operation, group: str, messages: Sequence[ReceivedMessage]
) -> Attributes:
    """Of one message, or of several that came together."""
    first = messages[0]
    told = operation_attributes(operation, first.topic) | {names.CONSUMER_GROUP_NAME: group}
    if len(messages) > 1:
        return told | {names.BATCH_MESSAGE_COUNT: len(messages)}
    host, _, port = first.store_host.rpartition(":")
    return told | _words(first.tags, first.keys) | {
        names.MESSAGE_ID: first.message_id,
        names.MESSAGE_BODY_SIZE: len(first.body),
        names.DESTINATION_PARTITION_ID: str(first.queue.queue_id),
        names.BROKER_NAME: first.queue.broker_name,
        names.QUEUE_OFFSET: first.queue_offset,
        names.RECONSUME_TIMES: first.reconsume_times,
        names.SERVER_ADDRESS: host,
        names.SERVER_PORT: int(port),
    }  # fmt: skip


def failed(span: Span, problem: BaseException) -> None:
    """Say on a span what went wrong."""
    span.set_attribute(names.ERROR_TYPE, type(problem).__name__)
    span.set_status(Status(StatusCode.ERROR, str(problem)[:500]))
    span.record_exception(problem)


def now_ns() -> int:
    """For the start of a span that is told afterwards."""
    return time.time_ns()


def settable(told: Mapping[str, Any], span: Span) -> None:
    """Attributes that are known at the end only."""
    if span.is_recording():
        span.set_attributes(dict(told))
