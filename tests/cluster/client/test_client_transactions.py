"""Transactions of a producer: what it sends, when it tries again, and what it answers to brokers that ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from clientkit import NAME_SERVER, FakeBroker, FakeCluster, ext
from timekit import run

from tandemmq.cluster.client import (
    BrokerRefused,
    BrokerUnreachable,
    Message,
    MessageRefused,
    NotRunning,
    Producer,
    ReceivedMessage,
    TransactionState,
)
from tandemmq.cluster.client.reaching.requests import Requests
from tandemmq.cluster.remoting import Command, ConnectionLost, RequestCode, ResponseCode
from tandemmq.storage import Draft, encode, encode_properties, offset_message_id, pack_host

END = RequestCode.END_TRANSACTION
SEND = RequestCode.SEND_MESSAGE_V2
HALF_AT = 4711
MESSAGE = Message("T", b"17", keys="order-17")


class Brokers:
    """One that takes half messages, and writes down how they end."""

    def __init__(self, broker: FakeBroker, copies: int = 1) -> None:
        self.broker = broker
        self.copies = copies
        self.end: Callable[[Command], Command | Exception | None] = lambda command: None
        self.send: Callable[[Command], Command | Exception | None] = lambda command: None
        broker.trouble = self._answer

    def _answer(self, command: Command) -> Command | Exception | None:
        if command.code == SEND:
            fields = {
                "msgId": offset_message_id(pack_host("127.0.0.1", 1), HALF_AT),
                "queueId": "0", "queueOffset": "3", "transactionId": "T-1",
                **({"copies": str(self.copies)} if self.copies else {}),
            }  # fmt: skip
            return self.send(command) or command.reply(ext=fields)
        if command.code == END:
            return self.end(command) or command.reply()
        return None

    @property
    def ends(self) -> list[dict[str, str]]:
        return [ext(each) for each in self.broker.requests if each.code == END]


@pytest.fixture
def brokers(cluster: FakeCluster) -> Brokers:
    return Brokers(cluster.add("broker-a", "T", 1))


async def nobody_asks(message: ReceivedMessage) -> TransactionState:
    raise AssertionError("asked")


@asynccontextmanager
async def producing(**options: Any) -> AsyncIterator[Producer]:
    options.setdefault("check_transaction", nobody_asks)
    async with Producer("PG", namesrv=NAME_SERVER, **options) as producer:
        yield producer


def test_leaving_normally_commits_what_was_stored_as_a_half_message(brokers: Brokers) -> None:
    async def main() -> None:
        async with producing() as producer:
            async with producer.transaction(MESSAGE) as transaction:
                assert not brokers.ends
                assert transaction.message_id == transaction.result.message_id
            assert (transaction.state, transaction.confirmed) == (TransactionState.COMMIT, True)
            sent = next(each for each in brokers.broker.requests if each.code == SEND)
            assert "TRAN_MSG\x01true\x02PGROUP\x01PG\x02" in ext(sent)["i"]
            (end,) = brokers.ends
            assert end == {
                "topic": "T", "producerGroup": "PG", "tranStateTableOffset": "3",
                "commitLogOffset": str(HALF_AT), "commitOrRollback": "8",
                "fromTransactionCheck": "false", "msgId": transaction.message_id,
                "transactionId": "T-1", "bname": "broker-a",
            }  # fmt: skip

    run(main())


class OwnError(Exception):
    pass


def test_an_exception_rolls_back_and_goes_on(brokers: Brokers) -> None:
    async def main() -> None:
        async with producing() as producer:
            with pytest.raises(OwnError):
                async with producer.transaction(MESSAGE):
                    raise OwnError
            async with producer.transaction(MESSAGE) as asked_for:
                asked_for.rollback()
            assert [end["commitOrRollback"] for end in brokers.ends] == ["12", "12"]

    run(main())


def test_unknown_and_cancelled_tell_the_broker_nothing(brokers: Brokers) -> None:
    async def main() -> None:
        async with producing() as producer:
            async with producer.transaction(MESSAGE) as transaction:
                transaction.unknown()
            assert transaction.state is TransactionState.UNKNOWN

            async def stands_still() -> None:
                async with producer.transaction(MESSAGE):
                    await asyncio.sleep(1000)

            task = asyncio.create_task(stands_still())
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not brokers.ends

    run(main())


def test_without_a_half_message_that_is_safe_nothing_inside_runs(brokers: Brokers) -> None:
    async def begin(producer: Producer, kind: type[Exception]) -> None:
        with pytest.raises(kind):
            async with producer.transaction(MESSAGE):
                raise AssertionError("ran")

    async def main() -> None:
        async with producing() as producer:
            place = {
                "msgId": offset_message_id(pack_host("127.0.0.1", 1), 1),
                "queueId": "0",
                "queueOffset": "0",
            }
            brokers.send = lambda command: command.reply(
                ResponseCode.FLUSH_SLAVE_TIMEOUT, ext=place
            )
            await begin(producer, BrokerRefused)
            assert [end["commitOrRollback"] for end in brokers.ends] == ["12"]
            brokers.send = lambda command: ConnectionLost("broker-a:1")
            count = brokers.broker.codes().count(SEND)
            await begin(producer, BrokerUnreachable)
            assert brokers.broker.codes().count(SEND) == count + 1, "it may have been stored"
            brokers.send = lambda command: command.reply(ResponseCode.SYSTEM_BUSY, "busy")
            await begin(producer, BrokerRefused)
            assert brokers.broker.codes().count(SEND) == count + 4, "it was surely not stored"

    run(main())


@pytest.mark.parametrize(
    "trouble",
    [ConnectionLost("broker-a:1"), ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY],
    ids=str,
)
def test_an_end_is_tried_again_until_it_is_confirmed(
    brokers: Brokers, trouble: Exception | ResponseCode
) -> None:
    def twice(command: Command) -> Command | Exception | None:
        if len(brokers.ends) > 2:
            return None
        return trouble if isinstance(trouble, Exception) else command.reply(trouble, "no")

    async def main() -> None:
        brokers.end = twice
        async with producing() as producer:
            async with producer.transaction(MESSAGE) as transaction:
                pass
            assert transaction.confirmed and len(brokers.ends) == 3

    run(main())


def test_an_end_that_a_stock_broker_may_have_taken_is_not_sent_again(cluster: FakeCluster) -> None:
    brokers = Brokers(cluster.add("broker-a", "T", 1), copies=0)

    async def main() -> None:
        brokers.end = lambda command: ConnectionLost("broker-a:1")
        async with producing() as producer:
            async with producer.transaction(MESSAGE) as transaction:
                pass
            assert not transaction.confirmed and len(brokers.ends) == 1

    run(main())


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (ResponseCode.SYSTEM_ERROR, "no"),
        (ResponseCode.ILLEGAL_OPERATION, "no"),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, None),
        (ResponseCode.SLAVE_NOT_AVAILABLE, None),  # a master's that has no slave: it is stored
    ],
)
def test_an_end_that_is_refused_or_less_safe_leaves_it_to_the_check(
    brokers: Brokers, code: ResponseCode, remark: str | None
) -> None:
    async def main() -> None:
        brokers.end = lambda command: command.reply(code, remark)
        async with producing() as producer:
            async with producer.transaction(MESSAGE) as transaction:
                pass
            assert not transaction.confirmed and len(brokers.ends) == 1

    run(main())


def test_misuse_is_told_at_once(brokers: Brokers) -> None:
    async def main() -> None:
        async with producing(check_transaction=None) as producer:
            with pytest.raises(ValueError, match="check_transaction"):
                producer.transaction(MESSAGE)
        with pytest.raises(NotRunning):
            producer.transaction(MESSAGE)
        async with producing() as producer:
            with pytest.raises(MessageRefused):
                producer.transaction(Message("T", b"x", delay_level=3))
            with pytest.raises(NotRunning):
                _ = producer.transaction(MESSAGE).result

    run(main())


# -- checks ---------------------------------------------------------------------------------


def question(unique_id: str = "U", group: str = "PG", offset: int = 7) -> Command:
    properties = encode_properties({"UNIQ_KEY": unique_id, "PGROUP": group, "KEYS": "k"})
    ext = {
        "topic": "RMQ_SYS_TRANS_HALF_TOPIC", "tranStateTableOffset": "9", "commitLogOffset": str(offset),
        "msgId": unique_id, "transactionId": unique_id, "offsetMsgId": "F" * 32, "bname": "broker-a",
    }  # fmt: skip
    body = encode(Draft("T", 0, b"17", properties), 9, offset, 1)
    return Command(RequestCode.CHECK_TRANSACTION_STATE, ext, body)


class From:
    """The connection that a question came over."""

    def __init__(self, address: str) -> None:
        self.address = address


def asking(producer: Producer, brokers: Brokers) -> Callable[[Command], None]:
    instance = producer._running()
    requests = Requests(dict, instance.replies, lambda: instance.transaction_checks)
    here: Any = From(brokers.broker.address)
    return lambda command: requests.handle_check_transaction_state(command, here)


@pytest.mark.parametrize("state", list(TransactionState))
def test_a_question_is_answered_with_what_the_application_says(
    brokers: Brokers, state: TransactionState
) -> None:
    seen: list[ReceivedMessage] = []

    async def check(message: ReceivedMessage) -> TransactionState:
        seen.append(message)
        return state

    async def main() -> None:
        async with producing(check_transaction=check) as producer:
            asking(producer, brokers)(question())
            await asyncio.sleep(0.1)
        assert [(m.topic, m.body, m.message_id, m.keys) for m in seen] == [
            ("T", b"17", "U", ("k",))
        ]
        if state is TransactionState.UNKNOWN:
            assert not brokers.ends
        else:
            assert brokers.ends == [{
                "topic": "RMQ_SYS_TRANS_HALF_TOPIC", "tranStateTableOffset": "9", "commitLogOffset": "7",
                "msgId": "U", "transactionId": "U", "bname": "broker-a", "producerGroup": "PG",
                "commitOrRollback": str(state.value), "fromTransactionCheck": "true",
            }]  # fmt: skip

    run(main())


def test_a_question_repeated_while_it_is_answered_is_one_and_the_newest_counts(
    brokers: Brokers,
) -> None:
    calls = []

    async def check(message: ReceivedMessage) -> TransactionState:
        calls.append(message)
        await asyncio.sleep(1)
        return TransactionState.COMMIT

    async def main() -> None:
        async with producing(check_transaction=check) as producer:
            ask = asking(producer, brokers)
            ask(question(offset=7))
            await asyncio.sleep(0.1)
            ask(question(offset=8))
            await asyncio.sleep(2)
        assert len(calls) == 1
        assert [end["commitLogOffset"] for end in brokers.ends] == ["8"]

    run(main())


@pytest.mark.parametrize("trouble", ["raises", "hangs", "talks nonsense"])
def test_a_check_that_fails_leaves_the_transaction_open(brokers: Brokers, trouble: str) -> None:
    async def check(message: ReceivedMessage) -> TransactionState:
        if trouble == "raises":
            raise OwnError
        if trouble == "hangs":
            await asyncio.sleep(1_000)
        return "commit"  # type: ignore[return-value]

    async def main() -> None:
        async with producing(check_transaction=check, check_timeout_ms=50) as producer:
            ask = asking(producer, brokers)
            ask(question())
            await asyncio.sleep(0.2)
            assert not brokers.ends
            ask(question())  # and it can be asked again
            await asyncio.sleep(0.2)

    run(main())


def test_a_transaction_under_way_here_is_not_asked_about(brokers: Brokers) -> None:
    """Its application has not stored anything yet: it would say that there is nothing."""

    async def main() -> None:
        async with producing() as producer:
            ask = asking(producer, brokers)
            async with producer.transaction(MESSAGE) as transaction:
                ask(question(transaction.message_id))
                await asyncio.sleep(0.1)
                assert not brokers.ends
            assert len(brokers.ends) == 1

    run(main())


def test_questions_that_make_no_sense_are_logged_and_dropped(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with producing() as producer:
            ask = asking(producer, brokers)
            ask(question(group="Other"))
            ask(Command(RequestCode.CHECK_TRANSACTION_STATE, {}, b"x" * 200))
            ask(Command(RequestCode.CHECK_TRANSACTION_STATE))
            await asyncio.sleep(0.1)
        assert not brokers.ends
        assert "not here" in caplog.text and "does not decode" in caplog.text

    run(main())
