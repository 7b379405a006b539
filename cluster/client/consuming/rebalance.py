"""Which queues this member reads: allocation, and the difference to what it reads now. No I/O.

Every strategy gives what RocketMQ's class of that name gives: members in Java and Python share a
group. Source: RocketMQ's RebalanceImpl, AllocateMessageQueueStrategy;
tests/golden/client/allocations.jsonl.xz was made by the Java classes.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tandemmq.cluster.client.message import MessageQueue
from tandemmq.cluster.client.producing.selection import machine_room

#: (all queues sorted, all client ids sorted, own client id) -> own queues
Allocation = Callable[[Sequence[MessageQueue], Sequence[str], str], Sequence[MessageQueue]]

VIRTUAL_NODES: Final = 10  # of each client on the hash ring


def allocate_averagely(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], own_id: str
) -> Sequence[MessageQueue]:
    """RocketMQ's AVG: contiguous blocks; the first (queues mod members) members get one more.

    A member that is not in the list gets nothing: the broker does not know it yet.
    Every member must see the same two sorted lists; then the blocks neither overlap nor leave a
    gap.

    Example: 8 queues, 3 members: 0-2, 3-5, 6-7. 4 queues, 5 members: the fifth gets none.
    """
    if own_id not in client_ids:
        return ()
    place = client_ids.index(own_id)
    share, larger = divmod(len(queues), len(client_ids))
    start = place * share + min(place, larger)
    return queues[start : start + share + (1 if place < larger else 0)]


def allocate_by_circle(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], own_id: str
) -> Sequence[MessageQueue]:
    """RocketMQ's AVG_BY_CIRCLE: with c members, member i takes queues i, i + c, i + 2c ...

    Example: 8 queues, 3 members: 0 3 6, 1 4 7, 2 5.
    """
    if own_id not in client_ids:
        return ()
    return queues[client_ids.index(own_id) :: len(client_ids)]


def allocate_fixed(queues: Iterable[MessageQueue]) -> Allocation:
    """RocketMQ's CONFIG: this member reads these queues, whatever the others do.

    The application answers for gaps and double reading.

    Example: PushConsumer(..., allocation=allocate_fixed([MessageQueue("Orders", "broker-a", 0)]))
    """
    chosen = tuple(queues)
    topics = {queue.topic for queue in chosen}

    def allocate(
        queues: Sequence[MessageQueue], client_ids: Sequence[str], own_id: str
    ) -> Sequence[MessageQueue]:
        # the retry topic is not listed by anybody: it is shared as usual
        here = {queue.topic for queue in queues}
        if own_id in client_ids and not here & topics:
            return allocate_averagely(queues, client_ids, own_id)
        return tuple(queue for queue in chosen if queue.topic in here)

    return allocate


def allocate_by_machine_room(*rooms: str) -> Allocation:
    """RocketMQ's MACHINE_ROOM: only queues of brokers named `room@name` in these rooms.

    Each member gets the same number of neighbouring queues; what is left over goes one by one to the
    first members.

    Example: PushConsumer(..., allocation=allocate_by_machine_room("room1", "room2"))
    """
    wanted = frozenset(rooms)

    def allocate(
        queues: Sequence[MessageQueue], client_ids: Sequence[str], own_id: str
    ) -> Sequence[MessageQueue]:
        if own_id not in client_ids:
            return ()
        near = [queue for queue in queues if machine_room(queue.broker_name) in wanted]
        share, left = divmod(len(near), len(client_ids))
        place = client_ids.index(own_id)
        mine = near[place * share : (place + 1) * share]
        return (*mine, *([near[place + share * len(client_ids)]] if left > place else []))

    return allocate


def allocate_nearby(
    inner: Allocation, broker_room: Callable[[str], str], consumer_room: Callable[[str], str]
) -> Allocation:
    """RocketMQ's MACHINE_ROOM_NEARBY: queues of a room are shared by the members in that room.

    inner          how they are shared there, e.g. allocate_averagely
    broker_room    room of a broker name; consumer_room  room of a client id
    Queues of rooms without a member are shared by all.

    Example:
        allocate_nearby(allocate_averagely, lambda name: name[:3], lambda client: client[:3])
    """

    def allocate(
        queues: Sequence[MessageQueue], client_ids: Sequence[str], own_id: str
    ) -> Sequence[MessageQueue]:
        if own_id not in client_ids:
            return ()
        by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_room.setdefault(broker_room(queue.broker_name), []).append(queue)
        members: dict[str, list[str]] = {}
        for client in client_ids:
            members.setdefault(consumer_room(client), []).append(client)
        own_room = consumer_room(own_id)
        mine = list(inner(by_room.pop(own_room, []), members[own_room], own_id))
        for room in sorted(by_room):
            if room not in members:
                mine += inner(by_room[room], client_ids, own_id)
        return mine

    return allocate


def allocate_by_hash(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], own_id: str
) -> Sequence[MessageQueue]:
    """RocketMQ's CONSISTENT_HASH: a member that comes or goes moves few queues of the others.

    10 virtual nodes per client on a ring, placed by the first 4 bytes of the MD5 of `client-number`;
    a queue belongs to the next node at or after its own hash.

    Example: PushConsumer(..., allocation=allocate_by_hash)
    """
    if own_id not in client_ids:
        return ()
    ring = {
        _ring_place(f"{client}-{number}"): client
        for client in client_ids
        for number in range(VIRTUAL_NODES)
    }
    places = sorted(ring)

    def owner(queue: MessageQueue) -> str:
        key = (
            f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
            f"queueId={queue.queue_id}]"
        )
        place = bisect_left(places, _ring_place(key))
        return ring[places[place % len(places)]]

    return tuple(queue for queue in queues if owner(queue) == own_id)


def _ring_place(key: str) -> int:
    digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4])


@dataclass(frozen=True, slots=True)
class Change:
    """What a round of rebalancing asks for, sorted.

    others  queues that other members read
    """

    added: tuple[MessageQueue, ...]
    removed: tuple[MessageQueue, ...]
    others: tuple[MessageQueue, ...] = field(default=(), compare=False)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def plan(
    topic: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
    own_id: str,
    held: Iterable[MessageQueue],
    allocate: Allocation = allocate_averagely,
) -> Change | None:
    """Compare the allocation with the queues held of this topic. None: no list, keep what we have.

    queues, client_ids  in any order; duplicates of an id count once
    """
    if not queues or not client_ids:
        return None
    wanted = set(allocate(sorted(queues), sorted(set(client_ids)), own_id))
    mine = {queue for queue in held if queue.topic == topic}
    return Change(
        tuple(sorted(wanted - mine)),
        tuple(sorted(mine - wanted)),
        tuple(sorted(set(queues) - wanted)),
    )


def without(
    change: Change, absent: Collection[MessageQueue], held: Iterable[MessageQueue]
) -> Change:
    """The same, but nothing of these queues is read, whoever they belong to: nobody serves them now."""
    added = tuple(queue for queue in change.added if queue not in absent)
    gone = {queue for queue in held if queue in absent}
    return Change(added, tuple(sorted(gone.union(change.removed))), change.others)
