"""The producer: sends messages, one attempt after the other until a broker has stored them."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from cluster.client import instance as instances
from cluster.client.config import ClientConfig, name_servers
from cluster.client.errors import CallTimedOut, ClientError, MessageRefused, NotRunning, SendFailed
from cluster.client.instance import ClientInstance
from cluster.client.message import Message, MessageQueue, SendResult, check_group
from cluster.client.selection import QueueRing, Selector, worth_retrying
from cluster.client.sending import (
    Prepared,
    compressed,
    prepare,
    prepare_batch,
    send_command,
    send_result,
)
from cluster.client.turns import Turns
from cluster.remoting import Command

log = logging.getLogger(__name__)

COMPRESSED_IN_THREAD_BYTES = (
    64 << 10
)  # zlib at 5 takes about 20 ms per MiB: too long for the event loop


class Producer:
    """Sends messages. Use it with `async with`; every method may be awaited by many tasks at once.

    group              producer group; brokers ask any member of it about transactions
    namesrv            "host:9876;host:9876", a sequence of addresses, or None for the environment's
                       NAMESRV_ADDR
    timeout_ms         for all attempts of one send together
    retries            further attempts after a failed one, on another broker when there is one; not
                       with a fixed queue or a selector
    body_bytes_max     larger bodies are refused here; the broker's maxMessageSize counts as well
    compress_above_bytes  bodies of at least this size travel and are stored compressed (zlib)
    in_flight_max      sends under way at once; further ones wait for their turn before their time
                       starts
    instance_name, tls see ClientConfig

    Example:
        async with Producer("shop", namesrv="127.0.0.1:9876") as producer:
            result = await producer.send(Message("Orders", b"17", tags="created", keys="order-17"))
            await asyncio.gather(*(producer.send(Message("Orders", body)) for body in bodies))
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        timeout_ms: int = 3_000,
        retries: int = 2,
        body_bytes_max: int = 4 << 20,
        compress_above_bytes: int = 4_096,
        in_flight_max: int = 1_024,
        instance_name: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check_group(group)
        if timeout_ms < 1 or retries < 0 or in_flight_max < 1 or body_bytes_max < 1:
            raise ValueError(
                "timeout_ms, in_flight_max and body_bytes_max must be at least 1, retries 0, "
                f"got {timeout_ms}, {in_flight_max}, {body_bytes_max}, {retries}"
            )
        self.group = group
        self._config = ClientConfig(name_servers(namesrv), instance_name, tls)
        self._timeout_ms = timeout_ms
        self._attempts = 1 + retries
        self._body_bytes_max = body_bytes_max
        self._compress_above_bytes = compress_above_bytes
        self._turns = Turns(in_flight_max)
        self._rings: dict[str, QueueRing] = {}
        self._instance: ClientInstance | None = None

    async def start(self) -> None:
        """Get ready; `async with` calls it. Connects nowhere yet: the first send does."""
        if self._instance is None:
            self._instance = await instances.lease(self._config)
            self._instance.add_producer(self.group)

    async def stop(self) -> None:
        """Leave the group and close connections.

        Sends under way fail with NotRunning or BrokerUnreachable.
        """
        instance, self._instance = self._instance, None
        if instance is not None:
            try:
                await instance.remove_producer(self.group)
            finally:
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
        await self.stop()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues a send to this topic may use, in a fixed order. Raises NoRoute, NoNameServer.

        Example: queue = (await producer.queues("Orders"))[0]
        """
        return await self._running().publish_queues(topic)

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store one message and return where.

        queue     exactly this queue; or
        selector  chooses from the publish list, e.g. by_key("order-17"). Both: one attempt only
        timeout_ms  for this call instead of the producer's

        Only a result with status SEND_OK is a promise. Duplicates are normal after a failed
        attempt: the message id stays the same, consumers can tell.
        Raises MessageRefused, NoRoute, NoNameServer, BrokerRefused (code and remark of the broker),
        SendFailed (all attempts), BrokerUnreachable, CallTimedOut, NotRunning.

        Example: result = await producer.send(Message("Orders", b"17"), selector=by_key("order-17"))
        """
        async with self._turns:
            return await self._deliver(
                await self._prepare(message), message, queue, selector, timeout_ms
            )

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store several messages of one topic together, in order, in one queue: all or none.

        Raises as send(); MessageRefused also for mixed topics, delayed messages, or more than
        body_bytes_max in all.

        Example: await producer.send_batch([Message("Orders", b"1"), Message("Orders", b"2")])
        """
        now_ms = self._running().clock.now_ms()
        ids = [self._running().ids.next(now_ms) for _ in messages]
        what = prepare_batch(messages, ids, now_ms, self._body_bytes_max)
        async with self._turns:
            return await self._deliver(what, messages[0], queue, None, timeout_ms)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> None:
        """Write one message to the connection and return: no answer, no retry, no promise.

        Raises as send() for what is known before writing: MessageRefused, NoRoute, NoNameServer,
        BrokerUnreachable.

        Example: await producer.send_oneway(Message("Clicks", b"home"))
        """
        async with self._turns:
            what = await self._prepare(message)
            instance = self._running()
            chosen = await self._choose(message, queue, selector, None)
            address = await instance.master_address(chosen.broker_name, what.topic)
            command = send_command(what, chosen, self.group)
            await instance.connections.oneway(address, command, self._timeout_ms)

    async def _prepare(self, message: Message) -> Prepared:
        instance = self._running()
        if len(message.body) > self._body_bytes_max:
            raise MessageRefused(
                f"the message body size over max value, MAX: {self._body_bytes_max}, "
                f"got {len(message.body)} bytes"
            )
        if len(message.body) >= COMPRESSED_IN_THREAD_BYTES:
            packed = await asyncio.to_thread(
                compressed, message.body, self._compress_above_bytes, 5
            )
        else:
            packed = compressed(message.body, self._compress_above_bytes, 5)
        now_ms = instance.clock.now_ms()
        return prepare(message, instance.ids.next(now_ms), now_ms, *packed)

    async def _choose(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        failed_broker: str | None,
    ) -> MessageQueue:
        if queue is not None:
            if queue.topic != message.topic:
                raise MessageRefused(f"queue {queue} is not one of topic {message.topic}")
            await self._running().publish_queues(message.topic)  # addresses must be known
            return queue
        queues = await self._running().publish_queues(message.topic)
        if selector is not None:
            return selector(queues, message)
        ring = self._rings.get(message.topic)
        if ring is None:
            ring = self._rings[message.topic] = QueueRing(self._running().rng)
        return ring.pick(queues, failed_broker)

    async def _deliver(
        self,
        what: Prepared,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_ms: int | None,
    ) -> SendResult:
        attempts = 1 if queue is not None or selector is not None else self._attempts
        first = await self._choose(message, queue, selector, None)
        budget = _Budget(
            asyncio.get_running_loop().time, self._timeout_ms if timeout_ms is None else timeout_ms
        )
        tried: list[str] = []
        causes: list[ClientError] = []
        while len(tried) < attempts:
            chosen = first if not tried else await self._choose(message, None, None, tried[-1])
            left_ms = budget.left_ms()
            if left_ms <= 0:
                causes.append(CallTimedOut(f"sendDefaultImpl call timeout: {budget.spent_ms()} ms"))
                break
            try:
                return await self._attempt(what, chosen, left_ms)
            except ClientError as problem:
                tried.append(chosen.broker_name)
                causes.append(problem)
                if attempts == 1 or not worth_retrying(problem):
                    raise
                self._running().refresh_soon()
                log.debug(
                    "send attempt failed topic=%s broker=%s why=%s",
                    what.topic,
                    chosen.broker_name,
                    problem,
                )
        raise SendFailed(what.topic, tried, causes, budget.spent_ms()) from causes[-1]

    async def _attempt(self, what: Prepared, queue: MessageQueue, timeout_ms: int) -> SendResult:
        instance = self._running()
        address = instance.brokers.master(queue.broker_name) or await instance.master_address(
            queue.broker_name, what.topic
        )
        answer: Command = await instance.connections.request(
            address, send_command(what, queue, self.group), timeout_ms
        )
        return send_result(answer, what, queue, address)

    def _running(self) -> ClientInstance:
        if self._instance is None:
            raise NotRunning(
                f"producer {self.group} is not running: use `async with Producer(...) as producer`"
            )
        return self._instance


class _Budget:
    """Time for all attempts of one send."""

    def __init__(self, time_s: Callable[[], float], timeout_ms: int) -> None:
        self._time_s = time_s
        self._began_s = time_s()
        self._timeout_ms = timeout_ms

    def spent_ms(self) -> int:
        return int((self._time_s() - self._began_s) * 1000)

    def left_ms(self) -> int:
        return self._timeout_ms - self.spent_ms()
