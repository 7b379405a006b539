"""Exactly one range of a queue, read once: every message that is wanted of it, or an error that says what is missing.

A consumer goes on from where its broker sends it; who reads a range for a table may not.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Final

from tandemmq.cluster.client.consuming.ahead import PullsAhead
from tandemmq.cluster.client.consuming.pulls import (
    PullAnswer,
    PullFuture,
    PullHead,
    PullRequest,
    PullStatus,
    begin_pull,
    end_pull,
    pull,
)
from tandemmq.cluster.client.consuming.subscriptions import Subscription
from tandemmq.cluster.client.errors import (
    BrokerRefused,
    BrokerUnreachable,
    CallTimedOut,
    ClientError,
    NoNameServer,
)
from tandemmq.cluster.client.message import MessageQueue, ReceivedMessage
from tandemmq.cluster.client.reaching.instance import ClientInstance
from tandemmq.cluster.client.reaching.routes import MASTER_ID
from tandemmq.cluster.client.runs import RecordRun
from tandemmq.cluster.remoting import Channel, ResponseCode

log = logging.getLogger(__name__)

PULL_COUNT: Final = (
    1_024  # brokers end an answer by bytes: RocketMQ's after 32 messages, or 256 KiB
)
ANSWER_S: Final = 10.0  # no pull is held: a broker that needs longer is not there
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 1.0
#: refusals that pass: too busy, a change of role, a broker's "not so fast"
PASSING_CODES: Final = frozenset(
    {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, 215}
)


class MessagesGone(ClientError):
    """Entries [start, end) of a queue are not there: too old, cut off by a takeover, or never written.

    Attributes: queue, start, end (queue offsets).
    """

    def __init__(self, queue: MessageQueue, start: int, end: int, why: str) -> None:
        super().__init__(f"{end - start} messages of {queue} are gone, [{start}, {end}): {why}")
        self.queue = queue
        self.start = start
        self.end = end


def passes(problem: ClientError) -> bool:
    """Whether it is worth asking again: somebody is away, is busy, or changes its role."""
    if isinstance(problem, BrokerRefused):
        return problem.code in PASSING_CODES
    return isinstance(problem, (BrokerUnreachable, CallTimedOut, NoNameServer))


class QueueRangeReader:
    """Reads queue offsets [start, end) of one queue, from a slave where the master suggests one.

    subscription  what is wanted of the topic
    patience_ms   how long one read() tries again while the brokers of the queue are away, or lack what it wants
    decoded       False: messages are decoded when they are looked at (RecordRun)
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        queue: MessageQueue,
        start: int,
        end: int,
        subscription: Subscription,
        patience_ms: int,
        *,
        decoded: bool = True,
    ) -> None:
        self.at = start
        self.end = end
        self._instance = instance
        self._group = group
        self._queue = queue
        self._subscription = subscription
        self._everything = subscription.expression == "*"
        self._patience_s = patience_ms / 1000
        self._suggested_id = MASTER_ID
        self._wished_id = MASTER_ID  # who was suggested when the pulls under way were sent,
        self._asked_id: int | None = None  # and who was there to take them
        self._decoded = decoded
        self._head: PullHead | None = None
        self._ahead = PullsAhead(self._begin, self._forget)

    async def read(self) -> Sequence[ReceivedMessage]:
        """The next messages, in order; empty when the range is read whole.

        Raises MessagesGone (skip_to() its end to go on behind it), BrokerRefused, BrokerUnreachable, CallTimedOut,
        NoRoute, NoNameServer, BrokerAnswerBroken.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._patience_s
        pause_s = PAUSE_S
        while self.at < self.end:
            try:
                found = await self._step(loop.time() >= deadline_s)
            except ClientError as problem:
                self._ahead.drop()
                if not passes(problem) or loop.time() >= deadline_s:
                    raise
                log.info("read again queue=%s offset=%d why=%s", self._queue, self.at, problem)
                await self._look_again()
                found = None
            if found:
                return found
            if found is None:
                self._ahead.drop()
                await asyncio.sleep(min(pause_s, max(0.0, deadline_s - loop.time())))
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
        return ()

    async def rest(self) -> None:
        """Call before the loop stands still for a while: no answer is left waiting for it."""
        await self._ahead.arrived(min(ANSWER_S, self._patience_s))

    def close(self) -> None:
        """What was asked ahead is not wanted any more."""
        self._ahead.drop()

    def skip_to(self, offset: int) -> None:
        """Go on at a later queue offset: what lies between is known to be gone."""
        self.at = max(self.at, min(offset, self.end))

    async def _step(self, last: bool) -> Sequence[ReceivedMessage] | None:
        """One pull. None: ask again later; empty: the position moved, but nothing was wanted."""
        asked = self._answered_ahead() or await self._asked()
        if asked is None:
            return None
        answer, broker_id = asked
        self._suggested_id = answer.suggested_broker_id
        if answer.next_offset > self.at or answer.messages:
            return self._forward(answer, broker_id)
        if broker_id != MASTER_ID:  # a slave that lags
            self._suggested_id = MASTER_ID
            return None
        if last:
            why = f"the queue ends at {answer.max_offset}"
            if answer.status is PullStatus.OFFSET_MOVED and self.at < answer.max_offset:
                why = (
                    f"its broker moves readers from here to {answer.next_offset}: after a loss, or a deletion of the "
                    "topic, other messages than before may have these offsets"
                )
            raise MessagesGone(self._queue, self.at, self.end, why)
        return None

    def _answered_ahead(self) -> tuple[PullAnswer, int] | None:
        """An answer that was asked for before its turn, and who gave it: nobody is looked up, nothing waited for."""
        if self._asked_id is None or self._suggested_id != self._wished_id:
            return None
        future = self._ahead.answered(self.at, self.end)
        if future is None:
            return None
        answer = future.result()
        self._ahead.learn(len(answer.messages), answer.size)
        return answer, self._asked_id

    async def _asked(self) -> tuple[PullAnswer, int] | None:
        """The answer to a pull, and who gave it; None: ask the master."""
        queue = self._queue
        await self._instance.read_route(queue.topic)
        address, broker_id = await self._instance.reader_address(
            queue.broker_name, queue.topic, self._suggested_id
        )
        self._wished_id, self._asked_id = self._suggested_id, broker_id
        try:
            async with asyncio.timeout(min(ANSWER_S, self._patience_s)):
                return await self._pull(address), broker_id
        except TimeoutError:
            self._suggested_id = MASTER_ID
            self._instance.no_answer(address)
            said = f"no answer to a pull of {queue}"
            raise CallTimedOut(said, address=address, topic=queue.topic) from None
        except (BrokerUnreachable, CallTimedOut):
            self._suggested_id = MASTER_ID
            self._instance.no_answer(address)
            raise
        except BrokerRefused:
            if broker_id == MASTER_ID:
                raise
            self._suggested_id = MASTER_ID  # its master may know the topic
            return None

    def _forward(self, answer: PullAnswer, broker_id: int) -> Sequence[ReceivedMessage] | None:
        messages, at = answer.messages, self.at
        if answer.status is PullStatus.NOTHING_NEW or (
            answer.status is PullStatus.OFFSET_MOVED and answer.min_offset <= at
        ):
            # who is behind, or was cut, may name any position: it has nothing here
            self._suggested_id = MASTER_ID
            return None
        if self._everything:
            following = _offset_at(messages, 0) if messages else answer.next_offset
        else:
            following = max(
                at, answer.min_offset
            )  # what a filter left out cannot be told from a gap behind it
        if following > at:
            if broker_id != MASTER_ID:
                self._suggested_id = MASTER_ID  # a slave may have deleted what its master has
                return None
            why = f"the next message is at {following}"
            raise MessagesGone(self._queue, at, min(following, self.end), why)
        if self._everything:
            messages = _unbroken(messages, at)
            self.at = min(self.end, at + len(messages))
        else:
            self.at = min(self.end, answer.next_offset)
        if messages and _offset_at(messages, -1) >= self.end:
            messages = _before(messages, self.end)
        return messages

    def _request(self, offset: int) -> PullRequest:
        return PullRequest(
            self._group,
            self._queue,
            offset,
            self._subscription,
            PULL_COUNT,
            suspend_ms=0,
            decoded=self._decoded,
        )

    async def _pull(self, address: str) -> PullAnswer:
        instance = self._instance
        wire = instance.connections.peek(address)
        if instance.config.credentials is not None or not isinstance(wire, Channel):
            return await pull(instance.connections, address, self._request(self.at))
        end = self.end if self._everything else self.at  # filters: the next pull begins anywhere
        future = self._ahead.take(wire, self.at, end)
        try:
            answer = await future
        finally:
            self._forget(future)
        self._ahead.learn(len(answer.messages), answer.size)
        return answer

    def _begin(self, channel: Channel, offset: int) -> PullFuture:
        instance, request = self._instance, self._request(offset)
        if self._head is None:
            self._head = PullHead(request)
        return begin_pull(instance.answers, channel, self._head, request, instance.next_opaque())

    def _forget(self, future: PullFuture) -> None:
        end_pull(self._instance.answers, future)

    async def _look_again(self) -> None:
        try:
            await self._instance.fetch_route(self._queue.topic)
        except ClientError as problem:
            log.debug("route not refreshed topic=%s why=%s", self._queue.topic, problem)


def _offset_at(messages: Sequence[ReceivedMessage], place: int) -> int:
    """The queue offset of one of them; of a record without reading all of it."""
    if isinstance(messages, RecordRun):
        return messages.queue_offset_at(place)
    return messages[place].queue_offset


def _before(messages: Sequence[ReceivedMessage], end: int) -> Sequence[ReceivedMessage]:
    """Those below a queue offset, which are the first ones."""
    return messages[: bisect_left(range(len(messages)), end, key=partial(_offset_at, messages))]


def _unbroken(messages: Sequence[ReceivedMessage], at: int) -> Sequence[ReceivedMessage]:
    """The messages whose queue offsets follow each other from `at` on."""
    if _offset_at(messages, -1) == at + len(messages) - 1:
        return messages
    places = range(len(messages))
    return messages[: next(place for place in places if _offset_at(messages, place) != at + place)]
