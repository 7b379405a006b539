"""Bodies of administrative answers as values, and values as bodies. No I/O.

Source of the layouts: RocketMQ's classes in org.apache.rocketmq.remoting.protocol.body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from tandemmq.cluster.client.admin.values import (
    BrokerMembers,
    ClientConnection,
    ConsumeRates,
    ConsumeSpan,
    ControllerState,
    DirectResult,
    Election,
    EpochHistory,
    EpochRange,
    GroupMembers,
    GroupProgress,
    GroupSettings,
    GroupSubscription,
    HeldQueue,
    MemberState,
    QueueEntries,
    QueueEntry,
    QueueProgress,
    QueueRange,
    Replica,
    ReplicaSet,
    ReplicaState,
    SlaveState,
    StatsWindow,
    StatsWindows,
    TopicSettings,
    TopicStats,
)
from tandemmq.cluster.client.errors import BrokerAnswerBroken
from tandemmq.cluster.client.message import MessageQueue
from tandemmq.cluster.config import ConfigError, parse_properties
from tandemmq.storage import fastjson

NO_END: Final = (1 << 63) - 1  # end of the epoch that lasts
Value = TypeVar("Value")
Tree = dict[str, Any]


def read(
    body: bytes | memoryview | None, build: Callable[[Any], Value], what: str, address: str
) -> Value:
    """Parse a body, in either JSON dialect, and build a value from it.

    Raises BrokerAnswerBroken, naming what and address, when it is not of that shape.
    """
    try:
        return build(fastjson.loads(bytes(body or b"{}")))
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise BrokerAnswerBroken(f"{what} of {address} does not parse: {problem!r}") from problem


def queue(tree: Tree) -> MessageQueue:
    """A queue from its three members."""
    return MessageQueue(str(tree["topic"]), str(tree["brokerName"]), int(tree["queueId"]))


def queue_tree(what: MessageQueue) -> Tree:
    """The three members of a queue."""
    return {"brokerName": what.broker_name, "queueId": what.queue_id, "topic": what.topic}


def by_queue(tree: Tree | None, build: Callable[[Any], Value]) -> dict[MessageQueue, Value]:
    """A map whose keys are queues: fastjson.loads gives such keys as JSON text. Sorted."""
    found = {queue(fastjson.loads(key)): build(value) for key, value in (tree or {}).items()}
    return dict(sorted(found.items()))


# Cluster


def cluster_members(tree: Tree) -> dict[str, BrokerMembers]:
    """ClusterInfo: broker name -> members, sorted by cluster and name."""
    members = [
        BrokerMembers(
            str(name),
            str(entry.get("cluster") or ""),
            {int(number): str(at) for number, at in sorted(_numbered(entry["brokerAddrs"]))},
        )
        for name, entry in (tree.get("brokerAddrTable") or {}).items()
    ]
    return {each.name: each for each in sorted(members, key=lambda one: (one.cluster, one.name))}


def _numbered(tree: Tree) -> list[tuple[int, Any]]:
    return [(int(number), value) for number, value in tree.items()]


def texts(tree: Tree, name: str) -> list[str]:
    """A list of texts, e.g. topicList."""
    return [str(each) for each in tree.get(name) or ()]


def text_map(tree: Tree) -> dict[str, str]:
    """KVTable."""
    return {str(key): str(value) for key, value in (tree.get("table") or {}).items()}


def replica_state(tree: Tree) -> ReplicaState:
    """HARuntimeInfo."""
    upwards = tree.get("haClientRuntimeInfo") or {}
    return ReplicaState(
        is_master=bool(tree.get("master")),
        max_offset=int(tree.get("masterCommitLogMaxOffset") or 0),
        in_sync_count=int(tree.get("inSyncSlaveNums") or 0),
        slaves=tuple(
            SlaveState(
                str(each["addr"]),
                int(each["slaveAckOffset"]),
                int(each["diff"]),
                bool(each["inSync"]),
                int(each["transferredByteInSecond"]),
                int(each["transferFromWhere"]),
            )
            for each in tree.get("haConnectionInfo") or ()
        ),
        master_address=str(upwards.get("masterAddr") or ""),
        received_offset=int(upwards.get("maxOffset") or 0),
        bytes_per_second=int(upwards.get("transferredByteInSecond") or 0),
        last_read_ms=int(upwards.get("lastReadTimestamp") or 0),
        last_write_ms=int(upwards.get("lastWriteTimestamp") or 0),
        master_flushed_offset=int(upwards.get("masterFlushOffset") or 0),
    )


def replica_sets(tree: Tree) -> dict[str, ReplicaSet]:
    """Answer of CONTROLLER_GET_SYNC_STATE_DATA: broker name -> its group, sorted."""

    def replicas(entry: Tree, name: str) -> tuple[Replica, ...]:
        found = (
            Replica(
                int(each["brokerId"]), str(each.get("brokerAddress") or ""), bool(each["alive"])
            )
            for each in entry.get(name) or ()
        )
        return tuple(sorted(found, key=lambda each: each.broker_id))

    table = tree.get("replicasInfoTable") or {}
    return {
        str(name): ReplicaSet(
            broker_name=str(name),
            master_id=_broker_id(entry.get("masterBrokerId")),
            master_address=str(entry.get("masterAddress") or ""),
            epoch=int(entry.get("masterEpoch") or 0),
            set_epoch=int(entry.get("syncStateSetEpoch") or 0),
            in_sync=replicas(entry, "inSyncReplicas"),
            out_of_sync=replicas(entry, "notInSyncReplicas"),
        )
        for name, entry in sorted(table.items())
    }


def _broker_id(value: Any) -> int | None:
    number = int(value or 0)
    return number if number > 0 else None


def epoch_history(tree: Tree) -> EpochHistory:
    """EpochEntryCache: the answer of GET_BROKER_EPOCH_CACHE."""
    return EpochHistory(
        cluster=str(tree["clusterName"]),
        broker_name=str(tree["brokerName"]),
        broker_id=int(tree["brokerId"]),
        max_offset=int(tree["maxOffset"]),
        epochs=tuple(
            EpochRange(
                int(each["epoch"]),
                int(each["startOffset"]),
                None if int(each["endOffset"]) == NO_END else int(each["endOffset"]),
            )
            for each in tree["epochList"]
        ),
    )


def election(tree: Tree, header: Mapping[str, str], broker_name: str) -> Election:
    """Answer of CONTROLLER_ELECT_MASTER: the group in the body, its master in the header."""
    members = (tree.get("brokerMemberGroup") or {}).get("brokerAddrs") or {}
    return Election(
        broker_name=broker_name,
        master_id=_broker_id(header.get("masterBrokerId")),
        master_address=header.get("masterAddress") or "",
        epoch=int(header["masterEpoch"]),
        set_epoch=int(header["syncStateSetEpoch"]),
        addresses={number: str(at) for number, at in sorted(_numbered(members))},
        in_sync=tuple(sorted(map(int, tree.get("syncStateSet") or ()))),
    )


def controller_state(header: Mapping[str, str]) -> ControllerState:
    """Header of the answer to CONTROLLER_GET_METADATA_INFO; its peers are n0:HOST:PORT;..."""
    peers = (each.partition(":") for each in (header.get("peers") or "").split(";") if each)
    return ControllerState(
        group=header.get("group") or "",
        leader_id=header.get("controllerLeaderId") or "",
        leader_address=header.get("controllerLeaderAddress") or "",
        is_leader=(header.get("isLeader") or "").lower() == "true",
        peers={name: address for name, _, address in peers},
    )


def stats_windows(tree: Tree) -> StatsWindows:
    """BrokerStatsData."""

    def window(name: str) -> StatsWindow:
        entry = tree.get(name) or {}
        return StatsWindow(
            int(entry.get("sum") or 0),
            float(entry.get("tps") or 0),
            float(entry.get("avgpt") or 0),
        )

    return StatsWindows(window("statsMinute"), window("statsHour"), window("statsDay"))


# Topics


def topic_settings(tree: Tree) -> TopicSettings:
    """TopicConfig."""
    return TopicSettings(
        topic=str(tree["topicName"]),
        read_queue_count=int(tree["readQueueNums"]),
        write_queue_count=int(tree["writeQueueNums"]),
        perm=int(tree["perm"]),
        order=bool(tree.get("order")),
        sys_flag=int(tree.get("topicSysFlag") or 0),
        filter_type=str(tree.get("topicFilterType") or "SINGLE_TAG"),
        attributes={str(key): str(v) for key, v in (tree.get("attributes") or {}).items()},
    )


def topic_table(tree: Tree) -> dict[str, TopicSettings]:
    """TopicConfigSerializeWrapper: name -> settings, sorted."""
    table = tree.get("topicConfigTable") or {}
    return {str(name): topic_settings(table[name]) for name in sorted(table)}


def topic_tree(settings: TopicSettings) -> Tree:
    """TopicConfig as JSON; attributes as they are kept, without signs."""
    return {
        "topicName": settings.topic,
        "readQueueNums": settings.read_queue_count,
        "writeQueueNums": settings.write_queue_count,
        "perm": settings.perm,
        "topicFilterType": settings.filter_type,
        "topicSysFlag": settings.sys_flag,
        "order": settings.order,
        "attributes": {k: v for k, v in settings.attributes.items() if v is not None},
    }


def topic_fields(settings: TopicSettings, template: str) -> dict[str, str]:
    """Header of UPDATE_AND_CREATE_TOPIC."""
    fields = {
        "topic": settings.topic,
        "defaultTopic": template,
        "readQueueNums": str(settings.read_queue_count),
        "writeQueueNums": str(settings.write_queue_count),
        "perm": str(settings.perm),
        "topicFilterType": settings.filter_type,
        "topicSysFlag": str(settings.sys_flag),
        "order": _flag(settings.order),
    }
    if settings.attributes:
        fields["attributes"] = ",".join(
            f"-{key}" if value is None else f"+{key}={value}"
            for key, value in settings.attributes.items()
        )
    return fields


def topic_stats(tree: Tree) -> TopicStats:
    """TopicStatsTable."""
    queues = by_queue(
        tree.get("offsetTable"),
        lambda entry: QueueRange(
            int(entry["minOffset"]), int(entry["maxOffset"]), int(entry["lastUpdateTimestamp"])
        ),
    )
    return TopicStats(queues, float(tree.get("topicPutTps") or 0))


def queue_entries(tree: Tree, first: int) -> QueueEntries:
    """Answer of QUERY_CONSUME_QUEUE that began at `first`."""
    entries = (
        QueueEntry(
            first + place,
            int(each["physicOffset"]),
            int(each["physicSize"]),
            int(each["tagsCode"]),
        )
        for place, each in enumerate(tree.get("queueData") or ())
    )
    return QueueEntries(int(tree["minQueueIndex"]), int(tree["maxQueueIndex"]), tuple(entries))


# Groups


def group_settings(tree: Tree) -> GroupSettings:
    """SubscriptionGroupConfig; members that an older broker leaves out take the defaults."""
    known = GroupSettings(str(tree["groupName"]))
    return GroupSettings(
        group=known.group,
        consume_enable=bool(tree.get("consumeEnable", True)),
        consume_from_min_enable=bool(tree.get("consumeFromMinEnable", True)),
        broadcast_enable=bool(tree.get("consumeBroadcastEnable", True)),
        orderly=bool(tree.get("consumeMessageOrderly", False)),
        retry_queue_count=int(tree.get("retryQueueNums", known.retry_queue_count)),
        retry_max_times=int(tree.get("retryMaxTimes", known.retry_max_times)),
        retry_policy=dict(tree.get("groupRetryPolicy") or known.retry_policy),
        broker_id=int(tree.get("brokerId", 0)),
        slow_reader_broker_id=int(tree.get("whichBrokerWhenConsumeSlowly", 1)),
        notify_members_enable=bool(tree.get("notifyConsumerIdsChangedEnable", True)),
        sys_flag=int(tree.get("groupSysFlag") or 0),
        consume_timeout_minute=int(tree.get("consumeTimeoutMinute", 15)),
        attributes={str(key): str(v) for key, v in (tree.get("attributes") or {}).items()},
    )


def group_table(tree: Tree) -> dict[str, GroupSettings]:
    """SubscriptionGroupWrapper: name -> settings, sorted."""
    table = tree.get("subscriptionGroupTable") or {}
    return {str(name): group_settings(table[name]) for name in sorted(table)}


def group_tree(settings: GroupSettings) -> Tree:
    """SubscriptionGroupConfig as JSON."""
    return {
        "groupName": settings.group,
        "consumeEnable": settings.consume_enable,
        "consumeFromMinEnable": settings.consume_from_min_enable,
        "consumeBroadcastEnable": settings.broadcast_enable,
        "consumeMessageOrderly": settings.orderly,
        "retryQueueNums": settings.retry_queue_count,
        "retryMaxTimes": settings.retry_max_times,
        "groupRetryPolicy": dict(settings.retry_policy),
        "brokerId": settings.broker_id,
        "whichBrokerWhenConsumeSlowly": settings.slow_reader_broker_id,
        "notifyConsumerIdsChangedEnable": settings.notify_members_enable,
        "groupSysFlag": settings.sys_flag,
        "consumeTimeoutMinute": settings.consume_timeout_minute,
        "attributes": dict(settings.attributes),
    }


def connection(tree: Tree) -> ClientConnection:
    """One member of a connection list, or of GET_ALL_PRODUCER_INFO."""
    return ClientConnection(
        client_id=str(tree["clientId"]),
        address=str(tree.get("clientAddr") or tree.get("remoteIP") or "").lstrip("/"),
        language=str(tree.get("language") or "OTHER"),
        version=int(tree.get("version") or 0),
        seen_ms=int(tree.get("lastUpdateTimestamp") or 0),
    )


def connections(tree: Tree) -> tuple[ClientConnection, ...]:
    """connectionSet, sorted by client id."""
    found = map(connection, tree.get("connectionSet") or ())
    return tuple(sorted(found, key=lambda each: each.client_id))


def producer_groups(tree: Tree) -> dict[str, tuple[ClientConnection, ...]]:
    """Answer of GET_ALL_PRODUCER_INFO: group -> producers, sorted."""
    data = tree.get("data") or {}
    return {str(group): tuple(map(connection, data[group])) for group in sorted(data)}


def subscription(tree: Tree) -> GroupSubscription:
    """SubscriptionData."""
    return GroupSubscription(
        str(tree["topic"]),
        str(tree.get("subString") or "*"),
        str(tree.get("expressionType") or "TAG"),
        tuple(sorted(map(str, tree.get("tagsSet") or ()))),
        int(tree.get("subVersion") or 0),
    )


def group_members(tree: Tree) -> GroupMembers:
    """ConsumerConnection."""
    table = tree.get("subscriptionTable") or {}
    return GroupMembers(
        connections(tree),
        {str(topic): subscription(table[topic]) for topic in sorted(table)},
        str(tree.get("consumeType") or ""),
        str(tree.get("messageModel") or ""),
        str(tree.get("consumeFromWhere") or ""),
    )


def group_progress(tree: Tree) -> GroupProgress:
    """ConsumeStats."""
    queues = by_queue(
        tree.get("offsetTable"),
        lambda entry: QueueProgress(
            int(entry["brokerOffset"]),
            int(entry["consumerOffset"]),
            int(entry.get("pullOffset", entry["consumerOffset"])),  # 4.x has none
            int(entry["lastTimestamp"]),
        ),
    )
    return GroupProgress(queues, float(tree.get("consumeTps") or 0))


def merged_progress(parts: Iterable[GroupProgress]) -> GroupProgress:
    """One group's progress on several brokers, as one."""
    queues: dict[MessageQueue, QueueProgress] = {}
    per_second = 0.0
    for part in parts:
        queues.update(part.queues)
        per_second += part.consume_per_second
    return GroupProgress(dict(sorted(queues.items())), per_second)


