"""A group gets a new master: how soon producers are there, and how often name servers are asked. Time jumps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster
from timekit import run

from tandemmq.cluster.client import ClientError, Message, NoRoute, Producer
from tandemmq.cluster.remoting import Command, RequestCode

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


def test_a_new_master_is_found_before_the_topic_exists(cluster: FakeCluster) -> None:
    """The first send of a topic that no broker has created yet: where it may go changes with the template's route."""
    dying = cluster.add("broker-a", "TBW102")

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER, retries=0) as producer:
            await producer.queues("New")
            dying.down = True
            with pytest.raises(ClientError):
                await producer.send(Message("New", b"x"))
            move(cluster, dying)
            await asyncio.sleep(2)
            await producer.send(Message("New", b"x"))

    run(main())
    assert sum(map(len, dying.queues.values())) == 1


def test_sends_fail_and_the_producer_stops_while_a_topic_has_no_master(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master goes right after the first send: its route has no queue to send to, and nothing stays under way."""
    broker = cluster.add("broker-a", "T")
    route, answer = cluster.route_body, broker.answer

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER, retries=0) as producer:

            async def last_answer(command: Command, wire: Any) -> Command:
                found = await answer(command, wire)
                if command.code == RequestCode.SEND_MESSAGE_V2 and producer._instance is not None:
                    monkeypatch.setattr(
                        cluster,
                        "route_body",
                        lambda counts: route(counts).replace(b'{"0":', b'{"1":'),
                    )
                    await producer._instance.fetch_route("T")
                return found

            monkeypatch.setattr(broker, "answer", last_answer)
            await producer.send(Message("T", b"x"))
            with pytest.raises(ClientError):
                await producer.send(Message("T", b"x"))

    run(main())


def without_master(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the topic's only group has a slave and nobody to lead it."""
    route = cluster.route_body
    monkeypatch.setattr(
        cluster, "route_body", lambda counts: route(counts).replace(b'{"0":', b'{"1":')
    )


@pytest.mark.parametrize("topic", ["T", "New"])
def test_a_send_that_begins_between_two_masters_waits_for_the_next(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """The first of a topic, and the first of one that does not exist yet."""
    cluster.add("broker-a", {"T": "T", "New": "TBW102"}[topic])

    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with Producer("PG", namesrv=NAME_SERVER, timeout_ms=3_000) as producer:
            with monkeypatch.context() as election:
                without_master(cluster, election)
                began_s = loop.time()
                send = producer.send(Message(topic, b"x"))
                await asyncio.sleep(1.0)
                assert not send.done()
            await send
            return loop.time() - began_s

    assert 1.0 <= run(main()) < 1.2


def test_a_send_waits_for_a_master_as_long_as_it_may_take_and_no_longer(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add("broker-a", "T")
    without_master(cluster, monkeypatch)

    async def main() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        async with Producer("PG", namesrv=NAME_SERVER, timeout_ms=3_000) as producer:
            began_s = loop.time()
            with pytest.raises(NoRoute, match="a master"):
                await producer.send(Message("T", b"x"), timeout_ms=700)
            return loop.time() - began_s, len(cluster.route_requests)

    took_s, asked = run(main())
    assert 0.7 <= took_s < 0.8
    assert asked <= 9  # a tenth of a second between two questions
