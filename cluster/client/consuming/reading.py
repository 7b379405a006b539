"""The pull loop of one queue: fills its cache, backs off when it is full or the broker away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tandemmq.cluster.client.consuming.pulls import (
    SUSPEND_MS,
    PullAnswer,
    PullHead,
    PullRequest,
    PullStatus,
    lite_code,
    pull,
    pull_through,
)
from tandemmq.cluster.client.consuming.queue_cache import QueueCache
from tandemmq.cluster.client.consuming.subscriptions import Subscription
from tandemmq.cluster.client.errors import (
    BrokerRefused,
    BrokerUnreachable,
    CallTimedOut,
    ClientError,
)
from tandemmq.cluster.client.message import RETRY_PREFIX
from tandemmq.cluster.client.reaching.instance import ClientInstance
from tandemmq.cluster.client.reaching.routes import MASTER_ID
from tandemmq.cluster.remoting import Channel, RequestCode, ResponseCode

log = logging.getLogger(__name__)

FLOW_CONTROL_CODE: Final = 215  # a broker's gentle "not so fast"
FLOW_CONTROL_PAUSE_S: Final = 0.02
ERROR_PAUSE_S: Final = 1.0


@dataclass(slots=True, eq=False)
class QueueReader:
    """Pulls one queue into a cache until cancelled. One request at a time.

    subscription  looked up before each pull: it may change while we read
    on_messages   called after messages arrived in the cache
    on_moved      the broker says the position is not valid: start again at this queue offset
    commit        position to store with the next pull
    on_progress   called when a pull brought nothing wanted
    after         wait until nobody works on this older cache of the queue
    lite          for a pull consumer
    """

    instance: ClientInstance
    group: str
    cache: QueueCache
    subscription: Callable[[], Subscription]
    on_messages: Callable[[QueueCache], None]
    on_moved: Callable[[QueueCache, int], None]
    count_max: int = 32
    commit: Callable[[], int | None] = lambda: None
    on_progress: Callable[[QueueCache], None] = lambda cache: None
    after: QueueCache | None = None
    lite: bool = False
    _head: PullHead | None = field(default=None, init=False)
    _room: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _waits: object | None = field(default=None, init=False)  # of instance.absent_topics

    def room_made(self) -> None:
        """A message left the cache: a reader that waits for room looks again."""
        self._room.set()

    async def run(self) -> None:
        """Pull until the queue is dropped."""
        if self.after is not None:
            await self.after.idle()
        while not self.cache.dropped:
            await self._wait_for_room()
            try:
                await self._pull_once()
            except ClientError as problem:
                await self._back_off(problem)

    async def _wait_for_room(self) -> None:
        why = self._why_not()
        if why is not None:
            log.debug("pull waits queue=%s why=%s", self.cache.queue, why)
        while self._why_not() is not None:
            self._room.clear()
            await self._room.wait()

    def _why_not(self) -> str | None:
        return "paused" if self.cache.paused else self.cache.why_full()

    async def _pull_once(self) -> None:
        cache = self.cache
        queue = cache.queue
        address, broker_id = await self.instance.reader_address(
            queue.broker_name, queue.topic, cache.suggested_broker_id
        )
        request = PullRequest(
            self.group,
            queue,
            cache.pull_offset,
            self.subscription(),
            self.count_max,
            SUSPEND_MS,
            self.commit() if broker_id == MASTER_ID else None,  # slaves keep no positions
            self.lite,
            self._code(address),
        )
        cache.pulled_ms = self.instance.clock.now_ms()
        try:
            answer = await self._pull(address, request)
        except ClientError as problem:
            cache.suggested_broker_id = (
                0  # a slave that failed is not asked again; the master may suggest it again
            )
            if isinstance(problem, (BrokerUnreachable, CallTimedOut)):
                self.instance.no_answer(address)
            raise
        if self._waits is not None:
            if self.instance.absent_topics.get(queue.topic) is self._waits:
                del self.instance.absent_topics[queue.topic]
            self._waits = None
        if cache.dropped:
            return
        cache.suggested_broker_id = answer.suggested_broker_id
        match answer.status:
            case PullStatus.FOUND:
                if cache.put(answer.messages, answer.next_offset):
                    self.on_messages(cache)
                else:
                    self.on_progress(cache)
            case PullStatus.NOTHING_NEW | PullStatus.NOTHING_MATCHED:
                # a slave that lags may name an older position; going back would deliver twice
                cache.pull_offset = max(cache.pull_offset, answer.next_offset)
                self.on_progress(cache)
            case PullStatus.OFFSET_MOVED if answer.reset:
                # also to where we stand: what is cached is not wanted any more
                self._log_move(request, answer)
                self.on_moved(cache, answer.next_offset)  # drops this cache: run() ends
            case PullStatus.OFFSET_MOVED if answer.next_offset == request.offset:
                # a broker with a tiered store, of a queue that it has not stored there yet
                self._log_move(request, answer)
                await asyncio.sleep(ERROR_PAUSE_S)
            case PullStatus.OFFSET_MOVED if (
                request.offset < answer.min_offset <= answer.next_offset
            ):
                # Too old, deleted: what is cached is older still, and all that is left of it.
                self._log_move(request, answer)
                cache.pull_offset = max(cache.pull_offset, answer.next_offset)
                self.on_progress(cache)
            case PullStatus.OFFSET_MOVED:
                self._log_move(request, answer)
                self.on_moved(cache, cache.restart(answer.next_offset))
        if answer.next_offset == request.offset:
            await asyncio.sleep(
                FLOW_CONTROL_PAUSE_S
            )  # no progress: whatever the reason, never a busy loop

    def _log_move(self, request: PullRequest, answer: PullAnswer) -> None:
        """By an operator's reset that is no warning."""
        log.log(
            logging.INFO if answer.reset else logging.WARNING,
            "position reset group=%s queue=%s offset=%d moved_to=%d min=%d max=%d"
            if answer.reset
            else "offset not valid group=%s queue=%s offset=%d moved_to=%d min=%d max=%d",
            self.group,
            request.queue,
            request.offset,
            answer.next_offset,
            answer.min_offset,
            answer.max_offset,
        )

    def _code(self, address: str) -> RequestCode:
        if not self.lite:
            return RequestCode.PULL_MESSAGE
        return lite_code(self.instance.connections.version(address))

    async def _pull(self, address: str, request: PullRequest) -> PullAnswer:
        instance = self.instance
        wire = instance.connections.peek(address)
        if instance.config.credentials is not None or not isinstance(wire, Channel):
            return await pull(instance.connections, address, request)
        head = self._head
        if (
            head is None
            or head.subscription is not request.subscription
            or head.code != request.code
        ):
            head = self._head = PullHead(request)
        return await pull_through(instance.answers, wire, head, request, instance.next_opaque())

    async def _back_off(self, problem: ClientError) -> None:
        if isinstance(problem, BrokerRefused) and problem.code == FLOW_CONTROL_CODE:
            await asyncio.sleep(FLOW_CONTROL_PAUSE_S)
            return
        if isinstance(problem, BrokerRefused) and problem.code == ResponseCode.TOPIC_NOT_EXIST:
            self._wait_for_topic(problem)
            await asyncio.sleep(ERROR_PAUSE_S)
            return
        level = (
            logging.DEBUG if self.cache.queue.topic.startswith(RETRY_PREFIX) else logging.WARNING
        )
        log.log(
            level, "pull failed group=%s queue=%s why=%s", self.group, self.cache.queue, problem
        )
        if not isinstance(problem, BrokerRefused):
            self.instance.refresh_soon()
        await asyncio.sleep(ERROR_PAUSE_S)

    def _wait_for_topic(self, problem: BrokerRefused) -> None:
        """Said once, not by the reader of each queue: it heals when the topic is made."""
        topic, absent = self.cache.queue.topic, self.instance.absent_topics
        first = topic not in absent
        self._waits = absent.setdefault(topic, object())
        if first:
            log.log(
                logging.DEBUG if topic.startswith(RETRY_PREFIX) else logging.WARNING,
                "waiting until the topic is made group=%s topic=%s broker=%s",
                self.group,
                topic,
                problem.address,
            )
