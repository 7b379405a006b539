"""Messages pulled from one queue and not consumed yet: flow control and the commit position.

No I/O.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tandemmq.cluster.client.message import MessageQueue, ReceivedMessage


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """When pulling pauses.

    RocketMQ's defaults; the span bounds how much is delivered again after a crash.
    """

    messages_max: int = 1_000
    bytes_max: int = 100 << 20
    span_max: int = 2_000  # newest minus oldest queue offset

    def __post_init__(self) -> None:
        for name in ("messages_max", "bytes_max", "span_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class QueueCache:
    """What is known of one assigned queue. Touched on the event loop only.

    pull_offset      the next entry to ask the broker for
    dropped          the queue went to another member: nothing of it is consumed or committed any
                     more
    ordered          one consumer task at a time, which has it `at_work`
    paused           neither pulled nor handed out now
    locked_until_s   ordered: loop time until which our lock at the broker counts
    """

    def __init__(
        self, queue: MessageQueue, pull_offset: int, limits: CacheLimits, *, ordered: bool = False
    ) -> None:
        self.queue = queue
        self.pull_offset = pull_offset
        self.dropped = False
        self.ordered = ordered
        self.at_work = False
        self.paused = False
        self.suspended = False  # ordered: a failed message waits for its next try
        self.locked_until_s = float("inf")
        self.pulled_ms = self.consumed_ms = self.locked_ms = 0  # wall time of the last, for tools
        self._idle: asyncio.Future[None] | None = None
        self.suggested_broker_id = 0
        self.last: ReceivedMessage | None = None  # the furthest one that was finished
        self.listed = False  # in the consumer's round of queues with something to do
        self._limits = limits
        self._waiting: deque[ReceivedMessage] = deque()
        self._sizes: dict[int, int] = {}  # queue offset -> bytes; insertion order is offset order
        self._bytes = 0
        self._newest = pull_offset - 1

    @property
    def count(self) -> int:
        """Messages cached: waiting and being consumed."""
        return len(self._sizes)

    @property
    def byte_count(self) -> int:
        """Bytes of their bodies."""
        return self._bytes

    @property
    def waiting(self) -> int:
        """Messages that no consumer task has taken yet."""
        return len(self._waiting)

    def why_full(self) -> str | None:
        """Why the next pull must wait, or None when it need not."""
        limits = self._limits
        if len(self._sizes) >= limits.messages_max:
            return f"{len(self._sizes)} messages cached, at most {limits.messages_max}"
        if self._bytes >= limits.bytes_max:
            return f"{self._bytes} bytes cached, at most {limits.bytes_max}"
        if self._sizes:
            span = self._newest - next(iter(self._sizes))
            if span > limits.span_max:
                return f"{span} entries between oldest and newest, at most {limits.span_max}"
        return None

    def put(self, messages: Iterable[ReceivedMessage], next_offset: int) -> int:
        """Add pulled messages, in queue order, and move on to next_offset.

        Returns how many were new.

        Entries before pull_offset were delivered already (a broker answered twice) and are left
        out.
        """
        new = 0
        for message in messages:
            if message.queue_offset < self.pull_offset:
                continue
            self._sizes[message.queue_offset] = len(message.body)
            self._bytes += len(message.body)
            self._newest = message.queue_offset
            self._waiting.append(message)
            self.pull_offset = message.queue_offset + 1
            new += 1
        self.pull_offset = max(self.pull_offset, next_offset)
        return new

    def take(self) -> ReceivedMessage | None:
        """The oldest message that nobody consumes yet; it stays cached until done()."""
        return self._waiting.popleft() if self._waiting else None

    def take_some(self, count_max: int) -> list[ReceivedMessage]:
        """The oldest messages that nobody consumes yet, at most count_max."""
        waiting = self._waiting
        if len(waiting) <= count_max:
            taken = list(waiting)
            waiting.clear()
            return taken
        return [waiting.popleft() for _ in range(count_max)]

    def put_back(self, *messages: ReceivedMessage) -> None:
        """Consume these again here, before the others, in this order.

        announce() the cache afterwards.
        """
        self._waiting.extendleft(reversed(messages))

    def done(self, *queue_offsets: int) -> int:
        """Consumed, or sent back. Returns the commit position after it. A second time is nothing."""
        sizes = self._sizes
        for queue_offset in queue_offsets:
            self._bytes -= sizes.pop(queue_offset, 0)
        return self.commit_offset

    def holds(self, queue_offset: int) -> bool:
        """Whether that message is cached: waiting or being consumed."""
        return queue_offset in self._sizes

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest queue offset cached, (0, 0) when none is."""
        return (next(iter(self._sizes)), self._newest) if self._sizes else (0, 0)

    def work_begins(self) -> None:
        """Ordered: a consumer task has this queue now."""
        self.at_work = True

    def work_ends(self) -> None:
        """And leaves it."""
        self.at_work = False
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self._idle = None

    async def idle(self) -> None:
        """Wait until no consumer task has this queue."""
        while self.at_work:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    @property
    def next_offset(self) -> int:
        """Queue offset of the next message that take() would give, or the next to pull."""
        return self._waiting[0].queue_offset if self._waiting else self.pull_offset

    @property
    def commit_offset(self) -> int:
        """Smallest queue offset still cached, else the next to pull: all before it is done."""
        return next(iter(self._sizes), self.pull_offset)

    def restart(self, moved_to: int) -> int:
        """Where to begin again when the broker does not take our position and names another one.

        Where that lies behind a loss it may not know how far we have come: a group that has not committed
        yet, or whose commits were lost, too. What is cached is dropped, and not consumed yet, so not passed over.
        """
        return min(moved_to, self.commit_offset) if moved_to < self.pull_offset else moved_to


