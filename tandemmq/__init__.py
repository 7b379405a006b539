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
        BrokerAnswerBroken,
        BrokerRefused,
        BrokerUnreachable,
        CacheLimits,
        CallTimedOut,
        ClientError,
        ConsumeResult,
        Message,
        MessageModel,
        MessageQueue,
        MessageRefused,
        NoNameServer,
        NoRoute,
        NotRunning,
        OffsetUnknown,
        Producer,
        PullConsumer,
        PushConsumer,
        QueueNotAssigned,
        ReceivedMessage,
        SendFailed,
        SendResult,
        SendStatus,
        StartFrom,
        by_key,
    )

__version__ = "0.1.0"

__all__ = [
    "BrokerAnswerBroken",
    "BrokerRefused",
    "BrokerUnreachable",
    "CacheLimits",
    "CallTimedOut",
    "ClientError",
    "ConsumeResult",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageRefused",
    "NoNameServer",
    "NoRoute",
    "NotRunning",
    "OffsetUnknown",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "QueueNotAssigned",
    "ReceivedMessage",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "StartFrom",
    "__version__",
    "by_key",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'tandemmq' has no attribute {name!r}")
    value: object = getattr(importlib.import_module("cluster.client"), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
