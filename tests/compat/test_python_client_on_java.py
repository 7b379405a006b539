"""Our Python client does with stock brokers and name servers what it does with ours."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from inbox import Inbox, eventually
from javakit import (
    VERSIONS,
    Driver,
    JavaBroker,
    JavaNameServer,
    body_of,
    encoded,
    sha_of,
    text_of,
)

from tandemmq import (
    ConsumeResult,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
    StartFrom,
    by_key,
)

DELAY_LEVELS = "1s 1s " + " ".join(["1s"] * 16)
_serial = itertools.count(1)


@dataclass(frozen=True)
class Stock:
    namesrv: str
    broker: JavaBroker


@pytest.fixture(scope="module", params=VERSIONS)
def stock(
    request: pytest.FixtureRequest, java: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stock]:
    directory: Path = tmp_path_factory.mktemp(f"stock-{request.param}")
    with JavaNameServer(request.param, directory) as name_server:
        name_server.start()
        settings = {"messageDelayLevel": DELAY_LEVELS}
        with JavaBroker(request.param, directory, name_server.address, settings=settings) as broker:
            yield Stock(name_server.address, broker.start())


@pytest.fixture
def topic(stock: Stock, newest_driver: Driver) -> str:
    """A new topic of four queues."""
    name = f"Python{stock.broker.version[0]}_{next(_serial)}"
    newest_driver.mqadmin(
        "updateTopic", "-b", stock.broker.address, "-t", name, "-r", "4", "-w", "4",
        "-n", stock.namesrv,
    )  # fmt: skip
    return name


def pushing(
    stock: Stock, group: str, listener: object, topic: str, tags: str = "*"
) -> PushConsumer:
    return PushConsumer(
        group,
        listener,  # type: ignore[arg-type]
        namesrv=stock.namesrv,
        subscribe={topic: tags},
        start=StartFrom.FIRST,
    )


async def test_every_way_of_sending_reaches_our_push_consumer(stock: Stock, topic: str) -> None:
    inbox = Inbox()
    large = b"deflate me " * 10_000
    async with Producer("PythonProducers", namesrv=stock.namesrv) as producer:
        first = await producer.send(
            Message(
                topic, b"first", tags="A", keys=["k1", "k2"], properties={"own": "värde"}, flag=-7
            )
        )
        answers = await asyncio.gather(
            *(producer.send(Message(topic, b"%d" % n)) for n in range(100))
        )
        await producer.send_batch([Message(topic, b"batch %d" % n) for n in range(10)])
        await producer.send_oneway(Message(topic, b"oneway"))
        await producer.send(Message(topic, large))
        assert {answer.status for answer in (first, *answers)} == {SendStatus.SEND_OK}
        async with pushing(stock, f"G_{topic}", inbox, topic):
            await inbox.count(113)
    expected = [b"first", b"oneway", large] + [b"%d" % n for n in range(100)]
    assert inbox.bodies == sorted(expected + [b"batch %d" % n for n in range(10)])
    got = next(message for message in inbox.messages if message.body == b"first")
    assert (got.tags, got.keys, got.flag) == ("A", ("k1", "k2"), -7)
    assert got.properties["own"] == "värde"
    assert got.message_id == first.message_id


async def test_messages_of_one_key_stay_in_order(stock: Stock, topic: str) -> None:
    async with Producer("PythonProducers", namesrv=stock.namesrv) as producer:
        for n in range(30):
            await producer.send(Message(topic, b"%02d" % n), selector=by_key("order-17"))
    seen = []
    async with PullConsumer(
        f"G_{topic}", namesrv=stock.namesrv, subscribe={topic: "*"}, start=StartFrom.FIRST
    ) as pulling:
        async for message in pulling:
            seen.append(message)
            if len(seen) == 30:
                break
    assert [message.body for message in seen] == [b"%02d" % n for n in range(30)]
    assert len({message.queue for message in seen}) == 1


async def test_tags_select_and_failures_come_again(stock: Stock, topic: str) -> None:
    tries: list[tuple[bytes, int]] = []

    async def listen(message: ReceivedMessage) -> ConsumeResult:
        tries.append((message.body, message.reconsume_times))
        return ConsumeResult.SUCCESS if message.reconsume_times else ConsumeResult.RECONSUME_LATER

    async with Producer("PythonProducers", namesrv=stock.namesrv) as producer:
        for tag in ("A", "B", "C"):
            await producer.send(Message(topic, tag.encode(), tags=tag))
        async with pushing(stock, f"G_{topic}", listen, topic, "A || B"):
            await eventually(lambda: len(tries) >= 4, "two messages, twice each")
    assert Counter(tries) == {(b"A", 0): 1, (b"A", 1): 1, (b"B", 0): 1, (b"B", 1): 1}


async def test_members_share_queues_with_each_other(stock: Stock, topic: str) -> None:
    one_inbox, two_inbox = Inbox(), Inbox()
    group = f"G_{topic}"
    async with (
        Producer("PythonProducers", namesrv=stock.namesrv) as producer,
        pushing(stock, group, one_inbox, topic) as one,
    ):
        async with pushing(stock, group, two_inbox, topic) as two:

            def shares() -> list[int]:
                return [sum(q.topic == topic for q in c.assignment) for c in (one, two)]

            await eventually(lambda: shares() == [2, 2], "two queues each")
            await asyncio.gather(*(producer.send(Message(topic, b"%d" % n)) for n in range(40)))
            await eventually(
                lambda: len(one_inbox.messages) + len(two_inbox.messages) >= 40, "all messages"
            )
        await eventually(
            lambda: sum(q.topic == topic for q in one.assignment) == 4, "all queues again"
        )
    assert set(one_inbox.bodies + two_inbox.bodies) == {b"%d" % n for n in range(40)}


async def test_the_pull_consumer_seeks_commits_and_finds_times(stock: Stock, topic: str) -> None:
    async with Producer("PythonProducers", namesrv=stock.namesrv) as producer:
        for n in range(20):
            await producer.send(Message(topic, b"%02d" % n), selector=by_key("one"))
    group = f"G_{topic}"
    async with PullConsumer(group, namesrv=stock.namesrv, start=StartFrom.FIRST) as pulling:
        await pulling.assign(await pulling.queues(topic))
        got: list[ReceivedMessage] = []
        while len(got) < 20:
            got += await pulling.poll()
        queue = got[0].queue
        assert (await pulling.min_offset(queue), await pulling.max_offset(queue)) == (0, 20)
        await pulling.seek(queue, 17)
        assert [message.body for message in await pulling.poll()] == [b"17", b"18", b"19"]
        assert await pulling.offset_for_time(queue, 0) == 0
        await pulling.poll(timeout_ms=100)  # asking on consumes what was handed out
        await pulling.commit()
        assert await pulling.committed(queue) == 20


async def test_stock_and_our_clients_read_each_other(
    stock: Stock, topic: str, newest_driver: Driver
) -> None:
    at = {"namesrv": stock.namesrv, "topic": topic, "name": topic}
    rng = random.Random(1)
    bodies = [rng.randbytes(size) for size in (10, 3000)] + [b"zip " * 5000]
    newest_driver.call("producer.start", group="PG", **at)
    newest_driver.call("send.sync", messages=[encoded(b) for b in bodies], **at)
    newest_driver.call("send.batch", messages=[{"body": "b1"}, {"body": "b2"}], **at)
    inbox = Inbox()
    async with pushing(stock, f"G_{topic}", inbox, topic):
        await inbox.count(5)
    assert inbox.bodies == sorted([*bodies, b"b1", b"b2"])

    async with Producer("PythonProducers", namesrv=stock.namesrv) as producer:
        sent = await producer.send(Message(topic, b"zip " * 5000, keys="python", tags="P"))
        batch = await producer.send_batch([Message(topic, b"x%d" % n) for n in range(3)])
    newest_driver.call("push.start", group=f"J_{topic}", expression="*", **at)
    got = await asyncio.to_thread(newest_driver.wait_messages, topic, 9)
    newest_driver.call("push.stop", **at)
    newest_driver.call("producer.stop", **at)
    ours = [message for message in got if message["tags"] == "P"]
    assert [(m["sha"], m["keys"], m["msgId"]) for m in ours] == [
        (sha_of(b"zip " * 5000), "python", sent.message_id)
    ]
    small = [m for m in got if m["bodyBytes"] == 2 and body_of(m).startswith(b"x")]
    assert sorted(map(text_of, small)) == ["x0", "x1", "x2"]
    assert len(batch.message_ids) == 3
