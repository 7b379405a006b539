"""CONSUMER_SEND_MSG_BACK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from messagekit import UNIQUE, Kit, open_kit

from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import Draft, FlushMode, Record, encode_properties


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path) as kit:
        kit.topic("T", 4)
        yield kit


def stored(kit: Kit, reconsumed: int = 0, **properties: str) -> int:
    """A message in the log as some consumer got it; its offset."""
    draft = Draft(
        "T",
        1,
        b"body",
        encode_properties({"UNIQ_KEY": UNIQUE, "TAGS": "A", **properties}),
        flag=5,
        born_ms=77,
        born_host=kit.connection.peer_host,
        store_host=bytes.fromhex("0a09090100002a9f"),
        reconsume_times=reconsumed,
    )
    return kit.store.put(draft).offset


def back(kit: Kit, offset: int, level: int = 0, **more: str) -> Command | None:
    ext = {"offset": str(offset), "group": "G", "delayLevel": str(level), **more}
    return kit.ask(Command(36, ext, None, opaque=9))


def last(kit: Kit) -> Record:
    return kit.records()[-1]


def test_the_copy_waits_for_its_retry_topic_and_remembers_where_it_came_from(kit: Kit) -> None:
    offset = stored(kit)
    answer = back(kit, offset, maxReconsumeTimes="16", originTopic="T", unitMode="false")
    assert answer is not None
    assert (answer.code, answer.remark, answer.ext, answer.opaque) == (0, None, None, 9)
    copy = last(kit)
    assert (copy.topic, copy.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)  # level 3, 10 s
    assert (copy.body, copy.flag, copy.born_ms, copy.reconsume_times) == (b"body", 5, 77, 1)
    assert copy.born_host == kit.connection.peer_host
    assert copy.property_map == {
        "UNIQ_KEY": UNIQUE,
        "TAGS": "A",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": f"0A09090100002A9F{offset:016X}",
        "WAIT": "false",
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%G",
        "REAL_QID": "0",
    }
    topic = kit.topics.get("%RETRY%G")
    assert topic is not None and (topic.write_queue_nums, topic.perm) == (1, 6)


def test_origin_topic_and_id_are_those_of_the_first_try(kit: Kit) -> None:
    offset = stored(
        kit, 4, RETRY_TOPIC="First", ORIGIN_MESSAGE_ID="FIRST", REAL_TOPIC="x", REAL_QID="9"
    )
    back(kit, offset)
    found = last(kit).property_map
    assert (found["RETRY_TOPIC"], found["ORIGIN_MESSAGE_ID"]) == ("First", "FIRST")
    assert (found["DELAY"], found["REAL_TOPIC"], found["REAL_QID"]) == ("7", "%RETRY%G", "0")


def test_a_second_send_back_counts_for_the_topic_that_the_message_was_sent_to(kit: Kit) -> None:
    back(kit, stored(kit))
    back(kit, stored(kit, 1, RETRY_TOPIC="First"))
    assert kit.stats.values("SNDBCK_PUT_NUMS") == [("T@G", 1), ("First@G", 1)]


def test_the_consumer_may_name_the_level_itself(kit: Kit) -> None:
    back(kit, stored(kit), level=1)
    assert last(kit).queue_id == 0
    back(kit, stored(kit), level=99)
    assert last(kit).queue_id == 17


@pytest.mark.parametrize(
    ("reconsumed", "level", "more", "dead"),
    [
        (15, 0, {}, False),
        (16, 0, {}, True),
        (0, -1, {}, True),
        (2, 0, {"maxReconsumeTimes": "3"}, False),
        (3, 0, {"maxReconsumeTimes": "3"}, True),
    ],
)
def test_after_its_last_try_a_message_is_laid_to_rest(
    kit: Kit, reconsumed: int, level: int, more: dict[str, str], dead: bool
) -> None:
    answer = back(kit, stored(kit, reconsumed), level, **more)
    assert answer is not None and answer.code == 0
    copy = last(kit)
    if dead:
        assert (copy.topic, copy.queue_id, copy.reconsume_times) == ("%DLQ%G", 0, reconsumed + 1)
        assert copy.property_map["DELAY"] == "0"
        topic = kit.topics.get("%DLQ%G")
        assert topic is not None and (topic.write_queue_nums, topic.perm) == (1, 6)
    else:
        assert copy.topic == "SCHEDULE_TOPIC_XXXX"


def test_sixteen_tries_come_before_the_dead_letters(kit: Kit) -> None:
    offset = stored(kit)
    levels = []
    for _ in range(17):
        back(kit, offset)
        copy = last(kit)
        offset = copy.physical_offset
        levels.append(copy.queue_id + 1 if copy.topic == "SCHEDULE_TOPIC_XXXX" else 0)
    assert levels == [*range(3, 19), 0]


def test_a_place_without_a_message_is_refused(kit: Kit) -> None:
    answer = back(kit, 99_999_999)
    assert answer is not None
    assert (answer.code, answer.remark) == (1, "look message by offset failed, 99999999")


def test_a_group_that_may_not_exist_is_refused(tmp_path: Path) -> None:
    with open_kit(tmp_path, auto_create_group=False) as kit:
        kit.topic("T")
        answer = back(kit, stored(kit))
        assert answer is not None and answer.code == 26


def test_a_broker_or_retry_topic_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    with open_kit(tmp_path / "a", permission=4) as kit:
        answer = back(kit, stored(kit))
        assert answer is not None and answer.code == 16
    with open_kit(tmp_path / "b") as kit:
        kit.topic("%RETRY%G", 1, perm=4)
        answer = back(kit, stored(kit))
        assert answer is not None and answer.code == 16


def test_a_group_without_retry_queues_drops_the_message(kit: Kit) -> None:
    group = kit.groups.find("G")
    assert group is not None
    group.retry_queue_nums = 0
    offset = stored(kit)
    answer = back(kit, offset)
    assert answer is not None and answer.code == 0
    assert len(kit.records()) == 1


def test_in_sync_flush_mode_the_consumer_hears_when_the_copy_is_safe(tmp_path: Path) -> None:
    with open_kit(tmp_path, storage={"flush_mode": FlushMode.SYNC}) as kit:
        assert back(kit, stored(kit)) is None
        kit.store.flush_log(0)
        kit.acks.reached(kit.store.flushed, 1, 1)
        assert [answer.code for answer in kit.connection.take()] == [0]
