"""What each admin command prints with --json, as types: the schemas of OpenAPI are made from these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NotRequired, TypedDict

from tandemmq.cluster.client import (
    ClientConnection,
    ControllerState,
    EpochHistory,
    GroupMembers,
    GroupProgress,
    GroupSettings,
    MemberState,
    MessageQueue,
    QueueEntries,
    ReceivedMessage,
    ReplicaSet,
    ReplicaState,
    SendResult,
    TopicStats,
)
from tandemmq.plane.schemas import Message, Queue

Settings = dict[str, str]


class BrokerRow(TypedDict):
    """One member of a broker group; status, or the problem that kept it from answering."""

    cluster: str
    broker: str
    broker_id: int
    address: str
    answers: bool
    status: NotRequired[Settings]
    problem: NotRequired[str]


class Metadata(TypedDict):
    exportTime: int
    topicConfigTable: NotRequired[dict[str, dict[str, Any]]]
    subscriptionGroupTable: NotRequired[dict[str, dict[str, Any]]]


class ClusterScale(TypedDict):
    namesrvSize: int
    brokerSize: int


class Configs(TypedDict):
    clusterScale: ClusterScale
    brokerConfigs: dict[str, Settings]
    namesrvConfigs: dict[str, Settings]


class Behind(TypedDict):
    behind: int
    queues: int


class BrokerMetrics(TypedDict):
    runtime: Settings
    topicSize: int
    groupSize: int
    progress: dict[str, Behind]


class Metrics(TypedDict):
    brokers: dict[str, BrokerMetrics]


class EpochRow(TypedDict):
    """What a member says of its epochs, or the problem that kept it from saying it."""

    address: str
    history: NotRequired[EpochHistory]
    problem: NotRequired[str]


class TopicRow(TypedDict):
    cluster: str
    topic: str
    group: str


class RouteBroker(TypedDict):
    brokerAddrs: Settings
    brokerName: str
    cluster: str


class RouteQueues(TypedDict):
    brokerName: str
    perm: int
    readQueueNums: int
    writeQueueNums: int


class Route(TypedDict):
    brokerDatas: list[RouteBroker]
    queueDatas: list[RouteQueues]


class Allocation(TypedDict):
    result: dict[str, list[Queue]]


class TopicRates(TypedDict):
    topic: str
    in_per_second: float
    in_24_hours: int
    group: str | None
    behind: int | None
    out_per_second: float
    out_24_hours: int


class GroupRow(TypedDict):
    group: str
    members: int
    version: str
    type: str
    model: str
    consume_per_second: float
    behind: int


class QueueRow(TypedDict):
    """How far a group is in one queue; owner: the member that holds it, where that was asked for."""

    topic: str
    broker: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_ms: int
    behind: int
    owner: str | None


class Progress(TypedDict):
    group: str
    queues: list[QueueRow]
    consume_per_second: float
    behind: int
    in_flight: int


class BrokerProgress(TypedDict):
    groups: dict[str, GroupProgress]
    behind: int


class GroupState(TypedDict):
    members: dict[str, MemberState]
    problems: list[str]


class Track(TypedDict):
    group: str
    state: str
    why: str


class TrackedMessage(Message):
    tracks: list[Track]


class Trace(TypedDict):
    type: str
    group: str
    host: str
    time_ms: int
    cost_ms: int
    status: str


class Waiting(TypedDict):
    """Messages that wait for their delivery time: by the start of the hour (ms since 1970), and by topic."""

    byHour: dict[str, int]
    byTopic: dict[str, int]


class TagCounts(TypedDict):
    tags: dict[str, int]


class TimedSends(TypedDict):
    sends: list[dict[str, Any]]
    average_ms: float


_CHANGED: Final = dict[str, Any]

RESULTS: Final[Mapping[str, Any]] = {
    "clusterList": list[BrokerRow],
    "brokerStatus": dict[str, Settings],
    "getBrokerConfig": dict[str, Settings],
    "haStatus": dict[str, ReplicaState],
    "getNamesrvConfig": dict[str, Settings],
    "exportMetadata": Metadata,
    "exportConfigs": Configs,
    "exportMetrics": Metrics,
    "getSyncStateSet": list[ReplicaSet],
    "getBrokerEpoch": list[EpochRow],
    "getControllerMetaData": dict[str, ControllerState],
    "getControllerConfig": dict[str, Settings],
    "topicList": list[str] | list[TopicRow],
    "topicRoute": Route,
    "topicStatus": TopicStats,
    "topicClusterList": list[str],
    "allocateMQ": Allocation,
    "statsAll": list[TopicRates],
    "getConsumerConfig": dict[str, GroupSettings],
    "consumerProgress": list[GroupRow] | Progress,
    "brokerConsumeStats": BrokerProgress,
    "consumerConnection": GroupMembers,
    "consumerStatus": GroupState,
    "producerConnection": list[ClientConnection],
    "producer": dict[str, list[ClientConnection]],
    "getUser": list[Settings],
    "listUser": list[Settings],
    "getAcl": list[dict[str, Any]],
    "listAcl": list[dict[str, Any]],
    "queryMsgById": list[TrackedMessage],
    "queryMsgByKey": list[ReceivedMessage],
    "queryMsgByUniqueKey": list[TrackedMessage],
    "queryMsgByOffset": list[TrackedMessage],
    "queryMsgTraceById": list[Trace],
    "queryCq": Mapping[MessageQueue, QueueEntries],
    "printMsg": list[ReceivedMessage],
    "printMsgByQueue": list[Message | TagCounts],
    "consumeMessage": list[ReceivedMessage],
    "timers": dict[str, Waiting],
    # what changes something says what it changed
    "sendMessage": list[SendResult],
    "checkMsgSendRT": TimedSends,
    "clusterRT": Any,
    "sendMsgStatus": TimedSends,
    "updateTopicPerm": _CHANGED,
    "resetOffsetByTime": Any,
    "skipAccumulatedMessage": Any,
    "electMaster": _CHANGED,
    "switchover": _CHANGED,
    "wipeWritePerm": dict[str, int],
    "addWritePerm": dict[str, int],
    **dict.fromkeys(
        (
            "updateBrokerConfig", "cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog",
            "resetMasterFlushOffset", "updateKvConfig", "deleteKvConfig", "updateNamesrvConfig",
            "updateControllerConfig", "cleanBrokerMetadata", "updateTopic", "updateTopicList", "deleteTopic",
            "updateOrderConf", "updateSubGroup", "updateSubGroupList", "deleteSubGroup", "cloneGroupOffset",
            "createUser", "updateUser", "deleteUser", "copyUser", "createAcl", "updateAcl", "deleteAcl", "copyAcl",
        ),
        _CHANGED,
    ),
}  # fmt: skip
