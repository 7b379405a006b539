"""Requests of producers and replies of consumers. No sockets; time jumps."""

from __future__ import annotations

import asyncio
from types import MappingProxyType

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster, ext, received, settle
from msgspec.structs import replace
from timekit import run

from tandemmq.cluster.client import (
    BrokerRefused,
    ClientConfig,
    Message,
    MessageRefused,
    NoReply,
    NotRunning,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendFailed,
    StartFrom,
)
from tandemmq.cluster.client.producing.replies import AwaitedReplies, as_reply
from tandemmq.cluster.remoting import Command, RequestCode
from tandemmq.storage import decode_properties

REPLIES = "C_REPLY_TOPIC"


def request_of(client_id: str = "nobody") -> ReceivedMessage:
    """A request as a consumer gets it."""
    properties = {
        "CORRELATION_ID": "c-1",
        "REPLY_TO_CLIENT": client_id,
        "TTL": "3000",
        "CLUSTER": "C",
    }
    return replace(received(0), properties=properties)


def replying(broker: FakeBroker, cluster: FakeCluster, through: FakeBroker | None = None) -> None:
    """Each message stored in T is a request, and answered at once with its own body in capitals."""
    inner = broker.handle_send_message_v2

    async def send(command: Command, wire: object) -> Command:
        answer = await inner(command, wire)  # type: ignore[arg-type]
        fields = dict(ext(command))
        marks = decode_properties(fields["i"].encode())
        reply = Command(
            RequestCode.SEND_REPLY_MESSAGE_V2,
            {**fields, "b": REPLIES, "h": "7"},
            bytes(command.body or b"").upper(),
        )
        told = await (through or broker).handle_send_reply_message_v2(reply, wire)  # type: ignore[arg-type]
        assert told.code == 0, (told.remark, marks)
        return answer

    broker.handle_send_message_v2 = send  # type: ignore[method-assign]


def test_a_request_brings_its_reply(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    cluster.topics[REPLIES] = {"broker-a": 1}
    replying(broker, cluster)

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER) as producer:
            reply = await producer.request(Message("T", b"price", properties={"own": "x"}))
            assert (reply.body, reply.flag, reply.store_ms) == (b"PRICE", 7, 9)
            assert (reply.born_host, reply.store_host) == ("10.0.0.1:1", broker.address)
            (sent,) = [c for c in broker.requests if c.code == RequestCode.SEND_MESSAGE_V2]
            properties = decode_properties(ext(sent)["i"].encode())
            assert properties["own"] == "x"
            assert properties["TTL"] == "3000"
            assert properties["REPLY_TO_CLIENT"] in broker.producers
            assert properties["CORRELATION_ID"] == reply.properties["CORRELATION_ID"]
            replies = await asyncio.gather(
                *(producer.request(Message("T", b"r%d" % n)) for n in range(50))
            )
            assert [each.body for each in replies] == [b"R%d" % n for n in range(50)]

    run(main())


def test_every_broker_of_the_cluster_knows_the_requester_before_the_request(
    cluster: FakeCluster,
) -> None:
    broker, other = cluster.add("broker-a", "T", 1), cluster.add("broker-b")
    cluster.topics[REPLIES] = {"broker-a": 1, "broker-b": 1}
    replying(broker, cluster, through=other)

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER) as producer:
            assert (await producer.request(Message("T", b"x"))).body == b"X"

    run(main())


def test_a_producer_that_shares_connections_with_a_consumer_is_known_before_its_request(
    cluster: FakeCluster,
) -> None:
    """The connection was greeted before the producer was there."""
    broker = cluster.add("broker-a", "T", 1)
    cluster.topics[REPLIES] = {"broker-a": 1}
    replying(broker, cluster)
    config = ClientConfig(NAME_SERVER)

    async def accept(message: ReceivedMessage) -> None:
        """A listener."""

    async def main() -> None:
        async with PushConsumer("CG", accept, config=config, subscribe={"T": "*"}):
            await settle()
            async with Producer("PG", config=config) as producer:
                assert (await producer.request(Message("T", b"x"))).body == b"X"

    run(main())


def test_a_broker_that_came_back_knows_the_requester_while_the_reply_is_awaited(
    cluster: FakeCluster,
) -> None:
    broker = cluster.add("broker-a", "T", 1)
    cluster.topics[REPLIES] = {"broker-a": 1}

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER) as producer:
            asked = asyncio.create_task(producer.request(Message("T", b"x"), timeout_ms=20_000))
            await asyncio.sleep(0.5)
            (client_id,) = broker.producers
            broker.down = True
            for wire in cluster.wires:
                if wire._address == broker.address:
                    wire.closed = True
            await asyncio.sleep(3)
            broker.down = False
            broker.producers.clear()
            await asyncio.sleep(3)  # the next heartbeat of all is 30 s away
            assert client_id in broker.producers
            asked.cancel()

    run(main())


def test_no_reply_in_time_is_said_with_what_became_of_the_request(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    cluster.topics[REPLIES] = {"broker-a": 1}

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER) as producer:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            with pytest.raises(
                NoReply, match="within 500 ms, topic T; the request was sent"
            ) as info:
                await producer.request(Message("T", b"x"), timeout_ms=500)
            assert info.value.sent is not None and info.value.sent.queue_offset == 0
            assert 0.45 <= loop.time() - began_s <= 0.7
            assert producer._instance is not None and producer._instance.replies.count == 0
            assert len(broker.queues["T", 0]) == 1

    run(main())


