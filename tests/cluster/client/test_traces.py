"""Traces: their text, their bounds, and what producers and consumers write. No sockets; time jumps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster, ext, received
from msgspec.structs import replace
from timekit import run

from tandemmq.admin.messages import read_traces
from tandemmq.cluster.client import (
    TRACE_TOPIC,
    ConsumeResult,
    Message,
    MessageRefused,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendFailed,
    StartFrom,
    TransactionState,
)
from tandemmq.cluster.client import traces as module
from tandemmq.cluster.client.reaching.requests import Requests
from tandemmq.cluster.client.records import read_records
from tandemmq.cluster.client.traces import (
    CONSUMED,
    FAILED,
    Attempt,
    TraceBuffer,
    TraceRecord,
    TransactionEnd,
    after_record,
    before_record,
    ended_record,
    sent_record,
)
from tandemmq.cluster.remoting import Command, RequestCode
from tandemmq.storage import Draft, encode, encode_properties

SENT = Attempt("ID1", "OFF1", "10.0.0.1:10911", "R", 1_000, 7, ok=True)


def test_a_sent_message_is_written_as_java_writes_it() -> None:
    full = Message("T", b"abc", tags="A", keys=["k1", "k2"], delay_level=3)
    record = sent_record("PG", full, SENT)
    assert record.keys == ("ID1", "k1", "k2")
    assert record.text.split("\x01") == [
        "Pub", "1000", "R", "PG", "T", "ID1", "A", "k1 k2", "10.0.0.1:10911", "3", "7", "3", "OFF1",
        "true\x02",
    ]  # fmt: skip
    bare = sent_record("PG", Message("T", b"abc"), SENT._replace(ok=False)).text.split("\x01")
    assert (bare[6], bare[7], bare[11], bare[13]) == ("null", "null", "0", "false\x02")


def test_a_consumed_message_is_written_as_java_writes_it() -> None:
    message = replace(received(3), properties={"MSG_REGION": "R", "KEYS": "k1"}, reconsume_times=2)
    before = before_record("CG", message, "REQ", 1_000)
    assert before.text == "\x01".join(["SubBefore", "1000", "R", "CG", "REQ", "ID3", "2", "k1\x02"])
    assert before.keys == ("ID3", "k1")
    after = after_record("CG", message, "REQ", 1_007, 7, FAILED)
    assert after.text == "\x01".join(
        ["SubAfter", "REQ", "ID3", "7", "false", "k1", "4", "1007", "CG\x02"]
    )
    good = after_record("CG", replace(message, properties={}), "REQ", 1_007, 7, CONSUMED)
    assert good.text.split("\x01")[4:7] == ["true", "null", "0"]


def test_a_trace_message_is_bounded_in_bytes_and_keys_and_has_each_key_once() -> None:
    buffer = TraceBuffer()
    buffer.add([TraceRecord(f"{n:049}\x02", (f"K{n % 3}", "two words", "")) for n in range(5_000)])
    counts = []
    while buffer:
        message, count = buffer.next_message("X")
        assert len(message.body) <= module.BODY_BYTES_MAX
        assert set(message.keys) == {"K0", "K1", "K2"}
        counts.append(count)
    assert sum(counts) == 5_000 and counts[0] == module.BODY_BYTES_MAX // 50
    buffer.add([TraceRecord("x\x02", (f"{n:099}",)) for n in range(200)])
    assert buffer.next_message("X")[1] == module.KEYS_BYTES_MAX // 100
    buffer = TraceBuffer()
    buffer.add([TraceRecord("x" * 200_000, ("k\ud800",)), TraceRecord("y", ())])
    assert [buffer.next_message("X")[1] for _ in range(2)] == [1, 1]


def test_what_has_no_room_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORDS_MAX", 3)
    buffer = TraceBuffer()
    for _ in range(3):
        buffer.add([TraceRecord("x", ()), TraceRecord("x", ())])
    assert (len(buffer), buffer.dropped) == (2, 4)


def written(broker: FakeBroker, topic: str = TRACE_TOPIC) -> list[ReceivedMessage]:
    queues = [records for (name, _), records in broker.queues.items() if name == topic]
    return [each for records in queues for each in read_records(b"".join(records), "a", 0)]


def shown(broker: FakeBroker, message_id: str, topic: str = TRACE_TOPIC) -> list[tuple[Any, ...]]:
    """What `tandem admin queryMsgTraceById` prints of a message."""
    found = [each for each in written(broker, topic) if message_id in each.keys]
    traces = [trace for each in found for trace in read_traces(each, message_id)]
    return [(trace["type"], trace["group"], trace["status"]) for trace in traces]


def tracing(cluster: FakeCluster, topic: str = TRACE_TOPIC) -> FakeBroker:
    broker = cluster.add("broker-a", "T", 1)
    cluster.topics[topic] = {"broker-a": 1}
    return broker


def test_sends_of_every_kind_are_traced_message_by_message(cluster: FakeCluster) -> None:
    broker = tracing(cluster)

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER, trace_topic=TRACE_TOPIC) as producer:
            first = await producer.send(Message("T", b"1", keys="k"))
            many = [
                each async for each in producer.send_many(Message("T", b"x") for _ in range(50))
            ]
            batch = await producer.send_batch([Message("T", b"2"), Message("T", b"3", keys="b")])
            own = await producer.send(Message("T", b"4", unique_id="mine too"))
            await producer.send(Message(TRACE_TOPIC, b"not traced"))
            assert not written(broker)[1:]  # in the background
            await asyncio.sleep(1)
            assert shown(broker, first.message_id) == [("Pub", "PG", "success")]
        for each in (*many, batch):
            for message_id in each.message_ids:
                assert shown(broker, message_id) == [("Pub", "PG", "success")]
        assert [each for each in written(broker) if "b" in each.keys]
        assert own.message_id == "mine too"
        assert sum(each.body.count(b"Pub\x01") for each in written(broker)) == 54

    run(main())


def test_each_attempt_of_a_send_is_traced(cluster: FakeCluster) -> None:
    broker = tracing(cluster)
    refusals = 0

    def refuse(command: Command) -> Command | None:
        nonlocal refusals
        if command.code != RequestCode.SEND_MESSAGE_V2 or ext(command)["b"] != "T" or refusals == 5:
            return None
        refusals += 1
        return command.reply(2, "busy")

    broker.trouble = refuse

    async def main() -> None:
        async with Producer("PG", namesrv=NAME_SERVER, trace_topic=TRACE_TOPIC) as producer:
            with pytest.raises(SendFailed):
                await producer.send(Message("T", b"1", unique_id="FAILED"))
            assert refusals == 3
            await producer.send(Message("T", b"1", unique_id="THIRD"))
            with pytest.raises(MessageRefused):
                await producer.send(Message("T", b"x" * (5 << 20), unique_id="NEVER"))
        assert shown(broker, "FAILED") == [("Pub", "PG", "failed")] * 3
        assert sorted(shown(broker, "THIRD")) == [("Pub", "PG", "failed")] * 2 + [
            ("Pub", "PG", "success")
        ]
        assert shown(broker, "NEVER") == []

    run(main())


def test_consumption_and_its_retries_are_traced(cluster: FakeCluster) -> None:
    broker = tracing(cluster, "MyTraces")

    async def once(message: ReceivedMessage) -> ConsumeResult | None:
        if message.message_id == "AGAIN" and not message.reconsume_times:
            return ConsumeResult.RECONSUME_LATER
        if message.message_id == "RAISES":
            raise OSError("planted")
        return None

    async def main() -> None:
        for name, more in {"AGAIN": {}, "RAISES": {}, "OFF": {"TRACE_ON": "false"}}.items():
            await broker.fill("T", 0, [b"x"], UNIQ_KEY=name, KEYS=f"k{name}", **more)
        consumer = PushConsumer(
            "CG", once, namesrv=NAME_SERVER, subscribe={"T": "*"}, start=StartFrom.FIRST,
            orderly=True, suspend_ms=100, reconsume_times_max=1, trace_topic="MyTraces",
        )  # fmt: skip
        async with consumer:
            await asyncio.sleep(3)
        assert shown(broker, "AGAIN", "MyTraces") == [
            ("Sub", "CG", "failed"),
            ("Sub", "CG", "success"),
        ]
        assert shown(broker, "RAISES", "MyTraces") == [("Sub", "CG", "failed")] * 2
        assert shown(broker, "OFF", "MyTraces") == []
        texts = b"".join(each.body for each in written(broker, "MyTraces")).decode().split("\x02")
        before = [text.split("\x01") for text in texts if text.startswith("SubBefore")]
        after = [text.split("\x01") for text in texts if text.startswith("SubAfter")]
        tries = [int(each[6]) for each in before if each[5] == "AGAIN"]
        assert tries == [0, 1]
        assert {each[4] for each in before} == {each[1] for each in after}

    run(main())


@pytest.mark.parametrize("trouble", ["refused", "silent"])
def test_sends_go_on_where_traces_cannot_be_written(
    cluster: FakeCluster, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = tracing(cluster)
    inner = broker.handle_send_message_v2

    async def send(command: Command, wire: Any) -> Command:
        if ext(command)["b"] != TRACE_TOPIC:
            return await inner(command, wire)
        if trouble == "silent":
            await asyncio.sleep(3_600)
        return command.reply(16, "forbidden")

    broker.handle_send_message_v2 = send  # type: ignore[method-assign]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Producer("PG", namesrv=NAME_SERVER, trace_topic=TRACE_TOPIC) as producer:
            for _ in range(20):
                began_s = loop.time()
                assert (await producer.send(Message("T", b"x"))).ok
                assert loop.time() - began_s < 0.05
                await asyncio.sleep(0.6)
            stopping_s = loop.time()
        assert loop.time() - stopping_s < 7

    run(main())
    assert any("traces lost group=PG" in line for line in caplog.messages)


def test_the_end_of_a_transaction_is_written_as_java_writes_it() -> None:
    end = TransactionEnd("ID1", "TX1", "10.0.0.1:10911", "R", 1_000, "COMMIT_MESSAGE", asked=False)
    record = ended_record("PG", Message("T", b"abc", tags="A", keys=["k1", "k2"]), end)
    assert record.keys == ("ID1", "k1", "k2")
    assert record.text.split("\x01") == [
        "EndTransaction", "1000", "R", "PG", "T", "ID1", "A", "k1 k2", "10.0.0.1:10911", "2", "TX1",
        "COMMIT_MESSAGE", "false\x02",
    ]  # fmt: skip
    half = sent_record("PG", Message("T", b"abc"), SENT._replace(half=True))
    assert half.text.split("\x01")[11] == "1"


def test_transactions_are_traced_from_the_half_message_to_what_a_broker_is_told(
    cluster: FakeCluster,
) -> None:
    broker = tracing(cluster)
    refusals = 0

    def answer(command: Command) -> Command | None:
        nonlocal refusals
        if command.code == RequestCode.END_TRANSACTION:
            return command.reply()
        if command.code == RequestCode.SEND_MESSAGE_V2 and ext(command)["b"] == "T":
            if refusals < 1:
                refusals += 1
                return command.reply(2, "busy")
            fields = {"msgId": "7F00000100002A9F0000000000001267", "queueId": "0", "queueOffset": "3",
                      "transactionId": "TX", "MSG_REGION": "R"}  # fmt: skip
            return command.reply(ext=fields)
        return None

    broker.trouble = answer

    async def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.ROLLBACK

    async def main() -> None:
        async with Producer(
            "PG", namesrv=NAME_SERVER, trace_topic=TRACE_TOPIC, check_transaction=check
        ) as producer:
            for unique_id in ("COMMITTED", "LEFT"):
                async with producer.transaction(Message("T", b"1", unique_id=unique_id)) as half:
                    if unique_id == "LEFT":
                        half.unknown()
            asked = Draft(
                "T", 0, b"1", properties=encode_properties({"UNIQ_KEY": "LEFT", "PGROUP": "PG"})
            )
            question = Command(
                RequestCode.CHECK_TRANSACTION_STATE,
                {"commitLogOffset": "4711", "tranStateTableOffset": "3", "transactionId": "TX"},
                encode(asked, 3, 4711, 1_000),
            )
            instance = producer._running()
            requests = Requests(dict, instance.replies, lambda: instance.transaction_checks)
            here: Any = broker
            requests.handle_check_transaction_state(question, here)
            await asyncio.sleep(0.1)
        assert shown(broker, "COMMITTED") == [
            ("Pub", "PG", "failed"), ("Pub", "PG", "success"), ("End", "PG", "COMMIT_MESSAGE"),
        ]  # fmt: skip
        assert shown(broker, "LEFT") == [
            ("Pub", "PG", "success"), ("End", "PG", "UNKNOW"), ("End", "PG", "ROLLBACK_MESSAGE, asked"),
        ]  # fmt: skip

    run(main())
