"""Broker groups of a master and its slaves, ours and stock ones, and what their stores share."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tandemmq import Message, Producer
from tandemmq.chaos.asking import ask, routed
from tandemmq.chaos.java import JavaBroker
from tandemmq.chaos.ports import LOOPBACK
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker
from tandemmq.cluster.client import Admin
from tandemmq.cluster.remoting import Command, RequestCode, open_channel
from tandemmq.replication.audit.stores import ReplicaStore, open_replica
from tandemmq.replication.audit.windows import end_of_run
from tandemmq.storage import fastjson

OURS: Final = "ours"
CLUSTER: Final = "TestCluster"
RUNTIME_TABLE: Final = 28
SEND_BACK: Final = 36
ALL_TOPICS, ALL_PROGRESS, ALL_DELAYS, ALL_GROUPS = 21, 43, 45, 201
FILES: Final = {
    "topics": "topics.json",
    "progress": "consumerOffset.json",
    "delays": "delayOffset.json",
    "groups": "subscriptionGroup.json",
}
SETTLED_S: Final = 60

# Files that roll a dozen times under 100,000 messages; delays short, but for two that never end here.
GROUP_SETTINGS: Final[Mapping[str, object]] = {
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 40_000,
    "maxHashSlotNum": 20_000,
    "maxIndexNum": 80_000,
    "messageDelayLevel": "1s 1s 2s " + "1h " * 15,
    "brokerIP2": LOOPBACK,
    "slaveReadEnable": "true",
}


def make_member(
    kind: str, directory: Path, name_servers: str, name: str, broker_id: int,
    **settings: object,
) -> Broker:  # fmt: skip
    """One broker of a group, not started. kind: OURS, or a release of RocketMQ."""
    role = {"brokerRole": "SLAVE" if broker_id else "ASYNC_MASTER", "brokerId": broker_id}
    merged = {**GROUP_SETTINGS, **role, **settings}
    place = directory / f"{name}-{broker_id}"
    if kind == OURS:
        return Broker(place, name_servers, name=name, cluster=CLUSTER, settings=merged)
    return JavaBroker(kind, place, name_servers, name=name, cluster=CLUSTER, settings=merged)


def make_controlled(
    kind: str, directory: Path, name_servers: str, name: str, number: int, controller: str,
    **more: object,
) -> Broker:  # fmt: skip
    """One replica of a group that a controller watches over, not started."""
    place = directory / f"{name}-{number}"
    settings = {
        **GROUP_SETTINGS,
        "brokerId": -1,
        "brokerRole": "SYNC_MASTER" if kind == OURS else "ASYNC_MASTER",
        "enableControllerMode": "true",
        "controllerAddr": controller,
        "allAckInSyncStateSet": "true",
        "storePathEpochFile": place / "store" / "epochFileCheckpoint",
        **more,
    }
    if kind == OURS:
        return Broker(place, name_servers, name=name, cluster=CLUSTER, settings=settings)
    return JavaBroker(kind, place, name_servers, name=name, cluster=CLUSTER, settings=settings)


def log_end(broker: Broker) -> int:
    """The end of a running broker's log: on a slave, what it received."""
    table = runtime(broker)
    return int(table["commitLogMaxOffset"])


def runtime(broker: Broker) -> dict[str, str]:
    """GET_BROKER_RUNTIME_INFO. A stock broker fails in its first second, when it has measured nothing yet."""
    for _ in range(100):
        code, answer, body = ask(broker.address, RUNTIME_TABLE)
        if "NoSuchElementException" not in str(answer):
            break
        time.sleep(0.1)
    assert code == 0, answer
    table: dict[str, str] = json.loads(body)["table"]
    return table


def wait_equal(master: Broker, slave: Broker, timeout_s: float = SETTLED_S) -> int:
    """Waits until the slave holds the master's whole log, which nobody appends to; its end."""
    end = log_end(master)
    wait_until(
        lambda: log_end(slave) == end, timeout_s, f"slave at {end}, it is at {log_end(slave)}",
        every_s=0.1,
    )  # fmt: skip
    return end


