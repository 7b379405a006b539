"""Which queue the next attempt of a send uses, and whether there is a next attempt. No I/O."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from cluster.client.errors import (
    BrokerAnswerBroken,
    BrokerRefused,
    BrokerUnreachable,
    CallTimedOut,
    ClientError,
)
from cluster.client.message import Message, MessageQueue
from storage import java_hash

#: Response codes after which another attempt, perhaps elsewhere, makes sense. Source: spec
# "DefaultMQProducer", retry rules.
RETRIED_CODES: Final = frozenset({1, 2, 14, 16, 17, 204, 205, 1500})

#: Chooses a queue from the publish list (never empty, in one fixed order).
Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


class QueueRing:
    """Takes the queues of one topic in turn, starting anywhere: producers do not march in step."""

    def __init__(self, rng: random.Random) -> None:
        self._next = rng.getrandbits(31)

    def pick(
        self, queues: Sequence[MessageQueue], avoided_broker: str | None = None
    ) -> MessageQueue:
        """The next queue; on another broker than the one that just failed, if there is one."""
        for _ in range(len(queues)):
            queue = self._take(queues)
            if queue.broker_name != avoided_broker:
                return queue
        return self._take(queues)

    def _take(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        queue = queues[self._next % len(queues)]
        self._next += 1
        return queue


def by_key(key: str) -> Selector:
    """A selector that sends one key always to one queue while the number of queues stays.

    The choice is RocketMQ's (Java hash modulo queues), so Java and Python producers agree.

    Example:
        await producer.send(message, selector=by_key("order-17"))
    """
    place = abs(java_hash(key))

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return queues[place % len(queues)]

    return select


def worth_retrying(problem: ClientError) -> bool:
    """True when it may succeed elsewhere: transport failures and the codes of RETRIED_CODES."""
    if isinstance(problem, BrokerRefused):
        return problem.code in RETRIED_CODES
    return isinstance(problem, (BrokerUnreachable, CallTimedOut, BrokerAnswerBroken))
