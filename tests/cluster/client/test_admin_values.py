"""Values of the admin client: version names, and what a group's members say about a message."""

from __future__ import annotations

from typing import Any

import pytest
from clientkit import received

from tandemmq.cluster.client.admin.bodies import group_members, member_state, replica_state
from tandemmq.cluster.client.admin.messages import track_state
from tandemmq.cluster.client.admin.values import (
    GroupMembers,
    GroupProgress,
    QueueProgress,
    TrackState,
    version_text,
)
from tandemmq.cluster.client.message import MessageQueue


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
    tree: dict[str, Any] = {
        "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "subscriptionTable": {"T": wanted}, **more,
    }  # fmt: skip
    return group_members(tree)


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
    state = member_state(
        {
            "mqTable": {queue: {"droped": True, "commitOffset": 3}},
            "properties": {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
            "statusTable": {"T": {"consumeOKTPS": 1.5}},
        }
    )
    held = state.queues[MessageQueue("T", "a", 1)]
    assert (held.dropped, held.commit_offset, held.cached_count) == (True, 3, 0)
    assert (state.topics["T"].consumed_per_second, state.stacks) == (1.5, "")


def test_replication_is_read_of_master_and_slave() -> None:
    slave = {
        "addr": "10.0.0.2:5", "diff": 7, "inSync": True, "slaveAckOffset": 93,
        "transferFromWhere": 1, "transferredByteInSecond": 10,
    }  # fmt: skip
    master = replica_state(
        {
            "master": True,
            "masterCommitLogMaxOffset": 100,
            "inSyncSlaveNums": 1,
            "haConnectionInfo": [slave],
        }
    )
    assert (master.is_master, master.slaves[0].behind_bytes, master.in_sync_count) == (True, 7, 1)
    upwards = {"masterAddr": "10.0.0.1:10912", "maxOffset": 93}
    below = replica_state({"master": False, "haClientRuntimeInfo": upwards})
    assert (below.master_address, below.received_offset) == ("10.0.0.1:10912", 93)
