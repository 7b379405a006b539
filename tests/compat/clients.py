"""Stock clients in the words of the tests: topics and groups of their own, sends, questions."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tandemmq.chaos.asking import routed
from tandemmq.chaos.java import JavaBroker, JavaNameServer
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.java import Driver, text_of

AGAINST = os.environ.get("TANDEM_COMPAT_AGAINST", "ours")

Message = dict[str, Any]


def make_name_server(directory: Path) -> NameServer:
    """The name server under test, not started: ours, or the stock one to check the tests."""
    return NameServer(directory) if AGAINST == "ours" else JavaNameServer(AGAINST, directory)


def make_broker(directory: Path, name_servers: str, **options: Any) -> Broker:
    """The broker under test, not started."""
    if AGAINST == "ours":
        return Broker(directory, name_servers, **options)
    return JavaBroker(AGAINST, directory, name_servers, **options)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The servers that the stock clients meet."""

    name_server: str
    broker: Broker


class Clients:
    """Everything that one test does through one driver."""

    def __init__(self, driver: Driver, cluster: Cluster, number: int) -> None:
        self.driver = driver
        self.cluster = cluster
        self.number = number
        self._serial = itertools.count(1)
        self._stops: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self.driver.alive:
            for op, name in reversed(self._stops):
                self.driver.call(op, name=name)

    def fresh(self, word: str) -> str:
        """A name that no other test uses."""
        version = self.driver.version.replace(".", "")
        return f"{word}_{version}_{self.driver.serialization}_{self.number}_{next(self._serial)}"

    def topic(self, queues: int = 4, broker: Broker | None = None, perm: int = 6) -> str:
        """A new topic on the broker, known to the name server."""
        name = self.fresh("Topic")
        address = (broker or self.cluster.broker).address
        self.driver.call("pull.create_topic", topic=name, queues=queues, address=address, perm=perm)
        wait_until(lambda: routed(self.cluster.name_server, name), 10, f"route of {name}")
        return name

    @property
    def producer(self) -> str:
        """The driver's producer; all tests share it, because stopping one takes 5.x up to 3 s."""
        return self._shared("producer.start", "producer", "ProducerGroup")

    @property
    def puller(self) -> str:
        """The driver's pull consumer, which reads any topic."""
        return self._shared("pull.start", "puller", "PullGroup")

    def _shared(self, op: str, name: str, group: str) -> str:
        if name not in self.driver.shared:
            self.driver.shared.add(name)
            self.driver.call(op, name=name, group=group)
        return name

    def send(
        self, topic: str, messages: Sequence[Message | str], how: str = "sync", **more: Any
    ) -> Any:
        """Sends with the stock producer; a text stands for a message with that body."""
        listed = [{"body": m} if isinstance(m, str) else m for m in messages]
        name = self.producer
        return self.driver.call(f"send.{how}", name=name, topic=topic, messages=listed, **more)

    def push(
        self, topic: str, *, group: str | None = None, driver: Driver | None = None, **options: Any
    ) -> str:
        """Starts a push consumer and returns its name; the end of the test stops it."""
        name = self.fresh("push")
        at = driver or self.driver
        at.call("push.start", name=name, topic=topic, group=group or self.fresh("Group"), **options)
        if at is self.driver:
            self._stops.append(("push.stop", name))
        return name

    def stop(self, consumer: str) -> None:
        self._stops.remove(("push.stop", consumer))
        self.driver.call("push.stop", name=consumer)

    def lite(self, topic: str, *, group: str | None = None, **options: Any) -> str:
        name = self.fresh("lite")
        self.driver.call(
            "lite.start", name=name, topic=topic, group=group or self.fresh("Group"), **options
        )
        self._stops.append(("lite.stop", name))
        return name

    def ask(self, op: str, topic: str, queue_id: int = 0, **more: Any) -> Any:
        """One question of the stock pull consumer about a queue of the cluster's broker."""
        fields = {"broker": self.cluster.broker.broker_name, **more}
        return self.driver.call(op, name=self.puller, topic=topic, queueId=queue_id, **fields)

    def wait_stored(self, topic: str, count: int, queues: int = 4, **more: Any) -> None:
        """Waits until `count` messages are readable in the topic."""

        def stored() -> bool:
            offsets = [self.ask("pull.offsets", topic, q, **more) for q in range(queues)]
            return sum(o["max"] - o["min"] for o in offsets) >= count

        wait_until(stored, 15, f"{count} messages in {topic}", every_s=0.05)

    def stored(self, topic: str, queues: int = 4, **more: Any) -> list[Message]:
        """Every message of the topic, queue by queue."""
        return [m for q in range(queues) for m in self.ask("pull.drain", topic, q, **more)]

    def assigned(self, consumer: str, driver: Driver | None = None) -> set[int]:
        """Ids of the topic's queues that a push consumer reads now; retries are left out."""
        queues = (driver or self.driver).call("push.queues", name=consumer)
        return {q["queueId"] for q in queues if not q["topic"].startswith("%RETRY%")}


def texts(messages: Sequence[Message]) -> list[str]:
    return [text_of(m) for m in messages]


def by_queue(messages: Sequence[Message]) -> dict[int, list[str]]:
    """Bodies per queue id, in order of arrival."""
    queues: dict[int, list[str]] = defaultdict(list)
    for message in messages:
        queues[message["queueId"]].append(text_of(message))
    return dict(queues)
