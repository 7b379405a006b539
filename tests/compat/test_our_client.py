"""Our client does the same against our servers and against stock ones: one suite, three targets."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from inbox import Inbox, eventually

from tandemmq import (
    ClientConfig,
    Compression,
    ConsumeResult,
    Message,
    MessageModel,
    NoRoute,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Sql92,
    StartFrom,
    TransactionState,
    by_key,
)
from tandemmq.chaos.java import JavaBroker, JavaNameServer
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.cluster.client import Admin
from tandemmq.java import VERSIONS, Driver, body_of, encoded, java_missing, sha_of, text_of

_serial = itertools.count(1)


@dataclass(frozen=True)
class Target:
    kind: str  # "ours", or a release
    namesrv: str


#: one attempt of a send, however busy the machine: two would be stored twice
PATIENT: Final = {"timeout_ms": 30_000, "attempt_timeout_ms": 30_000}


@pytest.fixture(scope="module", params=["ours", *VERSIONS])
def stock(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    """A name server and two masters: ours, or Apache RocketMQ's."""
    kind: str = request.param
    if kind != "ours" and (reason := java_missing()):
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("target")
    levels = "1s 1s " + " ".join(["1s"] * 16)
    settings = {
        "messageDelayLevel": levels,
        "enablePropertyFilter": "true",
        "mappedFileSizeCommitLog": 16 << 20,
        "transactionTimeOut": 1_000,
        "transactionCheckInterval": 1_000,
        "transactionOpBatchInterval": 100,  # else a stock broker asks about what is over
    }
    servers: list[NameServer | JavaNameServer | Broker | JavaBroker] = []
    home = directory / "namesrv"
    name_server = NameServer(home) if kind == "ours" else JavaNameServer(kind, home)
    servers.append(name_server.start())
    for name in ("broker-a", "broker-b"):
        place, address = directory / name, name_server.address
        servers.append(
            Broker(place, address, name=name, settings=settings).start()
            if kind == "ours"
            else JavaBroker(kind, place, address, name=name, settings=settings).start()
        )
    yield Target(kind, name_server.address)
    for server in reversed(servers):
        server.abandon()


async def create(stock: Target, word: str, queue_count: int = 4) -> str:
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


async def test_transactions_end_as_their_application_says(stock: Target) -> None:
    topic = await create(stock, "Transactions")
    inbox = Inbox()
    asked: set[str] = set()

    async def check(message: ReceivedMessage) -> TransactionState:
        assert message.topic == topic
        asked.add(message.body.decode())
        return TransactionState.COMMIT if message.keys == ("later",) else TransactionState.ROLLBACK

    producer = Producer("TxPG", namesrv=stock.namesrv, check_transaction=check)
    consumer = PushConsumer(
        group(), inbox, namesrv=stock.namesrv, subscribe={topic: "*"}, start=StartFrom.FIRST
    )
    async with consumer, producer:
        for number in range(8):
            async with producer.transaction(Message(topic, b"c%d" % number)) as transaction:
                pass
            assert transaction.confirmed
        async with producer.transaction(Message(topic, b"large " * 5_000)) as transaction:
            pass
        with pytest.raises(RuntimeError):
            async with producer.transaction(Message(topic, b"rolled back")):
                raise RuntimeError
        for keys, body in (("later", b"committed later"), ("never", b"rolled back later")):
            message = Message(topic, body, keys=keys)
            async with producer.transaction(message) as transaction:
                transaction.unknown()
        wanted = sorted([*(b"c%d" % n for n in range(8)), b"large " * 5_000, b"committed later"])
        await eventually(lambda: len(inbox.messages) >= len(wanted), "what was committed")
        await eventually(lambda: "rolled back later" in asked, "the other one is asked for")
        await asyncio.sleep(1.5)
    assert sorted(message.body for message in inbox.messages) == wanted
    assert {"committed later", "rolled back later"} <= asked and "rolled back" not in asked


