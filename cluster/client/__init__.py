"""The public asyncio client: producer, push consumer, pull consumer.

Applications import these names from tandemmq.
"""

from __future__ import annotations

from cluster.client.admin import Admin
from cluster.client.config import ClientConfig
from cluster.client.consumer import ConsumeResult, PushConsumer
from cluster.client.errors import (
    BrokerAnswerBroken,
    BrokerRefused,
    BrokerUnreachable,
    CallTimedOut,
    ClientError,
    MessageRefused,
    NoNameServer,
    NoRoute,
    NotRunning,
    OffsetUnknown,
    QueueNotAssigned,
    SendFailed,
)
from cluster.client.membership import MessageModel, StartFrom
from cluster.client.message import Message, MessageQueue, ReceivedMessage, SendResult, SendStatus
from cluster.client.producer import Producer
from cluster.client.pull_consumer import PullConsumer
from cluster.client.queue_cache import CacheLimits
from cluster.client.rebalance import allocate_averagely
from cluster.client.selection import by_key

__all__ = [
    "Admin",
    "BrokerAnswerBroken",
    "BrokerRefused",
    "BrokerUnreachable",
    "CacheLimits",
    "CallTimedOut",
    "ClientConfig",
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
    "allocate_averagely",
    "by_key",
]