def broker_progress(tree: Tree) -> dict[str, GroupProgress]:
    """ConsumeStatsList: group -> progress over all its topics on one broker, sorted."""
    found = {
        str(group): merged_progress(map(group_progress, stats))
        for entry in tree.get("consumeStatsList") or ()
        for group, stats in entry.items()
    }
    return dict(sorted(found.items()))


def member_state(tree: Tree) -> MemberState:
    """ConsumerRunningInfo."""

    def held(entry: Tree) -> HeldQueue:
        return HeldQueue(
            commit_offset=int(entry.get("commitOffset") or 0),
            cached_count=int(entry.get("cachedMsgCount") or 0),
            cached_min_offset=int(entry.get("cachedMsgMinOffset") or 0),
            cached_max_offset=int(entry.get("cachedMsgMaxOffset") or 0),
            locked=bool(entry.get("locked")),
            dropped=bool(entry.get("droped")),  # RocketMQ's spelling
            last_pull_ms=int(entry.get("lastPullTimestamp") or 0),
            last_consume_ms=int(entry.get("lastConsumeTimestamp") or 0),
        )

    def rates(entry: Tree) -> ConsumeRates:
        return ConsumeRates(
            pull_ms=float(entry.get("pullRT") or 0),
            pull_per_second=float(entry.get("pullTPS") or 0),
            consume_ms=float(entry.get("consumeRT") or 0),
            consumed_per_second=float(entry.get("consumeOKTPS") or 0),
            failed_per_second=float(entry.get("consumeFailedTPS") or 0),
            failed_count=int(entry.get("consumeFailedMsgs") or 0),
        )

    topics = tree.get("statusTable") or {}
    return MemberState(
        {str(key): str(value) for key, value in (tree.get("properties") or {}).items()},
        by_queue(tree.get("mqTable"), held),
        {str(topic): rates(topics[topic]) for topic in sorted(topics)},
        tuple(sorted(map(subscription, tree.get("subscriptionSet") or ()), key=lambda s: s.topic)),
        str(tree.get("jstack") or ""),
    )


