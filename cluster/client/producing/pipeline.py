"""Sends under way: in line, on the wire, or in a task where the fast way is not open."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Sequence,
)
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from tandemmq.cluster.client.errors import ClientError, NotRunning, WrongLoop
from tandemmq.cluster.client.hot import SendHead, send_frame
from tandemmq.cluster.client.message import Message, MessageQueue, SendResult
from tandemmq.cluster.client.producing.selection import QueueRing, Selector, worth_retrying
from tandemmq.cluster.client.producing.sending import send_result
from tandemmq.cluster.client.reaching.instance import ClientInstance
from tandemmq.cluster.remoting import Channel, Command

log = logging.getLogger(__name__)

FRAME_BYTES: Final = 600  # about what a send takes beyond its body, here and in the answer's way

if TYPE_CHECKING:

    class _Awaited(asyncio.Future[SendResult], Coroutine[Any, Any, SendResult]):
        """A future that create_task() and TaskGroup take as well."""
else:
    _Awaited = asyncio.Future


class SendFuture(_Awaited):
    """What send() returns: await it, gather it, or give it to a task; cancelling gives the send up.

    The message is on its way when you get this, also if you never await it. A cancelled send may
    have been stored.

    Example:
        under_way = [producer.send(message) for message in messages]
        results = await asyncio.gather(*under_way)
    """

    __slots__ = (
        "_steps",
        "began_s",
        "causes",
        "channel",
        "deadline_s",
        "message",
        "opaque",
        "queue",
        "selector",
        "sends",
        "size",
        "state",
        "task",
        "timeout_ms",
        "tried",
        "unique_id",
        "wanted_queue",
    )

    began_s: float  # loop time
    deadline_s: float
    state: int
    sends: Sends
    message: Message
    wanted_queue: MessageQueue | None
    selector: Selector | None
    timeout_ms: int | None
    size: int
    unique_id: str
    queue: MessageQueue  # ON_WIRE, as are the next two
    opaque: int
    channel: Channel
    task: asyncio.Task[None]  # IN_TASK, as are the next two
    tried: list[str]
    causes: list[ClientError]

    # As a Pending of tandemmq.cluster.client.reaching.answers

    def stored(self, result: SendResult) -> None:
        """SEND_OK, read by the fast path."""
        self.sends.left(self)
        if not self.done():
            self.set_result(result)

    def answered(self, answer: Command) -> None:
        """Any other answer."""
        self.sends.answered(self, answer)

    def failed(self, problem: ClientError) -> None:
        """No answer will come."""
        self.sends.failed(self, problem)

    def about(self) -> str:
        """The topic."""
        return self.message.topic

    # As a coroutine: Task.__init__ asks for these

    def send(self, value: Any) -> Any:
        """Go on, as a coroutine does; for asyncio."""
        if not hasattr(self, "_steps"):
            self._steps: Generator[Any, None, SendResult] = self.__await__()
        return self._steps.send(value)

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Any:
        """Raise inside, as a coroutine does; for asyncio."""
        if not hasattr(self, "_steps"):
            self._steps = self.__await__()
        problem = kind if value is None else value
        return self._steps.throw(problem)

    def close(self) -> None:
        """Nothing to close; for asyncio."""

    def cancel(self, msg: Any = None) -> bool:
        """Give the send up: no retry, no result."""
        cancelled = super().cancel(msg)
        if cancelled:
            self.sends.given_up(self)
        return cancelled


# SendFuture.state
IN_LINE: Final = 0
ON_WIRE: Final = 1
IN_TASK: Final = 2
OVER: Final = 3


@dataclass(frozen=True, slots=True)
class SendRules:
    """What a producer was told about all its sends."""

    group: str
    timeout_ms: int  # for all attempts together, and for a send of which there is one only
    first_timeout_ms: int  # for the first of several, where another broker can take the message
    attempts: int
    in_flight_max: int
    in_flight_bytes_max: int
    fast_bytes_max: int  # larger bodies are compressed or refused: not the fast way
    retry_unless_ok: bool
    general: bool  # hooks, signatures, namespaces or fault tolerance: every send takes a task


@dataclass(slots=True)
class Lane:
    """One queue with an open channel to its master, or None."""

    head: SendHead
    channel: Channel | None


class Lanes:
    """One topic's queues, as long as no route changes.

    several  on more than one broker
    """

    __slots__ = ("count", "lanes", "ring", "several", "version")

    def __init__(self, lanes: Sequence[Lane], ring: QueueRing, version: int) -> None:
        self.lanes = lanes
        self.several = len({lane.head.queue.broker_name for lane in lanes}) > 1
        self.count = len(lanes)
        self.ring = ring
        self.version = version


class Sends:
    """All sends of one producer between start and stop.

    deliver  the general way: attempts, one after the other; the pipeline is its fast start
    """

    def __init__(
        self,
        instance: ClientInstance,
        rules: SendRules,
        rings: dict[str, QueueRing],
        deliver: Callable[[SendFuture], Awaitable[SendResult]],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.instance = instance
        self._rules = rules
        self._rings = rings
        self._deliver = deliver
        self._lanes: dict[str, Lanes] = {}
        self._line: deque[SendFuture] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: list[asyncio.Future[None]] = []
        self._closed = False
        self._abandoned = False
        self.count = 0
        self.byte_count = 0

    # Room

    @property
    def roomy(self) -> bool:
        """Whether one more send could start at once."""
        rules = self._rules
        return (
            self.count < rules.in_flight_max
            and self.byte_count < rules.in_flight_bytes_max
            and not self._line
        )

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self.count and not self._line

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it holds; looked at whenever a send is over."""
        while not holds():
            change = self._loop.create_future()
            self._watchers.append(change)
            try:
                await change
            finally:
                if change in self._watchers:
                    self._watchers.remove(change)

    # A send's life

    def begin(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_ms: int | None,
    ) -> SendFuture:
        """Start a send, or put it in line. Raises WrongLoop; else, whatever goes wrong, the future tells."""
        if asyncio._get_running_loop() is not self._loop:
            raise WrongLoop(
                f"producer {self._rules.group} was started on another event loop, or this is a "
                "thread without one: from there use "
                "asyncio.run_coroutine_threadsafe(send_it(), loop).result(), where send_it() is a "
                "coroutine that awaits producer.send(...)"
            )
        future = SendFuture(loop=self._loop)
        future.sends = self
        future.message = message
        future.wanted_queue = queue
        future.selector = selector
        future.timeout_ms = timeout_ms
        future.size = len(message.body) + FRAME_BYTES
        if self._closed:
            future.state = OVER
            future.set_exception(NotRunning(f"producer {self._rules.group} is stopping"))
        elif self.roomy:
            self._go(future)
        else:
            future.state = IN_LINE
            self._line.append(future)
        return future

    def _go(self, future: SendFuture) -> None:
        self.count += 1
        self.byte_count += future.size
        if not self._go_fast(future):
            self._go_slowly(future)

    def _go_fast(self, future: SendFuture) -> bool:
        """Write the frame now, if all that needs is known. False: nothing was done."""
        message = future.message
        rules = self._rules
        if (
            rules.general
            or future.timeout_ms is not None
            or len(message.body) > rules.fast_bytes_max
        ):
            return False
        lanes = self._lanes.get(message.topic)
        instance = self.instance
        if lanes is None or not lanes.lanes or lanes.version != instance.brokers.version:
            return False  # no lanes: none of the topic's brokers has a master just now
        lane = self._choose(lanes, future)
        if lane is None or lane.channel is None or lane.channel.closed:
            if future.selector is None and future.wanted_queue is None:
                lanes.ring.undo()
            return False
        now_ms = instance.clock.now_ms()
        unique_id = message.unique_id or instance.ids.next(now_ms)
        opaque = instance.next_opaque()
        frame = send_frame(lane.head, opaque, now_ms, 0, unique_id, message, message.body)
        if frame is None:
            return False
        future.state = ON_WIRE
        future.queue = lane.head.queue
        future.unique_id = unique_id
        future.opaque = opaque
        future.channel = lane.channel
        future.began_s = self._loop.time()
        fixed = future.selector is not None or future.wanted_queue is not None
        divided = lanes.several and not fixed
        allowed_ms = rules.first_timeout_ms if divided else rules.timeout_ms
        future.deadline_s = future.began_s + allowed_ms / 1000
        instance.answers.expect(opaque, future)
        lane.channel.write(frame)
        return True

    def _choose(self, lanes: Lanes, future: SendFuture) -> Lane | None:
        if future.selector is None and future.wanted_queue is None:
            return lanes.lanes[lanes.ring.place(lanes.count)]
        wanted = future.wanted_queue
        if wanted is None:
            queues = [lane.head.queue for lane in lanes.lanes]
            try:
                assert future.selector is not None
                wanted = future.selector(queues, future.message)
            except Exception:
                return None  # asked again on the general way, which tells the caller
        return next((lane for lane in lanes.lanes if lane.head.queue == wanted), None)

    def _go_slowly(
        self,
        future: SendFuture,
        tried: Sequence[str] = (),
        causes: Sequence[ClientError] = (),
    ) -> None:
        if not tried:
            future.began_s = self._loop.time()
            future.unique_id = ""
        future.state = IN_TASK
        future.tried = list(tried)
        future.causes = list(causes)
        task = self._loop.create_task(self._slowly(future), name=f"send {future.message.topic}")
        future.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _slowly(self, future: SendFuture) -> None:
        try:
            result = await self._deliver(future)
        except asyncio.CancelledError:
            self._fail(future, NotRunning(f"producer {self._rules.group} was stopped"))
            raise
        except Exception as problem:  # a selector's too: the caller gets it
            self._fail(future, problem)
        else:
            self.left(future)
            if not future.done():
                future.set_result(result)

    def _fail(self, future: SendFuture, problem: Exception) -> None:
        self.left(future)
        if not future.done():
            future.set_exception(problem)

    def answered(self, future: SendFuture, answer: Command) -> None:
        """An answer to the fast attempt that is not a plain SEND_OK."""
        address = future.channel.address
        queue: MessageQueue = future.queue
        try:
            result = send_result(answer, queue.topic, future.unique_id, queue, address)
        except ClientError as problem:
            self.failed(future, problem)
            return
        rules = self._rules
        fixed = future.wanted_queue is not None or future.selector is not None
        if result.ok or not rules.retry_unless_ok or fixed or rules.attempts == 1:
            future.stored(result)
        else:
            self._go_slowly(future, [queue.broker_name])

    def failed(self, future: SendFuture, problem: ClientError) -> None:
        """The fast attempt failed: another one on the general way, if the rules allow."""
        if self._abandoned or future.done():
            self._fail(future, problem)
            return
        fixed = future.wanted_queue is not None or future.selector is not None
        if fixed or self._rules.attempts == 1 or not worth_retrying(problem):
            self._fail(future, problem)
            return
        self.instance.refresh_soon()
        self._go_slowly(future, [future.queue.broker_name], [problem])

    def left(self, future: SendFuture) -> None:
        """A send is over: its room is free."""
        if future.state in (ON_WIRE, IN_TASK):
            self.count -= 1
            self.byte_count -= future.size
        future.state = OVER
        while self._line and self._has_room():
            following = self._line.popleft()
            if not following.done():
                self._go(following)
        if self._watchers:
            for change in self._watchers:
                if not change.done():
                    change.set_result(None)
            self._watchers.clear()

    def _has_room(self) -> bool:
        rules = self._rules
        return self.count < rules.in_flight_max and self.byte_count < rules.in_flight_bytes_max

    def given_up(self, future: SendFuture) -> None:
        """The caller cancelled it."""
        if future.state == ON_WIRE:
            self.instance.answers.waiting.pop(future.opaque, None)
        elif future.state == IN_TASK:
            future.task.cancel()
        self.left(future)

    # Lanes

    def learn(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """After a send on the general way: the next ones may be fast."""
        if self._rules.general:
            return
        instance = self.instance
        lanes = self._lanes.get(topic)
        if lanes is not None and lanes.version == instance.brokers.version:
            for lane in lanes.lanes:
                if lane.channel is None or lane.channel.closed:
                    lane.channel = self._channel(lane.head.queue)
            return
        made = [
            Lane(SendHead(self._rules.group, queue, bool(instance.config.unit_name)),
                 self._channel(queue))
            for queue in queues
        ]  # fmt: skip
        ring = self._rings.setdefault(topic, QueueRing(instance.rng))
        self._lanes[topic] = Lanes(made, ring, instance.brokers.version)

    def _channel(self, queue: MessageQueue) -> Channel | None:
        instance = self.instance
        address = instance.brokers.master(queue.broker_name)
        wire = None if address is None else instance.connections.peek(address)
        if not isinstance(wire, Channel):
            return None
        instance.answers.watch(wire)
        return wire

    # End

    async def drain(self) -> None:
        """Take no more; wait until all is over, which time-outs bound."""
        self._closed = True
        await self.until(lambda: self.idle)

    def abandon(self) -> None:
        """Give up what is still under way: its futures get NotRunning."""
        self._closed = self._abandoned = True
        problem = NotRunning(f"producer {self._rules.group} was stopped")
        line, self._line = self._line, deque()
        for future in line:
            self._fail(future, problem)
        waiting = self.instance.answers.waiting.values()
        ours = [each for each in waiting if isinstance(each, SendFuture) and each.sends is self]
        for future in ours:
            del self.instance.answers.waiting[future.opaque]
            self._fail(future, problem)
        for task in list(self._tasks):
            task.cancel()


async def each_of(
    messages: Iterable[Message] | AsyncIterable[Message],
) -> AsyncIterator[Message]:
    """Of both kinds alike."""
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in messages:
            yield message
