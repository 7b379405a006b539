"""handlers/admin_groups.py: settings of groups, their members, and requests relayed to one."""

from __future__ import annotations

import pytest
from brokerkit import Asker, FakeConnection

from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import ConnectionLost, RequestTimedOut
from tandemmq.storage import offset_message_id, pack_host

SYSTEM_ERROR, GROUP_NOT_EXIST, INVALID, NOT_ONLINE, CONSUME_TIMEOUT = 1, 26, 29, 206, 207
UPDATE, GET_ALL, CONSUMERS, PRODUCERS, DELETE, UPDATE_LIST = 200, 201, 203, 204, 207, 225
RUNNING_INFO, CONSUME_DIRECTLY, PRODUCER_INFO = 307, 309, 328
SUBSCRIPTION, GET, FORBIDDEN = 345, 352, 353


async def test_updated_group_is_shown_and_in_the_table(asker: Asker) -> None:
    assert (await asker.ask(UPDATE, {"groupName": "G", "retryMaxTimes": 3})).code == 0
    found = await asker.json(GET, group="G")
    assert (found["retryMaxTimes"], found["consumeEnable"]) == (3, True)
    table = await asker.json(GET_ALL)
    assert table["subscriptionGroupTable"]["G"] == found
    assert table["forbiddenTable"] == {}


async def test_group_list_is_applied_whole_or_not_at_all(asker: Asker) -> None:
    bad = {"groupConfigList": [{"groupName": "A"}, {"groupName": "b.ad"}]}
    assert (await asker.ask(UPDATE_LIST, bad)).code == INVALID
    assert "A" not in asker.broker.groups
    good = {"groupConfigList": [{"groupName": "A"}, {"groupName": "B"}]}
    assert (await asker.ask(UPDATE_LIST, good)).code == 0
    assert {"A", "B"} <= set(asker.broker.groups)


@pytest.mark.parametrize("name", ["", "a.b", "g" * 121])
async def test_bad_group_names_are_refused(name: str, asker: Asker) -> None:
    assert (await asker.ask(UPDATE, {"groupName": name})).code == INVALID
    assert (await asker.ask(GET, group=name)).code == INVALID


async def test_deleted_group_keeps_its_progress_unless_told_otherwise(asker: Asker) -> None:
    for header, left in (({}, 5), ({"cleanOffset": True}, -1), ({"removeOffset": True}, -1)):
        asker.broker.groups.find("G")
        asker.broker.offsets.commit("G", "T", 0, 5)
        assert (await asker.ask(DELETE, groupName="G", **header)).code == 0
        assert "G" not in asker.broker.groups
        assert asker.broker.offsets.query("G", "T", 0) == left
    assert (await asker.ask(DELETE, groupName="Unknown")).code == 0


async def test_forbidding_is_asked_and_set_with_one_request(asker: Asker) -> None:
    ask = {"group": "G", "topic": "T"}
    assert await asker.json(FORBIDDEN, **ask) == {**ask, "readable": True}
    assert await asker.json(FORBIDDEN, **ask, readable=False) == {**ask, "readable": False}
    assert await asker.json(FORBIDDEN, **ask) == {**ask, "readable": False}
    assert asker.broker.groups.read_forbidden("G", "T")


async def test_consumer_connections_are_listed_with_subscriptions(asker: Asker) -> None:
    await asker.heartbeat("G", "T", client_id="c1", sub_string="TagA", sub_version=7)
    assert await asker.json(CONSUMERS, consumerGroup="G") == {
        "connectionSet": [
            {"clientAddr": "10.0.0.7:40000", "clientId": "c1", "language": "JAVA", "version": 479}
        ],
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionTable": {
            "T": {
                "classFilterMode": False,
                "codeSet": [2598919],
                "expressionType": "TAG",
                "subString": "TagA",
                "subVersion": 7,
                "tagsSet": ["TagA"],
                "topic": "T",
            }
        },
    }
    found = await asker.json(SUBSCRIPTION, group="G", topic="T")
    assert found["subscriptionData"]["subString"] == "TagA"
    assert await asker.json(SUBSCRIPTION, group="G", topic="U") == {"group": "G", "topic": "U"}


