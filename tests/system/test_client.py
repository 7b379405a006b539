"""Our client against our servers as real processes: everything an application does, and servers that die."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from inbox import WAIT_S, Inbox, eventually

from tandemmq import (
    ClientError,
    ConsumeResult,
    Message,
    MessageModel,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendFailed,
    StartFrom,
    by_key,
)
from tandemmq.chaos.asking import registered
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.cluster.client import Admin

pytestmark = pytest.mark.system

# retries start at level 3: soon, so that tests do not wait
DELAY_LEVELS = "1s 1s " + " ".join(["1s"] * 16)
_serial = itertools.count(1)


@dataclass(frozen=True)
class Cluster:
    name_server: NameServer
    brokers: list[Broker]

    @property
    def namesrv(self) -> str:
        return self.name_server.address


def make_cluster(directory: Path, count: int = 2) -> Cluster:
    name_server = NameServer(directory).start()
    brokers = [
        Broker(
            directory / name,
            name_server.address,
            name=name,
            settings={"messageDelayLevel": DELAY_LEVELS, "mappedFileSizeCommitLog": 16 << 20},
        ).start()
        for name in [f"broker-{letter}" for letter in "abc"[:count]]
    ]
    return Cluster(name_server, brokers)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two masters that no test disturbs."""
    made = make_cluster(tmp_path_factory.mktemp("client"))
    yield made
    for server in [*made.brokers, made.name_server]:
        assert server.terminate(10) == 0


