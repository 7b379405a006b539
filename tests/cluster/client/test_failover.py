"""A group gets a new master: how soon producers are there, and how often name servers are asked. Time jumps."""

from __future__ import annotations

import asyncio

from clientkit import NAME_SERVER, FakeBroker, FakeCluster
from timekit import run

from tandemmq.cluster.client import Message, Producer

HEIR = "127.0.0.1:10961"


def move(cluster: FakeCluster, broker: FakeBroker) -> None:
    """The group's slave is master now, at an address of its own."""
    del cluster.brokers[broker.address]
    broker.address, broker.down = HEIR, False
    cluster.brokers[HEIR] = broker


async def send_until(producer: Producer, broker: FakeBroker, name: str, until_s: float) -> float:
    """When the first message is stored there."""
    loop = asyncio.get_running_loop()
    before = sum(map(len, broker.queues.values()))
    while sum(map(len, broker.queues.values())) == before:
        assert loop.time() < until_s, f"no message reached {name}"
        await producer.send(Message("T", b"x"))
        await asyncio.sleep(0.005)
    return loop.time()


def test_new_master_gets_messages_within_a_quarter_of_a_second(cluster: FakeCluster) -> None:
    dying, _ = cluster.add("broker-a", "T"), cluster.add("broker-b", "T")

    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with Producer("PG", namesrv=NAME_SERVER) as producer:
            await producer.send(Message("T", b"x"))
            await asyncio.sleep(60)
            for wire in cluster.wires:  # a process that is killed closes its connections
                if getattr(wire, "_address", "") == dying.address:
                    wire.lose() if hasattr(wire, "lose") else setattr(wire, "closed", True)
            dying.down = True
            killed_s = loop.time()
            loop.call_later(0.1, move, cluster, dying)
            return await send_until(producer, dying, "broker-a", killed_s + 5) - killed_s

    assert 0.1 <= run(main()) < 0.25


def test_master_that_stays_away_costs_name_servers_one_question_a_second(
    cluster: FakeCluster,
) -> None:
    gone, _ = cluster.add("broker-a", "T"), cluster.add("broker-b", "T")

    async def main() -> int:
        async with Producer("PG", namesrv=NAME_SERVER) as producer:
            await producer.send(Message("T", b"x"))
            await asyncio.sleep(60)
            gone.down = True
            before = len(cluster.route_requests)
            for _ in range(1_000):
                await producer.send(Message("T", b"x"))
                await asyncio.sleep(0.01)
            return len(cluster.route_requests) - before

    assert 8 <= run(main()) <= 20  # in ten seconds
