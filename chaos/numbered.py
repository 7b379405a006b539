"""What consumers are watched with: numbered messages for ever, and the positions of their group as brokers tell."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, Final

from tandemmq.chaos.repeats import Positions
from tandemmq.cluster.client import ClientError, Message, MessageQueue, Producer, PullConsumer
from tandemmq.cluster.client.admin.admin import Admin

SENDING_S: Final = 0.05
ROUTED_S: Final = 30.0


class Numbered:
    """Messages whose body and key is their number.

    sent        keys of those that were acknowledged
    unanswered  how many were asked for and not acknowledged; each may be stored or not
    """

    def __init__(self, name_server: str, topic: str, rate: float) -> None:
        self.sent: list[str] = []
        self.unanswered = 0
        self._name_server = name_server
        self._topic = topic
        self._batch = max(1, int(rate * SENDING_S))
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """As many as asked for until enough(). Raises what is no ClientError."""
        number = 0
        try:
            async with Producer("Numbered", namesrv=self._name_server) as producer:
                while not self._stopping.is_set():
                    keys = [str(number + place) for place in range(self._batch)]
                    number += self._batch
                    await self._send(producer, keys)
                    await asyncio.sleep(SENDING_S)
        finally:
            self._stopped.set()

    async def _send(self, producer: Producer, keys: Sequence[str]) -> None:
        self.unanswered += len(keys)
        results = await asyncio.gather(
            *(producer.send(Message(self._topic, key.encode(), keys=key)) for key in keys),
            return_exceptions=True,
        )
        for key, result in zip(keys, results, strict=True):
            if isinstance(result, ClientError):
                continue  # perhaps stored, perhaps not
            if isinstance(result, BaseException):
                raise result
            if result.ok:
                self.sent.append(key)
                self.unanswered -= 1

    async def enough(self) -> None:
        """No more; what is being sent is sent, or nobody knows whether it counts."""
        self._stopping.set()
        await self._stopped.wait()


async def make_topic(
    name_server: str, topic: str, queues: int, brokers: int
) -> Sequence[MessageQueue]:
    """The queues of a new topic, so many of each broker, once all announce it. Raises ClientError, TimeoutError."""
    async with Admin(name_server) as admin, asyncio.timeout(ROUTED_S):
        await admin.create_topic(topic, queues)
        while True:
            with contextlib.suppress(ClientError):
                found = (await admin.route(topic)).read_queues(topic)
                if len(found) == queues * brokers:
                    return found
            await asyncio.sleep(0.1)


async def sample(
    name_server: str,
    group: str,
    queues: Sequence[MessageQueue],
    positions: Positions,
    every_s: float,
) -> None:
    """What brokers say of a group, for ever; one that is away, or does not know it yet, says nothing."""
    async with PullConsumer(group, namesrv=name_server, auto_commit=False) as reader:
        while True:
            for queue in queues:
                with contextlib.suppress(ClientError):
                    committed = await reader.committed(queue)
                    if committed is not None:
                        positions.add(queue, time.time() * 1000, committed)
            await asyncio.sleep(every_s)


@contextlib.asynccontextmanager
async def beside(problems: list[str], *jobs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """They run while the body does. What ended one of them is a problem."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        problems += [f"BROKEN: {each!r}" for each in ended if isinstance(each, Exception)]
