"""What Admin takes and returns: settings, statistics and states as plain values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct, field

from tandemmq.cluster.client.message import MessageQueue

MASTER_ID = 0
_NEWEST_VERSION = 612  # RocketMQ's "higher version"
_FIRST_VERSION = 213  # V4_0_0


def version_text(number: int) -> str:
    """RocketMQ's name of a version number: 479 is "V5_3_3". Source: its MQVersion."""
    if not _FIRST_VERSION - 1 <= number < _NEWEST_VERSION:
        return "HIGHER_VERSION" if number >= _NEWEST_VERSION else f"V3({number})"
    release, snapshot = number + (number + 1) % 2, (number + 1) % 2
    major, rest = divmod(release - _FIRST_VERSION, 200)
    minor, patch = divmod(rest, 20)
    return f"V{major + 4}_{minor}_{patch // 2}" + ("_SNAPSHOT" if snapshot else "")


class _Value(Struct, frozen=True, rename="camel"):
    """Members have RocketMQ's names in JSON, so that an answer is read straight into its value."""


class _Sparse(_Value, frozen=True):
    """Members that were not sent are 0, false, "" or empty, as Java leaves them."""

    __unsent_is_zero__: ClassVar = True


class BrokerMembers(_Value, frozen=True):
    """One broker name: its cluster, and where its members listen.

    addresses  broker id (0 is the master) -> "host:port"
    """

    name: str
    cluster: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str | None:
        """Address of the master, None while there is none."""
        return self.addresses.get(MASTER_ID)


class TopicSettings(_Value, frozen=True):
    """A topic as a broker keeps it.

    read_queue_count, write_queue_count  per broker
    perm        bits: 4 read, 2 write
    order       RocketMQ's flag for ordered topics
    sys_flag    bit 0 unit topic, bit 1 unit subscription
    attributes  e.g. {"message.type": "FIFO"}; in a change, a value of None removes the attribute

    Example: TopicSettings("Orders", read_queue_count=16, write_queue_count=16)
    """

    topic: str = field(name="topicName")
    read_queue_count: int = field(default=8, name="readQueueNums")
    write_queue_count: int = field(default=8, name="writeQueueNums")
    perm: int = 6
    order: bool = False
    sys_flag: int = field(default=0, name="topicSysFlag")
    filter_type: str = field(default="SINGLE_TAG", name="topicFilterType")
    attributes: Mapping[str, str | None] = field(default_factory=dict)


class QueueRange(_Value, frozen=True):
    """What one queue holds: queue offsets [min_offset, max_offset), the last stored at updated_ms.

    updated_ms is wall time in ms since 1970, 0 for an empty queue.
    """

    min_offset: int
    max_offset: int
    updated_ms: int = field(name="lastUpdateTimestamp")


class TopicStats(_Sparse, frozen=True):
    """Every queue of a topic, and how many messages a second arrive."""

    queues: Mapping[MessageQueue, QueueRange] = field(name="offsetTable")
    put_per_second: float = field(name="topicPutTps")

    @property
    def message_count(self) -> int:
        """Messages that are still there."""
        return sum(each.max_offset - each.min_offset for each in self.queues.values())


class GroupSettings(_Value, frozen=True):
    """A consumer group as a broker keeps it; the defaults are RocketMQ's.

    retry_max_times         deliveries after the first before a message becomes a dead letter
    retry_policy            RocketMQ's JSON, e.g. {"type": "CUSTOMIZED"}
    slow_reader_broker_id   the member to read from when a consumer lags far behind
    consume_timeout_minute  for one message

    Example: GroupSettings("billing", retry_max_times=3)
    """

    group: str = field(name="groupName")
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    broadcast_enable: bool = field(default=True, name="consumeBroadcastEnable")
    orderly: bool = field(default=False, name="consumeMessageOrderly")
    retry_queue_count: int = field(default=1, name="retryQueueNums")
    retry_max_times: int = 16
    retry_policy: Mapping[str, object] = field(
        default_factory=lambda: {"type": "CUSTOMIZED"}, name="groupRetryPolicy"
    )
    broker_id: int = 0
    slow_reader_broker_id: int = field(default=1, name="whichBrokerWhenConsumeSlowly")
    notify_members_enable: bool = field(default=True, name="notifyConsumerIdsChangedEnable")
    sys_flag: int = field(default=0, name="groupSysFlag")
    consume_timeout_minute: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)


