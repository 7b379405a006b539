"""Namespaces and units: what brokers see, what applications see. No sockets; time jumps."""

from __future__ import annotations

import asyncio

import pytest
from clientkit import NAME_SERVER, FakeCluster, ext
from timekit import run

from tandemmq.cluster.client import (
    ClientConfig,
    ConsumeResult,
    Message,
    MessageQueue,
    MessageRefused,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.cluster.client.namespaces import unwrap, wrap
from tandemmq.cluster.remoting import RequestCode


@pytest.mark.parametrize(
    ("name", "wired"),
    [
        ("Orders", "test%Orders"),
        ("test%Orders", "test%Orders"),
        ("%RETRY%CG", "%RETRY%test%CG"),
        ("%DLQ%CG", "%DLQ%test%CG"),
        ("TBW102", "TBW102"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
        ("CLIENT_INNER_PRODUCER", "CLIENT_INNER_PRODUCER"),
        ("", ""),
    ],
)
def test_names_are_wrapped_once_and_unwrapped(name: str, wired: str) -> None:
    assert wrap("test", name) == wired
    assert wrap("test", wired) == wired
    assert unwrap("test", wired) == name.replace("test%", "")
    assert wrap("", name) == unwrap("", name) == name


def test_illegal_namespace_is_refused() -> None:
    with pytest.raises(MessageRefused, match="namespace"):
        ClientConfig(NAME_SERVER, namespace="a%b")


def test_whole_life_of_a_message_under_a_namespace(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "test%T", 2)
    config = ClientConfig(NAME_SERVER, namespace="test", unit_name="north")
    seen: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> ConsumeResult:
        seen.append(message)
        again = message.body == b"again"
        return ConsumeResult.RECONSUME_LATER if again else ConsumeResult.SUCCESS

    async def main() -> None:
        async with Producer("PG", config=config) as producer:
            result = await producer.send(Message("T", b"x"), queue=MessageQueue("T", "broker-a", 1))
            assert result.queue == MessageQueue("T", "broker-a", 1)
            assert (await producer.queues("T"))[0].topic == "T"
            await producer.send_batch([Message("T", b"again")])
            consumer = PushConsumer(
                "CG", handle, config=config, subscribe={"T": "*"}, start=StartFrom.FIRST
            )
            async with consumer:
                while not broker.sent_back:  # noqa: ASYNC110 - time jumps
                    await asyncio.sleep(0.1)
                topics = {queue.topic for queue in consumer.assignment}
                assert topics == {"T", "%RETRY%CG"}
            puller = PullConsumer("PullG", config=config, start=StartFrom.FIRST)
            async with puller:
                queues = await puller.queues("T")
                await puller.assign(queues)
                assert puller.assignment == queues
                got = await puller.poll(10)
                assert got[0].topic == got[0].queue.topic == "T"
                puller.pause(queues[0])
                await puller.seek(queues[1], 0)
                assert puller.position(queues[1]) == 0

    run(main())
    assert {(each.topic, each.queue.topic) for each in seen} == {("T", "T")}
    sent = [each for each in broker.requests if each.code == RequestCode.SEND_MESSAGE_V2]
    assert ext(sent[0])["a"] == "test%PG"
    assert ext(sent[0])["b"] == "test%T"
    assert ext(sent[0])["k"] == "true"
    assert "INSTANCE_ID\x01test\x02" in ext(sent[0])["i"]
    assert broker.sent_back[0]["group"] == "test%CG"
    assert broker.sent_back[0]["originTopic"] == "test%T"
    assert broker.sent_back[0]["unitMode"] == "true"
    assert broker.heartbeats[-1]["clientID"].endswith("@north")
    assert ("test%CG", "test%T", 1) in broker.offsets
