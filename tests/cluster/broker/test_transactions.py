"""Transactions of a master over a real store: what lies in the log, who sees it, what the next master makes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from brokerkit import FakeConnection as AskedConnection
from messagekit import STORE_HOST, UNIQUE, FakeClock, Kit, open_kit, send_ext

from tandemmq.cluster.broker.errors import TooFewReplicas
from tandemmq.cluster.broker.reading.members import GroupClient
from tandemmq.cluster.broker.settings.config import BrokerConfig, Role
from tandemmq.cluster.broker.standing.standing import SendRefused
from tandemmq.cluster.broker.tables.names import HALF_TOPIC, OP_TOPIC
from tandemmq.cluster.broker.transactions import records
from tandemmq.cluster.broker.transactions import transactions as shell
from tandemmq.cluster.broker.transactions.records import COPY_ADDS_BYTES
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import (
    Draft,
    FlushMode,
    Record,
    StoreNotWritable,
    decode,
    encode,
    encode_properties,
    offset_message_id,
    parse_offset_message_id,
)

COMMIT, ROLLBACK = 8, 12
GROUP = "PG"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
PROGRESS = "CID_RMQ_SYS_TRANS"
BODY_AT = 88  # in a record with IPv4 hosts


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path) as kit:
        kit.topic("T", 4)
        asyncio.run(kit.transactions.replay())
        yield kit


def begin(kit: Kit, body: bytes = b"hello", **properties: str) -> dict[str, Any]:
    """A half message; what names it to END_TRANSACTION."""
    told = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": UNIQUE, "TAGS": "A", **properties}
    text = encode_properties(told).decode()
    answer = kit.ask(Command(310, send_ext(e="2", f="4", h="9", i=text), body, opaque=3))
    assert answer is not None and answer.code == 0 and answer.ext is not None, answer
    assert answer.ext["queueId"] == "2"
    _, offset = parse_offset_message_id(answer.ext["msgId"])
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": answer.ext["queueOffset"],
        "commitLogOffset": str(offset),
        "msgId": UNIQUE,
    }


def ended(kit: Kit, half: dict[str, Any], how: int = COMMIT, **more: str) -> Command | None:
    kit.dispatch()
    ext = {**half, "commitOrRollback": str(how), **more}
    return kit.ask(Command(RequestCode.END_TRANSACTION, ext, opaque=4))


async def rolled_back(kit: Kit, half: dict[str, Any], **more: str) -> Command | None:
    answer = ended(kit, half, ROLLBACK, **more)
    await asyncio.sleep(0)  # it is noted with what else came in during this turn of the loop
    return answer or next(iter(kit.connection.take()), None)


def oneway(kit: Kit, half: dict[str, Any], how: int) -> None:
    ext = {**half, "commitOrRollback": str(how)}
    assert kit.ask(Command(RequestCode.END_TRANSACTION, ext, opaque=4, flag=2)) is None


def of(kit: Kit, topic: str) -> list[Record]:
    return [record for record in kit.records() if record.topic == topic]


def listen(kit: Kit, group: str = GROUP) -> Any:
    """A producer of the group connects; what it is asked is in `requests`."""
    peer: Any = AskedConnection()
    kit.producers.register(group, GroupClient(peer, "c", 0, 479, 0, 0))
    return peer


async def round_of(kit: Kit, pass_ms: int = 30_000) -> None:
    kit.clock.pass_ms(pass_ms)
    await kit.transactions.check_round()


def note(kit: Kit) -> None:
    """The batch's time has come."""
    kit.clock.pass_ms(3_000)
    kit.transactions._note_due(kit.clock.monotonic_ms())


async def succeed(kit: Kit) -> None:
    """Another master goes on with this log."""
    kit.dispatch()
    await kit.transactions.replay()


# -- in the log -----------------------------------------------------------------------------


def test_a_half_message_lies_in_the_half_topic_as_rocketmq_stores_it(kit: Kit) -> None:
    begin(kit)
    (half,) = kit.records()
    assert (half.topic, half.queue_id, half.sys_flag, half.flag) == (HALF_TOPIC, 0, 0, 9)
    assert half.property_map == {
        "TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": UNIQUE, "TAGS": "A",
        "__transactionId__": UNIQUE, "REAL_TOPIC": "T", "REAL_QID": "2",
        "MSG_REGION": "DefaultRegion", "CLUSTER": "GoldCluster", "TRACE_ON": "true",
    }  # fmt: skip
    kit.dispatch()
    assert kit.store.max_offset("T", 2) == 0 and kit.store.max_offset(HALF_TOPIC, 0) == 1


