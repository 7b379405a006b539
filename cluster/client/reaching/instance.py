"""What producers and consumers share: connections, routes, heartbeats, one client id."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from tandemmq.cluster.client.config import ClientConfig, is_lookup
from tandemmq.cluster.client.errors import BrokerUnreachable, CallTimedOut, ClientError, NoRoute
from tandemmq.cluster.client.message import MessageQueue, ReceivedMessage
from tandemmq.cluster.client.producing.ids import UniqueIds, local_address, packed_address
from tandemmq.cluster.client.producing.replies import AwaitedReplies
from tandemmq.cluster.client.reaching import calls
from tandemmq.cluster.client.reaching.answers import ANSWER_LIMITS, Answers
from tandemmq.cluster.client.reaching.connections import Connections, Dial, Wire
from tandemmq.cluster.client.reaching.inside import SERVERS, InsideWire
from tandemmq.cluster.client.reaching.jobs import Jobs
from tandemmq.cluster.client.reaching.nameservers import NameServers
from tandemmq.cluster.client.reaching.requests import Checked, DirectResult, requests_table
from tandemmq.cluster.client.reaching.routes import (
    TEMPLATE_QUEUE_COUNT,
    TEMPLATE_TOPIC,
    BrokerTable,
    TopicRoute,
)
from tandemmq.cluster.remoting import (
    Channel,
    Command,
    Connection,
    ConnectionLimits,
    Endpoint,
    RemotingError,
    RequestCode,
    open_channel,
    split_address,
)
from tandemmq.cluster.remoting.connection import close_all
from tandemmq.storage import Clock, SystemClock

log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 256 << 10
OUTPUT_BYTES_MAX: Final = 512 << 20  # producers bound what is in flight; this is the last resort
AWAY_S: Final = 30.0  # how long a broker that did not answer is spared, unless it is heard of
RETRY_PAUSE_S: Final = 0.1  # a group needs as long to change its master
WAKE_GAP_S: Final = 1.0  # two rounds of one timer are at least this far apart
FIRST_GAP_S: Final = (
    0.05  # but the first looks at the routes after a failure: a group elects quickly
)
QUIET_S: Final = 10.0  # so long without a failure, and the next one is a new one


class ConsumerRole(Protocol):
    """What an instance asks of each consumer it carries. group: as brokers know it."""

    group: str

    def topics(self) -> list[str]:
        """Topics whose routes it needs."""

    def heartbeat_entry(self) -> dict[str, object]:
        """ConsumerData for the heartbeat. Source: RocketMQ's ConsumerData."""

    def wake(self) -> None:
        """Rebalance now: members or routes changed."""

    def reset_offsets(self, positions: Mapping[MessageQueue, int]) -> None:
        """An operator wants reading to go on from these positions."""

    def positions(self, topic: str) -> Mapping[MessageQueue, int]:
        """Where the group's commit stands in the queues held of a topic."""

    def running_state(self, threads: bool) -> bytes:
        """ConsumerRunningInfo as JSON. threads: with the stacks of threads and tasks."""

    async def consume_directly(self, message: ReceivedMessage) -> DirectResult:
        """Give the listener one message now, whoever else gets it."""