def test_a_request_that_cannot_be_sent_fails_as_a_send_does(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    cluster.topics[REPLIES] = {"broker-a": 1}

    def refuse(command: Command) -> Command | None:
        return (
            command.reply(13, "too large") if command.code == RequestCode.SEND_MESSAGE_V2 else None
        )

    async def main() -> None:
        broker.trouble = refuse
        async with Producer("PG", namesrv=NAME_SERVER) as producer:
            with pytest.raises(BrokerRefused, match="too large"):
                await producer.request(Message("T", b"x"))
        with pytest.raises(NotRunning):
            await producer.request(Message("T", b"x"))

    run(main())


def test_requests_beyond_in_flight_max_wait_for_their_turn(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)
    cluster.topics[REPLIES] = {"broker-a": 1}

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER, in_flight_max=2) as producer:
            outcomes = await asyncio.gather(
                *(producer.request(Message("T", b"x"), timeout_ms=1_000) for _ in range(5)),
                return_exceptions=True,
            )
            assert all(isinstance(each, NoReply) for each in outcomes)
            assert len(broker.queues["T", 0]) == 2  # the others had no turn within their time

    run(main())


def test_stop_waits_for_requests_and_gives_them_up_when_cancelled(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "T", 1)
    cluster.topics[REPLIES] = {"broker-a": 1}

    async def main() -> None:
        producer = Producer("PG", namesrv=NAME_SERVER)
        await producer.start()
        asked = asyncio.create_task(producer.request(Message("T", b"x"), timeout_ms=60_000))
        await asyncio.sleep(0.5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await producer.stop()
        with pytest.raises(NotRunning):
            await asked

    run(main())


def test_a_consumer_replies_through_another_broker_when_one_fails(cluster: FakeCluster) -> None:
    first, second = cluster.add("broker-a", "T", 1), cluster.add("broker-b")
    cluster.topics[REPLIES] = {"broker-a": 1, "broker-b": 1}
    inbox: list[ReceivedMessage] = []

    async def answer(message: ReceivedMessage) -> None:
        inbox.append(message)
        await consumer.reply(message, b"a" * 10_000, properties={"own": "y"}, flag=3)

    consumer = PushConsumer(
        "CG", answer, namesrv=NAME_SERVER, subscribe={"T": "*"}, start=StartFrom.FIRST
    )

    async def main() -> None:
        refusals = 0

        def refuse(command: Command) -> Command | None:
            nonlocal refusals
            if command.code != RequestCode.SEND_REPLY_MESSAGE_V2 or refusals:
                return None
            refusals += 1
            return command.reply(1, "channel not found")

        first.trouble = second.trouble = refuse
        inner = first.store

        async def store(*fields: object) -> int:
            """As a broker: with the cluster's name."""
            topic, queue_id, body, properties, sys_flag = fields
            assert isinstance(properties, bytes)
            return await inner(topic, queue_id, body, properties + b"CLUSTER\x01C\x02", sys_flag)  # type: ignore[arg-type]

        first.store = store  # type: ignore[assignment, method-assign]
        async with Producer("PG", namesrv=NAME_SERVER) as producer, consumer:
            reply = await producer.request(Message("T", b"x"))
            assert (reply.body, reply.flag, reply.properties["own"]) == (b"a" * 10_000, 3, "y")
            assert reply.properties["MSG_TYPE"] == "reply"
        assert (refusals, len(inbox)) == (1, 1)
        tried = [c for b in (first, second) for c in b.requests if c.code == 325]
        assert len(tried) == 2
        assert len({ext(c)["n"] for c in tried}) == 2

    run(main())


def test_a_reply_that_nobody_waits_for_is_refused_after_three_attempts(
    cluster: FakeCluster,
) -> None:
    broker = cluster.add("broker-a", "T", 1)
    cluster.topics[REPLIES] = {"broker-a": 1}

    async def main() -> None:
        async with PullConsumer("CG", namesrv=NAME_SERVER) as consumer:
            with pytest.raises(BrokerRefused, match="channel not found"):
                await consumer.reply(request_of(), b"x")
            assert broker.codes().count(RequestCode.SEND_REPLY_MESSAGE_V2) == 3
            broker.down = True
            with pytest.raises(SendFailed):
                await consumer.reply(request_of(), b"x")
        with pytest.raises(NotRunning):
            await consumer.reply(request_of(), b"x")

    run(main())


def test_only_requests_can_be_replied_to() -> None:
    with pytest.raises(MessageRefused, match="is no request: it has no CORRELATION_ID"):
        as_reply(received(0), b"x", {}, 0)
    with pytest.raises(MessageRefused, match="is used by system"):
        as_reply(request_of(), b"x", {"TTL": "1"}, 0)
    reply = as_reply(request_of("c"), b"x", MappingProxyType({"own": "1"}), 0)
    assert reply.topic == "C_REPLY_TOPIC"
    assert dict(reply.properties) == {
        "own": "1", "MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "c", "TTL": "3000",
    }  # fmt: skip


async def test_late_second_and_unreadable_replies_change_nothing() -> None:
    awaited = AwaitedReplies()

    def push(body: bytes, correlation_id: str = "c-1", **more: str) -> Command:
        return Command(326, {"properties": f"CORRELATION_ID\x01{correlation_id}\x02", **more}, body)

    with awaited.expected("c-1") as reply:
        awaited.take(push(b"other", "c-2"))
        with pytest.raises(ValueError, match="invalid literal"):
            awaited.take(push(b"bad", sysFlag="x"))
        assert not reply.done()
        awaited.take(push(b"first"))
        awaited.take(push(b"second"))
        assert reply.result().body == b"first"
    awaited.take(push(b"late"))
    assert awaited.count == 0
