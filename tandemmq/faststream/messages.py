"""Messages between RocketMQ's form and FastStream's: bodies, properties as headers, and what becomes of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from faststream.message import StreamMessage, decode_message

from tandemmq.cluster.client import ConsumeResult, Message, ReceivedMessage, RetryLater
from tandemmq.cluster.client.message import RESERVED_PROPERTIES

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"
EMPTY: Final = "empty-body"  # RocketMQ has no empty bodies: a message without one is marked
EMPTY_BODY: Final = b"\x00"
_OURS: Final = frozenset({CONTENT_TYPE, CORRELATION_ID, REPLY_TO, EMPTY})

Verdict = ConsumeResult | RetryLater


@dataclass(slots=True)
class Incoming:
    """One message, or several of a batch, and what the handler says of them.

    verdict  None: it said nothing, and they come again
    answer   sends the reply to a request; None where nobody waits for one
    """

    messages: Sequence[ReceivedMessage]
    verdict: Verdict | None = None
    answer: Any = None
    #: seconds: what a nack asks for, a level of the broker's delay table
    retry_level: int = field(default=0)

    @property
    def message(self) -> ReceivedMessage:
        """The first."""
        return self.messages[0]


class TandemStreamMessage(StreamMessage[Incoming]):
    """A message as handlers get it. ack: consumed; nack: again later; reject: to the dead letters."""

    async def ack(self) -> None:
        self._decide(ConsumeResult.SUCCESS)
        await super().ack()

    async def nack(self, delay_level: int | None = None) -> None:
        """delay_level: of the broker's table; None: the subscriber's, 0: the next of the broker's retries."""
        level = self.raw_message.retry_level if delay_level is None else delay_level
        self._decide(RetryLater(level))
        await super().nack()

    async def reject(self) -> None:
        self._decide(RetryLater(-1))
        await super().reject()

    def _decide(self, verdict: Verdict) -> None:
        if self.committed is None:
            self.raw_message.verdict = verdict


def body_of(message: ReceivedMessage) -> bytes:
    return b"" if EMPTY in message.properties else message.body


def headers_of(properties: Mapping[str, str]) -> dict[str, str]:
    """The application's properties; RocketMQ's own are in raw_message."""
    return {
        name: value
        for name, value in properties.items()
        if name not in RESERVED_PROPERTIES and name not in (REPLY_TO, EMPTY)
    }


class Parser:
    """Incoming -> StreamMessage."""

    async def parse_message(self, incoming: Incoming) -> TandemStreamMessage:
        message = incoming.message
        properties = message.properties
        reply_to = properties.get("REPLY_TO_CLIENT") or properties.get(REPLY_TO, "")
        return TandemStreamMessage(
            raw_message=incoming,
            body=body_of(message),
            headers=headers_of(properties),
            reply_to=reply_to,
            content_type=properties.get(CONTENT_TYPE),
            correlation_id=properties.get(CORRELATION_ID) or properties.get("CORRELATION_ID"),
            message_id=message.message_id,
        )

    async def decode_message(self, message: StreamMessage[Any]) -> Any:
        return decode_message(message)


class BatchParser(Parser):
    """As Parser, for subscribers with batch=True: a list of bodies."""

    async def parse_message(self, incoming: Incoming) -> TandemStreamMessage:
        first = incoming.message
        return TandemStreamMessage(
            raw_message=incoming,
            body=[body_of(each) for each in incoming.messages],
            headers=headers_of(first.properties),
            batch_headers=[headers_of(each.properties) for each in incoming.messages],
            content_type=first.properties.get(CONTENT_TYPE),
            correlation_id=first.properties.get(CORRELATION_ID),
            message_id=f"{first.message_id}-{incoming.messages[-1].message_id}",
        )

    async def decode_batch(self, message: StreamMessage[Any]) -> list[Any]:
        singles = Parser()
        found = []
        for each in message.raw_message.messages:
            parsed = await singles.parse_message(Incoming([each]))
            found.append(decode_message(parsed))
        return found


def outgoing(
    topic: str, body: bytes, content_type: str | None, headers: Mapping[str, Any], *,
    correlation_id: str = "", reply_to: str = "", **fields: Any,
) -> Message:  # fmt: skip
    """A message to send. Raises MessageRefused: headers are text, with a value, and not of RocketMQ's names."""
    properties = {name: str(value) for name, value in headers.items() if str(value)}
    properties |= {
        name: value
        for name, value in (
            (CONTENT_TYPE, content_type), (CORRELATION_ID, correlation_id), (REPLY_TO, reply_to),
        )
        if value
    }  # fmt: skip
    if not body:
        properties[EMPTY] = "true"
    return Message(topic, body or EMPTY_BODY, properties=properties, **fields)
