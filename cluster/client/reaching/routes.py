"""Routes of topics: what the name server says, turned into queues and addresses. No I/O."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

import msgspec

from tandemmq.cluster.client.errors import BrokerAnswerBroken
from tandemmq.cluster.client.message import MessageQueue
from tandemmq.cluster.remoting import bodies

READABLE = 4
WRITABLE = 2
MASTER_ID = 0
TEMPLATE_TOPIC = "TBW102"  # its route says where an unknown topic can be created
TEMPLATE_QUEUE_COUNT = 4  # RocketMQ's defaultTopicQueueNums


class QueueCounts(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """Queues that one broker name offers for a topic. perm: 4 read, 2 write, 1 inherit."""

    broker_name: str
    read_queue_count: int = msgspec.field(name="readQueueNums")
    write_queue_count: int = msgspec.field(name="writeQueueNums")
    perm: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One topic's route. Two routes are equal when nothing changed for a client."""

    queue_counts: tuple[QueueCounts, ...]  # sorted by broker name: every client sees one order
    addresses: Mapping[str, Mapping[int, str]]  # broker name -> broker id -> "host:port"
    order_conf: tuple[
        tuple[str, int], ...
    ] = ()  # (broker name, queues), from the name server's order table
    clusters: tuple[str, ...] = ()  # of its brokers, sorted

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Queues a producer may choose: writable, on a broker name whose master (id 0) is there."""
        if self.order_conf:
            return tuple(
                MessageQueue(topic, name, number)
                for name, count in self.order_conf
                for number in range(count)
            )
        return tuple(
            MessageQueue(topic, counts.broker_name, number)
            for counts in self.queue_counts
            if counts.perm & WRITABLE and MASTER_ID in self.addresses.get(counts.broker_name, {})
            for number in range(counts.write_queue_count)
        )

    @property
    def awaits_master(self) -> bool:
        """Whether a broker name with writable queues has members, and no master among them now."""
        return any(
            counts.perm & WRITABLE and counts.write_queue_count > 0
            and MASTER_ID not in self.addresses.get(counts.broker_name, {MASTER_ID: ""})
            for counts in self.queue_counts
        )  # fmt: skip

    def read_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Queues a consumer reads: readable; no master is needed."""
        return tuple(
            MessageQueue(topic, counts.broker_name, number)
            for counts in self.queue_counts
            if counts.perm & READABLE
            for number in range(counts.read_queue_count)
        )

    def as_template(self, queue_count_max: int) -> TopicRoute:
        """The route of a topic that does not exist yet, made from TBW102's."""
        return TopicRoute(
            tuple(
                QueueCounts(
                    counts.broker_name,
                    min(counts.read_queue_count, queue_count_max),
                    # Java caps both by the read count; the broker creates min(asked, its write
                    # queues)
                    min(counts.read_queue_count, queue_count_max),
                    counts.perm,
                )
                for counts in self.queue_counts
            ),
            self.addresses,
            clusters=self.clusters,
        )


def parse_route(body: bytes | memoryview) -> TopicRoute:
    """TopicRoute from the body of GET_ROUTEINFO_BY_TOPIC's answer, in either JSON dialect.

    Raises BrokerAnswerBroken when it is not a route. Source: RocketMQ's TopicRouteData.
    """
    try:
        found = bodies.read(_RouteData, body)
        order = _order_conf(found.order_topic_conf)
    except ValueError as problem:
        raise BrokerAnswerBroken(f"the name server's route does not parse: {problem}") from problem
    addresses = {
        each.broker_name: dict(sorted(each.broker_addrs.items())) for each in found.broker_datas
    }
    clusters = sorted({each.cluster for each in found.broker_datas if each.cluster})
    return TopicRoute(tuple(sorted(found.queue_datas)), addresses, order, tuple(clusters))


class _BrokerData(msgspec.Struct, rename="camel"):
    broker_name: str
    broker_addrs: dict[int, str]
    cluster: str = ""


class _RouteData(msgspec.Struct, rename="camel"):
    queue_datas: list[QueueCounts] = []
    broker_datas: list[_BrokerData] = []
    order_topic_conf: str = ""


def _order_conf(text: str) -> tuple[tuple[str, int], ...]:
    parts = [part.partition(":") for part in text.split(";") if part]
    return tuple((name, int(count)) for name, _, count in parts)


class BrokerTable:
    """broker name -> id -> address, merged from the routes of every topic this client uses."""

    def __init__(self) -> None:
        self._by_topic: dict[str, TopicRoute] = {}
        self._publish: dict[str, tuple[MessageQueue, ...]] = {}
        self._addresses: dict[str, dict[int, str]] = {}
        self._named: set[str] = set()  # every address that ever stood in a route
        self.version = 0  # changes with every change of a route

    def learn(self, topic: str, route: TopicRoute) -> bool:
        """Take a topic's route in; True when it is new or differs from what we had."""
        known = self._by_topic.get(topic)
        if known == route:
            return False
        self._by_topic[topic] = route
        self._publish[topic] = route.publish_queues(topic)
        if (
            known is None
        ):  # the last of all: merged on top, as who uses ten thousand topics learns each so
            self._add(route)
            self.version += 1
        else:
            self._merge()
        self._named.update(self.heartbeat_addresses(with_slaves=True))
        return True

    def left(self, address: str) -> bool:
        """Whether routes named this address once and do so no more. False for one that somebody
        else told us of: a controller, a broker asked for by hand."""
        return address in self._named and address not in self.heartbeat_addresses(with_slaves=True)

    def forget(self, topic: str) -> None:
        """The topic is not used any more; its addresses go unless another topic names them."""
        if self._by_topic.pop(topic, None) is not None:
            del self._publish[topic]
            self._merge()

    def _merge(self) -> None:
        self._addresses = {}
        for route in self._by_topic.values():
            self._add(route)
        self.version += 1

    def _add(self, route: TopicRoute) -> None:
        for name, members in route.addresses.items():
            self._addresses.setdefault(name, {}).update(members)

    def route(self, topic: str) -> TopicRoute | None:
        """The last route learnt for this topic."""
        return self._by_topic.get(topic)

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Queues to send to; empty when the topic is unknown or nobody can take it now."""
        return self._publish.get(topic, ())

    def master(self, broker_name: str) -> str | None:
        """Address of the broker name's master, or None while it has none."""
        return self._addresses.get(broker_name, {}).get(MASTER_ID)

    def reader(
        self, broker_name: str, suggested_id: int, away: Container[str] = ()
    ) -> tuple[str, int] | None:
        """(address, id) to read from: the suggested member, else the next id, else any.

        away  addresses that do not answer: only when there is no other
        """
        known = self._addresses.get(broker_name, {})
        members = {number: at for number, at in known.items() if at not in away} or known
        candidates = [
            suggested_id,
            *([suggested_id + 1] if suggested_id != MASTER_ID else []),
            *sorted(members),
        ]
        return next(((members[number], number) for number in candidates if number in members), None)

    def heartbeat_addresses(self, with_slaves: bool) -> list[str]:
        """Where heartbeats go: masters always, the other members only for consumers."""
        return sorted(
            {
                address
                for members in self._addresses.values()
                for number, address in members.items()
                if with_slaves or number == MASTER_ID
            }
        )
