"""Bodies of administrative answers, by RocketMQ's names of them, and the values they tell. No I/O.

Source of the layouts: RocketMQ's classes in org.apache.rocketmq.remoting.protocol.body. What has the shape of its
value already is read into it (values.py says the names); of the rest, value() is the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Struct, field

from tandemmq.cluster.client.admin.values import (
    BrokerMembers,
    ClientConnection,
    ConsumeRates,
    ConsumeSpan,
    ControllerState,
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
    Replica,
    ReplicaSet,
    ReplicaState,
    SlaveState,
    TopicSettings,
)
from tandemmq.cluster.client.errors import BrokerAnswerBroken
from tandemmq.cluster.client.message import MessageQueue
from tandemmq.cluster.client.reaching import calls
from tandemmq.cluster.config import ConfigError, parse_properties
from tandemmq.cluster.remoting import Command, bodies

NO_END: Final = (1 << 63) - 1  # end of the epoch that lasts
Value = TypeVar("Value")


def read(body: bytes | memoryview | None, kind: type[Value], what: str, address: str) -> Value:
    """A body as one of the kinds below, or as a value.

    Raises BrokerAnswerBroken, naming what and address, when it is not of that shape.
    """
    try:
        return bodies.read(kind, body or b"{}")
    except bodies.BodyUnreadable as problem:
        raise BrokerAnswerBroken(f"{what} of {address} does not parse: {problem}") from problem


class _Body(Struct, rename="camel"):
    """An answer. Java's tables have no order: here they come sorted by their keys."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            found = getattr(self, name)
            if isinstance(found, dict):
                setattr(self, name, dict(sorted(found.items())))


def _as(kind: type[Value], body: Any) -> Value:
    """The value whose members the body has, by the value's names."""
    return msgspec.convert(body, kind, from_attributes=True)


# Cluster


class _Members(_Body):
    broker_addrs: dict[int, str]
    cluster: str = ""


class ClusterInfo(_Body):
    broker_addr_table: dict[str, _Members] = {}

    def value(self) -> dict[str, BrokerMembers]:
        """By broker name, sorted by cluster and name."""
        table = sorted(self.broker_addr_table.items(), key=lambda entry: entry[1].cluster)
        return {name: BrokerMembers(name, at.cluster, at.broker_addrs) for name, at in table}


class TopicList(_Body):
    topic_list: list[str] = []


class GroupList(_Body):
    group_list: list[str] = []


class KVTable(_Body):
    table: dict[str, str] = {}


class _TimerCount(_Body):
    count: int = 0


class TimerMetrics(_Body):
    timing_count: dict[str, _TimerCount] = {}
    pending_by_hour: dict[str, dict[str, int]] = {}  # ours


class _Upwards(_Body):
    master_addr: str = ""
    max_offset: int = 0
    transferred_byte_in_second: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


class HARuntimeInfo(_Body):
    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: tuple[SlaveState, ...] = ()
    ha_client_runtime_info: _Upwards = field(default_factory=_Upwards)

    def value(self) -> ReplicaState:
        upwards = self.ha_client_runtime_info
        return ReplicaState(
            is_master=self.master,
            max_offset=self.master_commit_log_max_offset,
            in_sync_count=self.in_sync_slave_nums,
            slaves=self.ha_connection_info,
            master_address=upwards.master_addr,
            received_offset=upwards.max_offset,
            bytes_per_second=upwards.transferred_byte_in_second,
            last_read_ms=upwards.last_read_timestamp,
            last_write_ms=upwards.last_write_timestamp,
            master_flushed_offset=upwards.master_flush_offset,
        )


class _Replica(_Body):
    broker_id: int
    alive: bool
    address: str = field(default="", name="brokerAddress")


