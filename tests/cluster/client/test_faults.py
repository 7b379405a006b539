"""Latency fault tolerance: RocketMQ's table, what is avoided, and what comes back. Time jumps."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from clientkit import NAME_SERVER, FakeCluster
from timekit import run

from tandemmq.cluster.client import Message, MessageQueue, Producer, SendFailed
from tandemmq.cluster.client.producing.faults import LatencyFaults, penalty_ms
from tandemmq.cluster.client.producing.selection import QueueRing
from tandemmq.cluster.remoting import Command, RequestCode


@pytest.mark.parametrize(
    ("elapsed", "penalty"),
    [
        (0, 0), (50, 0), (549, 0), (550, 2_000), (1_799, 2_000), (1_800, 5_000), (3_000, 6_000),
        (5_000, 10_000), (15_000, 30_000), (60_000, 30_000),
    ],
)  # fmt: skip
def test_penalties_are_those_of_the_table(elapsed: int, penalty: int) -> None:
    assert penalty_ms(elapsed) == penalty


def test_failed_call_counts_as_ten_seconds_and_ends() -> None:
    faults = LatencyFaults()
    faults.called("a", 3, 1_000, failed=True)
    assert not faults.available("a", 10_999)
    assert faults.available("a", 11_000)
    assert faults.reachable("a")
    assert faults.available("never called", 0)


def test_good_call_does_not_shorten_a_penalty_and_a_probe_makes_reachable_again() -> None:
    faults = LatencyFaults()
    faults.called("a", 0, 0, failed=True, reachable=False)
    assert faults.unreachable() == ["a"]
    faults.answered("a")
    assert faults.reachable("a")
    faults.called("a", 1, 5, failed=False)
    assert not faults.available("a", 9_000)


def test_ring_prefers_available_then_reachable_then_any() -> None:
    queues = [MessageQueue("T", name, 0) for name in ("a", "b", "c")]
    ring = QueueRing(random.Random(1))

    def picked(*wanted: Any) -> set[str]:
        return {ring.pick(queues, "a", wanted).broker_name for _ in range(12)}

    assert picked(lambda name: name == "b", lambda name: True) == {"b"}
    assert picked(lambda name: False, lambda name: name == "c") == {"c"}
    assert picked(lambda name: False, lambda name: False) == {"a", "b", "c"}


def test_slow_broker_gets_nothing_until_its_penalty_is_over(cluster: FakeCluster) -> None:
    slow = cluster.add("broker-a", "T", 1)
    cluster.add("broker-b", "T", 1)
    store = slow.handle_send_message_v2

    async def slowly(command: Command, wire: Any) -> Command:
        await asyncio.sleep(0.6)
        return await store(command, wire)

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER, avoid_slow_brokers=True) as producer:

            async def used(count: int) -> set[str]:
                results = [await producer.send(Message("T", b"x")) for _ in range(count)]
                return {result.queue.broker_name for result in results}

            slow.handle_send_message_v2 = slowly  # type: ignore[method-assign]
            assert await used(4) == {"broker-a", "broker-b"}
            assert await used(20) == {"broker-b"}
            await asyncio.sleep(2.1)
            slow.handle_send_message_v2 = store  # type: ignore[method-assign]
            assert await used(4) == {"broker-a", "broker-b"}

    run(main())


def test_only_broker_is_used_whatever_its_penalty(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER, avoid_slow_brokers=True) as producer:
            broker.trouble = lambda command: (
                command.reply(2, "busy") if command.code == RequestCode.SEND_MESSAGE_V2 else None
            )
            with pytest.raises(SendFailed):
                await producer.send(Message("T", b"x"))
            broker.trouble = lambda command: None
            assert (await producer.send(Message("T", b"x"))).ok

    run(main())


def test_unreachable_broker_is_probed_and_used_again(cluster: FakeCluster) -> None:
    one = cluster.add("broker-a", "T", 1)
    cluster.add("broker-b", "T", 1)

    async def main() -> None:
        options: dict[str, Any] = {"avoid_slow_brokers": True, "probe_brokers": True}
        async with Producer("PG", namesrv=NAME_SERVER, **options) as producer:
            one.down = True
            results = [await producer.send(Message("T", b"x")) for _ in range(4)]
            assert {result.queue.broker_name for result in results} == {"broker-b"}
            assert producer._faults is not None
            assert producer._faults.unreachable() == ["broker-a"]
            one.down = False
            await asyncio.sleep(12)
            assert producer._faults.unreachable() == []
            results = [await producer.send(Message("T", b"x")) for _ in range(4)]
            assert {result.queue.broker_name for result in results} == {"broker-a", "broker-b"}

    run(main())