def test_a_commit_puts_the_message_where_it_belongs_and_notes_it_later(kit: Kit) -> None:
    named = begin(kit)
    answer = ended(kit, named)
    assert answer is not None and answer.code == 0
    half, message = kit.records()
    assert (message.topic, message.queue_id, message.queue_offset) == ("T", 2, 0)
    assert (message.sys_flag, message.prepared_offset) == (COMMIT, half.physical_offset)
    for name in ("body", "properties", "flag", "born_ms", "born_host", "store_host"):
        assert getattr(message, name) == getattr(half, name), name
    note(kit)
    (op,) = of(kit, OP_TOPIC)
    assert (op.body, op.properties, op.queue_id) == (b"0,", b"WAIT\x01true\x02TAGS\x01d\x02", 0)
    assert (op.born_host, op.store_host) == (STORE_HOST, STORE_HOST)


async def test_a_rollback_reaches_nobody_and_is_answered_when_it_is_noted(kit: Kit) -> None:
    named = begin(kit)
    answer = ended(kit, named, ROLLBACK)
    assert answer is None and not of(kit, OP_TOPIC)
    await asyncio.sleep(0)
    (answer,) = kit.connection.take()
    assert answer.code == 0 and answer.opaque == 4
    assert [op.body for op in of(kit, OP_TOPIC)] == [b"0,"]
    assert not of(kit, "T")


def test_ends_that_nobody_waits_for_are_noted_together(kit: Kit) -> None:
    halves = [begin(kit) for _ in range(4)]
    for each, how in zip(halves, (COMMIT, ROLLBACK, COMMIT), strict=False):
        oneway(kit, each, how)
    note(kit)
    assert [op.body for op in of(kit, OP_TOPIC)] == [b"0,1,2,"]
    assert len(of(kit, "T")) == 2


def test_a_client_does_not_make_its_message_the_copy_of_another(kit: Kit) -> None:
    begin(kit)
    begin(kit, TRAN_PREPARED_QUEUE_OFFSET="0", TRANSACTION_CHECK_TIMES="3")
    assert len(kit.transactions.halves) == 2
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in of(kit, HALF_TOPIC)[1].property_map


# -- once, and only once --------------------------------------------------------------------


def test_a_repeated_commit_is_answered_and_puts_nothing(kit: Kit) -> None:
    named = begin(kit)
    for _ in range(3):
        answer = ended(kit, named)
        assert answer is not None and answer.code == 0
    assert len(of(kit, "T")) == 1


async def test_what_was_rolled_back_cannot_be_committed_nor_the_other_way(kit: Kit) -> None:
    first, second = begin(kit), begin(kit)
    await rolled_back(kit, first)
    answer = ended(kit, first)
    assert answer is not None and answer.code == ResponseCode.SYSTEM_ERROR
    assert "rolled back" in (answer.remark or "")
    ended(kit, second)
    answer = await rolled_back(kit, second)
    assert answer is not None and "committed" in (answer.remark or "")
    assert len(of(kit, "T")) == 1


async def test_after_a_crash_a_commit_is_known_although_nothing_noted_it(kit: Kit) -> None:
    committed, open_one = begin(kit), begin(kit)
    ended(kit, committed)
    kit.transactions._ops.clear()  # the process died
    await succeed(kit)
    assert len(kit.transactions.halves) == 1
    answer = ended(kit, committed)
    assert answer is not None and answer.code == 0 and len(of(kit, "T")) == 1
    answer = ended(kit, open_one)
    assert answer is not None and answer.code == 0 and len(of(kit, "T")) == 2