@pytest.fixture
def breakable(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of the test's own, to kill things in."""
    made = make_cluster(tmp_path)
    yield made
    for server in [*made.brokers, made.name_server]:
        server.abandon()


def fresh(word: str) -> str:
    return f"{word}_{next(_serial)}"


@asynccontextmanager
async def producing(cluster: Cluster, **options: int) -> AsyncIterator[Producer]:
    async with Producer("PG", namesrv=cluster.namesrv, **options) as producer:
        yield producer


def pushing(
    cluster: Cluster,
    group: str,
    listener: object,
    topic: str,
    expression: str = "*",
    **options: object,
) -> PushConsumer:
    options.setdefault("start", StartFrom.FIRST)
    return PushConsumer(
        group,
        listener,
        namesrv=cluster.namesrv,
        subscribe={topic: expression},
        **options,  # type: ignore[arg-type]
    )


async def create(cluster: Cluster, topic: str, queue_count: int = 4) -> str:
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(topic, queue_count)
        expected = {broker.broker_name for broker in cluster.brokers}
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                if set((await admin.route(topic)).addresses) == expected:
                    return topic
            except ClientError:
                pass  # not announced yet
            assert time.monotonic() < deadline, f"no route of {topic}"
            await asyncio.sleep(0.02)


async def test_every_way_of_sending_arrives_exactly_once(cluster: Cluster) -> None:
    topic = fresh("Ways")
    inbox = Inbox()
    async with producing(cluster) as producer:
        await producer.send(Message(topic, b"one by one", tags="A", keys=["k1", "k2"]))
        await asyncio.gather(*(producer.send(Message(topic, b"%d" % n)) for n in range(500)))
        batch = await producer.send_batch([Message(topic, b"batch %d" % n) for n in range(10)])
        await producer.send_oneway(Message(topic, b"oneway"))
        await producer.send(Message(topic, b"large " * 100_000))
        await producer.send(Message(topic, b"keyed"), selector=by_key("order-17"))
        async with pushing(cluster, fresh("G"), inbox, topic):
            await inbox.count(514)
    expected = [b"one by one", b"oneway", b"large " * 100_000, b"keyed"]
    expected += [b"%d" % n for n in range(500)] + [b"batch %d" % n for n in range(10)]
    assert inbox.bodies == sorted(expected)
    first = next(message for message in inbox.messages if message.body == b"one by one")
    assert (first.topic, first.tags, first.keys) == (topic, "A", ("k1", "k2"))
    batched = {m.message_id for m in inbox.messages if m.body.startswith(b"batch ")}
    assert batched == set(batch.message_ids)
    assert {message.queue.broker_name for message in inbox.messages} == {"broker-a", "broker-b"}


async def test_one_key_keeps_its_order(cluster: Cluster) -> None:
    topic = fresh("Ordered")
    inbox = Inbox()
    async with producing(cluster) as producer:
        for number in range(50):
            await producer.send(Message(topic, b"%02d" % number), selector=by_key("order-17"))
        async with pushing(cluster, fresh("G"), inbox, topic, concurrency=1):
            await inbox.count(50)
    assert [message.body for message in inbox.messages] == [b"%02d" % n for n in range(50)]
    assert len({message.queue for message in inbox.messages}) == 1


async def test_new_message_reaches_a_waiting_consumer_at_once(cluster: Cluster) -> None:
    topic = await create(cluster, fresh("Fast"))
    inbox = Inbox()
    async with producing(cluster) as producer, pushing(cluster, fresh("G"), inbox, topic):
        delays = []
        for number in range(1, 21):
            began = time.perf_counter()
            await producer.send(Message(topic, b"x"))
            await inbox.count(number)
            delays.append(time.perf_counter() - began)
    assert sorted(delays)[10] < 0.2


async def test_tags_are_filtered_and_other_members_do_not_matter(cluster: Cluster) -> None:
    topic = fresh("Tags")
    inbox = Inbox()
    async with producing(cluster) as producer:
        for tag in ("A", "B", "C", None):
            await producer.send_batch([Message(topic, f"{tag}".encode(), tags=tag)] * 5)
        await producer.send(Message(topic, b"end", tags="B"))
        async with pushing(cluster, fresh("G"), inbox, topic, "A || B"):
            await inbox.count(11)
            await asyncio.sleep(0.3)
    assert Counter(inbox.bodies) == {b"A": 5, b"B": 5, b"end": 1}


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_failed_message_comes_again_until_it_is_handled(cluster: Cluster, kind: str) -> None:
    topic = fresh("Retry")
    tries: list[tuple[int, str, str]] = []

    def note(message: ReceivedMessage) -> ConsumeResult:
        tries.append((message.reconsume_times, message.topic, message.message_id))
        if message.reconsume_times == 0:
            raise ValueError("the first time fails")
        if message.reconsume_times == 1:
            return ConsumeResult.RECONSUME_LATER
        return ConsumeResult.SUCCESS

    async def note_async(message: ReceivedMessage) -> ConsumeResult:
        return note(message)

    listener = note_async if kind == "async" else note
    async with producing(cluster) as producer:
        sent = await producer.send(Message(topic, b"x"))
        async with pushing(cluster, fresh("G"), listener, topic):
            await eventually(lambda: len(tries) == 3, "three tries")
    assert tries == [(number, topic, sent.message_id) for number in range(3)]


async def test_message_that_always_fails_ends_in_the_dead_letters(cluster: Cluster) -> None:
    topic, group = fresh("Dead"), fresh("G")
    tries: list[int] = []

    async def fail(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        raise ValueError("never")

    async with producing(cluster) as producer:
        sent = await producer.send(Message(topic, b"x"))
        async with pushing(cluster, group, fail, topic, reconsume_times_max=2):
            await eventually(lambda: len(tries) == 3, "the last try")
            async with PullConsumer(fresh("G"), namesrv=cluster.namesrv) as pulling:
                dead = await dead_letters(pulling, f"%DLQ%{group}")
    assert dead[0].message_id == sent.message_id
    assert tries == [0, 1, 2]


async def dead_letters(pulling: PullConsumer, topic: str) -> list[ReceivedMessage]:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            await pulling.assign(await pulling.queues(topic))
            for queue in pulling.assignment:
                await pulling.seek(queue, await pulling.min_offset(queue))
            if found := await pulling.poll(timeout_ms=1_000):
                return found
        except ClientError:
            await asyncio.sleep(0.05)  # the topic is not announced yet
        assert time.monotonic() < deadline, f"nothing in {topic}"


async def test_members_share_the_queues_as_they_come_and_go(cluster: Cluster) -> None:
    topic, group = await create(cluster, fresh("Shared"), 4), fresh("G")
    first, second = Inbox(), Inbox()

    def own(consumer: PushConsumer) -> int:
        return sum(queue.topic == topic for queue in consumer.assignment)

    async with producing(cluster) as producer, pushing(cluster, group, first, topic) as one:
        assert own(one) == 8
        async with pushing(cluster, group, second, topic) as two:
            await eventually(lambda: own(one) == own(two) == 4, "half of the queues each")
            await asyncio.gather(*(producer.send(Message(topic, b"%d" % n)) for n in range(80)))
            await eventually(lambda: len(first.messages) + len(second.messages) >= 80, "all")
            assert first.messages
            assert second.messages
        await eventually(lambda: own(one) == 8, "all queues again")
        await asyncio.gather(*(producer.send(Message(topic, b"%d" % n)) for n in range(80, 160)))
        await eventually(lambda: len(first.messages) + len(second.messages) >= 160, "all")
    assert sorted(first.bodies + second.bodies) == sorted(b"%d" % n for n in range(160))


async def test_next_run_of_a_group_goes_on_where_the_last_one_stopped(cluster: Cluster) -> None:
    topic, group = fresh("Runs"), fresh("G")
    first, second = Inbox(), Inbox()
    async with producing(cluster) as producer:
        await asyncio.gather(*(producer.send(Message(topic, b"a%d" % n)) for n in range(100)))
        async with pushing(cluster, group, first, topic):
            await first.count(100)
        await asyncio.gather(*(producer.send(Message(topic, b"b%d" % n)) for n in range(100)))
        async with pushing(cluster, group, second, topic):
            await second.count(100)
            await asyncio.sleep(0.3)
    assert second.bodies == sorted(b"b%d" % n for n in range(100))


async def test_broadcasting_gives_everything_to_everybody(cluster: Cluster, tmp_path: Path) -> None:
    topic, group = fresh("Broad"), fresh("G")
    inboxes = [Inbox(), Inbox()]
    broadcasting = {"model": MessageModel.BROADCASTING, "offsets_dir": tmp_path}
    async with producing(cluster) as producer:
        await asyncio.gather(*(producer.send(Message(topic, b"%d" % n)) for n in range(50)))
        async with (
            pushing(cluster, group, inboxes[0], topic, instance_name="one", **broadcasting),
            pushing(cluster, group, inboxes[1], topic, instance_name="two", **broadcasting),
        ):
            for inbox in inboxes:
                await inbox.count(50)
    assert inboxes[0].bodies == inboxes[1].bodies == sorted(b"%d" % n for n in range(50))


async def test_pull_consumer_iterates_seeks_and_goes_on_after_a_restart(cluster: Cluster) -> None:
    topic, group = fresh("Pull"), fresh("G")
    async with producing(cluster) as producer:
        await asyncio.gather(*(producer.send(Message(topic, b"%d" % n)) for n in range(100)))
    seen: list[bytes] = []
    options = {"namesrv": cluster.namesrv, "start": StartFrom.FIRST}
    for _ in range(2):  # the second run goes on where the first one stopped
        async with PullConsumer(group, subscribe={topic: "*"}, **options) as pulling:  # type: ignore[arg-type]
            async for message in pulling:
                seen.append(message.body)
                if len(seen) % 50 == 0:
                    break
    assert sorted(seen) == sorted(b"%d" % n for n in range(100))
    async with PullConsumer(group, **options) as pulling:  # type: ignore[arg-type]
        await pulling.assign(await pulling.queues(topic))
        assert await pulling.poll(timeout_ms=500) == []
        queue = pulling.assignment[0]
        end = await pulling.max_offset(queue)
        assert await pulling.committed(queue) == end
        await pulling.seek(queue, end - 1)
        assert [message.queue_offset for message in await pulling.poll()] == [end - 1]
        assert await pulling.offset_for_time(queue, 0) == 0


@pytest.mark.parametrize("start", [StartFrom.FIRST, StartFrom.TIMESTAMP, StartFrom.LAST])
async def test_new_group_starts_where_it_was_told(cluster: Cluster, start: StartFrom) -> None:
    topic = await create(cluster, fresh("Start"))
    inbox = Inbox()
    async with producing(cluster) as producer:
        await producer.send_batch([Message(topic, b"old")] * 8)
        await asyncio.sleep(0.05)
        middle_ms = time.time_ns() // 1_000_000
        await asyncio.gather(*(producer.send(Message(topic, b"new")) for _ in range(8)))
        async with pushing(cluster, fresh("G"), inbox, topic, start=start, start_ms=middle_ms):
            await producer.send(Message(topic, b"last"))
            await inbox.count(17)
            await asyncio.sleep(0.3)
    # brokers start every group at 0 in a topic whose first message is still in memory
    assert Counter(inbox.bodies) == {b"old": 8, b"new": 8, b"last": 1}


async def test_killed_broker_costs_no_acknowledged_message(breakable: Cluster) -> None:
    topic, group = await create(breakable, fresh("Kill"), 2), fresh("G")
    inbox, acknowledged, refused = Inbox(), [], 0
    async with (
        producing(breakable, timeout_ms=3_000) as producer,
        pushing(breakable, group, inbox, topic),
    ):
        for number in range(400):
            body = b"%d" % number
            if number == 100:
                breakable.brokers[0].kill()
            if number == 300:
                await asyncio.to_thread(breakable.brokers[0].start)
            try:
                assert (await producer.send(Message(topic, body))).ok
                acknowledged.append(body)
            except SendFailed:
                refused += 1
        await inbox.until(lambda: set(acknowledged) <= {m.body for m in inbox.messages})
    assert refused == 0, "the other broker was there all the time"


async def test_consumer_reads_on_when_its_only_broker_comes_back(breakable: Cluster) -> None:
    breakable.brokers[1].stop()
    topic, group = fresh("Back"), fresh("G")
    inbox = Inbox()
    async with (
        producing(breakable) as producer,
        pushing(breakable, group, inbox, topic) as consumer,
    ):
        await producer.send(Message(topic, b"before"))
        await inbox.count(1)
        breakable.brokers[0].kill()
        with pytest.raises(ClientError):
            await producer.send(Message(topic, b"nobody is there"))
        await asyncio.to_thread(breakable.brokers[0].start)
        await producer.send(Message(topic, b"after"))
        await inbox.until(lambda: any(m.body == b"after" for m in inbox.messages))
        waiting = asyncio.create_task(consumer.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


async def test_sends_go_on_while_the_name_server_is_away_and_after_it_is_back(
    breakable: Cluster,
) -> None:
    topic = await create(breakable, fresh("Names"))
    inbox = Inbox()
    async with producing(breakable) as producer, pushing(breakable, fresh("G"), inbox, topic):
        await producer.send(Message(topic, b"0"))
        breakable.name_server.kill()
        for number in range(1, 20):
            assert (await producer.send(Message(topic, b"%d" % number))).ok
        await inbox.count(20)
        await asyncio.to_thread(breakable.name_server.start)
        await asyncio.to_thread(
            wait_until,
            lambda: registered(breakable.namesrv, "broker-a"),
            40,
            "broker-a is registered again",
        )
        other = fresh("Later")
        assert (await producer.send(Message(other, b"a new topic"))).ok


async def test_nothing_runs_on_after_the_last_client_stopped(cluster: Cluster) -> None:
    """No task, no socket."""
    before = set(os.listdir("/proc/self/fd"))
    async with producing(cluster) as producer:
        await producer.send(Message(fresh("End"), b"x"))
    names = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
    assert not {name for name in names if "client" in name or "connect" in name}
    assert len(set(os.listdir("/proc/self/fd")) - before) == 0
