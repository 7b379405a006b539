"""Who is connected: the members of each consumer group and of each producer group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from tandemmq.cluster.broker.reading.subscriptions import Subscription
from tandemmq.cluster.remoting.command import Command

BROADCASTING = "BROADCASTING"
CONSUME_ACTIVELY = "CONSUME_ACTIVELY"

#: producer groups of one connection: a client has a handful, and each costs memory while it lives
GROUPS_MAX = 10_000


class Peer(Protocol):
    """What is needed of a connection here; tandemmq.cluster.remoting.Connection is one."""

    @property
    def id(self) -> int: ...
    @property
    def peer(self) -> tuple[str, int]: ...
    @property
    def closed(self) -> bool: ...
    def send(self, command: Command) -> None: ...
    def oneway(self, command: Command) -> None: ...
    async def request(self, command: Command, timeout_ms: int) -> Command: ...
    def close(self, reason: str) -> None: ...


@dataclass(slots=True)
class GroupClient:
    """One client on one connection, as its last heartbeat described it.

    language and version: wire numbers.
    user   the AccessKey of its heartbeat; empty where nobody is asked who they are
    """

    connection: Peer
    client_id: str
    language: int
    version: int
    seen_ms: int  # monotonic: for expiry
    seen_wall_ms: int  # for tools
    user: str = ""


@dataclass(slots=True)
class Heartbeat:
    """What one heartbeat says of one consumer group."""

    member: GroupClient
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: Iterable[Subscription]


@dataclass(slots=True)
class GroupMembers:
    """A consumer group that has members.

    The last heartbeat of any member decides type, model and subscriptions.
    """

    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    connections: dict[int, GroupClient] = field(default_factory=dict)

    @property
    def broadcasting(self) -> bool:
        return self.message_model == BROADCASTING

    @property
    def actively_pulling(self) -> bool:
        return self.consume_type == CONSUME_ACTIVELY

    def client_ids(self) -> list[str]:
        """Each member once: who reconnects is two connections for a moment, and one member."""
        return list(dict.fromkeys(member.client_id for member in self.connections.values()))

    def update(self, subscriptions: Iterable[Subscription]) -> bool:
        """Take over what a member subscribes to; True when topics came or went.

        A known topic changes only to a greater version, and that is not a change others must hear
        of. A topic that this member lacks goes: members of one group must subscribe alike.
        """
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        gone = self.subscriptions.keys() - wanted.keys()
        for topic in gone:
            del self.subscriptions[topic]
        changed = bool(gone)
        for topic, subscription in wanted.items():
            known = self.subscriptions.get(topic)
            if known is None:
                changed = True
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[topic] = subscription
        return changed


def _unheard(group: GroupMembers) -> None:
    """No one listens yet."""


class ConsumerMembers:
    """Consumer groups by name. `on_change` is called with a group whose members or topics changed.

    Source: RocketMQ's ConsumerManager.
    """

    def __init__(self) -> None:
        self._groups: dict[str, GroupMembers] = {}
        self._groups_of: dict[int, set[str]] = {}
        self.on_change: Callable[[GroupMembers], None] = _unheard

    def group(self, name: str) -> GroupMembers | None:
        """The group if it has members."""
        return self._groups.get(name)

    def __iter__(self) -> Iterator[GroupMembers]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    def client_ids(self, name: str) -> list[str]:
        found = self._groups.get(name)
        return found.client_ids() if found is not None else []

    def find(self, name: str, client_id: str) -> GroupClient | None:
        """The newest connection of one client in a group."""
        found = self._groups.get(name)
        if found is None:
            return None
        matching = [
            member for member in found.connections.values() if member.client_id == client_id
        ]
        return matching[-1] if matching else None

    def subscribers(self, topic: str) -> list[str]:
        """Names of the groups whose members subscribe to a topic."""
        return [group.name for group in self._groups.values() if topic in group.subscriptions]

    def register(self, name: str, heartbeat: Heartbeat) -> bool:
        """Take one heartbeat into the group; True when members or topics changed."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = GroupMembers(name)
        group.consume_type = heartbeat.consume_type
        group.message_model = heartbeat.message_model
        group.consume_from_where = heartbeat.consume_from_where
        member = heartbeat.member
        key = member.connection.id
        known = group.connections.get(key)
        joined = known is None or known.client_id != member.client_id
        group.connections[key] = member
        self._groups_of.setdefault(key, set()).add(name)
        changed = group.update(heartbeat.subscriptions) or joined
        if changed:
            self.on_change(group)
        return changed

    def unregister(self, name: str, connection: Peer) -> bool:
        """A client leaves a group; True when it was in it."""
        group = self._groups.get(name)
        if group is None or group.connections.pop(connection.id, None) is None:
            return False
        mine = self._groups_of.get(connection.id)
        if mine is not None:
            mine.discard(name)
            if not mine:
                del self._groups_of[connection.id]
        if not group.connections:
            del self._groups[name]
        else:
            self.on_change(group)
        return True

    def connection_closed(self, connection: Peer) -> None:
        """The connection is gone, and its client from every group with it."""
        for name in list(self._groups_of.get(connection.id, ())):
            self.unregister(name, connection)

    def expire(self, now_ms: int, expired_after_ms: int) -> list[Peer]:
        """Remove members that sent no heartbeat for too long; their connections, to be closed.

        RocketMQ does not tell the rest of the group; we do, for its messages would wait for the
        next rebalance.
        """
        expired = [
            (group.name, member.connection)
            for group in self._groups.values()
            for member in group.connections.values()
            if now_ms - member.seen_ms > expired_after_ms
        ]
        for name, connection in expired:
            self.unregister(name, connection)
        return [connection for _, connection in expired]


