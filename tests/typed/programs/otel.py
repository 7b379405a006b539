"""A user's program: traces."""

from __future__ import annotations

from opentelemetry import trace

from tandemmq import Message, Producer, ReceivedMessage
from tandemmq.otel import TandemInstrumentor, context_from, links_to, with_context

TandemInstrumentor().instrument()
tracer = trace.get_tracer("shop")


async def send(producer: Producer) -> str:
    message: Message = with_context(Message("Orders", b"17"))
    return (await producer.send(message)).message_id


def handle(messages: list[ReceivedMessage]) -> None:
    links: list[trace.Link] = links_to(messages)
    with tracer.start_as_current_span("book", context=context_from(messages[0]), links=links):
        pass
