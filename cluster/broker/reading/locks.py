"""Which member of a group may consume which queue in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.storage import CorruptFile

#: a lock that is not renewed for this long is free
LOCK_LIVES_MS: Final = 60_000
#: so long a client works on by a lock that it cannot renew (RocketMQ's clients and ours)
LOCK_TRUSTED_MS: Final = 30_000
#: of all locks, as slaves are told of them in one frame, with the groups; beyond it queues that nobody holds are
#: not granted (some 70,000)
BYTES_MAX: Final = 8 << 20
_LOCK_BYTES: Final = 24  # beside names


class QueueName(NamedTuple):
    """A queue as clients name it."""

    topic: str
    broker_name: str
    queue_id: int


#: group -> client -> its queues: what is on the disk, and what slaves are told
LockTree: TypeAlias = dict[str, dict[str, list[tuple[str, str, int]]]]


class _Kept(msgspec.Struct):
    """config/queueLocks.json, and what a slave is told. whole: groups that are not in it hold nothing."""

    groups: LockTree = {}
    whole: bool = True


@dataclass(slots=True)
class Lock:
    """One holder's time at one queue; who locks it again has another.

    kept: who is elected next, and who starts on this disk, knows of it.
    """

    client_id: str
    renewed_ms: int
    kept: bool = False

    def free(self, now_ms: int) -> bool:
        return now_ms - self.renewed_ms > LOCK_LIVES_MS


class QueueLocks:
    """group -> queue -> its holder. Times are monotonic.

    INV-45: a lock is answered when the disk has it and, where sends wait for slaves, every member of the set. Who
    reigns next goes by it for as long as its holder does, so no queue has two. Renewals change no holder.

    Source: RocketMQ's RebalanceLockManager, whose locks die with their master.
    """

    def __init__(self, path: Path, shared: Callable[[str], None]) -> None:
        """shared: called with a group when a queue of it has another holder; slaves are told then."""
        self.file = SavedFile(path, self.to_json)
        self._shared = shared
        self.following = (
            False  # a slave: locks are its master's, and only that one hears of renewals
        )
        self._groups: dict[str, dict[QueueName, Lock]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    # -- keeping -----------------------------------------------------------------------

    def load(self, now_ms: int) -> None:
        """What the process before gave away. Raises storage.CorruptFile, OSError."""
        found = self.file.load()
        if found is not None:
            try:
                self._take(msgspec.convert(found, _Kept))
            except ValueError as problem:
                raise CorruptFile(f"{self.file.path}: {problem}") from None
        self.reign_began(now_ms)

    def reign_began(self, now_ms: int) -> None:
        """This broker gives locks from now on. Those of before count for as long as their holders go by them."""
        self.following = False
        renewed_ms = now_ms - LOCK_LIVES_MS + LOCK_TRUSTED_MS
        for locks in self._groups.values():
            for lock in locks.values():
                lock.renewed_ms = renewed_ms

    def told(self, groups: Iterable[str] | None) -> dict[str, Any]:
        """For slaves: of these groups, or of all."""
        names = self._groups.keys() if groups is None else groups
        return {"whole": groups is None, "groups": {group: self._tree(group) for group in names}}

    def to_json(self) -> dict[str, Any]:
        return self.told(None)

    def _tree(self, group: str) -> dict[str, list[QueueName]]:
        found: dict[str, list[QueueName]] = {}
        for queue, lock in self._groups.get(group, {}).items():
            found.setdefault(lock.client_id, []).append(queue)
        return found

    def adopt(self, tree: Mapping[str, Any]) -> None:
        """A slave is told what its master gave away. Raises ValueError; then nothing changed."""
        self._take(msgspec.convert(tree, _Kept))
        self.file.changed()

    def _take(self, kept: _Kept) -> None:
        if kept.whole:
            self._groups.clear()
        for group, clients in kept.groups.items():
            self._groups[group] = {
                QueueName(*queue): Lock(client_id, 0, kept=True)
                for client_id, queues in clients.items()
                for queue in queues
            }
            if not self._groups[group]:
                del self._groups[group]
        self._bytes = sum(
            _bytes(group, lock.client_id, queue)
            for group, locks in self._groups.items()
            for queue, lock in locks.items()
        )

    def _changed(self, group: str) -> None:
        self.file.changed()
        self._shared(group)

    # -- locking -----------------------------------------------------------------------

    def lock(
        self, group: str, client_id: str, queues: Iterable[QueueName], now_ms: int
    ) -> list[QueueName]:
        """Lock or renew each queue that is free, expired or the client's own.

        Those it holds now. Of those that unkept() names it is told when they are kept.
        """
        locks = self._groups.setdefault(group, {})
        granted = []
        changed = False
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                held.renewed_ms = now_ms
                granted.append(queue)
                continue
            if held is not None and not held.free(now_ms):
                continue
            more = _bytes(group, client_id, queue)
            if held is not None:
                more -= _bytes(group, held.client_id, queue)
            if self._bytes + more > BYTES_MAX:
                continue
            self._bytes += more
            locks[queue] = Lock(client_id, now_ms)
            granted.append(queue)
            changed = True
        if not locks:
            del self._groups[group]
        if changed:
            self._changed(group)
        return granted

    def unkept(self, group: str, queues: Iterable[QueueName]) -> dict[QueueName, Lock]:
        """The locks of which a successor may not know."""
        locks = self._groups.get(group, {})
        return {queue: locks[queue] for queue in queues if queue in locks and not locks[queue].kept}

    def kept(self, group: str, given: Mapping[QueueName, Lock]) -> list[QueueName]:
        """A successor knows of these locks; the queues that are still held by them.

        By the locks, not by who holds them: one that was given back and taken again meanwhile is a new one, of which
        nobody else has heard.
        """
        locks = self._groups.get(group, {})
        found = [queue for queue, lock in given.items() if locks.get(queue) is lock]
        for queue in found:
            given[queue].kept = True
        return found

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueName]) -> None:
        """Free the queues that this client holds; others are not its to free."""
        locks = self._groups.get(group, {})
        self._free(group, [q for q in queues if q in locks and locks[q].client_id == client_id])

    def any_held(self, group: str, now_ms: int) -> bool:
        """Whether the group consumes in order just now.

        What it cannot consume goes to its dead letters.
        """
        return any(not lock.free(now_ms) for lock in self._groups.get(group, {}).values())

    def expire(self, now_ms: int) -> None:
        """Forget locks that nobody renewed."""
        if self.following:
            return
        for group, locks in list(self._groups.items()):
            self._free(group, [queue for queue, lock in locks.items() if lock.free(now_ms)])

    def _free(self, group: str, queues: Iterable[QueueName]) -> None:
        freed = set(queues)
        if not freed:
            return
        locks = self._groups[group]
        for queue in freed:
            self._bytes -= _bytes(group, locks.pop(queue).client_id, queue)
        if not locks:
            del self._groups[group]
        self._changed(group)


def _bytes(group: str, client_id: str, queue: QueueName) -> int:
    """At most so many of what slaves are told are of this lock."""
    names = len(group) + len(queue.topic) + len(queue.broker_name)  # checked: one byte a character
    return names + 6 * len(client_id) + _LOCK_BYTES