class ProducerMembers:
    """Producer groups by name, and clients by id: where checks and replies go.

    Names of groups and ids of clients are no secrets, and anybody may say them in a heartbeat. Where it is asked who
    that is, half messages are shown only to who may send to their topics, and an id stays with its user while that
    one is connected.

    may_send   whether a user at an address may send to a topic
    Source: RocketMQ's ProducerManager.
    """

    def __init__(
        self, may_send: Callable[[str, str, str], bool] = lambda user, host, topic: True
    ) -> None:
        self._may_send = may_send
        self._groups: dict[str, dict[int, GroupClient]] = {}
        self._groups_of: dict[int, set[str]] = {}  # by connection
        self._uses: Counter[tuple[int, str]] = Counter()  # groups of a connection by client id
        self._clients: dict[str, GroupClient] = {}
        self._turn = 0

    def group(self, name: str) -> list[GroupClient]:
        return list(self._groups.get(name, {}).values())

    def groups(self) -> dict[str, list[GroupClient]]:
        return {name: list(members.values()) for name, members in self._groups.items()}

    def __len__(self) -> int:
        return len(self._groups)

    def register(self, name: str, member: GroupClient) -> bool:
        """Take a client into a group; False when its connection is in GROUPS_MAX others already."""
        key = member.connection.id
        mine = self._groups_of.setdefault(key, set())
        if name not in mine and len(mine) >= GROUPS_MAX:
            return False
        mine.add(name)
        members = self._groups.setdefault(name, {})
        former = members.get(key)
        if former is None or former.client_id != member.client_id:
            self._uses[key, member.client_id] += 1
            if former is not None:
                self._forget_use(former)
        members[key] = member
        holder = self._clients.get(member.client_id)
        if holder is None or holder.connection.closed or holder.user == member.user:
            self._clients[member.client_id] = member
        return True

    def _forget_use(self, member: GroupClient) -> None:
        use = (member.connection.id, member.client_id)
        self._uses[use] -= 1
        if not self._uses[use]:
            del self._uses[use]
            holder = self._clients.get(member.client_id)
            if holder is not None and holder.connection is member.connection:
                del self._clients[member.client_id]

    def unregister(self, name: str, connection: Peer) -> None:
        """A client leaves one group; its id stays known while it is in another."""
        members = self._groups.get(name)
        member = members.pop(connection.id, None) if members is not None else None
        if members is None or member is None:
            return
        if not members:
            del self._groups[name]
        mine = self._groups_of[connection.id]
        mine.discard(name)
        if not mine:
            del self._groups_of[connection.id]
        self._forget_use(member)

    def connection_closed(self, connection: Peer) -> None:
        """The connection is gone, and its client from every group with it."""
        for name in list(self._groups_of.get(connection.id, ())):
            self.unregister(name, connection)

    def by_client_id(self, client_id: str) -> Peer | None:
        """The connection over which a client id last registered."""
        holder = self._clients.get(client_id)
        return None if holder is None else holder.connection

    def pick(self, name: str, topic: str) -> Peer | None:
        """An open connection of the group, another one each time, of those that may send to a topic."""
        open_ones = [
            member.connection
            for member in self._groups.get(name, {}).values()
            if not member.connection.closed
            and self._may_send(member.user, member.connection.peer[0], topic)
        ]
        if not open_ones:
            return None
        self._turn += 1
        return open_ones[self._turn % len(open_ones)]

    def expire(self, now_ms: int, expired_after_ms: int) -> list[Peer]:
        """Remove members that sent no heartbeat for too long; their connections, to be closed."""
        expired = [
            (name, member.connection)
            for name, members in self._groups.items()
            for member in members.values()
            if now_ms - member.seen_ms > expired_after_ms
        ]
        for name, connection in expired:
            self.unregister(name, connection)
        return [connection for _, connection in expired]
