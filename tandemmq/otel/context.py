"""Trace contexts in the properties of messages: traceparent, tracestate, and what else the propagator writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from opentelemetry import propagate, trace
from opentelemetry.context import Context

from tandemmq.cluster.client import Message, MessageRefused


class HasProperties(Protocol):
    """A ReceivedMessage, or anything else with properties."""

    @property
    def properties(self) -> Mapping[str, str]: ...


def with_context(message: Message, context: Context | None = None) -> Message:
    """The message with a context in its properties; None: the current one. As it is where that does not fit.

    Example: await producer.send(with_context(Message("Orders", b"17")))
    """
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    carrier = {name: value for name, value in carrier.items() if value}
    if carrier:
        with suppress(
            MessageRefused
        ):  # a baggage that no property may hold: a trace costs no message
            return message.with_properties(carrier)
    return message


def context_from(message: HasProperties) -> Context:
    """The context that a message was sent in, to begin spans in, e.g. where it is handled in a task of its own.

    Example:
        with tracer.start_as_current_span("book", context=context_from(delivery.message)): ...
    """
    return propagate.extract(message.properties)


def links_to(messages: Iterable[HasProperties]) -> list[trace.Link]:
    """Links to the spans that sent these messages; none for those that were sent outside of any trace."""
    spans = (
        trace.get_current_span(propagate.extract(each.properties, Context())).get_span_context()
        for each in messages
    )
    return [trace.Link(span) for span in spans if span.is_valid]
