"""Which member of a group may consume which queue in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

#: a lock that is not renewed for this long is free
LOCK_LIVES_MS = 60_000
#: so long a client works on by a lock that it cannot renew (RocketMQ's clients and ours)
LOCK_TRUSTED_MS = 30_000
#: locks of all groups; beyond it queues that nobody holds are not granted (about 150 MB)
LOCKS_MAX = 500_000


class QueueName(NamedTuple):
    """A queue as clients name it."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int

    def free(self, now_ms: int) -> bool:
        return now_ms - self.renewed_ms > LOCK_LIVES_MS


class QueueLocks:
    """group -> queue -> its holder. In memory only: a new master, or one that restarted, knows none.

    For LOCK_TRUSTED_MS its members go by locks of the reign before: they are asked what they hold, and that counts.
    Times are monotonic.

    Source: RocketMQ's RebalanceLockManager.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[QueueName, _Lock]] = {}
        self._count = 0
        self._trusted_until_ms: int | None = None
        self._asked: dict[str, set[str]] = {}  # group -> clients that said what they hold

    def reign_began(self, now_ms: int) -> None:
        """This broker gives locks from now on; those it gave before may be others' since."""
        self._groups.clear()
        self._count = 0
        self._asked.clear()
        self._trusted_until_ms = now_ms + LOCK_TRUSTED_MS

    def unasked(self, group: str, client_ids: Iterable[str], now_ms: int) -> list[str]:
        """Who of these may hold a lock of the reign before that nobody here knows of."""
        if self._trusted_until_ms is None:
            return []
        if now_ms >= self._trusted_until_ms:
            self._trusted_until_ms = None
            self._asked.clear()
            return []
        asked = self._asked.get(group, ())
        return [client_id for client_id in client_ids if client_id not in asked]

    def claimed(self, group: str, client_id: str, queues: Iterable[QueueName], now_ms: int) -> None:
        """A client says that it holds these by a lock of the reign before: for as long as it goes by that."""
        self._asked.setdefault(group, set()).add(client_id)
        renewed_ms = now_ms - LOCK_LIVES_MS + LOCK_TRUSTED_MS
        locks = self._groups.setdefault(group, {})
        for queue in queues:
            if queue not in locks and self._count < LOCKS_MAX:
                locks[queue] = _Lock(client_id, renewed_ms)
                self._count += 1
        if not locks:
            del self._groups[group]

    def __len__(self) -> int:
        return self._count

    def lock(
        self, group: str, client_id: str, queues: Iterable[QueueName], now_ms: int
    ) -> list[QueueName]:
        """Lock or renew each queue that is free, expired or the client's own.

        Those it holds now.
        """
        locks = self._groups.setdefault(group, {})
        granted = []
        for queue in queues:
            held = locks.get(queue)
            if held is None:
                if self._count >= LOCKS_MAX:
                    continue
                self._count += 1
            elif held.client_id != client_id and not held.free(now_ms):
                continue
            locks[queue] = _Lock(client_id, now_ms)
            granted.append(queue)
        if not locks:
            del self._groups[group]
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueName]) -> None:
        """Free the queues that this client holds; others are not its to free."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            del self._groups[group]

    def any_held(self, group: str, now_ms: int) -> bool:
        """Whether the group consumes in order just now.

        What it cannot consume goes to its dead letters.
        """
        return any(not lock.free(now_ms) for lock in self._groups.get(group, {}).values())

    def expire(self, now_ms: int) -> None:
        """Forget locks that nobody renewed."""
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue, lock in locks.items() if lock.free(now_ms)]:
                del locks[queue]
                self._count -= 1
            if not locks:
                del self._groups[group]