class ReadyQueues:
    """Caches with messages to take, in turn: a long queue does not starve the others.

    Each cache stands in line at most once, so the line is as long as the assignment at most.
    """

    def __init__(self) -> None:
        self._line: asyncio.Queue[QueueCache] = asyncio.Queue()

    def announce(self, cache: QueueCache) -> None:
        """The cache got messages, or may be worked on again."""
        if (
            cache.waiting
            and not (cache.listed or cache.dropped or cache.paused)
            and not (cache.at_work or cache.suspended)
        ):
            cache.listed = True
            self._line.put_nowait(cache)

    async def take(self) -> tuple[QueueCache, ReceivedMessage]:
        """Wait for the next message of a queue that is still ours."""
        cache, messages = await self.take_some(1)
        return cache, messages[0]

    async def take_some(self, count_max: int) -> tuple[QueueCache, list[ReceivedMessage]]:
        """Wait for the next messages of one queue that is still ours, at most count_max."""
        while True:
            taken = self.take_some_nowait(count_max)
            if taken is not None:
                return taken
            cache = await self._line.get()
            messages = self._next_of(cache, count_max)
            if messages:
                return cache, messages

    def take_some_nowait(self, count_max: int) -> tuple[QueueCache, list[ReceivedMessage]] | None:
        """The next messages of one queue, None when there are none now."""
        while not self._line.empty():
            cache = self._line.get_nowait()
            messages = self._next_of(cache, count_max)
            if messages:
                return cache, messages
        return None

    def _next_of(self, cache: QueueCache, count_max: int) -> list[ReceivedMessage]:
        cache.listed = False
        if cache.dropped or cache.paused or cache.at_work or cache.suspended:
            return []
        messages = cache.take_some(count_max)
        if cache.ordered:
            if messages:
                cache.work_begins()  # whoever takes them ends it
        else:
            self.announce(cache)
        return messages

    def clear(self) -> None:
        """Nobody takes any more: the consumer is stopping."""
        while not self._line.empty():
            self._line.get_nowait().listed = False
