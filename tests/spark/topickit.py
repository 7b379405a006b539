"""A broker of one's own for topics as Spark tables, and short names for what tests do with it."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))

from audited_group import TOKEN, HttpBroker
from raw_wire import Wire, json_frame

from tandemmq import Admin, Message, Producer, SendResult
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import NameServer

SETTINGS = {
    "enablePropertyFilter": "true",
    "mappedFileSizeCommitLog": 256 << 10,
    "cleanResourceInterval": 200,
    "deleteCommitLogFilesInterval": 0,
    "flushConsumeQueueThoroughInterval": 500,
}
UPDATE_BROKER_CONFIG = 25
_numbers = itertools.count(1)


class Topics:
    """A name server and one broker."""

    def __init__(self, root: Path) -> None:
        self.names = NameServer(root)
        self.broker = HttpBroker(root / "broker", self.names.address, settings=SETTINGS)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for process in (self.names, self.broker):
            self._stack.enter_context(process)
            process.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def address(self) -> str:
        return self.names.address

    def topic(self, word: str, queues: int = 4) -> str:
        """A fresh topic."""
        name = f"{word}{next(_numbers)}"

        async def make() -> None:
            async with Admin(self.address) as admin:
                await admin.create_topic(name, queues)

        asyncio.run(make())
        return name

    def send(self, messages: Iterable[Message]) -> list[SendResult]:
        """All of them, stored."""

        async def all_of_them() -> list[SendResult]:
            async with Producer("kit", namesrv=self.address) as producer:
                return [result async for result in producer.send_many(messages)]

        return asyncio.run(all_of_them())

    def options(self, topic: str, **more: object) -> dict[str, str]:
        """What a read of the topic is given; `via` is pull, http, store, or what the option means."""
        found = {"namesrv": self.address, "topics": topic}
        via = more.get("via")
        if via in ("http", "store"):
            del more["via"]
            place = self.broker.url if via == "http" else str(self.broker.store)
            found |= {"via": "log", "places": json.dumps({"broker-a": place})}
        if via == "http":
            found["token"] = TOKEN
        return {**found, **{name: str(value) for name, value in more.items()}}

    def read(self, spark: Any, topic: str, **more: object) -> Any:
        return spark.read.format("tandemmq").options(**self.options(topic, **more)).load()

    def stream(self, spark: Any, topic: str, **more: object) -> Any:
        return spark.readStream.format("tandemmq").options(**self.options(topic, **more)).load()

    def expire(self) -> None:
        """Have retention take every segment of the log but the last."""
        segment = SETTINGS["mappedFileSizeCommitLog"]
        assert isinstance(segment, int)
        end: int = self.broker.json("/healthz")["end"]
        with Wire(self.broker.address) as wire:
            for ratio in (1, 85):
                setting = f"diskSpaceCleanForciblyRatio={ratio}\n".encode()
                assert wire.request(json_frame(UPDATE_BROKER_CONFIG, {}, setting)).code == 0
                if ratio == 1:
                    wait_until(
                        lambda: self.broker.json("/healthz")["start"] >= end - end % segment,
                        60,
                        "retention was there",
                    )


def orders(topic: str, count: int, start: int = 0) -> list[Message]:
    """Messages of every kind: plain, large enough to be compressed, with keys, tags and properties or without."""
    made = []
    for number in range(start, start + count):
        body = f'{{"id": {number}, "item": "grün"}}' + " " * (5_000 if number % 97 == 0 else 0)
        made.append(
            Message(
                topic,
                body.encode(),
                tags=("created", "paid", None)[number % 3],
                keys=[f"order-{number}", "any"] if number % 2 else (),
                properties={"amount": str(number), "größe": "ü"} if number % 5 else {},
            )
        )
    return made


def plain(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows as tuples in the order of queues."""
    found = [tuple(sorted(v.items()) if isinstance(v, dict) else v for v in row) for row in rows]
    return sorted(found, key=lambda row: row[:4])
