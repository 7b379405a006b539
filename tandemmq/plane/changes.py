"""What changed in a cluster between two looks at it: the events of /api/events. Core."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypedDict

from tandemmq.cluster.client import BrokerMembers, ReplicaSet

NAMES_MAX: Final = 100  # topics that one event names; it counts all


class Member(TypedDict):
    """registered, unregistered: a member of a broker group that name servers know, or do not know any more."""

    cluster: str
    broker: str
    broker_id: int
    address: str


class Role(TypedDict):
    """role: a group has another master, or the same one in a new epoch; master_id null: nobody leads."""

    broker: str
    epoch: int
    master_id: int | None
    master_address: str
    master_id_before: int | None


class SyncSet(TypedDict):
    """sync-state-set: other replicas hold everything that was acknowledged."""

    broker: str
    epoch: int
    set_epoch: int
    in_sync: list[int]
    in_sync_before: list[int]


class Topics(TypedDict):
    """topics: some were created or deleted; at most 100 names of each."""

    created: list[str]
    deleted: list[str]
    created_count: int
    deleted_count: int


class Unreachable(TypedDict):
    """unreachable: the cluster cannot be looked at now."""

    why: str


class Reachable(TypedDict):
    """reachable: it can be looked at again; what changed meanwhile follows."""


class State(TypedDict):
    """state: everything as it is now; sent first, and again to who was too slow for what changed."""

    members: list[Member]
    groups: list[Role]
    sync_state_sets: list[SyncSet]
    topic_count: int


EVENTS: Final[Mapping[str, type]] = {
    "state": State,
    "registered": Member,
    "unregistered": Member,
    "role": Role,
    "sync-state-set": SyncSet,
    "topics": Topics,
    "unreachable": Unreachable,
    "reachable": Reachable,
}


class Event(NamedTuple):
    """One thing that changed; its data is of the type that EVENTS has."""

    name: str
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Seen:
    """A cluster at one look. groups: those under a controller."""

    members: Mapping[str, BrokerMembers] = field(default_factory=dict)
    groups: Mapping[str, ReplicaSet] = field(default_factory=dict)
    topics: frozenset[str] = frozenset()


def changes(before: Seen, now: Seen) -> Iterator[Event]:
    """What a look shows that the one before did not: who leads first, topics last."""
    for name, group in now.groups.items():
        former = before.groups.get(name)
        if former is not None:
            yield from _group_changes(former, group)
    known, found = _members(before), _members(now)
    for key in known:
        if found.get(key) != known[key]:
            yield Event("unregistered", known[key])
    for key in found:
        if known.get(key) != found[key]:
            yield Event("registered", found[key])
    created, deleted = sorted(now.topics - before.topics), sorted(before.topics - now.topics)
    if created or deleted:
        data = Topics(
            created=created[:NAMES_MAX], deleted=deleted[:NAMES_MAX],
            created_count=len(created), deleted_count=len(deleted),
        )  # fmt: skip
        yield Event("topics", data)


def state(seen: Seen) -> Event:
    """All of it, for who begins to listen."""
    data = State(
        members=list(_members(seen).values()),
        groups=[_role(each, each.master_id) for each in seen.groups.values()],
        sync_state_sets=[_set(each, each) for each in seen.groups.values()],
        topic_count=len(seen.topics),
    )
    return Event("state", data)


def _group_changes(before: ReplicaSet, now: ReplicaSet) -> Iterator[Event]:
    if (now.master_id, now.epoch) != (before.master_id, before.epoch):
        yield Event("role", _role(now, before.master_id))
    if _ids(now) != _ids(before):
        yield Event("sync-state-set", _set(now, before))


def _role(now: ReplicaSet, before: int | None) -> Role:
    return Role(
        broker=now.broker_name, epoch=now.epoch, master_id=now.master_id, master_address=now.master_address,
        master_id_before=before,
    )  # fmt: skip


def _set(now: ReplicaSet, before: ReplicaSet) -> SyncSet:
    return SyncSet(
        broker=now.broker_name, epoch=now.epoch, set_epoch=now.set_epoch, in_sync=_ids(now),
        in_sync_before=_ids(before),
    )  # fmt: skip


def _ids(group: ReplicaSet) -> list[int]:
    return sorted(each.broker_id for each in group.in_sync)


def _members(seen: Seen) -> dict[tuple[str, int], Member]:
    return {
        (name, number): Member(cluster=each.cluster, broker=name, broker_id=number, address=address)
        for name, each in seen.members.items()
        for number, address in each.addresses.items()
    }
