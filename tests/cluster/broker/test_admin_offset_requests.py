"""handlers/admin_offsets.py: who consumed how far, and sending groups elsewhere."""

from __future__ import annotations

import pytest
from brokerkit import Asker, FakeConnection, MakeBroker

from tandemmq.cluster.remoting.codes import LanguageCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import RequestTimedOut

SYSTEM_ERROR, TOPIC_NOT_EXIST, GROUP_NOT_EXIST, NOT_ONLINE = 1, 17, 26, 206
CONSUME_STATS, RESET, STATUS, ALL_OFFSETS = 208, 222, 223, 43
BY_WHO, TIME_SPAN, CORRECTION, CLONE, BROKER_STATS, TOPICS_OF = 300, 303, 308, 314, 317, 343


def fill(asker: Asker) -> Asker:
    asker.broker.topics.create_for_send("T", "TBW102", 2)
    asker.broker.groups.find("G")
    for queue_id in (0, 0, 0, 1):
        asker.put("T", queue_id)
        asker.clock.advance(10)
    return asker


@pytest.fixture
def filled(asker: Asker) -> Asker:
    return fill(asker)


def queue(queue_id: int) -> str:
    return f'{{"brokerName":"broker-a","queueId":{queue_id},"topic":"T"}}'


async def test_progress_is_shown_per_queue(filled: Asker) -> None:
    start_ms = filled.clock.now_ms() - 40
    filled.broker.offsets.commit("G", "T", 0, 2)
    filled.broker.offsets.commit_pull("G", "T", 0, 3)
    answer = await filled.ask(CONSUME_STATS, consumerGroup="G")
    body = bytes(answer.body or b"").decode()
    assert body == (
        '{"consumeTps":0.0,"offsetTable":{'
        f'{queue(0)}:{{"brokerOffset":3,"consumerOffset":2,"lastTimestamp":{start_ms + 10},'
        f'"pullOffset":3}},'
        f'{queue(1)}:{{"brokerOffset":1,"consumerOffset":0,"lastTimestamp":0,"pullOffset":0}}}}}}'
    )


async def test_topics_without_subscription_are_left_out_of_an_online_groups_progress(
    filled: Asker,
) -> None:
    filled.broker.offsets.commit("G", "T", 0, 2)
    await filled.heartbeat("G", "Other")
    found = await filled.json(CONSUME_STATS, consumerGroup="G")
    assert found["offsetTable"] == {}
    found = await filled.json(CONSUME_STATS, consumerGroup="G", topicList="T;Unknown")
    assert len(found["offsetTable"]) == 2


async def test_progress_of_the_whole_broker(filled: Asker) -> None:
    filled.broker.offsets.commit("G", "T", 0, 1)
    found = await filled.json(BROKER_STATS, isOrder=False)
    assert found["brokerAddr"] == "127.0.0.1:10911"
    assert found["totalDiff"] == 3
    (mine,) = [entry["G"] for entry in found["consumeStatsList"] if "G" in entry]
    assert len(mine) == 1
    assert (await filled.json(BROKER_STATS, isOrder=True))["totalDiff"] == 0


async def test_times_between_first_last_and_consumed_message(filled: Asker) -> None:
    now_ms = filled.clock.now_ms()
    filled.broker.offsets.commit("G", "T", 0, 2)
    spans = (await filled.json(TIME_SPAN, topic="T", group="G"))["consumeTimeSpanSet"]
    first, second = spans
    assert (first["minTimeStamp"], first["maxTimeStamp"]) == (now_ms - 40, now_ms - 20)
    assert (first["consumeTimeStamp"], first["delayTime"]) == (now_ms - 30, 20)
    assert second["consumeTimeStamp"] == second["minTimeStamp"] == now_ms - 10
    assert (await filled.ask(TIME_SPAN, topic="Nope", group="G")).code == TOPIC_NOT_EXIST


async def test_groups_of_a_topic_are_the_online_and_the_known_ones(filled: Asker) -> None:
    filled.broker.offsets.commit("G", "T", 0, 1)
    await filled.heartbeat("Online", "T")
    assert await filled.json(BY_WHO, topic="T") == {"groupList": ["Online", "G"]}
    assert await filled.json(TOPICS_OF, group="G") == {
        "brokerAddr": "127.0.0.1:10911",
        "topicList": ["T"],
    }


async def test_reset_by_time_of_every_queue(filled: Asker) -> None:
    at_ms = filled.clock.now_ms() - 30
    answer = await filled.ask(RESET, topic="T", group="G", timestamp=at_ms, isForce=True)
    body = bytes(answer.body or b"").decode()
    assert body == f'{{"offsetTable":{{{queue(0)}:1,{queue(1)}:0}}}}'
    assert filled.broker.offsets.pending_reset("G", "T", 0) == 1
    assert not filled.broker.offsets.file.unsaved


async def test_reset_to_the_end_and_of_one_queue(filled: Asker) -> None:
    found = await filled.json(RESET, topic="T", group="G", timestamp=-1, isForce=True)
    assert list(found["offsetTable"].values()) == [3, 1]
    one = dict(topic="T", group="G", timestamp=0, isForce=True, queueId=0, offset=2)
    found = await filled.json(RESET, **one)
    assert list(found["offsetTable"].values()) == [2]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"topic": "Nope"}, TOPIC_NOT_EXIST),
        ({"group": "Nobody"}, GROUP_NOT_EXIST),
        ({"queueId": 0, "offset": 5}, SYSTEM_ERROR),
        ({"queueId": 9}, SYSTEM_ERROR),
        ({"topic": "../x"}, 29),
    ],
)
async def test_resets_that_cannot_be_are_refused(
    changed: dict[str, object], code: int, filled: Asker
) -> None:
    header = {"topic": "T", "group": "G", "timestamp": 0, "isForce": True, **changed}
    assert (await filled.ask(RESET, **header)).code == code
    assert filled.broker.offsets.topics_of("G") == []


