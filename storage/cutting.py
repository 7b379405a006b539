"""Cuts the end off a store, log and all that is derived from it, so that a crash in between loses nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemmq.storage.queuetails import go_on

if TYPE_CHECKING:
    from tandemmq.storage.store import MessageStore


class Cut:
    """One cut: prepare(), make(), flush(), and end() whatever happened.

    Only make() is for the thread that owns the store; between prepare() and end() nothing is
    flushed beside it. Order, because of what a crash may leave:

    1. What vouches for bytes behind the cut goes first: the checkpoint is lowered, the queue state
       deleted. Others will be written there, and a state that names the same places would be
       believed.
    2. The log, whose rest is zeroed: stale records behind the end would look alive to recovery.
    3. Queues and index, which recovery would bring in line as well.
    """

    def __init__(self, store: MessageStore, log_end: int) -> None:
        self._store = store
        self._log_end = log_end
        self._held = False
        self._kept_ms = 0

    def prepare(self) -> None:
        """Stop flushing, and vouch for no more than stays. [thread] Raises OSError."""
        durability = self._store.durability
        durability.hold()
        self._held = True
        self._kept_ms = self._surely_kept_ms()
        durability.forget(self._kept_ms, self._log_end)

    def _surely_kept_ms(self) -> int:
        """Messages stored up to this time lie below the cut: when its last file was begun."""
        log = self._store.log
        segment = log.run.find(self._log_end - 1)
        return (log.store_ms_at(segment.start) or 0) if segment is not None else 0

    def make(self) -> None:
        """Cut. Raises OSError, StoreIsFull, FlushFailed: how far it came is not known then."""
        store, log_end = self._store, self._log_end
        with store.durability.noting_failure():
            store.log.cut(log_end)
        tail = store.log.tail
        tail.last_store_ms = tail.committed_ms = self._kept_ms
        store.queues.truncate(log_end)
        go_on(store.log, store.queues)
        store.dispatcher.stats.store_ms = min(store.dispatcher.stats.store_ms, self._kept_ms)
        underive(store, log_end)
        if store.owner.cut is not None:
            store.owner.cut(log_end)

    def flush(self) -> None:
        """Put it on the disk. [thread] Raises OSError, FlushFailed."""
        with self._store.durability.noting_failure():
            self._store.log.flush()
            # Though nothing vouches for these until they are flushed again: a process that is killed before that
            # leaves nobody who knows that zeros, and names that went, are not on the disk.
            self._store.queues.flush(0)
            if self._store.index is not None:
                self._store.index.sync_deletions()

    def end(self) -> None:
        """Flushing goes on."""
        if self._held:
            self._held = False
            self._store.durability.release()


def underive(store: MessageStore, end: int) -> None:
    """Queues were cut at `end`: dispatch goes on from there, and the index keeps nothing behind it. Raises OSError."""
    indexed = end
    if store.index is not None:
        store.index.keep_until(end)
        indexed = max(store.index.end.end_physical, store.log.start)
    store.dispatcher.fall_back(end, indexed)