@pytest.mark.parametrize("body", [b"7,8", b"-1", b"x,,99999999999999999999,\xff", b"", b"," * 999])
async def test_an_op_message_for_halves_that_nobody_knows_ends_nothing(
    kit: Kit, body: bytes
) -> None:
    named = begin(kit)
    kit.store.put(Draft(OP_TOPIC, 0, body, properties=b"TAGS\x01d\x02"))
    await succeed(kit)
    assert len(kit.transactions.halves) == 1
    assert kit.transactions.halves.progress == 0
    answer = ended(kit, named)
    assert answer is not None and answer.code == 0
    note(kit)
    await succeed(kit)
    assert not len(kit.transactions.halves) and len(of(kit, "T")) == 1


async def test_a_late_commit_of_the_first_copy_is_the_only_one(kit: Kit) -> None:
    """INV-60. RocketMQ delivers it, asks for the copy, and delivers that as well."""
    named, peer = begin(kit), listen(kit)
    await round_of(kit)
    await round_of(kit)
    assert len(peer.requests) == 2
    answer = ended(kit, named)
    assert answer is not None and answer.code == 0
    answer = ended(kit, answer_to(peer.requests[-1]), fromTransactionCheck="true")
    assert answer is not None and answer.code == 0
    answer = ended(kit, answer_to(peer.requests[0]), fromTransactionCheck="true")
    assert answer is not None and answer.code == 0
    assert len(of(kit, "T")) == 1
    await round_of(kit)
    assert len(peer.requests) == 2, "none is asked for after its end"


async def test_another_master_knows_copies_and_ends_by_the_log_alone(kit: Kit) -> None:
    one, two, three = (begin(kit) for _ in range(3))
    peer = listen(kit)
    await round_of(kit)  # copies of all of them: 3, 4, 5
    ended(kit, two)
    await rolled_back(kit, three)
    kit.transactions._keep_progress()
    await succeed(kit)
    (left,) = kit.transactions.halves._pending.values()
    assert (left.origin, left.queue_offset, left.checks) == (0, 3, 1)
    await round_of(kit)
    assert len(peer.requests) == 4
    answer = ended(kit, one)
    assert answer is not None and answer.code == 0
    assert len(of(kit, "T")) == 2


async def test_progress_is_kept_for_whoever_goes_on_with_the_store(kit: Kit) -> None:
    first, second, _ = begin(kit), begin(kit), begin(kit)
    ended(kit, first)
    ended(kit, second)
    note(kit)
    kit.transactions._keep_progress()
    assert kit.offsets.committed(PROGRESS, HALF_TOPIC, 0) == 2
    assert kit.offsets.committed(PROGRESS, OP_TOPIC, 0) == 1
    await succeed(kit)
    assert len(kit.transactions.halves) == 1 and kit.transactions.halves.progress == 2
    assert kit.transactions.halves.op_progress == 1


# -- checks ---------------------------------------------------------------------------------


def answer_to(check: Command) -> dict[str, str]:
    """END_TRANSACTION as clients make it of a check."""
    assert check.ext is not None
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": check.ext["tranStateTableOffset"],
        "commitLogOffset": check.ext["commitLogOffset"],
        "msgId": check.ext["msgId"],
    }


async def test_a_check_names_the_copy_and_carries_the_message_as_consumers_would_get_it(
    kit: Kit,
) -> None:
    begin(kit)
    peer = listen(kit)
    await round_of(kit, 5_000)
    assert not peer.requests, "younger than transactionTimeOut"
    await round_of(kit)
    half, copy = of(kit, HALF_TOPIC)
    assert copy.property_map == {
        **half.property_map, "TRANSACTION_CHECK_TIMES": "1", "TRAN_PREPARED_QUEUE_OFFSET": "0",
    }  # fmt: skip
    assert (copy.flag, copy.body, copy.born_ms) == (9, half.body, half.born_ms)
    (check,) = peer.requests
    assert check.code == RequestCode.CHECK_TRANSACTION_STATE
    assert check.ext == {
        "topic": HALF_TOPIC,
        "tranStateTableOffset": "1",
        "commitLogOffset": str(copy.physical_offset),
        "msgId": UNIQUE,
        "transactionId": UNIQUE,
        "offsetMsgId": check.ext["offsetMsgId"],
        "bname": "broker-a",
    }
    assert parse_offset_message_id(check.ext["offsetMsgId"]) == (STORE_HOST, copy.physical_offset)
    record = decode(check.body or b"")
    assert (record.topic, record.queue_id, record.queue_offset) == ("T", 2, 1)
    assert (record.physical_offset, record.properties) == (copy.physical_offset, copy.properties)
    ended(kit, answer_to(check), fromTransactionCheck="true")
    (message,) = of(kit, "T")
    assert message.prepared_offset == copy.physical_offset and message.body == b"hello"


