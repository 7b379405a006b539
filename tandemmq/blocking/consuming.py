"""Messages as an iterator, for code without asyncio."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Final

from tandemmq.blocking.portal import PORTAL
from tandemmq.cluster.client import PullConsumer, ReceivedMessage, Sql92

WAIT_MS: Final = 60_000  # of one call, where nobody set a time


def consume(
    group: str,
    subscribe: str | Mapping[str, str | Sql92],
    *,
    count: int | None = None,
    idle_s: float | None = None,
    **options: Any,
) -> Generator[ReceivedMessage, None, None]:
    """The messages of a group, one by one: each is consumed when the next one is asked for.

    group      members of one group share the queues; its position is committed
    subscribe  a topic; or topic -> tag expression ("*", "TagA || TagB") or Sql92(...)
    count      end after so many; None: no limit
    idle_s     end when nothing came for so long; None: wait for ever
    options    those of tandemmq.PullConsumer: namesrv, start, config ...

    Leaving the loop leaves the last message unconsumed: it comes again. So does an exception in its body. Where the
    loop is left, say `messages.close()`, or the group is left when Python clears up.
    Raises NoNameServer, NoRoute and other ClientErrors; ValueError for a count or time below 0.

    Example:
        from tandemmq import StartFrom
        from tandemmq.blocking import consume

        for message in consume("report", "Orders", start=StartFrom.FIRST, idle_s=2):
            print(message.tags, message.body)
    """
    if count is not None and count < 0:
        raise ValueError(f"count must be at least 0, got {count}")
    if idle_s is not None and idle_s <= 0:
        raise ValueError(f"idle_s must be above 0, got {idle_s}")
    topics = {subscribe: "*"} if isinstance(subscribe, str) else subscribe
    consumer = PORTAL.call(_joined(group, topics, options))
    return _messages(consumer, count, idle_s)


async def _joined(
    group: str, topics: Mapping[str, str | Sql92], options: dict[str, Any]
) -> PullConsumer:
    consumer = PullConsumer(group, subscribe=topics, **options)
    await consumer.start()
    return consumer


def _messages(
    consumer: PullConsumer, count: int | None, idle_s: float | None
) -> Generator[ReceivedMessage, None, None]:
    left = count
    finished = False
    try:
        while left is None or left > 0:
            message = PORTAL.call(_next(consumer, idle_s))
            if message is None:
                break
            yield message
            if left is not None:
                left -= 1
        finished = True
    finally:
        PORTAL.call(consumer.stop(consumed=finished))


async def _next(consumer: PullConsumer, idle_s: float | None) -> ReceivedMessage | None:
    """poll() and no time-out around it: cancelled, one message might be taken and never handed out."""
    while True:
        found = await consumer.poll(1, WAIT_MS if idle_s is None else round(idle_s * 1000))
        if found:
            return found[0]
        if idle_s is not None:
            return None
