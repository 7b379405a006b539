"""A producer for code without asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, Self, overload

from tandemmq.blocking.portal import PORTAL
from tandemmq.cluster.client import Message, Reply, SendResult
from tandemmq.cluster.client import Producer as AsyncProducer

PART: Final = 1_000  # messages that send_many has in this process's memory at once


class Producer:
    """Sends messages and returns when they are stored. Safe for many threads.

    group    producer group: the name under which brokers list who sends
    options  those of tandemmq.Producer: namesrv, timeout_ms, retries, config ...

    It starts with the first send; close() it, or use it with `with`.

    Example:
        from tandemmq.blocking import Producer

        with Producer("shop", namesrv="127.0.0.1:9876") as producer:
            producer.send("Orders", b"17", tags="created")
    """

    def __init__(self, group: str, **options: Any) -> None:
        self._options = {"group": group, **options}
        self._running = False
        self._changing = asyncio.Lock()  # of the portal's loop: many threads may send first at once
        self._made = PORTAL.call(self._make())  # a wrong option is told here, not at the first send

    async def _make(self) -> AsyncProducer:
        return AsyncProducer(**self._options)

    @overload
    def send(self, topic: Message, /, **how: Any) -> SendResult: ...

    @overload
    def send(self, topic: str, body: bytes, /, **fields: Any) -> SendResult: ...

    def send(self, topic: Message | str, body: bytes = b"", /, **more: Any) -> SendResult:
        """Store one message; where it is.

        more  with a Message: arguments of tandemmq.Producer.send (queue, ordering_key, timeout_ms ...); with topic and
              body: those of Message (tags, keys, properties, delay_s ...)
        Raises what awaiting tandemmq.Producer.send does.

        Example: producer.send("Orders", b"17", keys="order-17")
        """
        if isinstance(topic, str):
            return PORTAL.call(self._send(Message(topic, body, **more), {}))
        return PORTAL.call(self._send(topic, more))

    async def _send(self, message: Message, how: dict[str, Any]) -> SendResult:
        return await (await self._started()).send(message, **how)

    def send_many(self, messages: Iterable[Message]) -> list[SendResult]:
        """Store messages, many under way at once; their results in order. Raises what the first failed one does.

        Example: producer.send_many(Message("Clicks", line.encode()) for line in open("clicks.txt"))
        """
        results: list[SendResult] = []
        source: Iterator[Message] = iter(messages)
        while part := list(islice(source, PART)):  # the iterable runs in the caller's thread
            results += PORTAL.call(self._send_part(part))
        return results

    async def _send_part(self, part: list[Message]) -> list[SendResult]:
        producer = await self._started()
        return [result async for result in producer.send_many(part)]

    def request(self, message: Message, *, timeout_ms: int | None = None) -> Reply:
        """Send a message and wait for a consumer's reply to it. Raises as tandemmq.Producer.request.

        Example: print(producer.request(Message("Prices", b"17")).body)
        """
        return PORTAL.call(self._request(message, timeout_ms))

    async def _request(self, message: Message, timeout_ms: int | None) -> Reply:
        return await (await self._started()).request(message, timeout_ms=timeout_ms)

    async def _started(self) -> AsyncProducer:
        if not self._running:
            async with self._changing:
                await self._made.start()
                self._running = True
        return self._made

    def close(self) -> None:
        """Wait for sends under way and leave the group. It may be used again: the next send starts it anew."""
        PORTAL.call(self._close())

    async def _close(self) -> None:
        async with self._changing:
            self._running = False
            await self._made.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
