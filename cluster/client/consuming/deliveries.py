"""A push consumer that is iterated over: each message is acknowledged by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, Self

from tandemmq.cluster.client.consuming.consumer import PushConsumer
from tandemmq.cluster.client.consuming.listening import ConsumeResult, RetryLater, Verdict
from tandemmq.cluster.client.message import ReceivedMessage

STOP_TIMEOUT_MS: Final = 10_000


class Delivery:
    """A message in your hands, until ack() or nack(); what is neither comes again after a time-out or a stop."""

    __slots__ = ("_verdict", "message")

    def __init__(self, message: ReceivedMessage) -> None:
        self.message = message
        self._verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    def ack(self) -> None:
        """It is consumed. A second word on the same message changes nothing."""
        self._decide(ConsumeResult.SUCCESS)

    def nack(self, delay_level: int = 0) -> None:
        """Again later: after the broker's delay of this level, 0 for the next of its retries, -1 never."""
        self._decide(RetryLater(delay_level))

    def _decide(self, verdict: Verdict) -> None:
        if not self._verdict.done():
            self._verdict.set_result(verdict)


class Subscription:
    """The messages of a group by `async for`. Use it with `async with`.

    group            members of one group share the queues
    in_hand_max      messages that wait for ack() or nack() at once
    stop_timeout_ms  how long the end of `async with` waits for what is in hand
    options          those of PushConsumer: namesrv, subscribe, start, orderly, config ...

    Example:
        async with Subscription("billing", subscribe={"Orders": "*"}) as orders:
            async for message in orders.messages():
                await book(message.body)

        async with Subscription("billing", subscribe={"Orders": "*"}) as orders:
            async for delivery in orders:
                asyncio.create_task(book_and_ack(delivery))
    """

    def __init__(
        self,
        group: str,
        *,
        in_hand_max: int = 20,
        stop_timeout_ms: int = STOP_TIMEOUT_MS,
        **options: Any,
    ) -> None:
        if in_hand_max < 1:
            raise ValueError(f"in_hand_max must be at least 1, got {in_hand_max}")
        self._stop_timeout_s = stop_timeout_ms / 1000
        # what nobody was given when it stops is not waited for: it comes again
        self.consumer = PushConsumer(
            group, self._arrived, concurrency=in_hand_max, stop_timeout_ms=0, **options
        )
        self._waiting: asyncio.Queue[Delivery] = asyncio.Queue()
        self._in_hand: set[asyncio.Future[Verdict]] = set()

    async def _arrived(self, message: ReceivedMessage) -> Verdict:
        delivery = Delivery(message)
        self._waiting.put_nowait(delivery)
        return await delivery._verdict

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """Deliveries, for ever; leave with `break`. Raises what stopped the consumer."""
        return self._deliveries()

    async def _deliveries(self) -> AsyncIterator[Delivery]:
        while (delivery := await self._next()) is not None:
            if delivery._verdict.done():
                continue  # given up meanwhile: it comes again
            self._in_hand.add(delivery._verdict)
            delivery._verdict.add_done_callback(self._in_hand.discard)
            yield delivery

    async def messages(self) -> AsyncIterator[ReceivedMessage]:
        """Messages one by one; each is consumed when the next one is asked for.

        Leaving the loop leaves the last one unconsumed: it comes again.
        """
        async for delivery in self:
            yield delivery.message
            delivery.ack()

    async def _next(self) -> Delivery | None:
        """None after the stop. Raises what stopped the consumer."""
        if not self._waiting.empty():
            return self._waiting.get_nowait()
        arriving = asyncio.ensure_future(self._waiting.get())
        ending = asyncio.ensure_future(self.consumer.wait())
        try:
            await asyncio.wait((arriving, ending), return_when=asyncio.FIRST_COMPLETED)
            if ending.done() and not arriving.done():
                ending.result()
                return None
            return arriving.result()
        finally:
            arriving.cancel()
            ending.cancel()

    async def start(self) -> None:
        """Join the group; `async with` calls it. Raises as PushConsumer.start()."""
        await self.consumer.start()

    async def stop(self) -> None:
        """Wait for what is in hand, commit, leave the group."""
        if self._in_hand:
            await asyncio.wait(set(self._in_hand), timeout=self._stop_timeout_s)
            await asyncio.sleep(0)  # the consumer's turn to hear of the last one
        await self.consumer.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._in_hand.clear()  # the loop that would settle them is gone
        await self.stop()
