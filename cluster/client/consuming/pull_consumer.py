"""The pull consumer: the application asks for messages, and may choose queues and positions."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Self

from tandemmq.cluster.client.config import ClientConfig, one_config
from tandemmq.cluster.client.consuming.assignments import RebalanceListener, telling
from tandemmq.cluster.client.consuming.membership import ConsumeType, Membership, Policy, StartFrom
from tandemmq.cluster.client.consuming.offsets import BrokerOffsets
from tandemmq.cluster.client.consuming.queue_cache import CacheLimits, QueueCache, ReadyQueues
from tandemmq.cluster.client.consuming.rebalance import Allocation, allocate_averagely
from tandemmq.cluster.client.consuming.replying import send_reply
from tandemmq.cluster.client.consuming.subscriptions import Sql92, parse_subscription
from tandemmq.cluster.client.errors import NotRunning, OffsetUnknown, QueueNotAssigned
from tandemmq.cluster.client.message import (
    NO_PROPERTIES,
    MessageQueue,
    ReceivedMessage,
    check_group,
    check_topic,
)
from tandemmq.cluster.client.namespaces import shown_message, shown_queue, wrap
from tandemmq.cluster.client.producing.replies import as_reply
from tandemmq.cluster.client.reaching import calls
from tandemmq.cluster.client.reaching import instance as instances
from tandemmq.cluster.client.reaching.instance import ClientInstance

log = logging.getLogger(__name__)

CALL_TIMEOUT_MS: Final = 6_000
ITERATION_BATCH: Final = 32
DEFAULT_START_AGE_MS: Final = 30 * 60 * 1_000


class PullConsumer:
    """Reads queues at the application's pace.

    Either subscribe() (the group shares the queues) or assign() (you choose).

    group        whose positions are read and committed
    namesrv      "host:9876;host:9876", a sequence of addresses, or None for the environment's
                 NAMESRV_ADDR
    subscribe    topic -> tag expression: "*", "TagA", "TagA || TagB"; or Sql92(...); more by
                 subscribe()
    start        where to begin in a queue the group has never committed; start_ms with
                 StartFrom.TIMESTAMP (wall, ms)
    auto_commit  commit every 5 s, and at a stop without an error, what was handed out and asked
                 past. False: only commit() commits
    limits, allocation  as of PushConsumer
    instance_name, tls, config  see ClientConfig

    A message counts as consumed when the next one is asked for, or when the `async with` block ends
    without an error.

    Example:
        async with PullConsumer("report", namesrv="127.0.0.1:9876", subscribe={"Orders": "*"}) as
        consumer:
            async for message in consumer:
                print(message.queue_offset, message.body)
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        subscribe: Mapping[str, str | Sql92] | None = None,
        start: StartFrom = StartFrom.LAST,
        start_ms: int | None = None,
        auto_commit: bool = True,
        pull_count: int = 32,
        limits: CacheLimits | None = None,
        allocation: Allocation = allocate_averagely,
        rebalance_listener: RebalanceListener | None = None,
        instance_name: str = "",
        tls: ssl.SSLContext | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        check_group(group)
        if not 1 <= pull_count <= 1_024:
            raise ValueError(f"pull_count must be 1 to 1024, got {pull_count}")
        self.group = group
        self._config = one_config(config, namesrv, instance_name, tls)
        self._namespace = self._config.namespace
        self._wire_group = wrap(self._namespace, group)
        self._start = start
        self._start_ms = start_ms
        self._auto_commit = auto_commit
        self._pull_count = pull_count
        self._limits = limits or CacheLimits()
        self._allocation = allocation
        self._told = telling(rebalance_listener, partial(shown_queue, self._namespace))
        self._wanted: dict[str, str | Sql92] = {}
        self._assigned = False
        self._joined = False
        self._instance: ClientInstance | None = None
        self._membership: Membership | None = None
        self._ready = ReadyQueues()
        self._fetched: deque[tuple[QueueCache, ReceivedMessage]] = (
            deque()
        )  # by `async for`, not handed out yet
        self._handed: list[tuple[QueueCache, ReceivedMessage]] = []
        for topic, expression in (subscribe or {}).items():
            self.subscribe(topic, expression)

    # Which queues

    def subscribe(self, topic: str, expression: str | Sql92 = "*") -> None:
        """Share the topic's queues with the group; before start or while running.

        Raises MessageRefused (topic or expression), ValueError after assign().

        Example: consumer.subscribe("Orders", "created || paid")
        """
        check_topic(topic)
        parse_subscription(topic, expression, 0)
        if self._assigned:
            raise ValueError(
                "subscribe() and assign() exclude each other; this consumer has assigned queues"
            )
        self._wanted[topic] = expression
        if self._membership is not None and self._instance is not None:
            self._membership.want(wrap(self._namespace, topic), expression)
            if self._joined:
                self._instance.heartbeat_soon()
                self._membership.wake()
            else:
                self._membership.jobs.start(
                    f"join {self.group}", self._join(self._instance, self._membership)
                )

    async def assign(
        self,
        queues: Iterable[MessageQueue],
        expression: str | Sql92 = "*",
        *,
        positions: Mapping[MessageQueue, int] | None = None,
    ) -> None:
        """Read exactly these queues, replacing an earlier assignment; no membership, no rebalance.

        Each begins at the group's committed position, else by `start`; seek() moves it.

        positions  queue -> queue offset where to begin instead: its broker is not asked, and the
                   position not checked
        Raises ValueError after subscribe(), OffsetUnknown, BrokerUnreachable, BrokerRefused, NoRoute,
        NotRunning.

        Example: await consumer.assign(await consumer.queues("Orders"))
        """
        instance, membership = self._running()
        if self._wanted:
            raise ValueError(
                "subscribe() and assign() exclude each other; this consumer has subscriptions"
            )
        self._assigned = True
        given = set(queues)
        for topic in {queue.topic for queue in given}:
            await instance.read_route(wrap(self._namespace, topic))
            membership.want(wrap(self._namespace, topic), expression)
            await membership.check_filter(wrap(self._namespace, topic))
        wanted = sorted(self._wired(queue) for queue in given)
        await membership.release([queue for queue in membership.held if queue not in wanted])
        added = [queue for queue in wanted if queue not in membership.held]
        given_offsets = {self._wired(queue): at for queue, at in (positions or {}).items()}
        asked = [queue for queue in added if queue not in given_offsets]
        answers = await asyncio.gather(*(membership.start_offset(queue) for queue in asked))
        offsets = dict(zip(asked, answers, strict=True)) | given_offsets
        for queue in added:
            membership.take(queue, offsets[queue])

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues this consumer reads now, sorted."""
        if self._membership is None:
            return ()
        return tuple(sorted(shown_queue(self._namespace, queue) for queue in self._membership.held))

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The readable queues of a topic. Raises NoRoute, NoNameServer.

        Example: first = (await consumer.queues("Orders"))[0]
        """
        instance, _ = self._running()
        wired = wrap(self._namespace, topic)
        route = await instance.read_route(wired)
        return tuple(shown_queue(self._namespace, queue) for queue in route.read_queues(wired))

    # Messages

    async def poll(self, count_max: int = 32, timeout_ms: int = 5_000) -> list[ReceivedMessage]:
        """The next messages, at most count_max; an empty list after timeout_ms without any.

        What the last poll returned counts as consumed from now on.
        Raises NotRunning; whatever stopped the background work, if something did.

        Example: for message in await consumer.poll(100, timeout_ms=1_000): ...
        """
        if count_max < 1:
            raise ValueError(f"count_max must be at least 1, got {count_max}")
        self._running()
        self._finish_handed()
        batch = self._take_fetched(count_max)
        if not batch:
            batch = await self._take_ready(count_max, timeout_ms)
        self._handed = batch
        return [shown_message(self._namespace, message) for _, message in batch]

    def __aiter__(self) -> Self:
        """Messages one by one, for ever; leave with `break`.

        A message is consumed when the next one is asked for.
        """
        return self

    async def __anext__(self) -> ReceivedMessage:
        self._running()
        self._finish_handed()
        while True:
            batch = self._take_fetched(1)
            if batch:
                self._handed = batch
                return shown_message(self._namespace, batch[0][1])
            self._fetched.extend(await self._take_ready(ITERATION_BATCH, 1_000))

    def _take_fetched(self, count_max: int) -> list[tuple[QueueCache, ReceivedMessage]]:
        batch: list[tuple[QueueCache, ReceivedMessage]] = []
        while self._fetched and len(batch) < count_max:
            cache, message = self._fetched.popleft()
            if not cache.dropped:
                batch.append((cache, message))
        return batch

    async def _take_ready(
        self, count_max: int, timeout_ms: int
    ) -> list[tuple[QueueCache, ReceivedMessage]]:
        _, membership = self._running()
        if membership.jobs.failure is not None:
            raise membership.jobs.failure
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                taken = await self._ready.take_some(count_max)
        except TimeoutError:
            self._running()  # stopped meanwhile: say so instead of "nothing"
            return []
        batch: list[tuple[QueueCache, ReceivedMessage]] = []
        while True:
            cache, messages = taken
            batch += [(cache, message) for message in messages]
            following = None
            if len(batch) < count_max:
                following = self._ready.take_some_nowait(count_max - len(batch))
            if following is None:
                return batch
            taken = following

    def _finish_handed(self) -> None:
        _, membership = self._running()
        handed, self._handed = self._handed, []
        by_cache: dict[QueueCache, list[ReceivedMessage]] = {}
        for cache, message in handed:
            by_cache.setdefault(cache, []).append(message)
        for cache, messages in by_cache.items():
            membership.consumed(cache, *messages)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] = NO_PROPERTIES,
        flag: int = 0,
        timeout_ms: int = 3_000,
    ) -> None:
        """Answer a request that a producer waits for; as PushConsumer.reply().

        Example: await consumer.reply(request, b"9.99")
        """
        instance, _ = self._running()
        answer = as_reply(request, body, properties, flag)
        await send_reply(instance, self._wire_group, answer, timeout_ms)

    # Positions

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read this queue from `offset` (entry number) on; what was fetched of it is forgotten.

        Raises QueueNotAssigned; ValueError when the offset lies outside min_offset..max_offset;
        BrokerUnreachable.

        Example: await consumer.seek(queue, await consumer.min_offset(queue))
        """
        _, membership = self._running()
        wired = self._wired(queue)
        if wired not in membership.held:
            raise QueueNotAssigned(
                f"{queue} is not assigned to this consumer; it has {len(membership.held)} queues"
            )
        lowest, highest = await self.min_offset(queue), await self.max_offset(queue)
        if not lowest <= offset <= highest:
            raise ValueError(f"offset {offset} of {queue} is not in {lowest}..{highest}")
        if wired not in membership.held:
            raise QueueNotAssigned(f"{queue} moved to another member meanwhile")
        membership.take(wired, offset)

    def pause(self, *queues: MessageQueue) -> None:
        """Neither fetch nor hand out these queues (none given: all held) until resume().

        What is paused stays assigned. A queue that is not held is left out.

        Example: consumer.pause(queue); await settle(); consumer.resume(queue)
        """
        self._pause(queues, True)

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with these queues (none given: all held)."""
        self._pause(queues, False)

    def _pause(self, queues: Sequence[MessageQueue], paused: bool) -> None:
        _, membership = self._running()
        wired = [self._wired(queue) for queue in queues] or list(membership.held)
        membership.pause(wired, paused)
        if paused:  # what waits here in front of `async for` goes back, in order
            kept: deque[tuple[QueueCache, ReceivedMessage]] = deque()
            for cache, message in reversed(self._fetched):
                if cache.paused and not cache.dropped:
                    cache.put_back(message)
                else:
                    kept.appendleft((cache, message))
            self._fetched = kept

    def position(self, queue: MessageQueue) -> int:
        """Queue offset of the next message that poll() returns of this queue.

        Raises QueueNotAssigned.
        """
        _, membership = self._running()
        held = membership.held.get(self._wired(queue))
        if held is None:
            raise QueueNotAssigned(f"{queue} is not assigned to this consumer")
        fetched = (message.queue_offset for cache, message in self._fetched if cache is held.cache)
        return next(fetched, held.cache.next_offset)

    async def commit(self, positions: Mapping[MessageQueue, int] | None = None) -> None:
        """Store positions and wait for the brokers' answers; without any, all handed out is consumed.

        positions  queue -> queue offset of the first entry that is not consumed. With auto_commit
                   the next automatic one replaces it
        Raises OffsetUnknown when a broker did not store one, QueueNotAssigned.

        Example: batch = await consumer.poll(); process(batch); await consumer.commit()
        Example: await consumer.commit({message.queue: message.queue_offset + 1})
        """
        _, membership = self._running()
        if positions is None:
            self._finish_handed()
            await membership.commit()
            return
        wired = {self._wired(queue): offset for queue, offset in positions.items()}
        for queue in wired:
            if queue not in membership.held:
                raise QueueNotAssigned(f"{queue} is not assigned to this consumer")
        await membership.commit(wired)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed position, None when it has none. Raises OffsetUnknown."""
        instance, _ = self._running()
        return await BrokerOffsets(instance, self._wire_group).read(self._wired(queue))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Queue offset of the oldest message that is still there.

        Raises BrokerUnreachable, CallTimedOut, NoRoute.
        """
        instance, address, wired = await self._where(queue)
        return await calls.min_offset(instance.connections, address, wired, CALL_TIMEOUT_MS)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Queue offset that the next message will get. Raises as min_offset."""
        instance, address, wired = await self._where(queue)
        return await calls.max_offset(instance.connections, address, wired, CALL_TIMEOUT_MS)

    async def offset_for_time(self, queue: MessageQueue, time_ms: int) -> int:
        """Queue offset of the first message stored at or after time_ms (wall, ms since 1970).

        Raises as min_offset.

        Example: await consumer.seek(queue, await consumer.offset_for_time(queue, yesterday_ms))
        """
        instance, address, wired = await self._where(queue)
        return await calls.offset_for_time(
            instance.connections, address, wired, time_ms, CALL_TIMEOUT_MS
        )

    async def _where(self, queue: MessageQueue) -> tuple[ClientInstance, str, MessageQueue]:
        instance, _ = self._running()
        wired = self._wired(queue)
        await instance.read_route(wired.topic)
        address, _ = await instance.reader_address(wired.broker_name, wired.topic)
        return instance, address, wired

    # Life

    async def start(self) -> None:
        """Get ready; with subscriptions, join the group and take the first share.

        `async with` calls it.

        Raises NoNameServer when there are subscriptions and no name server answers, BrokerRefused
        where brokers do not filter by properties.
        """
        if self._instance is not None:
            return
        self._ready, self._joined = ReadyQueues(), False
        instance = self._instance = await instances.lease(self._config, self._wire_group)
        start_ms = (
            instance.clock.now_ms() - DEFAULT_START_AGE_MS
            if self._start_ms is None
            else self._start_ms
        )
        policy = Policy(
            ConsumeType.PULL,
            start=self._start,
            start_ms=start_ms,
            limits=self._limits,
            pull_count=self._pull_count,
            commits=self._auto_commit,
            allocation=self._allocation,
            unit_mode=bool(self._config.unit_name),
        )
        store = BrokerOffsets(instance, self._wire_group)
        membership = self._membership = Membership(
            instance, self._wire_group, policy, store, self._ready.announce, told=self._told
        )
        for topic, expression in self._wanted.items():
            membership.want(wrap(self._namespace, topic), expression)
        try:
            if self._wanted:
                await self._join(instance, membership)
        except BaseException:
            await self.stop()
            raise
        if self._auto_commit:
            membership.start_commits()

    async def _join(self, instance: ClientInstance, membership: Membership) -> None:
        self._joined = True
        instance.add_consumer(membership)
        await membership.join()

    async def stop(self, *, consumed: bool = True) -> None:
        """Stop reading and leave the group. consumed: what was handed out last counts as done."""
        instance, membership = self._instance, self._membership
        if instance is None or membership is None:
            return
        if consumed:
            self._finish_handed()
        self._instance = None
        try:
            await membership.leave()
            self._ready.clear()
            await membership.say_goodbye()
            if self._auto_commit:
                await membership.commit()
        except OffsetUnknown as problem:
            log.warning("stopping without a commit, messages will come again: %s", problem)
        finally:  # cancelled too
            membership.jobs.cancel()
            try:
                if self._joined:
                    await instance.remove_consumer(membership)
            finally:
                await instances.release(instance, self._wire_group)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.stop(consumed=kind is None)

    def _running(self) -> tuple[ClientInstance, Membership]:
        if self._instance is None or self._membership is None:
            raise NotRunning(
                f"consumer {self.group} is not running: use `async with PullConsumer(...)`"
            )
        return self._instance, self._membership

    # Names with and without the namespace

    def _wired(self, queue: MessageQueue) -> MessageQueue:
        if not self._namespace:
            return queue
        topic = wrap(self._namespace, queue.topic)
        return MessageQueue(topic, queue.broker_name, queue.queue_id)