def member_positions(tree: Tree) -> dict[str, dict[MessageQueue, int]]:
    """ConsumerStatus: client id -> queue -> offset."""
    table = tree.get("consumerTable") or {}
    return {str(client): by_queue(table[client], int) for client in sorted(table)}


def consume_spans(tree: Tree) -> tuple[ConsumeSpan, ...]:
    """Answer of QUERY_CONSUME_TIME_SPAN, sorted by queue."""
    spans = (
        ConsumeSpan(
            queue(each["messageQueue"]),
            int(each["minTimeStamp"]),
            int(each["maxTimeStamp"]),
            int(each["consumeTimeStamp"]),
            int(each["delayTime"]),
        )
        for each in tree.get("consumeTimeSpanSet") or ()
    )
    return tuple(sorted(spans, key=lambda span: span.queue))


def reset_offsets(tree: Tree) -> dict[MessageQueue, int]:
    """ResetOffsetBody."""
    return by_queue(tree.get("offsetTable"), int)


def direct_result(tree: Tree) -> DirectResult:
    """ConsumeMessageDirectlyResult."""
    return DirectResult(
        str(tree.get("consumeResult") or ""),
        str(tree.get("remark") or ""),
        int(tree.get("spentTimeMills") or 0),
        bool(tree.get("order")),
    )


# Properties text


def properties(body: bytes | memoryview | None) -> dict[str, str]:
    """Settings from a server's properties text, sorted.

    Java prints values without escapes: where they cannot be read as escapes they stand as they are.
    """
    text = bytes(body or b"").decode("utf-8", "replace")
    try:
        found = parse_properties(text)
    except ConfigError:
        pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
        found = {key: value for key, _, value in pairs}
    return dict(sorted(found.items()))


def _flag(value: bool) -> str:
    return "true" if value else "false"
