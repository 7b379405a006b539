"""Our client against the stock name server and broker, and beside stock consumers in one group."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from inbox import Inbox, eventually
from javakit import VERSIONS, Driver, JavaBroker, JavaNameServer

from cluster.client import Admin
from tandemmq import (
    ConsumeResult,
    Message,
    NoRoute,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
    by_key,
)

_serial = itertools.count(1)


@dataclass(frozen=True)
class JavaCluster:
    version: str
    namesrv: str


@pytest.fixture(scope="module", params=VERSIONS)
def stock(
    java: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaCluster]:
    """Apache RocketMQ: a name server and two masters."""
    directory = tmp_path_factory.mktemp("stock")
    levels = "1s 1s " + " ".join(["1s"] * 16)
    name_server = JavaNameServer(request.param, directory / "namesrv").start()
    brokers = [
        JavaBroker(
            request.param,
            directory / name,
            name_server.address,
            name=name,
            settings={"messageDelayLevel": levels, "mappedFileSizeCommitLog": 16 << 20},
        ).start()
        for name in ("broker-a", "broker-b")
    ]
    yield JavaCluster(request.param, name_server.address)
    for server in [*brokers, name_server]:
        server.kill()


async def create(stock: JavaCluster, word: str, queue_count: int = 4) -> str:
    topic = f"{word}_{next(_serial)}"
    async with Admin(stock.namesrv) as admin:
        await admin.create_topic(topic, queue_count)
        async with asyncio.timeout(30):
            while True:
                try:
                    if len((await admin.route(topic)).addresses) == 2:
                        return topic
                except NoRoute:
                    pass  # not announced yet
                await asyncio.sleep(0.05)


def group() -> str:
    return f"G_{next(_serial)}"


async def test_every_way_of_sending_is_stored_and_consumed_once(stock: JavaCluster) -> None:
    topic = await create(stock, "Ways")
    inbox = Inbox()
    async with Producer("PG", namesrv=stock.namesrv) as producer:
        await asyncio.gather(
            *(producer.send(Message(topic, b"%d" % n, tags="A", keys=f"k{n}")) for n in range(300))
        )
        batch = await producer.send_batch([Message(topic, b"b%d" % n) for n in range(10)])
        await producer.send_oneway(Message(topic, b"oneway"))
        await producer.send(Message(topic, b"large " * 50_000))
        keyed = [
            await producer.send(Message(topic, b"keyed %d" % n), selector=by_key("order-17"))
            for n in range(3)
        ]
        consumer = PushConsumer(
            group(), inbox, namesrv=stock.namesrv, subscribe={topic: "*"}, start=StartFrom.FIRST
        )
        async with consumer:
            await inbox.count(315)
    expected = [b"%d" % n for n in range(300)] + [b"b%d" % n for n in range(10)]
    expected += [b"oneway", b"large " * 50_000] + [b"keyed %d" % n for n in range(3)]
    assert inbox.bodies == sorted(expected)
    assert len({result.queue for result in keyed}) == 1
    assert len(set(batch.message_ids)) == 10
    assert inbox.messages[0].store_host.startswith("127.0.0.1:")


async def test_failed_message_comes_again_and_tags_filter(stock: JavaCluster) -> None:
    topic = await create(stock, "Retry")
    tries: list[tuple[bytes, int, str]] = []

    def once(message: ReceivedMessage) -> ConsumeResult:
        tries.append((message.body, message.reconsume_times, message.topic))
        again = message.reconsume_times == 0
        return ConsumeResult.RECONSUME_LATER if again else ConsumeResult.SUCCESS

    async with Producer("PG", namesrv=stock.namesrv) as producer:
        await producer.send(Message(topic, b"wanted", tags="A"))
        await producer.send(Message(topic, b"other", tags="B"))
        consumer = PushConsumer(
            group(), once, namesrv=stock.namesrv, subscribe={topic: "A"}, start=StartFrom.FIRST
        )
        async with consumer:
            await eventually(lambda: len(tries) == 2, "the second try")
    assert tries == [(b"wanted", 0, topic), (b"wanted", 1, topic)]


async def test_pull_consumer_commits_and_goes_on(stock: JavaCluster) -> None:
    topic, name = await create(stock, "Pull"), group()
    async with Producer("PG", namesrv=stock.namesrv) as producer:
        await asyncio.gather(*(producer.send(Message(topic, b"%d" % n)) for n in range(100)))
    seen: list[bytes] = []
    for _ in range(2):
        consumer = PullConsumer(
            name, namesrv=stock.namesrv, subscribe={topic: "*"}, start=StartFrom.FIRST
        )
        async with consumer, asyncio.timeout(60):
            async for message in consumer:
                seen.append(message.body)
                if len(seen) % 50 == 0:
                    break
    assert sorted(seen) == sorted(b"%d" % n for n in range(100))


async def test_one_group_is_shared_with_a_java_consumer(
    stock: JavaCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    topic, name = await create(stock, "Shared"), group()
    inbox = Inbox()
    home = tmp_path_factory.mktemp("driver")
    with Driver(stock.version, "json", stock.namesrv, home) as driver:
        consumer = PushConsumer(
            name, inbox, namesrv=stock.namesrv, subscribe={topic: "*"}, start=StartFrom.FIRST
        )
        async with consumer, Producer("PG", namesrv=stock.namesrv) as producer:
            await asyncio.to_thread(driver.call, "push.start", name="c", topic=topic, group=name)

            def shares() -> tuple[int, int]:
                ours = sum(queue.topic == topic for queue in consumer.assignment)
                theirs = driver.call("push.queues", name="c")
                return ours, sum(
                    topic in str(queue) and "%RETRY%" not in str(queue) for queue in theirs
                )

            await eventually(lambda: shares() == (4, 4), "four queues each")
            await asyncio.gather(*(producer.send(Message(topic, b"%d" % n)) for n in range(80)))
            await eventually(
                lambda: len(inbox.messages) + len(driver.messages("c")) >= 80, "80 messages"
            )
            assert len(inbox.messages) >= 20
            assert len(driver.messages("c")) >= 20
