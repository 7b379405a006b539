"""The public asyncio client: producer, push consumer, pull consumer.

Applications import these names from tandemmq.
"""

from __future__ import annotations

from tandemmq.cluster.client.admin.admin import Admin
from tandemmq.cluster.client.admin.calls import UnknownCluster
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
    MessageTrack,
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
    Switchover,
    TimerCounts,
    TopicSettings,
    TopicStats,
    TrackState,
)
from tandemmq.cluster.client.compression import Compression
from tandemmq.cluster.client.config import ClientConfig
from tandemmq.cluster.client.consuming.assignments import RebalanceListener
from tandemmq.cluster.client.consuming.consumer import PushConsumer
from tandemmq.cluster.client.consuming.copies import CopyWindow
from tandemmq.cluster.client.consuming.deliveries import Delivery, Subscription
from tandemmq.cluster.client.consuming.listening import ConsumeResult, RetryLater
from tandemmq.cluster.client.consuming.membership import MessageModel, StartFrom
from tandemmq.cluster.client.consuming.pull_consumer import PullConsumer
from tandemmq.cluster.client.consuming.queue_cache import CacheLimits
from tandemmq.cluster.client.consuming.rebalance import (
    allocate_averagely,
    allocate_by_circle,
    allocate_by_hash,
    allocate_by_machine_room,
    allocate_fixed,
    allocate_nearby,
)
from tandemmq.cluster.client.consuming.subscriptions import Sql92
from tandemmq.cluster.client.consuming.values import with_value
from tandemmq.cluster.client.errors import (
    BrokerAnswerBroken,
    BrokerRefused,
    BrokerUnreachable,
    CallTimedOut,
    ClientError,
    MessageRefused,
    NoController,
    NoNameServer,
    NoReply,
    NoRoute,
    NoSuccessor,
    NotRunning,
    OffsetUnknown,
    QueueNotAssigned,
    SendFailed,
    WrongLoop,
)
from tandemmq.cluster.client.hooks import ConsumeContext, ConsumeHook, SendContext, SendHook
from tandemmq.cluster.client.message import (
    Message,
    MessageQueue,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from tandemmq.cluster.client.producing.pipeline import SendFuture
from tandemmq.cluster.client.producing.producer import Producer
from tandemmq.cluster.client.producing.replies import Reply
from tandemmq.cluster.client.producing.selection import at_random, by_key, by_machine_room
from tandemmq.cluster.client.producing.transactions import (
    Transaction,
    TransactionState,
)
from tandemmq.cluster.client.reaching.credentials import Credentials
from tandemmq.cluster.client.reaching.routes import QueueCounts, TopicRoute
from tandemmq.cluster.client.traces import TRACE_TOPIC

__all__ = [
    "TRACE_TOPIC",
    "Admin",
    "BrokerAnswerBroken",
    "BrokerMembers",
    "BrokerRefused",
    "BrokerUnreachable",
    "CacheLimits",
    "CallTimedOut",
    "ClientConfig",
    "ClientConnection",
    "ClientError",
    "Compression",
    "ConsumeContext",
    "ConsumeHook",
    "ConsumeRates",
    "ConsumeResult",
    "ConsumeSpan",
    "ControllerState",
    "CopyWindow",
    "Credentials",
    "Delivery",
    "DirectResult",
    "Election",
    "EpochHistory",
    "EpochRange",
    "GroupMembers",
    "GroupProgress",
    "GroupSettings",
    "GroupSubscription",
    "HeldQueue",
    "MemberState",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageRefused",
    "MessageTrack",
    "NoController",
    "NoNameServer",
    "NoReply",
    "NoRoute",
    "NoSuccessor",
    "NotRunning",
    "OffsetUnknown",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "QueueCounts",
    "QueueEntries",
    "QueueEntry",
    "QueueNotAssigned",
    "QueueProgress",
    "QueueRange",
    "RebalanceListener",
    "ReceivedMessage",
    "Replica",
    "ReplicaSet",
    "ReplicaState",
    "Reply",
    "RetryLater",
    "SendContext",
    "SendFailed",
    "SendFuture",
    "SendHook",
    "SendResult",
    "SendStatus",
    "SlaveState",
    "Sql92",
    "StartFrom",
    "StatsWindow",
    "StatsWindows",
    "Subscription",
    "Switchover",
    "TimerCounts",
    "TopicRoute",
    "TopicSettings",
    "TopicStats",
    "TrackState",
    "Transaction",
    "TransactionState",
    "UnknownCluster",
    "WrongLoop",
    "allocate_averagely",
    "allocate_by_circle",
    "allocate_by_hash",
    "allocate_by_machine_room",
    "allocate_fixed",
    "allocate_nearby",
    "at_random",
    "by_key",
    "by_machine_room",
    "with_value",
]
