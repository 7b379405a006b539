"""How far each group has come in each queue, and where an administrator wants it to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.broker.tables.versions import DataVersion
from tandemmq.storage import Clock

#: the data version advances once per this many commits, as RocketMQ's does
COMMITS_PER_VERSION = 500

Queues = dict[int, int]

#: (group, topic, queue id)
Place = tuple[str, str, int]


class OffsetTable:
    """group -> topic -> queue id -> queue offset to read next, kept in config/consumerOffset.json.

    Commits live in memory and reach the disk every flushConsumerOffsetInterval and at stop: a
    crash repeats a few seconds of messages. Source: RocketMQ's ConsumerOffsetManager.

    A slave's table follows its master's (`adopt`). Commits that reach the slave itself, because its
    clients do not reach the master, are `ahead` of what the master knows until `acknowledged` says
    that it was told; they survive a restart in `aheadOffsetTable`, which RocketMQ does not read.
    Whether such a one is of before a loss nobody can tell, so it does not hold beyond a cut: limit_kept(). Which
    these are survives a restart, too, in `keptOffsetTable`: a master that was told may not have taken it.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._committed: dict[str, dict[str, Queues]] = {}
        self._pulled: dict[str, dict[str, Queues]] = {}
        self._resets: dict[Place, int] = {}
        self._ahead: dict[Place, int] = {}
        #: what was committed on a slave: how far a master had it, or -1
        self._kept: dict[Place, int] = {}
        self._commits = 0
        self.following = False  # a slave: what is committed here, the master does not know
        self.file = SavedFile(path, self.to_json)
        self.version = DataVersion(timestamp=clock.now_ms())

    def load(self) -> None:
        """Read the file; both releases' dialects, with and without a data version."""
        found = self.file.load()
        if found is None:
            return
        for group, topic, queues in _by_group(found.get("offsetTable") or {}):
            self._committed.setdefault(group, {})[topic] = queues
        for group, topic, queues in _by_group(found.get("aheadOffsetTable") or {}):
            self._ahead.update(((group, topic, queue), at) for queue, at in queues.items())
        self._kept = dict.fromkeys(self._ahead, -1)
        for key, kept in (found.get("keptOffsetTable") or {}).items():
            topic, _, group = key.rpartition("@")
            self._kept.update({(group, topic, int(queue_id)): -1 for queue_id in kept})
        self.version = DataVersion.from_json(found.get("dataVersion"), self._clock.now_ms())

    def to_json(self) -> dict[str, Any]:
        """What the file holds."""
        found = self.shared_json()
        if self._ahead:
            ahead: dict[str, dict[str, int]] = {}
            for (group, topic, queue_id), offset in self._ahead.items():
                ahead.setdefault(f"{topic}@{group}", {})[str(queue_id)] = offset
            found["aheadOffsetTable"] = ahead
        kept: dict[str, list[int]] = {}
        for group, topic, queue_id in self._kept:
            if (group, topic, queue_id) not in self._ahead:
                kept.setdefault(f"{topic}@{group}", []).append(queue_id)
        if kept:
            found["keptOffsetTable"] = kept
        return found

    def shared_json(self) -> dict[str, Any]:
        """What slaves are told, and tools."""
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
        if self.following:
            place = (group, topic, queue_id)
            self._kept.setdefault(place, self.committed(*place))
            self._ahead[place] = offset
        elif self._kept:
            self._kept.pop((group, topic, queue_id), None)
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

    def pulled_in(self, group: str, topic: str) -> Queues:
        """queue id -> where the last pull went on; a copy."""
        return dict(self._pulled.get(group, {}).get(topic, {}))

    # -- resets by an administrator ----------------------------------------------------

    def assign_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Make the group go on at `offset`.

        Its next pull is told so, its commits until then are dropped.
        """
        self._store(group, topic, queue_id, offset)
        self._kept.pop((group, topic, queue_id), None)
        self._resets[group, topic, queue_id] = offset

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The queue offset of a reset that the group has not heard of yet."""
        return self._resets.get((group, topic, queue_id)) if self._resets else None

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """As pending_reset, and done with: the pull that asks is being told."""
        return self._resets.pop((group, topic, queue_id), None) if self._resets else None

    @property
    def resetting(self) -> bool:
        """Whether any reset is pending."""
        return bool(self._resets)

    # -- a slave's table follows its master's ------------------------------------------

    def adopt(self, offsets: Mapping[tuple[str, str], Queues], version: DataVersion) -> None:
        """Take over the master's offsets, by (group, topic).

        Groups and topics that the master does not name stay, as in RocketMQ. What was committed
        here and is further than the master knows stays too (RocketMQ goes back, and repeats every
        message since); everything else becomes what the master has, also when that is less: it
        was reset there.
        """
        before = (self._committed, self.version)
        merged = {group: dict(topics) for group, topics in self._committed.items()}
        for (group, topic), queues in offsets.items():
            merged.setdefault(group, {})[topic] = dict(queues)
        for (group, topic, queue_id), own in list(self._ahead.items()):
            queues = merged.setdefault(group, {}).setdefault(topic, {})
            if queues.get(queue_id, -1) < own:
                queues[queue_id] = own
            elif (group, topic) in offsets:
                del self._ahead[group, topic, queue_id]  # the master knows that, and more
        for place in [each for each in self._kept if each[:2] in offsets]:
            if place in self._ahead:
                self._kept[place] = offsets[place[:2]].get(place[2], -1)
            else:
                del self._kept[place]
        self._committed, self.version = merged, version
        if (merged, version) != before:
            self.file.changed()

    @property
    def ahead(self) -> dict[Place, int]:
        """What was committed on this slave and its master does not know yet; a copy."""
        return dict(self._ahead)

    def acknowledged(self, place: Place, offset: int) -> None:
        """The master took over what was `ahead`: from now on it says where the group is."""
        if self._ahead.get(place) == offset:
            del self._ahead[place]
            self.file.changed()

    def start_following(self) -> None:
        """This broker is a slave from now on. Resets that no consumer heard of yet are its master's business."""
        self.following = True
        self._resets.clear()

    def stop_following(self) -> None:
        """This broker becomes the master: its own table is the one that counts."""
        self.following = False
        if self._ahead:
            self._ahead.clear()
            self.file.changed()

    def limit(self, queue_end: Callable[[str, int], int]) -> int:
        """Take back offsets beyond the ends of their queues; how many there were.

        For a log that was cut, when everything is dispatched: a group must not wait for messages
        of another history, nor pass over those that will come in their place.
        """
        changed = 0
        for topics in self._committed.values():
            for topic, queues in topics.items():
                for queue_id, offset in queues.items():
                    end = queue_end(topic, queue_id)
                    if offset > end:
                        queues[queue_id] = end
                        changed += 1
        for group, topic, queue_id in self._kept:
            # what a master had beyond it was of the history that is gone
            known = self._kept[group, topic, queue_id]
            self._kept[group, topic, queue_id] = min(known, queue_end(topic, queue_id))
        if changed:
            self._ahead.clear()
            self.file.changed()
        return changed

    def reach_beyond(self, queue_end: Callable[[str, int], int]) -> bool:
        """Whether any offset is beyond the end of its queue."""
        return any(
            offset > queue_end(topic, queue_id)
            for topics in self._committed.values()
            for topic, queues in topics.items()
            for queue_id, offset in queues.items()
        )

    def limit_kept(self, queue_end: Callable[[str, int], int]) -> int:
        """Take back what was committed while this broker was a slave, beyond these queue offsets, to what a master had
        of it; how many there were.

        For cuts that are remembered (INV-42): a group may have read that much before one of them. Over a restart it is
        not remembered what a master had: then to the cut.
        """
        changed = 0
        for (group, topic, queue_id), known in self._kept.items():
            end = max(known, queue_end(topic, queue_id))
            if self.committed(group, topic, queue_id) > end:
                self._store(group, topic, queue_id, end)
                changed += 1
        self._kept.clear()
        return changed

    # -- forgetting --------------------------------------------------------------------

    def forget_topic(self, topic: str) -> None:
        """The topic is deleted: no group has an offset in it any more."""
        for table in (self._committed, self._pulled):
            for group in [group for group, topics in table.items() if topic in topics]:
                del table[group][topic]
                if not table[group]:
                    del table[group]
        self._forget_places(lambda key: key[1] == topic)
        self.file.changed()

    def forget_group(self, group: str) -> None:
        """The group starts anew."""
        self._committed.pop(group, None)
        self._pulled.pop(group, None)
        self._forget_places(lambda key: key[0] == group)
        self.file.changed()

    def clone(self, source: str, target: str, topic: str) -> None:
        """Give `target` the committed offsets that `source` has in a topic."""
        for queue_id, offset in self.queues(source, topic).items():
            self._store(target, topic, queue_id, offset)

    def _forget_places(self, matches: Callable[[Place], bool]) -> None:
        for table in (self._resets, self._ahead, self._kept):
            for key in [key for key in table if matches(key)]:
                del table[key]


def _by_group(table: Mapping[str, Mapping[Any, Any]]) -> Iterable[tuple[str, str, Queues]]:
    """group, topic and offsets by queue id of each entry of an offset table."""
    for key, queues in table.items():
        topic, at, group = key.rpartition("@")
        if at:
            yield group, topic, {int(queue_id): int(offset) for queue_id, offset in queues.items()}
