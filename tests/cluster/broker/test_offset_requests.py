"""handlers/offsets.py: progress of groups, ends of queues, positions by time."""

from __future__ import annotations

import pytest
from brokerkit import Asker, MakeBroker

SYSTEM_ERROR, TOPIC_NOT_EXIST, QUERY_NOT_FOUND, GROUP_NOT_EXIST, INVALID = 1, 17, 22, 26, 29
QUERY, UPDATE, SEARCH, MAX_OFFSET, MIN_OFFSET, EARLIEST = 14, 15, 29, 30, 31, 32
NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


@pytest.fixture
def filled(asker: Asker) -> Asker:
    asker.broker.topics.create_for_send("T", "TBW102", 2)
    asker.broker.groups.find("G")
    return asker


async def test_ends_of_queues(filled: Asker) -> None:
    for _ in range(3):
        filled.put("T", 1)
    for code, queue_id, offset in (
        (MAX_OFFSET, 1, "3"),
        (MIN_OFFSET, 1, "0"),
        (MAX_OFFSET, 0, "0"),
    ):
        answer = await filled.ask(code, topic="T", queueId=queue_id)
        assert (answer.code, answer.ext) == (0, {"offset": offset})


async def test_unknown_queue_ends_at_zero_and_is_not_made(filled: Asker) -> None:
    for code in (MAX_OFFSET, MIN_OFFSET):
        answer = await filled.ask(code, topic="Unknown", queueId=3)
        assert (answer.code, answer.ext) == (0, {"offset": "0"})
    assert filled.broker.store.queues.get("Unknown", 3) is None


@pytest.mark.parametrize("code", [QUERY, UPDATE, SEARCH, MAX_OFFSET, MIN_OFFSET, EARLIEST])
@pytest.mark.parametrize("topic", ["../x", "a.b", "", "x" * 128])
async def test_bad_names_are_refused_everywhere(code: int, topic: str, filled: Asker) -> None:
    answer = await filled.ask(
        code, topic=topic, queueId=0, consumerGroup="G", timestamp=0, commitOffset=0
    )
    assert answer.code == INVALID


async def test_positions_by_time(filled: Asker) -> None:
    start_ms = filled.clock.now_ms()
    for _ in range(4):
        filled.put("T", 0)
        filled.clock.advance(10)
    for at_ms, kind, offset in (
        (5, "LOWER", "1"),
        (5, "UPPER", "0"),
        (10, "LOWER", "1"),
        (10, "upper", "1"),
        (999, "LOWER", "4"),
        (-5, "LOWER", "0"),
    ):
        answer = await filled.ask(
            SEARCH, topic="T", queueId=0, timestamp=start_ms + at_ms, boundaryType=kind
        )
        assert answer.ext == {"offset": offset}, (at_ms, kind)
    answer = await filled.ask(EARLIEST, topic="T", queueId=0)
    assert answer.ext == {"timestamp": str(start_ms)}
    answer = await filled.ask(EARLIEST, topic="T", queueId=1)
    assert answer.ext == {"timestamp": "-1"}


async def test_committed_offset_is_found_again(filled: Asker) -> None:
    commit = dict(consumerGroup="G", topic="T", queueId=1, commitOffset=5)
    assert (await filled.ask(UPDATE, **commit)).code == 0
    answer = await filled.ask(QUERY, consumerGroup="G", topic="T", queueId=1)
    assert (answer.code, answer.ext) == (0, {"offset": "5"})


@pytest.mark.parametrize(
    ("changed", "code", "remark"),
    [
        ({"consumerGroup": "H"}, GROUP_NOT_EXIST, "Group H not exist!"),
        ({"topic": "Nope"}, TOPIC_NOT_EXIST, "Topic Nope not exist!"),
        ({"queueId": ""}, INVALID, "QueueId is null"),
        ({"commitOffset": ""}, INVALID, "Offset is null"),
        ({"queueId": "2"}, INVALID, None),
        ({"queueId": "-1"}, INVALID, None),
    ],
)
async def test_commits_that_make_no_sense_are_refused(
    changed: dict[str, str], code: int, remark: str | None, filled: Asker
) -> None:
    commit: dict[str, object] = dict(consumerGroup="G", topic="T", queueId=1, commitOffset=5)
    answer = await filled.ask(UPDATE, **{**commit, **changed})
    assert answer.code == code
    assert remark is None or answer.remark == remark
    assert filled.broker.offsets.topics_of("G") == []


async def test_negative_commit_of_a_client_that_read_nothing_changes_nothing(filled: Asker) -> None:
    commit = dict(consumerGroup="G", topic="T", queueId=1, commitOffset=-1)
    assert (await filled.ask(UPDATE, **commit)).code == 0
    answer = await filled.ask(QUERY, consumerGroup="G", topic="T", queueId=1)
    assert answer.code == QUERY_NOT_FOUND


async def test_new_group_starts_with_the_first_message_while_that_is_recent(filled: Asker) -> None:
    ask = dict(consumerGroup="G", topic="T", queueId=0)
    answer = await filled.ask(QUERY, **ask)
    assert (answer.code, answer.remark) == (QUERY_NOT_FOUND, NOT_FOUND), "an empty queue"
    filled.put("T", 0)
    answer = await filled.ask(QUERY, **ask)
    assert (answer.code, answer.ext) == (0, {"offset": "0"})
    answer = await filled.ask(QUERY, **ask, setZeroIfNotFound=False)
    assert answer.code == QUERY_NOT_FOUND


async def test_missing_field_is_named(filled: Asker) -> None:
    answer = await filled.ask(QUERY, consumerGroup="G", topic="T")
    assert answer.code == SYSTEM_ERROR
    assert "queueId" in (answer.remark or "")


async def test_commit_is_swallowed_while_a_reset_is_pending(filled: Asker) -> None:
    filled.broker.offsets.assign_reset("G", "T", 0, 2)
    commit = dict(consumerGroup="G", topic="T", queueId=0, commitOffset=9)
    answer = await filled.ask(UPDATE, **commit)
    assert (answer.code, answer.remark) == (0, "Offset has been previously reset")
    answer = await filled.ask(QUERY, consumerGroup="G", topic="T", queueId=0)
    assert answer.ext == {"offset": "2"}


async def test_progress_survives_a_restart(make_broker: MakeBroker) -> None:
    first = make_broker()
    first.broker.topics.create_for_send("T", "TBW102", 2)
    first.broker.groups.find("G")
    await first.ask(UPDATE, consumerGroup="G", topic="T", queueId=1, commitOffset=5)
    first.broker.save()
    first.broker.offsets.load()
    assert first.broker.offsets.query("G", "T", 1) == 5
