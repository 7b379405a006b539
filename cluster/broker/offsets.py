"""How far each group has come in each queue, and where an administrator wants it to go on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cluster.broker.savedfile import SavedFile
from cluster.broker.versions import DataVersion
from storage import Clock

#: the data version advances once per this many commits, as RocketMQ's does
COMMITS_PER_VERSION = 500

Queues = dict[int, int]


class OffsetTable:
    """group -> topic -> queue id -> queue offset to read next, kept in config/consumerOffset.json.

    Commits live in memory and reach the disk every flushConsumerOffsetInterval and at stop: a
    crash repeats a few seconds of messages. Source: spec "Consumer offsets".
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._committed: dict[str, dict[str, Queues]] = {}
        self._pulled: dict[str, dict[str, Queues]] = {}
        self._resets: dict[tuple[str, str, int], int] = {}
        self._commits = 0
        self.file = SavedFile(path, self.to_json)
        self.version = DataVersion(timestamp=clock.now_ms())

    def load(self) -> None:
        """Read the file; both releases' dialects, with and without a data version."""
        found = self.file.load()
        if found is None:
            return
        for key, queues in (found.get("offsetTable") or {}).items():
            topic, at, group = key.rpartition("@")
            if at:
                self._committed.setdefault(group, {})[topic] = {
                    int(queue_id): int(offset) for queue_id, offset in queues.items()
                }
        self.version = DataVersion.from_json(found.get("dataVersion"), self._clock.now_ms())

    def to_json(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version.to_json(),
            "offsetTable": {
                f"{topic}@{group}": {str(queue_id): offset for queue_id, offset in queues.items()}
                for group, topics in self._committed.items()
                for topic, queues in topics.items()
            },
        }

    # -- committed offsets -------------------------------------------------------------

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The queue offset to go on from: a pending reset, else the committed one, else -1."""
        if self._resets:
            pending = self._resets.get((group, topic, queue_id))
            if pending is not None:
                return pending
        return self.committed(group, topic, queue_id)

    def committed(self, group: str, topic: str, queue_id: int) -> int:
        """The committed queue offset, whatever is pending; -1 when there is none."""
        topics = self._committed.get(group)
        queues = topics.get(topic) if topics is not None else None
        return queues.get(queue_id, -1) if queues is not None else -1

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Remember how far a group came. It may go backwards: that is how a group repeats messages.

        False when the value was dropped: a reset is pending for the queue, or the offset is
        negative (a client that has not read the queue yet).
        """
        if offset < 0 or (self._resets and (group, topic, queue_id) in self._resets):
            return False
        self._store(group, topic, queue_id, offset)
        return True

    def _store(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        queues = self._committed.setdefault(group, {}).setdefault(topic, {})
        if queues.get(queue_id) == offset:
            return
        queues[queue_id] = offset
        self.file.changed()
        self._commits += 1
        if self._commits % COMMITS_PER_VERSION == 0:
            self.version.advance(self._clock.now_ms())

    def queues(self, group: str, topic: str) -> Queues:
        """queue id -> committed queue offset; a copy."""
        return dict(self._committed.get(group, {}).get(topic, {}))

    def topics_of(self, group: str) -> list[str]:
        return list(self._committed.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        return [group for group, topics in self._committed.items() if topic in topics]

    def groups(self) -> Iterable[str]:
        return self._committed.keys()

    # -- pulled offsets: for statistics only, never saved ------------------------------

    def commit_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember what a pull was told to read next."""
        self._pulled.setdefault(group, {}).setdefault(topic, {})[queue_id] = offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Where the last pull went on; -1 when nobody pulled since the start."""
        return self._pulled.get(group, {}).get(topic, {}).get(queue_id, -1)

    # -- resets by an administrator ----------------------------------------------------

    def assign_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Make the group go on at `offset`.

        Its next pull is told so, its commits until then are dropped.
        """
        self._store(group, topic, queue_id, offset)
        self._resets[group, topic, queue_id] = offset

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The queue offset of a reset that the group has not heard of yet."""
        return self._resets.get((group, topic, queue_id)) if self._resets else None

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """As pending_reset, and done with: the pull that asks is being told."""
        return self._resets.pop((group, topic, queue_id), None) if self._resets else None

    # -- forgetting --------------------------------------------------------------------

    def forget_topic(self, topic: str) -> None:
        """The topic is deleted: no group has an offset in it any more."""
        for table in (self._committed, self._pulled):
            for group in [group for group, topics in table.items() if topic in topics]:
                del table[group][topic]
                if not table[group]:
                    del table[group]
        self._forget_resets(lambda key: key[1] == topic)
        self.file.changed()

    def forget_group(self, group: str) -> None:
        """The group starts anew."""
        self._committed.pop(group, None)
        self._pulled.pop(group, None)
        self._forget_resets(lambda key: key[0] == group)
        self.file.changed()

    def clone(self, source: str, target: str, topic: str) -> None:
        """Give `target` the committed offsets that `source` has in a topic."""
        for queue_id, offset in self.queues(source, topic).items():
            self._store(target, topic, queue_id, offset)

    def _forget_resets(self, matches: Any) -> None:
        for key in [key for key in self._resets if matches(key)]:
            del self._resets[key]
