"""Deleted topics whose messages are still in the log, and what a deletion does to what is derived from it.

The log keeps a deleted topic's messages until retention takes them. So each deletion leaves a tombstone: the
topic's name, and the log offset below which its messages are nobody's any more. Whatever derives queues from
the log goes by it: dispatch, recovery after queues were lost, and a slave that was seeded with the old messages.
A topic made again after its deletion has its messages at and behind that offset, and queue offsets from 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tandemmq.storage import jsonfile
from tandemmq.storage.errors import CorruptFile

if TYPE_CHECKING:
    from tandemmq.storage.store import MessageStore

log = logging.getLogger(__name__)

FILE: Final = Path("config") / "deletedTopics.json"
FORMAT: Final = 1


def _unheard(topic: str, below: int) -> None:
    """No one listens yet."""


class Tombstones:
    """Log offset per deleted topic. INV-43: below it no message of the topic gets a queue entry.

    on_change  called after every change: whoever keeps the file writes it
    on_put     called with a topic whose deletion is new, further on or undone, and its log offset
    unsaved    a change came before anybody listened: recovery lowered or forgot some
    """

    def __init__(self, root: Path) -> None:
        self.path = root / FILE
        self.on_change: Callable[[], None] = self._no_one_listens
        self.on_put: Callable[[str, int], None] = _unheard
        self.unsaved = False
        self._below: dict[bytes, int] = {}

    def listen(self, on_change: Callable[[], None], on_put: Callable[[str, int], None]) -> None:
        """For whoever keeps the file, and for whoever serves the topics. What came before is in `unsaved`."""
        self.on_change, self.on_put = on_change, on_put

    def _no_one_listens(self) -> None:
        self.unsaved = True

    def load(self) -> None:
        """Read the file, or its previous generation. Raises CorruptFile, OSError."""
        found = jsonfile.load(self.path)
        if found is None:
            return
        table = found.get("deletedTopics")
        if found.get("format") != FORMAT or not isinstance(table, dict):
            raise CorruptFile(f"{self.path}: no table of deleted topics of format {FORMAT}")
        for name, below in table.items():
            if not isinstance(below, int) or below < 0:
                raise CorruptFile(f"{self.path}: {name} is deleted below {below!r}, no log offset")
            self._below[name.encode()] = below

    def to_json(self) -> dict[str, Any]:
        return {"deletedTopics": self.all(), "format": FORMAT}

    def all(self) -> dict[str, int]:
        return {name.decode(): below for name, below in self._below.items()}

    def of(self, topic: bytes) -> int:
        """Messages of the topic below this log offset are deleted; 0 for a topic that never was."""
        return self._below.get(topic, 0)

    def put(self, topic: str, below: int) -> None:
        """below 0: the topic was never deleted."""
        name = topic.encode()
        if below != self.of(name):
            if below:
                self._below[name] = below
            else:
                del self._below[name]
            self.on_put(topic, below)
            self.on_change()

    def log_starts_at(self, offset: int) -> None:
        """Forget those of which retention has taken every message."""
        kept = {name: below for name, below in self._below.items() if below > offset}
        if len(kept) < len(self._below):
            self._below = kept
            self.on_change()

    def log_ends_at(self, offset: int) -> None:
        """This log goes on from here by itself: what is written next was not deleted.

        A slave hears of deletions before it has the log up to them, and may become the master of a
        log that ends before.
        """
        beyond = [name for name, below in self._below.items() if below > offset]
        for name in beyond:
            self._below[name] = offset
        if beyond:
            self.on_change()


class Burials:
    """Deletes topics of one store, and takes deletions over from another's."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def bury(self, topic: str, below: int) -> None:
        """Messages of the topic below a log offset are deleted, those behind it are not. Raises OSError."""
        store = self._store
        name = topic.encode()
        waiting = store.dispatcher.position < store.end
        if waiting or name in store.log.queue_tails or store.queues.of_topic(topic):
            store.tombstones.put(topic, max(below, store.tombstones.of(name)))
        if any(queue.physical_end > below for queue in store.queues.of_topic(topic)):
            self._derive_from(below)
        self._drop(topic)

    def follow(self, deleted: Mapping[str, int], master_start: int) -> tuple[list[str], list[str]]:
        """Let exactly those topics be deleted that are on the master; which are now, and which no longer are.

        deleted       log offsets by topic
        master_start  where its log begins: it has forgotten the deletions before, for it needs them no more
        A deletion that only a former master knew was never answered: what it removed is derived again.
        Blocks for a sync, unless doubting(). Raises OSError.
        """
        store = self._store
        buried, undone = self.news(deleted, master_start)
        for name in buried:
            store.tombstones.put(name, deleted[name])
            self._derive_from(deleted[name])
            self._drop(name)
        for name in undone:
            store.tombstones.put(name, deleted.get(name, 0))
            self._derive_from(max(deleted.get(name, 0), store.log.start))
            self._drop(name)
        return buried, undone

    def doubting(self) -> AbstractContextManager[None]:
        """Around follow() on a thread that must not wait for a disk; sync() first, within."""
        return self._store.durability.doubting()

    def sync(self) -> None:
        """What follow() would block for. [thread] Raises OSError."""
        self._store.durability.forget_state()

    def news(self, deleted: Mapping[str, int], master_start: int) -> tuple[list[str], list[str]]:
        """What follow() would bury, and what it would undo."""
        held = self._store.tombstones.all()
        buried = [name for name, below in deleted.items() if below > held.get(name, 0)]
        undone = [
            name
            for name, below in held.items()
            if below > deleted.get(name, 0) and (name in deleted or below > master_start)
        ]
        return buried, undone

    def drop_expired(self, is_system: Callable[[str], bool]) -> int:
        """See MessageStore.clean_expired_queues."""
        removed = 0
        for queue in self._store.queues:
            if not is_system(queue.topic) and queue.expired(self._store.log.start):
                self._store.queues.delete_queue(queue.topic, queue.queue_id)
                tails = self._store.log.queue_tails.get(queue.topic.encode(), {})
                tails.pop(queue.queue_id, None)
                self._store.tails_dropped += 1
                removed += 1
        return removed

    def _derive_from(self, offset: int) -> None:
        """Before queues are dropped: who notes meanwhile how far they are complete must find it lowered."""
        store = self._store
        store.dispatcher.go_back(max(offset, store.log.start))
        store.queues.look_again()
        store.durability.go_back(store.dispatcher.position)

    def _drop(self, topic: str) -> None:
        store = self._store
        store.queues.delete_topic(topic)
        store.log.queue_tails.pop(topic.encode("utf-8", "replace"), None)
        store.tails_dropped += 1
