"""Which queues this member reads: allocation, and the difference to what it reads now. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.client.message import MessageQueue

#: (all queues sorted, all client ids sorted, own client id) -> own queues
Allocation = Callable[[Sequence[MessageQueue], Sequence[str], str], Sequence[MessageQueue]]


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


@dataclass(frozen=True, slots=True)
class Change:
    """What a round of rebalancing asks for, both sorted."""

    added: tuple[MessageQueue, ...]
    removed: tuple[MessageQueue, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def plan(
    topic: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
    own_id: str,
    held: Sequence[MessageQueue],
    allocate: Allocation = allocate_averagely,
) -> Change | None:
    """Compare the allocation with the queues held of this topic. None: no list, keep what we have.

    queues, client_ids  in any order; duplicates of an id count once
    """
    if not queues or not client_ids:
        return None
    wanted = set(allocate(sorted(queues), sorted(set(client_ids)), own_id))
    mine = {queue for queue in held if queue.topic == topic}
    return Change(tuple(sorted(wanted - mine)), tuple(sorted(mine - wanted)))
