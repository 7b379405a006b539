"""Which brokers are alive and which queues of which topics they hold: the name server's decisions.

Every name server decides alone, from what brokers tell it. Times are milliseconds of a clock that
only grows. Source: RocketMQ's RouteInfoManager.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tandemmq.cluster.remoting.headers import Int32, Int64

MASTER_ID: Final = 0
BROKER_TIMEOUT_MS: Final = 120_000
ALWAYS_THERE: Final = ("SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT")
PERM_WRITE: Final = 2
PERM_ADDED: Final = 6  # what ADD_WRITE_PERM_OF_BROKER sets: readable and writable, other bits lost
UNIT_FLAG: Final = 1
UNIT_SUBSCRIPTION_FLAG: Final = 2

# Topics, brokers and clusters. No name becomes a path here, so unlike a broker this table takes the
# dot: a stock broker is named after its host, and registers a topic of that name.
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_.-]{1,255}")
_ADDRESS: Final = re.compile(r"[a-zA-Z0-9_.:%\[\]-]{1,250}:[0-9]{1,5}")

_encode: Final = msgspec.json.Encoder().encode


class RegistrationRefused(Exception):
    """This registration may not be taken; the text is the remark."""


class DataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """The generation of a broker's topics. Equal only when all three are."""

    counter: Int64 = 0
    state_version: Int64 = 0
    timestamp: Int64 = 0


class TopicLine(msgspec.Struct, rename="camel"):
    """What the name server wants to know of a registered topic."""

    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_sys_flag: Int32 = 0


class QueueData(msgspec.Struct, frozen=True, rename="camel"):
    """The queues of one topic on one broker group."""

    broker_name: str
    perm: Int32
    read_queue_nums: Int32
    topic_sys_flag: Int32
    write_queue_nums: Int32


@dataclass(slots=True)
class BrokerGroup:
    """A broker name: one master and its slaves."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)  # broker id -> "ip:port"
    acting_master: bool = False
    zone: str | None = None

    def as_json(self) -> dict[str, Any]:
        """BrokerData of a route. No blank anywhere: the Go client splits brokerAddrs as text."""
        members: dict[str, Any] = {
            "brokerAddrs": {str(each): self.addresses[each] for each in sorted(self.addresses)},
            "brokerName": self.name,
            "cluster": self.cluster,
            "enableActingMaster": self.acting_master,
        }
        if self.zone is not None:
            members["zoneName"] = self.zone
        return members


@dataclass(slots=True)
class LiveBroker:
    """The last we heard of one address."""

    name: str
    seen_ms: int
    timeout_ms: int
    version: DataVersion
    connection: int  # id of the connection it registered on
    ha_address: str


@dataclass(frozen=True, slots=True)
class Registration:
    """One REGISTER_BROKER: the broker, and all of its topics or only those that changed.

    acting_master   None from brokers before 5.0, which do not know it
    topics          empty when the request had no body
    has_static_topics   whether the payload holds static topic mappings
    """

    cluster: str
    name: str
    address: str
    broker_id: int
    ha_address: str = ""
    timeout_ms: int | None = None
    acting_master: bool | None = None
    zone: str | None = None
    version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, TopicLine] = field(default_factory=dict)
    has_static_topics: bool = False


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration: for a slave, where its master is."""

    ha_address: str | None = None
    master_address: str | None = None


def name_problem(kind: str, name: str) -> str | None:
    """Why this is no name of a topic, broker or cluster; None when it is one."""
    if _NAME.fullmatch(name):
        return None
    return f"{kind} name {name[:64]!r} must be 1 to 255 of a-z A-Z 0-9 % | _ . -"


def address_problem(address: str) -> str | None:
    """Why this is no address that clients could connect to; None when it is one."""
    if _ADDRESS.fullmatch(address) and int(address.rpartition(":")[2]) < 65536:
        return None
    return f"broker address {address[:64]!r} must be host:port"


