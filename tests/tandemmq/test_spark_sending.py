"""What an executor does while a broker takes nothing: its rows wait, and none is made a second message. No Spark."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import pytest

from tandemmq import Message, MessageQueue, Producer
from tandemmq.cluster.client import BrokerRefused, ClientError, SendFailed, SendResult, SendStatus
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.spark import sending
from tandemmq.spark.errors import RowRefused
from tandemmq.spark.options import ClusterOptions, WriteOptions
from tandemmq.spark.outgoing import RowIds, RowReader

pa = pytest.importorskip("pyarrow", reason="needs the spark extra")

IN_FLIGHT = 8
QUEUE = MessageQueue("Orders", "broker-a", 0)


class Broker:
    """Stands where a producer stands: what a busy broker answers to it, until it is not busy any more.

    Answers come a turn of the loop later. refusals: how many sends are refused before one is taken.
    """

    def __init__(self, refusals: int, code: int = ResponseCode.SYSTEM_BUSY) -> None:
        self.refusals = refusals
        self.code = code
        self.sent: list[str] = []
        self.stored: list[str] = []
        self.under_way = 0
        self.most_under_way = 0
        self.begun_while_busy = 0

    async def room(self) -> None:
        await asyncio.sleep(0)

    def send(self, message: Message, **_: object) -> asyncio.Future[SendResult]:
        again = message.unique_id in self.sent
        self.begun_while_busy += bool(self.sent and self.refusals and not again)
        self.sent.append(message.unique_id)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[SendResult] = loop.create_future()
        loop.call_later(0.001, self._answer, message, answer)
        return answer

    def _answer(self, message: Message, answer: asyncio.Future[SendResult]) -> None:
        self.under_way -= 1
        if answer.cancelled():
            return
        if self.refusals:
            self.refusals -= 1
            refused: list[ClientError] = [
                BrokerRefused(self.code, "[TOO_MANY_REQUESTS]", "b:1", "Orders")
            ]
            answer.set_exception(SendFailed("Orders", ["broker-a"], refused, 1))
        else:
            self.stored.append(message.unique_id)
            answer.set_result(SendResult(SendStatus.SEND_OK, message.unique_id, "", QUEUE, 0))


def rows(count: int, **more: object) -> Any:
    return pa.RecordBatch.from_pylist([{"body": str(n), **more} for n in range(count)])


async def sent_to(broker: Broker, batch: Any, patience_ms: int = 60_000) -> int:
    cluster = ClusterOptions("127.0.0.1:9876", retry_timeout_ms=patience_ms)
    options = WriteOptions(cluster, "Orders", "spark", IN_FLIGHT, drops_reserved=False)
    reader = RowReader("Orders", False, RowIds("job", 0), 0)
    sender = sending._Sender(cast(Producer, broker), options, reader)
    await sender.send(batch)
    return sender.count


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PAUSE_S", 0.002)


async def test_rows_wait_while_the_broker_is_busy_and_all_are_stored_once() -> None:
    broker = Broker(refusals=IN_FLIGHT + 4)
    assert await sent_to(broker, rows(100)) == 100
    assert sorted(broker.stored) == sorted(RowIds("job", 0)[n] for n in range(100))
    assert broker.most_under_way <= IN_FLIGHT
    assert broker.begun_while_busy <= IN_FLIGHT  # those before its first refusal was heard
    assert max(Counter(broker.sent).values()) > 1


async def test_rows_of_one_key_keep_their_order_through_a_busy_broker() -> None:
    broker = Broker(refusals=7)
    await sent_to(broker, rows(20, hash_key="k"))
    assert broker.stored == [RowIds("job", 0)[n] for n in range(20)]
    assert broker.most_under_way == 1


async def test_a_broker_that_stays_busy_fails_the_task_with_the_row() -> None:
    with pytest.raises(
        RowRefused, match=r"row 0 of partition 0 .*TOO_MANY_REQUESTS.*0\.05 s \(retryTimeoutMs\)"
    ):
        await sent_to(Broker(refusals=10**9), rows(3), patience_ms=50)


async def test_what_no_second_attempt_mends_fails_at_once() -> None:
    broker = Broker(refusals=10**9, code=ResponseCode.MESSAGE_ILLEGAL)
    with pytest.raises(RowRefused, match="row 0 of partition 0"):
        await sent_to(broker, rows(100))
    assert len(broker.sent) == len(set(broker.sent)) <= IN_FLIGHT
