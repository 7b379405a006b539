"""The producer: sends messages, one attempt after the other until a broker has stored them."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self

from tandemmq.cluster.client.compression import Compression
from tandemmq.cluster.client.config import ClientConfig, one_config
from tandemmq.cluster.client.errors import (
    BrokerRefused,
    CallTimedOut,
    ClientError,
    MessageRefused,
    NotRunning,
    SendFailed,
)
from tandemmq.cluster.client.hooks import SendContext, SendHook, call_hooks
from tandemmq.cluster.client.message import Message, MessageQueue, SendResult, check_group
from tandemmq.cluster.client.namespaces import wrap
from tandemmq.cluster.client.producing.budget import Budget, part_ms
from tandemmq.cluster.client.producing.faults import LatencyFaults
from tandemmq.cluster.client.producing.pipeline import SendFuture, SendRules, Sends, each_of
from tandemmq.cluster.client.producing.replies import Reply
from tandemmq.cluster.client.producing.requesting import Requesting
from tandemmq.cluster.client.producing.selection import QueueRing, Selector, by_key, worth_retrying
from tandemmq.cluster.client.producing.sending import (
    Prepared,
    compressed,
    prepare,
    prepare_batch,
    send_command,
    send_result,
)
from tandemmq.cluster.client.producing.transactions import (
    HalfSends,
    Transaction,
    TransactionalSends,
    TransactionCheck,
)
from tandemmq.cluster.client.reaching import instance as instances
from tandemmq.cluster.client.reaching.calls import recall_message
from tandemmq.cluster.client.reaching.instance import ClientInstance
from tandemmq.cluster.client.reaching.probing import Prober
from tandemmq.cluster.client.tracing import (
    IN_FLIGHT_MAX,
    SEND_TIMEOUT_MS,
    TRACE_GROUP,
    Tracer,
)
from tandemmq.cluster.remoting.recall import RecallHandle

log = logging.getLogger(__name__)

COMPRESSED_IN_THREAD_BYTES: Final = (
    64 << 10
)  # zlib at 5 takes about 20 ms per MiB: too long for the event loop
_SEND_ARGUMENTS: Final = ("queue", "selector", "ordering_key", "timeout_ms")
PIPELINED_BETWEEN_YIELDS: Final = 64  # sends of send_many() between two looks at the event loop


class Producer:
    """Sends messages. Use it with `async with`; every method may be awaited by many tasks at once.

    group              producer group: the name under which brokers list who sends
    namesrv            "host:9876;host:9876", a sequence of addresses, or None for the environment's
                       NAMESRV_ADDR
    timeout_ms         for all attempts of one send together
    attempt_timeout_ms  for each attempt but the last one. None: where several brokers have the topic,
                       each attempt but the last gets half of the time that is left, so that one
                       silent broker leaves time for another; where one has it, all that is left
    retries            further attempts after a failed one, on another broker when there is one, else
                       on the one whose master it is by then; not with a fixed queue or a selector
    retry_unless_ok    try again also when the broker stored the message but SendStatus is not SEND_OK
    body_bytes_max     larger bodies are refused here; the broker's maxMessageSize counts as well
    compress_above_bytes  bodies of at least this size travel and are stored compressed
    compression, compression_level  how; ZLIB at 5 is what every RocketMQ client reads
    in_flight_max, in_flight_bytes_max  sends under way at once; further ones wait for their turn
                       before their time starts
    avoid_slow_brokers  RocketMQ's sendLatencyFaultEnable: brokers that were slow or failed get no
                       messages for up to 30 s while another one can take them
    probe_brokers      its startDetectorEnable: failed brokers are asked every 2 s whether they are back
    check_transaction  for transaction(): called with a message that this or another producer of the group stored and
                       did not end, it says how that transaction ended, or UNKNOWN to be asked again. It looks up what
                       became of the application's own part, and changes nothing: it may be asked in any process of
                       the group, more than once, and while another process still works on the transaction
    check_timeout_ms   for each call of it; one that takes longer, or raises, counts as UNKNOWN. 16 run at once
    add_properties     called with each message; what it gives is sent with it, e.g. a traceparent
    serializer         makes the body of send_value(): value -> bytes
    hooks              see SendHook. Hooks, signatures, namespaces and avoid_slow_brokers cost a task
                       per send
    trace_topic        write traces of sends and transactions there, TRACE_TOPIC or another; None: none. In the
                       background: what cannot be written is dropped
    instance_name, tls, config  see ClientConfig

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
        attempt_timeout_ms: int | None = None,
        retries: int = 2,
        retry_unless_ok: bool = False,
        body_bytes_max: int = 4 << 20,
        compress_above_bytes: int = 4_096,
        compression: Compression = Compression.ZLIB,
        compression_level: int = 5,
        in_flight_max: int = 4_096,
        in_flight_bytes_max: int = 32 << 20,
        avoid_slow_brokers: bool = False,
        probe_brokers: bool = False,
        check_transaction: TransactionCheck | None = None,
        check_timeout_ms: int = 10_000,
        add_properties: Callable[[Message], Mapping[str, str]] | None = None,
        serializer: Callable[[Any], bytes] | None = None,
        hooks: Sequence[SendHook] = (),
        trace_topic: str | None = None,
        instance_name: str = "",
        tls: ssl.SSLContext | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        check_group(group)
        for name, value in {
            "timeout_ms": timeout_ms,
            "attempt_timeout_ms": attempt_timeout_ms or 1,
            "in_flight_max": in_flight_max,
            "in_flight_bytes_max": in_flight_bytes_max,
            "body_bytes_max": body_bytes_max,
            "retries + 1": retries + 1,
            "check_timeout_ms": check_timeout_ms,
        }.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self._config = one_config(config, namesrv, instance_name, tls)
        self.group = group
        self._wire_group = wrap(self._config.namespace, group)
        self._attempt_timeout_ms = attempt_timeout_ms
        self._retry_unless_ok = retry_unless_ok
        self._body_bytes_max = body_bytes_max
        self._compress_above_bytes = compress_above_bytes
        self._compression = compression
        self._compression_level = compression_level
        self._add_properties = add_properties
        self._serializer = serializer
        self._hooks = tuple(hooks)
        self._tracer = Tracer(group, trace_topic) if trace_topic is not None else None
        self._faults = LatencyFaults() if avoid_slow_brokers else None
        self._prober = Prober(self._faults) if self._faults and probe_brokers else None
        self._rings: dict[str, QueueRing] = {}
        self._instance: ClientInstance | None = None
        self._sends: Sends | None = None
        self._requesting: Requesting | None = None
        self._rules = SendRules(
            self._wire_group,
            timeout_ms,
            part_ms(timeout_ms, 1 + retries, attempt_timeout_ms),
            1 + retries,
            in_flight_max,
            in_flight_bytes_max,
            min(compress_above_bytes - 1, body_bytes_max),
            retry_unless_ok,
            general=bool(
                hooks or avoid_slow_brokers or self._config.credentials or self._config.namespace
            ),
        )
        self._timeout_ms = timeout_ms
        self._transactions = TransactionalSends(
            HalfSends(self._prepare, self._choose, self._attempt, self._at_work),
            self._wire_group,
            self._config.namespace,
            1 + retries,
            timeout_ms,
            check_transaction,
            check_timeout_ms,
            self._tracer,
        )

    # Life

    async def start(self) -> None:
        """Get ready; `async with` calls it. Connects nowhere yet: the first send does."""
        if self._instance is not None:
            return
        instance = self._instance = await instances.lease(self._config)
        instance.add_producer(self._wire_group)
        self._transactions.open_for(instance)
        self._sends = Sends(instance, self._rules, self._rings, self._deliver)
        self._requesting = Requesting(instance, self._rules.in_flight_max)
        if self._prober is not None:
            self._prober.start(instance)
        if self._tracer is not None:
            await self._tracer.start(trace_sender(self._config))

    async def stop(self) -> None:
        """Wait for the sends and requests under way (at most their own time), leave the group, close connections.

        Cancelled, it gives the rest up: their futures get NotRunning.
        """
        instance, sends, requesting = self._instance, self._sends, self._requesting
        if instance is None or sends is None or requesting is None:
            return
        self._instance = None
        try:
            await requesting.drain()
            await sends.drain()
            await self._transactions.close(instance)
            if self._prober is not None:
                await self._prober.stop()
        finally:
            sends.abandon()
            try:
                await requesting.stop()
                if self._tracer is not None:
                    await self._tracer.stop()
                await instance.remove_producer(self._wire_group)
            finally:
                await instances.release(instance)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues a send to this topic may use, in a fixed order. Raises NoRoute, NoNameServer.

        Example: queue = (await producer.queues("Orders"))[0]
        """
        self._running()
        return await self._queues(topic)

    # Sending

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        ordering_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendFuture:
        """Store one message; awaiting gives where. The send has begun when this returns.

        queue     exactly this queue; or
        selector  chooses from the publish list; or
        ordering_key  messages of one key go to one queue, in the order of their sends while each is
                  awaited before the next; the same as selector=by_key(key). All three: one attempt
        timeout_ms  for this call instead of the producer's

        Only a result with status SEND_OK is a promise. Duplicates are normal after a failed
        attempt: the message id stays the same, consumers can tell.
        Awaiting raises MessageRefused, NoRoute, NoNameServer, BrokerRefused (code and remark of the
        broker), SendFailed (all attempts), BrokerUnreachable, CallTimedOut. Raises NotRunning at once.

        Example: result = await producer.send(Message("Orders", b"17"), selector=by_key("order-17"))
        """
        sends = self._sends
        if sends is None or self._instance is None:
            raise self._not_running()
        if ordering_key is not None:
            selector = _one_choice(queue, selector, ordering_key)
        if self._add_properties is not None:
            message = self._with_properties(message)
        if self._tracer is None:
            return sends.begin(message, queue, selector, timeout_ms)
        return self._begin(sends, message, queue, selector, timeout_ms)

    def _begin(
        self,
        sends: Sends,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_ms: int | None,
    ) -> SendFuture:
        future = sends.begin(message, queue, selector, timeout_ms)
        if self._tracer is not None:
            future.add_done_callback(partial(self._tracer.send_ended, sends.instance))
        return future

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        ordering_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> Reply:
        """Send a message and wait for the reply of a consumer that calls reply() on it.

        queue, selector, ordering_key  as of send()
        timeout_ms  for the send, the consumer's work and the reply together, instead of the
                    producer's
        At most in_flight_max at once, further ones wait for their turn. A reply that comes later is
        dropped. Of several replies the first one counts.
        Raises NoReply, and as awaiting send(); NotRunning when the producer is stopped.

        Example: reply = await producer.request(Message("Prices", b"17"), timeout_ms=2_000)
        """
        sends, requesting = self._sends, self._requesting
        if sends is None or requesting is None or self._instance is None:
            raise self._not_running()
        chosen = _one_choice(queue, selector, ordering_key)
        if self._add_properties is not None:
            message = self._with_properties(message)
        return await requesting.ask(
            message,
            wrap(self._config.namespace, message.topic),
            self._timeout_ms if timeout_ms is None else timeout_ms,
            lambda asked, within_ms: self._begin(sends, asked, queue, chosen, within_ms),
        )

    def send_value(self, topic: str, value: Any, **more: Any) -> SendFuture:
        """send() a message with the body that the serializer makes of `value`.

        more  arguments of Message (tags, keys, properties ...) and of send() (ordering_key ...)
        Raises ValueError without a serializer, what that raises, and as send().

        Example: await producer.send_value("Orders", {"id": 17}, keys="order-17")
        """
        if self._serializer is None:
            raise ValueError("give the producer a serializer, e.g. msgspec.json.encode")
        sending = {name: more.pop(name) for name in _SEND_ARGUMENTS if name in more}
        return self.send(Message(topic, self._serializer(value), **more), **sending)

    def transaction(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> Transaction:
        """A message that consumers see if and only if what the application does inside `async with` succeeds.

        queue, selector  as for send(). timeout_ms: for storing it, and for ending it, instead of the producer's
        Entering raises as awaiting send() does, BrokerRefused also where the half message is not as safe as the
        broker promises; then nothing inside has run. It is not sent again where it may have been stored.
        Raises ValueError without check_transaction, MessageRefused for a delayed message.

        Example:
            async with Producer("shop", check_transaction=was_order_stored) as producer:
                async with producer.transaction(Message("Orders", b"17", keys="order-17")) as transaction:
                    await store_order(17, transaction.message_id)
        """
        self._running()
        if self._add_properties is not None:
            message = self._with_properties(message)
        return self._transactions.begin(message, queue, selector, timeout_ms)

    def _with_properties(self, message: Message) -> Message:
        assert self._add_properties is not None
        added = self._add_properties(message)
        return message.with_properties(added) if added else message

    @property
    def in_flight(self) -> int:
        """Sends under way now, those in line not counted."""
        return self._sends.count if self._sends is not None else 0

    async def room(self) -> None:
        """Wait until a send would start at once: for loops that send without awaiting each result.

        Example:
            for body in bodies:
                await producer.room()
                producer.send(Message("Clicks", body)).add_done_callback(count)
        """
        self._running()
        assert self._sends is not None
        sends = self._sends
        if sends.roomy:
            await asyncio.sleep(0)  # let the loop write and read
        else:
            await sends.until(lambda: sends.roomy)

    async def send_many(
        self,
        messages: Iterable[Message] | AsyncIterable[Message],
        *,
        selector: Selector | None = None,
    ) -> AsyncIterator[SendResult]:
        """Send as fast as brokers take them; yields each result, in the order of `messages`.

        At most in_flight_max messages, in_flight_bytes_max bytes, are taken from `messages` before
        their results are yielded. The first failure is raised, as by send(); messages after it that
        were already taken are awaited first, so that none is under way any more.

        Example:
            async for result in producer.send_many(Message("Clicks", body) for body in bodies):
                last = result.queue_offset
        """
        self._running()
        sends = self._sends
        assert sends is not None
        under_way: deque[SendFuture] = deque()
        try:
            count = 0
            async for message in each_of(messages):
                while under_way and (
                    len(under_way) >= self._rules.in_flight_max or not sends.roomy
                ):
                    yield await under_way.popleft()
                under_way.append(self.send(message, selector=selector))
                count += 1
                if count % PIPELINED_BETWEEN_YIELDS == 0:
                    await asyncio.sleep(0)
                    while under_way and under_way[0].done():
                        yield under_way.popleft().result()
            while under_way:
                yield await under_way.popleft()
        finally:
            if under_way:
                await asyncio.gather(*under_way, return_exceptions=True)

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
        instance = self._running()
        if self._add_properties is not None:
            messages = [self._with_properties(message) for message in messages]
        now_ms = instance.clock.now_ms()
        ids = [instance.ids.next(now_ms) for _ in messages]
        what = prepare_batch(
            messages, ids, now_ms, self._body_bytes_max, self._config.namespace, self._unit_mode
        )
        await self.room()
        began_s = asyncio.get_running_loop().time()
        budget = Budget(began_s, self._timeout_ms if timeout_ms is None else timeout_ms)
        result = await self._attempts(what, messages, queue, None, budget, [], [])
        if self._tracer is not None:
            self._tracer.sent(instance, messages, result, now_ms, budget.spent_ms())
        return result

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
        instance = self._running()
        if self._add_properties is not None:
            message = self._with_properties(message)
        what = await self._prepare(message, "")
        chosen = await self._choose(message, queue, selector, None, self._timeout_ms)
        wired = self._wired(chosen)
        address = await instance.master_address(chosen.broker_name, what.topic)
        context = self._context(what, [message], chosen, address)
        command = send_command(what, wired, self._wire_group)
        try:
            await instance.connections.oneway(address, command, self._timeout_ms)
        except ClientError as problem:
            self._after(context, None, problem, 0)
            raise
        self._after(context, None, None, 0)

    async def recall(self, sent: SendResult | str) -> str:
        """Have a message not delivered whose delivery time is not there yet; its message_id.

        sent  its result, or the recall_handle of that
        Brokers need recallMessageEnable=true. The message may be on its way when its second has begun. Raises
        MessageRefused for what is no handle; BrokerRefused: too late, or switched off; else as send().

        Example:
            result = await producer.send(Message("Reminders", b"pay order 17", delay_s=3600))
            await producer.recall(result)
        """
        self._running()
        handle = sent if isinstance(sent, str) else sent.recall_handle
        try:
            what = RecallHandle.decode(handle)
        except ValueError as problem:
            raise MessageRefused(
                f"{problem}: only a message that was sent with a delivery time has one, got {handle!r}"
            ) from None
        instance = self._at_work()
        await instance.publish_queues(what.topic)  # addresses must be known
        address = await instance.master_address(what.broker_name, what.topic)
        return await recall_message(
            instance.connections, address, self._wire_group, what.topic, handle, what.broker_name,
            self._timeout_ms,
        )  # fmt: skip

    # One send on the general way

    async def _deliver(self, future: SendFuture) -> SendResult:
        message: Message = future.message
        what = await self._prepare(message, future.unique_id)
        future.unique_id = what.unique_id
        timeout_ms = self._timeout_ms if future.timeout_ms is None else future.timeout_ms
        result = await self._attempts(
            what,
            [message],
            future.wanted_queue,
            future.selector,
            Budget(future.began_s, timeout_ms),
            future.tried,
            future.causes,
        )
        if self._sends is not None and self._instance is not None:
            self._sends.learn(message.topic, self._instance.brokers.publish_queues(what.topic))
        return result

    async def _prepare(self, message: Message, unique_id: str) -> Prepared:
        """unique_id: of an earlier attempt, or "" for a new one."""
        instance = self._at_work()
        if len(message.body) > self._body_bytes_max:
            raise MessageRefused(
                f"the message body size over max value, MAX: {self._body_bytes_max}, "
                f"got {len(message.body)} bytes for topic {message.topic}: send less, or raise "
                "body_bytes_max here and maxMessageSize at the broker"
            )
        how = (self._compress_above_bytes, self._compression_level, self._compression)
        if len(message.body) >= max(COMPRESSED_IN_THREAD_BYTES, self._compress_above_bytes):
            packed = await asyncio.to_thread(compressed, message.body, *how)
        else:
            packed = compressed(message.body, *how)
        now_ms = instance.clock.now_ms()
        return prepare(
            message,
            unique_id or instance.ids.next(now_ms),
            now_ms,
            *packed,
            self._config.namespace,
            self._unit_mode,
        )

    async def _queues(self, topic: str, within_ms: int = 0) -> tuple[MessageQueue, ...]:
        """The publish list under the application's names; within_ms: to wait for a master."""
        namespace = self._config.namespace
        queues = await self._at_work().publish_queues(wrap(namespace, topic), within_ms)
        if not namespace:
            return queues
        return tuple(MessageQueue(topic, each.broker_name, each.queue_id) for each in queues)

    async def _several(self, topic: str) -> bool:
        """Whether more than one broker takes messages of the topic."""
        queues = await self._queues(topic)
        return any(queue.broker_name != queues[0].broker_name for queue in queues)

    async def _choose(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        failed_broker: str | None,
        within_ms: int,
    ) -> MessageQueue:
        if queue is not None:
            if queue.topic != message.topic:
                raise MessageRefused(f"queue {queue} is not one of topic {message.topic}")
            await self._queues(message.topic, within_ms)  # addresses must be known
            return queue
        queues = await self._queues(message.topic, within_ms)
        if selector is not None:
            return selector(queues, message)
        ring = self._rings.get(message.topic)
        if ring is None:
            ring = self._rings[message.topic] = QueueRing(self._at_work().rng)
        faults = self._faults
        if faults is None:
            return ring.pick(queues, failed_broker)
        now_ms = self._monotonic_ms()
        return ring.pick(
            queues, failed_broker, [lambda name: faults.available(name, now_ms), faults.reachable]
        )

    async def _attempts(
        self,
        what: Prepared,
        messages: Sequence[Message],
        queue: MessageQueue | None,
        selector: Selector | None,
        budget: Budget,
        tried: list[str],
        causes: list[ClientError],
    ) -> SendResult:
        """Attempts until one succeeds, none is left or the time is over.

        tried, causes: of attempts made before
        """
        attempts = 1 if queue is not None or selector is not None else self._rules.attempts
        while len(tried) < attempts:
            avoided = tried[-1] if tried else None
            if avoided is not None and causes:
                await self._at_work().look_for_master(avoided, what.topic, budget.left_ms())
            chosen = await self._choose(messages[0], queue, selector, avoided, budget.left_ms())
            left_ms = budget.left_ms()
            if left_ms <= 0:
                causes.append(
                    CallTimedOut(
                        f"sendDefaultImpl call timeout: {budget.spent_ms()} ms", topic=what.topic
                    )
                )
                break
            left = attempts - len(tried)
            if left > 1 and (self._attempt_timeout_ms or await self._several(messages[0].topic)):
                left_ms = part_ms(left_ms, left, self._attempt_timeout_ms)
            try:
                result = await self._attempt(what, messages, chosen, left_ms)
            except ClientError as problem:
                tried.append(chosen.broker_name)
                causes.append(problem)
                if attempts == 1 or not worth_retrying(problem):
                    raise
                self._at_work().refresh_soon()
                log.debug(
                    "send attempt failed topic=%s broker=%s why=%s",
                    what.topic,
                    chosen.broker_name,
                    problem,
                )
                continue
            tried.append(chosen.broker_name)
            if result.ok or not self._retry_unless_ok or len(tried) >= attempts:
                return result
        raise SendFailed(what.topic, tried, causes, budget.spent_ms()) from causes[-1]

    async def _attempt(
        self, what: Prepared, messages: Sequence[Message], queue: MessageQueue, timeout_ms: int
    ) -> SendResult:
        instance = self._at_work()
        began_ms = self._monotonic_ms()
        address = instance.brokers.master(queue.broker_name) or await instance.master_address(
            queue.broker_name, what.topic
        )
        context = self._context(what, messages, queue, address)
        result: SendResult | None = None
        failure: ClientError | None = None
        try:
            command = send_command(what, self._wired(queue), self._wire_group)
            answer = await instance.connections.request(address, command, timeout_ms)
            result = send_result(answer, messages[0].topic, what.unique_id, queue, address)
            return result
        except ClientError as problem:
            failure = problem
            raise
        finally:  # of a cancelled attempt too
            now_ms = self._monotonic_ms()
            self._after(context, result, failure, now_ms - began_ms)
            if self._faults is not None:
                refused = isinstance(failure, BrokerRefused)
                self._faults.called(
                    queue.broker_name,
                    now_ms - began_ms,
                    now_ms,
                    failed=failure is not None,
                    # with probes, a broker that could not be reached stays out until one succeeds
                    reachable=failure is None or (self._prober is None and not refused),
                )

    def _context(
        self, what: Prepared, messages: Sequence[Message], queue: MessageQueue, address: str
    ) -> SendContext | None:
        if not self._hooks:
            return None
        ids = what.unique_id.split(",")
        context = SendContext(self.group, messages, ids, queue, address, self._now_ms())
        call_hooks([hook.before_send for hook in self._hooks], context)
        return context

    def _after(
        self,
        context: SendContext | None,
        result: SendResult | None,
        problem: ClientError | None,
        cost_ms: int,
    ) -> None:
        if context is not None:
            context.result, context.problem, context.cost_ms = result, problem, cost_ms
            call_hooks([hook.after_send for hook in self._hooks], context)

    # Small things

    def _wired(self, queue: MessageQueue) -> MessageQueue:
        """The queue under the name that brokers know."""
        namespace = self._config.namespace
        if not namespace:
            return queue
        return MessageQueue(wrap(namespace, queue.topic), queue.broker_name, queue.queue_id)

    @property
    def _unit_mode(self) -> bool:
        return bool(self._config.unit_name)

    def _now_ms(self) -> int:
        return self._at_work().clock.now_ms()

    def _monotonic_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _at_work(self) -> ClientInstance:
        """Sends outlive `_instance` while stop() waits for them."""
        sends = self._sends
        if sends is None:
            raise self._not_running()
        return sends.instance

    def _running(self) -> ClientInstance:
        if self._instance is None:
            raise self._not_running()
        return self._instance

    def _not_running(self) -> NotRunning:
        return NotRunning(
            f"producer {self.group} is not running: use `async with Producer(...) as producer`"
        )


def _one_choice(
    queue: MessageQueue | None, selector: Selector | None, ordering_key: str | None
) -> Selector | None:
    """The selector that the three ways of choosing a queue come to. Raises ValueError when two are given."""
    if ordering_key is None:
        return selector
    if selector is not None or queue is not None:
        raise ValueError("give queue, selector or ordering_key, one of the three")
    return by_key(ordering_key)


def trace_sender(config: ClientConfig) -> Producer:
    """A producer for trace messages, over the connections of whoever has the same config."""
    return Producer(
        TRACE_GROUP, timeout_ms=SEND_TIMEOUT_MS, in_flight_max=IN_FLIGHT_MAX, config=config
    )
