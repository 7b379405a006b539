"""What an application may expect of the client, whichever cluster is behind it: one list for both kinds.

Each promise takes a Ground and raises where it is not kept. Names differ from run to run: all share one cluster.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from tandemmq import (
    Admin,
    BrokerRefused,
    ConsumeResult,
    Message,
    MessageModel,
    MessageRefused,
    NoReply,
    NoRoute,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    Sql92,
    StartFrom,
    Subscription,
    TransactionState,
)

SOON_S: Final = 30.0
_numbers = itertools.count(1)


@dataclass
class Ground:
    """A cluster to try things on. pass_time: lets so many seconds go by there, or waits for them."""

    namesrv: str
    pass_time: Callable[[float], Awaitable[None]]
    name: str = field(default_factory=lambda: f"P{os.getpid()}-{time.time_ns():x}-{next(_numbers)}")

    async def topic(self, queue_count: int = 4, suffix: str = "") -> str:
        name = self.name + suffix
        async with Admin(self.namesrv) as admin:
            masters = await admin.masters()
            await admin.create_topic(name, queue_count)
            while True:
                with suppress(NoRoute):
                    if set((await admin.route(name)).addresses) >= set(masters):
                        return name
                await asyncio.sleep(0.02)

    def producer(self, **more: object) -> Producer:
        return Producer("sends-" + self.name, namesrv=self.namesrv, **more)  # type: ignore[arg-type]

    @property
    def group(self) -> str:
        return "reads-" + self.name


Promise = Callable[[Ground], Awaitable[None]]
PROMISES: Final[dict[str, Promise]] = {}


def promise(test: Promise) -> Promise:
    PROMISES[test.__name__] = test
    return test


class Inbox:
    """Collects what a listener gets."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self._changed = asyncio.Condition()

    async def __call__(self, message: ReceivedMessage) -> None:
        await self.add(message)

    async def add(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        async with self._changed:
            self._changed.notify_all()

    @property
    def bodies(self) -> list[bytes]:
        return [each.body for each in self.messages]

    async def filled(self, count: int) -> list[bytes]:
        async with asyncio.timeout(SOON_S), self._changed:
            await self._changed.wait_for(lambda: len(self.messages) >= count)
        return self.bodies


@promise
async def what_is_sent_is_consumed_with_all_that_belongs_to_it(ground: Ground) -> None:
    topic, inbox = await ground.topic(), Inbox()
    async with ground.producer() as producer:
        sent = await producer.send(
            Message(topic, b"17", tags="created", keys=["k1", "k2"], properties={"a": "b"}, flag=7)
        )
    assert sent.ok
    assert (sent.copies, sent.queue.topic, sent.queue_offset) == (1, topic, 0)
    async with PushConsumer(
        ground.group, inbox, namesrv=ground.namesrv, subscribe={topic: "*"}, start=StartFrom.FIRST
    ):
        await inbox.filled(1)
    (got,) = inbox.messages
    assert (got.topic, got.body, got.tags, got.keys) == (topic, b"17", "created", ("k1", "k2"))
    assert (got.properties["a"], got.flag, got.reconsume_times) == ("b", 7, 0)
    assert (got.message_id, got.queue, got.queue_offset) == (sent.message_id, sent.queue, 0)
    assert got.offset_message_id == sent.offset_message_id
    assert abs(got.store_ms - got.born_ms) < 60_000


@promise
async def a_group_goes_on_where_it_stopped(ground: Ground) -> None:
    topic, first, second = await ground.topic(), Inbox(), Inbox()
    how = {"namesrv": ground.namesrv, "subscribe": {topic: "*"}, "start": StartFrom.FIRST}
    async with ground.producer() as producer:
        for number in range(5):
            await producer.send(Message(topic, b"%d" % number))
        async with PushConsumer(ground.group, first, **how):  # type: ignore[arg-type]
            await first.filled(5)
        await producer.send(Message(topic, b"later"))
        async with PushConsumer(ground.group, second, **how):  # type: ignore[arg-type]
            await second.filled(1)
    assert second.bodies == [b"later"]


@promise
async def members_of_a_group_share_its_queues(ground: Ground) -> None:
    topic, left, right = await ground.topic(4), Inbox(), Inbox()
    how = {"namesrv": ground.namesrv, "subscribe": {topic: "*"}, "start": StartFrom.FIRST}
    async with (
        PushConsumer(ground.group, left, **how) as one,  # type: ignore[arg-type]
        PushConsumer(ground.group, right, **how) as other,  # type: ignore[arg-type]
        ground.producer() as producer,
    ):
        await _until(lambda: [len(_of(each, topic)) for each in (one, other)] == [2, 2])
        assert not set(_of(one, topic)) & set(_of(other, topic))
        for queue in await producer.queues(topic):
            await producer.send(Message(topic, str(queue.queue_id).encode()), queue=queue)
        await left.filled(2)
        await right.filled(2)
    assert Counter(left.bodies + right.bodies) == {b"0": 1, b"1": 1, b"2": 1, b"3": 1}


async def _until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Look again and again: nobody tells of it."""
    async with asyncio.timeout(SOON_S):
        while True:
            found = holds()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.02)


async def _closed(admin: Admin, topic: str) -> bool:
    return not (await admin.route(topic)).publish_queues(topic)


def _of(consumer: PushConsumer, topic: str) -> list[object]:
    return [queue for queue in consumer.assignment if queue.topic == topic]


@promise
async def tags_choose(ground: Ground) -> None:
    topic, inbox = await ground.topic(), Inbox()
    async with ground.producer() as producer:
        for tag in ("a", "b", "c", None, "a"):
            await producer.send(Message(topic, (tag or "none").encode(), tags=tag))
    async with PushConsumer(
        ground.group, inbox, namesrv=ground.namesrv, subscribe={topic: "a || c"},
        start=StartFrom.FIRST,
    ):  # fmt: skip
        await inbox.filled(3)
    assert sorted(inbox.bodies) == [b"a", b"a", b"c"]


@promise
async def sql92_chooses_by_properties(ground: Ground) -> None:
    topic, inbox = await ground.topic(), Inbox()
    async with ground.producer() as producer:
        for amount in (5, 50, 500):
            await producer.send(Message(topic, b"%d" % amount, properties={"amount": str(amount)}))
    async with PushConsumer(
        ground.group, inbox, namesrv=ground.namesrv, subscribe={topic: Sql92("amount > 10")},
        start=StartFrom.FIRST,
    ):  # fmt: skip
        await inbox.filled(2)
    assert sorted(inbox.bodies) == [b"50", b"500"]


@promise
async def a_message_that_failed_comes_again_with_its_id(ground: Ground) -> None:
    topic, inbox = await ground.topic(), Inbox()

    async def fails_once(message: ReceivedMessage) -> ConsumeResult | None:
        await inbox.add(message)
        return ConsumeResult.RECONSUME_LATER if not message.reconsume_times else None

    async with (
        PushConsumer(
            ground.group, fails_once, namesrv=ground.namesrv, subscribe={topic: "*"},
            start=StartFrom.FIRST,
        ),
        ground.producer() as producer,
    ):  # fmt: skip
        sent = await producer.send(Message(topic, b"17", keys="k"))
        await inbox.filled(1)
        await ground.pass_time(10)
        await inbox.filled(2)
    again = inbox.messages[1]
    assert [each.reconsume_times for each in inbox.messages] == [0, 1]
    assert (again.message_id, again.topic, again.keys) == (sent.message_id, topic, ("k",))
    assert again.queue.topic == f"%RETRY%{ground.group}"


@promise
async def what_fails_too_often_is_a_dead_letter(ground: Ground) -> None:
    topic, inbox = await ground.topic(), Inbox()

    async def fails(message: ReceivedMessage) -> None:
        await inbox.add(message)
        raise ValueError("no")

    async with (
        PushConsumer(
            ground.group, fails, namesrv=ground.namesrv, subscribe={topic: "*"},
            start=StartFrom.FIRST, reconsume_times_max=1,
        ),
        ground.producer() as producer,
    ):  # fmt: skip
        sent = await producer.send(Message(topic, b"17"))
        await inbox.filled(1)
        await ground.pass_time(10)
        await inbox.filled(2)
        (dead,) = await _read(ground, f"%DLQ%{ground.group}", 1)
    assert (dead.body, dead.message_id) == (b"17", sent.message_id)
    assert Message.again(dead).topic == topic


@promise
async def a_listener_may_bury_at_once(ground: Ground) -> None:
    topic, inbox = await ground.topic(), Inbox()

    async def buries(message: ReceivedMessage) -> RetryLater:
        await inbox.add(message)
        return RetryLater(-1)

    async with (
        PushConsumer(
            ground.group, buries, namesrv=ground.namesrv, subscribe={topic: "*"},
            start=StartFrom.FIRST,
        ),
        ground.producer() as producer,
    ):  # fmt: skip
        await producer.send(Message(topic, b"17"))
        (dead,) = await _read(ground, f"%DLQ%{ground.group}", 1)
    assert (dead.body, len(inbox.messages)) == (b"17", 1)


async def _read(ground: Ground, topic: str, count: int) -> list[ReceivedMessage]:
    """From the start, once the topic is there."""
    found: list[ReceivedMessage] = []
    async with (
        asyncio.timeout(SOON_S),
        PullConsumer("looks-" + ground.name, namesrv=ground.namesrv, start=StartFrom.FIRST) as look,
    ):
        while True:
            with suppress(NoRoute):
                queues = await look.queues(topic)
                break
            await asyncio.sleep(0.05)
        await look.assign(queues)
        while len(found) < count:
            found += await look.poll(timeout_ms=1_000)
    return found


@promise
async def a_delayed_message_waits(ground: Ground) -> None:
    topic, inbox = await ground.topic(), Inbox()
    async with (
        PushConsumer(
            ground.group, inbox, namesrv=ground.namesrv, subscribe={topic: "*"},
            start=StartFrom.FIRST,
        ),
        ground.producer() as producer,
    ):  # fmt: skip
        await producer.send(Message(topic, b"level", delay_level=1))
        await producer.send(Message(topic, b"timer", delay_s=1.5))
        await producer.send(
            Message(topic, b"at", deliver_at=datetime.now(UTC) + timedelta(seconds=1.5))
        )
        await producer.send(Message(topic, b"now"))
        assert await inbox.filled(1) == [b"now"]
        await ground.pass_time(3)
        await inbox.filled(4)
    assert sorted(inbox.bodies[1:]) == [b"at", b"level", b"timer"]


@promise
async def a_timed_message_can_be_recalled(ground: Ground) -> None:
    topic = await ground.topic()
    async with ground.producer() as producer:
        sent = await producer.send(Message(topic, b"17", delay_s=3600))
        assert sent.recall_handle
        assert await producer.recall(sent) == sent.message_id
        with pytest.raises(MessageRefused):
            await producer.recall("nonsense")


@promise
async def one_key_stays_in_order(ground: Ground) -> None:
    topic, inbox = await ground.topic(), Inbox()
    failed: list[bytes] = []

    async def slips_once(message: ReceivedMessage) -> ConsumeResult | None:
        if message.body == b"2" and not failed:
            failed.append(message.body)
            return ConsumeResult.SUSPEND
        await inbox.add(message)
        return None

    async with (
        PushConsumer(
            ground.group, slips_once, namesrv=ground.namesrv, subscribe={topic: "*"}, orderly=True,
            start=StartFrom.FIRST, suspend_ms=100,
        ),
        ground.producer() as producer,
    ):  # fmt: skip
        for number in range(6):
            await producer.send(Message(topic, b"%d" % number), ordering_key="order-17")
        await inbox.filled(6)
    assert inbox.bodies == [b"%d" % number for number in range(6)]
    assert failed == [b"2"]


@promise
async def an_orderly_share_is_handed_over(ground: Ground) -> None:
    topic, left, right = await ground.topic(4), Inbox(), Inbox()
    how = {"namesrv": ground.namesrv, "subscribe": {topic: "*"}, "start": StartFrom.FIRST}
    how["orderly"] = True
    async with ground.producer() as producer, PushConsumer(ground.group, left, **how) as one:  # type: ignore[arg-type]
        await _until(lambda: len(_of(one, topic)) == 4)
        async with PushConsumer(ground.group, right, **how) as other:  # type: ignore[arg-type]
            await _until(lambda: [len(_of(each, topic)) for each in (one, other)] == [2, 2])
            for queue in await producer.queues(topic):
                await producer.send(Message(topic, str(queue.queue_id).encode()), queue=queue)
            await left.filled(2)
            await right.filled(2)
        await _until(lambda: len(_of(one, topic)) == 4)
    assert Counter(left.bodies + right.bodies) == {b"0": 1, b"1": 1, b"2": 1, b"3": 1}


@promise
async def every_broadcasting_member_gets_everything(ground: Ground) -> None:
    topic, left, right = await ground.topic(), Inbox(), Inbox()
    how = {"namesrv": ground.namesrv, "subscribe": {topic: "*"}, "start": StartFrom.FIRST}
    how["model"] = MessageModel.BROADCASTING
    async with (
        PushConsumer(ground.group, left, instance_name="l" + ground.name, **how),  # type: ignore[arg-type]
        PushConsumer(ground.group, right, instance_name="r" + ground.name, **how),  # type: ignore[arg-type]
        ground.producer() as producer,
    ):
        await producer.send(Message(topic, b"17"))
        assert await left.filled(1) == await right.filled(1) == [b"17"]


@promise
async def a_batch_stays_together(ground: Ground) -> None:
    topic = await ground.topic()
    async with ground.producer() as producer:
        sent = await producer.send_batch([Message(topic, b"%d" % n, tags="t") for n in range(3)])
    found = await _read(ground, topic, 3)
    assert [each.body for each in found] == [b"0", b"1", b"2"]
    assert {each.queue for each in found} == {sent.queue}
    assert tuple(each.message_id for each in found) == sent.message_ids
    assert [each.queue_offset for each in found] == [0, 1, 2]


@promise
async def many_sends_keep_their_order_of_results(ground: Ground) -> None:
    topic = await ground.topic()
    async with ground.producer() as producer:
        results = [
            each async for each in producer.send_many(Message(topic, b"%d" % n) for n in range(200))
        ]
    found = {each.message_id: each.body for each in await _read(ground, topic, 200)}
    assert [found[each.message_id] for each in results] == [b"%d" % n for n in range(200)]


@promise
async def a_committed_transaction_is_seen_and_another_is_not(ground: Ground) -> None:
    topic, inbox = await ground.topic(), Inbox()

    async def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.ROLLBACK

    async with (
        PushConsumer(
            ground.group, inbox, namesrv=ground.namesrv, subscribe={topic: "*"},
            start=StartFrom.FIRST,
        ),
        ground.producer(check_transaction=check) as producer,
    ):  # fmt: skip
        async with producer.transaction(Message(topic, b"good")) as good:
            assert not inbox.messages
        with suppress(ZeroDivisionError):
            async with producer.transaction(Message(topic, b"bad")):
                raise ZeroDivisionError
        await producer.send(Message(topic, b"after"))
        await inbox.filled(2)
    assert sorted(inbox.bodies) == [b"after", b"good"]
    assert good.state is TransactionState.COMMIT
    assert good.confirmed
    assert good.message_id in {each.message_id for each in inbox.messages}


@promise
async def a_request_gets_its_reply(ground: Ground) -> None:
    topic = await ground.topic()

    async def answers(request: ReceivedMessage) -> None:
        if request.tags != "mute":
            await consumer.reply(request, request.body.upper(), properties={"from": "test"})

    async with (
        PushConsumer(
            ground.group, answers, namesrv=ground.namesrv, subscribe={topic: "*"},
            start=StartFrom.FIRST,
        ) as consumer,
        ground.producer() as producer,
    ):  # fmt: skip
        reply = await producer.request(Message(topic, b"price"), timeout_ms=20_000)
        assert (reply.body, reply.properties["from"]) == (b"PRICE", "test")
        with pytest.raises(NoReply):
            await producer.request(Message(topic, b"x", tags="mute"), timeout_ms=500)


@promise
async def deliveries_are_acknowledged_one_by_one(ground: Ground) -> None:
    topic, bodies = await ground.topic(), list[bytes]()
    async with ground.producer() as producer:
        for number in range(3):
            await producer.send(Message(topic, b"%d" % number))
    async with (
        asyncio.timeout(SOON_S),
        Subscription(
            ground.group, namesrv=ground.namesrv, subscribe={topic: "*"}, start=StartFrom.FIRST
        ) as orders,
    ):
        async for delivery in orders:
            bodies.append(delivery.message.body)
            if delivery.message.body == b"1" and not delivery.message.reconsume_times:
                delivery.nack(1)
                await ground.pass_time(3)
            else:
                delivery.ack()
            if len(bodies) == 4:
                break
    assert sorted(bodies) == [b"0", b"1", b"1", b"2"]


@promise
async def a_pull_consumer_seeks_and_commits(ground: Ground) -> None:
    topic = await ground.topic(1)
    async with ground.producer() as producer:
        for number in range(10):
            await producer.send(Message(topic, b"%d" % number))
    async with PullConsumer(ground.group, namesrv=ground.namesrv, auto_commit=False) as consumer:
        (queue,) = await consumer.queues(topic)
        await consumer.assign([queue])
        assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 10)
        await consumer.seek(queue, 7)
        found = await consumer.poll(10)
        assert [each.body for each in found] == [b"7", b"8", b"9"]
        await consumer.commit({queue: 8})
        assert await consumer.committed(queue) == 8
        with pytest.raises(ValueError, match=r"not in 0\.\.10"):
            await consumer.seek(queue, 11)


@promise
async def large_bodies_travel_compressed(ground: Ground) -> None:
    topic = await ground.topic()
    body = b"compress me " * 20_000
    async with ground.producer() as producer:
        await producer.send(Message(topic, body))
    (found,) = await _read(ground, topic, 1)
    assert found.body == body
    assert found.sys_flag & 1


@promise
async def a_topic_is_made_by_its_first_message(ground: Ground) -> None:
    topic = ground.name + "-unmade"
    async with ground.producer() as producer:
        await producer.send(Message(topic, b"17"))
    (found,) = await _read(ground, topic, 1)
    assert found.body == b"17"


@promise
async def a_deleted_topic_is_gone(ground: Ground) -> None:
    topic = await ground.topic()
    async with Admin(ground.namesrv) as admin:
        assert topic in await admin.topics()
        await admin.delete_topic(topic)
        with pytest.raises(NoRoute):
            await admin.route(topic)


@promise
async def a_queue_that_is_not_there_is_refused(ground: Ground) -> None:
    topic = await ground.topic(1)
    async with ground.producer() as producer:
        (queue,) = await producer.queues(topic)
        wrong = type(queue)(topic, queue.broker_name, 9)
        with pytest.raises(BrokerRefused, match="queueId"):
            await producer.send(Message(topic, b"17"), queue=wrong)


@promise
async def a_read_only_topic_takes_no_message(ground: Ground) -> None:
    topic = await ground.topic(1)
    async with Admin(ground.namesrv) as admin:
        await admin.create_topic(topic, 1, perm=4)
        await _until(lambda: _closed(admin, topic))
    async with ground.producer() as producer:
        with pytest.raises(NoRoute, match="writable queue"):
            await producer.send(Message(topic, b"17"))
