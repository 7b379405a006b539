"""One queue of a history: its sends, what replicas hold of it in the end, what readers and groups were given.

All lines of one queue are held at once, and of no other: the history is split by queue first (chaos.checking.judging).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Final, NamedTuple

import msgspec

from tandemmq.chaos.checking.lines import (
    FAIL,
    OK,
    Commit,
    Delivered,
    Extent,
    Holding,
    Line,
    Lookup,
    Queue,
    Seen,
    Send,
    Taken,
)

AROUND: Final = 3  # messages before and behind, in an excerpt


class Held(NamedTuple):
    """One message of a replica's queue in the end."""

    unique_id: str
    offset: int


class Given(msgspec.Struct, gc=False, frozen=True):
    """What is kept of a Delivered."""

    queue_offset: int
    unique_id: str
    member: int
    at_ns: int
    attempt: int


class Damaged(NamedTuple):
    """A body that is not what was sent. where: replica, broker or group."""

    where: str
    unique_id: str
    body_hash: str
    at_ns: int


@dataclass(slots=True)
class QueueHistory:
    """What the lines of one queue say. Most of them say the same unique ids, of which one string each is kept.

    attempts  unique id -> how many sends of it were not refused; again: those acknowledged after one that was
    held      replica -> queue offset -> message; extents: replica -> (start, end)
    given     group -> deliveries in the order of time
    bodies    how many hashes of bodies were compared; damaged: those that are wrong
    """

    queue: Queue
    sends: dict[str, Send] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)
    again: list[Send] = field(default_factory=list)
    held: dict[str, dict[int, Held]] = field(default_factory=dict)
    extents: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    given: dict[str, list[Given]] = field(default_factory=dict)
    commits: dict[str, list[Commit]] = field(default_factory=dict)
    taken: list[Taken] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)
    bodies: int = 0
    damaged: list[Damaged] = field(default_factory=list)

    def take(self, line: Line) -> None:
        match line:
            case Send():
                before = self.sends.get(line.unique_id)
                if before is None:
                    self.sends[line.unique_id] = line
                    self.attempts[line.unique_id] += line.outcome != FAIL
                elif line.began_ns == before.began_ns:  # a late answer: a second word on one send
                    if line.outcome == OK or before.outcome not in (OK, FAIL):
                        self.sends[line.unique_id] = line
                else:
                    self.attempts[line.unique_id] += line.outcome != FAIL
                    if before.outcome != OK:
                        self.sends[line.unique_id] = line
                    elif line.outcome == OK:
                        self.again.append(line)
            case Seen():
                ids = tuple(map(self._kept, line.unique_ids))
                self._compare(line.broker, ids, line.hashes, line.at_ns)
                self.seen.append(
                    Seen(*self.queue, line.first, ids, line.broker, line.at_ns, (), line.reader)
                )
            case Delivered():
                unique_id = self._kept(line.unique_id)
                if line.body_hash:
                    self._compare(line.group, (unique_id,), (line.body_hash,), line.at_ns)
                self.given.setdefault(line.group, []).append(
                    Given(line.queue_offset, unique_id, line.member, line.at_ns, line.attempt)
                )
            case Holding():
                held = self.held.setdefault(line.replica, {})
                ids = tuple(map(self._kept, line.unique_ids))
                self._compare(line.replica, ids, line.hashes, 0)
                offsets = line.offsets or (-1,) * len(ids)
                messages = map(Held._make, zip(ids, offsets, strict=True))
                held.update(zip(count(line.first), messages, strict=False))
            case Extent():
                self.extents[line.replica] = (line.start, line.end)
            case Commit():
                self.commits.setdefault(line.group, []).append(line)
            case Taken():
                self.taken.append(line)
            case Lookup():
                self.lookups.append(line)
            case _:
                raise TypeError(f"no line of a queue: {line}")

    def _kept(self, unique_id: str) -> str:
        send = self.sends.get(unique_id)
        return unique_id if send is None else send.unique_id

    def _compare(self, where: str, ids: Sequence[str], hashes: Sequence[str], at_ns: int) -> None:
        """The hash of a body is the end of its message's unique id."""
        self.bodies += len(hashes)
        for unique_id, body_hash in zip(ids, hashes, strict=False):
            if not unique_id.endswith(body_hash):
                self.damaged.append(Damaged(where, unique_id, body_hash, at_ns))

    @property
    def replica(self) -> str:
        """The replica whose log is the reference: the one that ends last."""
        return max(self.extents, key=lambda each: self.extents[each][1], default="")

    def reference(self) -> dict[int, Held]:
        return self.held.get(self.replica, {})

    @property
    def readings(self) -> int:
        """How many messages readers and groups were given."""
        return sum(len(each.unique_ids) for each in self.seen) + sum(map(len, self.given.values()))

    @property
    def observations(self) -> int:
        """How many messages lie on replicas or were read from them."""
        return sum(map(len, self.held.values())) + self.readings

    def ids_held(self) -> set[str]:
        """Unique ids of all that lies on any replica."""
        return {each.unique_id for held in self.held.values() for each in held.values()}

    def ids_read(self) -> set[str]:
        """Unique ids of all that readers and groups were given."""
        ids = set(chain.from_iterable(each.unique_ids for each in self.seen))
        ids.update(each.unique_id for given in self.given.values() for each in given)
        return ids

    def held_of(self, ids: Set[str]) -> Iterator[tuple[str, int, str, int]]:
        """(replica, queue offset, unique id, 0) of those of these that lie there."""
        for replica, held in self.held.items():
            for at, each in held.items():
                if each.unique_id in ids:
                    yield replica, at, each.unique_id, 0

    def read_of(self, ids: Set[str]) -> Iterator[tuple[str, int, str, int]]:
        """(broker or group, queue offset, unique id, when) of those of these that were given to anybody."""
        for seen in self.seen:
            for at, unique_id in enumerate(seen.unique_ids, seen.first):
                if unique_id in ids:
                    yield seen.broker, at, unique_id, seen.at_ns
        for group, deliveries in self.given.items():
            for given in deliveries:
                if given.unique_id in ids:
                    yield group, given.queue_offset, given.unique_id, given.at_ns

    def excerpt(self, unique_id: str, queue_offset: int = -1) -> tuple[str, ...]:
        """What the history says of a message, and of what lies around its place."""
        lines = []
        send = self.sends.get(unique_id)
        if send is not None:
            lines.append(said(send))
            if queue_offset < 0:
                queue_offset = send.queue_offset
        if queue_offset >= 0:
            for replica in sorted(self.held.keys() | self.extents.keys()):
                held = self.held.get(replica, {})
                near = range(queue_offset - AROUND, queue_offset + AROUND + 1)
                there = [f"{at}: {held[at].unique_id[:16]}" for at in near if at in held]
                lines.append(f"on {replica} at {self.queue}: {', '.join(there) or 'nothing there'}")
        for group, deliveries in self.given.items():
            lines += [
                f"{group} was given it at offset {each.queue_offset} by member {each.member}, t={each.at_ns}"
                for each in deliveries
                if each.unique_id == unique_id
            ][:AROUND]
        return tuple(lines)


def said(send: Send) -> str:
    """A send in one line."""
    place = f" as {send.queue_offset} at {send.offset}" if send.queue_offset >= 0 else ""
    return (
        f"send {send.unique_id[:16]} to {send.topic}/{send.queue_id} began t={send.began_ns}, {send.outcome}"
        f"{place} by {send.broker} in epoch {send.epoch}, t={send.ended_ns}"
    )
