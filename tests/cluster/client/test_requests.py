"""What brokers and tools ask of a client: 40, 220, 221, 307, 309. No sockets; time jumps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from clientkit import HOST, NAME_SERVER, FakeCluster, MemoryTransport, settle
from timekit import run

from tandemmq.cluster.client import (
    ConsumeResult,
    MessageQueue,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.cluster.client.reaching.requests import parse_positions, queue_map
from tandemmq.cluster.remoting import Command, RequestCode
from tandemmq.storage import Draft, encode, fastjson

QUEUE = MessageQueue("T", "broker-a", 0)


class Asking:
    """The broker's end of the consumer's connection: sends a request, gets the answer."""

    def __init__(self, cluster: FakeCluster) -> None:
        transports = [each for each in cluster.wires if isinstance(each, MemoryTransport)]
        self.transport = next(each for each in transports if each._address == "127.0.0.1:10911")
        self.answers = self.transport.answers

    async def __call__(self, code: int, ext: dict[str, str], body: bytes | None = None) -> Command:
        self.transport.feed(Command(code, ext, body, opaque=4_711).encode())
        for _ in range(100):
            await settle()
            if self.answers:
                return self.answers.pop()
            await asyncio.sleep(0.1)
        raise AssertionError("no answer")


channels = pytest.mark.parametrize("cluster", ["channels"], indirect=True)


def record(body: bytes = b"x") -> bytes:
    return encode(Draft("T", 0, body, b"UNIQ_KEY\x01U1\x02", 0, 0, 1, HOST, HOST), 7, 700, 1_000)


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110 - time jumps
        await asyncio.sleep(0.05)


def pushing(listener: Any, **options: Any) -> PushConsumer:
    options.setdefault("start", StartFrom.FIRST)
    return PushConsumer("CG", listener, namesrv=NAME_SERVER, subscribe={"T": "A || B"}, **options)


async def accept(message: ReceivedMessage) -> None:
    """A listener."""


@channels
def test_running_info_tells_settings_subscriptions_and_queues(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        await broker.fill("T", 0, [b"x"] * 3, TAGS="A")
        async with pushing(accept):
            await settle()
            ask = Asking(cluster)
            fields = {"consumerGroup": "CG", "clientId": "c", "jstackEnable": "true"}
            answer = await ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
            assert answer.code == 0
            info = fastjson.loads(bytes(answer.body or b""))
            assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert info["properties"]["PROP_NAMESERVER_ADDR"] == NAME_SERVER
            topics = {each["topic"]: each["subString"] for each in info["subscriptionSet"]}
            assert topics == {"T": "A || B", "%RETRY%CG": "*"}
            queues = {
                (key["topic"] if isinstance(key, dict) else fastjson.loads(key)["topic"]): state
                for key, state in info["mqTable"].items()
            }
            assert queues["T"]["commitOffset"] == 3
            assert not queues["T"]["droped"]
            assert info["statusTable"]["T"]["consumeFailedMsgs"] == 0
            assert "test_requests.py" in info["jstack"]
            missing = {"consumerGroup": "Other", "clientId": "c"}
            answer = await ask(RequestCode.GET_CONSUMER_RUNNING_INFO, missing)
            assert answer.code == 1
            assert "Other" in (answer.remark or "")

    run(main())


@channels
def test_status_tells_commit_positions(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        await broker.fill("T", 0, [b"x"] * 3, TAGS="A")
        async with pushing(accept):
            await settle()
            ask = Asking(cluster)
            answer = await ask(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"group": "CG", "topic": "T"}
            )
            assert answer.body == (
                b'{"consumerTable":{},"messageQueueTable":'
                b'{{"brokerName":"broker-a","queueId":0,"topic":"T"}:3}}'
            )

    run(main())


@pytest.mark.parametrize("form", ["map", "list"])
@channels
def test_reset_reads_on_from_the_given_position_and_commits_it(
    cluster: FakeCluster, form: str
) -> None:
    broker = cluster.add("broker-a", "T", 1)
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    table = queue_map({QUEUE: b"2"})
    if form == "list":
        table = b'[{"brokerName":"broker-a","offset":2,"queueId":0,"topic":"T"}]'

    async def main() -> None:
        await broker.fill("T", 0, [b"%d" % n for n in range(4)], TAGS="A")
        async with pushing(handle):
            await until(lambda: len(seen) == 4)
            ask = Asking(cluster)
            request = Command(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                {"group": "CG", "topic": "T", "timestamp": "0", "isForce": "true"},
                b'{"offsetTable":%b}' % table,
                flag=2,
            )
            ask.transport.feed(request.encode())
            await until(lambda: len(seen) == 6)
            assert not ask.answers  # it is oneway
        assert seen == [b"0", b"1", b"2", b"3", b"2", b"3"]
        commits = [
            (each.ext or {})["commitOffset"]
            for each in broker.requests
            if each.code == RequestCode.UPDATE_CONSUMER_OFFSET
        ]
        assert "2" in commits

    run(main())


@pytest.mark.parametrize("body", [b"", b"{", b'{"offsetTable":{"x":1}}', b'{"offsetTable":[{}]}'])
@channels
def test_reset_that_does_not_parse_changes_nothing(cluster: FakeCluster, body: bytes) -> None:
    cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with pushing(accept) as consumer:
            before = consumer.assignment
            ask = Asking(cluster)
            for group in ("CG", "Other"):
                ext = {"group": group, "topic": "T"}
                request = Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body, flag=2)
                ask.transport.feed(request.encode())
            await settle()
            assert consumer.assignment == before
            assert not ask.transport.closed

    run(main())


async def later(message: ReceivedMessage) -> ConsumeResult:
    return ConsumeResult.RECONSUME_LATER


def bad(message: ReceivedMessage) -> None:
    raise KeyError("price")


@pytest.mark.parametrize(
    ("listener", "outcome"),
    [(accept, "CR_SUCCESS"), (later, "CR_LATER"), (bad, "CR_THROW_EXCEPTION")],
)
@pytest.mark.parametrize("orderly", [False, True])
@channels
def test_message_is_consumed_directly_and_the_outcome_told(
    cluster: FakeCluster, listener: Any, outcome: str, orderly: bool
) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with pushing(listener, orderly=orderly):
            await settle()
            ask = Asking(cluster)
            fields = {"consumerGroup": "CG", "clientId": "c", "brokerName": "broker-a"}
            answer = await ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, record())
            result = json.loads(bytes(answer.body or b""))
            assert (result["consumeResult"], result["order"]) == (outcome, orderly)
            assert ("price" in (result["remark"] or "")) == (outcome == "CR_THROW_EXCEPTION")
            answer = await ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, b"\x00\x00")
            assert answer.code == 1
            answer = await ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, None)
            assert answer.code == 1
        assert not broker.sent_back

    # a plain listener needs a thread, which does not wait for jumping time
    if listener is bad:
        asyncio.run(asyncio.wait_for(main(), 30))
    else:
        run(main())


@channels
def test_consumer_without_a_listener_says_so(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with PullConsumer("CG", namesrv=NAME_SERVER, subscribe={"T": "*"}):
            ask = Asking(cluster)
            fields = {"consumerGroup": "CG", "brokerName": "broker-a"}
            answer = await ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, record())
            assert answer.code == 1
            assert "no listener" in (answer.remark or "")
            answer = await ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "CG"})
            info = fastjson.loads(bytes(answer.body or b""))
            assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"

    run(main())


@channels
def test_code_that_clients_do_not_serve_is_answered_3(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with pushing(accept):
            assert (await Asking(cluster)(999, {})).code == 3

    run(main())


def test_positions_are_read_in_both_forms() -> None:
    table = {QUEUE: b"5", MessageQueue("T", "b", 1): b"6"}
    assert parse_positions(b'{"offsetTable":%b}' % queue_map(table)) == {
        queue: int(offset) for queue, offset in table.items()
    }
    assert parse_positions(b'{"offsetTable":[]}') == {}
