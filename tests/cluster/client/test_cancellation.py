"""Cancelled at every step, once or again and again, nothing stays behind. No sockets; time jumps."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from clientkit import NAME_SERVER, FakeCluster, MemoryTransport, settle
from timekit import run

from tandemmq.cluster.client import (
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    StartFrom,
)
from tandemmq.cluster.client.reaching import instance
from tandemmq.cluster.remoting import ConnectionLost

STEPS_MAX = 400  # more than any scenario takes
Scenario = Callable[[], Coroutine[Any, Any, None]]


async def cancelled_after(steps: int, scenario: Scenario, impatient: bool) -> bool:
    """Run it for so many steps of the loop, then cancel. True when it had finished before."""
    task = asyncio.create_task(scenario())
    for _ in range(steps):
        if task.done():
            break
        await asyncio.sleep(0)
    finished = task.done()
    task.cancel()
    while impatient and not task.done():
        await asyncio.sleep(0)
        task.cancel()
    outcome = (await asyncio.gather(task, return_exceptions=True))[0]
    assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome
    return finished


def _here(current: asyncio.Task[Any] | None) -> list[asyncio.Task[Any]]:
    around = [each for each in asyncio.all_tasks() if "wait_for" in repr(each.get_coro())]
    return [*around, *([current] if current is not None else [])]


def left_behind(cluster: FakeCluster) -> list[object]:
    """Instances, tasks and open connections that are still there."""
    loop = asyncio.get_running_loop()
    open_wires = [
        each for each in cluster.wires if isinstance(each, MemoryTransport) and not each.closed
    ]
    # the runner's own task stands around each test
    tasks = [each for each in asyncio.all_tasks() if each not in _here(asyncio.current_task())]
    return [*instance._shared.get(loop, []), *tasks, *open_wires]


async def nothing_left(cluster: FakeCluster) -> None:
    await settle()
    await asyncio.sleep(10)  # closing connections have a second; requests under way their time-out
    await settle()
    assert not left_behind(cluster)


async def at_every_step(cluster: FakeCluster, scenario: Scenario, impatient: bool) -> None:
    for steps in range(STEPS_MAX):
        finished = await cancelled_after(steps, scenario, impatient)
        await nothing_left(cluster)
        for broker in cluster.brokers.values():
            for members in broker.members.values():
                members.clear()  # as a broker does when the connection is gone
            broker.locks.clear()
        if finished:
            assert steps > 3
            return
    raise AssertionError(f"not finished after {STEPS_MAX} steps")


patience = pytest.mark.parametrize("impatient", [False, True], ids=["once", "again and again"])


@patience
def test_producer_from_start_to_stop(cluster: FakeCluster, impatient: bool) -> None:
    cluster.add("broker-a", "T", 2)

    async def scenario() -> None:
        async with Producer("PG", namesrv=NAME_SERVER) as producer:
            await producer.send(Message("T", b"x"))
            producer.send(Message("T", b"nobody waits"))
            await asyncio.gather(*(producer.send(Message("T", b"y")) for _ in range(3)))
            async for _ in producer.send_many(Message("T", b"z") for _ in range(3)):
                pass
            await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
            await producer.send_oneway(Message("T", b"3"))

    run(at_every_step(cluster, scenario, impatient))


def sends(producer: Producer) -> dict[str, Callable[[], Awaitable[object]]]:
    async def many() -> None:
        async for _ in producer.send_many(Message("T", b"%d" % n) for n in range(5)):
            pass

    return {
        "send": lambda: producer.send(Message("T", b"x")),
        "compressed": lambda: producer.send(Message("T", b"x" * 10_000)),
        "to a queue": lambda: producer.send(
            Message("T", b"x"), queue=MessageQueue("T", "broker-a", 1)
        ),
        "in its own time": lambda: producer.send(Message("T", b"x"), timeout_ms=500),
        "many": many,
        "batch": lambda: producer.send_batch([Message("T", b"x")]),
        "oneway": lambda: producer.send_oneway(Message("T", b"x")),
    }


@pytest.mark.parametrize(
    "way", ["send", "compressed", "to a queue", "in its own time", "many", "batch", "oneway"]
)
def test_send_given_up_at_any_step_leaves_its_room_and_the_next_works(
    cluster: FakeCluster, way: str
) -> None:
    cluster.add("broker-a", "T", 2)

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER, in_flight_max=2) as producer:
            for warm in (False, True):
                if warm:
                    await producer.send(Message("T", b"the fast way is open"))
                for steps in range(STEPS_MAX):

                    async def scenario() -> None:
                        await sends(producer)[way]()

                    finished = await cancelled_after(steps, scenario, impatient=False)
                    await settle()
                    assert producer.in_flight == 0
                    (running,) = instance._shared[asyncio.get_running_loop()]
                    assert not running.answers.waiting
                    result = await producer.send(Message("T", b"next"))
                    assert isinstance(result, SendResult)
                    if finished:
                        break
        await nothing_left(cluster)

    run(main())


def test_send_given_up_while_it_stands_in_line_is_never_sent(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER, in_flight_max=1) as producer:
            await producer.send(Message("T", b"warm"))
            futures = [producer.send(Message("T", b"%d" % n)) for n in range(4)]
            assert producer.in_flight == 1
            futures[2].cancel()
            await asyncio.gather(*futures, return_exceptions=True)
            assert [future.cancelled() for future in futures] == [False, False, True, False]

    run(main())
    assert len(broker.queues["T", 0]) == 4


@patience
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_push_consumer_from_start_to_stop(
    cluster: FakeCluster, impatient: bool, orderly: bool
) -> None:
    broker = cluster.add("broker-a", "T", 2)

    async def scenario() -> None:
        got = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await asyncio.sleep(0)
            if message.body == b"3":
                got.set()

        consumer = PushConsumer(
            "CG", handle, namesrv=NAME_SERVER, subscribe={"T": "*"}, start=StartFrom.FIRST,
            orderly=orderly,
        )  # fmt: skip
        async with consumer:
            await got.wait()

    async def main() -> None:
        await broker.fill("T", 0, [b"%d" % n for n in range(4)])

        async def afresh() -> None:
            broker.offsets.clear()
            await scenario()

        await at_every_step(cluster, afresh, impatient)

    run(main())


@patience
def test_pull_consumer_from_start_to_stop(cluster: FakeCluster, impatient: bool) -> None:
    broker = cluster.add("broker-a", "T", 2)

    async def scenario() -> None:
        broker.offsets.clear()
        consumer = PullConsumer(
            "CG", namesrv=NAME_SERVER, subscribe={"T": "*"}, start=StartFrom.FIRST
        )
        async with consumer:
            assert await consumer.poll()
            await consumer.seek(MessageQueue("T", "broker-a", 0), 1)
            await consumer.commit()
            async for _ in consumer:
                break

    async def main() -> None:
        await broker.fill("T", 0, [b"%d" % n for n in range(4)])
        await at_every_step(cluster, scenario, impatient)

    run(main())


def test_poll_given_up_at_any_step_loses_no_message(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        for steps in range(40):
            broker.queues.clear()
            broker.offsets.clear()
            seen: list[bytes] = []
            consumer = PullConsumer(
                "CG", namesrv=NAME_SERVER, subscribe={"T": "*"}, start=StartFrom.FIRST
            )
            async with consumer:

                async def scenario(
                    consumer: PullConsumer = consumer, seen: list[bytes] = seen
                ) -> None:
                    seen.extend(message.body for message in await consumer.poll(2))

                task = asyncio.create_task(broker.fill("T", 0, [b"0", b"1", b"2", b"3"]))
                await cancelled_after(steps, scenario, impatient=False)
                await task
                while len(seen) < 4:
                    messages = await consumer.poll(10)
                    assert messages, seen
                    seen += [message.body for message in messages]
            assert seen == [b"0", b"1", b"2", b"3"]
            broker.members.clear()

    run(main())


def test_future_of_a_send_is_also_taken_by_tasks_and_task_groups(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER) as producer:
            task = asyncio.create_task(producer.send(Message("T", b"0")))
            assert (await task).ok
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(producer.send(Message("T", b"x"))) for _ in range(3)]
            assert all(each.result().ok for each in tasks)
            assert (await asyncio.wait_for(producer.send(Message("T", b"1")), 5)).ok
            assert all(
                each.ok for each in await asyncio.gather(*map(producer.send, [Message("T", b"2")]))
            )
            broker.handle_send_message_v2 = hang  # type: ignore[method-assign]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.send(Message("T", b"3")), 1)
            assert producer.in_flight == 0
        gc.collect()  # futures nobody looked at would complain here

    async def hang(*_: object) -> Any:
        await asyncio.sleep(30)
        raise ConnectionLost("broker-a")

    run(main())
