"""Spans of sends. Each wraps a method of Producer; the context travels in the message's properties."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

from tandemmq.cluster.client import Message, Producer, Reply, SendFuture, SendResult, Transaction
from tandemmq.cluster.client.tracing import TRACE_GROUP
from tandemmq.otel import names
from tandemmq.otel.context import with_context
from tandemmq.otel.names import Operation
from tandemmq.otel.recording import (
    Recording,
    failed,
    operation_attributes,
    result_attributes,
    send_attributes,
    settable,
)


class SendSpans:
    """Wrappers around Producer's methods. Each is given the method as it was, and gives what stands in its place."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def _began(self, operation: Operation, message: Message) -> tuple[Span, Message]:
        """A span for one message, and the message that carries it."""
        span = self._recording.tracer.start_span(
            f"{operation.name} {message.topic}", kind=SpanKind.PRODUCER,
            attributes=send_attributes(operation, message),
        )  # fmt: skip
        return span, with_context(message, trace.set_span_in_context(span))

    def _ended(
        self, operation: Operation, span: Span, topic: str, began_s: float,
        result: SendResult | None, problem: BaseException | None, count: int = 1,
    ) -> None:  # fmt: skip
        if result is not None:
            settable(result_attributes(result), span)
        if problem is not None:
            failed(span, problem)
        span.end()
        self._recording.sent(operation, topic, count, time.perf_counter() - began_s, problem)

    def send(self, method: Callable[..., SendFuture]) -> Callable[..., SendFuture]:
        """send(), and with it send_many() and send_value()."""

        @functools.wraps(method)
        def send(producer: Producer, message: Message, **how: Any) -> SendFuture:
            if producer.group == TRACE_GROUP:  # RocketMQ's own traces of what we trace already
                return method(producer, message, **how)
            began_s = time.perf_counter()
            span, carrying = self._began(names.SEND, message)
            try:
                future = method(producer, carrying, **how)
            except BaseException as problem:
                self._ended(names.SEND, span, message.topic, began_s, None, problem)
                raise
            future.add_done_callback(lambda done: self._settled(done, span, message.topic, began_s))
            return future

        return send

    def _settled(
        self, done: asyncio.Future[SendResult], span: Span, topic: str, began_s: float
    ) -> None:
        problem = asyncio.CancelledError() if done.cancelled() else done.exception()
        result = None if problem is not None else done.result()
        self._ended(names.SEND, span, topic, began_s, result, problem)

    def send_oneway(self, method: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        @functools.wraps(method)
        async def send_oneway(producer: Producer, message: Message, **how: Any) -> None:
            began_s = time.perf_counter()
            span, carrying = self._began(names.SEND, message)
            problem: BaseException | None = None
            try:
                await method(producer, carrying, **how)
            except BaseException as raised:
                problem = raised
                raise
            finally:
                self._ended(names.SEND, span, message.topic, began_s, None, problem)

        return send_oneway

    def request(self, method: Callable[..., Awaitable[Reply]]) -> Callable[..., Awaitable[Reply]]:
        """From the send to the reply."""

        @functools.wraps(method)
        async def request(producer: Producer, message: Message, **how: Any) -> Reply:
            began_s = time.perf_counter()
            span, carrying = self._began(names.REQUEST, message)
            problem: BaseException | None = None
            try:
                return await method(producer, carrying, **how)
            except BaseException as raised:
                problem = raised
                raise
            finally:
                self._ended(names.REQUEST, span, message.topic, began_s, None, problem)

        return request

    def send_batch(
        self, method: Callable[..., Awaitable[SendResult]]
    ) -> Callable[..., Awaitable[SendResult]]:
        """A span for the making of each message, which its consumer goes on from, and one for the send of all."""

        @functools.wraps(method)
        async def send_batch(
            producer: Producer, messages: Sequence[Message], **how: Any
        ) -> SendResult:
            began_s = time.perf_counter()
            topic = messages[0].topic if messages else ""
            carrying, made = [], []
            for message in messages:
                span, own = self._began(names.CREATE, message)
                span.end()
                carrying.append(own)
                made.append(trace.Link(span.get_span_context()))
            told = operation_attributes(names.SEND, topic)
            told[names.BATCH_MESSAGE_COUNT] = len(messages)
            sending = self._recording.tracer.start_span(
                f"send {topic}", kind=SpanKind.CLIENT, attributes=told, links=made
            )
            result: SendResult | None = None
            problem: BaseException | None = None
            try:
                result = await method(producer, carrying, **how)
                return result
            except BaseException as raised:
                problem = raised
                raise
            finally:
                self._ended(
                    names.SEND, sending, topic, began_s, result, problem, max(1, len(messages))
                )

        return send_batch

    def transaction(self, method: Callable[..., Transaction]) -> Callable[..., Transaction]:
        """Its consumers go on from here, whenever it is committed."""

        @functools.wraps(method)
        def transaction(producer: Producer, message: Message, **how: Any) -> Transaction:
            span, carrying = self._began(names.CREATE, message)
            span.set_attribute(names.ROCKETMQ_TYPE, "transaction")
            span.end()
            return method(producer, carrying, **how)

        return transaction
