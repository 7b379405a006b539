"""Spans of what is consumed: a listener's calls, and the receives of who pulls."""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from tandemmq.cluster.client import (
    ConsumeContext,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from tandemmq.otel import names
from tandemmq.otel.context import context_from, links_to
from tandemmq.otel.recording import Recording, failed, now_ns, received_attributes

_NOTE = "tandemmq.otel"


class ProcessSpans:
    """A ConsumeHook: a span around each call of a listener, current inside.

    A single message: a child of the span that sent it, so that both are in one trace. Several at once: a span with
    links to those that sent them.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def before_consume(self, context: ConsumeContext) -> None:
        """The listener is about to be called."""
        messages = context.messages
        first = messages[0]
        parent = context_from(first) if len(messages) == 1 else None
        span = self._recording.tracer.start_span(
            f"process {first.topic}", parent, SpanKind.CONSUMER,
            received_attributes(names.PROCESS, context.group, messages), links_to(messages),
        )  # fmt: skip
        inside = trace.set_span_in_context(span, parent)
        context.note[_NOTE] = span, contexts.attach(inside), time.perf_counter()
        self._recording.handed_over(first.topic, context.group, len(messages))

    def after_consume(self, context: ConsumeContext) -> None:
        """It returned or raised."""
        if _NOTE not in context.note:
            return  # switched on in the middle
        span, token, began_s = context.note.pop(_NOTE)
        contexts.detach(token)
        problem = context.problem
        if problem is not None:
            failed(span, problem)
        elif not context.handled:
            span.set_status(Status(StatusCode.ERROR, "the message comes again"))
        span.end()
        self._recording.processed(
            context.messages[0].topic, context.group, time.perf_counter() - began_s, problem
        )


class ReceiveSpans:
    """Wrappers around the constructors and methods of consumers."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._hook = ProcessSpans(recording)

    def made(self, method: Callable[..., None]) -> Callable[..., None]:
        """PushConsumer(), which Subscription makes one of, too: with our hook."""

        @functools.wraps(method)
        def made(consumer: PushConsumer, *arguments: Any, **options: Any) -> None:
            options["hooks"] = (*options.get("hooks", ()), self._hook)
            method(consumer, *arguments, **options)

        return made

    def poll(
        self, method: Callable[..., Awaitable[list[ReceivedMessage]]]
    ) -> Callable[..., Awaitable[list[ReceivedMessage]]]:
        """A span with links to what sent the messages; none where nothing came."""

        @functools.wraps(method)
        async def poll(
            consumer: PullConsumer, *arguments: Any, **how: Any
        ) -> list[ReceivedMessage]:
            began_s, began_ns = time.perf_counter(), now_ns()
            found = await method(consumer, *arguments, **how)
            self._received(consumer, found, began_s, began_ns)
            return found

        return poll

    def anext(
        self, method: Callable[..., Awaitable[ReceivedMessage]]
    ) -> Callable[..., Awaitable[ReceivedMessage]]:
        """`async for message in consumer`."""

        @functools.wraps(method)
        async def anext(consumer: PullConsumer) -> ReceivedMessage:
            began_s, began_ns = time.perf_counter(), now_ns()
            found = await method(consumer)
            self._received(consumer, [found], began_s, began_ns)
            return found

        return anext

    def _received(
        self, consumer: PullConsumer, found: list[ReceivedMessage], began_s: float, began_ns: int
    ) -> None:
        if not found:
            return
        span = self._recording.tracer.start_span(
            f"receive {found[0].topic}", None, SpanKind.CLIENT,
            received_attributes(names.RECEIVE, consumer.group, found), links_to(found), began_ns,
        )  # fmt: skip
        span.end()
        took_s = time.perf_counter() - began_s
        self._recording.received(found[0].topic, consumer.group, len(found), took_s, None)
