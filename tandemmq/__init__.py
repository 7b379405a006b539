"""TandemMQ's public face: the client for applications, and the `tandem` command.

    from tandemmq import Message, Producer

    async with Producer("shop", namesrv="127.0.0.1:9876") as producer:
        await producer.send(Message("Orders", b"17"))

The names come from cluster.client, imported when first asked for: `tandem broker` starts without
them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.client import (
        Admin,
        BrokerAnswerBroken,
        BrokerMembers,
        BrokerRefused,
        BrokerUnreachable,
        CacheLimits,
        CallTimedOut,
        ClientConfig,
        ClientConnection,
        ClientError,
        Compression,
        ConsumeContext,
        ConsumeHook,
        ConsumeRates,
        ConsumeResult,
        ConsumeSpan,
        Credentials,
        DirectResult,
        GroupMembers,
        GroupProgress,
        GroupSettings,
        GroupSubscription,
        HeldQueue,
        MemberState,
        Message,
        MessageModel,
        MessageQueue,
        MessageRefused,
        MessageTrack,
        NoNameServer,
        NoRoute,
        NotRunning,
        OffsetUnknown,
        Producer,
        PullConsumer,
        PushConsumer,
        QueueCounts,
        QueueEntries,
        QueueEntry,
        QueueNotAssigned,
        QueueProgress,
        QueueRange,
        ReceivedMessage,
        ReplicaState,
        RetryLater,
        SendContext,
        SendFailed,
        SendFuture,
        SendHook,
        SendResult,
        SendStatus,
        SlaveState,
        StartFrom,
        StatsWindow,
        StatsWindows,
        TopicRoute,
        TopicSettings,
        TopicStats,
        TrackState,
        UnknownCluster,
        allocate_averagely,
        allocate_by_circle,
        allocate_by_hash,
        allocate_by_machine_room,
        allocate_fixed,
        allocate_nearby,
        at_random,
        by_key,
        by_machine_room,
    )

__version__ = "0.1.0"

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
    "Credentials",
    "DirectResult",
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
    "NoNameServer",
    "NoRoute",
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
    "ReceivedMessage",
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
    "TopicRoute",
    "TopicSettings",
    "TopicStats",
    "TrackState",
    "UnknownCluster",
    "__version__",
    "allocate_averagely",
    "allocate_by_circle",
    "allocate_by_hash",
    "allocate_by_machine_room",
    "allocate_fixed",
    "allocate_nearby",
    "at_random",
    "by_key",
    "by_machine_room",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'tandemmq' has no attribute {name!r}")
    value: object = getattr(importlib.import_module("cluster.client"), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
