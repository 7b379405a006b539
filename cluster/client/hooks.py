"""What applications can hang into sending and consuming: tracing, metrics, auditing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tandemmq.cluster.client.message import Message, MessageQueue, ReceivedMessage, SendResult

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SendContext:
    """One attempt to send. `note` is the hook's own: what it wants back in after_send.

    messages   one, or those of a batch; with the unique ids they travel with
    result, problem  after the attempt, one of them; both None after a oneway send
    began_ms   wall time; cost_ms  how long the attempt took
    """

    group: str
    messages: Sequence[Message]
    unique_ids: Sequence[str]
    queue: MessageQueue
    address: str
    began_ms: int
    cost_ms: int = 0
    result: SendResult | None = None
    problem: BaseException | None = None
    note: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ConsumeContext:
    """One call of a listener. `note` is the hook's own.

    handled  after the call: False when the messages come again; problem: what the listener raised
    """

    group: str
    messages: Sequence[ReceivedMessage]
    began_ms: int
    cost_ms: int = 0
    handled: bool = False
    problem: BaseException | None = None
    note: dict[str, Any] = field(default_factory=dict)


class SendHook(Protocol):
    """Called around every attempt of a send. What it raises is logged and changes nothing.

    Example:
        class Spans:
            def before_send(self, context: SendContext) -> None:
                context.note["span"] = tracer.start_span("send " + context.queue.topic)

            def after_send(self, context: SendContext) -> None:
                context.note["span"].end()

        Producer("shop", hooks=[Spans()])
    """

    def before_send(self, context: SendContext) -> None:
        """The attempt begins."""

    def after_send(self, context: SendContext) -> None:
        """It ended, either way."""


class ConsumeHook(Protocol):
    """Called around every call of a listener. What it raises is logged and changes nothing.

    Example:
        class Slow:
            def before_consume(self, context: ConsumeContext) -> None: ...

            def after_consume(self, context: ConsumeContext) -> None:
                if context.cost_ms > 1_000:
                    log.warning("slow message_id=%s", context.messages[0].message_id)

        PushConsumer("billing", handle, hooks=[Slow()])
    """

    def before_consume(self, context: ConsumeContext) -> None:
        """The listener is about to be called."""

    def after_consume(self, context: ConsumeContext) -> None:
        """It returned or raised."""


_Context = TypeVar("_Context")


def call_hooks(hooks: Sequence[Callable[[_Context], None]], context: _Context) -> None:
    """Call each; a hook must never cost a message."""
    for hook in hooks:
        try:
            hook(context)
        except Exception:
            log.warning("hook failed hook=%r", hook, exc_info=True)
