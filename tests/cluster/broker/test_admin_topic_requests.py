"""handlers/admin_topics.py: making, changing, deleting and listing topics."""

from __future__ import annotations

import base64
import json
import lzma
from pathlib import Path

import pytest
from brokerkit import Asker

from tandemmq.storage import jsonfile

WIRE = Path(__file__).parents[2] / "golden" / "wire"
SYSTEM_ERROR, TOPIC_NOT_EXIST, INVALID = 1, 17, 29
UPDATE, UPDATE_LIST, GET_ALL, STATS, DELETE, SYSTEM_LIST, GET = 17, 18, 21, 202, 215, 305, 351


def topic(name: str, queues: int = 4, **more: object) -> dict[str, object]:
    return {"topic": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6, **more}


def saved(asker: Asker) -> dict[str, object]:
    found = jsonfile.load(asker.broker.topics.file.path)
    assert found is not None
    table: dict[str, object] = found["topicConfigTable"]
    return table


async def test_recorded_requests_make_topics_that_are_on_disk(asker: Asker) -> None:
    made = set()
    with lzma.open(WIRE / "b53-c53-json.jsonl.xz", "rt") as lines:
        for line in map(json.loads, lines):
            if line.get("k") == "frame" and line["code"] == UPDATE and "req" not in line:
                answer = await asker.ask(UPDATE, **line["ext"])
                assert answer.code == 0, answer.remark
                made.add(line["ext"]["topic"])
    assert made and made <= saved(asker).keys()


async def test_topic_is_shown_as_it_was_made(asker: Asker) -> None:
    await asker.ask(UPDATE, **topic("T", 8, attributes="+message.type=FIFO", order=True))
    assert await asker.json(GET, topic="T", lo=True) == {
        "attributes": {"message.type": "FIFO"},
        "order": True,
        "perm": 6,
        "readQueueNums": 8,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 8,
    }


async def test_unknown_topic_is_17_as_tools_need_it(asker: Asker) -> None:
    answer = await asker.ask(GET, topic="NoSuch")
    assert (answer.code, answer.remark) == (
        TOPIC_NOT_EXIST,
        "No topic in this broker. topic: NoSuch",
    )
    assert (await asker.ask(STATS, topic="NoSuch")).code == TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"topic": "../x"}, INVALID),
        ({"topic": "TBW102"}, INVALID),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, INVALID),
        ({"topic": "rmq_sys_mine"}, INVALID),
        ({"readQueueNums": "-1"}, INVALID),
        ({"writeQueueNums": "65537"}, INVALID),
        ({"perm": "8"}, INVALID),
        ({"attributes": "+message.type=MIXED"}, INVALID),
        ({"attributes": "+message.type=SOMETHING"}, SYSTEM_ERROR),
        ({"attributes": "+colour=red"}, SYSTEM_ERROR),
        ({"attributes": "+reserve.time=-2"}, SYSTEM_ERROR),
        ({"attributes": "-message.type"}, SYSTEM_ERROR),
        ({"readQueueNums": "many"}, SYSTEM_ERROR),
    ],
)
async def test_topics_that_must_not_be_are_refused(
    changed: dict[str, str], code: int, asker: Asker
) -> None:
    version = asker.broker.topics.version.counter
    answer = await asker.ask(UPDATE, **{**topic("T"), **changed})
    assert answer.code == code
    assert asker.broker.topics.version.counter == version


async def test_some_attributes_cannot_change_once_made(asker: Asker) -> None:
    made = topic("T", attributes="+cleanup.policy=DELETE,+message.type=NORMAL")
    assert (await asker.ask(UPDATE, **made)).code == 0
    fixed = topic("T", attributes="+cleanup.policy=COMPACTION")
    assert (await asker.ask(UPDATE, **fixed)).code == SYSTEM_ERROR
    free = topic("T", attributes="+message.type=FIFO,+cleanup.policy=DELETE")
    assert (await asker.ask(UPDATE, **free)).code == 0
    found = asker.broker.topics.get("T")
    assert found is not None
    assert found.attributes == {"cleanup.policy": "DELETE", "message.type": "FIFO"}


