"""How listeners are called, their verdicts, time-outs, pauses and hooks. No sockets; time jumps."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster, ext, received, settle
from timekit import run

from tandemmq.cluster.client import (
    CacheLimits,
    ConsumeContext,
    ConsumeResult,
    MessageQueue,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    StartFrom,
)
from tandemmq.cluster.client.consuming.listening import Calls
from tandemmq.cluster.remoting import Command, RequestCode

Verdict = Any


def pushing(listener: Any = None, **options: Any) -> PushConsumer:
    options.setdefault("start", StartFrom.FIRST)
    return PushConsumer("CG", listener, namesrv=NAME_SERVER, subscribe={"T": "*"}, **options)


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110 - time jumps
        await asyncio.sleep(0.05)


async def verdicts(
    listener: Any, count: int = 3, *, batch: bool = False
) -> tuple[list[int], list[tuple[int, int]]]:
    """(queue offsets finished, (queue offset, delay level) failed), in as many turns as it takes:
    a loaded machine may use up a turn's time on one message."""
    return await in_turns(listener, count, turns_max=count, batch=batch)


async def in_turns(
    listener: Any, count: int, *, turns_max: int, batch: bool = False
) -> tuple[list[int], list[tuple[int, int]]]:
    calls = Calls("CG", None if batch else listener, listener if batch else None, ())
    calls.open(2)
    finished: list[ReceivedMessage] = []
    failed = []
    try:
        for _ in range(turns_max):
            if rest := [received(n) for n in range(len(finished), count)]:
                failed += await calls.call(rest, finished)
    finally:
        calls.close()
    return [m.queue_offset for m in finished], [
        (f.message.queue_offset, f.delay_level) for f in failed
    ]


