"""One consumer's place in its group: its queues, where each starts, what is committed."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cluster.client import calls
from cluster.client.errors import BrokerRefused, ClientError, NoRoute, OffsetUnknown
from cluster.client.instance import ClientInstance
from cluster.client.jobs import Jobs
from cluster.client.message import RETRY_PREFIX, MessageQueue, ReceivedMessage
from cluster.client.offsets import OffsetStore, OffsetTable
from cluster.client.queue_cache import CacheLimits, QueueCache
from cluster.client.reading import QueueReader
from cluster.client.rebalance import Allocation, Change, allocate_averagely, plan
from cluster.client.subscriptions import Subscription

log = logging.getLogger(__name__)

REBALANCE_INTERVAL_S: Final = 20.0
REBALANCE_RETRY_S: Final = 1.0  # after a round that could not finish
COMMIT_INTERVAL_S: Final = 5.0
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


@dataclass(slots=True)
class Held:
    """A queue that this consumer reads."""

    cache: QueueCache
    reader: QueueReader
    task: asyncio.Task[None]


class Membership:
    """Keeps the set of queues right. Runs on the event loop; state changes between awaits only.

    on_messages  called when a cache got messages
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        policy: Policy,
        store: OffsetStore,
        on_messages: Callable[[QueueCache], None],
    ) -> None:
        self.group = group
        self.held: dict[MessageQueue, Held] = {}
        self.offsets = OffsetTable()
        self.jobs = Jobs()
        self.subscriptions: dict[str, Subscription] = {}
        self.instance = instance
        self._policy = policy
        self._store = store
        self._on_messages = on_messages
        self._wakened = asyncio.Event()
        self._rounds = asyncio.Lock()  # one round at a time; subscribe() and the timer may both ask

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
            "unitMode": False,
        }

    def wake(self) -> None:
        """Rebalance now."""
        self._wakened.set()

    # Life

    async def join(self) -> None:
        """Announce the group to the brokers and take the first share of queues."""
        for topic in self.topics():
            try:
                await self.instance.fetch_route(topic)
            except NoRoute:
                if not topic.startswith(
                    RETRY_PREFIX
                ):  # brokers create that one when they see our heartbeat
                    log.warning("topic has no route yet group=%s topic=%s", self.group, topic)
        await self.instance.heartbeat_all()
        finished = await self.rebalance()
        self.jobs.start(f"rebalance {self.group}", self._rebalance_for_ever(finished))

    def start_commits(self) -> None:
        """Write positions every 5 s from now on."""
        self.jobs.start(f"commit {self.group}", self._commit_for_ever())

    async def leave(self) -> None:
        """Stop the timers and the pull loops; what is cached stays for the caller to finish."""
        await self.jobs.stop()

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
            finished = True
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
                elif change:
                    log.info(
                        "queues changed group=%s topic=%s added=%s removed=%s",
                        self.group,
                        topic,
                        ",".join(map(str, change.added)),
                        ",".join(map(str, change.removed)),
                    )
                    await self.release(change.removed)
                    finished = await self._acquire(change.added) and finished
            await self.release(
                [queue for queue in self.held if queue.topic not in self.subscriptions]
            )
            return finished

    async def _plan(self, topic: str) -> Change | None:
        route = await self.instance.read_route(topic)
        queues = route.read_queues(topic)
        mine = self.instance.client_id
        if self._policy.model is MessageModel.BROADCASTING:
            return plan(
                topic,
                queues,
                [mine],
                mine,
                list(self.held),
                lambda all_queues, ids, own: all_queues,
            )
        names = sorted({queue.broker_name for queue in queues})
        if not names:
            return None
        address, _ = await self.instance.reader_address(self.instance.rng.choice(names), topic)
        try:
            members = await calls.group_members(
                self.instance.connections, address, self.group, self.instance.config.call_timeout_ms
            )
        except BrokerRefused:
            members = []
        if mine not in members:
            # that broker has not seen our heartbeat (it restarted, or the route is new): say it
            # again first
            self.instance.heartbeat_soon()
            return None
        return plan(topic, queues, members, mine, list(self.held), self._policy.allocation)

    async def _acquire(self, queues: tuple[MessageQueue, ...]) -> bool:
        async def begin(queue: MessageQueue) -> bool:
            try:
                self._read(queue, await self.start_offset(queue))
            except ClientError as problem:
                log.warning(
                    "queue not started group=%s queue=%s why=%s", self.group, queue, problem
                )
                return False
            return True

        return all(await asyncio.gather(*(begin(queue) for queue in queues)))

    def take(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue from this offset on; restarts it when it is held.

        For assign() and seek().
        """
        held = self.held.pop(queue, None)
        if held is not None:
            held.cache.dropped = True
            held.task.cancel()
        self.offsets.set(queue, offset)
        self._read(queue, offset)

    def _read(self, queue: MessageQueue, offset: int) -> None:
        cache = QueueCache(queue, offset, self._policy.limits)
        subscribed = self.subscriptions[queue.topic]
        reader = QueueReader(
            self.instance,
            self.group,
            cache,
            lambda: self.subscriptions.get(queue.topic, subscribed),
            self._on_messages,
            self._moved,
            self._policy.pull_count,
        )
        self.held[queue] = Held(cache, reader, self.jobs.start(f"pull {queue}", reader.run()))

    def _moved(self, cache: QueueCache, offset: int) -> None:
        """The broker refused our position: forget what is cached, start again where it says."""
        held = self.held.pop(cache.queue)
        held.cache.dropped = True
        self.offsets.set(cache.queue, offset)
        self._read(cache.queue, offset)

    async def release(self, queues: list[MessageQueue] | tuple[MessageQueue, ...]) -> None:
        """Stop reading these queues and commit what was consumed: the next owner starts there."""
        stopped = [self.held.pop(queue) for queue in queues if queue in self.held]
        if not stopped:
            return
        for held in stopped:
            held.cache.dropped = True
            held.task.cancel()
        await asyncio.gather(*(held.task for held in stopped), return_exceptions=True)
        if self._policy.commits:
            positions = {held.cache.queue: self.offsets.get(held.cache.queue) for held in stopped}
            known = {queue: offset for queue, offset in positions.items() if offset is not None}
            # a failure is logged there; its messages come again
            await self._store.write(known, waiting=True)
        for held in stopped:
            self.offsets.forget(held.cache.queue)

    async def start_offset(self, queue: MessageQueue) -> int:
        """Where reading this queue begins: the committed position, else by the group's policy.

        Raises OffsetUnknown and other ClientErrors: the queue waits for the next round.
        """
        stored = await self._store.read(queue)
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
        return await calls.max_offset(connections, address, queue, OFFSET_CALL_TIMEOUT_MS)

    # Consumption

    def consumed(self, cache: QueueCache, message: ReceivedMessage) -> None:
        """This message needs no more work: the position moves, the reader may go on.

        Nothing for a dropped queue.
        """
        if cache.dropped:
            return
        self.offsets.advance(cache.queue, cache.done(message.queue_offset))
        self.held[cache.queue].reader.room_made()

    # Commits

    async def _commit_for_ever(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            positions = self.offsets.all()
            await self._store.write(
                {queue: offset for queue, offset in positions.items() if queue in self.held},
                waiting=False,
            )

    async def commit(self, queues: list[MessageQueue] | None = None) -> None:
        """Write positions (of these queues, or all) and wait for the answers.

        Raises OffsetUnknown if one failed.
        """
        positions = self.offsets.all()
        wanted = {
            queue: positions[queue]
            for queue in (positions if queues is None else queues)
            if queue in positions
        }
        failed = await self._store.write(wanted, waiting=True) if wanted else []
        if failed:
            raise OffsetUnknown(
                f"not committed for group {self.group}: {', '.join(map(str, failed))}"
            )