class RouteTable:
    """Clusters, brokers, topics and their queues. One thread, synchronous: nothing is half done.

    INV: every group in `groups` has an address, and its name is in a cluster's set.
    INV: every broker name in `topics` is in `groups`.
    """

    def __init__(self, *, topics_follow_registration: bool = False) -> None:
        """topics_follow_registration: a full payload removes the topics it does not mention."""
        self.topics_follow_registration = topics_follow_registration
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.groups: dict[str, BrokerGroup] = {}
        self.clusters: dict[str, set[str]] = {}
        self.live: dict[tuple[str, str], LiveBroker] = {}
        self.expired = 0  # brokers that were silent for too long, since the start
        self._routes: dict[str, bytes] = {}  # encoded, until anything changes

    # ---- brokers come

    def register(self, asked: Registration, connection: int, now_ms: int) -> Registered:
        """Take one registration. Raises RegistrationRefused.

        Topics are merged, never replaced: a registration may carry only what changed.
        """
        key = (asked.cluster, asked.address)
        group = self.groups.get(asked.name)
        is_new_group = group is None
        if group is None:
            group = BrokerGroup(asked.cluster, asked.name)
        addresses = group.addresses
        former = addresses.get(asked.broker_id)
        if former is None and len(asked.topics) == 1:
            # an incremental registration that arrives before the full one would hide the rest
            raise RegistrationRefused("register broker failed")
        # the same address under another id: a slave that became master leaves its old id
        for other in [i for i, at in addresses.items() if at == asked.address]:
            if other != asked.broker_id:
                del addresses[other]
                self._changed()
        if former is not None and former != asked.address:
            holder = self.live.get((asked.cluster, former))
            if holder is not None and holder.version.state_version > asked.version.state_version:
                self.live.pop(key, None)  # a master of an older epoch came back: ignored
                return Registered()
        tenant = self.live.get(key)
        if tenant is not None and tenant.name != asked.name:
            # restarted under another name: without this the old name would never expire
            self.unregister(asked.cluster, tenant.name, asked.address)
        self._join(group, asked, is_new_group)
        addresses[asked.broker_id] = asked.address
        is_first = is_new_group or former is None
        is_prime_slave = (
            asked.acting_master is not None
            and asked.broker_id != MASTER_ID
            and asked.broker_id == min(addresses)
        )
        if asked.broker_id == MASTER_ID or is_prime_slave:
            known = self.live.get(key)
            is_changed = is_first or known is None or known.version != asked.version
            self._merge_topics(group, asked, is_changed, is_prime_slave)
        self.live[key] = LiveBroker(
            asked.name,
            now_ms,
            BROKER_TIMEOUT_MS if asked.timeout_ms is None else asked.timeout_ms,
            asked.version,
            connection,
            asked.ha_address,
        )
        if asked.broker_id == MASTER_ID:
            return Registered()
        master = addresses.get(MASTER_ID)
        master_live = self.live.get((asked.cluster, master)) if master is not None else None
        if master_live is None:
            return Registered()
        return Registered(master_live.ha_address, master)

    def _join(self, group: BrokerGroup, asked: Registration, is_new_group: bool) -> None:
        if is_new_group:
            self.groups[asked.name] = group
        names = self.clusters.setdefault(asked.cluster, set())
        acting_master = bool(asked.acting_master)
        if (
            is_new_group
            or asked.name not in names
            or group.addresses.get(asked.broker_id) != asked.address
            or group.acting_master != acting_master
            or group.zone != asked.zone
        ):
            self._changed()
        names.add(asked.name)
        group.acting_master = acting_master
        group.zone = asked.zone

    def _merge_topics(
        self, group: BrokerGroup, asked: Registration, is_changed: bool, is_prime_slave: bool
    ) -> None:
        follows = self.topics_follow_registration and not asked.has_static_topics
        if follows and asked.topics and self._names_all(group, asked):
            for topic in [t for t, queues in self.topics.items() if group.name in queues]:
                if topic not in asked.topics:
                    self._drop_queues(topic, group.name)
        for topic, line in asked.topics.items():
            queues = self.topics.get(topic)
            if not is_changed and queues is not None and group.name in queues:
                continue
            perm = line.perm
            if is_prime_slave and group.acting_master:
                perm &= ~PERM_WRITE
            data = QueueData(
                group.name, perm, line.read_queue_nums, line.topic_sys_flag, line.write_queue_nums
            )
            self._put_queues(topic, data)

    def _names_all(self, group: BrokerGroup, asked: Registration) -> bool:
        """Whether a registration is of all topics of its broker; of one that is of a part nothing says so.

        Every broker has these topics from its first start, and nobody can delete them: a registration without one
        that it has brought before is of what changed.
        """
        return all(
            topic in asked.topics or group.name not in self.topics.get(topic, ())
            for topic in ALWAYS_THERE
        )

    def _put_queues(self, topic: str, data: QueueData) -> None:
        queues = self.topics.setdefault(topic, {})
        if queues.get(data.broker_name) != data:
            queues[data.broker_name] = data
            self._changed()

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self.topics.get(topic)
        if queues is not None and queues.pop(broker_name, None) is not None:
            if not queues:
                del self.topics[topic]
            self._changed()

    def touch(self, cluster: str, address: str, now_ms: int) -> bool:
        """Note that this broker lives; whether it is known."""
        live = self.live.get((cluster, address))
        if live is None:
            return False
        live.seen_ms = now_ms
        return True

    def version_of(self, cluster: str, address: str) -> DataVersion | None:
        """The data version of this broker's last registration."""
        live = self.live.get((cluster, address))
        return None if live is None else live.version

    # ---- brokers go

    def unregister(self, cluster: str, name: str, address: str) -> bool:
        """Forget one address, and with a group's last its queues; whether it was known."""
        live = self.live.get((cluster, address))
        if live is not None and live.name != name:
            return False  # somebody else lives there now
        was_live = self.live.pop((cluster, address), None) is not None
        group = self.groups.get(name)
        if group is None:
            return was_live
        ids = [each for each, at in group.addresses.items() if at == address]
        for each in ids:
            del group.addresses[each]
        if ids:
            self._changed()
        if not group.addresses:
            self._remove_group(group)
        elif ids and group.acting_master and MASTER_ID not in group.addresses:
            self._set_perms(name, lambda perm: perm & ~PERM_WRITE)
        return was_live or bool(ids)

    def _remove_group(self, group: BrokerGroup) -> None:
        del self.groups[group.name]
        for cluster in [c for c, names in self.clusters.items() if group.name in names]:
            self.clusters[cluster].discard(group.name)
            if not self.clusters[cluster]:
                del self.clusters[cluster]
        for topic in [t for t, queues in self.topics.items() if group.name in queues]:
            self._drop_queues(topic, group.name)
        self._changed()

    def connection_closed(self, connection: int) -> list[str]:
        """Unregister what was registered on this connection; the addresses."""
        gone = [
            (cluster, live.name, address)
            for (cluster, address), live in self.live.items()
            if live.connection == connection
        ]
        for cluster, name, address in gone:
            self.unregister(cluster, name, address)
        return [address for _, _, address in gone]

    def expire(self, now_ms: int) -> list[tuple[str, int]]:
        """Unregister brokers silent beyond their timeout: (address, connection) of each."""
        late = [
            (cluster, live.name, address, live.connection)
            for (cluster, address), live in self.live.items()
            if live.seen_ms + live.timeout_ms < now_ms
        ]
        self.expired += len(late)
        for cluster, name, address, _ in late:
            self.unregister(cluster, name, address)
        return [(address, connection) for _, _, address, connection in late]

    # ---- what clients and tools ask

    def route(self, topic: str) -> dict[str, Any] | None:
        """TopicRouteData; None when no registered broker has the topic."""
        queues = self.topics.get(topic)
        if not queues:
            return None
        groups = [self.groups[name] for name in sorted(queues) if name in self.groups]
        if not groups:
            return None
        return {
            "brokerDatas": [group.as_json() for group in groups],
            "filterServerTable": {},
            "queueDatas": [queues[name] for name in sorted(queues)],
        }

    def route_json(self, topic: str, order: str | None = None) -> bytes | None:
        """route() as the body of an answer. order: the topic's value in ORDER_TOPIC_CONFIG."""
        if order is None:
            encoded = self._routes.get(topic)
            if encoded is not None:
                return encoded
        route = self.route(topic)
        if route is None:
            return None
        if order is not None:
            return _encode({**route, "orderTopicConf": order})
        encoded = self._routes[topic] = _encode(route)
        return encoded

    def cluster_json(self) -> bytes:
        """ClusterInfo: every broker group, and the groups of every cluster."""
        return _encode(
            {
                "brokerAddrTable": {n: self.groups[n].as_json() for n in sorted(self.groups)},
                "clusterAddrTable": {n: sorted(self.clusters[n]) for n in sorted(self.clusters)},
            }
        )

    def member_group_json(self, cluster: str, broker_name: str) -> bytes:
        """BrokerMemberGroup: who else has this broker name; without addresses when nobody has."""
        group = self.groups.get(broker_name)
        addresses = group.as_json()["brokerAddrs"] if group is not None else {}
        members = {"brokerAddrs": addresses, "brokerName": broker_name, "cluster": cluster}
        return _encode({"brokerMemberGroup": members})

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Topics with queues on any broker of the cluster."""
        names = self.clusters.get(cluster, set())
        return sorted(t for t, queues in self.topics.items() if not names.isdisjoint(queues))

    def unit_topics(self, wanted: int, unwanted: int = 0) -> list[str]:
        """Topics with these bits in their sys flag, and without those."""
        return sorted(
            topic
            for topic, queues in self.topics.items()
            if any(
                q.topic_sys_flag & wanted and not q.topic_sys_flag & unwanted
                for q in queues.values()
            )
        )

    def any_address(self) -> str | None:
        """Some broker's address; a tool asks it for the system topics."""
        for name in sorted(self.groups):
            for each in sorted(self.groups[name].addresses):
                return self.groups[name].addresses[each]
        return None

    # ---- what tools change; the next registration with a new version overwrites it

    def wipe_write_perm(self, broker_name: str) -> int:
        """Make all queues of this broker name unwritable; how many topics."""
        return self._set_perms(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Make all queues of this broker name readable and writable; how many topics."""
        return self._set_perms(broker_name, lambda perm: PERM_ADDED)

    def _set_perms(self, broker_name: str, changed: Any) -> int:
        count = 0
        for topic, queues in self.topics.items():
            data = queues.get(broker_name)
            if data is not None:
                count += 1
                self._put_queues(topic, msgspec.structs.replace(data, perm=changed(data.perm)))
        return count

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic everywhere, or on one cluster's brokers."""
        queues = self.topics.get(topic, {})
        names = set(queues) if cluster is None else self.clusters.get(cluster, set())
        for name in list(names):
            self._drop_queues(topic, name)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Put these queues; nothing at all when one of their brokers is not registered."""
        given = list(queues)
        if all(data.broker_name in self.groups for data in given):
            for data in given:
                self._put_queues(topic, data)

    def _changed(self) -> None:
        self._routes.clear()

    def __iter__(self) -> Iterator[str]:
        """All topics, by name."""
        return iter(sorted(self.topics))