async def test_group_without_members_is_not_online(asker: Asker) -> None:
    answer = await asker.ask(CONSUMERS, consumerGroup="G")
    assert (answer.code, answer.remark) == (NOT_ONLINE, "the consumer group[G] not online")


async def test_producers_are_listed_by_group_and_all_together(asker: Asker) -> None:
    await asker.ask(34, {"clientID": "p1", "producerDataSet": [{"groupName": "P"}]})
    found = await asker.json(PRODUCERS, producerGroup="P")
    assert [entry["clientId"] for entry in found["connectionSet"]] == ["p1"]
    assert (await asker.ask(PRODUCERS, producerGroup="Q")).code == SYSTEM_ERROR
    assert await asker.json(PRODUCER_INFO) == {
        "data": {
            "P": [
                {
                    "clientId": "p1",
                    "language": "JAVA",
                    "lastUpdateTimestamp": asker.clock.now_ms(),
                    "remoteIP": "/10.0.0.7:40000",
                    "version": 479,
                }
            ]
        }
    }


async def test_running_info_is_relayed_both_ways_unchanged(asker: Asker) -> None:
    await asker.heartbeat("G", "T", client_id="c1")
    body = b'{"mqTable":{{"brokerName":"b","queueId":1,"topic":"T"}:{}}}'
    asker.connection.answer = Command(0, body=body, remark="not set any response code")
    asker.connection.requests.clear()
    answer = await asker.ask(RUNNING_INFO, consumerGroup="G", clientId="c1", jstackEnable=False)
    assert (answer.code, answer.body, answer.remark) == (0, body, "not set any response code")
    (relayed,) = asker.connection.requests
    assert relayed.code == RUNNING_INFO
    assert relayed.ext == {"consumerGroup": "G", "clientId": "c1", "jstackEnable": "false"}


async def test_client_that_is_gone_old_or_silent_fails_the_relay(asker: Asker) -> None:
    ask = {"consumerGroup": "G", "clientId": "c1"}
    answer = await asker.ask(RUNNING_INFO, **ask)
    assert (answer.code, answer.remark) == (1, "The Consumer <G> <c1> not online")
    await asker.heartbeat("G", "T", client_id="c1")
    asker.connection.answer = RequestTimedOut("10.0.0.7:40000", RUNNING_INFO, 10_000)
    assert (await asker.ask(RUNNING_INFO, **ask)).code == CONSUME_TIMEOUT
    asker.connection.answer = ConnectionLost("10.0.0.7:40000")
    assert (await asker.ask(RUNNING_INFO, **ask)).code == SYSTEM_ERROR
    member = asker.broker.consumers.find("G", "c1")
    assert member is not None
    member.version = 61
    answer = await asker.ask(RUNNING_INFO, **ask)
    assert answer.code == SYSTEM_ERROR and "too low" in (answer.remark or "")


async def test_message_to_consume_directly_goes_with_the_request(asker: Asker) -> None:
    consumer = FakeConnection()
    await asker.heartbeat("G", "T", client_id="c1", connection=consumer)
    consumer.requests.clear()
    offset = asker.put("T", body=b"look at me")
    message_id = offset_message_id(pack_host("127.0.0.1", 10911), offset)
    consumer.answer = Command(0, body=b'{"consumeResult":"CR_SUCCESS"}')
    answer = await asker.ask(CONSUME_DIRECTLY, consumerGroup="G", clientId="c1", msgId=message_id)
    assert (answer.code, answer.body) == (0, b'{"consumeResult":"CR_SUCCESS"}')
    (relayed,) = consumer.requests
    assert b"look at me" in bytes(relayed.body or b"")
    assert relayed.ext is not None and relayed.ext["brokerName"] == "broker-a"


@pytest.mark.parametrize("message_id", ["", "zz", "0A090901000074D7000000000000FFFF"])
async def test_message_that_is_not_there_is_an_error_and_no_crash(
    message_id: str, asker: Asker
) -> None:
    await asker.heartbeat("G", "T", client_id="c1")
    answer = await asker.ask(CONSUME_DIRECTLY, consumerGroup="G", clientId="c1", msgId=message_id)
    assert answer.code == SYSTEM_ERROR