# -- logs


@dataclass(frozen=True)
class Compared:
    """What two logs share: [start, end) holds `records` records and the same bytes."""

    start: int
    end: int
    records: int


def compare_logs(first: Path, second: Path, end: int) -> Compared:
    """Asserts that two stores hold the same bytes from the later start to `end`, all of it records."""
    replicas = [open_replica(store, str(store)) for store in (first, second)]
    try:
        start = max(replica.start for replica in replicas)
        for offset, size in _pieces(replicas[0], start, end):
            one, two = (_bytes(replica, offset, size) for replica in replicas)
            assert one == two, f"{first} and {second} differ at {offset + _difference(one, two)}"
        return Compared(start, end, _records(replicas[1], start, end))
    finally:
        for replica in replicas:
            replica.close()


def _pieces(replica: ReplicaStore, start: int, end: int) -> Iterator[tuple[int, int]]:
    while start < end:
        limit = min(end, start - start % replica.segment_bytes + replica.segment_bytes)
        yield start, limit - start
        start = limit


def _bytes(replica: ReplicaStore, offset: int, size: int) -> bytes:
    buffer = bytearray(size)
    segment = offset - offset % replica.segment_bytes
    assert replica.log.read_into(segment, offset, memoryview(buffer)) == size, offset
    return bytes(buffer)


def _difference(one: bytes, two: bytes) -> int:
    return next(at for at, (a, b) in enumerate(zip(one, two, strict=True)) if a != b)


def _records(replica: ReplicaStore, start: int, end: int) -> int:
    """How many records [start, end) holds; asserts that it holds nothing else."""
    count = 0
    for offset, size in _pieces(replica, start, end):
        reached, _ = end_of_run(replica, offset)
        assert reached >= offset + size, f"no record at {reached} of {replica.name}, end {end}"
        count += sum(1 for _ in _sizes(_bytes(replica, offset, size)))
    return count


def _sizes(piece: bytes) -> Iterator[int]:
    at = 0
    while at < len(piece):
        size = int.from_bytes(piece[at : at + 4], "big")
        magic = piece[at + 4 : at + 8]
        if magic == b"\xcb\xd4\x31\x94":  # what fills a file that the next record did not fit into
            return
        yield size
        at += size


# -- tables


def tables(broker: Broker) -> dict[str, Any]:
    """What a broker answers to the requests by which slaves copy its tables.

    Stock slaves write what they copied to files, and 4.9.7 answers without having read them again.
    """
    if isinstance(broker, JavaBroker) and broker.broker_id:
        config = broker.store / "config"
        return {name: _saved(config / file) for name, file in FILES.items()}
    found = {}
    for name, code in (
        ("topics", ALL_TOPICS),
        ("progress", ALL_PROGRESS),
        ("delays", ALL_DELAYS),
        ("groups", ALL_GROUPS),
    ):
        status, answer, body = ask(broker.address, code, timeout_s=10)
        assert status == 0, (broker.name, code, answer)
        found[name] = fastjson.loads(body)
    return found


def _saved(path: Path) -> Any:
    """A table's file; {} while there is none, or one that is being written: that is not atomic."""
    try:
        return fastjson.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}


def comparable(found: Mapping[str, Any], topics: Iterable[str], groups: Iterable[str]) -> Any:
    """The parts of tables() that a test made, in a form that both releases share."""
    configs = found["topics"].get("topicConfigTable", {})
    settings = found["groups"].get("subscriptionGroupTable", {})
    progress = found["progress"].get("offsetTable", {})
    delays = found["delays"].get("offsetTable", {})
    kept = ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag", "order", "topicFilterType")
    group_keys = (
        "groupName", "consumeEnable", "retryQueueNums", "retryMaxTimes", "brokerId",
        "whichBrokerWhenConsumeSlowly", "consumeBroadcastEnable", "consumeFromMinEnable",
    )  # fmt: skip
    return {
        "topics": {
            name: {key: configs[name][key] for key in kept} if name in configs else None
            for name in topics
        },
        "groups": {
            name: {key: settings[name][key] for key in group_keys} if name in settings else None
            for name in groups
        },
        "progress": {
            key: {int(queue): int(at) for queue, at in queues.items()}
            for key, queues in progress.items()
            if key.rpartition("@")[2] in groups
        },
        "delays": {int(level): int(at) for level, at in delays.items()},
    }


