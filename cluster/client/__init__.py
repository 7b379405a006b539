"""The public asyncio client: producer, push consumer, pull consumer.

Applications import these names from tandemmq.
"""

from __future__ import annotations

from cluster.client.admin import Admin
from cluster.client.admin_calls import UnknownCluster
from cluster.client.admin_values import (
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
    TopicSettings,
    TopicStats,
    TrackState,
)
from cluster.client.assignments import RebalanceListener
from cluster.client.compression import Compression
from cluster.client.config import ClientConfig
from cluster.client.consumer import PushConsumer
from cluster.client.credentials import Credentials
from cluster.client.deliveries import Delivery, Subscription
from cluster.client.errors import (
    BrokerAnswerBroken,
    BrokerRefused,
    BrokerUnreachable,
    CallTimedOut,
    ClientError,
    MessageRefused,
    NoController,
    NoNameServer,
    NoRoute,
    NoSuccessor,
    NotRunning,
    OffsetUnknown,
    QueueNotAssigned,
    SendFailed,
    WrongLoop,
)
from cluster.client.hooks import ConsumeContext, ConsumeHook, SendContext, SendHook
from cluster.client.listening import ConsumeResult, RetryLater
from cluster.client.membership import MessageModel, StartFrom
from cluster.client.message import Message, MessageQueue, ReceivedMessage, SendResult, SendStatus
from cluster.client.pipeline import SendFuture
from cluster.client.producer import Producer
from cluster.client.pull_consumer import PullConsumer
from cluster.client.queue_cache import CacheLimits
from cluster.client.rebalance import (
    allocate_averagely,
    allocate_by_circle,
    allocate_by_hash,
    allocate_by_machine_room,
    allocate_fixed,
    allocate_nearby,
)
from cluster.client.routes import QueueCounts, TopicRoute
from cluster.client.selection import at_random, by_key, by_machine_room
from cluster.client.values import with_value

__all__ = [
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
    "RetryLater",
    "SendContext",
    "SendFailed",
    "SendFuture",
    "SendHook",
    "SendResult",
    "SendStatus",
    "SlaveState",
    "StartFrom",
    "StatsWindow",
    "StatsWindows",
    "Subscription",
    "Switchover",
    "TopicRoute",
    "TopicSettings",
    "TopicStats",
    "TrackState",
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
