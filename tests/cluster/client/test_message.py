"""Messages are checked when they are made; what is stored carries RocketMQ's names."""

from __future__ import annotations

from typing import Any

import pytest
from clientkit import received
from msgspec.structs import replace

from tandemmq.cluster.client.errors import MessageRefused
from tandemmq.cluster.client.message import Message, MessageQueue, check_group, check_topic


@pytest.mark.parametrize(
    ("topic", "part"),
    [
        ("", "blank"),
        ("a.b", "illegal characters"),
        ("../x", "illegal characters"),
        ("t" * 128, "max length 127"),
        ("%RETRY%" + "g" * 249, "max length 255"),
        ("SCHEDULE_TOPIC_XXXX", "forbidden"),
    ],
)
def test_illegal_topic_is_refused_with_the_rule_it_breaks(topic: str, part: str) -> None:
    with pytest.raises(MessageRefused, match=part):
        Message(topic, b"x")


def test_retry_topics_may_be_longer_than_others() -> None:
    check_topic("%RETRY%" + "g" * 120)
    check_topic("t" * 127)


def test_group_longer_than_120_is_refused() -> None:
    check_group("g" * 120)
    with pytest.raises(MessageRefused, match="120"):
        check_group("g" * 121)


@pytest.mark.parametrize("body", [b"", "text", None])
def test_body_must_be_bytes_and_not_empty(body: object) -> None:
    with pytest.raises(MessageRefused, match="body"):
        Message("T", body)  # type: ignore[arg-type]


def test_body_is_copied_so_that_a_reused_buffer_does_not_change_it() -> None:
    buffer = bytearray(b"first")
    message = Message("T", buffer)  # type: ignore[arg-type]
    buffer[:] = b"other"
    assert message.body == b"first"


@pytest.mark.parametrize(
    "properties",
    [{"KEYS": "x"}, {"": "x"}, {"a": ""}, {"a\x01": "x"}, {"a": "x\x02y"}, {"UNIQ_KEY": "1"}],
)
def test_reserved_or_unstorable_properties_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(MessageRefused):
        Message("T", b"x", properties=properties)


def test_names_that_rocketmq_leaves_to_applications_are_accepted() -> None:
    message = Message("T", b"x", properties={"__SHARDINGKEY": "17", "INNER_NUM": "2"})
    assert message.stored_properties("ID")["__SHARDINGKEY"] == "17"


def test_stored_properties_carry_tags_keys_delay_wait_and_unique_id() -> None:
    message = Message("T", b"x", tags="A", keys=["k1", "k2"], delay_level=3, wait_stored=False)
    assert message.stored_properties("ID") == {
        "TAGS": "A", "KEYS": "k1 k2", "DELAY": "3", "UNIQ_KEY": "ID", "WAIT": "false"
    }  # fmt: skip


def test_keys_may_be_one_text_in_rocketmqs_spelling() -> None:
    assert Message("T", b"x", keys=["a", "b"]).keys == ("a", "b")
    assert Message("T", b"x", keys="a").keys == ("a",)


@pytest.mark.parametrize("keys", ["a b", ["a b"], [""], ["a\tb"], [17]])
def test_a_key_with_a_blank_in_a_list_is_refused(keys: list[str]) -> None:
    with pytest.raises(MessageRefused, match=r"one word|must be text"):
        Message("T", b"x", keys=keys)


def test_own_unique_id_wins_over_a_made_one() -> None:
    assert Message("T", b"x", unique_id="MINE").stored_properties("MADE")["UNIQ_KEY"] == "MINE"


@pytest.mark.parametrize("change", [{"flag": 1 << 31}, {"delay_level": -1}, {"tags": "a\x02"}])
def test_numbers_and_tags_outside_their_range_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(MessageRefused):
        Message("T", b"x", **change)  # type: ignore[arg-type]


def test_message_cannot_be_changed_after_it_was_made() -> None:
    message = Message("T", b"x", properties={"a": "1"})
    with pytest.raises(AttributeError):
        message.topic = "U"  # type: ignore[misc]
    with pytest.raises(TypeError):
        message.properties["a"] = "2"  # type: ignore[index]


def test_queues_sort_by_topic_then_broker_then_number() -> None:
    queues = [MessageQueue("T", "b", 0), MessageQueue("T", "a", 10), MessageQueue("T", "a", 2)]
    assert [str(queue) for queue in sorted(queues)] == ["T@a:2", "T@a:10", "T@b:0"]


@pytest.mark.parametrize("tags", ["a b", "a|b", "a || b", "a\tb", 17])
def test_a_tag_that_no_expression_could_name_is_refused(tags: Any) -> None:
    with pytest.raises(MessageRefused, match=r"^tags must be "):
        Message("T", b"x", tags=tags)


@pytest.mark.parametrize(
    "properties", [{"n": 17}, {17: "n"}, {"n": None}, {"n": b"x"}, ["n"], "n=17"]
)
def test_properties_that_are_no_texts_are_refused_by_name(properties: Any) -> None:
    with pytest.raises(MessageRefused, match=r"propert.* must be "):
        Message("T", b"x", properties=properties)


def test_a_topic_that_is_no_text_is_refused() -> None:
    with pytest.raises(MessageRefused, match="topic must be text"):
        Message(17, b"x")  # type: ignore[arg-type]


def test_a_delay_level_beyond_the_table_is_no_number_of_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Message("T", b"x", delay_level=18).delay_level == 18
    with pytest.raises(MessageRefused, match=r"1 to 18, got 99.*no number of seconds"):
        Message("T", b"x", delay_level=99)
    monkeypatch.setattr(Message, "delay_level_max", 99)
    assert Message("T", b"x", delay_level=99).delay_level == 99


def test_a_received_message_is_sent_again_with_all_that_is_its_own() -> None:
    dead = replace(
        received(7, b"x"),
        topic="%DLQ%G",
        flag=5,
        properties={
            "TAGS": "a b", "KEYS": "k1 k2", "source": "shop", "UNIQ_KEY": "ID", "RETRY_TOPIC": "Orders",
            "DLQ_ORIGIN_TOPIC": "Orders", "RECONSUME_TIME": "16", "TRACE_ON": "true",
        },
    )  # fmt: skip
    again = Message.again(dead)
    assert (again.topic, again.body, again.tags, again.keys) == (
        "Orders",
        b"x",
        "a b",
        ("k1", "k2"),
    )
    assert (dict(again.properties), again.flag) == ({"source": "shop"}, 5)
    assert Message.again(dead, "Other").topic == "Other"
    assert again.unique_id == ""
    assert Message.again(dead, same_id=True).unique_id == dead.message_id


def test_a_message_for_one_group_says_where_it_was_sent_first() -> None:
    dead = replace(
        received(7, b"x"), topic="%DLQ%G", properties={"source": "shop", "RETRY_TOPIC": "Orders"}
    )
    again = Message.again(dead, "%RETRY%G")
    assert again.topic == "%RETRY%G"
    assert dict(again.properties) == {"source": "shop", "RETRY_TOPIC": "Orders"}
