"""Values of the admin client: version names, and what a group's members say about a message."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from clientkit import received

from tandemmq.cluster.client.admin.bodies import (
    ConsumerConnection,
    ConsumerRunningInfo,
    HARuntimeInfo,
    TopicConfig,
    read,
    tree,
)
from tandemmq.cluster.client.admin.messages import track_state
from tandemmq.cluster.client.admin.values import (
    GroupMembers,
    GroupProgress,
    GroupSettings,
    QueueProgress,
    QueueRange,
    StatsWindow,
    StatsWindows,
    TopicSettings,
    TopicStats,
    TrackState,
    version_text,
)
from tandemmq.cluster.client.errors import BrokerAnswerBroken
from tandemmq.cluster.client.message import MessageQueue
from tandemmq.cluster.remoting.bodies import shaped


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (213, "V4_0_0"), (232, "V4_1_0_SNAPSHOT"), (393, "V4_9_0"), (399, "V4_9_3"),
        (413, "V5_0_0"), (441, "V5_1_4"), (473, "V5_3_0"), (479, "V5_3_3"), (493, "V5_4_0"),
        (612, "HIGHER_VERSION"), (700, "HIGHER_VERSION"), (121, "V3(121)"), (0, "V3(0)"),
    ],
)  # fmt: skip
def test_version_numbers_have_rocketmqs_names(number: int, name: str) -> None:
    assert version_text(number) == name


def members(tags: list[str] | None = None, **more: str) -> GroupMembers:
    wanted = {"topic": "T", "subString": "x", "tagsSet": tags or []}
    answer: dict[str, Any] = {
        "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "subscriptionTable": {"T": wanted}, **more,
    }  # fmt: skip
    return shaped(ConsumerConnection, answer).value()


def at(offset: int) -> GroupProgress:
    return GroupProgress({MessageQueue("T", "a", 0): QueueProgress(10, offset, offset, 0)}, 0.0)


@pytest.mark.parametrize(
    ("group", "progress", "state"),
    [
        (members(), at(5), TrackState.NOT_CONSUMED),
        (members(), at(6), TrackState.CONSUMED),
        (members(["A"]), at(6), TrackState.FILTERED),
        (members(["A"]), at(5), TrackState.NOT_CONSUMED),
        (members(messageModel="BROADCASTING"), at(6), TrackState.BROADCAST),
        (members(consumeType="CONSUME_ACTIVELY"), at(6), TrackState.PULLS),
        (members(), GroupProgress({}, 0.0), TrackState.UNKNOWN),
    ],
)
def test_a_message_at_offset_5_is_tracked(
    group: GroupMembers, progress: GroupProgress, state: TrackState
) -> None:
    assert track_state(received(5), group, progress) is state


def test_a_members_state_reads_rocketmqs_spelling_and_leaves_gaps_at_zero() -> None:
    queue = '{"brokerName":"a","queueId":1,"topic":"T"}'
    told = shaped(
        ConsumerRunningInfo,
        {
            "mqTable": {queue: {"droped": True, "commitOffset": 3}},
            "properties": {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
            "statusTable": {"T": {"consumeOKTPS": 1.5}},
        },
    )
    state = told.value()
    held = state.queues[MessageQueue("T", "a", 1)]
    assert (held.dropped, held.commit_offset, held.cached_count) == (True, 3, 0)
    assert (state.topics["T"].consumed_per_second, state.stacks) == (1.5, "")


def test_replication_is_read_of_master_and_slave() -> None:
    slave = {
        "addr": "10.0.0.2:5", "diff": 7, "inSync": True, "slaveAckOffset": 93,
        "transferFromWhere": 1, "transferredByteInSecond": 10,
    }  # fmt: skip
    master = shaped(
        HARuntimeInfo,
        {
            "master": True,
            "masterCommitLogMaxOffset": 100,
            "inSyncSlaveNums": 1,
            "haConnectionInfo": [slave],
        },
    ).value()
    assert (master.is_master, master.slaves[0].behind_bytes, master.in_sync_count) == (True, 7, 1)
    upwards = {"masterAddr": "10.0.0.1:10912", "maxOffset": 93}
    answer = {"master": False, "haClientRuntimeInfo": upwards}
    below = shaped(HARuntimeInfo, answer).value()
    assert (below.master_address, below.received_offset) == ("10.0.0.1:10912", 93)


def test_what_a_broker_leaves_out_is_as_java_leaves_it_and_what_it_must_say_is_named() -> None:
    key = '{"brokerName":"a","queueId":%d,"topic":"T"}'
    entry = '{"minOffset":1,"maxOffset":"1,000","lastUpdateTimestamp":5}'
    body = f'{{"offsetTable":{{{key % 10}:{entry},{key % 9}:{entry}}}}}'.encode()
    stats = read(body, TopicStats, "the queue table", "h:1")
    queues = [MessageQueue("T", "a", 9), MessageQueue("T", "a", 10)]
    assert (list(stats.queues), stats.put_per_second) == (queues, 0.0)
    assert stats.queues[queues[0]] == QueueRange(1, 1000, 5)
    assert read(b"", StatsWindows, "s", "h:1") == StatsWindows(*[StatsWindow(0, 0.0, 0.0)] * 3)
    with pytest.raises(BrokerAnswerBroken, match=r"the topic of h:1 .* field `readQueueNums`"):
        read(b'{"topicName":"T"}', TopicConfig, "the topic", "h:1")
    with pytest.raises(BrokerAnswerBroken, match=r"the key is none: .*`brokerName`"):
        read(b'{"offsetTable":{{"topic":"T"}:{}}}', TopicStats, "the queue table", "h:1")


def test_settings_as_json_leave_out_attributes_that_a_change_removes() -> None:
    found = tree(GroupSettings("G", attributes=MappingProxyType({"a": "b"})))
    assert (found["groupName"], found["retryQueueNums"], found["attributes"]) == (
        "G",
        1,
        {"a": "b"},
    )
    assert tree(TopicSettings("T", attributes={"k": "v", "gone": None}))["attributes"] == {"k": "v"}
    kept = TopicConfig("T", read_queue_count=1, write_queue_count=2, perm=6).value()
    assert kept == TopicSettings("T", 1, 2)