@pytest.mark.parametrize("attribute", ["queue.type=BatchCQ", "cleanup.policy=COMPACTION"])
async def test_attributes_that_would_have_no_effect_are_refused_with_a_word(
    attribute: str, asker: Asker
) -> None:
    answer = await asker.ask(UPDATE, **topic("T", attributes=f"+{attribute}"))
    assert answer.code == SYSTEM_ERROR and f"{attribute}: " in (answer.remark or "")
    assert "not served here" in (answer.remark or "")
    key, value = attribute.split("=")
    entry = {"topicName": "T", "perm": 6, "attributes": {key: value}}
    answer = await asker.ask(UPDATE_LIST, {"topicConfigList": [entry]})
    assert answer.code == SYSTEM_ERROR and "not served here" in (answer.remark or "")
    assert "T" not in asker.broker.topics


async def test_list_applies_what_differs_even_beside_what_does_not(asker: Asker) -> None:
    entry = {"topicName": "A", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    await asker.ask(UPDATE_LIST, {"topicConfigList": [entry]})
    other = {**entry, "topicName": "B"}
    answer = await asker.ask(UPDATE_LIST, {"topicConfigList": [entry, other]})
    assert answer.code == 0
    assert {"A", "B"} <= saved(asker).keys()


async def test_list_with_one_bad_name_changes_nothing(asker: Asker) -> None:
    entries = [{"topicName": "Good", "perm": 6}, {"topicName": "b.ad", "perm": 6}]
    answer = await asker.ask(UPDATE_LIST, {"topicConfigList": entries})
    assert answer.code == INVALID
    assert "Good" not in asker.broker.topics


async def test_deleted_topic_takes_queues_and_offsets_with_it(asker: Asker) -> None:
    await asker.ask(UPDATE, **topic("T"))
    asker.put("T", 0)
    asker.broker.offsets.commit("G", "T", 0, 1)
    assert (await asker.ask(DELETE, topic="T")).code == 0
    assert "T" not in saved(asker)
    assert asker.broker.store.max_offset("T", 0) == 0
    assert asker.broker.offsets.topics_of("G") == []
    assert (await asker.ask(DELETE, topic="T")).code == 0, "deleting twice is no error"


@pytest.mark.parametrize("name", ["", "TBW102", "broker-a", "DefaultCluster_REPLY_TOPIC"])
async def test_system_topics_are_not_deleted(name: str, asker: Asker) -> None:
    assert (await asker.ask(DELETE, topic=name)).code == INVALID


async def test_all_topics_come_in_one_answer(asker: Asker) -> None:
    answer = await asker.ask(GET_ALL, topicSeq=0, maxTopicNum=2, dataVersion="")
    assert "totalTopicNum" not in (answer.ext or {})
    body = await asker.json(GET_ALL)
    assert set(body["topicConfigTable"]) == set(asker.broker.topics)
    assert body["dataVersion"] == asker.broker.topics.version.to_json()


async def test_system_topics_are_those_recorded(asker: Asker) -> None:
    with lzma.open(WIRE / "b53-c53-json.jsonl.xz", "rt") as lines:
        line = next(line for line in map(json.loads, lines) if line.get("req") == SYSTEM_LIST)
    frame = base64.b64decode(line["b"])
    recorded = json.loads(frame[len(frame) - line["bodyLen"] :])["topicList"]
    names = {"wire-a": "broker-a", "WireCluster": "DefaultCluster"}
    expected = set()
    for name in recorded:
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        expected.add(name)
    found = (await asker.json(SYSTEM_LIST))["topicList"]
    assert set(found) == expected


async def test_stats_list_every_queue_with_the_queue_as_key(asker: Asker) -> None:
    await asker.ask(UPDATE, **topic("T", 2))
    asker.put("T", 1)
    stored_ms = asker.clock.now_ms()
    answer = await asker.ask(STATS, topic="T")
    assert answer.body == (
        b'{"offsetTable":{'
        b'{"brokerName":"broker-a","queueId":0,"topic":"T"}:'
        b'{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0},'
        b'{"brokerName":"broker-a","queueId":1,"topic":"T"}:'
        b'{"lastUpdateTimestamp":%d,"maxOffset":1,"minOffset":0}},"topicPutTps":0.0}' % stored_ms
    )
