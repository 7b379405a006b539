"""The pull consumer: the application asks for messages, and may choose queues and positions."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from cluster.client import calls
from cluster.client import instance as instances
from cluster.client.config import ClientConfig, name_servers
from cluster.client.errors import NotRunning, OffsetUnknown, QueueNotAssigned
from cluster.client.instance import ClientInstance
from cluster.client.membership import ConsumeType, Membership, Policy, StartFrom
from cluster.client.message import MessageQueue, ReceivedMessage, check_group, check_topic
from cluster.client.offsets import BrokerOffsets
from cluster.client.queue_cache import CacheLimits, QueueCache, ReadyQueues
from cluster.client.rebalance import Allocation, allocate_averagely
from cluster.client.subscriptions import parse_subscription

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
    subscribe    topic -> tag expression: "*", "TagA", "TagA || TagB"; more by subscribe()
    start        where to begin in a queue the group has never committed; start_ms with
                 StartFrom.TIMESTAMP (wall, ms)
    auto_commit  commit every 5 s, and at a stop without an error, what was handed out and asked
                 past. False: only commit() commits

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
        subscribe: Mapping[str, str] | None = None,
        start: StartFrom = StartFrom.LAST,
        start_ms: int | None = None,
        auto_commit: bool = True,
        pull_count: int = 32,
        limits: CacheLimits | None = None,
        allocation: Allocation = allocate_averagely,
        instance_name: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check_group(group)
        if not 1 <= pull_count <= 1_024:
            raise ValueError(f"pull_count must be 1 to 1024, got {pull_count}")
        self.group = group
        self._config = ClientConfig(name_servers(namesrv), instance_name, tls)
        self._start = start
        self._start_ms = start_ms
        self._auto_commit = auto_commit
        self._pull_count = pull_count
        self._limits = limits or CacheLimits()
        self._allocation = allocation
        self._wanted: dict[str, str] = {}
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

    def subscribe(self, topic: str, expression: str = "*") -> None:
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
            self._membership.subscriptions[topic] = parse_subscription(
                topic, expression, self._instance.clock.now_ms()
            )
            if self._joined:
                self._instance.heartbeat_soon()
                self._membership.wake()
            else:
                self._membership.jobs.start(
                    f"join {self.group}", self._join(self._instance, self._membership)
                )

    async def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """Read exactly these queues, replacing an earlier assignment; no membership, no rebalance.

        Each begins at the group's committed position, else by `start`; seek() moves it.
        Raises ValueError after subscribe(), OffsetUnknown, BrokerUnreachable, NoRoute, NotRunning.

        Example: await consumer.assign(await consumer.queues("Orders"))
        """
        instance, membership = self._running()
        if self._wanted:
            raise ValueError(
                "subscribe() and assign() exclude each other; this consumer has subscriptions"
            )
        self._assigned = True
        wanted = sorted(set(queues))
        for topic in {queue.topic for queue in wanted}:
            await instance.read_route(topic)
            membership.subscriptions[topic] = parse_subscription(
                topic, expression, instance.clock.now_ms()
            )
        await membership.release([queue for queue in membership.held if queue not in wanted])
        added = [queue for queue in wanted if queue not in membership.held]
        offsets = await asyncio.gather(*(membership.start_offset(queue) for queue in added))
        for queue, offset in zip(added, offsets, strict=True):
            membership.take(queue, offset)

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues this consumer reads now, sorted."""
        return tuple(sorted(self._membership.held)) if self._membership is not None else ()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The readable queues of a topic. Raises NoRoute, NoNameServer.

        Example: first = (await consumer.queues("Orders"))[0]
        """
        instance, _ = self._running()
        return (await instance.read_route(topic)).read_queues(topic)

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
        return [message for _, message in batch]

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
                return batch[0][1]
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
                batch = [await self._ready.take()]
        except TimeoutError:
            self._running()  # stopped meanwhile: say so instead of "nothing"
            return []
        while len(batch) < count_max:
            following = self._ready.take_nowait()
            if following is None:
                break
            batch.append(following)
        return batch

    def _finish_handed(self) -> None:
        _, membership = self._running()
        handed, self._handed = self._handed, []
        for cache, message in handed:
            membership.consumed(cache, message)

    # Positions

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read this queue from `offset` (entry number) on; what was fetched of it is forgotten.

        Raises QueueNotAssigned; ValueError when the offset lies outside min_offset..max_offset;
        BrokerUnreachable.

        Example: await consumer.seek(queue, await consumer.min_offset(queue))
        """
        _, membership = self._running()
        if queue not in membership.held:
            raise QueueNotAssigned(
                f"{queue} is not assigned to this consumer; it has {len(membership.held)} queues"
            )
        lowest, highest = await self.min_offset(queue), await self.max_offset(queue)
        if not lowest <= offset <= highest:
            raise ValueError(f"offset {offset} of {queue} is not in {lowest}..{highest}")
        if queue not in membership.held:
            raise QueueNotAssigned(f"{queue} moved to another member meanwhile")
        membership.take(queue, offset)

    def position(self, queue: MessageQueue) -> int:
        """Queue offset of the next message that poll() returns of this queue.

        Raises QueueNotAssigned.
        """
        _, membership = self._running()
        held = membership.held.get(queue)
        if held is None:
            raise QueueNotAssigned(f"{queue} is not assigned to this consumer")
        fetched = (message.queue_offset for cache, message in self._fetched if cache is held.cache)
        return next(fetched, held.cache.next_offset)

    async def commit(self) -> None:
        """All handed out so far is consumed: store the positions and wait for the brokers' answers.

        Raises OffsetUnknown when a broker did not store one.

        Example: batch = await consumer.poll(); process(batch); await consumer.commit()
        """
        _, membership = self._running()
        self._finish_handed()
        await membership.commit()

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed position, None when it has none. Raises OffsetUnknown."""
        instance, _ = self._running()
        return await BrokerOffsets(instance, self.group).read(queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Queue offset of the oldest message that is still there.

        Raises BrokerUnreachable, CallTimedOut, NoRoute.
        """
        instance, address = await self._where(queue)
        return await calls.min_offset(instance.connections, address, queue, CALL_TIMEOUT_MS)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Queue offset that the next message will get. Raises as min_offset."""
        instance, address = await self._where(queue)
        return await calls.max_offset(instance.connections, address, queue, CALL_TIMEOUT_MS)

    async def offset_for_time(self, queue: MessageQueue, time_ms: int) -> int:
        """Queue offset of the first message stored at or after time_ms (wall, ms since 1970).

        Raises as min_offset.

        Example: await consumer.seek(queue, await consumer.offset_for_time(queue, yesterday_ms))
        """
        instance, address = await self._where(queue)
        return await calls.offset_for_time(
            instance.connections, address, queue, time_ms, CALL_TIMEOUT_MS
        )

    async def _where(self, queue: MessageQueue) -> tuple[ClientInstance, str]:
        instance, _ = self._running()
        await instance.read_route(queue.topic)
        return instance, (await instance.reader_address(queue.broker_name, queue.topic))[0]

    # Life

    async def start(self) -> None:
        """Get ready; with subscriptions, join the group and take the first share.

        `async with` calls it.

        Raises NoNameServer when there are subscriptions and no name server answers.
        """
        if self._instance is not None:
            return
        self._ready, self._joined = ReadyQueues(), False
        instance = self._instance = await instances.lease(self._config, consumer_group=self.group)
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
        )
        membership = self._membership = Membership(
            instance, self.group, policy, BrokerOffsets(instance, self.group), self._ready.announce
        )
        for topic, expression in self._wanted.items():
            membership.subscriptions[topic] = parse_subscription(
                topic, expression, instance.clock.now_ms()
            )
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
        await membership.leave()
        self._ready.clear()
        try:
            if self._auto_commit:
                await membership.commit()
        except OffsetUnknown as problem:
            log.warning("stopping without a commit, messages will come again: %s", problem)
        finally:
            if self._joined:
                await instance.remove_consumer(membership)
            await instances.release(instance)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop(consumed=kind is None)

    def _running(self) -> tuple[ClientInstance, Membership]:
        if self._instance is None or self._membership is None:
            raise NotRunning(
                f"consumer {self.group} is not running: use `async with PullConsumer(...)`"
            )
        return self._instance, self._membership
