"""handlers/client.py and handlers/locks.py: heartbeats, leaving, member lists, queue locks."""

from __future__ import annotations

import base64
import json
import lzma
from pathlib import Path

import pytest
from brokerkit import Asker, FakeConnection, MakeBroker

from tandemmq.cluster.broker.handlers.client import ENTRIES_MAX
from tandemmq.storage import fastjson

WIRE = Path(__file__).parents[2] / "golden" / "wire"
SUCCESS, SYSTEM_ERROR, INVALID_PARAMETER = 0, 1, 29
HEART_BEAT, UNREGISTER_CLIENT, CHECK_CLIENT_CONFIG = 34, 35, 46
GET_CONSUMER_LIST_BY_GROUP, NOTIFY_CONSUMER_IDS_CHANGED = 38, 40
LOCK_BATCH_MQ, UNLOCK_BATCH_MQ = 41, 42


@pytest.mark.parametrize("session", ["b53-c53-json", "b49-c49-json", "b53-c53-binary"])
async def test_every_recorded_heartbeat_is_understood(session: str, asker: Asker) -> None:
    groups: set[str] = set()
    with lzma.open(WIRE / f"{session}.jsonl.xz", "rt") as lines:
        for line in map(json.loads, lines):
            if line.get("k") != "frame" or line["code"] != HEART_BEAT or "req" in line:
                continue
            frame = base64.b64decode(line["b"])
            body = frame[len(frame) - line["bodyLen"] :]
            answer = await asker.ask(HEART_BEAT, body, FakeConnection())
            assert answer.code == SUCCESS, answer.remark
            groups |= {c["groupName"] for c in fastjson.loads(body)["consumerDataSet"]}
    assert groups == {group.name for group in asker.broker.consumers}
    assert {f"%RETRY%{group}" for group in groups} <= set(asker.broker.topics)