class QueueProgress(_Value, frozen=True):
    """How far a group is in one queue.

    broker_offset    queue offset that the next message will get
    consumer_offset  all before it is consumed
    pull_offset      all before it was handed to a consumer
    last_ms          when the last consumed message was stored (wall, ms), 0 when unknown
    """

    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_ms: int

    @property
    def behind(self) -> int:
        """Messages not consumed yet."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """Messages that were handed out but not committed."""
        return max(0, self.pull_offset - self.consumer_offset)


class GroupProgress(_Value, frozen=True):
    """How far a group is in all its queues, and how many messages a second it takes."""

    queues: Mapping[MessageQueue, QueueProgress]
    consume_per_second: float

    @property
    def behind(self) -> int:
        """Messages not consumed yet, in all queues."""
        return sum(each.behind for each in self.queues.values())

    @property
    def in_flight(self) -> int:
        """Messages handed out but not committed, in all queues."""
        return sum(each.in_flight for each in self.queues.values())


class ClientConnection(_Value, frozen=True):
    """One client as a broker sees it. seen_ms: its last heartbeat (wall), 0 when not told."""

    client_id: str
    address: str
    language: str
    version: int
    seen_ms: int = 0

    @property
    def version_name(self) -> str:
        """e.g. "V5_3_3"."""
        return version_text(self.version)


class GroupSubscription(_Value, frozen=True):
    """What a group wants of one topic. expression_type: TAG or SQL92. version: ms, when it changed."""

    topic: str
    expression: str
    expression_type: str
    tags: tuple[str, ...]
    version: int


class GroupMembers(_Value, frozen=True):
    """The members of a consumer group that are online, and what they subscribe to.

    consume_type   CONSUME_PASSIVELY (push), CONSUME_ACTIVELY (pull), CONSUME_POP
    message_model  CLUSTERING or BROADCASTING
    start_from     CONSUME_FROM_FIRST_OFFSET, CONSUME_FROM_LAST_OFFSET, CONSUME_FROM_TIMESTAMP
    """

    connections: tuple[ClientConnection, ...]
    subscriptions: Mapping[str, GroupSubscription]
    consume_type: str
    message_model: str
    start_from: str


class HeldQueue(_Sparse, frozen=True):
    """One queue as a member holds it; times are wall, ms since 1970, 0 for never."""

    commit_offset: int
    cached_count: int = field(name="cachedMsgCount")
    cached_min_offset: int = field(name="cachedMsgMinOffset")
    cached_max_offset: int = field(name="cachedMsgMaxOffset")
    locked: bool
    dropped: bool = field(name="droped")
    last_pull_ms: int = field(name="lastPullTimestamp")
    last_consume_ms: int = field(name="lastConsumeTimestamp")


class ConsumeRates(_Sparse, frozen=True):
    """What a member says of one topic: per second, and average times in ms."""

    pull_ms: float = field(name="pullRT")
    pull_per_second: float = field(name="pullTPS")
    consume_ms: float = field(name="consumeRT")
    consumed_per_second: float = field(name="consumeOKTPS")
    failed_per_second: float = field(name="consumeFailedTPS")
    failed_count: int = field(name="consumeFailedMsgs")


class MemberState(_Value, frozen=True):
    """What one consumer tells about itself. stacks: "" unless asked for."""

    properties: Mapping[str, str]
    queues: Mapping[MessageQueue, HeldQueue]
    topics: Mapping[str, ConsumeRates]
    subscriptions: tuple[GroupSubscription, ...]
    stacks: str


class StatsWindow(_Sparse, frozen=True):
    """One statistic over one window. average: of the values, e.g. bytes per message."""

    sum: int
    per_second: float = field(name="tps")
    average: float = field(name="avgpt")


class StatsWindows(_Sparse, frozen=True):
    """A broker statistic over the last minute, hour and day."""

    minute: StatsWindow = field(name="statsMinute")
    hour: StatsWindow = field(name="statsHour")
    day: StatsWindow = field(name="statsDay")

    @property
    def longest_sum(self) -> int:
        """The day's sum, or the longest window's that has counted anything yet."""
        return self.day.sum or self.hour.sum or self.minute.sum


class SlaveState(_Value, frozen=True):
    """One slave as its master sees it; offsets in bytes of the CommitLog."""

    address: str = field(name="addr")
    acked_offset: int = field(name="slaveAckOffset")
    behind_bytes: int = field(name="diff")
    in_sync: bool
    bytes_per_second: int = field(name="transferredByteInSecond")
    sent_from: int = field(name="transferFromWhere")


class ReplicaState(_Value, frozen=True):
    """How replication stands on one broker.

    On a slave, master_address and the last_* fields tell about its connection upwards.
    """

    is_master: bool
    max_offset: int
    in_sync_count: int
    slaves: tuple[SlaveState, ...]
    master_address: str
    received_offset: int
    bytes_per_second: int
    last_read_ms: int
    last_write_ms: int
    master_flushed_offset: int


class ControllerState(_Value, frozen=True):
    """Who leads the controllers, as one of them says. peers: controller id -> "host:port"."""

    group: str
    leader_id: str
    leader_address: str
    is_leader: bool
    peers: Mapping[str, str]


class Replica(_Value, frozen=True):
    """One member of a broker group, as its controller has it. alive: heard of in time."""

    broker_id: int
    address: str = field(name="brokerAddress")
    alive: bool


class ReplicaSet(_Value, frozen=True):
    """One broker group, as its controller has it.

    master_id  of the member that leads; None while nobody does
    epoch      numbers this master's time; the next election begins a higher one
    set_epoch  grows with every change of the set
    in_sync    the sync-state-set: whoever holds everything that was acknowledged
    """

    broker_name: str
    master_id: int | None
    master_address: str
    epoch: int
    set_epoch: int
    in_sync: tuple[Replica, ...]
    out_of_sync: tuple[Replica, ...]

    @property
    def replicas(self) -> dict[int, Replica]:
        """Every member by its id."""
        return {
            each.broker_id: each for each in sorted((*self.in_sync, *self.out_of_sync), key=_id)
        }


def _id(replica: Replica) -> int:
    return replica.broker_id


class EpochRange(_Value, frozen=True):
    """What one master wrote: bytes of the CommitLog from start_offset on. end_offset None: it goes on."""

    epoch: int
    start_offset: int
    end_offset: int | None


class EpochHistory(_Value, frozen=True):
    """Which master wrote which part of a broker's log; max_offset is where the log ends."""

    cluster: str = field(name="clusterName")
    broker_name: str
    broker_id: int
    max_offset: int
    epochs: tuple[EpochRange, ...] = field(name="epochList")


