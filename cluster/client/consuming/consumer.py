"""The push consumer: messages come to a listener; the group's members share the queues."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self

from msgspec.structs import replace

from tandemmq.cluster.client.config import ClientConfig, one_config
from tandemmq.cluster.client.consuming.assignments import RebalanceListener, telling
from tandemmq.cluster.client.consuming.listening import BatchListener, Calls, Failed, Listener
from tandemmq.cluster.client.consuming.membership import (
    ConsumeType,
    Membership,
    MessageModel,
    Policy,
    StartFrom,
)
from tandemmq.cluster.client.consuming.offsets import BrokerOffsets, FileOffsets, OffsetStore
from tandemmq.cluster.client.consuming.queue_cache import CacheLimits, QueueCache, ReadyQueues
from tandemmq.cluster.client.consuming.rebalance import Allocation, allocate_averagely
from tandemmq.cluster.client.consuming.replying import send_reply
from tandemmq.cluster.client.consuming.sendback import Returns
from tandemmq.cluster.client.consuming.subscriptions import Sql92, parse_subscription
from tandemmq.cluster.client.errors import MessageRefused, NotRunning, OffsetUnknown
from tandemmq.cluster.client.hooks import ConsumeHook
from tandemmq.cluster.client.message import (
    NO_PROPERTIES,
    RETRY_PREFIX,
    MessageQueue,
    ReceivedMessage,
    check_group,
    check_topic,
)
from tandemmq.cluster.client.namespaces import shown_message, shown_queue, wrap
from tandemmq.cluster.client.producing.producer import trace_sender
from tandemmq.cluster.client.producing.replies import as_reply
from tandemmq.cluster.client.reaching import instance as instances
from tandemmq.cluster.client.reaching.instance import ClientInstance
from tandemmq.cluster.client.reaching.jobs import Jobs
from tandemmq.cluster.client.reaching.requests import DirectOutcome, DirectResult
from tandemmq.cluster.client.tracing import Tracer

log = logging.getLogger(__name__)

LOCAL_RETRY_S: Final = 5.0
TIMED_OUT_LEVEL: Final = 3  # the delay of a message whose listener takes too long, as RocketMQ's
TURN_COUNT_MAX: Final = 64  # messages that one worker takes at a time, while they are quick
QUICK_S: Final = 0.002  # a turn below this lets the next one be larger
RECONSUME_TIMES_MAX: Final = 16
DEFAULT_START_AGE_MS: Final = (
    30 * 60 * 1_000
)  # StartFrom.TIMESTAMP without a time: RocketMQ's half an hour ago


class PushConsumer:
    """Calls a listener for each message of the queues this member holds. Use it with `async with`.

    group        members of one group share the queues; all must subscribe to the same topics and
                 tags
    on_message   async function (runs on the event loop), or plain function (runs in a thread of its
                 own pool)
    on_batch     instead of on_message: gets up to batch_count messages of one queue; may return how
                 many of the first are consumed
    namesrv      "host:9876;host:9876", a sequence of addresses, or None for the environment's
                 NAMESRV_ADDR
    subscribe    topic -> tag expression: "*", "TagA", "TagA || TagB"; or Sql92(...); more by
                 subscribe()
    model        CLUSTERING: a failed message comes again later, after reconsume_times_max tries it
                 goes to %DLQ%group. BROADCASTING: every member reads everything; a failed message
                 is logged and skipped
    orderly      one message after the other in each queue, under a lock at its broker; a failed
                 message blocks its queue and comes again after suspend_ms
    start        where to begin in a queue the group has never committed; start_ms with
                 StartFrom.TIMESTAMP (wall, ms). LAST reads a queue whose first message is still in
                 the brokers' memory from that one on, as Java's consumers do: a young topic whole
    concurrency  messages (or batches) handled at once, of all queues together; order is not kept
                 unless orderly
    reconsume_times_max  None: 16, and no limit when orderly
    consume_timeout_ms   a message that its listener has for longer is sent back (not when orderly):
                 it comes again, though the listener goes on
    limits       when pulling of a queue pauses (1,000 messages, 100 MiB, 2,000 entries between
                 oldest and newest)
    allocation   how the members share the queues; all must use the same
    offsets_dir  BROADCASTING: where positions are kept, default ~/.rocketmq_offsets
    stop_timeout_ms  how long stop() waits for listeners at work
    rebalance_listener  hears of queues that come and go
    hooks        see ConsumeHook
    trace_topic  write traces of consumption there, TRACE_TOPIC or another; None: none. In the
                 background: what cannot be written is dropped
    instance_name, tls, config  see ClientConfig

    Delivery is at least once: positions are committed with the pulls, every 5 s and at stop, so a
    crash brings messages again.

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
        on_message: Listener | None = None,
        *,
        on_batch: BatchListener | None = None,
        namesrv: str | Sequence[str] | None = None,
        subscribe: Mapping[str, str | Sql92] | None = None,
        model: MessageModel = MessageModel.CLUSTERING,
        orderly: bool = False,
        start: StartFrom = StartFrom.LAST,
        start_ms: int | None = None,
        concurrency: int = 20,
        batch_count: int = 32,
        reconsume_times_max: int | None = None,
        suspend_ms: int = 1_000,
        consume_timeout_ms: int = 15 * 60 * 1_000,
        pull_count: int = 32,
        limits: CacheLimits | None = None,
        allocation: Allocation = allocate_averagely,
        offsets_dir: Path | None = None,
        stop_timeout_ms: int = 10_000,
        rebalance_listener: RebalanceListener | None = None,
        hooks: Sequence[ConsumeHook] = (),
        trace_topic: str | None = None,
        instance_name: str = "",
        tls: ssl.SSLContext | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        _check_consumer_group(group)
        if (on_message is None) == (on_batch is None):
            raise ValueError("give on_message or on_batch, one of the two")
        if concurrency < 1 or not 1 <= pull_count <= 1_024 or not 1 <= batch_count <= 1_024:
            raise ValueError(
                "concurrency must be >= 1, pull_count and batch_count 1 to 1024, "
                f"got {concurrency}, {pull_count}, {batch_count}"
            )
        if not 10 <= suspend_ms <= 30_000 or consume_timeout_ms < 1:
            raise ValueError(
                "suspend_ms must be 10 to 30000, consume_timeout_ms >= 1, "
                f"got {suspend_ms}, {consume_timeout_ms}"
            )
        broadcasting = model is MessageModel.BROADCASTING
        if broadcasting and not instance_name and config is None:
            instance_name = (
                "DEFAULT"  # the offset file is found by the client id, so it must not change
            )
        self.group = group
        self._config = one_config(config, namesrv, instance_name if config is None else "", tls)
        self._namespace = self._config.namespace
        self._wire_group = wrap(self._namespace, group)
        self._tracer = Tracer(group, trace_topic) if trace_topic is not None else None
        traced = (self._tracer,) if self._tracer is not None else ()
        self._calls = Calls(group, on_message, on_batch, (*hooks, *traced))
        self._batch_count = batch_count if on_batch is not None else 0
        self._model = model
        self._orderly = orderly
        self._start = start
        self._start_ms = start_ms
        self._concurrency = concurrency
        if reconsume_times_max is None and not orderly:
            reconsume_times_max = RECONSUME_TIMES_MAX
        self._reconsume_times_max = reconsume_times_max
        self._suspend_s = suspend_ms / 1000
        self._consume_timeout_s = consume_timeout_ms / 1000
        self._pull_count = pull_count
        self._limits = limits or CacheLimits()
        self._allocation = allocation
        self._offsets_dir = offsets_dir or Path.home() / ".rocketmq_offsets"
        self._stop_timeout_ms = stop_timeout_ms
        self._told = telling(rebalance_listener, partial(shown_queue, self._namespace))
        self._wanted: dict[str, str | Sql92] = {}
        self._instance: ClientInstance | None = None
        self._membership: Membership | None = None
        self._returns: Returns | None = None
        self._workers = Jobs()
        self._ready = ReadyQueues()
        self._turn_count = 1
        self._busy: dict[int, tuple[float, QueueCache, list[ReceivedMessage]]] = {}
        self._quiet = asyncio.Event()
        for topic, expression in (subscribe or {}).items():
            self.subscribe(topic, expression)

    # Subscriptions

    def subscribe(self, topic: str, expression: str | Sql92 = "*") -> None:
        """Read a topic, or change what is wanted of it; before start or while running.

        Raises MessageRefused for an illegal topic name or an expression without a tag.

        Example: consumer.subscribe("Orders", "created || paid")
        """
        check_topic(topic)
        parse_subscription(topic, expression, 0)  # refuse a bad one here, where the caller sees it
        self._wanted[topic] = expression
        if self._membership is not None and self._instance is not None:
            self._membership.want(wrap(self._namespace, topic), expression)
            self._instance.heartbeat_soon()
            self._membership.wake()

    def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic. Its position is committed.

        Example: consumer.unsubscribe("Orders")
        """
        self._wanted.pop(topic, None)
        if self._membership is not None and self._instance is not None:
            self._membership.subscriptions.pop(wrap(self._namespace, topic), None)
            self._instance.heartbeat_soon()
            self._membership.wake()

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues this member holds now, the retry topic's included, sorted.

        Example: print([str(queue) for queue in consumer.assignment])
        """
        if self._membership is None:
            return ()
        return tuple(sorted(shown_queue(self._namespace, queue) for queue in self._membership.held))

    def suspend(self) -> None:
        """Pull nothing and hand nothing over until resume(); the group's share is kept.

        Example: consumer.suspend(); await maintenance(); consumer.resume()
        """
        self._pause(True)

    def resume(self) -> None:
        """Go on after suspend()."""
        self._pause(False)

    def _pause(self, paused: bool) -> None:
        membership = self._membership
        if membership is None or self._instance is None:
            raise NotRunning(f"consumer {self.group} is not running: use `async with`")
        membership.paused = paused
        membership.pause(list(membership.held), paused)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] = NO_PROPERTIES,
        flag: int = 0,
        timeout_ms: int = 3_000,
    ) -> None:
        """Answer a request that a producer waits for. When this returns the producer has the answer.

        Raises MessageRefused when the message is no request, BrokerRefused when its producer waits
        no more, SendFailed, NoRoute, NoNameServer, NotRunning. What a listener lets through makes the
        request come again.

        Example:
            async def price(request: ReceivedMessage) -> None:
                await consumer.reply(request, b"9.99")
        """
        if self._instance is None:
            raise NotRunning(f"consumer {self.group} is not running: use `async with`")
        answer = as_reply(request, body, properties, flag)
        await send_reply(self._instance, self._wire_group, answer, timeout_ms)

    # Life

    async def start(self) -> None:
        """Join the group and begin; `async with` calls it.

        When it returns the first share of queues is taken.

        Raises NoNameServer when none answers, ValueError when nothing is subscribed, BrokerRefused
        where brokers do not filter by properties. A topic without a route is waited for.
        """
        if self._instance is not None:
            return
        if not self._wanted:
            raise ValueError(
                f"consumer {self.group} subscribes to nothing: call subscribe(topic) before start"
            )
        self._workers, self._ready, self._busy = Jobs(), ReadyQueues(), {}
        instance = self._instance = await instances.lease(self._config, self._wire_group)
        policy = self._policy(instance)
        membership = self._membership = Membership(
            instance,
            self._wire_group,
            policy,
            self._store(instance),
            self._ready.announce,
            self._consume_directly,
            self._told,
        )
        self._returns = Returns(
            instance, self._wire_group, self._reconsume_times_max, policy.unit_mode
        )
        for topic, expression in self._wanted.items():
            membership.want(wrap(self._namespace, topic), expression)
        if self._model is MessageModel.CLUSTERING:
            membership.want(wrap(self._namespace, RETRY_PREFIX + self._wire_group), "*")
        instance.add_consumer(membership)
        self._calls.open(self._concurrency)
        try:
            if self._tracer is not None:
                await self._tracer.start(trace_sender(self._config))
            await membership.join()
        except BaseException:
            await self.stop()
            raise
        membership.start_commits()
        for number in range(self._concurrency):
            self._workers.start(f"consume {self.group} {number}", self._work())
        if not self._orderly:
            self._workers.start(f"consume timeout {self.group}", self._watch_time())

    async def stop(self) -> None:
        """Stop pulling, let listeners finish (stop_timeout_ms), commit, leave the group.

        Cancelled, it leaves at once: what was not committed comes again.
        """
        instance, membership = self._instance, self._membership
        if instance is None or membership is None:
            return
        self._instance = None
        try:
            await membership.leave()
            self._ready.clear()
            await self._until_quiet()
            await self._workers.stop()
            await membership.say_goodbye()
            await membership.commit()
            await membership.unlock_all()
        except OffsetUnknown as problem:
            log.warning("stopping without a commit, messages will come again: %s", problem)
        finally:
            membership.jobs.cancel()
            self._workers.cancel()
            self._calls.close()
            try:
                if self._tracer is not None:
                    await self._tracer.stop()
                await instance.remove_consumer(membership)
            finally:
                await instances.release(instance, self._wire_group)

    async def _until_quiet(self) -> None:
        if not self._busy:
            return
        self._quiet.clear()
        try:
            async with asyncio.timeout(self._stop_timeout_ms / 1000):
                await self._quiet.wait()
        except TimeoutError:
            if not self._stop_timeout_ms:
                return
            log.warning("listeners still at work group=%s count=%d", self.group, len(self._busy))

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

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _policy(self, instance: ClientInstance) -> Policy:
        start_ms = (
            instance.clock.now_ms() - DEFAULT_START_AGE_MS
            if self._start_ms is None
            else self._start_ms
        )
        return Policy(
            ConsumeType.PUSH, self._model, self._start, start_ms, self._limits, self._pull_count,
            allocation=self._allocation, ordered=self._orderly,
            unit_mode=bool(self._config.unit_name),
        )  # fmt: skip

    def _store(self, instance: ClientInstance) -> OffsetStore:
        if self._model is MessageModel.CLUSTERING:
            return BrokerOffsets(instance, self._wire_group)
        path = self._offsets_dir / instance.client_id / self._wire_group / "offsets.json"
        return FileOffsets(path)

    # Consuming

    async def _work(self) -> None:
        number = id(asyncio.current_task())
        now_s = asyncio.get_running_loop().time
        while True:
            cache, messages = await self._ready.take_some(self._batch_count or self._turn_count)
            began_s = now_s()
            self._busy[number] = (began_s, cache, messages)
            try:
                if self._orderly:
                    await self._consume_in_order(cache, messages)
                else:
                    await self._consume(cache, messages)
            finally:
                del self._busy[number]
                if not self._busy:
                    self._quiet.set()
            took_s = now_s() - began_s
            if took_s < QUICK_S:
                self._turn_count = min(2 * self._turn_count, TURN_COUNT_MAX)
            else:  # others could have worked on the rest meanwhile
                self._turn_count = 1
            await asyncio.sleep(0)

    async def _call(
        self,
        cache: QueueCache,
        messages: list[ReceivedMessage],
        finished: list[ReceivedMessage],
    ) -> list[Failed]:
        """Call the listener; `finished` holds the messages as they are cached."""
        loop_s = asyncio.get_running_loop().time
        began_s = loop_s()
        if self._namespace:
            inside = {each.queue_offset: each for each in messages}
            shown: list[ReceivedMessage] = []
            told = [shown_message(self._namespace, each) for each in messages]
            failed = await self._calls.call(told, shown)
            finished += [inside[each.queue_offset] for each in shown]
            failed = [
                Failed(inside[each.message.queue_offset], each.delay_level, each.problem)
                for each in failed
            ]
        else:
            failed = await self._calls.call(messages, finished)
        assert self._membership is not None
        now_s = loop_s()
        cache.consumed_ms = self._membership.instance.clock.now_ms()
        self._membership.rates.consumed(
            cache.queue.topic, len(finished) - len(failed), len(failed), (now_s - began_s) * 1000
        )
        return failed

    async def _consume(self, cache: QueueCache, messages: list[ReceivedMessage]) -> None:
        membership = self._membership
        assert membership is not None
        finished: list[ReceivedMessage] = []
        failed: list[Failed] = []
        try:
            failed = await self._call(cache, messages, finished)
            if len(finished) < len(messages):
                cache.put_back(*messages[len(finished) :])
                self._ready.announce(cache)
        finally:  # cancelled in the middle: what is done is done
            if failed:
                again = {each.message.queue_offset for each in failed}
                finished = [each for each in finished if each.queue_offset not in again]
            membership.consumed(cache, *finished)
        for each in failed:
            await self._give_back(cache, each)

    async def _give_back(self, cache: QueueCache, failed: Failed) -> None:
        message = failed.message
        assert self._membership is not None and self._returns is not None
        if not cache.holds(message.queue_offset):
            return  # it took so long that it was sent back already
        if self._model is MessageModel.BROADCASTING:
            log.warning(
                "message skipped group=%s message_id=%s why=broadcasting",
                self.group,
                message.message_id,
            )
        elif not await self._returns.send_back(message, failed.delay_level):
            log.warning(
                "message kept here message_id=%s retry_s=%s", message.message_id, LOCAL_RETRY_S
            )
            again = replace(message, reconsume_times=message.reconsume_times + 1)
            name = f"retry {message.message_id}"
            self._workers.start(name, self._put_back_later(cache, LOCAL_RETRY_S, again))
            return
        self._membership.consumed(cache, message)

    async def _put_back_later(
        self, cache: QueueCache, pause_s: float, *messages: ReceivedMessage
    ) -> None:
        await asyncio.sleep(pause_s)
        cache.suspended = False
        if not cache.dropped:
            cache.put_back(*messages)
            self._ready.announce(cache)

    async def _watch_time(self) -> None:
        """Send messages back that their listener has had for too long; they are done here."""
        while True:
            await asyncio.sleep(min(self._consume_timeout_s, 60.0))
            now_s = asyncio.get_running_loop().time()
            for began_s, cache, messages in list(self._busy.values()):
                if now_s - began_s < self._consume_timeout_s:
                    continue
                for message in messages:
                    if cache.holds(message.queue_offset):
                        log.warning(
                            "listener takes too long group=%s message_id=%s",
                            self.group,
                            message.message_id,
                        )
                        await self._give_back(cache, Failed(message, TIMED_OUT_LEVEL, None))

    async def _consume_in_order(self, cache: QueueCache, messages: list[ReceivedMessage]) -> None:
        """Message by message (or batch by batch); the first that fails stops this queue."""
        membership = self._membership
        assert membership is not None
        rest = messages
        try:
            while rest and not cache.dropped:
                if asyncio.get_running_loop().time() >= cache.locked_until_s:
                    membership.relock()  # it announces the queue when the lock is ours again
                    break
                part = rest[: self._batch_count or 1]
                finished: list[ReceivedMessage] = []
                failed = await self._call(cache, part, finished)
                again = [each.message for each in failed]
                membership.consumed(cache, *[each for each in part if each not in again])
                rest = rest[len(part) :]
                again = [each for each in again if not await self._buried(cache, each)]
                if again:
                    rest = again + rest
                    self._suspend(cache, rest, len(again))
                    rest = []
        finally:
            if rest and not cache.dropped:
                cache.put_back(*rest)
            cache.work_ends()
            if asyncio.get_running_loop().time() < cache.locked_until_s:
                self._ready.announce(cache)

    def _suspend(self, cache: QueueCache, rest: list[ReceivedMessage], failed_count: int) -> None:
        """The queue waits; then it goes on with the messages that failed."""
        again = [
            replace(each, reconsume_times=each.reconsume_times + 1) for each in rest[:failed_count]
        ]
        cache.suspended = True
        self._workers.start(
            f"suspend {cache.queue}",
            self._put_back_later(cache, self._suspend_s, *again, *rest[failed_count:]),
        )

    async def _buried(self, cache: QueueCache, message: ReceivedMessage) -> bool:
        """A message that failed too often: away with it, and the queue goes on."""
        assert self._membership is not None and self._returns is not None
        limit = self._reconsume_times_max
        if limit is None or message.reconsume_times < limit:
            return False
        if self._model is MessageModel.CLUSTERING:
            if not await self._returns.send_to_retry_topic(message):
                return False
        else:
            log.warning("message skipped group=%s message_id=%s", self.group, message.message_id)
        self._membership.consumed(cache, message)
        return True

    async def _consume_directly(self, message: ReceivedMessage) -> DirectResult:
        """A tool wants to see what the listener does with this message; nothing is committed."""
        finished: list[ReceivedMessage] = []
        began_s = time.monotonic()
        failed = await self._calls.call([shown_message(self._namespace, message)], finished)
        took_ms = int((time.monotonic() - began_s) * 1000)
        problem = failed[0].problem if failed else None
        if problem is not None:
            outcome = DirectOutcome.RAISED
        else:
            outcome = DirectOutcome.LATER if failed else DirectOutcome.SUCCESS
        remark = f"{type(problem).__name__}: {problem}" if problem is not None else ""
        return DirectResult(outcome, remark, took_ms, self._orderly)


def _check_consumer_group(group: str) -> None:
    check_group(group)
    if group == "DEFAULT_CONSUMER":
        raise MessageRefused(
            "consumerGroup can not equal DEFAULT_CONSUMER, please specify another one."
        )