async def test_heartbeat_tells_every_member_that_one_joined(asker: Asker) -> None:
    first, second = FakeConnection(), FakeConnection()
    await asker.heartbeat("G", "T", client_id="c1", connection=first)
    await asker.heartbeat("G", "T", client_id="c2", connection=second)
    await asker.heartbeat("G", "T", client_id="c2", connection=second)
    told = [(r.code, r.ext) for r in first.requests]
    assert told == [(NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "G"})] * 2
    assert len(second.requests) == 1
    members = await asker.json(GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
    assert members == {"consumerIdList": ["c1", "c2"]}


async def test_broadcasting_and_silenced_groups_are_not_told(
    asker: Asker, make_broker: MakeBroker
) -> None:
    connection = FakeConnection()
    await asker.heartbeat("B", "T", connection=connection, messageModel="broadcasting")
    await asker.ask(200, {"groupName": "Quiet", "notifyConsumerIdsChangedEnable": False})
    await asker.heartbeat("Quiet", "T", connection=connection)
    assert connection.requests == []


async def test_first_heartbeat_makes_the_retry_topic_on_disk(asker: Asker) -> None:
    answer = await asker.heartbeat("G", "T")
    assert answer.code == SUCCESS
    topic = asker.broker.topics.get("%RETRY%G")
    assert topic is not None and (topic.read_queue_nums, topic.perm, topic.order) == (1, 6, False)
    assert not asker.broker.topics.file.unsaved
    assert not asker.broker.groups.file.unsaved


async def test_retry_topic_of_an_ordered_topics_group_is_ordered(asker: Asker) -> None:
    await asker.ask(17, topic="Ordered", readQueueNums=1, writeQueueNums=1, perm=6, order=True)
    await asker.heartbeat("G", "Ordered")
    topic = asker.broker.topics.get("%RETRY%G")
    assert topic is not None and topic.order


async def test_unknown_group_is_skipped_in_silence_when_groups_are_not_made(
    make_broker: MakeBroker,
) -> None:
    asker = make_broker(autoCreateSubscriptionGroup="false")
    answer = await asker.heartbeat("G", "T")
    assert answer.code == SUCCESS
    assert asker.broker.consumers.group("G") is None


@pytest.mark.parametrize("group", ["a.b", "../x", "", "g" * 121])
async def test_groups_with_bad_names_are_never_made(group: str, asker: Asker) -> None:
    answer = await asker.heartbeat(group, "T")
    assert answer.code == SUCCESS
    assert group not in asker.broker.groups
    assert f"%RETRY%{group}" not in asker.broker.topics


@pytest.mark.parametrize("body", [b"{", b"[1]", b'{"consumerDataSet":7}', b"\xff\xfe", b"[" * 5000])
async def test_unreadable_heartbeat_is_answered_with_an_error(body: bytes, asker: Asker) -> None:
    answer = await asker.ask(HEART_BEAT, body)
    assert answer.code == SYSTEM_ERROR


async def test_large_heartbeat_is_read_as_any_other(asker: Asker) -> None:
    topics = [f"Topic{number}" for number in range(2_000)]
    answer = await asker.heartbeat("G", *topics)
    assert answer.code == SUCCESS
    group = asker.broker.consumers.group("G")
    assert group is not None and len(group.subscriptions) == 2_000


async def test_leaving_client_is_gone_from_the_groups_it_names(asker: Asker) -> None:
    stays = FakeConnection()
    await asker.heartbeat("G", "T", client_id="c1")
    await asker.heartbeat("G", "T", client_id="c2", connection=stays)
    stays.requests.clear()
    answer = await asker.ask(UNREGISTER_CLIENT, clientID="c1", consumerGroup="G")
    assert answer.code == SUCCESS
    assert [request.code for request in stays.requests] == [NOTIFY_CONSUMER_IDS_CHANGED]
    assert asker.broker.consumers.client_ids("G") == ["c2"]


async def test_closed_connection_takes_its_client_out_of_everything(asker: Asker) -> None:
    body = {"clientID": "c1", "producerDataSet": [{"groupName": "P"}]}
    await asker.ask(HEART_BEAT, body)
    await asker.heartbeat("G", "T", client_id="c1")
    peer = asker.connection
    asker.broker.connection_closed(peer)  # type: ignore[arg-type]
    assert asker.broker.consumers.group("G") is None
    assert asker.broker.producers.by_client_id("c1") is None


async def test_list_of_a_group_without_members_is_an_error(asker: Asker) -> None:
    answer = await asker.ask(GET_CONSUMER_LIST_BY_GROUP, consumerGroup="EdgeNoGroup")
    assert (answer.code, answer.remark) == (1, "no consumer for this group, EdgeNoGroup")


async def test_tag_subscription_passes_the_check_and_sql_does_not(asker: Asker) -> None:
    for kind, code in (("TAG", SUCCESS), ("SQL92", SYSTEM_ERROR)):
        body = {
            "clientId": "c",
            "group": "G",
            "subscriptionData": {"topic": "T", "subString": "a > 1", "expressionType": kind},
        }
        assert (await asker.ask(CHECK_CLIENT_CONFIG, body)).code == code
    assert (await asker.ask(CHECK_CLIENT_CONFIG, {})).code == SUCCESS


async def test_a_filter_that_is_wrong_is_refused_with_its_place(make_broker: MakeBroker) -> None:
    asker = make_broker(enablePropertyFilter="true")
    for kind, text, code in (
        ("SQL92", "a > 1", SUCCESS),
        ("SQL92", "a > 'x'", 23),
        ("SQL93", "a > 1", 23),
        ("SQL92", "", 23),
    ):
        subscription = {"topic": "T", "subString": text, "expressionType": kind}
        body = {"clientId": "c", "group": "G", "subscriptionData": subscription}
        answer = await asker.ask(CHECK_CLIENT_CONFIG, body)
        assert answer.code == code
        if text == "a > 'x'":
            assert answer.remark == (
                "the SQL92 expression is refused at character 5: only numbers and properties are compared by >"
            )


async def test_locks_answer_with_the_queues_that_were_granted(asker: Asker) -> None:
    queue = {"brokerName": "broker-a", "queueId": 1, "topic": "T"}
    other = {"brokerName": "broker-a", "queueId": 2, "topic": "T"}

    def body(client_id: str, *queues: dict[str, object]) -> dict[str, object]:
        return {"clientId": client_id, "consumerGroup": "G", "mqSet": list(queues)}

    assert await asker.json(LOCK_BATCH_MQ, body("a", queue)) == {"lockOKMQSet": [queue]}
    assert await asker.json(LOCK_BATCH_MQ, body("b", queue, other)) == {"lockOKMQSet": [other]}
    assert (await asker.ask(UNLOCK_BATCH_MQ, body("a", queue))).code == SUCCESS
    assert await asker.json(LOCK_BATCH_MQ, body("b", queue)) == {"lockOKMQSet": [queue]}
    asker.clock.advance(60_001)
    assert await asker.json(LOCK_BATCH_MQ, body("c", queue)) == {"lockOKMQSet": [queue]}


async def test_silent_clients_are_closed_and_locks_forgotten(asker: Asker) -> None:
    await asker.heartbeat("G", "T")
    expiry = asker.broker.expiry
    expiry.scan(asker.clock.monotonic_ms() + 120_001)
    assert asker.connection.closed
    assert asker.broker.consumers.group("G") is None


async def test_heartbeats_that_name_too_much_are_refused_whole(asker: Asker) -> None:
    groups = [{"groupName": f"P{n}"} for n in range(ENTRIES_MAX + 1)]
    for body in (
        {"clientID": "c", "producerDataSet": groups},
        {"clientID": "c" * 1_025, "producerDataSet": groups[:1]},
        {
            "clientID": "c",
            "consumerDataSet": [
                {
                    "groupName": "G",
                    "subscriptionDataSet": [{"topic": f"T{n}"} for n in range(ENTRIES_MAX)],
                }
            ],
        },
    ):
        assert (await asker.ask(HEART_BEAT, body)).code == INVALID_PARAMETER
    assert len(asker.broker.producers) == 0
    assert asker.broker.consumers.group("G") is None
    half = {"clientID": "c", "producerDataSet": groups[: ENTRIES_MAX // 2]}
    assert (await asker.ask(HEART_BEAT, half)).code == SUCCESS
    assert len(asker.broker.producers) == ENTRIES_MAX // 2


async def test_the_heartbeat_of_the_client_in_c_plus_plus_is_understood(asker: Asker) -> None:
    """As the one of 2019, inside PyPI's `rocketmq` 0.4.4, sends it: ordinals, a number as a text, a line feed."""
    beat = (
        b'{"clientID":"25958-127.0.0.1@ins","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"CID",'
        b'"messageModel":0,"subscriptionDataSet":[{"subString":"*","subVersion":"1795369956255","topic":"T"}]}]}\n'
    )
    assert (await asker.ask(HEART_BEAT, beat)).code == SUCCESS
    group = asker.broker.consumers.group("CID")
    assert group is not None
    assert (group.consume_type, group.message_model) == ("CONSUME_PASSIVELY", "BROADCASTING")
    assert group.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert group.subscriptions["T"].sub_version == 1_795_369_956_255


async def test_queues_with_impossible_names_and_too_many_of_them_are_not_locked(
    asker: Asker,
) -> None:
    bad = [
        {"brokerName": "broker-a", "queueId": 0, "topic": "../x"},
        {"brokerName": "../../x", "queueId": 0, "topic": "T"},
    ]
    good = {"brokerName": "broker-a", "queueId": 1, "topic": "T"}
    body = {"clientId": "a", "consumerGroup": "G", "mqSet": [*bad, good]}
    assert await asker.json(LOCK_BATCH_MQ, body) == {"lockOKMQSet": [good]}
    body["mqSet"] = [good] * 20_001
    assert (await asker.ask(LOCK_BATCH_MQ, body)).code == INVALID_PARAMETER
    assert (await asker.ask(UNLOCK_BATCH_MQ, body)).code == INVALID_PARAMETER
    assert len(asker.broker.locks) == 1


async def test_heartbeats_of_new_groups_are_taken_when_the_disk_is_full(asker: Asker) -> None:
    async def broken() -> None:
        raise OSError(28, "No space left on device")

    asker.broker.groups.file.saved = broken  # type: ignore[method-assign]
    beat = {"clientID": "c", "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": []}]}
    assert (await asker.ask(HEART_BEAT, beat)).code == SUCCESS
    assert asker.broker.consumers.client_ids("G") == ["c"]
