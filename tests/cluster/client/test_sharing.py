"""Members share the queues alike while a broker restarts. No sockets; time jumps."""

from __future__ import annotations

import asyncio
import json
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster, MemoryTransport
from timekit import run

from tandemmq.cluster.client import (
    ClientConfig,
    MessageQueue,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.cluster.client.consuming.rebalance import Change, allocate_averagely, without
from tandemmq.cluster.client.consuming.sharing import AbsentBrokers, Sharing
from tandemmq.cluster.client.reaching.jobs import Jobs
from tandemmq.cluster.client.reaching.routes import TopicRoute, parse_route
from tandemmq.cluster.remoting import Command

A0, A1 = (MessageQueue("T", "broker-a", number) for number in range(2))
B0, B1 = (MessageQueue("T", "broker-b", number) for number in range(2))
OTHER = MessageQueue("U", "broker-a", 0)
ROUTE_S = 30  # how often a member looks at the routes by itself
HEARTBEAT_S = 30


def test_queues_of_a_broker_that_left_count_on_for_a_while() -> None:
    absent = AbsentBrokers(30)
    both = ("broker-a", "broker-b")
    assert absent.look("T", [A0, A1, B0], both, 0) == frozenset()
    assert absent.look("U", [OTHER], ("broker-a",), 0) == frozenset()
    for now_s in (100, 129):  # from when it was missed, not from when it was seen
        assert absent.look("T", [B0], ("broker-b",), now_s) == {A0, A1}
    assert absent.look("T", [B0], ("broker-b",), 130) == frozenset()
    assert absent.look("T", [B0], ("broker-b",), 131) == frozenset()


def test_a_broker_that_came_back_and_leaves_again_has_all_its_time_again() -> None:
    absent = AbsentBrokers(30)
    for start_s in (0, 29, 58):
        assert absent.look("T", [A0, B0], ("broker-a", "broker-b"), start_s) == frozenset()
        assert absent.look("T", [B0], ("broker-b",), start_s + 28) == {A0}


def test_queues_that_may_not_be_read_any_more_count_no_more_though_their_broker_is_there() -> None:
    absent = AbsentBrokers(30)
    both = ("broker-a", "broker-b")
    assert absent.look("T", [A0, A1, B0], both, 0) == frozenset()
    assert absent.look("T", [B0], both, 1) == frozenset()
    assert absent.look("T", [B0], ("broker-b",), 2) == frozenset()


def test_queues_of_an_absent_broker_are_neither_begun_nor_kept() -> None:
    change = Change((A0, B0), (B1,), (A1,))
    assert without(change, {A0, A1}, [A1, B1]) == Change((B0,), (A1, B1), (A1,))
    assert without(change, set(), [A1, B1]) == change


class Group:
    """Two members of a group that read topic T from the beginning."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.members = [
            PushConsumer(
                "CG", self._take, namesrv=NAME_SERVER, subscribe={"T": "*"}, start=StartFrom.FIRST
            )
            for _ in range(2)
        ]

    async def _take(self, message: ReceivedMessage) -> None:
        self.bodies.append(message.body)

    def shares(self) -> list[list[MessageQueue]]:
        """Queues of T of each member."""
        return [sorted(q for q in each.assignment if q.topic == "T") for each in self.members]


async def test_a_broker_that_was_found_restarted_by_asking_it_is_not_believed_either() -> None:
    """The request opens the connection anew, and says who we are: the list has this member only."""
    wake = asyncio.Event()
    here = SimpleNamespace(
        client_id="me", config=ClientConfig(NAME_SERVER), rng=random.Random(1),
        restarted=False, members=["me", "you"],
    )  # fmt: skip
    cluster = FakeCluster()
    cluster.add("broker-a")
    here.route = parse_route(cluster.route_body({"broker-a": 2}))

    async def read_route(topic: str) -> TopicRoute:
        return here.route

    async def reader_address(name: str, topic: str) -> tuple[str, int]:
        return "127.0.0.1:10911", 0

    async def request(address: str, command: Command, timeout_ms: int) -> Command:
        here.restarted = here.members == ["me"]
        return command.reply(body=json.dumps({"consumerIdList": here.members}).encode())

    here.read_route, here.reader_address = read_route, reader_address
    here.connections = SimpleNamespace(request=request)
    here.came_back = lambda name: here.restarted
    jobs = Jobs()
    sharing = Sharing(cast(Any, here), "CG", allocate_averagely, jobs, wake.set)
    assert await sharing.plan("T", []) == Change((A0,), (), (A1,))
    here.members = ["me"]
    assert await sharing.plan("T", [A0]) is None
    here.members = ["me", "you"]
    assert await sharing.plan("T", [A0]) == Change((), (), (A1,))


def goes_away(cluster: FakeCluster, broker: FakeBroker) -> None:
    """As with kill -9: its connections end, and the name server takes it out of all routes."""
    broker.down = True
    broker.members.clear()
    for wire in cluster.wires:
        if wire._address == broker.address:
            if isinstance(wire, MemoryTransport):
                wire.lose()
            else:
                wire.closed = True
    for queues in cluster.topics.values():
        queues.pop(broker.name, None)


def comes_back(cluster: FakeCluster, broker: FakeBroker, queue_count: int) -> None:
    """With the topic's queues."""
    broker.down = False
    cluster.topics["T"][broker.name] = queue_count


async def send_for(seconds: int, number: int, *brokers: FakeBroker) -> list[bytes]:
    """A message to each queue 0 and 1 of each broker every second."""
    sent = []
    for second in range(seconds):
        for broker in brokers:
            for queue_id in range(2):
                sent.append(b"%d %s:%d %d" % (number, broker.name.encode(), queue_id, second))
                await broker.fill("T", queue_id, [sent[-1]])
        await asyncio.sleep(1)
    return sent


@pytest.mark.parametrize("away_s", [1, 5, ROUTE_S - 5])
def test_while_a_broker_restarts_nobody_reads_what_another_member_reads(
    cluster: FakeCluster, away_s: int
) -> None:
    """The member with its queues sees at once that it is gone, the other one up to half a minute later."""
    one, two = cluster.add("broker-a", "T", 2), cluster.add("broker-b", "T", 2)

    async def main() -> None:
        group = Group()
        async with group.members[0], group.members[1]:
            await asyncio.sleep(2 * ROUTE_S)
            before = group.shares()
            assert sorted(before) == [[A0, A1], [B0, B1]]
            sent = await send_for(5, 0, one, two)
            goes_away(cluster, one)
            sent += await send_for(away_s, 1, two)
            assert group.shares()[before.index([B0, B1])] == [B0, B1]
            assert set(group.shares()[before.index([A0, A1])]) <= {A0, A1}
            comes_back(cluster, one, 2)
            sent += await send_for(2 * ROUTE_S, 2, one, two)
            assert group.shares() == before
            assert sorted(group.bodies) == sorted(sent)

    run(main())


def test_queues_of_those_that_stayed_are_shared_anew_when_a_broker_stays_away(
    cluster: FakeCluster,
) -> None:
    one = cluster.add("broker-a", "T", 2)
    cluster.add("broker-b", "T", 2)

    async def main() -> None:
        group = Group()
        async with group.members[0], group.members[1]:
            await asyncio.sleep(2 * ROUTE_S + 2)  # no timer is due
            goes_away(cluster, one)
            await asyncio.sleep(ROUTE_S - 1)
            assert sorted(group.shares()) == [[], [B0, B1]]
            # a connection that ends shows it to both at once, else one sees it by its timer
            await asyncio.sleep(3 if cluster.channels else ROUTE_S + 5)
            assert sorted(group.shares()) == [[B0], [B1]]

    run(main())


@pytest.mark.parametrize("beside_another", [False, True])
def test_a_broker_that_restarted_and_knows_one_member_does_not_give_it_everything(
    cluster: FakeCluster, beside_another: bool
) -> None:
    """It lists those who have spoken to it since; its own position of the others' queues is older, too."""
    one = cluster.add("broker-a", "T", 2)
    if beside_another:
        cluster.add("broker-b", "T", 2)

    async def main() -> None:
        group = Group()
        async with group.members[0], group.members[1]:
            await asyncio.sleep(2 * ROUTE_S)
            before = group.shares()
            sent = await send_for(3, 0, one)
            _, silent = dict.fromkeys(body["clientID"] for body in one.heartbeats)
            goes_away(cluster, one)
            if not beside_another:
                cluster.topics["T"]["broker-a"] = 2  # a topic without a broker keeps its route
            await asyncio.sleep(2)
            comes_back(cluster, one, 2)
            one.offsets.clear()
            one.forgets = {silent}
            sent += await send_for(HEARTBEAT_S // 2, 1, one)
            assert set(group.shares()[0]) <= set(before[0])
            one.forgets = set()
            sent += await send_for(2 * HEARTBEAT_S, 2, one)
            assert group.shares() == before
            assert sorted(group.bodies) == sorted(sent)

    run(main())


def test_a_member_that_died_while_its_broker_restarted_is_succeeded_half_a_minute_later(
    cluster: FakeCluster,
) -> None:
    one = cluster.add("broker-a", "T", 2)

    async def main() -> None:
        group = Group()
        async with group.members[0]:
            async with group.members[1]:
                await asyncio.sleep(2 * ROUTE_S)
                assert sorted(group.shares()) == [[A0], [A1]]
                goes_away(cluster, one)
                cluster.topics["T"]["broker-a"] = 2
            comes_back(cluster, one, 2)
            await asyncio.sleep(2 * HEARTBEAT_S)
            assert group.shares()[0] == [A0, A1]

    run(main())
