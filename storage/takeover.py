"""What a change of role asks of a store: a log readied for puts, or taken back out of consumers' sight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemmq.storage.cutting import underive
from tandemmq.storage.queuetails import Waiting, go_on

if TYPE_CHECKING:
    from tandemmq.storage.store import MessageStore


class Takeover:
    """Makes a log that came from a master ready for puts: walk() until it says so, cut the store at `end`, finish().

    Nobody else appends or cuts from the first to the last, and what is confirmed is dispatched before. Queue offsets
    then go on where the whole log leaves them, confirmed or not: none is ever given out twice (INV-5), store times do
    not go back, and the log ends with a whole record (INV-37).
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._waiting = Waiting(store.log, store.tombstones, store.dispatched)

    @property
    def end(self) -> int:
        """Where the whole records end; known when walk() is through."""
        return self._waiting.end

    def walk(self, records_max: int) -> bool:
        """Go over so many more records at most; whether there may be others. Raises CorruptRecord."""
        return self._waiting.walk(records_max)

    def finish(self) -> None:
        """Puts are possible from now on. Raises OSError."""
        store = self._store
        assert store.end == self.end, f"the log ends at {store.end}, whole records at {self.end}"
        store.ends_whole()
        go_on(store.log, store.queues, self._waiting)
        tail = store.log.tail
        tail.last_store_ms = max(
            tail.last_store_ms, store.dispatcher.stats.store_ms, self._waiting.store_ms
        )


def hide_unconfirmed(store: MessageStore, confirmed: int) -> None:
    """See MessageStore.hide_unconfirmed."""
    if store.dispatched <= confirmed:
        return
    store.queues.truncate(confirmed)
    shown = max((queue.physical_end for queue in store.queues), default=-1)
    underive(store, max(store.log.start, shown))
    store.flush_queues()  # what was noted of the queues' ends is not true any more