async def test_members_are_sent_elsewhere_when_the_broker_does_not_do_it(
    make_broker: MakeBroker,
) -> None:
    asker = fill(make_broker(useServerSideResetOffset="false"))
    header: dict[str, object] = {"topic": "T", "group": "G", "timestamp": 0, "isForce": False}
    assert (await asker.ask(RESET, **header)).code == SYSTEM_ERROR, "nobody ever committed"
    asker.broker.offsets.commit("G", "T", 0, 2)
    asker.broker.offsets.commit("G", "T", 1, 0)
    assert (await asker.ask(RESET, **header)).code == NOT_ONLINE
    consumer = FakeConnection()
    await asker.heartbeat("G", "T", connection=consumer)
    consumer.requests.clear()
    answer = await asker.ask(RESET, **header)
    (pushed,) = consumer.requests
    assert pushed.code == 220
    assert pushed.body == answer.body == f'{{"offsetTable":{{{queue(0)}:0,{queue(1)}:0}}}}'.encode()
    await asker.ask(RESET, language=LanguageCode.CPP, **header)
    assert bytes(consumer.requests[-1].body or b"").startswith(b'{"offsetTable":[{"brokerName"')


async def test_positions_of_members_are_gathered_and_failures_left_out(filled: Asker) -> None:
    good, bad = FakeConnection(), FakeConnection()
    await filled.heartbeat("G", "T", client_id="good", connection=good)
    await filled.heartbeat("G", "T", client_id="bad", connection=bad)
    table = f'{{"consumerTable":{{}},"messageQueueTable":{{{queue(0)}:3}}}}'
    good.answer = Command(0, body=table.encode())
    bad.answer = RequestTimedOut("x", 221, 5_000)
    answer = await filled.ask(STATUS, topic="T", group="G", clientAddr="")
    body = bytes(answer.body or b"").decode()
    assert body == f'{{"consumerTable":{{"good":{{{queue(0)}:3}}}},"messageQueueTable":{{}}}}'
    assert (await filled.ask(STATUS, topic="T", group="Nobody")).code == SYSTEM_ERROR


async def test_clone_copies_one_topic_or_all(filled: Asker) -> None:
    filled.broker.offsets.commit("G", "T", 0, 2)
    assert (await filled.ask(CLONE, srcGroup="G", destGroup="H", topic="T")).code == 0
    assert filled.broker.offsets.query("H", "T", 0) == 2
    assert (await filled.ask(CLONE, srcGroup="G", destGroup="I", topic="")).code == 0
    assert filled.broker.offsets.query("I", "T", 0) == 2


async def test_a_clone_sends_members_that_consume_meanwhile_there(filled: Asker) -> None:
    offsets = filled.broker.offsets
    offsets.commit("G", "T", 0, 2)
    await filled.heartbeat("H", "T")
    assert (await filled.ask(CLONE, srcGroup="G", destGroup="H", topic="T")).code == 0
    assert offsets.pending_reset("H", "T", 0) == 2
    offsets.commit("H", "T", 0, 3)  # of before it heard of it
    assert offsets.query("H", "T", 0) == 2
    await filled.ask(CLONE, srcGroup="G", destGroup="Idle", topic="T")
    assert offsets.pending_reset("Idle", "T", 0) is None


@pytest.mark.parametrize("code", [RESET, CLONE])
async def test_a_pull_that_waits_hears_of_it_at_once(filled: Asker, code: int) -> None:
    filled.broker.offsets.commit("Other", "T", 0, 1)
    await filled.heartbeat("G", "T")
    pull = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "3",
        "maxMsgNums": "9",
    }
    pull |= {
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
    }
    waiting = FakeConnection()
    assert filled.broker.table[11](Command(11, pull, opaque=7), waiting) is None  # type: ignore[arg-type]
    assert filled.broker.pulls.held.count == 1
    if code == RESET:
        await filled.ask(
            RESET, topic="T", group="G", timestamp=0, isForce=True, queueId=0, offset=1
        )
    else:
        await filled.ask(CLONE, srcGroup="Other", destGroup="G", topic="T")
    assert filled.broker.pulls.held.count == 0
    said = b"".join(waiting.written) + b"".join(each.encode() for each in waiting.sent)
    assert b'"nextBeginOffset":"1"' in said and b'"code":21' in said


async def test_correction_takes_the_smallest_offset_and_loses_none(filled: Asker) -> None:
    offsets = filled.broker.offsets
    for group, at in (("G", 5), ("H", 3), ("I", 1)):
        offsets.commit(group, "T", 0, at)
    ask = {"topic": "T", "compareGroup": "G", "filterGroups": "I"}
    assert await filled.json(CORRECTION, **ask) == {"correctionOffsets": {"0": 3}}
    ask["compareGroup"] = "I"
    ask["filterGroups"] = ""
    assert await filled.json(CORRECTION, **ask) == {"correctionOffsets": {"0": 1}}
    assert offsets.query("I", "T", 0) == 1


async def test_all_offsets_are_as_in_the_file(filled: Asker) -> None:
    filled.broker.offsets.commit("G", "T", 0, 2)
    found = await filled.json(ALL_OFFSETS)
    assert found["offsetTable"] == {"T@G": {"0": 2}}
