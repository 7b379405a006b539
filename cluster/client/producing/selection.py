"""Which queue the next attempt of a send uses, and whether there is a next attempt. No I/O."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Final

from tandemmq.cluster.client.errors import (
    BrokerAnswerBroken,
    BrokerRefused,
    BrokerUnreachable,
    CallTimedOut,
    ClientError,
    MessageRefused,
)
from tandemmq.cluster.client.message import Message, MessageQueue
from tandemmq.storage import java_hash

#: Response codes after which another attempt, perhaps elsewhere, makes sense. Source: RocketMQ's
# DefaultMQProducer, retryResponseCodes.
RETRIED_CODES: Final = frozenset({1, 2, 14, 16, 17, 204, 205, 1500})

#: Chooses a queue from the publish list (never empty, in one fixed order).
Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


class QueueRing:
    """Takes the queues of one topic in turn, starting anywhere: producers do not march in step."""

    def __init__(self, rng: random.Random) -> None:
        self._next = rng.getrandbits(31)

    def pick(
        self,
        queues: Sequence[MessageQueue],
        avoided_broker: str | None = None,
        wanted: Sequence[Callable[[str], bool]] = (),
    ) -> MessageQueue:
        """The next queue; on another broker than the one that just failed, if there is one.

        wanted  tests of broker names, the first that any such queue passes counts; without one
                the next queue, whatever its broker
        """
        for test in wanted or (_any_broker,):
            for _ in range(len(queues)):
                queue = self.take(queues)
                if queue.broker_name != avoided_broker and test(queue.broker_name):
                    return queue
        return self.take(queues)

    def take(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """The next queue, whatever its broker."""
        return queues[self.place(len(queues))]

    def place(self, count: int) -> int:
        """The next place in a list of that many queues."""
        place = self._next % count
        self._next += 1
        return place

    def undo(self) -> None:
        """The last place was not used: it is the next again."""
        self._next -= 1


def _any_broker(broker_name: str) -> bool:
    return True


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


def at_random(rng: random.Random | None = None) -> Selector:
    """A selector that takes any queue, each time anew.

    Example: await producer.send(message, selector=at_random())
    """
    choose = (rng or random.Random()).choice
    return lambda queues, message: choose(queues)


def by_machine_room(*rooms: str) -> Selector:
    """A selector that takes the queues of brokers named `room@name`, of these rooms, in turn.

    Raises MessageRefused while none of the rooms has a queue of the topic.

    Example: await producer.send(message, selector=by_machine_room("hangzhou-b"))
    """
    wanted = frozenset(rooms)
    place = itertools.count()

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        near = [queue for queue in queues if machine_room(queue.broker_name) in wanted]
        if not near:
            raise MessageRefused(
                f"topic {message.topic} has no queue in {', '.join(sorted(wanted))}: brokers of a "
                "room are named room@name"
            )
        return near[next(place) % len(near)]

    return select


def machine_room(broker_name: str) -> str | None:
    """The room of a broker named `room@name`, None for other names."""
    parts = broker_name.split("@")
    return parts[0] if len(parts) == 2 else None


def worth_retrying(problem: ClientError) -> bool:
    """True when it may succeed elsewhere: transport failures and the codes of RETRIED_CODES."""
    if isinstance(problem, BrokerRefused):
        return problem.code in RETRIED_CODES
    return isinstance(problem, (BrokerUnreachable, CallTimedOut, BrokerAnswerBroken))
