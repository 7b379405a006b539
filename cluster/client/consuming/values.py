"""Listeners that get values instead of bytes."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tandemmq.cluster.client.consuming.listening import Listener, Verdict
from tandemmq.cluster.client.message import ReceivedMessage

Value = TypeVar("Value")


def with_value(
    decode: Callable[[bytes], Value],
    listener: Callable[[ReceivedMessage, Value], Awaitable[Verdict] | Verdict],
) -> Listener:
    """A listener for PushConsumer that also gets what `decode` makes of the body.

    A body that does not decode is a failure as any other: it comes again, and ends among the dead letters.

    Example:
        async def handle(message: ReceivedMessage, order: Order) -> None: ...

        PushConsumer("billing", with_value(msgspec.json.Decoder(Order).decode, handle))
    """
    if inspect.iscoroutinefunction(listener):

        async def decoded(message: ReceivedMessage) -> Verdict:
            verdict: Verdict = await listener(message, decode(message.body))
            return verdict

        return decoded

    def plainly(message: ReceivedMessage) -> Any:
        return listener(message, decode(message.body))

    return plainly