async def test_after_fifteen_checks_the_message_is_where_operators_look(kit: Kit) -> None:
    named = begin(kit)
    peer = listen(kit)
    for _ in range(17):
        await round_of(kit)
    assert len(peer.requests) == 15
    (record,) = of(kit, GIVEN_UP)
    assert record.property_map["TRANSACTION_CHECK_TIMES"] == "15"
    assert (record.body, record.flag) == (b"hello", 9)
    assert GIVEN_UP in kit.topics
    answer = ended(kit, named)
    assert answer is not None and "given up" in (answer.remark or "")
    note(kit)
    await succeed(kit)
    assert not len(kit.transactions.halves), "and for good"


async def test_how_often_and_how_soon_is_asked_is_set_by_rocketmqs_keys(tmp_path: Path) -> None:
    properties = {"transactionCheckMax": "2", "transactionTimeOut": "30000",
                  "transactionCheckInterval": "7000", "rejectTransactionMessage": "true"}  # fmt: skip
    config = BrokerConfig.from_properties(properties)
    assert (config.transaction_checks_max, config.transaction_timeout_ms) == (2, 30_000)
    assert (config.transaction_check_interval_ms, config.transactions_rejected) == (7_000, True)
    settings = {"transaction_checks_max": 2, "transaction_timeout_ms": 30_000}
    with open_kit(tmp_path, FakeClock(), **settings) as kit:
        kit.topic("T", 4)
        await succeed(kit)
        begin(kit)
        peer = listen(kit)
        kit.clock.pass_ms(29_000)
        await kit.transactions.check_round()
        assert not peer.requests
        for _ in range(4):
            kit.clock.pass_ms(30_001)
            await kit.transactions.check_round()
        assert len(peer.requests) == 2 and len(of(kit, GIVEN_UP)) == 1


async def test_an_operator_has_one_asked_for_again_that_was_given_up(kit: Kit) -> None:
    begin(kit)
    peer = listen(kit)
    for _ in range(17):
        await round_of(kit)
    (record,) = of(kit, GIVEN_UP)
    named = {"topic": GIVEN_UP, "msgId": offset_message_id(STORE_HOST, record.physical_offset)}
    answer = kit.ask(Command(RequestCode.RESUME_CHECK_HALF_MESSAGE, named, opaque=4))
    assert answer is not None and answer.code == 0
    note(kit)
    await succeed(kit)  # and another master knows it
    await round_of(kit)
    assert len(peer.requests) == 16
    answer = ended(kit, answer_to(peer.requests[-1]), fromTransactionCheck="true")
    assert answer is not None and answer.code == 0
    (message,) = of(kit, "T")
    assert message.body == b"hello"


