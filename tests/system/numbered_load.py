"""Producers that send numbered messages until they are told to stop, and know which were acknowledged."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from inbox import Inbox

from tandemmq import ClientError, Message, Producer, PushConsumer, SendStatus, StartFrom
from tandemmq.chaos.processes import wait_until

LANES: Final = 4


class Load:
    """Lanes that send one numbered message after the other, and a group that consumes them."""

    def __init__(self, name_server: str, topic: str, groups: Sequence[str], group: str) -> None:
        """groups: broker names that messages must reach; group: who consumes"""
        self.name_server, self.topic, self.groups, self.group = name_server, topic, groups, group
        self.acknowledged: set[bytes] = set()
        self.by_group: Counter[str] = Counter()
        self.inbox = Inbox()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load")

    async def _run(self) -> None:
        reader = PushConsumer(
            self.group, self.inbox, namesrv=self.name_server, subscribe={self.topic: "*"},
            start=StartFrom.FIRST,
        )  # fmt: skip
        async with Producer("load", namesrv=self.name_server) as producer:
            await producer.send(Message(self.topic, b"first"))
            async with reader:
                await asyncio.gather(*(self._lane(producer, lane) for lane in range(LANES)))

    async def _lane(self, producer: Producer, lane: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            body = b"%d-%d " % (lane, number) + b"." * (number * 97 % 700)
            try:
                sent = await producer.send(Message(self.topic, body, keys=[f"k{number}"]))
                if sent.status is SendStatus.SEND_OK:  # others promise nothing
                    self.acknowledged.add(body)
                    self.by_group[sent.queue.broker_name] += 1
            except ClientError:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.005)

    def more(self, count: int = 60) -> None:
        """Returns when each group acknowledged so many more."""
        goals = {group: self.by_group[group] + count for group in self.groups}
        wait_until(
            lambda: all(self.by_group[group] >= goal for group, goal in goals.items()), 40,
            "messages flow",
        )  # fmt: skip

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            self.more()
            yield
        finally:
            self._stop.set()
            self._thread.join()