class _Replicas(_Body):
    master_broker_id: int = 0
    master_address: str = ""
    epoch: int = field(default=0, name="masterEpoch")
    set_epoch: int = field(default=0, name="syncStateSetEpoch")
    in_sync_replicas: list[_Replica] = []
    not_in_sync_replicas: list[_Replica] = []

    def value(self, broker_name: str) -> ReplicaSet:
        def by_id(found: list[_Replica]) -> tuple[Replica, ...]:
            return tuple(
                _as(Replica, each) for each in sorted(found, key=lambda one: one.broker_id)
            )

        return ReplicaSet(
            broker_name,
            _broker_id(self.master_broker_id),
            self.master_address,
            self.epoch,
            self.set_epoch,
            by_id(self.in_sync_replicas),
            by_id(self.not_in_sync_replicas),
        )


class BrokerReplicasInfo(_Body):
    replicas_info_table: dict[str, _Replicas] = {}

    def value(self) -> dict[str, ReplicaSet]:
        return {name: each.value(name) for name, each in self.replicas_info_table.items()}


def _broker_id(number: int) -> int | None:
    return number if number > 0 else None


class EpochEntryCache(EpochHistory, frozen=True):
    def value(self) -> EpochHistory:
        epochs = tuple(
            EpochRange(each.epoch, each.start_offset, None) if each.end_offset == NO_END else each
            for each in self.epochs
        )
        return EpochHistory(self.cluster, self.broker_name, self.broker_id, self.max_offset, epochs)


class _MemberGroup(_Body):
    broker_addrs: dict[int, str] = {}


