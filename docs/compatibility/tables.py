"""What tools ask a broker about topics, groups and their members, and let it change."""

from __future__ import annotations

from docs.compatibility.asker import CLIENT, Asker
from docs.compatibility.messages import GROUP, PRODUCERS, TOPIC, UNKNOWN
from docs.compatibility.servers import BROKER
from tandemmq.cluster.remoting import RequestCode as R

_ALL = {"topicSeq": 0, "groupSeq": 0, "maxTopicNum": 2000, "maxGroupNum": 2000, "dataVersion": ""}


async def everything(asker: Asker, offset_id: str) -> None:
    """offset_id: of a message of the topic."""
    await _topics(asker)
    await _groups(asker)
    await _members(asker, offset_id)
    await _positions(asker)
    await _users(asker)


async def _topics(asker: Asker) -> None:
    await asker.ask(R.GET_ALL_TOPIC_CONFIG, _ALL)
    await asker.ask(R.GET_TOPIC_CONFIG, {"topic": TOPIC})
    await asker.ask(R.GET_TOPIC_CONFIG, {"topic": UNKNOWN}, case="of an unknown topic")
    await asker.ask(R.GET_TOPIC_STATS_INFO, {"topic": TOPIC})
    await asker.ask(R.GET_TOPIC_STATS_INFO, {"topic": UNKNOWN}, case="of an unknown topic")
    await asker.ask(R.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": TOPIC})
    await asker.ask(R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    one = {
        "topicName": "Listed", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0, "order": False, "attributes": {},
    }  # fmt: skip
    await asker.ask(R.UPDATE_AND_CREATE_TOPIC_LIST, {}, {"topicConfigList": [one]})
    static = {
        "topic": "Static", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, "force": True,
    }  # fmt: skip
    item = {"bname": BROKER, "endOffset": -1, "gen": 0, "logicOffset": 0, "queueId": 0, "startOffset": 0,
            "timeOfEnd": -1, "timeOfStart": -1}  # fmt: skip
    mapping = {"bname": BROKER, "currIdMap": {}, "dirty": False, "epoch": 1, "hostedQueues": {"0": [item]},
               "scope": "__global__", "topic": "Static", "totalQueues": 1}  # fmt: skip
    await asker.ask(R.UPDATE_AND_CREATE_STATIC_TOPIC, static, mapping)
    await asker.ask(R.DELETE_TOPIC_IN_BROKER, {"topic": "Listed"})
    await asker.ask(R.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"}, case="of a system topic")


async def _groups(asker: Asker) -> None:
    group = {
        "groupName": "MadeGroup", "consumeEnable": True, "consumeFromMinEnable": True, "consumeBroadcastEnable": True,
        "consumeMessageOrderly": False, "retryQueueNums": 1, "retryMaxTimes": 16, "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": True, "groupSysFlag": 0,
        "consumeTimeoutMinute": 15, "attributes": {},
    }  # fmt: skip
    await asker.ask(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
    await asker.ask(
        R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        {**group, "groupName": "a b"},
        case="a name that is none",
    )
    listed = {"groupConfigList": [{**group, "groupName": "ListedGroup"}]}
    await asker.ask(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, listed)
    await asker.ask(R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, _ALL)
    await asker.ask(R.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "MadeGroup"})
    await asker.ask(
        R.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "MadeGroup", "topic": TOPIC, "readable": False}
    )
    await asker.ask(R.DELETE_SUBSCRIPTIONGROUP, {"groupName": "ListedGroup", "cleanOffset": True})


async def _members(asker: Asker, offset_id: str) -> None:
    await asker.ask(R.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP})
    await asker.ask(R.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": UNKNOWN}, case="of an unknown group")  # fmt: skip
    await asker.ask(R.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": PRODUCERS})
    await asker.ask(R.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": UNKNOWN}, case="of an unknown group")  # fmt: skip
    await asker.ask(R.GET_ALL_PRODUCER_INFO)
    await asker.ask(R.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": GROUP, "topic": TOPIC})
    member = {"consumerGroup": GROUP, "clientId": CLIENT}
    await asker.ask(R.GET_CONSUMER_RUNNING_INFO, {**member, "jstackEnable": False})
    await asker.ask(R.GET_CONSUMER_RUNNING_INFO, {**member, "clientId": "nobody"}, case="of nobody")
    directly = {**member, "msgId": offset_id, "topic": TOPIC, "brokerName": BROKER}
    await asker.ask(R.CONSUME_MESSAGE_DIRECTLY, directly)
    status = {"topic": TOPIC, "group": GROUP, "clientAddr": CLIENT}
    await asker.ask(R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, status)


async def _positions(asker: Asker) -> None:
    await asker.ask(R.GET_ALL_CONSUMER_OFFSET)
    await asker.ask(R.GET_ALL_DELAY_OFFSET)
    await asker.ask(R.GET_CONSUME_STATS, {"consumerGroup": GROUP, "topic": TOPIC})
    await asker.ask(R.GET_BROKER_CONSUME_STATS, {"isOrder": False})
    await asker.ask(R.QUERY_CONSUME_TIME_SPAN, {"topic": TOPIC, "group": GROUP})
    await asker.ask(R.QUERY_TOPICS_BY_CONSUMER, {"group": GROUP})
    corrected = {"topic": TOPIC, "compareGroup": GROUP, "filterGroups": ""}
    await asker.ask(R.QUERY_CORRECTION_OFFSET, corrected)
    cloned = {"srcGroup": GROUP, "destGroup": "MadeGroup", "topic": TOPIC, "offline": True}
    await asker.ask(R.CLONE_GROUP_OFFSET, cloned)
    reset = {"topic": TOPIC, "group": GROUP, "timestamp": -1, "isForce": True}
    await asker.ask(R.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    await asker.ask(
        R.INVOKE_BROKER_TO_RESET_OFFSET, {**reset, "topic": UNKNOWN}, case="of an unknown topic"
    )
    by_client = b"useServerSideResetOffset=false"
    await asker.quietly(R.UPDATE_BROKER_CONFIG, {}, by_client)
    await asker.ask(R.INVOKE_BROKER_TO_RESET_OFFSET, reset, case="where members reset themselves")
    await asker.quietly(R.UPDATE_BROKER_CONFIG, {}, b"useServerSideResetOffset=true")


async def _users(asker: Asker) -> None:
    user = {"username": "bob", "password": "bob12345", "userType": "Normal"}
    rule = {"subject": "User:bob", "policies": [{"entries": [
        {"actions": ["Pub"], "decision": "Allow", "resource": "Topic:*", "sourceIps": []}]}]}  # fmt: skip
    for code, ext, body in (
        (R.AUTH_CREATE_USER, {"username": "bob"}, user),
        (R.AUTH_UPDATE_USER, {"username": "bob"}, {"username": "bob", "userStatus": "enable"}),
        (R.AUTH_GET_USER, {"username": "bob"}, None),
        (R.AUTH_LIST_USER, {"filter": ""}, None),
        (R.AUTH_CREATE_ACL, {"subject": "User:bob"}, rule),
        (R.AUTH_UPDATE_ACL, {"subject": "User:bob"}, rule),
        (R.AUTH_GET_ACL, {"subject": "User:bob"}, None),
        (R.AUTH_LIST_ACL, {"subjectFilter": "", "resourceFilter": ""}, None),
        (R.AUTH_DELETE_ACL, {"subject": "User:bob", "resource": "Topic:*"}, None),
        (R.AUTH_DELETE_USER, {"username": "bob"}, None),
    ):
        await asker.ask(code, ext, body, at=asker.side.replica)
    await asker.ask(R.AUTH_LIST_USER, {"filter": ""}, case="where access control is off")
    await asker.ask(R.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "rocketmq2", "secretKey": "12345678"})  # fmt: skip
    await asker.ask(R.DELETE_ACL_CONFIG, {"accessKey": "rocketmq2"})
    await asker.ask(R.GET_BROKER_CLUSTER_ACL_INFO)
    await asker.ask(R.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "10.0.0.*"})
    await asker.ask(R.GET_BROKER_CLUSTER_ACL_CONFIG)
