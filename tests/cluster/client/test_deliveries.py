"""Messages by `async for`, each acknowledged by itself; listeners of values and of rebalancing. Time jumps."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster, ext, received
from timekit import run

from tandemmq.cluster.client import (
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    QueueNotAssigned,
    RebalanceListener,
    ReceivedMessage,
    StartFrom,
    Subscription,
    by_key,
    with_value,
)
from tandemmq.cluster.remoting import RequestCode

TOPICS = {"T": "*"}


def subscription(**options: Any) -> Subscription:
    options.setdefault("start", StartFrom.FIRST)
    return Subscription("CG", namesrv=NAME_SERVER, subscribe=TOPICS, **options)


def committed(broker: FakeBroker) -> int | None:
    return broker.offsets.get(("CG", "T", 0))


def test_each_message_is_consumed_when_the_next_is_asked_for(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        await broker.fill("T", 0, [b"%d" % n for n in range(5)])
        async with subscription() as messages:
            seen = []
            async for message in messages.messages():
                seen.append(message.body)
                if len(seen) == 5:
                    break
        assert seen == [b"0", b"1", b"2", b"3", b"4"]
        assert committed(broker) == 4, "the last one was not finished"

    run(main())


def test_what_is_acknowledged_in_any_order_is_consumed_and_the_rest_comes_again(
    cluster: FakeCluster,
) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        await broker.fill("T", 0, [b"%d" % n for n in range(6)])
        async with subscription(in_hand_max=6, stop_timeout_ms=1_000) as deliveries:
            held = []
            async for delivery in deliveries:
                held.append(delivery)
                if len(held) == 6:
                    break
            for number in (5, 3, 0, 1):
                held[number].ack()
            held[2].nack(delay_level=4)
            held[2].ack()  # too late: one word counts
            await asyncio.sleep(1)
        assert [each["delayLevel"] for each in broker.sent_back] == ["4"]
        assert committed(broker) == 4, "0 to 3 are done, 4 is in hand"

    run(main())


def test_no_more_are_handed_out_than_may_be_in_hand(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        await broker.fill("T", 0, [b"x"] * 10)
        async with subscription(in_hand_max=2, stop_timeout_ms=0) as deliveries:
            held = []

            async def take() -> None:
                async for delivery in deliveries:
                    held.append(delivery)

            taking = asyncio.create_task(take())
            await asyncio.sleep(1)
            assert len(held) == 2
            held[0].ack()
            await asyncio.sleep(1)
            assert len(held) == 3
            taking.cancel()

    run(main())


def test_a_stop_ends_the_loop_and_waits_for_what_is_in_hand(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        await broker.fill("T", 0, [b"x", b"y"])
        deliveries = subscription()
        await deliveries.start()

        async def work() -> int:
            count = 0
            async for delivery in deliveries:
                await asyncio.sleep(2)
                delivery.ack()
                count += 1
            return count

        working = asyncio.create_task(work())
        await asyncio.sleep(3)
        await deliveries.stop()
        assert await working >= 1
        assert committed(broker) == 2

    run(main())


def test_a_listener_of_values_gets_them_and_bad_bodies_come_again(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    seen: list[Any] = []

    async def handle(message: ReceivedMessage, value: Any) -> None:
        seen.append(value)

    async def main() -> None:
        await broker.fill("T", 0, [b'{"id": 17}', b"no json"])
        async with PushConsumer(
            "CG", with_value(json.loads, handle), namesrv=NAME_SERVER, subscribe=TOPICS,
            start=StartFrom.FIRST,
        ):  # fmt: skip
            await asyncio.sleep(5)

    run(main())
    assert seen == [{"id": 17}]
    assert len(broker.sent_back) == 1


def test_a_plain_listener_of_values_stays_plain() -> None:
    def plain(message: ReceivedMessage, value: Any) -> ConsumeResult:
        return ConsumeResult.SUCCESS if value == {"id": 17} else ConsumeResult.RECONSUME_LATER

    listener = with_value(json.loads, plain)
    assert not inspect.iscoroutinefunction(listener)
    assert listener(received(0, b'{"id": 17}')) is ConsumeResult.SUCCESS
    with pytest.raises(json.JSONDecodeError):
        listener(received(0, b"no json"))


class Heard(RebalanceListener):
    def __init__(self, broker: FakeBroker) -> None:
        self.heard: list[tuple[str, list[int], int | None]] = []
        self._broker = broker

    def _add(self, what: str, queues: Sequence[MessageQueue]) -> None:
        ids = [queue.queue_id for queue in queues if queue.topic == "T"]
        if ids:
            self.heard.append((what, ids, committed(self._broker)))

    async def assigned(self, queues: Sequence[MessageQueue]) -> None:
        self._add("assigned", queues)

    async def revoked(self, queues: Sequence[MessageQueue]) -> None:
        self._add("revoked", queues)
        raise RuntimeError("of the application: changes nothing")


@pytest.mark.parametrize("kind", ["push", "pull"])
def test_queues_that_come_and_go_are_told_before_their_positions_are_committed(
    cluster: FakeCluster, kind: str
) -> None:
    broker = cluster.add("broker-a", "T", 2)
    heard = Heard(broker)

    async def take(message: ReceivedMessage) -> None:
        pass

    def member(**options: Any) -> Any:
        options |= {"namesrv": NAME_SERVER, "subscribe": TOPICS, "start": StartFrom.FIRST}
        return (
            PushConsumer("CG", take, **options) if kind == "push" else PullConsumer("CG", **options)
        )

    async def main() -> None:
        await broker.fill("T", 0, [b"x"])
        async with member(rebalance_listener=heard) as first:
            if kind == "pull":
                await first.poll()
            await asyncio.sleep(1)
            async with member():
                await asyncio.sleep(2)
            await asyncio.sleep(2)

    run(main())
    whats = [what for what, _, _ in heard.heard]
    assert whats == ["assigned", "revoked", "assigned", "revoked"]
    assert heard.heard[0][1] == heard.heard[-1][1] == [0, 1]
    assert heard.heard[1][1] == heard.heard[2][1]


def test_chosen_positions_are_committed_and_no_others(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 2)

    async def main() -> None:
        await broker.fill("T", 0, [b"x"] * 5)
        async with PullConsumer(
            "CG", namesrv=NAME_SERVER, subscribe=TOPICS, start=StartFrom.FIRST, auto_commit=False
        ) as consumer:
            batch = await consumer.poll()
            assert len(batch) == 5
            await consumer.commit({batch[1].queue: batch[1].queue_offset + 1})
            assert broker.offsets == {("CG", "T", 0): 2}
            with pytest.raises(QueueNotAssigned):
                await consumer.commit({MessageQueue("T", "broker-a", 7): 1})

    run(main())
    assert broker.offsets == {("CG", "T", 0): 2}


def test_a_producer_serializes_orders_by_key_and_adds_properties(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 4)

    def trace(message: Message) -> Mapping[str, str]:
        return {"traceparent": "00-" + message.body.decode()}

    async def main() -> None:
        async with Producer(
            "PG", namesrv=NAME_SERVER, serializer=lambda value: str(value).encode(),
            add_properties=trace,
        ) as producer:  # fmt: skip
            queues = await producer.queues("T")
            for number in range(4):
                result = await producer.send_value(
                    "T", number, keys="k", properties={"own": "1"}, ordering_key="order-17"
                )
                assert result.queue == by_key("order-17")(queues, Message("T", b"x"))
            await producer.send_batch([Message("T", b"b")])
            await producer.send_oneway(Message("T", b"o"))
            with pytest.raises(ValueError, match="one of the three"):
                producer.send(Message("T", b"x"), ordering_key="k", queue=queues[0])
        async with Producer("PG", namesrv=NAME_SERVER) as bare:
            with pytest.raises(ValueError, match="serializer"):
                bare.send_value("T", 1)

    run(main())
    sends = [each for each in broker.requests if each.code == RequestCode.SEND_MESSAGE_V2]
    assert [bytes(each.body or b"") for each in sends] == [b"0", b"1", b"2", b"3", b"o"]
    for each in sends:
        assert f"traceparent\x0100-{bytes(each.body or b'').decode()}" in ext(each)["i"]
    assert "own\x011" in ext(sends[0])["i"]
    (batch,) = [e for e in broker.requests if e.code == RequestCode.SEND_BATCH_MESSAGE]
    assert b"traceparent\x0100-b" in bytes(batch.body or b"")
