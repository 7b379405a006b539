"""The push consumer: messages come to a listener; the group's members share the queues."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import inspect
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

from cluster.client import calls
from cluster.client import instance as instances
from cluster.client.config import ClientConfig, name_servers
from cluster.client.errors import (
    BrokerUnreachable,
    ClientError,
    MessageRefused,
    NotRunning,
    OffsetUnknown,
)
from cluster.client.instance import ClientInstance
from cluster.client.jobs import Jobs
from cluster.client.membership import ConsumeType, Membership, MessageModel, Policy, StartFrom
from cluster.client.message import (
    RETRY_PREFIX,
    MessageQueue,
    ReceivedMessage,
    check_group,
    check_topic,
)
from cluster.client.offsets import BrokerOffsets, FileOffsets, OffsetStore
from cluster.client.queue_cache import CacheLimits, QueueCache, ReadyQueues
from cluster.client.rebalance import Allocation, allocate_averagely
from cluster.client.sending import Prepared, send_command, send_result
from cluster.client.subscriptions import parse_subscription
from storage import encode_properties

log = logging.getLogger(__name__)

SEND_BACK_TIMEOUT_MS: Final = 5_000
LOCAL_RETRY_S: Final = 5.0
INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
DEFAULT_START_AGE_MS: Final = (
    30 * 60 * 1_000
)  # StartFrom.TIMESTAMP without a time: RocketMQ's half an hour ago


class ConsumeResult(enum.Enum):
    """What a listener says of a message.

    Returning None means SUCCESS, raising means RECONSUME_LATER.
    """

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


Listener: TypeAlias = Callable[
    [ReceivedMessage], "Awaitable[ConsumeResult | None] | ConsumeResult | None"
]


class PushConsumer:
    """Calls a listener for each message of the queues this member holds. Use it with `async with`.

    group        members of one group share the queues; all must subscribe to the same topics and
                 tags
    on_message   async function (runs on the event loop), or plain function (runs in a thread of its
                 own pool)
    namesrv      "host:9876;host:9876", a sequence of addresses, or None for the environment's
                 NAMESRV_ADDR
    subscribe    topic -> tag expression: "*", "TagA", "TagA || TagB"; more by subscribe()
    model        CLUSTERING: a failed message comes again later, after reconsume_times_max tries it
                 goes to %DLQ%group. BROADCASTING: every member reads everything; a failed message
                 is logged and skipped
    start        where to begin in a queue the group has never committed; start_ms with
                 StartFrom.TIMESTAMP (wall, ms)
    concurrency  messages handled at once, of all queues together; order is not kept
    limits       when pulling of a queue pauses (1,000 messages, 100 MiB, 2,000 entries between
                 oldest and newest)
    offsets_dir  BROADCASTING: where positions are kept, default ~/.rocketmq_offsets
    stop_timeout_ms  how long stop() waits for listeners at work

    Delivery is at least once: positions are committed every 5 s and at stop, so a crash brings
    messages again.

    Example:
        async def handle(message: ReceivedMessage) -> None:
            print(message.topic, message.body)

        async with PushConsumer("billing", handle, namesrv="127.0.0.1:9876", subscribe={"Orders":
        "*"}) as consumer:
            await consumer.wait()
    """

    def __init__(
        self,
        group: str,
        on_message: Listener,
        *,
        namesrv: str | Sequence[str] | None = None,
        subscribe: Mapping[str, str] | None = None,
        model: MessageModel = MessageModel.CLUSTERING,
        start: StartFrom = StartFrom.LAST,
        start_ms: int | None = None,
        concurrency: int = 20,
        reconsume_times_max: int = 16,
        pull_count: int = 32,
        limits: CacheLimits | None = None,
        allocation: Allocation = allocate_averagely,
        offsets_dir: Path | None = None,
        stop_timeout_ms: int = 10_000,
        instance_name: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        _check_consumer_group(group)
        if concurrency < 1 or not 1 <= pull_count <= 1_024:
            raise ValueError(
                f"concurrency must be >= 1, pull_count 1 to 1024, got {concurrency}, {pull_count}"
            )
        if model is MessageModel.BROADCASTING and not instance_name:
            instance_name = (
                "DEFAULT"  # the offset file is found by the client id, so it must not change
            )
        self.group = group
        self._config = ClientConfig(name_servers(namesrv), instance_name, tls)
        self._on_message = on_message
        self._plain = not _is_async(on_message)
        self._model = model
        self._start = start
        self._start_ms = start_ms
        self._concurrency = concurrency
        self._reconsume_times_max = reconsume_times_max
        self._pull_count = pull_count
        self._limits = limits or CacheLimits()
        self._allocation = allocation
        self._offsets_dir = offsets_dir or Path.home() / ".rocketmq_offsets"
        self._stop_timeout_ms = stop_timeout_ms
        self._wanted: dict[str, str] = {}
        self._instance: ClientInstance | None = None
        self._membership: Membership | None = None
        self._workers = Jobs()
        self._ready = ReadyQueues()
        self._busy = 0
        self._quiet = asyncio.Event()
        self._threads: ThreadPoolExecutor | None = None
        for topic, expression in (subscribe or {}).items():
            self.subscribe(topic, expression)

    # Subscriptions

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Read a topic, or change its tag expression; before start or while running.

        Raises MessageRefused for an illegal topic name or an expression without a tag.

        Example: consumer.subscribe("Orders", "created || paid")
        """
        check_topic(topic)
        parse_subscription(topic, expression, 0)  # refuse a bad one here, where the caller sees it
        self._wanted[topic] = expression
        if self._membership is not None and self._instance is not None:
            self._membership.subscriptions[topic] = parse_subscription(
                topic, expression, self._instance.clock.now_ms()
            )
            self._instance.heartbeat_soon()
            self._membership.wake()

    def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic. Its position is committed."""
        self._wanted.pop(topic, None)
        if self._membership is not None and self._instance is not None:
            self._membership.subscriptions.pop(topic, None)
            self._instance.heartbeat_soon()
            self._membership.wake()

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues this member holds now, the retry topic's included, sorted.

        Example: print([str(queue) for queue in consumer.assignment])
        """
        return tuple(sorted(self._membership.held)) if self._membership is not None else ()

    # Life

    async def start(self) -> None:
        """Join the group and begin; `async with` calls it.

        When it returns the first share of queues is taken.

        Raises NoNameServer when none answers, ValueError when nothing is subscribed. A topic
        without a route is waited for.
        """
        if self._instance is not None:
            return
        if not self._wanted:
            raise ValueError(
                f"consumer {self.group} subscribes to nothing: call subscribe(topic) before start"
            )
        self._workers, self._ready = Jobs(), ReadyQueues()
        instance = self._instance = await instances.lease(self._config, consumer_group=self.group)
        membership = self._membership = Membership(
            instance,
            self.group,
            self._policy(instance),
            self._store(instance),
            self._ready.announce,
        )
        for topic, expression in self._wanted.items():
            membership.subscriptions[topic] = parse_subscription(
                topic, expression, instance.clock.now_ms()
            )
        if self._model is MessageModel.CLUSTERING:
            retry_topic = RETRY_PREFIX + self.group
            membership.subscriptions[retry_topic] = parse_subscription(
                retry_topic, "*", instance.clock.now_ms()
            )
        instance.add_consumer(membership)
        if self._plain:
            self._threads = ThreadPoolExecutor(self._concurrency, f"consumer {self.group}")
        try:
            await membership.join()
        except BaseException:
            await self.stop()
            raise
        membership.start_commits()
        for number in range(self._concurrency):
            self._workers.start(f"consume {self.group} {number}", self._work())

    async def stop(self) -> None:
        """Stop pulling, let listeners finish (stop_timeout_ms), commit, leave the group."""
        instance, membership = self._instance, self._membership
        if instance is None or membership is None:
            return
        self._instance = None
        await membership.leave()
        self._ready.clear()
        if self._busy:
            self._quiet.clear()
            try:
                async with asyncio.timeout(self._stop_timeout_ms / 1000):
                    await self._quiet.wait()
            except TimeoutError:
                log.warning("listeners still at work group=%s count=%d", self.group, self._busy)
        await self._workers.stop()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        try:
            await membership.commit()
        except OffsetUnknown as problem:
            log.warning("stopping without a commit, messages will come again: %s", problem)
        finally:
            await instance.remove_consumer(membership)
            await instances.release(instance)

    async def wait(self) -> None:
        """Return after stop(); raise when a part of the consumer failed and it works no more.

        Example: async with consumer: await consumer.wait()
        """
        membership = self._membership
        if membership is None:
            raise NotRunning(f"consumer {self.group} is not running: use `async with`")
        waits = [asyncio.create_task(jobs.wait()) for jobs in (membership.jobs, self._workers)]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        for task in done:
            task.result()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def _policy(self, instance: ClientInstance) -> Policy:
        start_ms = (
            instance.clock.now_ms() - DEFAULT_START_AGE_MS
            if self._start_ms is None
            else self._start_ms
        )
        return Policy(
            ConsumeType.PUSH, self._model, self._start, start_ms, self._limits, self._pull_count,
            allocation=self._allocation,
        )  # fmt: skip

    def _store(self, instance: ClientInstance) -> OffsetStore:
        if self._model is MessageModel.CLUSTERING:
            return BrokerOffsets(instance, self.group)
        return FileOffsets(self._offsets_dir / instance.client_id / self.group / "offsets.json")

    # Consuming

    async def _work(self) -> None:
        while True:
            cache, message = await self._ready.take()
            self._busy += 1
            try:
                await self._consume(cache, message)
            finally:
                self._busy -= 1
                if not self._busy:
                    self._quiet.set()

    async def _consume(self, cache: QueueCache, message: ReceivedMessage) -> None:
        assert self._membership is not None
        if await self._handled(message) or await self._sent_back(message):
            self._membership.consumed(cache, message)
            return
        log.warning("message kept here message_id=%s retry_s=%s", message.message_id, LOCAL_RETRY_S)
        again = dataclasses.replace(message, reconsume_times=message.reconsume_times + 1)
        self._workers.start(f"retry {message.message_id}", self._consume_again(cache, again))

    async def _consume_again(self, cache: QueueCache, message: ReceivedMessage) -> None:
        await asyncio.sleep(LOCAL_RETRY_S)
        if not cache.dropped:
            cache.put_back(message)
            self._ready.announce(cache)

    async def _handled(self, message: ReceivedMessage) -> bool:
        """Call the listener; False when the message must come again."""
        try:
            if self._plain:
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(self._threads, self._on_message, message)
            else:
                result = self._on_message(message)
            if inspect.isawaitable(result):
                result = await result
        except (
            Exception
        ) as problem:  # the application's code: whatever it raises means "not handled"
            log.warning(
                "listener failed group=%s message_id=%s reconsume_times=%d why=%r",
                self.group, message.message_id, message.reconsume_times, problem, exc_info=problem,
            )  # fmt: skip
            return False
        return result is not ConsumeResult.RECONSUME_LATER

    async def _sent_back(self, message: ReceivedMessage) -> bool:
        """Give a failed message to the broker for later; False when no broker took it."""
        if self._model is MessageModel.BROADCASTING:
            log.warning(
                "message skipped group=%s message_id=%s why=broadcasting",
                self.group,
                message.message_id,
            )
            return True
        instance = self._instance_at_work()
        what = calls.SendBack(
            self.group,
            message.queue,
            message.physical_offset,
            message.offset_message_id,
            message.topic,
            delay_level=0,
            reconsume_times_max=self._reconsume_times_max,
        )
        try:
            address = instance.brokers.master(message.queue.broker_name)
            if address is None:
                raise BrokerUnreachable(message.queue.broker_name, "no master is registered now")
            await calls.send_back(instance.connections, address, what, SEND_BACK_TIMEOUT_MS)
        except ClientError as problem:
            log.warning("send-back failed message_id=%s why=%s", message.message_id, problem)
            return await self._sent_to_retry_topic(instance, message)
        return True

    async def _sent_to_retry_topic(
        self, instance: ClientInstance, message: ReceivedMessage
    ) -> bool:
        """The broker that has the message is away: store a copy in the retry topic on any other."""
        topic = RETRY_PREFIX + self.group
        properties = {
            **message.properties,
            "RETRY_TOPIC": message.topic,
            "ORIGIN_MESSAGE_ID": message.properties.get(
                "ORIGIN_MESSAGE_ID", message.offset_message_id
            ),
            "DELAY": str(3 + message.reconsume_times),
        }
        copy = Prepared(
            topic,
            message.body,
            encode_properties(properties).decode(),
            message.message_id,
            message.born_ms,
            message.flag,
            reconsume_times=message.reconsume_times + 1,
            reconsume_times_max=self._reconsume_times_max,
        )
        try:
            queue = instance.rng.choice(await instance.publish_queues(topic))
            address = await instance.master_address(queue.broker_name, topic)
            command = send_command(copy, queue, INNER_PRODUCER)
            answer = await instance.connections.request(address, command, SEND_BACK_TIMEOUT_MS)
            send_result(answer, copy, queue, address)
        except ClientError as problem:
            log.warning(
                "message not sent to retry topic message_id=%s why=%s", message.message_id, problem
            )
            return False
        return True

    def _instance_at_work(self) -> ClientInstance:
        """Workers outlive `_instance` while stop() waits for them."""
        assert self._membership is not None
        return self._membership.instance


def _is_async(listener: Listener) -> bool:
    target = listener
    while isinstance(target, functools.partial):
        target = target.func
    # an instance of a class with `async def __call__` counts too
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(type(target).__call__)


def _check_consumer_group(group: str) -> None:
    check_group(group)
    if group == "DEFAULT_CONSUMER":
        raise MessageRefused(
            "consumerGroup can not equal DEFAULT_CONSUMER, please specify another one."
        )
