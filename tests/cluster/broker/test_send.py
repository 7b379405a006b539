"""SEND_MESSAGE and SEND_BATCH_MESSAGE: the long way."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from messagekit import STORE_HOST, UNIQUE, FakeConnection, Kit, open_kit, send_ext

from tandemmq.cluster.broker.reading.locks import QueueName
from tandemmq.cluster.broker.sending.acks import at_once
from tandemmq.cluster.broker.sending.messages import UniqueIds
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.standing import SendRefused, slave_refusal
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.storage import FlushMode, parse_offset_message_id

MARKS = {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path) as kit:
        kit.topic("T", 4)
        yield kit


def properties(text: str = "", **more: str) -> str:
    return text + "".join(f"{name}\x01{value}\x02" for name, value in more.items())


def batch_item(body: bytes, encoded: bytes, flag: int = 0) -> bytes:
    size = 22 + len(body) + len(encoded)
    head = struct.pack(">iiiii", size, 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(encoded)) + encoded


# -- stored ---------------------------------------------------------------------------------


def test_a_stored_message_is_answered_with_its_place_and_ids(kit: Kit) -> None:
    kit.send(e="2")
    answer = kit.send(e="2")
    assert answer is not None
    assert (answer.code, answer.remark, answer.opaque, answer.version) == (0, None, 3, 479)
    assert answer.ext is not None
    host, offset = parse_offset_message_id(answer.ext.pop("msgId"))
    assert host == STORE_HOST
    assert answer.ext == {
        "queueId": "2",
        "transactionId": UNIQUE,
        "queueOffset": "1",
        **MARKS,
        **at_once(epoch=0),
    }
    _, second = kit.records()
    assert (second.physical_offset, second.queue_offset, second.queue_id) == (offset, 1, 2)
    assert second.body == b"hello"


def test_the_record_holds_what_the_header_said_and_who_said_it(kit: Kit) -> None:
    kit.send(h="-1", f=str(0x301), g="1700000000000", j="3")
    (record,) = kit.records()
    assert (record.flag, record.sys_flag, record.reconsume_times) == (-1, 0x301, 3)
    assert (record.born_ms, record.store_ms) == (1_700_000_000_000, kit.clock.now_ms())
    assert record.born_host == kit.connection.peer_host
    assert record.store_host == STORE_HOST
    assert record.property_map == {
        "KEYS": "k1",
        "UNIQ_KEY": UNIQUE,
        "WAIT": "true",
        "TAGS": "TagA",
        "MSG_REGION": "DefaultRegion",
        "CLUSTER": "GoldCluster",
        "TRACE_ON": "true",
    }


def test_an_ipv6_producer_is_recorded_as_such(kit: Kit) -> None:
    connection = FakeConnection("2001:db8::1", 4000)
    kit.ask(Command(310, send_ext(), b"x"), connection)
    (record,) = kit.records()
    assert record.born_host == connection.peer_host
    assert record.sys_flag & 0x10


def test_a_missing_unique_id_is_made_by_the_broker(kit: Kit) -> None:
    answers = [kit.send(i="TAGS\x01TagA") for _ in range(2)]
    made = [answer.ext["transactionId"] for answer in answers if answer and answer.ext]
    assert len(set(made)) == 2
    assert all(len(unique) == 32 for unique in made)
    assert [record.property_map["UNIQ_KEY"] for record in kit.records()] == made


def test_a_property_string_without_its_final_mark_is_continued_soundly(kit: Kit) -> None:
    kit.send(i=f"UNIQ_KEY\x01{UNIQUE}\x02TAGS\x01TagA")
    (record,) = kit.records()
    assert record.property_map["TAGS"] == "TagA"
    assert record.property_map["CLUSTER"] == "GoldCluster"


def test_properties_that_belong_to_the_broker_are_taken_off_and_overridden(kit: Kit) -> None:
    kit.send(i=properties(POP_CK="1 2 3", UNIQ_KEY=UNIQUE, CLUSTER="forged", KEYS="k"))
    (record,) = kit.records()
    assert "POP_CK" not in record.property_map
    assert record.property_map["CLUSTER"] == "GoldCluster"
    assert record.property_map["KEYS"] == "k"


def test_the_first_header_form_is_understood_too(kit: Kit) -> None:
    ext = {
        "producerGroup": "PG", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "1", "sysFlag": "0", "bornTimestamp": "1", "flag": "7",
        "properties": properties(UNIQ_KEY=UNIQUE), "batch": "false",
    }  # fmt: skip
    answer = kit.ask(Command(10, ext, b"x"))
    assert answer is not None and answer.code == 0
    assert kit.records()[0].flag == 7


def test_a_negative_queue_id_lets_the_broker_choose_a_write_queue(kit: Kit) -> None:
    kit.topic("Narrow", 8, write_queue_nums=3)
    answers = [kit.send(topic="Narrow", e="-1") for _ in range(60)]
    assert {answer.ext["queueId"] for answer in answers if answer and answer.ext} == {"0", "1", "2"}


def test_a_queue_that_only_readers_have_still_takes_messages(kit: Kit) -> None:
    kit.topic("Shrinking", 2, read_queue_nums=4)
    answer = kit.send(topic="Shrinking", e="3")
    assert answer is not None and answer.code == 0


def test_multi_tag_topics_mark_their_messages(kit: Kit) -> None:
    kit.topic("Multi", topic_filter_type="MULTI_TAG")
    kit.send(topic="Multi")
    assert kit.records()[0].sys_flag == 2


def test_a_oneway_send_is_stored_and_not_answered(kit: Kit) -> None:
    assert kit.send(flag=2) is None
    assert len(kit.records()) == 1
    assert kit.send(flag=2, topic="a/b") is None


# -- topics ---------------------------------------------------------------------------------


def test_an_unknown_topic_is_made_after_its_template(kit: Kit) -> None:
    answer = kit.send(topic="Fresh", d="3")
    assert answer is not None and answer.code == 0
    made = kit.topics.get("Fresh")
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm, made.topic_sys_flag) == (
        3,
        3,
        6,
        0,
    )


def test_unit_mode_marks_the_topics_it_makes(kit: Kit) -> None:
    kit.send(topic="Unit", k="true")
    kit.send(topic="%RETRY%UnitG", k="true", c="NoSuchTemplate")
    unit = kit.topics.get("Unit")
    assert unit is not None and unit.topic_sys_flag == 1


def test_an_unknown_topic_without_a_template_is_refused(kit: Kit) -> None:
    answer = kit.send(topic="Fresh", c="T")
    assert answer is not None
    assert (answer.code, answer.ext) == (17, MARKS)
    assert (answer.remark or "").startswith(
        "topic[Fresh] not exist, apply first please!\nSee https://"
    )


@pytest.mark.parametrize(
    ("topic", "remark"),
    [
        ("", "The specified topic is blank."),
        ("../x", "illegal characters"),
        ("a.b", "illegal characters"),
        ("a" * 128, "longer than topic max length"),
    ],
)
def test_a_topic_name_that_is_not_allowed_is_refused(kit: Kit, topic: str, remark: str) -> None:
    answer = kit.send(topic=topic)
    assert answer is not None
    assert (answer.code, answer.ext) == (29, MARKS)
    assert remark in (answer.remark or "")
    assert kit.records() == []


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "OFFSET_MOVED_EVENT"]
)
def test_topics_of_the_broker_itself_take_no_message(kit: Kit, topic: str) -> None:
    answer = kit.send(topic=topic)
    assert answer is not None and answer.code == 16
    assert answer.remark == f"Sending message to topic[{topic}] is forbidden."


def test_a_queue_that_the_topic_lacks_is_refused_with_the_topics_settings(kit: Kit) -> None:
    answer = kit.send(e="9")
    assert answer is not None and answer.code == 29
    assert answer.remark == (
        "request queueId[9] is illegal, TopicConfig [topicName=T, readQueueNums=4, writeQueueNums=4,"
        " perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}] "
        "Producer: 10.9.9.3:48932"
    )


def test_ordered_topics_obey_the_brokers_permission(tmp_path: Path) -> None:
    with open_kit(tmp_path, permission=4) as kit:
        kit.topic("Ordered", order=True)
        kit.topic("Loose")
        refused, stored = kit.send(topic="Ordered"), kit.send(topic="Loose")
        assert refused is not None and refused.code == 16
        assert stored is not None and stored.code == 0


# -- refused --------------------------------------------------------------------------------


def test_a_send_without_topic_or_queue_or_body_is_refused(kit: Kit) -> None:
    for name in ("b", "e"):
        ext = send_ext()
        del ext[name]
        answer = kit.ask(Command(310, ext, b"x"))
        assert answer is not None and (answer.code, answer.ext) == (1, None)
    answer = kit.send(body=None)
    assert answer is not None and answer.code == 1
    answer = kit.send(e="abc")
    assert answer is not None and answer.code == 1


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"body": b"x" * (4 << 20) + b"y"}, 13),
        ({"i": "K\x01" + "v" * 32_800 + "\x02"}, 13),
    ],
)
def test_a_message_beyond_the_limits_is_illegal(
    kit: Kit, settings: dict[str, Any], code: int
) -> None:
    answer = kit.send(**settings)
    assert answer is not None and answer.code == code and answer.remark
    assert kit.records() == []


def test_a_half_message_by_its_flag_alone_is_refused(kit: Kit) -> None:
    answer = kit.send(f="4")  # it would be hidden for ever
    assert answer is not None and answer.code == 13
    assert kit.records() == []


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_messages_with_a_delivery_time_that_is_none_are_refused(kit: Kit, name: str) -> None:
    answer = kit.send(i=properties(**{name: "soon", "UNIQ_KEY": UNIQUE}))
    assert answer is not None and answer.code == 13
    assert "timer message illegal" in (answer.remark or "")


def test_a_slave_refuses_sends(tmp_path: Path) -> None:
    with open_kit(tmp_path, role=Role.SLAVE, broker_id=1) as kit:
        kit.topic("T")
        answer = kit.send()
        assert answer is not None and answer.code == 2
        assert (answer.remark or "").startswith("[REJECTREQUEST]")


@pytest.mark.parametrize("stays", [True, False])
async def test_a_send_waits_while_a_planned_change_of_role_is_under_way(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    standing = kit.standing
    monkeypatch.setattr(standing, "refusal", lambda: SendRefused(slave_refusal(), wait_ms=60_000))
    received = bytearray(b"hello")
    request = Command(310, send_ext(), memoryview(received), opaque=3)
    waiting = kit.sends.handle_send_message(request, cast(Connection, FakeConnection()))
    assert isinstance(waiting, Awaitable)
    received[:] = b"other"  # the next read
    kit.clock.pass_ms(10_000)
    others = asyncio.ensure_future(waiting)
    await asyncio.sleep(0)
    assert kit.records() == [] and not others.done()
    if stays:
        monkeypatch.undo()
    standing.changes.settle()
    answer = await others
    assert answer is not None
    if stays:
        assert answer.code == 0
        assert [record.body for record in kit.records()] == [b"hello"]
    else:
        assert (answer.code, kit.records()) == (2, [])


def test_a_broker_that_does_not_accept_sends_yet_says_until_when(tmp_path: Path) -> None:
    with open_kit(tmp_path, accept_sends_from_ms=1_795_260_706_283) as kit:
        kit.topic("T")
        answer = kit.send()
        assert answer is not None and (answer.code, answer.ext) == (1, MARKS)
        assert (answer.remark or "").startswith("broker unable to service, until ")
        kit.clock.pass_ms(1)
        answer = kit.send()
        assert answer is not None and answer.code == 0


def test_a_send_that_waited_too_long_in_our_buffers_is_refused(kit: Kit) -> None:
    kit.connection.waited_ms = 200
    answer = kit.send()
    assert answer is not None and answer.code == 2
    assert (answer.remark or "").startswith(
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 200ms"
    )
    kit.connection.waited_ms = 199
    answer = kit.send()
    assert answer is not None and answer.code == 0


# -- delay levels ---------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "level"), [("1", 1), ("18", 18), ("25", 18)])
def test_a_delayed_message_is_parked_and_answered_with_its_own_queue(
    kit: Kit, asked: str, level: int
) -> None:
    answer = kit.send(e="3", i=properties(UNIQ_KEY=UNIQUE, DELAY=asked, TIMER_DELAY_MS="5"))
    assert answer is not None and answer.ext is not None
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "3", "0")
    (record,) = kit.records()
    assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", level - 1)
    found = record.property_map
    assert (found["DELAY"], found["REAL_TOPIC"], found["REAL_QID"]) == (str(level), "T", "3")
    assert "TIMER_DELAY_MS" not in found


def test_levels_below_one_do_not_delay_and_nonsense_is_refused(kit: Kit) -> None:
    for text in ("0", "-1"):
        kit.send(i=properties(UNIQ_KEY=UNIQUE, DELAY=text))
    assert [record.topic for record in kit.records()] == ["T", "T"]
    answer = kit.send(i=properties(UNIQ_KEY=UNIQUE, DELAY="soon"))
    assert answer is not None and answer.code == 1


# -- retry topics ---------------------------------------------------------------------------


def test_a_send_to_a_retry_topic_makes_group_and_topic(kit: Kit) -> None:
    answer = kit.send(
        topic="%RETRY%G", c="NoSuchTemplate", j="1", i=properties(UNIQ_KEY=UNIQUE, DELAY="4")
    )
    assert answer is not None and answer.code == 0
    assert kit.groups.get("G") is not None
    topic = kit.topics.get("%RETRY%G")
    assert topic is not None and topic.write_queue_nums == 1
    (record,) = kit.records()
    assert (record.topic, record.property_map["REAL_TOPIC"]) == ("SCHEDULE_TOPIC_XXXX", "%RETRY%G")


@pytest.mark.parametrize(
    ("tries", "limit", "dead"),
    [("16", None, False), ("17", None, True), ("3", "3", False), ("4", "3", True)],
)
def test_more_tries_than_the_limit_lead_to_the_dead_letters(
    kit: Kit, tries: str, limit: str | None, dead: bool
) -> None:
    more = {} if limit is None else {"l": limit}
    kit.send(topic="%RETRY%G", c="-", j=tries, i=properties(UNIQ_KEY=UNIQUE, DELAY="4"), **more)
    (record,) = kit.records()
    if dead:
        assert (record.topic, record.queue_id) == ("%DLQ%G", 0)
        assert record.property_map["DELAY"] == "-1"
        assert "REAL_TOPIC" not in record.property_map
        topic = kit.topics.get("%DLQ%G")
        assert topic is not None and (topic.write_queue_nums, topic.perm) == (1, 6)
    else:
        assert record.topic == "SCHEDULE_TOPIC_XXXX"


def test_clients_before_3_4_9_do_not_set_the_limit(kit: Kit) -> None:
    kit.ask(Command(310, send_ext("%RETRY%G", c="-", j="4", l="3"), b"x", version=120))
    assert kit.records()[0].topic == "%RETRY%G"


def test_what_an_orderly_group_gives_up_goes_to_the_dead_letters_at_once(kit: Kit) -> None:
    kit.locks.lock("G", "client", [QueueName("T", "broker-a", 0)], kit.clock.monotonic_ms())
    kit.send(topic="%RETRY%G", c="-", j="1")
    assert kit.records()[0].topic == "%DLQ%G"


def test_a_retry_of_a_group_that_may_not_exist_is_refused(tmp_path: Path) -> None:
    with open_kit(tmp_path, auto_create_group=False) as kit:
        answer = kit.send(topic="%RETRY%G", c="-")
        assert answer is not None and (answer.code, answer.ext) == (26, MARKS)


def test_a_retried_half_message_is_an_ordinary_one(kit: Kit) -> None:
    answer = kit.send(
        topic="%RETRY%G",
        c="-",
        j="1",
        f="4",
        i=properties(UNIQ_KEY=UNIQUE, DELAY="4", TRAN_MSG="true"),
    )
    assert answer is not None and answer.code == 0
    assert kit.records()[0].sys_flag == 0


# -- batches --------------------------------------------------------------------------------


def test_each_message_of_a_batch_is_stored_with_the_envelopes_properties_behind_its_own(
    kit: Kit,
) -> None:
    body = batch_item(b"a1", b"KEYS\x01k1\x02UNIQ_KEY\x01OWN1\x02", 7) + batch_item(
        b"b22", b"TAGS\x01TagB"
    )
    answer = kit.send(body, code=320, m="true", e="1", i=properties(UNIQ_KEY=UNIQUE, WAIT="true"))
    assert answer is not None and answer.ext is not None and answer.code == 0
    first, second = kit.records()
    assert [parse_offset_message_id(one)[1] for one in answer.ext["msgId"].split(",")] == [
        first.physical_offset,
        second.physical_offset,
    ]
    assert answer.ext["transactionId"] == UNIQUE
    assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("1", "0")
    assert (first.body, first.flag, first.queue_offset) == (b"a1", 7, 0)
    assert (second.body, second.flag, second.queue_offset) == (b"b22", 0, 1)
    envelope = f"UNIQ_KEY\x01{UNIQUE}\x02WAIT\x01true\x02".encode() + (
        b"MSG_REGION\x01DefaultRegion\x02CLUSTER\x01GoldCluster\x02TRACE_ON\x01true\x02"
    )
    assert first.properties == b"KEYS\x01k1\x02UNIQ_KEY\x01OWN1\x02" + envelope
    assert second.properties == b"TAGS\x01TagB\x02" + envelope


def test_an_envelope_without_unique_id_gets_none(kit: Kit) -> None:
    answer = kit.send(
        batch_item(b"a", b"UNIQ_KEY\x01OWN\x02"), code=320, m="true", i="WAIT\x01true"
    )
    assert answer is not None and answer.ext is not None
    assert "transactionId" not in answer.ext
    assert kit.records()[0].property_map["UNIQ_KEY"] == "OWN"


def test_the_batch_field_decides_not_the_code(kit: Kit) -> None:
    body = batch_item(b"a", b"") + batch_item(b"b", b"")
    for code, word in ((310, "true"), (310, "1"), (320, "true")):
        kit.send(body, code=code, m=word)
    assert [record.body for record in kit.records()] == [b"a", b"b"] * 3
    kit.send(body, code=320, m="false")
    assert kit.records()[-1].body == body


def test_a_batch_that_cannot_be_walked_is_refused_as_a_whole(kit: Kit) -> None:
    answer = kit.send(batch_item(b"a", b"") + b"\x00\x00\x00\x50garbage", code=320, m="true")
    assert answer is not None and (answer.code, answer.ext) == (1, None)
    assert kit.records() == []


def test_batches_may_be_neither_retried_nor_delayed(kit: Kit) -> None:
    body = batch_item(b"a", b"")
    answer = kit.send(body, code=320, m="true", topic="%RETRY%G", c="-")
    assert answer is not None and answer.code == 13
    assert answer.remark == "batch request does not support retry group %RETRY%G"
    answer = kit.send(body, code=320, m="true", i=properties(DELAY="3"))
    assert answer is not None and answer.code == 13
    assert kit.records() == []


# -- waiting for the disk -------------------------------------------------------------------


def test_in_sync_flush_mode_the_answer_waits_unless_the_sender_does_not_want_to(
    tmp_path: Path,
) -> None:
    with open_kit(tmp_path, storage={"flush_mode": FlushMode.SYNC}) as kit:
        kit.topic("T")
        assert kit.send() is None
        unwaiting = kit.send(i=properties(UNIQ_KEY=UNIQUE, WAIT="false"))
        assert unwaiting is not None and unwaiting.code == 0
        assert kit.send(flag=2) is None
        assert kit.acks.waiting
        kit.store.flush_log(0)
        kit.acks.reached(kit.store.flushed, 1, 1)
        (answer,) = kit.connection.take()
        assert (answer.code, answer.opaque) == (0, 3)
        assert safety(answer) == ("0000000000", "1", "1")
        assert safety(unwaiting) == ("0", "1", "0")
        assert not kit.acks.waiting


def safety(answer: Command) -> tuple[str, ...]:
    assert answer.ext is not None
    return tuple(answer.ext[name] for name in ("epoch", "copies", "durable"))


def test_sends_are_refused_while_too_many_answers_wait(tmp_path: Path) -> None:
    with open_kit(tmp_path, storage={"flush_mode": FlushMode.SYNC}) as kit:
        kit.topic("T")
        kit.acks._bytes_max = 1
        assert kit.send() is None
        answer = kit.send()
        assert answer is not None and answer.code == 2
        assert (answer.remark or "").startswith("[OVERLOAD]")
        assert len(kit.records()) == 1


# -- ids ------------------------------------------------------------------------------------


def test_generated_ids_are_unique_and_carry_host_and_time(kit: Kit) -> None:
    ids = UniqueIds(STORE_HOST, kit.clock, kit.rng)
    made = [ids.next() for _ in range(1_000)]
    assert len(set(made)) == 1_000
    assert all(unique.startswith("0A090901") and len(unique) == 32 for unique in made)
    before = made[-1][20:28]
    kit.clock.pass_ms(86_400_000)
    assert int(ids.next()[20:28], 16) - int(before, 16) in (
        86_400_000,
        86_400_000 - 30 * 86_400_000,
    )
