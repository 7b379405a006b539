"""What the driver asks a cluster: which queues there are, what they hold, who wrote it; and committing progress."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, TypeVar

from tandemmq.cluster.client import (
    Admin,
    BrokerRefused,
    BrokerUnreachable,
    ClientConfig,
    ClientError,
    Credentials,
    GroupSettings,
    MessageQueue,
    NoRoute,
)
from tandemmq.cluster.client.consuming.ranges import passes
from tandemmq.cluster.client.message import RETRY_PREFIX
from tandemmq.cluster.remoting import client_context
from tandemmq.spark.errors import ClusterAway, UnknownTopic
from tandemmq.spark.options import ClusterOptions
from tandemmq.spark.positions import Offsets, QueueKey, Span
from tandemmq.spark.topics import matching

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.2
PAUSE_S_MAX: Final = 2.0
MASTER_ID: Final = 0
Value = TypeVar("Value")
Question = Callable[[Admin], Awaitable[Value]]


def client_config(options: ClusterOptions) -> ClientConfig:
    """How drivers and executors reach the cluster. Raises OSError, ValueError, TlsUnusable, NoNameServer."""
    tls: ssl.SSLContext | None = None
    if options.tls:
        tls = client_context(
            ca_path=options.ca_file,
            cert_path=options.cert_file,
            key_path=options.key_file,
            verify=bool(options.ca_file),
        )
    credentials = None
    if options.credentials_file:
        credentials = Credentials.from_file(options.credentials_file)
    elif options.access_key:
        credentials = Credentials(options.access_key, options.secret_key)
    return ClientConfig(options.namesrv or None, tls=tls, credentials=credentials)


def queue_of(key: QueueKey) -> MessageQueue:
    """The client's name of a queue."""
    return MessageQueue(key.topic, key.broker, key.queue_id)


class Cluster:
    """Asks anew each time, on a loop of its own: nothing is kept open between micro-batches."""

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._config = client_config(options)

    def held(
        self, topics: Collection[str], pattern: str, *, known: bool = False
    ) -> dict[QueueKey, Span]:
        """Every readable queue of the topics, or of those that match the pattern, and what it holds.

        known  they were there before: a topic without a route is waited for
        Raises UnknownTopic, ClusterAway, ClientError.
        """

        async def ask(admin: Admin) -> dict[QueueKey, Span]:
            names = list(topics) or matching(await admin.topics(), pattern)
            found: dict[QueueKey, Span] = {}
            for topic in names:
                found.update(await _held(admin, topic, known=known))
            if not names and not known:
                raise UnknownTopic(f"no topic matches topicPattern {pattern!r}")
            return found

        return self._asked(ask, known=known)

    def times(self, queues: Collection[QueueKey], time_ms: int) -> Offsets:
        """Of each queue the first message that was stored at time_ms or later. Raises ClusterAway, ClientError."""

        async def ask(admin: Admin) -> Offsets:
            return {
                key: await admin.offset_for_time(queue_of(key), time_ms) for key in sorted(queues)
            }

        return self._asked(ask)

    def epochs(self, brokers: Collection[str]) -> dict[str, list[tuple[int, int]]]:
        """Which master wrote which part of each broker's log: (log offset, epoch), rising; [] without a controller.

        Raises ClusterAway, ClientError.
        """

        async def ask(admin: Admin) -> dict[str, list[tuple[int, int]]]:
            masters = await admin.masters()
            found: dict[str, list[tuple[int, int]]] = {}
            for broker in sorted(set(brokers)):
                if broker not in masters:
                    raise BrokerUnreachable(broker, "no master is registered now")
                try:
                    history = await admin.epoch_history(masters[broker])
                except BrokerRefused as problem:
                    log.debug("no epochs broker=%s why=%s", broker, problem)
                    found[broker] = []
                else:
                    found[broker] = [(each.start_offset, each.epoch) for each in history.epochs]
            return found

        return self._asked(ask)

    def commit(self, group: str, offsets: Offsets) -> None:
        """Store a group's positions. Raises ClusterAway, ClientError."""

        async def ask(admin: Admin) -> None:
            await _make_known(admin, group, {key.topic for key in offsets})
            for key, offset in sorted(
                offsets.items()
            ):  # a stock broker loses one of two first ones at once
                await admin.commit(group, queue_of(key), offset)

        self._asked(ask)

    def _asked(self, question: Question[Value], *, known: bool = False) -> Value:
        return asyncio.run(self._patiently(question, known))

    async def _patiently(self, question: Question[Value], known: bool) -> Value:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._options.retry_timeout_ms / 1000
        pause_s = PAUSE_S
        while True:
            try:
                async with Admin(config=self._config) as admin:
                    return await question(admin)
            except ClientError as problem:
                if not passes(problem) and not (known and isinstance(problem, NoRoute)):
                    raise
                if loop.time() >= deadline_s:
                    waited = f"{self._options.retry_timeout_ms} ms (retryTimeoutMs)"
                    raise ClusterAway(f"no answer within {waited}: {problem}") from problem
                log.info("asking the cluster again why=%s", problem)
            await asyncio.sleep(min(pause_s, max(0.0, deadline_s - loop.time())))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)


async def _held(admin: Admin, topic: str, *, known: bool) -> dict[QueueKey, Span]:
    try:
        route = await admin.route(topic)
    except NoRoute as problem:
        if known:
            raise
        raise UnknownTopic(f"there is no topic {topic}: {problem}") from problem
    queues = set(route.read_queues(topic))
    for name in sorted({queue.broker_name for queue in queues}):
        if MASTER_ID not in route.addresses.get(name, {}):
            raise BrokerUnreachable(
                name, "no master is registered now"
            )  # a slave may lack the newest
    stats = await admin.topic_stats(topic)
    found = {
        QueueKey(*_parts(queue)): Span(held.min_offset, max(held.min_offset, held.max_offset))
        for queue, held in stats.queues.items()
        if queue in queues
    }
    if not found and not known:
        raise UnknownTopic(f"topic {topic} has no queue that may be read: see its permission")
    return found


def _parts(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


async def _make_known(admin: Admin, group: str, topics: Iterable[str]) -> None:
    """Tools find groups by their retry topics, which brokers make when a member says hello: none ever does here."""
    try:
        await admin.route(RETRY_PREFIX + group)
        return
    except NoRoute:
        pass
    names: set[str] = set()
    for topic in sorted(topics):
        names.update((await admin.route(topic)).addresses)
    masters = {name: at for name, at in (await admin.masters()).items() if name in names}
    addresses: Sequence[str] = sorted(masters.values())
    await admin.put_group(GroupSettings(group), addresses)
    await admin.create_topic(RETRY_PREFIX + group, 1, masters=masters)
