"""One pull request: its header, and what each answer means. No I/O but the call itself."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cluster.client.calls import Caller, call, number
from cluster.client.hot import read_records
from cluster.client.message import MessageQueue, ReceivedMessage
from cluster.client.subscriptions import Subscription
from cluster.remoting import Command, RequestCode, ResponseCode

COMMIT_FLAG: Final = 1
SUSPEND_FLAG: Final = 2
SUBSCRIPTION_FLAG: Final = 4

SUSPEND_MS: Final = 15_000  # how long the broker may hold a pull that finds nothing
TIMEOUT_MS: Final = 30_000  # and how long we wait for it


class PullStatus(enum.Enum):
    """What a pull found."""

    FOUND = ResponseCode.SUCCESS
    NOTHING_NEW = ResponseCode.PULL_NOT_FOUND
    NOTHING_MATCHED = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_MOVED = ResponseCode.PULL_OFFSET_MOVED


_ACCEPTED: Final = frozenset(int(status.value) for status in PullStatus)


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """next_offset: where to pull next, from suggested_broker_id. messages: those wanted."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    messages: Sequence[ReceivedMessage]


@dataclass(frozen=True, slots=True)
class PullRequest:
    """commit_offset: position to commit with this pull, or None. suspend_ms 0: answer at once."""

    group: str
    queue: MessageQueue
    offset: int
    subscription: Subscription
    count_max: int = 32
    suspend_ms: int = SUSPEND_MS
    commit_offset: int | None = None

    def command(self) -> Command:
        """PULL_MESSAGE.

        The subscription travels along, so that a pull never races its own heartbeat.
        """
        flags = SUBSCRIPTION_FLAG
        if self.suspend_ms:
            flags |= SUSPEND_FLAG
        if self.commit_offset is not None:
            flags |= COMMIT_FLAG
        ext = {
            "consumerGroup": self.group,
            "topic": self.queue.topic,
            "queueId": str(self.queue.queue_id),
            "queueOffset": str(self.offset),
            "maxMsgNums": str(self.count_max),
            "sysFlag": str(flags),
            "commitOffset": str(self.commit_offset or 0),
            "suspendTimeoutMillis": str(self.suspend_ms),
            "subscription": self.subscription.expression,
            "subVersion": str(self.subscription.version),
            "expressionType": "TAG",
            "bname": self.queue.broker_name,
        }
        return Command(RequestCode.PULL_MESSAGE, ext)


async def pull(
    caller: Caller, address: str, request: PullRequest, timeout_ms: int = TIMEOUT_MS
) -> PullAnswer:
    """Ask a broker for messages.

    Raises BrokerRefused, BrokerUnreachable, CallTimedOut, BrokerAnswerBroken.
    """
    answer = await call(caller, address, request.command(), timeout_ms, _ACCEPTED)
    max_offset = number(answer, "maxOffset", address)
    messages = (
        read_records(answer.body, request.queue.broker_name, max_offset) if answer.body else []
    )
    return PullAnswer(
        status=PullStatus(answer.code),
        next_offset=number(answer, "nextBeginOffset", address),
        min_offset=number(answer, "minOffset", address),
        max_offset=max_offset,
        suggested_broker_id=number(answer, "suggestWhichBrokerId", address),
        messages=_wanted(messages, request.subscription),
    )


def _wanted(
    messages: list[ReceivedMessage], subscription: Subscription
) -> Sequence[ReceivedMessage]:
    if not subscription.tags:
        return messages
    return [message for message in messages if subscription.wants(message.tags)]
