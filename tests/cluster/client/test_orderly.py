"""Ordered consumers: one message after the other, under a lock. No sockets; time jumps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster, ext, settle
from timekit import run

from tandemmq.cluster.client import (
    ConsumeResult,
    MessageModel,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.cluster.remoting import RequestCode


def orderly(handler: Any, **options: Any) -> PushConsumer:
    options.setdefault("start", StartFrom.FIRST)
    return PushConsumer(
        "CG", handler, namesrv=NAME_SERVER, subscribe={"T": "*"}, orderly=True, **options
    )


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110 - time jumps
        await asyncio.sleep(0.05)


def held_locks(broker: FakeBroker) -> set[int]:
    return {queue_id for (_, topic, queue_id) in broker.locks if topic == "T"}


def test_each_queue_is_handled_in_order_by_one_call_at_a_time(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 3)
    seen: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    at_work: set[int] = set()
    together = 0

    async def handle(message: ReceivedMessage) -> None:
        nonlocal together
        number = message.queue.queue_id
        assert number not in at_work
        at_work.add(number)
        together = max(together, len(at_work))
        await asyncio.sleep(0.01 if len(seen[number]) % 7 == 0 else 0)
        at_work.discard(number)
        seen[number].append(message.body)

    async def main() -> None:
        expected = [b"%03d" % n for n in range(100)]
        for queue_id in range(3):
            await broker.fill("T", queue_id, expected)
        async with orderly(handle):
            await until(lambda: sum(map(len, seen.values())) == 300)
            assert held_locks(broker) == {0, 1, 2}
        assert all(bodies == expected for bodies in seen.values())
        assert together > 1  # of different queues

    run(main())
    assert not broker.locks
    assert {broker.offsets["CG", "T", number] for number in range(3)} == {100}


@pytest.mark.parametrize("plain", [False, True])
def test_failed_message_stops_its_queue_until_it_succeeds(
    cluster: FakeCluster, plain: bool
) -> None:
    broker = cluster.add("broker-a", "T", 1)
    tries: list[tuple[bytes, int, float]] = []

    def handle(message: ReceivedMessage) -> ConsumeResult | None:
        tries.append((message.body, message.reconsume_times, asyncio.get_running_loop().time()))
        if message.body == b"1" and message.reconsume_times < 3:
            return ConsumeResult.SUSPEND
        return None

    async def asynchronously(message: ReceivedMessage) -> ConsumeResult | None:
        return handle(message)

    async def main() -> None:
        await broker.fill("T", 0, [b"0", b"1", b"2"])
        listener = asynchronously
        if plain:

            class Raises:
                async def __call__(self, message: ReceivedMessage) -> None:
                    if handle(message) is not None:
                        raise OSError("not now")

            listener = Raises()  # type: ignore[assignment]
        async with orderly(listener, suspend_ms=500):
            await until(lambda: len(tries) == 6)

    run(main())
    assert [body for body, _, _ in tries] == [b"0", b"1", b"1", b"1", b"1", b"2"]
    assert [times for body, times, _ in tries if body == b"1"] == [0, 1, 2, 3]
    moments = [at for body, _, at in tries if body == b"1"]
    assert all(0.45 < later - earlier < 0.7 for earlier, later in itertools.pairwise(moments))
    assert not broker.sent_back  # an ordered message never goes to the back of the line


def test_message_that_fails_too_often_goes_to_the_retry_topic_and_the_queue_goes_on(
    cluster: FakeCluster,
) -> None:
    broker = cluster.add("broker-a", "T", 1)
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> ConsumeResult:
        seen.append(message.body)
        bad = message.body == b"bad"
        return ConsumeResult.RECONSUME_LATER if bad else ConsumeResult.SUCCESS

    async def main() -> None:
        await broker.fill("T", 0, [b"bad", b"good"])
        async with orderly(handle, reconsume_times_max=2, suspend_ms=10):
            await until(lambda: b"good" in seen)

    run(main())
    assert seen == [b"bad"] * 3 + [b"good"]
    sends = [each for each in broker.requests if each.code == RequestCode.SEND_MESSAGE_V2]
    assert [ext(each)["b"] for each in sends] == ["%RETRY%CG"]
    assert len(broker.queues["%DLQ%CG", 0]) == 1
    assert "RETRY_TOPIC\x01T\x02" in ext(sends[0])["i"]
    assert broker.offsets["CG", "T", 0] == 2


def test_queue_is_not_read_while_another_client_has_its_lock(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 2)
    broker.locks["CG", "T", 1] = "somebody"
    seen: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue.queue_id)

    async def main() -> None:
        for queue_id in range(2):
            await broker.fill("T", queue_id, [b"x"])
        async with orderly(handle):
            await until(lambda: seen)
            await asyncio.sleep(10)
            assert seen == [0]
            del broker.locks["CG", "T", 1]
            began = asyncio.get_running_loop().time()
            await until(lambda: len(seen) == 2)
            assert asyncio.get_running_loop().time() - began < 21

    run(main())


def test_lock_that_got_lost_stops_the_queue_until_it_is_back(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async def main() -> None:
        async with orderly(handle):
            await settle()
            broker.locks["CG", "T", 0] = "thief"
            await asyncio.sleep(45)  # the next renewal says so
            await broker.fill("T", 0, [b"x"])
            await asyncio.sleep(5)
            assert not seen
            del broker.locks["CG", "T", 0]
            await until(lambda: seen)

    run(main())


def test_queue_moves_only_after_its_message_at_work_is_done(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 2)
    order: list[str] = []
    release = asyncio.Event()

    def listener(name: str) -> Any:
        async def handle(message: ReceivedMessage) -> None:
            order.append(f"{name} begins {message.queue.queue_id}{message.body.decode()}")
            if message.body == b"slow":
                await release.wait()
            order.append(f"{name} ends {message.queue.queue_id}{message.body.decode()}")

        return handle

    async def main() -> None:
        await broker.fill("T", 1, [b"slow", b"next"])
        async with orderly(listener("first")):
            await until(lambda: order == ["first begins 1slow"])
            async with orderly(listener("second")) as second:
                await asyncio.sleep(15)
                assert order == ["first begins 1slow"]
                release.set()
                await until(lambda: len(order) == 4)
                moved = [queue.queue_id for queue in second.assignment if queue.topic == "T"]
                assert moved == [1]

    run(main())
    assert order == [
        "first begins 1slow",
        "first ends 1slow",
        "second begins 1next",
        "second ends 1next",
    ]


def test_batches_are_taken_whole_and_come_again_whole(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    seen: list[list[bytes]] = []

    async def handle(messages: Any) -> ConsumeResult | None:
        seen.append([message.body for message in messages])
        return ConsumeResult.SUSPEND if len(seen) == 1 else None

    async def main() -> None:
        await broker.fill("T", 0, [b"%d" % n for n in range(5)])
        consumer = PushConsumer(
            "CG", on_batch=handle, batch_count=3, namesrv=NAME_SERVER, subscribe={"T": "*"},
            orderly=True, start=StartFrom.FIRST, suspend_ms=10,
        )  # fmt: skip
        async with consumer:
            await until(lambda: sum(map(len, seen)) == 8)

    run(main())
    assert seen == [[b"0", b"1", b"2"], [b"0", b"1", b"2"], [b"3", b"4"]]


def test_broadcasting_in_order_needs_no_lock(cluster: FakeCluster, tmp_path: Any) -> None:
    broker = cluster.add("broker-a", "T", 1)
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async def main() -> None:
        await broker.fill("T", 0, [b"0", b"1"])
        async with orderly(handle, model=MessageModel.BROADCASTING, offsets_dir=tmp_path):
            await until(lambda: len(seen) == 2)

    run(main())
    assert RequestCode.LOCK_BATCH_MQ not in broker.codes()