class ClientInstance:
    """One client id with its connections and timers.

    Producers and consumers lease one; see lease().

    Safe for many tasks of one event loop, not for threads.
    """

    def __init__(
        self,
        config: ClientConfig,
        dial: Dial | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        """dial, clock, rng: for tests. address: of this machine, as text; a part of ids only."""
        self.config = config
        self.clock = clock or SystemClock()
        self.rng = rng or random.Random()
        self.brokers = BrokerTable()
        self.leases = 0
        unit = f"@{config.unit_name}" if config.unit_name else ""
        self.client_id = (
            f"{address}@{config.instance_name or f'{os.getpid()}#{time.monotonic_ns()}'}{unit}"
        )
        self.ids = UniqueIds(packed_address(address), self.rng)
        sign = config.credentials.sign if config.credentials is not None else None
        self.connections = Connections(self._greeting(dial or self._dial), _hang_up, sign)
        self.answers = Answers()
        self.replies = AwaitedReplies()
        self.transaction_checks: dict[str, Checked] = {}  # producers that answer, by group
        # brokers send us these; any other code is answered 3 by the channel
        self._endpoint = Endpoint(
            requests_table(self._consumers_by_group, self.replies, lambda: self.transaction_checks),
            clock=self.clock,
            chunk=self.answers.take,
            limits=ConnectionLimits(frame=ANSWER_LIMITS, output_bytes_max=OUTPUT_BYTES_MAX),
            receive_bytes=RECEIVE_BYTES,
        )
        self.next_opaque = self._endpoint.next_opaque
        self.name_servers = NameServers(
            config.name_server_addresses, self.connections, self.rng, config.call_timeout_ms
        )
        self._producers: dict[str, int] = {}
        self._consumers: dict[str, ConsumerRole] = {}
        self._promised: set[str] = set()
        self._published: set[str] = set()
        self._templated: set[str] = set()  # not created yet: their brokers are the template topic's
        self._fetching: dict[str, asyncio.Task[TopicRoute]] = {}
        self.absent_topics: dict[str, object] = {}  # read, not made yet -> which wait for it
        # which connection of a broker last told it of which producer groups
        self._told: dict[str, tuple[Wire | None, frozenset[str]]] = {}
        self._away: dict[str, float] = {}  # brokers that do not answer, and until when nobody asks
        self._route_pause_s = config.route_interval_ms / 1000
        self._refresh_now = asyncio.Event()
        self._request_failed = False  # since the routes were last looked at
        self._heartbeat_now = asyncio.Event()
        self._jobs = Jobs()

    # Life

    def start(self) -> None:
        """Start the timers. No request is sent yet."""
        self.answers.begin(self.connections)
        self._jobs.start("client route refresh", self._refresh_routes())
        self._jobs.start("client heartbeat", self._send_heartbeats())

    async def close(self) -> None:
        """Stop the timers and close every connection; also when cancelled in between."""
        fetching = list(self._fetching.values())
        for task in fetching:
            task.cancel()
        self.name_servers.close()
        try:
            await self._jobs.stop()
            await asyncio.gather(*fetching, return_exceptions=True)
        finally:
            self.answers.close()
            await self.connections.close()
            requests = list(self._endpoint.tasks)
            for request in requests:
                request.cancel()
            await asyncio.gather(*requests, return_exceptions=True)

    def _consumers_by_group(self) -> Mapping[str, ConsumerRole]:
        return self._consumers

    def carries_consumer(self, group: str) -> bool:
        """True when it has a consumer of the group: a second one needs another client id."""
        return group in self._consumers or group in self._promised

    def promise_consumer(self, group: str) -> None:
        """A consumer of the group will be added: nobody else of the group may lease this one."""
        self._promised.add(group)

    def forget_consumer(self, group: str) -> None:
        """The consumer is gone, or did not come."""
        self._promised.discard(group)

    # Groups

    def add_producer(self, group: str) -> None:
        """Name the group in heartbeats, the first time at once."""
        if group not in self._producers:
            self.heartbeat_soon()
        self._producers[group] = self._producers.get(group, 0) + 1

    async def remove_producer(self, group: str) -> None:
        """Leave the group on every connected broker, when this was its last producer here."""
        self._producers[group] -= 1
        if not self._producers[group]:
            del self._producers[group]
            await self._unregister(producer_group=group)

    def add_consumer(self, consumer: ConsumerRole) -> None:
        """Name the consumer's group and subscriptions in heartbeats."""
        assert consumer.group not in self._consumers, (
            f"two consumers of {consumer.group} in one instance"
        )
        self._consumers[consumer.group] = consumer

    async def remove_consumer(self, consumer: ConsumerRole) -> None:
        """Leave the group on every connected broker."""
        self._consumers.pop(consumer.group, None)
        await self._unregister(consumer_group=consumer.group)

    async def _unregister(
        self, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        async def leave(address: str) -> None:
            try:
                await calls.unregister(
                    self.connections,
                    address,
                    self.client_id,
                    producer_group,
                    consumer_group,
                    self.config.call_timeout_ms,
                )
            except ClientError as problem:
                # the broker forgets us anyway when the connection closes
                log.info("not unregistered address=%s why=%s", address, problem)

        known = set(self.brokers.heartbeat_addresses(with_slaves=True))
        await asyncio.gather(
            *(leave(address) for address in self.connections.connected() if address in known)
        )

    # Routes

    async def publish_queues(self, topic: str, within_ms: int = 0) -> tuple[MessageQueue, ...]:
        """Queues to send to, never empty.

        A topic that does not exist yet gets TBW102's brokers: a send creates it there. One whose groups are
        between two masters is asked for again within so many milliseconds: an election takes less than most
        sends may.

        Raises NoRoute when there is no writable queue, NoNameServer.
        """
        known = self.brokers.publish_queues(topic)
        if known:
            self._published.add(topic)
            return known
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + within_ms / 1000
        while True:
            try:
                await self.fetch_route(topic)
            except NoRoute:
                await self._template_route(topic)
            queues = self.brokers.publish_queues(topic)
            if queues:
                self._published.add(topic)
                return queues
            route = self.brokers.route(topic)
            left_s = until_s - now_s()
            if route is None or not route.awaits_master or left_s <= 0:
                raise NoRoute(topic, "none of its brokers has a writable queue and a master")
            await asyncio.sleep(min(RETRY_PAUSE_S, left_s))

    async def _template_route(self, topic: str) -> None:
        try:
            template = await self.name_servers.route(TEMPLATE_TOPIC)
        except NoRoute:
            raise NoRoute(
                topic,
                "it does not exist, and no broker creates topics by itself: start a broker, "
                "create the topic, or set autoCreateTopicEnable=true",
            ) from None
        self.brokers.learn(topic, template.as_template(TEMPLATE_QUEUE_COUNT))
        if topic not in self._templated:
            self._templated.add(topic)
            self._look_again_soon()

    async def fetch_route(self, topic: str) -> TopicRoute:
        """Ask the name server now; callers who ask for the same topic at once share the answer.

        Raises NoRoute (an older route stays in use), NoNameServer, BrokerRefused,
        BrokerAnswerBroken.
        """
        task = self._fetching.get(topic)
        if task is None:
            task = asyncio.create_task(self._fetch(topic), name=f"route {topic}")
            self._fetching[topic] = task
            task.add_done_callback(lambda done: self._fetched(topic, done))
        return await asyncio.shield(task)

    async def _fetch(self, topic: str) -> TopicRoute:
        try:
            route = await self.name_servers.route(topic)
        except NoRoute:
            if topic in self._templated:  # still not created; another may be master by now
                await self._template_route(topic)
            raise
        self._templated.discard(topic)
        before = set(self.brokers.heartbeat_addresses(with_slaves=True))
        if self.brokers.learn(topic, route):
            for address in self._away.keys() - before:
                del self._away[address]  # it was gone from the routes: who is there now is another
            if before and before != set(self.brokers.heartbeat_addresses(with_slaves=True)):
                # A member came, or one went: a pull that it holds must not wait for its time.
                self.heartbeat_soon()
            self._look_again_soon()
            log.info("route changed topic=%s brokers=%s", topic, ",".join(sorted(route.addresses)))
            for consumer in self._consumers.values():
                if topic in consumer.topics():
                    consumer.wake()
        return route

    def _look_again_soon(self) -> None:
        """More may follow: a topic being created appears on one broker after the other.

        The next looks come after 1, 2, 4 ... seconds, until the usual interval is reached again.
        """
        self._route_pause_s = WAKE_GAP_S
        self._refresh_now.set()

    def _fetched(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        self._fetching.pop(topic, None)
        if not task.cancelled():
            task.exception()  # every waiter got it

    async def read_route(self, topic: str) -> TopicRoute:
        """The route to consume by, from memory when known. Raises as fetch_route."""
        return self.brokers.route(topic) or await self.fetch_route(topic)

    async def master_address(self, broker_name: str, topic: str) -> str:
        """Where the broker name's master listens; the route is asked once more when it has none.

        Raises BrokerUnreachable when there is no master now.
        """
        address = self.brokers.master(broker_name)
        if address is None:
            await self.fetch_route(topic)
            address = self.brokers.master(broker_name)
        if address is None:
            raise BrokerUnreachable(
                broker_name, f"The broker[{broker_name}] not exist: no master is registered now"
            )
        return address

    async def look_for_master(self, broker_name: str, topic: str, within_ms: int) -> None:
        """A send failed, and no other broker name takes the topic: is another master there by now?

        Waits RETRY_PAUSE_S where the master is still the one that failed: a retry at once would
        fail at once. Not for a topic that several broker names take: the next one is tried.
        """
        names = {queue.broker_name for queue in self.brokers.publish_queues(topic)}
        if len(names) > 1 or within_ms <= 0:
            return
        before = self.brokers.master(broker_name)
        for pause_s in (0, min(RETRY_PAUSE_S, within_ms / 1000)):
            await asyncio.sleep(pause_s)
            try:
                await self.fetch_route(topic)
            except ClientError as problem:
                log.debug("route not refreshed topic=%s why=%s", topic, problem)
            if self.brokers.master(broker_name) not in (before, None):
                return

    async def reader_address(
        self, broker_name: str, topic: str, suggested_id: int = 0
    ) -> tuple[str, int]:
        """(address, broker id) to read from.

        Raises BrokerUnreachable when no member is registered now.
        """
        found = self.reader(broker_name, suggested_id)
        if found is None:
            await self.fetch_route(topic)
            found = self.reader(broker_name, suggested_id)
        if found is None:
            raise BrokerUnreachable(
                broker_name, f"The broker[{broker_name}] not exist: no member is registered now"
            )
        return found

    def reader(self, broker_name: str, suggested_id: int = 0) -> tuple[str, int] | None:
        """(address, broker id) of who is asked for messages and positions; None when nobody is
        registered now. Another member stands in for one that did not answer."""
        away = self._away
        if away:
            now_s = asyncio.get_running_loop().time()
            away = self._away = {at: until for at, until in away.items() if until > now_s}
        return self.brokers.reader(broker_name, suggested_id, away)

    def came_back(self, broker_name: str) -> bool:
        """Whether the broker restarted so lately that others may not have told it of themselves yet."""
        found = self.reader(broker_name)
        told_s = self.config.heartbeat_interval_ms / 1000
        since_s = asyncio.get_running_loop().time() - told_s
        return found is not None and self.connections.again_since(found[0], since_s)

    def no_answer(self, address: str) -> None:
        """A request got no answer: others are asked for a while, where there are others.

        A name server may name a frozen broker for two minutes. The next heartbeat that is answered
        ends it, and so does a route that names the address anew.
        """
        until_s = asyncio.get_running_loop().time() + AWAY_S
        if address not in self._away:
            log.info("broker does not answer, asking others address=%s", address)
        self._away[address] = until_s

    def refresh_soon(self) -> None:
        """A request failed: look at the routes at once, and soon again: after 0.05 s, 0.1 s ... 1 s.

        While requests go on failing it stays at once a second.
        """
        self._request_failed = True
        self._refresh_now.set()

    def heartbeat_soon(self) -> None:
        """Groups or subscriptions changed: tell the brokers before the timer does."""
        self._heartbeat_now.set()

    # Timers

    async def _refresh_routes(self) -> None:
        loop = asyncio.get_running_loop()
        gap_s, failed_s = FIRST_GAP_S, -QUIET_S
        while True:
            troubled = loop.time() - failed_s <= QUIET_S
            await _wait(self._refresh_now, self._route_pause_s, gap_s if troubled else FIRST_GAP_S)
            if self._request_failed:
                self._request_failed, failed_s = False, loop.time()
                if not troubled:
                    gap_s = FIRST_GAP_S / 2
                    troubled = True
            if troubled and gap_s < WAKE_GAP_S:
                # the name server may not know the new master yet: look again
                gap_s = self._route_pause_s = min(2 * gap_s, WAKE_GAP_S)
            else:
                longest_s = self.config.route_interval_ms / 1000
                self._route_pause_s = min(2 * self._route_pause_s, longest_s)
            topics = {topic for consumer in self._consumers.values() for topic in consumer.topics()}
            for topic in sorted(self._published | topics):
                try:
                    await self.fetch_route(topic)
                except NoRoute:
                    pass  # not created yet, or all its brokers are away: the old route stays in use
                except ClientError as problem:
                    log.warning("route not refreshed topic=%s why=%s", topic, problem)
                    break  # the name servers are away: the other topics would say the same

    async def _send_heartbeats(self) -> None:
        while True:
            await _wait(self._heartbeat_now, self.config.heartbeat_interval_ms / 1000)
            await self._drop_gone_brokers()
            await self.heartbeat_all()

    async def _drop_gone_brokers(self) -> None:
        for address in self.connections.connected():
            if self.brokers.left(address) and address not in self.name_servers.addresses:
                await self.connections.drop(address, "no route mentions it any more")

    async def heartbeat_all(self) -> None:
        """Heartbeat to every broker of the routes: masters, for consumers the slaves too."""
        await self.heartbeat_to(self.brokers.heartbeat_addresses(with_slaves=bool(self._consumers)))

    async def heartbeat_to(self, addresses: Iterable[str]) -> None:
        """Heartbeat to these; what fails is logged, and the broker spared for a while."""
        if not self._producers and not self._consumers:
            return
        body, groups = self._heartbeat_body(), frozenset(self._producers)

        async def beat(address: str) -> None:
            try:
                await calls.heartbeat(self.connections, address, body, self.config.call_timeout_ms)
            except ClientError as problem:
                if isinstance(problem, (BrokerUnreachable, CallTimedOut)):
                    self.no_answer(address)
                log.warning("heartbeat failed address=%s why=%s", address, problem)
            else:
                self._away.pop(address, None)
                self._told[address] = (self.connections.peek(address), groups)

        await asyncio.gather(*(beat(address) for address in addresses))

    def strangers(self, silent_too: bool = False) -> list[str]:
        """Masters that do not know our producers by the connection that is open now, and so cannot push to us.

        silent_too  also those that are spared because they did not answer
        """
        groups, now_s = frozenset(self._producers), asyncio.get_running_loop().time()
        return [
            address
            for address in self.brokers.heartbeat_addresses(with_slaves=False)
            if silent_too or self._away.get(address, 0.0) <= now_s
            if (wire := self.connections.peek(address)) is None
            or self._told.get(address) != (wire, groups)
        ]

    def _heartbeat_body(self) -> bytes:
        return calls.to_json(
            {
                "clientID": self.client_id,
                "consumerDataSet": [
                    consumer.heartbeat_entry() for consumer in self._consumers.values()
                ],
                "producerDataSet": [{"groupName": group} for group in self._producers],
                "heartbeatFingerprint": 0,
                "withoutSub": False,
            }
        )

    # Connections

    def _lost(self, channel: Connection) -> None:
        """Who waits for nothing from there must see it too: all members share the queues by one route."""
        log.debug("connection ended address=%s why=%s", channel.address, channel.close_reason)
        if self._consumers:
            self.refresh_soon()

    async def _dial(self, address: str) -> Wire:
        inside = SERVERS.get(address)
        if inside is not None:
            return inside(self._endpoint.table)
        host, port = split_address(address)
        return await open_channel(
            host,
            port,
            tls=self.config.tls,
            timeout_ms=self.config.call_timeout_ms,
            endpoint=self._endpoint,
        )

    def _greeting(self, dial: Dial) -> Dial:
        """A broker must know our groups before the first request: heartbeat first."""

        async def greet(address: str) -> Wire:
            wire = await dial(address)
            if isinstance(wire, Channel):
                wire.on_close(self._lost)
            carried = bool(self._producers or self._consumers)
            if carried and address in self.brokers.heartbeat_addresses(with_slaves=True):
                hello = Command(RequestCode.HEART_BEAT, body=self._heartbeat_body())
                if self.config.credentials is not None:
                    self.config.credentials.sign(hello)
                groups = frozenset(self._producers)
                try:
                    await wire.request(hello, self.config.call_timeout_ms)
                    self._told[address] = (wire, groups)
                except RemotingError as problem:
                    log.info("first heartbeat failed address=%s why=%s", address, problem)
                except asyncio.CancelledError:
                    await _hang_up([wire], "cancelled while greeting")
                    raise
            return wire

        return greet


async def _hang_up(wires: Sequence[Wire], why: str) -> None:
    for wire in wires:
        if not isinstance(wire, Channel) and isinstance(wire, InsideWire):
            wire.close()
    await close_all([wire for wire in wires if isinstance(wire, Channel)], why)


async def _wait(event: asyncio.Event, longest_s: float, gap_s: float = WAKE_GAP_S) -> None:
    """Until the event or the time, whichever is first, but never two rounds within gap_s."""
    gap_s = min(gap_s, longest_s)
    await asyncio.sleep(gap_s)
    try:
        async with asyncio.timeout(max(0.0, longest_s - gap_s)):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()


# One set of instances per event loop: connections belong to the loop that opened them.
_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, list[ClientInstance]] = WeakKeyDictionary()


async def lease(config: ClientConfig, consumer_group: str | None = None) -> ClientInstance:
    """A started instance with this config: a running one of this loop when it fits, else a new one.

    Two consumers of one group never share an instance: they would be one member of the group.
    """
    instances = _shared.setdefault(asyncio.get_running_loop(), [])
    found = _fitting(instances, config, consumer_group)
    if found is None:
        # in a thread: a host name may have to be looked up
        address = await asyncio.to_thread(local_address, _towards(config))
        found = _fitting(instances, config, consumer_group)  # another task may have been faster
    if found is None:
        found = ClientInstance(config, address=address)
        instances.append(found)
        found.start()
    found.leases += 1
    if consumer_group:
        found.promise_consumer(consumer_group)
    return found


def _fitting(
    instances: list[ClientInstance], config: ClientConfig, consumer_group: str | None
) -> ClientInstance | None:
    for instance in instances:
        if instance.config == config and not (
            consumer_group and instance.carries_consumer(consumer_group)
        ):
            return instance
    return None


def _towards(config: ClientConfig) -> tuple[str, int] | None:
    """Host and port of the first name server, or of the page that lists them; None for one in this process."""
    first = config.name_server_addresses[0]
    if first in SERVERS:
        return None
    if not is_lookup(first):
        return split_address(first)
    page = urlsplit(first)
    return page.hostname or "127.0.0.1", page.port or 80


async def release(instance: ClientInstance, consumer_group: str | None = None) -> None:
    """Give a lease back; the last one closes the instance."""
    if consumer_group:
        instance.forget_consumer(consumer_group)
    instance.leases -= 1
    if not instance.leases:
        _shared.get(asyncio.get_running_loop(), []).remove(instance)
        await instance.close()
