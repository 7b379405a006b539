"""Sends in flight: the fast way, what happens when it fails, and its bounds. Time jumps."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster, MemoryTransport, ext
from timekit import run

from tandemmq.cluster.client import (
    BrokerRefused,
    CallTimedOut,
    Message,
    MessageQueue,
    MessageRefused,
    NotRunning,
    Producer,
    SendFailed,
    SendResult,
    by_key,
)
from tandemmq.cluster.client.reaching import instance
from tandemmq.cluster.remoting import Command, ConnectionLost, RequestCode, RequestTimedOut

channels = pytest.mark.parametrize("cluster", ["channels"], indirect=True)
SEND = RequestCode.SEND_MESSAGE_V2


def producing(**options: Any) -> Producer:
    return Producer("PG", namesrv=NAME_SERVER, **options)


def general_way_taken(producer: Producer) -> list[str]:
    """Names of tasks that carry one send each."""
    return [each.get_name() for each in asyncio.all_tasks() if each.get_name().startswith("send ")]


def bodies(broker: FakeBroker) -> Counter[bytes]:
    return Counter(bytes(each.body or b"") for each in broker.requests if each.code == SEND)


@channels
def test_after_the_first_send_no_send_takes_a_task(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 4)

    async def main() -> None:
        async with producing() as producer:
            await producer.send(Message("T", b"first"))
            futures = [
                producer.send(Message("T", b"%d" % n, tags="A", keys=[f"k{n}"])) for n in range(40)
            ]
            assert not general_way_taken(producer)
            results = await asyncio.gather(*futures)
            assert Counter(result.queue.queue_id for result in results) == dict.fromkeys(
                range(4), 10
            )
            keyed = await producer.send(Message("T", b"k"), selector=by_key("order-17"))
            chosen = await producer.send(Message("T", b"q"), queue=MessageQueue("T", "broker-a", 3))
            assert keyed.queue == by_key("order-17")(await producer.queues("T"), Message("T", b"k"))
            assert chosen.queue.queue_id == 3

    run(main())
    sent = [ext(each) for each in broker.requests if each.code == SEND]
    assert all(fields["a"] == "PG" and "TAGS" in fields["i"] for fields in sent[1:41])
    assert len({fields["i"] for fields in sent}) == len(sent)  # each its own unique id


def trouble_once(problem: Any) -> Any:
    """A broker's trouble that hits the first send only."""
    left = [problem]

    def trouble(command: Command) -> Any:
        if command.code == SEND and left:
            first = left.pop()
            return command.reply(first, "no") if isinstance(first, int) else first
        return None

    return trouble


@channels
@pytest.mark.parametrize("problem", [2, 14, ConnectionLost("a")], ids=str)
def test_failed_fast_send_is_tried_again_elsewhere_with_its_message_id(
    cluster: FakeCluster, problem: Any
) -> None:
    one, two = cluster.add("broker-a", "T", 1), cluster.add("broker-b", "T", 1)

    async def main() -> None:
        async with producing() as producer:
            await asyncio.gather(*(producer.send(Message("T", b"warm")) for _ in range(4)))
            one.trouble = trouble_once(problem)
            results = await asyncio.gather(
                *(producer.send(Message("T", b"%d" % n)) for n in range(2))
            )
            assert {result.queue.broker_name for result in results} == {"broker-b"}
            assert producer.in_flight == 0
            one.trouble = lambda command: None
            await asyncio.sleep(3)
            after = await asyncio.gather(*(producer.send(Message("T", b"after")) for _ in range(4)))
            assert {result.queue.broker_name for result in after} == {"broker-a", "broker-b"}
        tries = Counter(
            ext(each)["i"] for broker in (one, two) for each in broker.requests
            if each.code == SEND and each.body in (b"0", b"1")
        )  # fmt: skip
        assert sorted(tries.values()) == [1, 2]

    run(main())


@channels
def test_one_try_never_sends_a_message_twice(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 2)

    async def main() -> None:
        async with producing(retries=0) as producer:
            await producer.send(Message("T", b"warm"))
            broker.trouble = trouble_once(2)
            with pytest.raises(BrokerRefused):
                await producer.send(Message("T", b"x"))

    run(main())
    assert bodies(broker)[b"x"] == 1


