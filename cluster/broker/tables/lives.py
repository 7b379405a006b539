"""Topics that were deleted and may be made again: their queue offsets begin at 0 once more.

Who read such a topic before carries a position of its former life, and everything that comes at and behind
queue offset 0 is new to it. So a deletion is a cut at 0 (INV-42), on every member of the group: what is deleted
is known by tombstones, which masters, slaves and restarts share; nothing more has to be kept for it.
"""

from __future__ import annotations

from typing import Final

from tandemmq.storage import Clock, MessageStore

#: a reader that first asks later than this after a queue's first new message is believed
KEEP_MS: Final = 3_600_000
_OVER: Final = -1


class Lives:
    """Which queues have just begun anew. A topic counts while its tombstone is there."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._deleted: set[str] = set()
        self._until_ms: dict[
            tuple[str, int], int
        ] = {}  # monotonic; _OVER for a life that began long ago

    def load(self) -> None:
        """What earlier processes deleted, or this one before anybody looked."""
        self._deleted = set(self._store.tombstones.all())
        self._until_ms.clear()

    def __len__(self) -> int:
        return len(self._deleted)

    def __contains__(self, topic: str) -> bool:
        """Whether a topic was deleted, however long ago."""
        return topic in self._deleted

    def changed(self, topic: str, below: int) -> None:
        """Its messages below a log offset are deleted; 0: it never was."""
        if below:
            self._deleted.add(topic)
        else:
            self._deleted.discard(topic)
        for queue in [queue for queue in self._until_ms if queue[0] == topic]:
            del self._until_ms[queue]

    def new(self, topic: str, queue_id: int) -> bool:
        """Whether a reader of this queue may hold a position of a former life."""
        if topic not in self._deleted:
            return False
        until_ms = self._until_ms.get((topic, queue_id))
        if until_ms is None:
            until_ms = self._began(topic, queue_id)
            if until_ms is None:
                return True
        return self._clock.monotonic_ms() < until_ms

    def _began(self, topic: str, queue_id: int) -> int | None:
        """Until when the queue is new; None while it has no message."""
        queue = self._store.queue(topic, queue_id)
        if queue is None or queue.max_offset == 0:
            return None
        # Retention takes messages that are old.
        first_ms = self._store.store_ms(topic, queue_id, 0) if queue.min_offset == 0 else 0
        left_ms = first_ms + KEEP_MS - self._clock.now_ms()
        until_ms = _OVER
        if first_ms and left_ms > 0:
            until_ms = self._clock.monotonic_ms() + min(left_ms, KEEP_MS)
        self._until_ms[topic, queue_id] = until_ms
        return until_ms