async def test_every_way_of_sending_is_stored_and_consumed_once(stock: Target) -> None:
    topic = await create(stock, "Ways")
    inbox = Inbox()
    async with Producer("PG", namesrv=stock.namesrv, **PATIENT) as producer:
        await asyncio.gather(
            *(producer.send(Message(topic, b"%d" % n, tags="A", keys=f"k{n}")) for n in range(300))
        )
        first = await producer.send(
            Message(
                topic, b"first", tags="A", keys=["k1", "k2"], properties={"own": "värde"}, flag=-7
            )
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
            await inbox.count(316)
    expected = [b"%d" % n for n in range(300)] + [b"b%d" % n for n in range(10)]
    expected += [b"first", b"oneway", b"large " * 50_000] + [b"keyed %d" % n for n in range(3)]
    assert inbox.bodies == sorted(expected)
    assert len({result.queue for result in keyed}) == 1
    assert len(set(batch.message_ids)) == 10
    assert inbox.messages[0].store_host.startswith("127.0.0.1:")
    got = next(message for message in inbox.messages if message.body == b"first")
    assert (got.tags, got.keys, got.flag) == ("A", ("k1", "k2"), -7)
    assert got.properties["own"] == "värde"
    assert got.message_id == first.message_id


async def test_failed_message_comes_again_and_tags_filter(stock: Target) -> None:
    topic = await create(stock, "Retry")
    tries: list[tuple[bytes, int, str]] = []

    def once(message: ReceivedMessage) -> ConsumeResult:
        tries.append((message.body, message.reconsume_times, message.topic))
        again = message.reconsume_times == 0
        return ConsumeResult.RECONSUME_LATER if again else ConsumeResult.SUCCESS

    async with Producer("PG", namesrv=stock.namesrv, **PATIENT) as producer:
        for tag in ("A", "B", "C"):
            await producer.send(Message(topic, tag.encode(), tags=tag))
        consumer = PushConsumer(
            group(), once, namesrv=stock.namesrv, subscribe={topic: "A || B"}, start=StartFrom.FIRST
        )
        async with consumer:
            await eventually(lambda: len(tries) == 4, "the second tries")
    assert sorted(tries) == [(tag, times, topic) for tag in (b"A", b"B") for times in (0, 1)]


async def test_consumers_choose_by_properties(stock: Target) -> None:
    topic = await create(stock, "Sql")
    dear = Sql92("price >= 50 AND region = 'eu' OR TAGS = 'always'")
    inbox = Inbox()
    async with Producer("PG", namesrv=stock.namesrv, **PATIENT) as producer:

        async def offer(price: int, region: str, tags: str | None = None) -> None:
            properties = {"price": str(price), "region": region}
            body = f"{price} {region}".encode()
            await producer.send(Message(topic, body, tags=tags, properties=properties))

        for price in range(0, 100, 10):
            await offer(price, "eu")
            await offer(price, "us")
        consumer = PushConsumer(
            group(), inbox, namesrv=stock.namesrv, subscribe={topic: dear}, start=StartFrom.FIRST
        )
        async with consumer:
            await inbox.count(5)
            await offer(30, "eu")
            await offer(0, "us", "always")  # the pulls wait for it
            await inbox.count(6)
    expected = sorted([*(b"%d eu" % price for price in range(50, 100, 10)), b"0 us"])
    assert inbox.bodies == expected
    puller = PullConsumer(
        group(), namesrv=stock.namesrv, subscribe={topic: dear}, start=StartFrom.FIRST
    )
    async with puller:
        pulled: list[bytes] = []
        async with asyncio.timeout(30):
            while len(pulled) < len(expected):
                pulled += [message.body for message in await puller.poll(32, 1_000)]
    assert sorted(pulled) == expected


async def test_members_share_queues_with_each_other(stock: Target) -> None:
    topic, name = await create(stock, "Shared", 2), group()
    inboxes = Inbox(), Inbox()

    def member(inbox: Inbox) -> PushConsumer:
        return PushConsumer(
            name, inbox, namesrv=stock.namesrv, subscribe={topic: "*"}, start=StartFrom.FIRST
        )

    def held(consumer: PushConsumer) -> int:
        return sum(queue.topic == topic for queue in consumer.assignment)

    async with (
        Producer("PG", namesrv=stock.namesrv, **PATIENT) as producer,
        member(inboxes[0]) as one,
    ):
        async with member(inboxes[1]) as two:
            await eventually(lambda: (held(one), held(two)) == (2, 2), "two queues each")
            await asyncio.gather(*(producer.send(Message(topic, b"%d" % n)) for n in range(40)))
            await eventually(
                lambda: len({body for each in inboxes for body in each.bodies}) == 40,
                "all messages",  # one that was sent again comes twice
            )
        await eventually(lambda: held(one) == 4, "all queues again")
    assert set(inboxes[0].bodies + inboxes[1].bodies) == {b"%d" % n for n in range(40)}


async def test_pull_consumer_commits_and_goes_on(stock: Target) -> None:
    topic, name = await create(stock, "Pull"), group()
    async with Producer("PG", namesrv=stock.namesrv, **PATIENT) as producer:
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


async def test_pull_consumer_seeks_and_finds_times(stock: Target) -> None:
    topic = await create(stock, "Seek")
    expected = [b"%02d" % n for n in range(20)]
    async with Producer("PG", namesrv=stock.namesrv, **PATIENT) as producer:
        for body in expected:
            await producer.send(Message(topic, body), selector=by_key("one"))
    async with PullConsumer(group(), namesrv=stock.namesrv, start=StartFrom.FIRST) as pulling:
        await pulling.assign(await pulling.queues(topic))
        got: list[ReceivedMessage] = []
        async with asyncio.timeout(60):
            while len(got) < 20:
                got += await pulling.poll()
        assert [message.body for message in got] == expected
        queue = got[0].queue
        assert (await pulling.min_offset(queue), await pulling.max_offset(queue)) == (0, 20)
        await pulling.seek(queue, 17)
        assert [message.body for message in await pulling.poll()] == expected[17:]
        assert await pulling.offset_for_time(queue, 0) == 0
        await pulling.poll(timeout_ms=100)  # asking on consumes what was handed out
        await pulling.commit()
        assert await pulling.committed(queue) == 20


async def test_ordered_messages_stay_in_order_and_the_bad_one_is_buried(stock: Target) -> None:
    topic, name = await create(stock, "InOrder"), group()
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> ConsumeResult | None:
        seen.append(message.body)
        return ConsumeResult.SUSPEND if message.body == b"03" else None

    dead = Inbox()
    async with Producer("PG", namesrv=stock.namesrv, **PATIENT) as producer:
        for number in range(10):
            await producer.send(Message(topic, b"%02d" % number), selector=by_key("one"))
        consumer = PushConsumer(
            name, handle, namesrv=stock.namesrv, subscribe={topic: "*"}, orderly=True,
            start=StartFrom.FIRST, reconsume_times_max=2, suspend_ms=100,
        )  # fmt: skip
        async with consumer:
            await eventually(lambda: b"09" in seen, "the last message")
        async with Admin(stock.namesrv) as admin:
            async with asyncio.timeout(40):
                while True:
                    try:
                        await admin.route(f"%DLQ%{name}")
                        break
                    except NoRoute:
                        await asyncio.sleep(0.1)
        # 4.9.7 makes the dead letters unreadable until an operator opens them
        if stock.kind != "4.9.7":
            graves = PushConsumer(
                group(), dead, namesrv=stock.namesrv, subscribe={f"%DLQ%{name}": "*"},
                start=StartFrom.FIRST,
            )  # fmt: skip
            async with graves:
                await dead.count(1)
            assert dead.bodies == [b"03"]
    expected = [b"%02d" % number for number in range(10)]
    assert seen == expected[:3] + [b"03"] * 3 + expected[4:]


async def test_broadcasting_members_each_read_everything_and_remember(
    stock: Target, tmp_path: Path
) -> None:
    topic = await create(stock, "Broadcast")
    name = group()

    def member(inbox: Inbox, number: int) -> PushConsumer:
        return PushConsumer(
            name, inbox, subscribe={topic: "*"}, model=MessageModel.BROADCASTING,
            start=StartFrom.FIRST, offsets_dir=tmp_path,
            config=ClientConfig(stock.namesrv, instance_name=f"member-{number}"),
        )  # fmt: skip

    async with Producer("PG", namesrv=stock.namesrv, **PATIENT) as producer:
        await asyncio.gather(*(producer.send(Message(topic, b"%d" % n)) for n in range(40)))
        inboxes = [Inbox(), Inbox()]
        async with member(inboxes[0], 0), member(inboxes[1], 1):
            for inbox in inboxes:
                await inbox.count(40)
        again = Inbox()
        async with member(again, 0):
            await producer.send(Message(topic, b"later"))
            await again.count(1)
    assert again.bodies == [b"later"]
    assert all(len(inbox.messages) == 40 for inbox in inboxes)


@pytest.mark.parametrize("kind", list(Compression))
async def test_compressed_bodies_come_back(stock: Target, kind: Compression) -> None:
    topic = await create(stock, "Packed", 1)
    body = b"a body that repeats itself " * 2_000
    inbox = Inbox()
    async with Producer("PG", namesrv=stock.namesrv, compression=kind, **PATIENT) as producer:
        await producer.send(Message(topic, body))
        consumer = PushConsumer(
            group(), inbox, namesrv=stock.namesrv, subscribe={topic: "*"}, start=StartFrom.FIRST
        )
        async with consumer:
            await inbox.count(1)
    assert inbox.bodies == [body]
    assert inbox.messages[0].sys_flag & 0x701 == kind.value | 1


async def test_namespaces_keep_equal_names_apart(stock: Target) -> None:
    inboxes = {name: Inbox() for name in ("one", "two")}
    suffix = next(_serial)
    for name, inbox in inboxes.items():
        config = ClientConfig(stock.namesrv, namespace=f"{name}{suffix}", unit_name="unit")
        async with Producer("PG", config=config, **PATIENT) as producer:
            await producer.send(Message("Orders", name.encode()))
            consumer = PushConsumer(
                "CG", inbox, config=config, subscribe={"Orders": "*"}, start=StartFrom.FIRST
            )
            async with consumer:
                await inbox.count(1)
        assert inbox.bodies == [name.encode()]
        assert inbox.messages[0].topic == "Orders"


async def test_thousands_of_pipelined_sends_are_stored_once(stock: Target) -> None:
    topic = await create(stock, "Pipelined")
    async with Producer("PG", namesrv=stock.namesrv, **PATIENT) as producer:
        messages = (Message(topic, b"%d" % n, tags="A", keys=f"k{n}") for n in range(5_000))
        results = [result async for result in producer.send_many(messages)]
    assert all(result.ok for result in results)
    places = {(result.queue, result.queue_offset) for result in results}
    assert len(places) == len({result.message_id for result in results}) == 5_000
    inbox = Inbox()
    batches: list[int] = []

    async def handle(batch: Sequence[ReceivedMessage]) -> None:
        batches.append(len(batch))
        for message in batch:
            await inbox(message)

    consumer = PushConsumer(
        group(), on_batch=handle, namesrv=stock.namesrv, subscribe={topic: "A"},
        start=StartFrom.FIRST,
    )  # fmt: skip
    async with consumer:
        await inbox.count(5_000)
    assert {(m.queue, m.queue_offset) for m in inbox.messages} == places
    assert len(inbox.messages) == 5_000
    assert max(batches) > 1


async def test_stock_and_our_clients_read_each_other(stock: Target, newest_driver: Driver) -> None:
    topic = await create(stock, "Both")
    at = {"namesrv": stock.namesrv, "topic": topic, "name": topic}
    rng = random.Random(1)
    bodies = [rng.randbytes(size) for size in (10, 3000)] + [b"zip " * 5000]
    newest_driver.call("producer.start", group="PG", **at)
    newest_driver.call("send.sync", messages=[encoded(b) for b in bodies], **at)
    newest_driver.call("send.batch", messages=[{"body": "b1"}, {"body": "b2"}], **at)
    inbox = Inbox()
    consumer = PushConsumer(
        group(), inbox, namesrv=stock.namesrv, subscribe={topic: "*"}, start=StartFrom.FIRST
    )
    async with consumer:
        await inbox.count(5)
    assert inbox.bodies == sorted([*bodies, b"b1", b"b2"])

    async with Producer("PG", namesrv=stock.namesrv, **PATIENT) as producer:
        sent = await producer.send(Message(topic, b"zip " * 5000, keys="python", tags="P"))
        batch = await producer.send_batch([Message(topic, b"x%d" % n) for n in range(3)])
    newest_driver.call("push.start", group=group(), expression="*", **at)
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


async def test_reading_begins_where_a_time_says(stock: Target) -> None:
    topic = await create(stock, "Times", 1)
    async with (
        Producer("PG", namesrv=stock.namesrv, **PATIENT) as producer,
        PullConsumer(group(), namesrv=stock.namesrv) as reader,
    ):
        queue = (await reader.queues(topic))[0]
        await producer.send(Message(topic, b"old"), queue=queue)
        await asyncio.sleep(1.1)
        new = await producer.send(Message(topic, b"new"), queue=queue)
        await eventually_async(lambda: reader.max_offset(queue), new.queue_offset + 1)
        await reader.assign([queue])
        await reader.seek(queue, 0)
        stored: list[int] = []
        async with asyncio.timeout(20):
            while len(stored) < 2:
                stored += [m.store_ms for m in await reader.poll(10)]
        # 4.9.7 gives the message nearest to a time, all others the first one at or after it
        before_ms = stored[1] - 10
        assert stored[0] + 1000 < before_ms
        assert await reader.offset_for_time(queue, before_ms) == new.queue_offset
        await reader.seek(queue, new.queue_offset)
        assert [m.body for m in await reader.poll(10)] == [b"new"]


async def eventually_async(look: Callable[[], Awaitable[int]], wanted: int) -> None:
    async with asyncio.timeout(20):
        while await look() != wanted:  # noqa: ASYNC110 - a broker tells nobody
            await asyncio.sleep(0.05)
