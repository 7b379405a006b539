"""One consumer's place in its group: its queues, where each starts, what is committed."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tandemmq.cluster.client.consuming.assignments import ASSIGNED, REVOKED, Told
from tandemmq.cluster.client.consuming.locking import LOCK_VALID_S, RENEW_INTERVAL_S, QueueLocks
from tandemmq.cluster.client.consuming.offsets import OffsetStore, OffsetTable
from tandemmq.cluster.client.consuming.places import still_there
from tandemmq.cluster.client.consuming.queue_cache import CacheLimits, QueueCache
from tandemmq.cluster.client.consuming.rates import Rates
from tandemmq.cluster.client.consuming.reading import QueueReader
from tandemmq.cluster.client.consuming.rebalance import Allocation, Change, allocate_averagely, plan
from tandemmq.cluster.client.consuming.running import RunningState, running_info
from tandemmq.cluster.client.consuming.sharing import Sharing
from tandemmq.cluster.client.consuming.subscriptions import Sql92, Subscription, parse_subscription
from tandemmq.cluster.client.errors import (
    BrokerUnreachable,
    CallTimedOut,
    ClientError,
    NoRoute,
    NotRunning,
    OffsetUnknown,
)
from tandemmq.cluster.client.message import RETRY_PREFIX, MessageQueue, ReceivedMessage
from tandemmq.cluster.client.reaching import calls
from tandemmq.cluster.client.reaching.instance import ClientInstance
from tandemmq.cluster.client.reaching.jobs import Jobs
from tandemmq.cluster.client.reaching.requests import DirectResult

log = logging.getLogger(__name__)

REBALANCE_INTERVAL_S: Final = 20.0
REBALANCE_RETRY_S: Final = 1.0  # after a round that could not finish
COMMIT_INTERVAL_S: Final = 5.0
LISTENER_WAIT_S: Final = 0.5  # how long a round waits for an ordered listener to finish
OFFSET_CALL_TIMEOUT_MS: Final = 6_000


class StartFrom(enum.Enum):
    """Where a group starts in a queue that it has never committed.

    A committed position always wins.

    Brokers answer 0 for a young topic whose first message is still in memory, whatever is asked
    here.
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(enum.Enum):
    """CLUSTERING: the group's members share the queues. BROADCASTING: each reads all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeType(enum.Enum):
    """What heartbeats call a consumer; brokers show it to tools."""

    PULL = "CONSUME_ACTIVELY"
    PUSH = "CONSUME_PASSIVELY"


@dataclass(frozen=True, slots=True)
class Policy:
    """How a consumer behaves in its group. start_ms: for StartFrom.TIMESTAMP, ms since 1970."""

    consume_type: ConsumeType
    model: MessageModel = MessageModel.CLUSTERING
    start: StartFrom = StartFrom.LAST
    start_ms: int = 0
    limits: CacheLimits = field(default_factory=CacheLimits)
    pull_count: int = 32
    commits: bool = True  # False: only the application commits
    allocation: Allocation = allocate_averagely
    ordered: bool = False  # one message after the other in each queue
    unit_mode: bool = False

    @property
    def shared(self) -> bool:
        """Whether the members share the queues."""
        return self.model is MessageModel.CLUSTERING

    @property
    def locked(self) -> bool:
        """Whether a queue is read under a lock at its broker."""
        return self.ordered and self.shared


@dataclass(slots=True)
class Held:
    """A queue that this consumer reads."""

    cache: QueueCache
    reader: QueueReader
    task: asyncio.Task[None]


class Membership:
    """Keeps the set of queues right. Runs on the event loop; state changes between awaits only.

    group        as brokers know it
    on_messages  called when a cache got messages, or may be worked on again
    directly     gives one message to the listener; None: this consumer has none
    told         hears of queues that came and of queues that go
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        policy: Policy,
        store: OffsetStore,
        on_messages: Callable[[QueueCache], None],
        directly: Callable[[ReceivedMessage], Awaitable[DirectResult]] | None = None,
        told: Told | None = None,
    ) -> None:
        self.group = group
        self.rates = Rates()
        self.leaving: dict[MessageQueue, Held] = {}  # ordered: ours until its last message is done
        #: let go of while their broker was away, with a position that it never heard of
        self.parted: dict[MessageQueue, Held] = {}
        self.paused = False  # pulls of all queues
        self._directly = directly
        self._told = told
        self._locks = QueueLocks(instance, group) if policy.locked else None
        self._lock_now = asyncio.Event()
        self._started_ms = instance.clock.now_ms()
        self.held: dict[MessageQueue, Held] = {}
        self.offsets = OffsetTable()
        self.jobs = Jobs()
        self.subscriptions: dict[str, Subscription] = {}
        self.instance = instance
        self._policy = policy
        self._store = store
        self._on_messages = on_messages
        self._wakened = asyncio.Event()
        self._sharing = Sharing(instance, group, policy.allocation, self.jobs, self.wake)
        self._rounds = asyncio.Lock()  # one round at a time; subscribe() and the timer may both ask

    def want(self, topic: str, expression: str | Sql92) -> None:
        """Subscribe to a topic, as brokers know it, or change what is wanted of it."""
        now_ms = self.instance.clock.now_ms()
        self.subscriptions[topic] = parse_subscription(topic, expression, now_ms)

    # What the instance asks (ConsumerRole)

    def topics(self) -> list[str]:
        """Topics whose routes are needed."""
        return list(self.subscriptions)

    def heartbeat_entry(self) -> dict[str, object]:
        """ConsumerData for the heartbeat."""
        return {
            "groupName": self.group,
            "consumeType": self._policy.consume_type.value,
            "messageModel": self._policy.model.value,
            "consumeFromWhere": self._policy.start.value,
            "subscriptionDataSet": [each.as_json() for each in self.subscriptions.values()],
            "unitMode": self._policy.unit_mode,
        }

    def wake(self) -> None:
        """Rebalance now."""
        self._wakened.set()

    def reset_offsets(self, positions: Mapping[MessageQueue, int]) -> None:
        """Read these queues from there on, as far as they are held; the positions are committed."""
        moved = {queue: offset for queue, offset in positions.items() if queue in self.held}
        for queue, offset in moved.items():
            self.take(queue, offset)
        self._forget_parted(positions)
        if moved:
            self.jobs.start(f"commit reset of {self.group}", self._commit_reset(moved))

    async def _commit_reset(self, positions: dict[MessageQueue, int]) -> None:
        await self._store.write(positions, waiting=True)  # failures are logged there

    def positions(self, topic: str) -> Mapping[MessageQueue, int]:
        """Commit positions of the queues held of a topic ("": of all)."""
        everything = self.offsets.all()
        return {
            queue: offset
            for queue, offset in everything.items()
            if queue in self.held and topic in ("", queue.topic)
        }

    async def consume_directly(self, message: ReceivedMessage) -> DirectResult:
        """Give the listener one message. Raises NotRunning when there is no listener."""
        if self._directly is None:
            raise NotRunning(f"consumer {self.group} has no listener: its application pulls")
        return await self._directly(message)

    def running_state(self, threads: bool) -> bytes:
        """ConsumerRunningInfo."""
        return running_info(
            RunningState(
                client_id=self.instance.client_id,
                name_servers=self.instance.name_servers.addresses,
                consume_type=self._policy.consume_type.value,
                ordered=self._policy.ordered,
                started_ms=self._started_ms,
                subscriptions=[each.as_json() for each in self.subscriptions.values()],
                queues={queue: held.cache for queue, held in self.held.items()},
                commits=self.offsets.all(),
                rates={
                    topic: self.rates.as_json(topic, self.instance.clock.now_ms())
                    for topic in self.subscriptions
                },
            ),
            threads=threads,
        )

    # Life

    async def join(self) -> None:
        """Announce the group to the brokers and take the first share of queues."""
        for topic in self.topics():
            try:
                await self.instance.fetch_route(topic)
            except NoRoute:
                # brokers create the retry topic when they see our heartbeat
                if not topic.startswith(RETRY_PREFIX):
                    log.warning("topic has no route yet group=%s topic=%s", self.group, topic)
            else:
                await self.check_filter(topic)
        await self.instance.heartbeat_all()
        finished = await self.rebalance()
        self.jobs.start(f"rebalance {self.group}", self._rebalance_for_ever(finished))
        if self._locks is not None:
            self.jobs.start(f"lock {self.group}", self._lock_for_ever(self._locks))

    async def check_filter(self, topic: str) -> None:
        """Ask the topic's brokers whether they filter by its expression, before messages are missed for it.

        By tags they all do. Raises BrokerRefused; a broker that does not answer says nothing.
        """
        wanted, instance = self.subscriptions[topic], self.instance
        if wanted.expression_type == "TAG":
            return
        for replicas in (await instance.read_route(topic)).addresses.values():
            address = replicas[min(replicas)]
            try:
                await calls.check_client(
                    instance.connections, address, instance.client_id, self.group,
                    wanted.as_json(), instance.config.call_timeout_ms,
                )  # fmt: skip
            except (BrokerUnreachable, CallTimedOut) as problem:
                log.warning("filter not checked topic=%s why=%s", topic, problem)

    def start_commits(self) -> None:
        """Write positions every 5 s from now on."""
        self.jobs.start(f"commit {self.group}", self._commit_for_ever())

    async def leave(self) -> None:
        """Stop the timers and the pull loops; what is cached stays for the caller to finish."""
        await self.jobs.stop()

    async def say_goodbye(self) -> None:
        """The application hears that all queues go. Commit after it."""
        if self._told is not None:
            await self._told(REVOKED, self.held)

    async def unlock_all(self) -> None:
        """Ordered: the others may have our queues. Commit first."""
        if self._locks is not None:
            await self._locks.unlock([*self.held, *self.leaving])

    # Rebalance

    async def _rebalance_for_ever(self, finished: bool) -> None:
        retry_s = REBALANCE_RETRY_S
        while True:
            try:
                async with asyncio.timeout(REBALANCE_INTERVAL_S if finished else retry_s):
                    await self._wakened.wait()
            except TimeoutError:
                pass  # the timer's turn
            self._wakened.clear()
            finished = await self.rebalance()
            # a topic that does not exist is asked for less and less often
            retry_s = REBALANCE_RETRY_S if finished else min(2 * retry_s, REBALANCE_INTERVAL_S)

    async def rebalance(self) -> bool:
        """One round over all topics. False when something could not be settled: try again soon."""
        async with self._rounds:
            finished = await self._let_go()
            if self._locks is not None:
                finished = await self._locks.settle() and finished
            for topic in self.topics():
                try:
                    change = await self._plan(topic)
                except NoRoute:
                    # not created yet; also true of the retry topic until a broker saw our heartbeat
                    finished = False
                    continue
                except ClientError as problem:
                    log.warning(
                        "rebalance failed group=%s topic=%s why=%s", self.group, topic, problem
                    )
                    self.instance.refresh_soon()
                    finished = False
                    continue
                if change is None:
                    finished = False
                    continue
                self._forget_parted(change.others)
                if change:
                    log.info(
                        "queues changed group=%s topic=%s added=%s removed=%s",
                        self.group,
                        topic,
                        ",".join(map(str, change.added)),
                        ",".join(map(str, change.removed)),
                    )
                    finished = await self.release(change.removed) and finished
                    finished = await self._acquire(change.added) and finished
            dropped = [queue for queue in self.held if queue.topic not in self.subscriptions]
            return await self.release(dropped) and finished

    async def _plan(self, topic: str) -> Change | None:
        if self._policy.shared:
            return await self._sharing.plan(topic, self.held)
        mine = self.instance.client_id
        queues = (await self.instance.read_route(topic)).read_queues(topic)
        return plan(topic, queues, [mine], mine, self.held, lambda every, ids, own: every)

    async def _acquire(self, queues: tuple[MessageQueue, ...]) -> bool:
        wanted = [queue for queue in queues if queue not in self.leaving]
        locked_until_s = float("inf")
        finished = len(wanted) == len(queues)
        if self._locks is not None and wanted:
            # counted from before the request: the broker's 60 s began later
            locked_until_s = asyncio.get_running_loop().time() + LOCK_VALID_S
            granted = await self._locks.lock(wanted)
            finished = finished and len(granted) == len(wanted)  # the old owner still works on one
            wanted = [queue for queue in wanted if queue in granted]

        async def begin(queue: MessageQueue) -> bool:
            try:
                offset = await self.start_offset(queue)
            except ClientError as problem:
                log.warning(
                    "queue not started group=%s queue=%s why=%s", self.group, queue, problem
                )
                return False
            self._read(queue, offset).locked_until_s = locked_until_s
            return True

        begun = await asyncio.gather(*(begin(queue) for queue in wanted))
        if self._told is not None:
            came = (queue for queue, well in zip(wanted, begun, strict=True) if well)
            await self._told(ASSIGNED, came)
        return all(begun) and finished

    async def _lock_for_ever(self, locks: QueueLocks) -> None:
        """Renew the locks; a queue whose lock is gone is not worked on until it is ours again."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(RENEW_INTERVAL_S):
                    await self._lock_now.wait()
            except TimeoutError:
                pass  # the timer's turn
            began_s = loop.time()
            caches = {queue: held.cache for queue, held in self.held.items()}
            granted = await locks.lock(
                [*caches, *self.leaving]
            )  # there a listener is at work still
            self._lock_now.clear()
            for queue, cache in caches.items():
                if queue in granted:
                    cache.locked_until_s = began_s + LOCK_VALID_S
                    cache.locked_ms = self.instance.clock.now_ms()
                    self._on_messages(cache)
                else:
                    cache.locked_until_s = 0.0
                    log.warning("queue lock lost group=%s queue=%s", self.group, queue)
            if not granted.issuperset(caches):
                await asyncio.sleep(REBALANCE_RETRY_S)
                self._lock_now.set()

    def relock(self) -> None:
        """A consumer task found a lock too old: renew now."""
        self._lock_now.set()

    def take(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue from this offset on; restarts it when it is held.

        For assign(), seek() and resets.
        """
        held = self.held.pop(queue, None)
        if held is not None:
            held.cache.dropped = True
            held.task.cancel()
        self.offsets.set(queue, offset)
        self._read(queue, offset, None if held is None else held.cache)

    def _read(
        self, queue: MessageQueue, offset: int, before: QueueCache | None = None
    ) -> QueueCache:
        cache = QueueCache(queue, offset, self._policy.limits, ordered=self._policy.ordered)
        if before is not None:
            cache.locked_until_s, cache.paused = before.locked_until_s, before.paused
        cache.paused = cache.paused or self.paused
        subscribed = self.subscriptions[queue.topic]
        reader = QueueReader(
            self.instance,
            self.group,
            cache,
            lambda: self.subscriptions.get(queue.topic, subscribed),
            self._arrived,
            self._moved,
            self._policy.pull_count,
            commit=lambda: self._commit_with_pull(queue),
            on_progress=self._progressed,
            after=before if self._policy.ordered else None,
            lite=self._policy.consume_type is ConsumeType.PULL,
        )
        self.held[queue] = Held(cache, reader, self.jobs.start(f"pull {queue}", reader.run()))
        return cache

    def _arrived(self, cache: QueueCache) -> None:
        self.rates.pulled(cache.queue.topic, cache.waiting)
        self._on_messages(cache)

    def _commit_with_pull(self, queue: MessageQueue) -> int | None:
        """The position, for push consumers that share queues: it saves the timer's request."""
        if not self._policy.shared or self._policy.consume_type is not ConsumeType.PUSH:
            return None
        return self.offsets.get(queue) or None

    def _progressed(self, cache: QueueCache) -> None:
        """Nothing wanted was found up to the pull position: with an empty cache all is consumed."""
        if not cache.count and not cache.dropped:
            self.offsets.advance(cache.queue, cache.pull_offset)

    def pause(self, queues: Iterable[MessageQueue], paused: bool) -> None:
        """Neither pull nor hand out these queues; or do again."""
        for queue in queues:
            held = self.held.get(queue)
            if held is not None and held.cache.paused != paused:
                held.cache.paused = paused
                held.reader.room_made()
                self._on_messages(held.cache)

    def _moved(self, cache: QueueCache, offset: int) -> None:
        """The broker refused our position: forget what is cached, start again where it says."""
        held = self.held.pop(cache.queue)
        held.cache.dropped = True
        self.offsets.set(cache.queue, offset)
        self._read(cache.queue, offset, held.cache)

    async def release(self, queues: list[MessageQueue] | tuple[MessageQueue, ...]) -> bool:
        """Stop reading these queues and commit what was consumed: the next owner starts there.

        False when an ordered listener is still at work on one: it stays locked, and is let go of
        in a later round.
        """
        stopped = [self.held.pop(queue) for queue in queues if queue in self.held]
        for held in stopped:
            held.cache.dropped = True
            held.task.cancel()
            self.leaving[held.cache.queue] = held
        # cancelled here, they stay in `leaving`, and end with the jobs
        await asyncio.gather(*(held.task for held in stopped), return_exceptions=True)
        if self._told is not None:
            await self._told(REVOKED, (held.cache.queue for held in stopped))
        return await self._let_go()

    async def _let_go(self) -> bool:
        """Commit, unlock and forget the queues that leave; True when none is left."""
        if not self.leaving:
            return True
        if self._policy.ordered:
            busy = [held.cache.idle() for held in self.leaving.values() if held.cache.at_work]
            if busy:
                try:
                    async with asyncio.timeout(LISTENER_WAIT_S):
                        await asyncio.gather(*busy)
                except TimeoutError:
                    pass  # the others go now
        free = [queue for queue, held in self.leaving.items() if not held.cache.at_work]
        if not self._policy.ordered:
            free = list(self.leaving)
        if self._policy.commits:
            positions = {queue: self.offsets.get(queue) for queue in free}
            known = {queue: offset for queue, offset in positions.items() if offset is not None}
            # a failure is logged there
            for queue in await self._store.write(known, waiting=True):
                if queue in self.leaving:
                    self.parted[queue] = self.leaving[queue]
        if self._locks is not None and free:
            await self._locks.unlock(free)
        for queue in free:
            self.leaving.pop(queue, None)
            if queue not in self.held and queue not in self.parted:
                self.offsets.forget(queue)
        return not self.leaving

    def _forget_parted(self, queues: Iterable[MessageQueue]) -> None:
        """Somebody else reads these, or they were reset: where we stood counts no more."""
        for queue in queues:
            if self.parted.pop(queue, None) is not None and queue not in self.held:
                self.offsets.forget(queue)

    async def start_offset(self, queue: MessageQueue) -> int:
        """Where reading this queue begins: the committed position, else by the group's policy.

        A queue that was ours until its broker went away begins where we stood, though the broker
        knows an older position only: if nobody had it since, and it still has what we finished.
        Raises OffsetUnknown and other ClientErrors: the queue waits for the next round.
        """
        stored = await self._store.read(queue)
        parted, stood = self.parted.get(queue), self.offsets.get(queue)
        if parted is not None:
            last = parted.cache.last
            if last is None or stood is None or (stored or 0) >= stood:
                pass  # nothing that the broker would not know
            elif await still_there(self.instance, queue, last):
                stored = max(stored or 0, min(stood, last.queue_offset + 1))
            self.parted.pop(queue, None)
        if stored is not None and stored >= 0:
            return stored
        retry = queue.topic.startswith(RETRY_PREFIX)
        connections = self.instance.connections
        address, _ = await self.instance.reader_address(queue.broker_name, queue.topic)
        match self._policy.start:
            case StartFrom.FIRST:
                return 0
            case StartFrom.LAST if retry:
                return 0
            case StartFrom.TIMESTAMP if not retry:
                return await calls.offset_for_time(
                    connections, address, queue, self._policy.start_ms, OFFSET_CALL_TIMEOUT_MS
                )
        end = await calls.max_offset(connections, address, queue, OFFSET_CALL_TIMEOUT_MS)
        # A young queue is read from its first message. One that came between the two answers would be behind us.
        young = await self._store.read(queue)
        return end if young is None or young < 0 else young

    # Consumption

    def consumed(self, cache: QueueCache, *messages: ReceivedMessage) -> None:
        """These messages need no more work: the position moves, the reader may go on.

        Nothing for a dropped queue; except that an ordered one is ours until it is unlocked, and
        one whose broker went away until somebody else reads it.
        """
        if not messages:
            return
        held = self.held.get(cache.queue)
        if cache.dropped or held is None or held.cache is not cache:
            held = self.leaving.get(cache.queue)
            if held is None or held.cache is not cache or not self._policy.ordered:
                held = self.parted.get(cache.queue)
            if held is None or held.cache is not cache:
                return
        offset = cache.done(*[message.queue_offset for message in messages])
        if cache.last is None or messages[-1].queue_offset > cache.last.queue_offset:
            cache.last = messages[-1]
        self.offsets.advance(cache.queue, offset)
        held.reader.room_made()

    # Commits

    async def _commit_for_ever(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            self.rates.snapshot(self.instance.clock.now_ms())
            positions = self.offsets.all()
            await self._store.write(
                {queue: offset for queue, offset in positions.items() if queue in self.held},
                waiting=False,
            )

    async def commit(self, positions: Mapping[MessageQueue, int] | None = None) -> None:
        """Write these positions, or all that are known, and wait for the answers.

        Raises OffsetUnknown if one failed.
        """
        wanted = self.offsets.all() if positions is None else dict(positions)
        failed = await self._store.write(wanted, waiting=True) if wanted else []
        if failed:
            raise OffsetUnknown(
                f"not committed for group {self.group}: {', '.join(map(str, failed))}"
            )
