"""Java and Python members of one group: they share its queues exactly, and choose queues alike."""

from __future__ import annotations

import asyncio
import itertools
import json
import lzma
import os
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from clients import Cluster
from inbox import Inbox, eventually

from tandemmq import (
    Admin,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.java import VERSIONS, Driver, java_command, java_env, text_of

PROGRAM = Path(__file__).parent / "java" / "Allocations.java"
GOLDEN = Path(__file__).parents[1] / "golden" / "client" / "allocations.jsonl.xz"
_serial = itertools.count(1)


async def create(cluster: Cluster, queue_count: int = 8) -> str:
    """A topic on this cluster's first broker alone: other tests may have started more of them."""
    topic = f"Mixed_{os.getpid()}_{next(_serial)}"
    broker = cluster.broker
    async with Admin(cluster.name_server) as admin:
        await admin.create_topic(topic, queue_count, masters={broker.broker_name: broker.address})
        async with asyncio.timeout(30):
            while True:
                try:
                    await admin.route(topic)
                    return topic
                except Exception:
                    await asyncio.sleep(0.05)


def java_share(driver: Driver, name: str, topic: str) -> set[int]:
    held = driver.call("push.queues", name=name)
    return {each["queueId"] for each in held if each["topic"] == topic}


def our_share(consumer: PushConsumer, topic: str) -> set[int]:
    return {queue.queue_id for queue in consumer.assignment if queue.topic == topic}


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_allocations_are_those_of_the_java_classes(
    java: None, version: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        java_command(version, str(PROGRAM), tmp_path, heap_mb=128),
        capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, **java_env(tmp_path)},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines == lzma.decompress(GOLDEN.read_bytes()).decode().splitlines()
    assert all(json.loads(line) for line in lines)


async def test_two_java_and_two_python_members_leave_no_gap_and_share_no_queue(
    driver: Driver, cluster: Cluster
) -> None:
    topic, group = await create(cluster), f"MixedG_{next(_serial)}"
    javas = [f"mixed-{next(_serial)}" for _ in range(2)]
    inboxes = [Inbox(), Inbox()]
    ours = [
        PushConsumer(
            group, inbox, namesrv=cluster.name_server, subscribe={topic: "*"}, start=StartFrom.FIRST
        )
        for inbox in inboxes
    ]

    def shares() -> list[set[int]]:
        found = [java_share(driver, name, topic) for name in javas]
        return found + [our_share(consumer, topic) for consumer in ours]

    def fair() -> bool:
        now = shares()
        return [len(share) for share in now] == [2] * 4 and set().union(*now) == set(range(8))

    async with ours[0], ours[1], Producer("PG", namesrv=cluster.name_server) as producer:
        for number, name in enumerate(javas):
            options: dict[str, Any] = {
                "topic": topic,
                "group": group,
                "instance": f"{name}-{number}",
            }
            await asyncio.to_thread(driver.call, "push.start", name=name, **options)
        try:
            await eventually(fair, "two queues for each of four members")
            for queue_id in range(8):
                for number in range(5):
                    where = MessageQueue(topic, cluster.broker.broker_name, queue_id)
                    await producer.send(Message(topic, b"%d-%d" % (queue_id, number)), queue=where)

            def seen() -> Counter[str]:
                java = [text_of(each) for name in javas for each in driver.messages(name)]
                python = [each.body.decode() for inbox in inboxes for each in inbox.messages]
                return Counter(java + python)

            await eventually(lambda: len(seen()) == 40, "all messages")
            assert set(seen().values()) == {1}
            assert all(len(inbox.messages) == 10 for inbox in inboxes)
        finally:
            for name in javas:
                await asyncio.to_thread(driver.call, "push.stop", name=name)
        await eventually(lambda: {4} == {len(our_share(each, topic)) for each in ours}, "four each")


async def test_ordered_members_of_both_kinds_keep_order_over_a_change(
    driver: Driver, cluster: Cluster
) -> None:
    topic, group = await create(cluster, 4), f"MixedO_{next(_serial)}"
    name = f"mixed-{next(_serial)}"
    seen: list[tuple[float, int, bytes]] = []

    async def handle(message: ReceivedMessage) -> ConsumeResult:
        seen.append((time.time() * 1000, message.queue.queue_id, message.body))
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(
        group, handle, namesrv=cluster.name_server, subscribe={topic: "*"}, orderly=True,
        start=StartFrom.FIRST,
    )  # fmt: skip
    async with Producer("PG", namesrv=cluster.name_server) as producer:
        async with consumer:
            await eventually(lambda: len(our_share(consumer, topic)) == 4, "all four")
            number = 0

            async def send(rounds: int) -> None:
                nonlocal number
                for _ in range(rounds):
                    for queue_id in range(4):
                        where = MessageQueue(topic, cluster.broker.broker_name, queue_id)
                        await producer.send(Message(topic, b"%04d" % number), queue=where)
                    number += 1

            await send(20)
            await asyncio.to_thread(
                driver.call, "push.start", name=name, topic=topic, group=group, orderly=True
            )
            await eventually(
                lambda: (
                    len(java_share(driver, name, topic)) == len(our_share(consumer, topic)) == 2
                ),
                "two each",
            )
            await send(20)

            def different() -> int:
                """A queue that changes hands may bring some of its messages twice."""
                java = {(each["queueId"], text_of(each)) for each in driver.messages(name)}
                return len(java | {(queue, body.decode()) for _, queue, body in seen})

            await eventually(lambda: different() == 160, "all messages")
        await asyncio.to_thread(driver.call, "push.stop", name=name)
    theirs = [
        (each["atMs"], each["queueId"], text_of(each).encode()) for each in driver.messages(name)
    ]
    for queue_id in range(4):
        bodies = [body for _, queue, body in sorted([*seen, *theirs]) if queue == queue_id]
        assert list(dict.fromkeys(bodies)) == [b"%04d" % n for n in range(40)]