@channels
def test_refusal_that_blames_the_message_ends_a_fast_send_at_once(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with producing() as producer:
            await producer.send(Message("T", b"warm"))
            broker.trouble = trouble_once(13)
            with pytest.raises(BrokerRefused, match=r"CODE: 13.*topic T.*maxMessageSize") as caught:
                await producer.send(Message("T", b"x"))
            assert caught.value.topic == "T"
            assert caught.value.address == broker.address

    run(main())
    assert bodies(broker)[b"x"] == 1


@channels
def test_stored_but_not_safe_is_a_result_on_the_fast_way_too(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    def unsafe(command: Command) -> Command | None:
        fields = {"msgId": "OFF", "queueId": "0", "queueOffset": "9"}
        return command.reply(10, "flush", fields) if command.code == SEND else None

    async def main() -> None:
        async with producing() as producer:
            await producer.send(Message("T", b"warm"))
            broker.trouble = unsafe
            result = await producer.send(Message("T", b"x"))
            assert (result.ok, result.queue_offset) == (False, 9)

    run(main())


def test_retry_unless_ok_tries_another_broker_and_returns_the_last_result(
    cluster: FakeCluster,
) -> None:
    for name in ("broker-a", "broker-b"):
        cluster.add(name, "T", 1)

    def unsafe(command: Command) -> Command | None:
        fields = {"msgId": "OFF", "queueId": "0", "queueOffset": "9"}
        return command.reply(10, "flush", fields) if command.code == SEND else None

    async def main() -> None:
        async with producing(retry_unless_ok=True) as producer:
            cluster.brokers["127.0.0.1:10911"].trouble = unsafe
            results = [await producer.send(Message("T", b"%d" % n)) for n in range(4)]
            assert {result.queue.broker_name for result in results} == {"broker-b"}
            cluster.brokers["127.0.0.1:10921"].trouble = unsafe
            assert not (await producer.send(Message("T", b"x"))).ok

    run(main())


@channels
def test_silent_broker_costs_a_fast_send_its_time_and_the_connection(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with producing(timeout_ms=2_000) as producer:
            await producer.send(Message("T", b"warm"))
            await asyncio.sleep(10)
            broker.trouble = lambda command: (
                RequestTimedOut("a", 0, 0) if command.code == SEND else None
            )
            began = loop.time()
            futures = [producer.send(Message("T", b"x")) for _ in range(5)]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            assert 1.9 < loop.time() - began < 2.2
            assert all(isinstance(each, SendFailed) for each in outcomes)
            cause = outcomes[0].causes[0]  # type: ignore[union-attr]
            assert isinstance(cause, CallTimedOut)
            assert (cause.topic, cause.address) == ("T", broker.address)
            broker.trouble = lambda command: None
            assert (await producer.send(Message("T", b"again"))).ok
        dialled = [each for each in cluster.wires if each._address == broker.address]
        assert len(dialled) == 2

    run(main())


@channels
def test_one_attempt_takes_no_more_than_its_share_of_the_time(cluster: FakeCluster) -> None:
    one, _ = cluster.add("broker-a", "T", 1), cluster.add("broker-b", "T", 1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with producing(timeout_ms=3_000, attempt_timeout_ms=500) as producer:
            await asyncio.gather(*(producer.send(Message("T", b"warm")) for _ in range(4)))
            one.trouble = lambda command: (
                RequestTimedOut("a", 0, 0) if command.code == SEND else None
            )
            began = loop.time()
            results = await asyncio.gather(
                *(producer.send(Message("T", b"%d" % n)) for n in range(2))
            )
            assert loop.time() - began < 0.8
            assert {result.queue.broker_name for result in results} == {"broker-b"}

    run(main())


def test_sends_beyond_the_bounds_stand_in_line_in_order(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    at_once = 0

    async def main() -> None:
        nonlocal at_once
        store = broker.handle_send_message_v2
        busy = 0

        async def slow(command: Command, wire: Any) -> Command:
            nonlocal busy, at_once
            busy += 1
            at_once = max(at_once, busy)
            await asyncio.sleep(0.1)
            busy -= 1
            return await store(command, wire)

        async with producing(in_flight_max=8, timeout_ms=1_000) as producer:
            await producer.send(Message("T", b"warm"))
            broker.handle_send_message_v2 = slow  # type: ignore[method-assign]
            # the last waits 2.5 s for its turn, which does not count against its second
            results = await asyncio.gather(
                *(producer.send(Message("T", b"%d" % n)) for n in range(200))
            )
            assert len({result.queue_offset for result in results}) == 200
            arrived = [each.body for each in broker.requests if each.code == SEND]
            assert arrived[1:] == [b"%d" % n for n in range(200)]
        async with producing(in_flight_bytes_max=10_000) as producer:
            futures = [producer.send(Message("T", b"x" * 3_000)) for _ in range(20)]
            assert producer.in_flight <= 4
            await asyncio.gather(*futures)

    run(main())
    assert at_once <= 8


def test_send_many_yields_results_in_order_and_takes_no_more_than_is_in_flight(
    cluster: FakeCluster,
) -> None:
    cluster.add("broker-a", "T", 1)
    taken = 0

    def messages() -> Any:
        nonlocal taken
        for number in range(500):
            taken += 1
            yield Message("T", b"%d" % number)

    async def main() -> None:
        async with producing(in_flight_max=32) as producer:
            seen = 0
            async for result in producer.send_many(messages()):
                assert result.queue_offset == seen
                seen += 1
                assert taken - seen <= 32 + 1
            assert seen == 500

            async def slowly() -> Any:
                for number in range(3):
                    await asyncio.sleep(1)
                    yield Message("T", b"%d" % number)

            offsets = [result.queue_offset async for result in producer.send_many(slowly())]
            assert offsets == [500, 501, 502]

    run(main())


def test_send_many_raises_the_first_failure_and_leaves_nothing_under_way(
    cluster: FakeCluster,
) -> None:
    broker = cluster.add("broker-a", "T", 1)
    broker.trouble = lambda command: (
        command.reply(13, "no") if command.code == SEND and command.body == b"7" else None
    )

    async def main() -> None:
        async with producing() as producer:
            seen: list[SendResult] = []
            with pytest.raises(BrokerRefused):
                async for result in producer.send_many(Message("T", b"%d" % n) for n in range(20)):
                    seen.append(result)
            assert len(seen) == 7
            assert producer.in_flight == 0

    run(main())


@channels
def test_room_is_waited_for_and_stop_waits_for_what_is_under_way(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    stored: list[SendResult] = []

    async def main() -> None:
        async with producing(in_flight_max=4) as producer:
            for number in range(50):
                await producer.room()
                assert producer.in_flight < 4
                future = producer.send(Message("T", b"%d" % number))
                future.add_done_callback(lambda done: stored.append(done.result()))
        assert len(stored) == 50
        with pytest.raises(NotRunning, match="async with"):
            producer.send(Message("T", b"x"))

    run(main())
    assert len(broker.queues["T", 0]) == 50


@channels
def test_route_that_changes_is_followed_by_the_next_send(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with producing() as producer:
            await producer.send(Message("T", b"warm"))
            cluster.add("broker-b", "T", 1)
            await asyncio.sleep(35)
            results = [await producer.send(Message("T", b"x")) for _ in range(4)]
            assert {result.queue.broker_name for result in results} == {"broker-a", "broker-b"}

    run(main())


@channels
def test_connection_that_breaks_under_hundreds_of_sends_costs_none(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 2)
    rng = random.Random(7)

    async def main() -> None:
        async with producing() as producer:
            await producer.send(Message("T", b"warm"))
            futures = []
            for number in range(300):
                futures.append(producer.send(Message("T", b"%03d" % number)))
                await asyncio.sleep(0)
                if rng.random() < 0.01:
                    live = [each for each in cluster.wires if isinstance(each, MemoryTransport)]
                    for transport in live:
                        if transport._address == broker.address:
                            transport.lose()
            results = await asyncio.gather(*futures)
            assert len({result.message_id for result in results}) == 300
            (running,) = instance._shared[asyncio.get_running_loop()]
            assert not running.answers.waiting

    run(main())
    assert {body for body in bodies(broker) if body != b"warm"} == {b"%03d" % n for n in range(300)}


def test_what_is_wrong_with_a_message_comes_with_the_await_and_others_go_on(
    cluster: FakeCluster,
) -> None:
    cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with producing(body_bytes_max=100) as producer:
            outcomes = await asyncio.gather(
                producer.send(Message("T", b"x" * 101)),
                producer.send(Message("T", b"x")),
                producer.send(Message("T", b"x"), queue=MessageQueue("Other", "a", 0)),
                producer.send(Message("T", b"x", properties={"n": "v" * 40_000})),
                producer.send(Message("T", b"x"), selector=lambda queues, message: 1 / 0),  # type: ignore[arg-type, return-value]
                return_exceptions=True,
            )
            kinds = [type(each) for each in outcomes]
            assert kinds == [
                MessageRefused, SendResult, MessageRefused, MessageRefused, ZeroDivisionError
            ]  # fmt: skip
            assert "topic T" in str(outcomes[0])

    run(main())
