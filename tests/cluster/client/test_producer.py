"""Sends: attempts, budgets, what travels, what the caller gets. No sockets; time jumps."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster, ext
from timekit import run

from tandemmq.cluster.client import (
    BrokerAnswerBroken,
    BrokerRefused,
    CallTimedOut,
    Message,
    MessageQueue,
    MessageRefused,
    NoNameServer,
    NoRoute,
    NotRunning,
    Producer,
    SendFailed,
    SendStatus,
    WrongLoop,
    by_key,
)
from tandemmq.cluster.remoting import Command, ConnectionLost, RequestCode, RequestTimedOut

SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


@asynccontextmanager
async def producing(**options: object) -> AsyncIterator[Producer]:
    async with Producer("PG", namesrv=NAME_SERVER, **options) as producer:  # type: ignore[arg-type]
        yield producer


def failing(code: int) -> object:
    return lambda command: command.reply(code, "no") if command.code in SENDS else None


def test_message_is_stored_and_its_place_returned(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with producing() as producer:
            result = await producer.send(Message("T", b"hello", tags="A", keys="k"))
            again = await producer.send(Message("T", b"hello"))
        assert (result.status, result.ok) == (SendStatus.SEND_OK, True)
        assert result.queue == MessageQueue("T", "broker-a", 0)
        assert (result.queue_offset, again.queue_offset) == (0, 1)
        assert result.message_id != again.message_id
        assert len(result.message_id) == 32

    run(main())
    sent = next(each for each in broker.requests if each.code == RequestCode.SEND_MESSAGE_V2)
    fields = ext(sent)
    assert fields["a"] == "PG"
    assert fields["c"] == "TBW102"
    assert "TAGS\x01A\x02" in fields["i"]
    assert "KEYS\x01k\x02" in fields["i"]


def test_broker_hears_of_the_group_before_the_first_send_and_of_its_end(
    cluster: FakeCluster,
) -> None:
    broker = cluster.add("broker-a", "T")

    async def main() -> None:
        async with producing() as producer:
            await producer.send(Message("T", b"x"))

    run(main())
    assert broker.codes() == [
        RequestCode.HEART_BEAT, RequestCode.SEND_MESSAGE_V2, RequestCode.UNREGISTER_CLIENT
    ]  # fmt: skip
    assert broker.heartbeats[0]["producerDataSet"] == [{"groupName": "PG"}]


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17])
def test_failed_attempt_goes_to_another_broker_with_the_same_message_id(
    cluster: FakeCluster, code: int
) -> None:
    cluster.add("broker-a", "T").trouble = failing(code)  # type: ignore[assignment]
    good = cluster.add("broker-b", "T")

    async def main() -> set[str]:
        async with producing() as producer:
            return {(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(8)}

    assert run(main()) == {"broker-b"}
    bad = cluster.brokers["127.0.0.1:10911"]
    refused = {ext(each)["i"] for each in bad.requests if each.code in SENDS}
    stored = {ext(each)["i"] for each in good.requests if each.code in SENDS}
    assert refused
    assert refused <= stored


def test_broker_that_is_down_costs_an_attempt_and_not_the_message(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "T").down = True
    cluster.add("broker-b", "T")

    async def main() -> set[str]:
        async with producing() as producer:
            return {(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(4)}

    assert run(main()) == {"broker-b"}


def test_all_attempts_failing_names_brokers_and_causes(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "T").trouble = failing(14)  # type: ignore[assignment]
    cluster.add("broker-b", "T").trouble = failing(2)  # type: ignore[assignment]

    async def main() -> None:
        async with producing() as producer:
            await producer.send(Message("T", b"x"))

    with pytest.raises(SendFailed, match=r"Send \[3\] times, still failed.*Topic: T") as caught:
        run(main())
    tried = caught.value.brokers
    assert len(tried) == 3
    assert tried[0] == tried[2] != tried[1]
    assert {cause.code for cause in caught.value.causes} == {2, 14}  # type: ignore[attr-defined]


def test_refusal_that_blames_the_message_is_not_retried(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T")
    broker.trouble = failing(13)  # type: ignore[assignment]

    async def main() -> None:
        async with producing() as producer:
            await producer.send(Message("T", b"x"))

    with pytest.raises(BrokerRefused, match="CODE: 13  DESC: no") as caught:
        run(main())
    assert caught.value.code == 13
    assert sum(each.code in SENDS for each in broker.requests) == 1


def test_silent_broker_uses_up_the_time_and_not_more(cluster: FakeCluster) -> None:
    def silent(command: Command) -> Exception | None:
        return RequestTimedOut("a", command.code, 3_000) if command.code in SENDS else None

    broker = cluster.add("broker-a", "T")

    async def hang(command: Command, wire: object) -> Command:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits that long")

    broker.handle_send_message_v2 = hang  # type: ignore[method-assign]

    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with producing() as producer:
            began = loop.time()
            with pytest.raises(SendFailed, match="call timeout") as caught:
                await producer.send(Message("T", b"x"))
            assert isinstance(caught.value.causes[0], CallTimedOut)
            return loop.time() - began

    assert 2.9 < run(main()) < 3.1


def test_a_silent_broker_leaves_time_for_another(cluster: FakeCluster) -> None:
    silent = cluster.add("broker-a", "T")
    cluster.add("broker-b", "T")

    async def hang(command: Command, wire: object) -> Command:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits that long")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with producing() as producer:
            for number in range(8):  # so that the fast way is open
                await producer.send(Message("T", b"%d" % number))
            silent.handle_send_message_v2 = hang  # type: ignore[method-assign]
            began = loop.time()
            sends = [producer.send(Message("T", b"x")) for _ in range(12)]
            results = await asyncio.gather(*sends)
            assert {result.queue.broker_name for result in results} == {"broker-b"}
            assert 1.5 <= loop.time() - began < 1.8
            with pytest.raises(CallTimedOut):  # one attempt: nothing to divide
                await producer.send(Message("T", b"x"), queue=MessageQueue("T", "broker-a", 0))
            assert 4.5 <= loop.time() - began < 5

    run(main())


def test_each_advice_is_given_once(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "T").down = True

    async def main() -> None:
        async with producing() as producer:
            await producer.send(Message("T", b"x"))

    with pytest.raises(SendFailed) as caught:
        run(main())
    text = str(caught.value)
    assert text.count("Is it running") == 1
    assert text.endswith(caught.value.advice) and text.startswith(caught.value.said.rstrip("."))


def test_a_send_from_elsewhere_than_the_producers_loop_is_refused_in_a_sentence(
    cluster: FakeCluster,
) -> None:
    cluster.add("broker-a", "T")

    async def main() -> None:
        async with producing() as producer:
            with ThreadPoolExecutor(1) as elsewhere:
                sent = elsewhere.submit(producer.send, Message("T", b"x"))
                with pytest.raises(WrongLoop, match="run_coroutine_threadsafe"):
                    sent.result()
            await producer.send(Message("T", b"x"))

    run(main())


@pytest.mark.parametrize("away", ["refuses", "is gone"])
def test_a_retry_goes_to_the_master_that_took_over_meanwhile(
    cluster: FakeCluster, away: str
) -> None:
    former = cluster.add("broker-a", "T")

    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with producing() as producer:
            await producer.send(Message("T", b"x"))
            former.trouble = failing(14)  # type: ignore[assignment]
            former.down = away == "is gone"
            loop.call_later(0.15, replace)
            began = loop.time()
            await producer.send(Message("T", b"y"))
            return loop.time() - began

    def replace() -> None:
        del cluster.brokers[former.address]
        cluster.brokers["127.0.0.1:30911"] = FakeBroker(cluster, "broker-a", "127.0.0.1:30911")

    assert 0.15 <= run(main()) < 0.35


@pytest.mark.parametrize("chosen", ["queue", "selector"])
def test_chosen_queue_gets_one_attempt(cluster: FakeCluster, chosen: str) -> None:
    broker = cluster.add("broker-a", "T")
    broker.trouble = failing(2)  # type: ignore[assignment]
    cluster.add("broker-b", "T")
    options = {
        "queue": {"queue": MessageQueue("T", "broker-a", 2)},
        "selector": {"selector": lambda queues, message: queues[0]},
    }[chosen]

    async def main() -> None:
        async with producing() as producer:
            await producer.send(Message("T", b"x"), **options)

    with pytest.raises(BrokerRefused):
        run(main())
    assert sum(each.code in SENDS for each in broker.requests) == 1


def test_messages_of_one_key_keep_their_order_in_one_queue(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "T")
    cluster.add("broker-b", "T")

    async def main() -> list[tuple[MessageQueue, int]]:
        async with producing() as producer:
            results = [
                await producer.send(Message("T", b"x"), selector=by_key("order-17"))
                for _ in range(5)
            ]
            return [(result.queue, result.queue_offset) for result in results]

    places = run(main())
    assert len({queue for queue, _ in places}) == 1
    assert [offset for _, offset in places] == [0, 1, 2, 3, 4]


def test_queue_of_another_topic_is_refused_before_sending(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "T")

    async def main() -> None:
        async with producing() as producer:
            await producer.send(Message("T", b"x"), queue=MessageQueue("U", "broker-a", 0))

    with pytest.raises(MessageRefused, match="not one of topic T"):
        run(main())


def test_concurrent_sends_are_all_stored_and_ask_for_the_route_once(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 4)

    async def main() -> list[int]:
        async with producing(in_flight_max=16) as producer:
            results = await asyncio.gather(
                *(producer.send(Message("T", b"%d" % number)) for number in range(100))
            )
            return [result.queue.queue_id for result in results]

    ids = run(main())
    assert {ids.count(number) for number in range(4)} == {25}
    assert sum(len(queue) for queue in broker.queues.values()) == 100
    assert cluster.route_requests == ["T"]
    assert len(cluster.wires) == 2  # the name server and the broker


def test_unknown_topic_is_sent_where_the_template_topic_lives(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "TBW102", 8)

    async def main() -> list[int]:
        async with producing() as producer:
            assert len(await producer.queues("New")) == 4
            return [(await producer.send(Message("New", b"x"))).queue.queue_id for _ in range(4)]

    assert sorted(run(main())) == [0, 1, 2, 3]
    assert cluster.route_requests[:2] == ["New", "TBW102"]


def test_unknown_topic_without_automatic_creation_says_what_to_do(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "T")

    async def main() -> None:
        async with producing() as producer:
            await producer.send(Message("New", b"x"))

    with pytest.raises(NoRoute, match=r"No route info of this topic: New .*autoCreateTopicEnable"):
        run(main())


def test_no_name_server_answering_is_said_with_every_address(cluster: FakeCluster) -> None:
    cluster.name_server_down = True

    async def main() -> None:
        async with Producer("PG", namesrv=f"{NAME_SERVER};127.0.0.1:9877") as producer:
            await producer.send(Message("T", b"x"))

    with pytest.raises(NoNameServer, match="9876") as caught:
        run(main())
    assert "9877" in str(caught.value)


def test_second_name_server_takes_over(cluster: FakeCluster) -> None:
    cluster.add("broker-a", "T")

    async def main() -> None:
        for _ in range(8):  # the list is shuffled: sometimes the dead one comes first
            async with Producer("PG", namesrv=f"127.0.0.1:1;{NAME_SERVER}") as producer:
                assert (await producer.send(Message("T", b"x"))).ok

    run(main())


def test_large_body_travels_compressed_and_small_one_does_not(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with producing() as producer:
            for size in (4_095, 4_096, 100_000):
                await producer.send(Message("T", b"x" * size))

    run(main())
    sends = [each for each in broker.requests if each.code in SENDS]
    assert [ext(each)["f"] for each in sends] == ["0", str(0x301), str(0x301)]
    assert zlib.decompress(sends[1].body or b"") == b"x" * 4_096
    assert zlib.decompress(sends[2].body or b"") == b"x" * 100_000


def test_body_above_the_limit_is_refused_here(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with producing(body_bytes_max=10) as producer:
            await producer.send(Message("T", b"x" * 11))

    with pytest.raises(MessageRefused, match="MAX: 10, got 11"):
        run(main())
    assert cluster.route_requests == []


def test_properties_that_the_store_cannot_hold_are_refused_here(cluster: FakeCluster) -> None:
    async def main() -> None:
        async with producing() as producer:
            await producer.send(Message("T", b"x", properties={"a": "x" * 32_768}))

    with pytest.raises(MessageRefused, match="at most 32767"):
        run(main())


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_stored_but_not_as_promised_is_a_result_and_not_an_error(
    cluster: FakeCluster, code: int, status: SendStatus
) -> None:
    place = {"msgId": "OFF", "queueId": "0", "queueOffset": "7"}
    broker = cluster.add("broker-a", "T")
    broker.trouble = lambda command: (
        command.reply(code, ext=place) if command.code in SENDS else None
    )

    async def main() -> None:
        async with producing() as producer:
            result = await producer.send(Message("T", b"x"))
        assert (result.status, result.ok, result.queue_offset) == (status, False, 7)

    run(main())


def test_answer_without_its_fields_is_an_error_after_all_attempts(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T")
    broker.trouble = lambda command: command.reply() if command.code in SENDS else None

    async def main() -> None:
        async with producing() as producer:
            await producer.send(Message("T", b"x"))

    with pytest.raises(SendFailed) as caught:
        run(main())
    assert all(isinstance(cause, BrokerAnswerBroken) for cause in caught.value.causes)


def test_connection_lost_during_a_send_is_retried_on_a_new_one(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T")
    losses = [ConnectionLost("a")]

    def lose(command: Command) -> Exception | None:
        return losses.pop() if command.code in SENDS and losses else None

    broker.trouble = lose

    async def main() -> None:
        async with producing() as producer:
            assert (await producer.send(Message("T", b"x"))).ok

    run(main())


def test_batch_is_one_request_and_every_message_keeps_its_own_id(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with producing() as producer:
            result = await producer.send_batch(
                [Message("T", b"%d" % number, keys=f"k{number}") for number in range(3)]
            )
        assert len(set(result.message_ids)) == 3
        assert result.offset_message_id == "OFF0,OFF1,OFF2"

    run(main())
    (sent,) = [each for each in broker.requests if each.code in SENDS]
    assert sent.code == RequestCode.SEND_BATCH_MESSAGE
    assert ext(sent)["m"] == "true"
    assert "UNIQ_KEY" not in ext(sent)["i"]
    assert len(broker.queues["T", 0]) == 3


@pytest.mark.parametrize(
    ("batch", "part"),
    [
        ([], "at least one"),
        ([Message("T", b"x"), Message("U", b"x")], "same topic"),
        ([Message("T", b"x"), Message("T", b"x", wait_stored=False)], "same wait_stored"),
        ([Message("T", b"x", delay_level=1)], "delayed"),
        ([Message("%RETRY%g", b"x")], "retry topic"),
        ([Message("T", b"x" * 600)] * 2, "at most 1000"),
    ],
)
def test_batch_that_breaks_a_rule_is_refused_here(
    cluster: FakeCluster, batch: list[Message], part: str
) -> None:
    async def main() -> None:
        async with producing(body_bytes_max=1_000) as producer:
            await producer.send_batch(batch)

    with pytest.raises(MessageRefused, match=part):
        run(main())


def test_oneway_message_is_written_without_waiting(cluster: FakeCluster) -> None:
    broker = cluster.add("broker-a", "T", 1)

    async def main() -> None:
        async with producing() as producer:
            await producer.send_oneway(Message("T", b"x"))
            await asyncio.sleep(1)

    run(main())
    assert len(broker.queues["T", 0]) == 1


def test_producer_that_does_not_run_says_so(cluster: FakeCluster) -> None:
    async def main() -> None:
        producer = Producer("PG", namesrv=NAME_SERVER)
        with pytest.raises(NotRunning, match="async with"):
            await producer.send(Message("T", b"x"))
        async with producer:
            pass
        with pytest.raises(NotRunning):
            await producer.send(Message("T", b"x"))

    run(main())


def test_producers_of_one_loop_share_connections_until_the_last_one_stops(
    cluster: FakeCluster,
) -> None:
    cluster.add("broker-a", "T")

    async def main() -> None:
        async with producing() as first:
            await first.send(Message("T", b"x"))
            async with producing() as second:
                await second.send(Message("T", b"x"))
            await first.send(Message("T", b"x"))
            assert len(cluster.wires) == 2
        async with producing() as third:
            await third.send(Message("T", b"x"))
        assert len(cluster.wires) == 4

    run(main())


@pytest.mark.parametrize("namesrv", ["host", "host:0", "host:x", ":9876"])
def test_address_that_is_none_is_refused(namesrv: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        Producer("PG", namesrv=namesrv)


def test_missing_name_server_setting_says_how_to_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(NoNameServer, match="NAMESRV_ADDR"):
        Producer("PG")
    monkeypatch.setenv("NAMESRV_ADDR", "a:9876;b:9876")
    Producer("PG")