@pytest.mark.parametrize("msg_id", ["", "x", "F" * 32, "0" * 32])
def test_only_what_was_given_up_is_asked_for_again(kit: Kit, msg_id: str) -> None:
    begin(kit)
    command = Command(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": msg_id}, opaque=4)
    answer = kit.ask(command)
    assert answer is not None and answer.code == ResponseCode.SYSTEM_ERROR
    assert len(kit.records()) == 1


async def test_while_no_producer_is_there_checks_are_not_counted(kit: Kit) -> None:
    begin(kit)
    for _ in range(20):
        await round_of(kit)
    copies = of(kit, HALF_TOPIC)
    assert len(copies) == 2, "once in ten minutes, so that the log need not be kept for it"
    assert "TRANSACTION_CHECK_TIMES" not in copies[-1].property_map
    peer = listen(kit, "Other")
    await round_of(kit)
    assert not peer.requests
    peer = listen(kit)
    await round_of(kit)
    assert len(peer.requests) == 1


async def test_immunity_delays_checks_without_using_them_up(kit: Kit) -> None:
    """RocketMQ counts each round: with 15 of them a message that asks for ten minutes is given up unasked."""
    named = begin(kit, CHECK_IMMUNITY_TIME_IN_SECONDS="1000")
    peer = listen(kit)
    for _ in range(33):
        await round_of(kit)
    assert not peer.requests
    await round_of(kit)
    assert peer.requests and decode(peer.requests[0].body).property_map[
        "TRANSACTION_CHECK_TIMES"
    ] == "1"  # fmt: skip
    answer = ended(kit, named)
    assert answer is not None and answer.code == ResponseCode.ILLEGAL_OPERATION
    answer = ended(kit, answer_to(peer.requests[0]), fromTransactionCheck="true")
    assert answer is not None and answer.code == 0


@pytest.mark.parametrize("seconds", ["", "soon", "-5", "9" * 40])
async def test_senseless_immunity_is_none(kit: Kit, seconds: str) -> None:
    begin(kit, CHECK_IMMUNITY_TIME_IN_SECONDS=seconds)
    peer = listen(kit)
    await round_of(kit)
    assert len(peer.requests) == 1


async def test_a_producer_with_a_wrong_clock_is_asked_in_time(kit: Kit) -> None:
    for born_ms in (1, kit.clock.now_ms() + 10**9):
        text = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02UNIQ_KEY\x01{UNIQUE}\x02"
        answer = kit.send(i=text, g=str(born_ms))
        assert answer is not None and answer.code == 0
    peer = listen(kit)
    await round_of(kit, 5_000)
    assert not peer.requests and not of(kit, GIVEN_UP)
    await round_of(kit, 2_000)
    assert len(peer.requests) == 2 and not of(kit, GIVEN_UP)


async def test_a_retried_message_of_one_transaction_does_not_end_another(kit: Kit) -> None:
    """The first half of a log lies at offset 0, which every ordinary message names as its half."""
    first = begin(kit)
    assert first["commitLogOffset"] == "0"
    other = begin(kit, UNIQ_KEY="F" * 32)
    ended(kit, other)
    (committed,) = of(kit, "T")
    back = {"offset": str(committed.physical_offset), "group": "TOOLS_CONSUMER", "delayLevel": "0"}
    answer = kit.ask(Command(RequestCode.CONSUMER_SEND_MSG_BACK, back))
    assert answer is not None and answer.code == 0
    await succeed(kit)
    answer = ended(kit, first)
    assert answer is not None and answer.code == 0
    assert len(of(kit, "T")) == 2


async def test_a_damaged_half_keeps_nobody_else_from_being_asked(kit: Kit, tmp_path: Path) -> None:
    damaged = begin(kit)
    begin(kit, UNIQ_KEY="F" * 32)
    peer = listen(kit)
    with next((tmp_path / "commitlog").iterdir()).open("r+b") as file:
        file.seek(int(damaged["commitLogOffset"]) + BODY_AT)
        file.write(b"HELLO")
    await round_of(kit)
    assert [request.ext["msgId"] for request in peer.requests] == ["F" * 32]
    assert len(kit.transactions.halves) == 2


def test_a_half_without_room_for_what_its_copies_are_given_is_refused(kit: Kit) -> None:
    """Stored, it would be given up before its producer was asked."""
    begin(kit)
    (half,) = of(kit, HALF_TOPIC)
    room = 32_767 - COPY_ADDS_BYTES - len(half.properties) - len("long\x01\x02")
    begin(kit, long="x" * room)
    text = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": UNIQUE, "TAGS": "A"}
    text["long"] = "x" * (room + 1)
    answer = kit.send(f="4", e="2", i=encode_properties(text).decode())
    assert answer is not None and answer.code == ResponseCode.MESSAGE_ILLEGAL, answer


async def test_a_half_that_is_larger_than_is_taken_by_now_is_asked_for_and_committed(
    tmp_path: Path,
) -> None:
    with open_kit(tmp_path) as kit:
        kit.topic("T", 4)
        await kit.transactions.replay()
        named = begin(kit, b"x" * 5_000)
        kit.dispatch()
    with open_kit(tmp_path, storage={"body_bytes_max": 1_000}) as kit:
        kit.topic("T", 4)
        await succeed(kit)
        peer = listen(kit)
        await round_of(kit)
        assert len(peer.requests) == 1
        answer = ended(kit, named)
        assert answer is not None and answer.code == 0
        assert [len(record.body) for record in of(kit, "T")] == [5_000]
        answer = kit.send(b"x" * 1_001)
        assert answer is not None and answer.code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_half_that_cannot_be_put_again_is_given_up_and_others_are_asked(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ tries the first of them until the round is over, in each round; it takes them, this does not."""
    monkeypatch.setattr(records, "COPY_ADDS_BYTES", 0)
    room = 32_767 - 400
    begin(kit, long="x" * room)
    begin(kit)
    peer = listen(kit)
    big = of(kit, HALF_TOPIC)[0]
    assert 32_767 - len(big.properties) < 300
    more = 32_767 - len(big.properties) - 10
    begin(kit, long="x" * (room + more))
    await round_of(kit)
    assert len(peer.requests) == 2 and len(of(kit, GIVEN_UP)) == 1


# -- when nothing may be put ----------------------------------------------------------------


def test_while_too_few_replicas_are_there_a_commit_is_refused_and_nothing_is_lost(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = begin(kit)
    with monkeypatch.context() as patch:
        refused = SendRefused(TooFewReplicas("1 of 2"))
        patch.setattr(kit.standing, "refusal", lambda: refused)
        answer = ended(kit, named)
        assert answer is not None and answer.code == ResponseCode.SYSTEM_ERROR
    assert not of(kit, "T")
    answer = ended(kit, named)
    assert answer is not None and answer.code == 0


def test_a_commit_whose_put_fails_stays_pending(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    named = begin(kit)

    def refuse(draft: Draft) -> None:
        raise StoreNotWritable("full")

    with monkeypatch.context() as patch:
        patch.setattr(kit.store, "put", refuse)
        answer = ended(kit, named)
        assert answer is not None and answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert len(kit.transactions.halves) == 1


async def test_a_rollback_that_cannot_be_noted_is_not_answered_as_done(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = begin(kit)

    def refuse(draft: Draft) -> None:
        raise StoreNotWritable("full")

    with monkeypatch.context() as patch:
        patch.setattr(kit.store, "put", refuse)
        answer = await rolled_back(kit, named)
        assert answer is not None and answer.code == ResponseCode.SYSTEM_BUSY
    note(kit)
    assert [op.body for op in of(kit, OP_TOPIC)] == [b"0,"]
    answer = await rolled_back(kit, named)
    assert answer is not None and answer.code == 0


async def test_answers_wait_until_the_message_is_safe(tmp_path: Path) -> None:
    with open_kit(tmp_path, storage={"flush_mode": FlushMode.SYNC}) as kit:
        kit.topic("T", 4)
        await kit.transactions.replay()
        text = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02UNIQ_KEY\x01{UNIQUE}\x02"
        for _ in range(2):
            assert kit.send(i=text) is None
        kit.acks.reached(kit.store.end, 1, 1)
        halves = []
        for answer in kit.connection.take():
            assert answer.ext is not None
            _, offset = parse_offset_message_id(answer.ext["msgId"])
            halves.append(
                {"producerGroup": GROUP, "tranStateTableOffset": answer.ext["queueOffset"],
                 "commitLogOffset": str(offset), "msgId": UNIQUE}
            )  # fmt: skip
        assert ended(kit, halves[0]) is None
        assert ended(kit, halves[1], ROLLBACK) is None
        await asyncio.sleep(0)
        kit.dispatch()
        assert kit.store.max_offset("T", 0) == 0, "not to be seen before it is on the disk"
        assert not kit.connection.take()
        kit.acks.reached(kit.store.end, 1, 1)
        assert [answer.code for answer in kit.connection.take()] == [0, 0]
        kit.store.flush_log(0)
        kit.dispatch()
        assert kit.store.max_offset("T", 0) == 1


def test_a_slave_ends_nothing(tmp_path: Path) -> None:
    with open_kit(tmp_path, role=Role.SLAVE, broker_id=1, namesrv="127.0.0.1:9") as kit:
        named = {
            "producerGroup": "P",
            "tranStateTableOffset": "0",
            "commitLogOffset": "0",
            "msgId": "",
        }
        for how in (COMMIT, ROLLBACK):
            answer = ended(kit, named, how)
            assert answer is not None and answer.code == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_ends_wait_for_a_new_master_to_read_its_log(kit: Kit) -> None:
    named = begin(kit)
    kit.transactions.became_ready.clear()
    ext = {**named, "commitOrRollback": str(COMMIT)}
    command = Command(RequestCode.END_TRANSACTION, ext, opaque=4)
    waiting = asyncio.ensure_future(
        cast(Any, kit.table[RequestCode.END_TRANSACTION])(command, kit.connection)
    )
    await asyncio.sleep(0.01)
    assert not waiting.done() and not of(kit, "T")
    await kit.transactions.replay()
    assert await waiting is None
    (answer,) = kit.connection.take()
    assert answer.code == 0 and len(of(kit, "T")) == 1


# -- what strangers send --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"commitLogOffset": "999999999"}, "Find prepared"),
        ({"commitLogOffset": "-1"}, "Find prepared"),
        ({"commitLogOffset": "7"}, "Find prepared"),
        ({"commitLogOffset": str((1 << 63) - 1)}, "Find prepared"),
        ({"commitLogOffset": "x"}, "commitLogOffset"),
        ({"tranStateTableOffset": "5"}, "state table offset wrong"),
        ({"tranStateTableOffset": "-5"}, "state table offset wrong"),
        ({"producerGroup": "Other"}, "producer group wrong"),
        ({"commitOrRollback": "5"}, "commitOrRollback field wrong"),
        ({"commitOrRollback": "4"}, "commitOrRollback field wrong"),
    ],
)
def test_an_end_that_names_no_half_message_of_its_group_changes_nothing(
    kit: Kit, change: dict[str, str], word: str
) -> None:
    named = begin(kit)
    for how in (COMMIT, ROLLBACK):
        answer = ended(kit, named, how, **change)
        assert answer is not None and answer.code == ResponseCode.SYSTEM_ERROR
        assert word in (answer.remark or "")
    assert len(kit.records()) == 1 and len(kit.transactions.halves) == 1


def test_an_unknown_end_gets_no_answer_and_changes_nothing(kit: Kit) -> None:
    named = begin(kit)
    assert ended(kit, named, 0) is None
    assert len(kit.transactions.halves) == 1


def test_an_ordinary_message_is_no_half(kit: Kit) -> None:
    answer = kit.send(i=f"PGROUP\x01{GROUP}\x02UNIQ_KEY\x01{UNIQUE}\x02")
    assert answer is not None and answer.ext is not None
    _, offset = parse_offset_message_id(answer.ext["msgId"])
    named = {
        "producerGroup": GROUP,
        "tranStateTableOffset": "0",
        "commitLogOffset": str(offset),
        "msgId": "",
    }
    answer = ended(kit, named)
    assert answer is not None and answer.code == ResponseCode.SYSTEM_ERROR
    assert len(kit.records()) == 1


def test_what_looks_like_a_half_message_in_a_body_is_none(kit: Kit) -> None:
    """Committed, it would be a message in a topic of whoever wrote the body."""
    begin(kit)
    forged = {"PGROUP": GROUP, "REAL_TOPIC": "T", "REAL_QID": "0", "UNIQ_KEY": "forged"}
    at = kit.store.end + BODY_AT
    kit.send(body=encode(Draft(HALF_TOPIC, 0, b"forged", encode_properties(forged)), 0, at, 1))
    found = kit.store.stored_at(at)
    assert found is not None and decode(found).physical_offset == at, "the forgery is no good"
    named = {
        "producerGroup": GROUP,
        "tranStateTableOffset": "0",
        "commitLogOffset": str(at),
        "msgId": "",
    }
    answer = ended(kit, named)
    assert answer is not None and answer.code == ResponseCode.SYSTEM_ERROR
    assert not [record for record in of(kit, "T") if record.body == b"forged"]


def test_a_delayed_or_timed_half_message_is_refused(kit: Kit) -> None:
    for name in ("DELAY", "TIMER_DELAY_SEC"):
        text = encode_properties({"TRAN_MSG": "true", name: "3", "UNIQ_KEY": UNIQUE}).decode()
        answer = kit.send(i=text)
        assert answer is not None and answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert not kit.records()


def test_half_messages_are_refused_where_they_are_switched_off(tmp_path: Path) -> None:
    with open_kit(tmp_path, transactions_rejected=True) as kit:
        kit.topic("T", 4)
        answer = kit.send(f="4", i=f"TRAN_MSG\x01true\x02UNIQ_KEY\x01{UNIQUE}\x02")
        assert answer is not None and answer.code == ResponseCode.NO_PERMISSION
        assert "sending transaction message is forbidden" in (answer.remark or "")


def test_a_commit_into_a_deleted_topic_is_refused_and_stays_pending(kit: Kit) -> None:
    named = begin(kit)
    del kit.topics._topics["T"]
    answer = ended(kit, named)
    assert answer is not None and answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert len(kit.transactions.halves) == 1


def test_what_is_pending_is_shown_with_what_else_a_broker_says_of_itself(kit: Kit) -> None:
    assert kit.transactions.runtime() == {"transactionsPending": "0"}
    first, _ = begin(kit), begin(kit)
    assert kit.transactions.runtime() == {
        "transactionsPending": "2", "transactionsPendingByTopic": "T 2",
    }  # fmt: skip
    ended(kit, first)
    assert kit.transactions.runtime()["transactionsPending"] == "1"


def test_too_many_pending_halves_make_senders_wait(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemmq.cluster.broker.transactions.halves.PENDING_MAX", 1)
    begin(kit)
    answer = kit.send(i=f"TRAN_MSG\x01true\x02UNIQ_KEY\x01{UNIQUE}\x02")
    assert answer is not None and answer.code == ResponseCode.SYSTEM_BUSY
    answer = kit.send()
    assert answer is not None and answer.code == 0, "others are not concerned"


# -- the job --------------------------------------------------------------------------------


async def test_the_job_asks_notes_counts_and_leaves_nothing_unnoted(tmp_path: Path) -> None:
    clock = FakeClock()
    settings = {"transaction_check_interval_ms": 20, "transaction_metrics_interval_ms": 10}
    with open_kit(tmp_path, clock, **settings) as kit:
        kit.topic("T", 4)
        job = asyncio.create_task(kit.transactions.run())
        await kit.transactions.became_ready.wait()
        first, second = begin(kit), begin(kit)
        peer = listen(kit)
        for _ in range(50):
            clock.pass_ms(1_000)
            await asyncio.sleep(0.01)
            if len(peer.requests) >= 2:
                break
        assert len(peer.requests) >= 2
        ended(kit, first)
        await asyncio.sleep(0.02)
        oneway(kit, second, ROLLBACK)
        job.cancel()
        with suppress(asyncio.CancelledError):
            await job
        named = [part for op in of(kit, OP_TOPIC) for part in op.body.decode().split(",") if part]
        assert len(named) == len(set(named)) == len(of(kit, HALF_TOPIC))
        assert not kit.transactions.ready
        kit.transactions.metrics.save()
        found = json.loads((kit.config.config_path / "transactionMetrics").read_text())
        assert found["transactionCount"]["T"]["count"] == 0
        # nothing else is in RocketMQ 5.3.3's
        assert found.keys() == {"dataVersion", "transactionCount"}
        assert found["dataVersion"].keys() == {"counter", "stateVersion", "timestamp"}
        assert found["transactionCount"]["T"].keys() == {"count", "timeStamp"}


async def test_a_log_that_cannot_be_read_stops_transactions_and_nothing_else(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin(kit)
    segment = kit.store.log.run.segments[0]
    monkeypatch.setattr(shell, "decode", damaged)
    assert segment
    kit.transactions.became_ready.clear()
    kit.dispatch()
    job = asyncio.create_task(kit.transactions.run())
    await asyncio.sleep(0.01)
    assert not job.done() and kit.transactions.broken and "not served" in caplog.text
    answer = kit.send(i=f"TRAN_MSG\x01true\x02UNIQ_KEY\x01{UNIQUE}\x02")
    assert answer is not None and answer.code == ResponseCode.SYSTEM_BUSY
    answer = kit.send()
    assert answer is not None and answer.code == 0
    job.cancel()
    with suppress(asyncio.CancelledError):
        await job


def damaged(view: memoryview) -> Record:
    from tandemmq.storage import CorruptRecord

    raise CorruptRecord("damaged", 0, 0)