class Election(_Value, frozen=True):
    """Who leads a broker group now, and the group. master_id None: nobody. addresses: by broker id."""

    broker_name: str
    master_id: int | None
    master_address: str
    epoch: int
    set_epoch: int
    addresses: Mapping[int, str]
    in_sync: tuple[int, ...]


class Switchover(_Value, frozen=True):
    """A planned change of masters.

    elected_ms    from the order until the controller named the new master, which then acknowledges
    announced_ms  from the order until the name server sent clients there; None: it does not yet
    """

    before: ReplicaSet
    after: Election
    elected_ms: int
    announced_ms: int | None


class QueueEntry(_Value, frozen=True):
    """One entry of a consume queue: where its record lies in the CommitLog, and its tag's code."""

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int


class QueueEntries(_Value, frozen=True):
    """Some entries of a queue that holds [min_offset, max_offset)."""

    min_offset: int
    max_offset: int
    entries: tuple[QueueEntry, ...]


class ConsumeSpan(_Value, frozen=True):
    """Times of one queue, wall ms: oldest and newest message, the last consumed, and the lag."""

    queue: MessageQueue = field(name="messageQueue")
    oldest_ms: int = field(name="minTimeStamp")
    newest_ms: int = field(name="maxTimeStamp")
    consumed_ms: int = field(name="consumeTimeStamp")
    delay_ms: int = field(name="delayTime")


class TrackState(enum.Enum):
    """What became of a message in one group."""

    CONSUMED = "CONSUMED"
    FILTERED = "CONSUMED_BUT_FILTERED"  # the group's tags leave it out
    PULLS = "PULL"  # members pull by themselves: nobody can tell
    BROADCAST = "CONSUME_BROADCASTING"
    NOT_CONSUMED = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    UNKNOWN = "UNKNOWN"


class MessageTrack(_Value, frozen=True):
    """One group's view of a message. why: of UNKNOWN and NOT_ONLINE."""

    group: str
    state: TrackState
    why: str = ""


class DirectResult(_Sparse, frozen=True):
    """How a member answered a message handed to it out of turn. result: CR_SUCCESS, CR_LATER, ..."""

    result: str = field(name="consumeResult")
    remark: str
    spent_ms: int = field(name="spentTimeMills")
    ordered: bool = field(name="order")


class TimerCounts(_Value, frozen=True):
    """Messages that wait for their delivery time on one broker.

    by_topic  topic -> messages
    by_hour   start of the hour, ms since 1970 -> messages; empty of RocketMQ's brokers. What waits longer than
              timerRollWindowSlot counts in the hour in which it is put back
    """

    by_topic: dict[str, int]
    by_hour: dict[int, int]
