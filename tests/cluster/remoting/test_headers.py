"""Ext fields as typed headers: what is forgiven, and what is named as the fault."""

from __future__ import annotations

import pytest

from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import HeaderProblem
from tandemmq.cluster.remoting.headers import (
    EndTransactionHeader,
    PullHeader,
    QueueHeader,
    RegisterBrokerHeader,
    SendHeader,
    UnregisterClientHeader,
    UpdateConsumerOffsetHeader,
)

SHORT = {
    "a": "PG",
    "b": "TopicTest",
    "c": "TBW102",
    "d": "4",
    "e": "2",
    "f": "1",
    "g": "1700000000000",
    "h": "-1",
    "i": "KEYS\x01k1\x02",
    "j": "3",
    "k": "false",
    "l": "16",
    "m": "false",
    "n": "broker-a",
}
LONG = {
    "producerGroup": "PG",
    "topic": "TopicTest",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "2",
    "sysFlag": "1",
    "bornTimestamp": "1700000000000",
    "flag": "-1",
    "properties": "KEYS\x01k1\x02",
    "reconsumeTimes": "3",
    "unitMode": "false",
    "maxReconsumeTimes": "16",
    "batch": "false",
    "bname": "broker-a",
}


def test_short_and_long_names_of_a_send_mean_the_same() -> None:
    short = SendHeader.of(Command(RequestCode.SEND_MESSAGE_V2, SHORT))
    long = SendHeader.of(Command(RequestCode.SEND_MESSAGE, LONG))
    assert isinstance(short, SendHeader)
    for name in SendHeader.__struct_fields__:
        assert getattr(short, name) == getattr(long, name), name
    assert (short.queue_id, short.flag, short.max_reconsume_times) == (2, -1, 16)
    assert short.to_ext() == SHORT
    assert long.to_ext() == LONG


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("TRUE", True),
        ("1", True),
        ("false", False),
        ("0", False),
        ("yes", False),
        ("", False),
    ],
)
def test_a_boolean_is_true_only_when_it_says_so(text: str, expected: bool) -> None:
    assert SendHeader.of(Command(310, {**SHORT, "m": text})).batch is expected


def test_an_empty_optional_number_is_absent() -> None:
    assert SendHeader.of(Command(310, {**SHORT, "l": "", "j": ""})).max_reconsume_times is None


def test_a_text_that_reads_null_stays_a_text() -> None:
    assert SendHeader.of(Command(310, {**SHORT, "b": "null", "i": "null"})).topic == "null"


@pytest.mark.parametrize(
    ("ext", "field"),
    [
        ({"topic": "T"}, "queueId"),
        ({"queueId": "1"}, "topic"),
        (None, "topic"),
        ({}, "topic"),
        ({"topic": "T", "queueId": "abc"}, "queueId"),
        ({"topic": "T", "queueId": ""}, "queueId"),
        ({"topic": "T", "queueId": "2147483648"}, "queueId"),
        ({"topic": "T", "queueId": "1.5"}, "queueId"),
    ],
)
def test_the_field_at_fault_is_named_as_on_the_wire(ext: dict[str, str] | None, field: str) -> None:
    with pytest.raises(HeaderProblem) as caught:
        QueueHeader.from_ext(ext)
    assert caught.value.field == field
    assert field in str(caught.value)


def test_the_field_at_fault_of_a_short_named_send_is_its_letter() -> None:
    with pytest.raises(HeaderProblem) as caught:
        SendHeader.of(Command(310, {**SHORT, "e": "abc"}))
    assert caught.value.field == "e"


def test_unknown_fields_and_odd_spellings_of_rocketmq_are_fine() -> None:
    header = UnregisterClientHeader.from_ext({"clientID": "c", "ReqT": "0", "__ZONE_NAME": "z"})
    assert (header.client_id, header.producer_group) == ("c", None)
    pull = PullHeader.from_ext(
        {
            "consumerGroup": "g",
            "topic": "t",
            "queueId": "0",
            "queueOffset": "-5",
            "maxMsgNums": "32",
            "sysFlag": "2",
            "commitOffset": "0",
            "suspendTimeoutMillis": "15000",
            "subVersion": "0",
        }
    )
    assert (pull.queue_offset, pull.subscription) == (-5, None)
    assert (
        UpdateConsumerOffsetHeader.from_ext({"consumerGroup": "g", "topic": "t"}).queue_id is None
    )


def test_an_old_broker_does_not_say_whether_it_acts_as_master() -> None:
    ext = {"brokerName": "b", "brokerAddr": "h:1", "clusterName": "c", "brokerId": "0"}
    assert RegisterBrokerHeader.from_ext(ext).enable_acting_master is None
    modern = RegisterBrokerHeader.from_ext({**ext, "enableActingMaster": "false"})
    assert modern.enable_acting_master is False


def test_none_is_left_out_and_booleans_are_lower_case() -> None:
    header = EndTransactionHeader("g", 1, 2, 8, from_transaction_check=True, msg_id="m")
    assert header.to_ext() == {
        "producerGroup": "g",
        "tranStateTableOffset": "1",
        "commitLogOffset": "2",
        "commitOrRollback": "8",
        "fromTransactionCheck": "true",
        "msgId": "m",
    }