# -- messages


@dataclass
class Filling:
    """Sends `count` mixed messages to a group's topics; `sent` says how far it came."""

    name_server: str
    topics: list[str]
    count: int
    seed: int
    delayed: bool = True
    sent: int = 0
    at: dict[int, Callable[[], None]] = field(default_factory=dict)  # called once `sent` is there

    BATCH: Final = 40
    TURN: Final = 500

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        rng = random.Random(self.seed)
        marks = sorted(self.at.items())
        async with Producer("FillGroup", namesrv=self.name_server, timeout_ms=20_000) as producer:
            while self.sent < self.count:
                await asyncio.gather(*self._turn(producer, rng))
                while marks and self.sent >= marks[0][0]:
                    await asyncio.to_thread(marks.pop(0)[1])

    def _turn(self, producer: Producer, rng: random.Random) -> Iterator[Any]:
        left = min(self.TURN, self.count - self.sent)
        self.sent += left
        while left > 0:
            topic = rng.choice(self.topics)
            if rng.random() < 0.03 and left >= self.BATCH and not topic.startswith("%RETRY%"):
                left -= self.BATCH
                yield producer.send_batch(
                    [self._message(rng, topic, batched=True) for _ in range(self.BATCH)]
                )
            else:
                left -= 1
                yield producer.send(self._message(rng, topic))

    def _message(self, rng: random.Random, topic: str, *, batched: bool = False) -> Message:
        luck = rng.random()
        size = rng.randrange(1, 300)
        if not batched and luck < 0.01:
            size = rng.randrange(10_000, 60_000)
        elif not batched and luck < 0.0101:
            size = rng.randrange(500_000, 1_000_000)
        level = 0
        if self.delayed and not batched and not topic.startswith("%RETRY%") and luck > 0.995:
            level = rng.choice((1, 2, 3, 5))
        return Message(
            topic,
            rng.randbytes(size),
            tags=rng.choice((None, "A", "B", "T-" + "x" * rng.randrange(60))),
            keys=[f"k{rng.randrange(1000)}" for _ in range(rng.randrange(3))],
            properties={f"p{n}": "värde" * rng.randrange(1, 8) for n in range(rng.randrange(3))},
            flag=rng.randrange(-100, 100),
            delay_level=level,
        )


def make_topics(name_server: str, master: Broker, topics: Mapping[str, int]) -> None:
    """Creates topics with so many queues on one master; returns when the routes are known."""

    async def create() -> None:
        async with Admin(name_server) as admin:
            for name, queues in topics.items():
                at = {master.broker_name: master.address}
                await admin.create_topic(name, queues, masters=at)

    asyncio.run(create())
    for name in topics:
        wait_until(lambda name=name: routed(name_server, name), 15, f"route of {name}")


def send_back_to_long_topic(master: Broker, group: str, count: int) -> None:
    """Has a stock 5.x broker write records of version 2: their topic has more than 127 bytes.

    No client may send to such a topic; messages that a group with a long name sends back get there.
    Each message at the log's beginning goes back once; they arrive after the delay of level 3.
    """

    async def beat() -> None:
        consumer = {
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [],
        }  # fmt: skip
        body = {"clientID": "long@1", "consumerDataSet": [consumer], "producerDataSet": []}
        host, _, port = master.address.rpartition(":")
        channel = await open_channel(host, int(port), timeout_ms=3_000)
        try:
            command = Command(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
            answer = await channel.request(command, 5_000)
            assert answer.code == 0, answer.remark
            for _ in range(count):
                back = {"offset": "0", "group": group, "delayLevel": "0", "unitMode": "false"}
                answer = await channel.request(Command(SEND_BACK, back), 5_000)
                assert answer.code == 0, answer.remark
        finally:
            channel.close()

    asyncio.run(beat())
