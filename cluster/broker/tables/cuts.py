"""Readers that stand beyond what a loss left of their queues: each is moved to the cut.

After a power cut, or an election that may have lost messages, the log can be shorter than what consumers
were given. They carry positions of their own, and what is sent next gets these queue offsets again: who
went on from its position would pass over it. (Leaving offsets out instead would need a bound of what was
given out, and stock slaves write an entry behind a gap to the wrong place: decision 0010.) A topic that is
deleted and made again does the same to its readers: its cut is at 0 (tandemmq.cluster.broker.tables.lives).

INV-42: after a cut no reader is served from, and no group committed to, a queue offset beyond it that this
history has not given out. A reader that asks from there is moved: to where its group has come since, or
to the cut, once. So everything that survived, or comes after, is delivered at least once.

A reader that heard of the cut stands in the new history. If it comes later from beyond what it was given here, a slave
that it was sent to gave it that. Where nobody sent it away it may have asked a former master that does not know of its
successor yet, and is moved again. Who comes to a slave from beyond is sent to the master, which knows more; where there
is none, the slave moves it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tandemmq.cluster.broker.reading.members import ConsumerMembers, Peer
from tandemmq.cluster.broker.tables.lives import KEEP_MS, Lives
from tandemmq.cluster.broker.tables.offsets import OffsetTable
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.logs import once_per
from tandemmq.storage import Clock, ConsumeQueue

log = logging.getLogger(__name__)

TOOLS_GROUP: Final = "TOOLS_CONSUMER"  # looks wherever somebody wants to look
TOLD_MAX: Final = 100_000
READERS_MAX: Final = 100_000  # remembered; who is forgotten may be moved once more
LOG_AGAIN_S: Final = 5
ASK_MASTER: Final = -1  # in place of a queue offset: who is asked is a slave


class Moved(NamedTuple):
    """From which queue offset a reader was moved, and where to. away: and sent to a slave for that."""

    start: int
    to: int
    away: bool = False


#: in place of where a reader was moved from and to: it stands in the new history; and a slave gives it more
_SETTLED: Final = Moved(-1, -1)
_AWAY: Final = Moved(-2, -2)

#: topic, queue id
Queue = tuple[str, int]


def ends_below(queues: Iterable[ConsumeQueue], log_end: int) -> dict[Queue, int]:
    """Where each queue would end, were the log to end there. Raises OSError."""
    return {(each.topic, each.queue_id): _end_below(each, log_end) for each in queues}


def _end_below(queue: ConsumeQueue, log_end: int) -> int:
    low = high = queue.max_offset
    if queue.physical_end > log_end:
        low = queue.min_offset
    while low < high:  # entries below `low` lie below log_end, those from `high` on do not
        middle = (low + high) // 2
        entry = queue.entry(middle)
        if entry is None or entry[0] + entry[1] <= log_end:
            low = middle + 1
        else:
            high = middle
    return high


class Cuts:
    """Where the queues ended at the last possible losses, for KEEP_MS; config/queueCuts.json.

    active     whether there is anything to look at: what is on the way of every pull asks this first
    moved      how many pulls were answered with another position
    following  this broker is a slave: it knows of deletions, and of no loss
    A queue that is not in the table had nothing left: its cut is at 0. In a group whose members share
    the queues, what one was given is good for all; each member of a broadcasting group, known by its
    client id, stands for itself.
    """

    def __init__(
        self,
        path: Path,
        offsets: OffsetTable,
        members: ConsumerMembers,
        lives: Lives,
        clock: Clock,
    ) -> None:
        self._offsets = offsets
        self._members = members
        self._lives = lives
        self._clock = clock
        self._lost = False  # at all, in the last hour
        self._ends: dict[Queue, int] = {}
        self._since_wall_ms = 0
        self._until_ms = 0  # monotonic
        self._given: dict[
            tuple[str, str, int], int
        ] = {}  # to whom, and the next offset it was told
        self._told: dict[
            tuple[int, str, int, int], None
        ] = {}  # to clients that asked for a position
        self._readers: dict[tuple[str, str, int], Moved] = {}  # each one moved; or _SETTLED, _AWAY
        self._logged: set[tuple[str, str]] = set()
        self._moving = once_per(LOG_AGAIN_S)
        self.following = False
        self.moved = 0
        self.file = SavedFile(path, self.to_json)

    @property
    def active(self) -> bool:
        return self._lost or bool(self._lives)

    def concerns(self, topic: str) -> bool:
        """Whether readers of a topic may have to be moved."""
        return self._lost or topic in self._lives

    def load(self) -> None:
        """What an earlier process found, as long as it counts."""
        self.end()
        self._lives.load()
        found = self.file.load() or {}
        since_ms = int(found.get("cutTimestamp") or 0)
        left_ms = since_ms + KEEP_MS - self._clock.now_ms()
        if since_ms and left_ms > 0:
            self._since_wall_ms = since_ms
            self._until_ms = self._clock.monotonic_ms() + min(left_ms, KEEP_MS)
            self._ends = {
                (topic, int(queue_id)): int(end)
                for topic, queues in (found.get("queueEnds") or {}).items()
                for queue_id, end in queues.items()
            }
            self._lost = True

    def to_json(self) -> dict[str, Any]:
        """What the file holds."""
        ends: dict[str, dict[str, int]] = {}
        for (topic, queue_id), end in self._ends.items():
            ends.setdefault(topic, {})[str(queue_id)] = end
        return {"cutTimestamp": self._since_wall_ms, "queueEnds": ends}

    def lose(self, ends: Mapping[Queue, int], why: str) -> None:
        """Take committed offsets back to these ends of the queues, and begin(); on the disk when this returns. Blocks.

        Before more of the log comes: who starts on older files would take its messages for those of before.
        """
        taken_back = self._offsets.limit(lambda *queue: ends.get(queue, 0))
        self.begin(ends, why)
        # what a slave kept may be of before an earlier loss, too
        taken_back += self._offsets.limit_kept(lambda *queue: self._ends.get(queue, 0))
        self.file.take_back()
        if taken_back:
            self._offsets.file.take_back()

    def begin(self, ends: Mapping[Queue, int], why: str) -> None:
        """Readers may stand beyond these ends of the queues; the committed offsets do no more.

        One that has not asked since an earlier cut may stand between that one and this: the lower counts.
        """
        if self._clock.monotonic_ms() < self._until_ms:
            before = self._ends
            self._ends = {each: min(end, before.get(each, 0)) for each, end in ends.items()}
        else:
            self._ends = dict(ends)
            self._given.clear()
        for (who, topic, queue_id), offset in self._given.items():
            self._given[who, topic, queue_id] = min(offset, ends.get((topic, queue_id), 0))
        self._since_wall_ms = self._clock.now_ms()
        self._until_ms = self._clock.monotonic_ms() + KEEP_MS
        self._told.clear()
        self._readers.clear()
        self._logged.clear()
        self._lost = True
        self.file.changed()
        log.warning(
            "readers beyond the end of their queues are moved to it, once each queues=%d "
            "for_minutes=%d why=%s",
            len(ends), KEEP_MS // 60_000, why,
        )  # fmt: skip

    def deleted(self, topic: str, below: int) -> None:
        """A topic's messages below a log offset are deleted: whoever read it begins again at 0."""
        known = self.concerns(topic)
        self._lives.changed(topic, below)
        if not known:
            return  # nothing is noted of it; many may be deleted at once
        self._given = {key: at for key, at in self._given.items() if key[1] != topic}
        self._told = {key: None for key in self._told if key[1] != topic}
        self._readers = {key: at for key, at in self._readers.items() if key[1] != topic}
        self._logged = {each for each in self._logged if each[1] != topic}

    def end(self) -> None:
        """No loss counts any more: it is long ago, or this broker is a slave now."""
        self._lost = False
        for table in (self._given, self._told, self._readers, self._logged):
            table.clear()

    def _cut(self, topic: str, queue_id: int) -> int | None:
        """Where the history of a queue begins that its readers may not know of; None: they all do."""
        if self._lost and self._clock.monotonic_ms() >= self._until_ms:
            self.end()
        if self._lives.new(topic, queue_id):
            return 0
        return self._ends.get((topic, queue_id), 0) if self._lost else None

    # -- readers, where concerns() ---------------------------------------------------------

    def target(
        self, group: str, topic: str, queue_id: int, offset: int, reader: Peer
    ) -> int | None:
        """Where a reader must go on instead of at `offset`, or ASK_MASTER; None: it is right there."""
        cut = self._cut(topic, queue_id)
        if cut is None or group == TOOLS_GROUP:
            return None
        who, shared = self._who(group, reader)
        key = (self._client(group, reader), topic, queue_id)
        before = self._readers.get(key)
        if before == _AWAY or (before == _SETTLED and self.following):
            return None
        committed = self._offsets.committed(group, topic, queue_id) if shared else -1
        # What it was given and has not consumed goes with its position: clients drop all of a queue that is moved.
        settled = committed if committed >= 0 else cut
        # One that did not hear that it is moved asks for the same again, or for what a former master led it to since.
        # One that comes from elsewhere heard of it where it was sent to a slave with that, or by us to our master.
        if (
            offset <= max(cut, committed, self._given.get((who, topic, queue_id), 0))
            or (before is not None and (before.away or self.following) and before.start != offset)
            or (reader.id, topic, queue_id, offset) in self._told
        ):
            self._note(key, _SETTLED)
            return None
        self._note(key, Moved(offset, settled))
        if self.following and before is None:
            return ASK_MASTER
        self.moved += 1
        if (key[0], topic) not in self._logged:
            self._logged.add((key[0], topic))
            self._moving.warning(
                log, "reader moved group=%s topic=%s queue=%d from=%d to=%d cut=%d",
                group, topic, queue_id, offset, settled, cut,
            )  # fmt: skip
        return settled

    def _note(self, key: tuple[str, str, int], found: Moved) -> None:
        if key not in self._readers and len(self._readers) >= READERS_MAX:
            del self._readers[next(iter(self._readers))]
        self._readers[key] = found

    def gave(self, group: str, topic: str, queue_id: int, offset: int, reader: Peer) -> None:
        """A reader was told to go on at `offset`."""
        key = (self._who(group, reader)[0], topic, queue_id)
        if offset > self._given.get(key, 0):
            self._given[key] = offset

    def sent_away(self, group: str, topic: str, queue_id: int, reader: Peer) -> None:
        """A reader that was given something here, or is moved, is told to read on from a slave, and commits here what
        it gets."""
        key = (self._client(group, reader), topic, queue_id)
        before = self._readers.get(key)
        if before == _SETTLED:
            self._readers[key] = _AWAY
        elif before is not None and before != _AWAY:
            self._readers[key] = before._replace(away=True)

    def told(self, topic: str, queue_id: int, offset: int, asker: Peer) -> None:
        """Somebody asked for a queue's end, or for the position of a time, and may begin there.

        Whoever else is on that host did not: a tool that looks at ends would vouch for readers of before.
        """
        if len(self._told) >= TOLD_MAX:
            del self._told[next(iter(self._told))]
        self._told[asker.id, topic, queue_id, offset] = None

    def beyond(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        reader: Peer,
        *,
        kept: bool = False,
    ) -> bool:
        """Whether a commit is of the history before the cut: it would pass over what came since.

        kept  by a slave, since nobody knows when: what was given here says nothing of it
        """
        cut = self._cut(topic, queue_id)
        if cut is None:
            return False
        key = (self._client(group, reader), topic, queue_id)
        before = self._readers.get(key)
        known = self._offsets.committed(group, topic, queue_id)
        # It says that it goes on from where it was moved to; clients repeat what they have committed all the time.
        # Or that it has more than it had then: where it was sent to a slave, that gave it so much.
        if before is not None and (
            offset == before.to != known or (before.away and offset > before.start)
        ):
            before = _AWAY if before.away else _SETTLED
            self._note(key, before)
        if offset <= cut or before == _AWAY:
            return False
        if not kept:
            who, _ = self._who(group, reader)
            known = max(known, self._given.get((who, topic, queue_id), 0))
        return offset > known and (reader.id, topic, queue_id, offset) not in self._told

    def stays(self, group: str) -> bool:
        """Whether a group's readers must read here alone: what a slave gave each of them this broker does not hear of,
        and would move it back each time that it returns."""
        members = self._members.group(group)
        return self.active and members is not None and members.broadcasting

    def _who(self, group: str, reader: Peer) -> tuple[str, bool]:
        """Under which name a reader's positions are kept, and whether its group shares them."""
        members = self._members.group(group)
        if members is None or not members.broadcasting:
            return group, True
        return self._client(group, reader), False

    def _client(self, group: str, reader: Peer) -> str:
        """Under which name one reader is known, on any connection where its group has said who it is."""
        members = self._members.group(group)
        member = members.connections.get(reader.id) if members is not None else None
        return f"{group}\0{member.client_id if member is not None else reader.id}"