@pytest.mark.parametrize(
    ("verdict", "level"),
    [
        (None, None),
        (ConsumeResult.SUCCESS, None),
        (ConsumeResult.RECONSUME_LATER, 0),
        (ConsumeResult.SUSPEND, 0),
        (RetryLater(5), 5),
        (RetryLater(-1), -1),
        (False, 0),
        ("done", 0),
        (ValueError("no"), 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("plain", [False, True])
async def test_verdict_decides_whether_a_message_comes_again_and_when(
    verdict: Verdict, level: int | None, plain: bool
) -> None:
    def decide(message: ReceivedMessage) -> Verdict:
        if message.queue_offset != 1:
            return None
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async def asynchronously(message: ReceivedMessage) -> Verdict:
        return decide(message)

    finished, failed = await verdicts(decide if plain else asynchronously)
    assert finished == [0, 1, 2]
    assert failed == ([] if level is None else [(1, level)])


async def test_plain_function_that_returns_an_awaitable_is_awaited() -> None:
    async def fail(message: ReceivedMessage) -> None:
        raise OSError("later")

    awaitable = await verdicts(lambda message: fail(message))  # noqa: PLW0108 - that is the point
    assert awaitable[1] == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize(
    ("verdict", "failed"),
    [
        (None, []),
        (2, [(2, 0)]),
        (0, [(0, 0), (1, 0), (2, 0)]),
        (7, []),
        (ConsumeResult.RECONSUME_LATER, [(0, 0), (1, 0), (2, 0)]),
        (RetryLater(4), [(0, 4), (1, 4), (2, 4)]),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
async def test_batch_verdict_counts_for_all_or_from_a_place_on(
    verdict: Verdict, failed: list[tuple[int, int]], plain: bool
) -> None:
    async def asynchronously(messages: Sequence[ReceivedMessage]) -> Verdict:
        return verdict

    listener = (lambda messages: verdict) if plain else asynchronously
    assert await verdicts(listener, batch=True) == ([0, 1, 2], failed)


async def test_turn_ends_when_its_time_is_used_up_and_the_rest_is_left() -> None:
    async def slow(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.02)

    assert (await in_turns(slow, 3, turns_max=1))[0] == [0]
    assert (await in_turns(lambda message: time.sleep(0.02), 3, turns_max=1))[0] == [0]


async def test_quick_plain_listener_changes_threads_once_for_many_messages() -> None:
    names = []
    assert (await verdicts(lambda message: names.append(threading.current_thread().name), 50))[
        0
    ] == list(range(50))
    assert len(set(names)) == 1
    assert names[0].startswith("consumer CG")


def test_slow_listeners_work_side_by_side(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    at_work = most = done = 0

    async def handle(message: ReceivedMessage) -> None:
        nonlocal at_work, most, done
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(1)
        at_work -= 1
        done += 1

    async def main() -> float:
        await broker.fill("T", 0, [b"x"] * 200)
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with pushing(handle, concurrency=10):
            await until(lambda: done == 200)
        return loop.time() - began

    took = run(main())
    assert most == 10
    assert took < 30


def test_slow_listener_does_not_grow_the_cache(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 2)
    seen = 0

    async def handle(message: ReceivedMessage) -> None:
        nonlocal seen
        seen += 1
        await asyncio.sleep(5)

    async def main() -> None:
        for queue_id in range(2):
            await broker.fill("T", queue_id, [b"x" * 1_000] * 2_000)
        limits = CacheLimits(messages_max=100, bytes_max=50_000)
        async with pushing(handle, concurrency=4, limits=limits, stop_timeout_ms=1) as consumer:
            assert consumer._membership is not None
            for _ in range(60):
                await asyncio.sleep(1)
                for held in consumer._membership.held.values():
                    # a pull that was under way may bring its 32 on top
                    assert held.cache.count <= 100 + 32
                    assert held.cache.byte_count <= 50_000 + 32_000
            assert 20 < seen < 100

    run(main())


def test_batches_hold_messages_of_one_queue_and_not_too_many(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 2)
    batches: list[list[tuple[int, bytes]]] = []

    async def handle(messages: Sequence[ReceivedMessage]) -> None:
        batches.append([(each.queue.queue_id, each.body) for each in messages])

    async def main() -> None:
        for queue_id in range(2):
            await broker.fill("T", queue_id, [b"%d" % n for n in range(50)])
        async with pushing(on_batch=handle, batch_count=8):
            await until(lambda: sum(map(len, batches)) == 100)

    run(main())
    assert all(len(batch) <= 8 and len({queue for queue, _ in batch}) == 1 for batch in batches)
    assert max(map(len, batches)) == 8
    assert {broker.offsets["CG", "T", number] for number in range(2)} == {50}


def test_retry_later_names_the_level_to_the_broker(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def handle(message: ReceivedMessage) -> RetryLater:
        return RetryLater(delay_level=int(message.body))

    async def main() -> None:
        await broker.fill("T", 0, [b"7", b"-1"])
        async with pushing(handle, reconsume_times_max=3):
            await until(lambda: len(broker.sent_back) == 2)

    run(main())
    assert sorted(each["delayLevel"] for each in broker.sent_back) == ["-1", "7"]
    assert {each["maxReconsumeTimes"] for each in broker.sent_back} == {"3"}


def test_message_that_is_consumed_for_too_long_is_sent_back_once(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    release = asyncio.Event()
    seen = 0

    async def handle(message: ReceivedMessage) -> ConsumeResult | None:
        nonlocal seen
        seen += 1
        if message.body == b"stuck":
            await release.wait()
            return ConsumeResult.RECONSUME_LATER
        return None

    async def main() -> None:
        await broker.fill("T", 0, [b"stuck", b"next"])
        async with pushing(handle, consume_timeout_ms=1_000):
            await until(lambda: broker.sent_back)
            assert [each["delayLevel"] for each in broker.sent_back] == ["3"]
            release.set()
            await settle()
        assert broker.offsets["CG", "T", 0] == 2
        assert len(broker.sent_back) == 1

    run(main())


def test_suspended_consumer_hands_nothing_over_until_it_goes_on(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async def main() -> None:
        async with pushing(handle) as consumer:
            await broker.fill("T", 0, [b"0"])
            await until(lambda: seen)
            consumer.suspend()
            await settle()
            await broker.fill("T", 0, [b"1", b"2"])
            await asyncio.sleep(60)
            assert seen == [b"0"]
            consumer.resume()
            await until(lambda: len(seen) == 3)

    run(main())


def test_paused_queue_of_a_pull_consumer_waits_and_the_others_go_on(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 2)
    first, second = (MessageQueue("T", "broker-a", number) for number in range(2))

    async def main() -> None:
        for queue_id in range(2):
            await broker.fill("T", queue_id, [b"%d-%d" % (queue_id, n) for n in range(3)])
        consumer = PullConsumer(
            "CG", namesrv=NAME_SERVER, subscribe={"T": "*"}, start=StartFrom.FIRST
        )
        async with consumer:
            await settle()
            consumer.pause(first)
            got = [m.body for m in await consumer.poll(10, timeout_ms=1_000)]
            got += [m.body for m in await consumer.poll(10, timeout_ms=1_000)]
            assert got == [b"1-0", b"1-1", b"1-2"]
            consumer.resume()
            got = [m.body for m in await consumer.poll(10)]
            assert got == [b"0-0", b"0-1", b"0-2"]
            assert consumer.position(second) == 3

    run(main())


def test_what_async_for_fetched_of_a_paused_queue_comes_after_the_pause(
    cluster: FakeCluster,
) -> None:
    broker = cluster.add("broker-a", "T", 1)
    seen: list[bytes] = []

    async def main() -> None:
        await broker.fill("T", 0, [b"0", b"1", b"2"])
        consumer = PullConsumer(
            "CG", namesrv=NAME_SERVER, subscribe={"T": "*"}, start=StartFrom.FIRST
        )
        async with consumer:
            async for message in consumer:
                seen.append(message.body)
                if len(seen) == 1:
                    consumer.pause()
                    asyncio.get_running_loop().call_later(60, consumer.resume)
                if len(seen) == 3:
                    break
        assert seen == [b"0", b"1", b"2"]

    run(main())


class Watcher:
    """A hook that keeps what it saw, and is broken besides."""

    def __init__(self) -> None:
        self.contexts: list[ConsumeContext] = []

    def before_consume(self, context: ConsumeContext) -> None:
        context.note["mine"] = len(self.contexts)
        raise RuntimeError("a broken hook costs nothing")

    def after_consume(self, context: ConsumeContext) -> None:
        self.contexts.append(context)


@pytest.mark.parametrize("batch", [False, True])
def test_hooks_see_each_call_and_cannot_break_it(cluster: FakeCluster, batch: bool) -> None:
    broker = cluster.add("broker-a", "T", 1)
    watcher = Watcher()

    async def handle(given: Any) -> None:
        bodies = [each.body for each in given] if batch else [given.body]
        if b"bad" in bodies:
            raise ValueError("no")

    async def main() -> None:
        await broker.fill("T", 0, [b"good", b"bad"])
        options = {"on_batch": handle} if batch else {"listener": handle}
        async with pushing(**options, hooks=[watcher]):
            await until(lambda: broker.sent_back)

    run(main())
    outcomes = [(len(each.messages), each.handled, type(each.problem)) for each in watcher.contexts]
    one = [(1, True, type(None)), (1, False, ValueError)]
    assert outcomes == ([(2, False, ValueError)] if batch else one)
    assert watcher.contexts[0].note == {"mine": 0}


def test_pulls_carry_the_position_so_that_a_crash_repeats_little(cluster: FakeCluster) -> None:
    broker: FakeBroker = cluster.add("broker-a", "T", 1)
    seen = 0

    async def handle(message: ReceivedMessage) -> None:
        nonlocal seen
        seen += 1

    async def main() -> None:
        await broker.fill("T", 0, [b"x"] * 100)
        async with pushing(handle):
            await until(lambda: seen == 100)
            await broker.fill("T", 0, [b"x"])
            await settle()
            pulls = [ext(each) for each in broker.requests if each.code == RequestCode.PULL_MESSAGE]
            ours = [each for each in pulls if each["topic"] == "T"]
            assert int(ours[-1]["sysFlag"]) & 1
            assert int(ours[-1]["commitOffset"]) >= 96
            assert RequestCode.UPDATE_CONSUMER_OFFSET not in broker.codes()

    run(main())


def test_one_of_the_two_listeners_is_needed() -> None:
    async def handle(message: Any) -> None:
        """A listener."""

    for options in ({}, {"on_message": handle, "on_batch": handle}):
        with pytest.raises(ValueError, match="on_message or on_batch"):
            PushConsumer("CG", namesrv=NAME_SERVER, subscribe={"T": "*"}, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("cluster", ["channels"], indirect=True)
def test_broker_that_answers_a_pull_as_a_send_is_asked_again(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    odd = [True]

    def confused(command: Command) -> Command | None:
        if command.code == RequestCode.PULL_MESSAGE and ext(command)["topic"] == "T" and odd:
            odd.pop()
            return command.reply(0, None, {"msgId": "0A", "queueId": "0", "queueOffset": "1"})
        return None

    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async def main() -> None:
        await broker.fill("T", 0, [b"x"])
        broker.trouble = confused
        async with pushing(handle):
            await until(lambda: seen)

    run(main())
    assert not odd
