"""SEND_REPLY_MESSAGE: replies pushed to the client that waits, and kept in the reply topic."""

from __future__ import annotations

import asyncio

import pytest
from brokerkit import Asker, FakeConnection, MakeBroker, TwoClocks

from tandemmq.cluster.broker.handlers import reply as replies
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import RequestTimedOut
from tandemmq.storage import decode, decode_properties
from tandemmq.storage.flags import Problem

SEND_REPLY_MESSAGE, SEND_REPLY_MESSAGE_V2, PUSH_REPLY_MESSAGE_TO_CLIENT = 324, 325, 326
PROPERTIES = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01asker\x02TTL\x013000"
TOPIC = "DefaultCluster_REPLY_TOPIC"


@pytest.fixture(autouse=True)
def no_request_has_waited(clock: TwoClocks) -> None:
    clock.ticks_ms = 0  # what fake connections say of their last bytes


async def waiting(asker: Asker) -> FakeConnection:
    """A requester that has heartbeaten as a producer."""
    connection = FakeConnection()
    await asker.ask(34, {"clientID": "asker", "producerDataSet": [{"groupName": "PG"}]}, connection)
    return connection


async def reply(asker: Asker, properties: str = PROPERTIES, **more: str) -> Command:
    ext = {"a": "RG", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "77", "h": "5"}
    ext |= {"i": properties, "j": "0", "k": "false", **more}
    return await asker.ask(SEND_REPLY_MESSAGE_V2, b"42", **ext)


async def test_a_reply_is_pushed_to_the_client_that_asked_and_stored(asker: Asker) -> None:
    requester = await waiting(asker)
    answer = await reply(asker)
    assert (answer.code, answer.remark) == (0, None)
    assert answer.ext is not None and answer.ext["queueOffset"] == "0"
    assert (answer.ext["queueId"], len(answer.ext["msgId"])) == ("0", 32)
    (push,) = requester.requests
    assert (push.code, push.body) == (PUSH_REPLY_MESSAGE_TO_CLIENT, b"42")
    assert push.ext is not None
    properties = decode_properties(push.ext.pop("properties").encode())
    now_ms = str(asker.clock.now_ms())
    assert properties == {
        "MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker", "TTL": "3000",
        "PUSH_REPLY_TIME": now_ms,
    }  # fmt: skip
    assert push.ext == {
        "producerGroup": "RG", "topic": TOPIC, "defaultTopic": "TBW102", "queueId": "0",
        "defaultTopicQueueNums": "4", "sysFlag": "0", "bornTimestamp": "77", "flag": "5",
        "reconsumeTimes": "0", "unitMode": "false", "bornHost": "10.0.0.7:40000",
        "storeHost": "127.0.0.1:10911", "storeTimestamp": now_ms,
    }  # fmt: skip
    found = asker.broker.store.record_at(0)
    assert found is not None
    record = decode(found)
    assert (record.topic, record.body, record.flag) == (TOPIC, b"42", 5)
    assert record.property_map["CORRELATION_ID"] == "c-1"


async def test_the_old_header_with_full_names_is_read_too(asker: Asker) -> None:
    requester = await waiting(asker)
    answer = await asker.ask(
        SEND_REPLY_MESSAGE, b"42", topic=TOPIC, queueId=0, producerGroup="RG",
        properties=PROPERTIES, sysFlag=0, bornTimestamp=77, flag=0,
    )  # fmt: skip
    assert answer.code == 0
    assert len(requester.requests) == 1


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        (PROPERTIES, "push reply message fail, channel of <asker> not found."),
        ("MSG_TYPE\x01reply\x02", "reply message properties[REPLY_TO_CLIENT] is null"),
    ],
)
async def test_a_reply_that_reaches_nobody_is_refused_and_kept(
    asker: Asker, properties: str, remark: str
) -> None:
    answer = await reply(asker, properties)
    assert (answer.code, answer.remark) == (1, remark)
    assert answer.ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert asker.broker.store.record_at(0) is not None
    assert asker.connection.sent == []  # storing it answers nobody a second time


@pytest.mark.parametrize("outcome", [Command(1, remark="no"), RequestTimedOut("asker", 326, 1)])
async def test_a_reply_that_its_requester_does_not_take_is_refused(
    asker: Asker, outcome: Command | Exception
) -> None:
    requester = await waiting(asker)
    requester.answer = outcome
    answer = await reply(asker)
    assert answer.code == 1
    assert answer.remark is not None and "push reply message to asker fail" in answer.remark


async def test_a_client_that_left_is_asked_no_more(asker: Asker) -> None:
    requester = await waiting(asker)
    requester.closed = True
    assert (await reply(asker)).code == 1
    assert requester.requests == []


async def test_store_reply_message_enable_false_stores_nothing(make_broker: MakeBroker) -> None:
    asker = make_broker(storeReplyMessageEnable="false")
    requester = await waiting(asker)
    answer = await reply(asker)
    assert answer.code == 0 and answer.ext is not None
    assert (answer.ext["msgId"], answer.ext["queueOffset"]) == ("0", "0")
    assert len(requester.requests) == 1
    assert asker.broker.store.record_at(0) is None


async def test_a_reply_is_answered_though_it_cannot_be_stored(asker: Asker) -> None:
    requester = await waiting(asker)
    asker.broker.store.flags.set(Problem.DISK_FULL, "planted")
    answer = await reply(asker)
    assert (answer.code, len(requester.requests)) == (0, 1)
    assert answer.ext is not None and answer.ext["msgId"] == "0"


async def test_what_a_send_is_refused_for_a_reply_is_too(asker: Asker) -> None:
    requester = await waiting(asker)
    assert (await reply(asker, b="no.such")).code == 29
    assert (await reply(asker, b="SCHEDULE_TOPIC_XXXX")).code == 16
    assert (await reply(asker, e="9")).code == 29
    assert (await asker.ask(SEND_REPLY_MESSAGE_V2, None, b=TOPIC, e="0")).code == 1
    assert requester.requests == []


async def test_no_more_replies_wait_for_requesters_than_are_bounded(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "PUSHES_MAX", 1)
    requester = await waiting(asker)
    held = asyncio.get_running_loop().create_future()

    async def hold(command: Command, timeout_ms: int) -> Command:
        await held
        return Command(0)

    requester.request = hold  # type: ignore[method-assign]
    first = asyncio.create_task(reply(asker))
    await asyncio.sleep(0)
    busy = await reply(asker)
    assert busy.code == 2
    held.set_result(None)
    assert (await first).code == 0
    assert (await reply(asker)).code == 0