class ElectMasterResponse(_Body):
    broker_member_group: _MemberGroup = field(default_factory=_MemberGroup)
    sync_state_set: list[int] = []

    def value(self, answer: Command, broker_name: str, address: str) -> Election:
        """The group is in the body, its master in the header. Raises BrokerAnswerBroken."""
        header = answer.ext or {}
        return Election(
            broker_name=broker_name,
            master_id=_broker_id(int(header.get("masterBrokerId") or 0)),
            master_address=header.get("masterAddress") or "",
            epoch=calls.number(answer, "masterEpoch", address),
            set_epoch=calls.number(answer, "syncStateSetEpoch", address),
            addresses=self.broker_member_group.broker_addrs,
            in_sync=tuple(sorted(self.sync_state_set)),
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


# Topics


class TopicConfig(TopicSettings, frozen=True, kw_only=True):
    """The defaults are for who makes a topic: a broker says what it has."""

    read_queue_count: int = field(name="readQueueNums")
    write_queue_count: int = field(name="writeQueueNums")
    perm: int

    def value(self) -> TopicSettings:
        return _as(TopicSettings, self)


class TopicTable(_Body):
    topic_config_table: dict[str, TopicConfig] = {}


def tree(settings: TopicSettings | GroupSettings) -> dict[str, Any]:
    """TopicConfig or SubscriptionGroupConfig as JSON, without attributes that a change removes."""
    attributes = {key: each for key, each in settings.attributes.items() if each is not None}
    found = msgspec.structs.replace(settings, attributes=attributes)
    return cast(dict[str, Any], msgspec.to_builtins(found, enc_hook=dict))


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


class _Entry(_Body):
    physic_offset: int
    physic_size: int
    tags_code: int


class QueryConsumeQueue(_Body):
    min_queue_index: int
    max_queue_index: int
    queue_data: list[_Entry] = []

    def value(self, first: int) -> QueueEntries:
        """Entries from `first` on."""
        entries = (
            QueueEntry(offset, each.physic_offset, each.physic_size, each.tags_code)
            for offset, each in enumerate(self.queue_data, first)
        )
        return QueueEntries(self.min_queue_index, self.max_queue_index, tuple(entries))


# Groups


class GroupTable(_Body):
    subscription_group_table: dict[str, GroupSettings] = {}


class _Connection(_Body):
    client_id: str
    client_addr: str = ""
    remote_ip: str = field(default="", name="remoteIP")
    language: str = "OTHER"
    version: int = 0
    seen_ms: int = field(default=0, name="lastUpdateTimestamp")

    @property
    def address(self) -> str:
        return (self.client_addr or self.remote_ip).lstrip("/")


class ProducerTable(_Body):
    data: dict[str, list[_Connection]] = {}

    def value(self) -> dict[str, tuple[ClientConnection, ...]]:
        return {
            group: tuple(_as(ClientConnection, each) for each in found)
            for group, found in self.data.items()
        }


class _Subscription(_Body):
    topic: str
    sub_string: str = ""
    kind: str = field(default="", name="expressionType")
    tags_set: list[str] = []
    version: int = field(default=0, name="subVersion")

    @property
    def expression(self) -> str:
        return self.sub_string or "*"

    @property
    def expression_type(self) -> str:
        return self.kind or "TAG"

    @property
    def tags(self) -> list[str]:
        return sorted(self.tags_set)


class SubscriptionAnswer(_Body):
    subscription_data: _Subscription | None = None

    def value(self) -> GroupSubscription | None:
        found = self.subscription_data
        return None if found is None else _as(GroupSubscription, found)


class ConnectionList(_Body):
    connection_set: list[_Connection] = []

    def value(self) -> tuple[ClientConnection, ...]:
        """Sorted by client id."""
        found = sorted(self.connection_set, key=lambda each: each.client_id)
        return tuple(_as(ClientConnection, each) for each in found)


class ConsumerConnection(_Body):
    connection_set: list[_Connection] = []
    subscriptions: dict[str, _Subscription] = field(default_factory=dict, name="subscriptionTable")
    consume_type: str = ""
    message_model: str = ""
    start_from: str = field(default="", name="consumeFromWhere")

    @property
    def connections(self) -> list[_Connection]:
        return sorted(self.connection_set, key=lambda each: each.client_id)

    def value(self) -> GroupMembers:
        return _as(GroupMembers, self)


class _Offsets(_Body):
    broker_offset: int
    consumer_offset: int
    last_ms: int = field(name="lastTimestamp")
    pulled: int | None = field(default=None, name="pullOffset")  # 4.x has none

    @property
    def pull_offset(self) -> int:
        return self.consumer_offset if self.pulled is None else self.pulled


class ConsumeStats(_Body):
    queues: dict[MessageQueue, _Offsets] = field(default_factory=dict, name="offsetTable")
    consume_per_second: float = field(default=0.0, name="consumeTps")

    def value(self) -> GroupProgress:
        return _as(GroupProgress, self)


def merged_progress(parts: Iterable[GroupProgress]) -> GroupProgress:
    """One group's progress on several brokers, as one."""
    queues: dict[MessageQueue, QueueProgress] = {}
    per_second = 0.0
    for part in parts:
        queues.update(part.queues)
        per_second += part.consume_per_second
    return GroupProgress(dict(sorted(queues.items())), per_second)


class ConsumeStatsList(_Body):
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []

    def value(self) -> dict[str, GroupProgress]:
        """Group -> progress over all its topics on one broker, sorted."""
        found = {
            group: merged_progress(each.value() for each in stats)
            for entry in self.consume_stats_list
            for group, stats in entry.items()
        }
        return dict(sorted(found.items()))


class ConsumerRunningInfo(_Body):
    properties: dict[str, str] = {}
    queues: dict[MessageQueue, HeldQueue] = field(default_factory=dict, name="mqTable")
    topics: dict[str, ConsumeRates] = field(default_factory=dict, name="statusTable")
    subscription_set: list[_Subscription] = []
    stacks: str = field(default="", name="jstack")

    @property
    def subscriptions(self) -> list[_Subscription]:
        return sorted(self.subscription_set, key=lambda each: each.topic)

    def value(self) -> MemberState:
        return _as(MemberState, self)


class ConsumerStatus(_Body):
    consumer_table: dict[str, dict[MessageQueue, int]] = {}


class ConsumeTimeSpans(_Body):
    consume_time_span_set: list[ConsumeSpan] = []

    def value(self) -> list[ConsumeSpan]:
        return sorted(self.consume_time_span_set, key=lambda span: span.queue)


class ResetOffsetBody(_Body):
    offset_table: dict[MessageQueue, int] = {}


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
