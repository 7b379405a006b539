"""What to keep after a clean stop and after a crash: finds the log's end, completes what is
derived.

1. The log ends at the first record that is not sound, searched from a place below which everything
   is durable. What follows is removed, and the rest of the file zeroed. Sound records among it mean
   that the log was damaged, and are counted.
2. Each queue is cut back to entries that are durable and lie below the log's end; each index file
   that is not known to be durable, or points behind the log's end, is deleted.
3. The log is derived once more from the first place that a queue or the index lacks. Queues that
   lack even older entries, or hold others than the log says, are rebuilt from the log's start (INV-6).
4. Queue offsets continue where the queues end.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tandemmq.storage.checkpoint import Checkpoint, QueueState
from tandemmq.storage.codec import MAGIC_V1, MAGIC_V2, Head, scan
from tandemmq.storage.commitlog import CommitLog
from tandemmq.storage.config import StorageConfig
from tandemmq.storage.consumequeue import ConsumeQueue
from tandemmq.storage.consumequeues import ConsumeQueues
from tandemmq.storage.derivation import Checked, QueueEnd, check
from tandemmq.storage.dispatch import ALL_RECORDS, Dispatcher
from tandemmq.storage.errors import StoreIsFull
from tandemmq.storage.flags import StoreFlags
from tandemmq.storage.keyindex import KeyIndex
from tandemmq.storage.mending import is_of
from tandemmq.storage.queuefiles import BLANK_SIZE
from tandemmq.storage.queuetails import Waiting, go_on
from tandemmq.storage.segment import Segment
from tandemmq.storage.tombstones import Tombstones

log = logging.getLogger(__name__)

DISAGREEING_MAX: Final = 1000
SECTOR_BYTES: Final = 512
DAMAGED_BYTES_MAX: Final = 8 << 20
_ZEROS: Final = re.compile(rb"\0+")
_MAGICS: Final = re.compile(
    b"|".join(re.escape(struct.pack(">i", magic)) for magic in (MAGIC_V1, MAGIC_V2))
)


@dataclass(slots=True)
class Recovered:
    """What recovery did, for the log line and for replication."""

    clean: bool
    same_boot: bool  # after an unclean stop: the page cache survived
    log_start: int = 0
    log_end: int = 0
    checked_from: int = 0  # every record from here to log_end was checked
    derived_from: int = 0  # queues and index were completed from here
    dropped_bytes: int = 0  # of sound records behind log_end, later files counted in full
    why: str = ""  # what was found at log_end
    received: bool = False  # the log's end came from a master
    rebuilt: list[str] = field(default_factory=list)  # queues derived anew from the log's start


@dataclass(slots=True)
class Parts:
    """The opened and loaded parts of a store, none of them trusted yet."""

    config: StorageConfig
    log: CommitLog
    queues: ConsumeQueues
    index: KeyIndex | None
    dispatcher: Dispatcher
    flags: StoreFlags
    delay_ms_by_level: dict[int, int]
    forget_state: Callable[[], None]


class Recovery:
    """One run over the parts of one store. Raises OSError, StoreIsFull, FlushFailed."""

    def __init__(
        self,
        parts: Parts,
        checkpoint: Checkpoint,
        state: QueueState | None,
        clean: bool,
        same_boot: bool,
        received: bool = False,
    ) -> None:
        """received: the log's end came from a master, in pieces that end anywhere."""
        self.found = Recovered(clean, same_boot, received=received)
        self._received = received
        self._parts = parts
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._checkpoint = checkpoint
        self._state = state if state is not None and self._believable(state) else None
        self._power_cut = not clean and not same_boot
        self._last_store_ms = 0
        self._tombstones = parts.queues.tombstones
        self._buried_below: int | None = None  # where queues of deleted topics were removed from

    def run(self) -> Recovered:
        self._queues.log_agrees = partial(is_of, self._log)
        if self._log.run.segments:
            self._find_log_end()
            self._cut_log()
            self._cut_derived()
            self._complete_derived()
        else:
            # Without a log nothing that was derived from it means anything.
            self._parts.forget_state()
            for queue in self._queues:
                self._queues.delete_queue(queue.topic, queue.queue_id)
            if self._index is not None:
                self._index.keep_until(0)
            self._log.truncate(0)
        self.found.log_start = self._log.start
        self._queues.start_at(self._log.start)
        self._tombstones.log_starts_at(self._log.start)
        if not self._received:  # else it may end before a deletion that its master told of
            self._tombstones.log_ends_at(self._log.end)
        self._set_tails()
        if not self.found.clean:
            self._distrust()
        return self.found

    # --- the log's end ---

    def _believable(self, state: QueueState) -> bool:
        """Whether the state speaks of this log: its last record must be there and end there."""
        if not self._log.start <= state.dispatched <= self._log.end:
            return False
        segment = self._log.run.find(state.dispatched)
        if segment is not None and segment.start == state.dispatched:
            return True  # a file begins with a record, whatever ended the one before
        record = self._log.record_at(state.last_record) if state.last_record >= 0 else None
        if record is None:
            return False
        return state.last_record + len(record) == state.dispatched and self._is_sound(
            state.last_record, crc_checked=True
        )

    def _is_sound(self, offset: int, crc_checked: bool = False) -> bool:
        segment = self._log.run.find(offset)
        record = self._log.record_at(offset)
        if segment is None or record is None:
            return False
        position = offset - segment.start
        found = check(segment.view, position, position + len(record), segment.start, crc_checked)
        return found.records == 1

    def _find_log_end(self) -> None:
        found = self.found
        start = self._check_from()
        last_ms = self._scan(start)
        checkpoint = self._checkpoint
        if 0 < last_ms < checkpoint.physic_ms:
            # It vouches for later messages than there are: it is not to be believed.
            log.warning(
                "checkpoint is ahead of the log ms=%d last_ms=%d", checkpoint.physic_ms, last_ms
            )
            if not found.clean and start > self._log.start:
                last_ms = self._scan(self._log.start)
        if last_ms:
            checkpoint.physic_ms = min(checkpoint.physic_ms, last_ms)
            checkpoint.logics_ms = min(checkpoint.logics_ms, last_ms)
            checkpoint.index_ms = min(checkpoint.index_ms, last_ms)
        self._last_store_ms = last_ms

    def _check_from(self) -> int:
        """Where checking starts: everything below is durable, or was when the store was closed."""
        if self.found.clean and self._state is not None:
            return self._state.dispatched
        limit_ms = self._checkpoint.safe_ms
        for segment in reversed(self._log.run.segments):
            store_ms = self._log.store_ms_at(segment.start)
            if store_ms and (self.found.clean or store_ms <= limit_ms):
                return segment.start
        return self._log.start

    def _scan(self, start: int) -> int:
        """Check every record from start on; store time of the last sound one."""
        found = self.found
        crc_checked = self._parts.config.crc_checked_on_recover or self._power_cut
        found.checked_from = found.log_end = start
        last_ms = 0
        if self._state is not None and start == self._state.dispatched:
            last_ms = self._log.store_ms_at(self._state.last_record) or 0
        for segment in self._log.run.segments:
            if segment.end <= start:
                continue
            if self._power_cut:
                _forget_cached(segment)
            position = max(0, start - segment.start)
            walk = check(segment.view, position, segment.size, segment.start, crc_checked)
            if self._power_cut:
                walk = _without_holes(segment, position, walk)
            elif self._received and not walk.blank:  # a master that is asked sends the record again
                walk = _without_torn_end(segment, position, walk, 1)
            elif not found.clean and not walk.blank:
                walk = _without_torn_end(segment, position, walk, mmap.PAGESIZE)
            if walk.records:
                last_ms = walk.store_ms
            found.log_end = segment.end if walk.blank else segment.start + walk.position
            if not walk.blank and walk.position < segment.size:
                found.why = walk.why
                found.dropped_bytes = _sound_behind(segment, walk.position)
                break
        return last_ms

    def _cut_log(self) -> None:
        found = self.found
        for segment in self._log.run.segments:
            if segment.start > found.log_end and self._log.record_at(segment.start) is not None:
                found.dropped_bytes += segment.size
        if found.dropped_bytes:
            log.error(
                "log cut in front of later records end=%d dropped_bytes=%d why=%s",
                found.log_end, found.dropped_bytes, found.why,
            )  # fmt: skip
        self._log.truncate(found.log_end)
        self._log.tail.last_store_ms = self._log.tail.committed_ms = self._last_store_ms

    # --- queues and index ---

    def _cut_derived(self) -> None:
        """Leave only entries that are known to be right as far as their own file tells."""
        found, state = self.found, self._state
        if state is not None and state.dispatched > found.log_end:
            state = self._state = None  # it counts entries that are cut now
        if state is None:
            # Queues are written anew. A power cut leaves them with holes, and then a log that has grown fits the
            # state again.
            self._parts.forget_state()
        durable = found.log_end
        if not found.clean:
            durable = state.dispatched if state is not None else self._log.start
        for queue in self._queues:
            mark = state.queues.get(queue.topic, {}).get(queue.queue_id) if state else None
            queue.recover(durable, mark if found.clean else None)
            if state is None and found.clean:
                self._drop_disagreeing(queue)
            if self._power_cut:
                queue.refill_blanks()
            self._drop_buried(queue)
        if self._index is not None:
            if self._power_cut:
                self._index.drop_newer(self._checkpoint.index_ms)
            self._index.keep_until(found.log_end)

    def _distrust(self) -> None:
        """A killed process may have cut queues and not flushed them: the page cache does not say (INV-40)."""
        for queue in self._queues:
            queue.distrust()
        if self._index is not None:
            self._index.distrust()

    def _drop_buried(self, queue: ConsumeQueue) -> None:
        """Remove a queue that has entries of before its topic was deleted: the process died meanwhile."""
        below = self._tombstones.of(queue.topic.encode())
        if not below:
            return
        first = queue.entry(queue.min_offset)
        if not queue.max_offset or (first is not None and first[0] < below):
            log.info(
                "queue of a deleted topic removed topic=%s queue=%d", queue.topic, queue.queue_id
            )
            if queue.physical_end > below:
                self._parts.forget_state()
                self._buried_below = min(below, self._buried_below or below)
            self._queues.delete_queue(queue.topic, queue.queue_id)

    def _drop_disagreeing(self, queue: ConsumeQueue) -> None:
        for _ in range(DISAGREEING_MAX):
            last = queue.entry(queue.max_offset - 1)
            if last is None or last[0] < self._log.start or last[1] == BLANK_SIZE:
                return
            if is_of(self._log, queue, queue.max_offset - 1, last):
                return
            queue.drop_last()
        queue.reset()

    def _complete_derived(self) -> None:
        found, state, dispatcher = self.found, self._state, self._parts.dispatcher
        found.derived_from = state.dispatched if state is not None else self._log.start
        if self._buried_below is not None:
            found.derived_from = max(min(found.derived_from, self._buried_below), self._log.start)
        last_record = state.last_record if state is not None else -1
        dispatcher.begin_at(found.derived_from, last_record, self._index_from())
        self._queues.incomplete = set()
        try:
            dispatcher.recover(found.log_end)
            wanted = self._queues.incomplete | self._queues.torn | self._behind_state()
        finally:
            self._queues.incomplete = None
        if wanted:
            self._rebuild(wanted)

    def _index_from(self) -> int:
        """The first record that may lack index entries."""
        if self._index is None:
            return self.found.log_end
        reached = last = self._index.last_indexed
        if last >= self._log.start:
            record = self._log.record_at(last)
            if record is None or not self._is_sound(last):
                log.warning("index points at no record and is rebuilt offset=%d", last)
                self._index.keep_until(0)
                reached = last = -1
            elif self.found.clean:
                reached += len(record)  # after a crash it may lack some of its keys
        state = self._state
        if state is not None and state.index_end is not None and state.index_end <= last:
            reached = max(reached, state.dispatched)  # records without keys leave no trace in it
        return max(reached, self._log.start)

    def _behind_state(self) -> set[ConsumeQueue]:
        """Queues that do not hold what they held when their state was written."""
        wanted = set()
        if self._state is not None:
            for topic, marks in self._state.queues.items():
                for queue_id, mark in marks.items():
                    if mark.physical_end <= self._tombstones.of(topic.encode()) != 0:
                        continue  # deleted since
                    queue = self._queues.make(topic, queue_id)
                    if not queue.agrees_with(mark):
                        wanted.add(queue)
                        self._queues.torn.add(queue)
        return wanted

    def _rebuild(self, wanted: set[ConsumeQueue]) -> None:
        parts = self._parts
        parts.forget_state()  # first: a power cut leaves what is written anew with holes
        # Offsets that were given away stay so, even when the log has lost their messages.
        floors = {queue: queue.max_offset for queue in wanted}
        if self._state is not None:
            for queue in wanted:
                mark = self._state.queues.get(queue.topic, {}).get(queue.queue_id)
                floors[queue] = max(floors[queue], mark.max_offset if mark is not None else 0)
        for queue in self._queues.torn:
            queue.reset()
        self._queues.torn.clear()
        self.found.rebuilt = sorted(f"{queue.topic}-{queue.queue_id}" for queue in wanted)
        log.warning(
            "queues incomplete, rebuilt from the log count=%d first=%s",
            len(wanted), self.found.rebuilt[0],
        )  # fmt: skip
        dispatcher = Dispatcher(
            parts.log,
            OnlyThese(wanted, self._tombstones),
            None,
            parts.flags,
            parts.delay_ms_by_level,
        )
        dispatcher.begin_at(self._log.start)
        dispatcher.recover(self.found.log_end)
        if dispatcher.position < self.found.log_end:
            raise StoreIsFull(f"queues cannot be rebuilt: {parts.flags.why()}")
        for queue, floor in floors.items():
            queue.skip_to(floor)

    def _set_tails(self) -> None:
        waiting = None
        if self._parts.flags.full:
            position = self._parts.dispatcher.position
            waiting = Waiting(self._log, self._tombstones, position, skips_damage=True)
            waiting.walk(ALL_RECORDS)
        go_on(self._log, self._queues, waiting)


class OnlyThese:
    """Some of the consume queues, for the inner loop of dispatch.

    A queue whose topic was deleted once is found from its first message after that on.
    """

    def __init__(self, queues: Iterable[ConsumeQueue], tombstones: Tombstones) -> None:
        self.ends: dict[bytes, dict[int, QueueEnd]] = {}
        self._tombstones = tombstones
        self._wanted: dict[tuple[bytes, int], QueueEnd] = {}
        for queue in queues:
            topic = queue.topic.encode()
            self._wanted[topic, queue.queue_id] = queue.end
            if not tombstones.of(topic):
                self.ends.setdefault(topic, {})[queue.queue_id] = queue.end

    def find_end(self, topic: bytes, queue_id: int, physical_offset: int) -> QueueEnd | None:
        end = self._wanted.get((topic, queue_id))
        if end is None or physical_offset < self._tombstones.of(topic):  # INV-43
            return None
        return self.ends.setdefault(topic, {}).setdefault(queue_id, end)


def _without_holes(segment: Segment, position: int, walk: Checked) -> Checked:
    """Cut a walk short in front of a record of which the disk lacks a piece.

    The checksum covers the body, and a hole in the fixed fields shows in the lengths or the physical offset. Left are
    topic and properties: zeros there that begin or end where a sector does, or reach the record's end, were never
    written. (Zeros elsewhere are a sender's own.)
    """
    last_record, store_ms = -1, 0
    for records, head in enumerate(scan(segment.view, position, walk.position)):
        end = head.position + head.size
        if 0 in head.topic or 0 in head.properties:
            text = bytes(segment.view[head.position : end])
            for zeros in _ZEROS.finditer(
                text, head.size - len(head.properties) - 2 - len(head.topic)
            ):
                first, stop = head.position + zeros.start(), head.position + zeros.end()
                if first % SECTOR_BYTES == 0 or stop % SECTOR_BYTES == 0 or stop == end:
                    why = f"hole at {first} in the record at {head.position}"
                    return Checked(head.position, False, why, records, last_record, store_ms)
        last_record, store_ms = head.position, head.store_ms
    return walk


def _without_torn_end(segment: Segment, position: int, walk: Checked, step: int) -> Checked:
    """Cut a walk short in front of a last record that was only begun.

    step  it was written in pieces that end at multiples of this
    Of a piece that ends in the topic or the properties only the zeros behind it tell: neither lengths nor checksum do.
    """
    if walk.last_record < 0:
        return walk
    last = next(scan(segment.view, walk.last_record, walk.position))
    end = last.position + last.size
    zeros = len(text := last.properties or last.topic) - len(text.rstrip(b"\0"))
    if zeros <= (end - 1) % step:  # it is whole, or torn elsewhere than between two pieces
        return walk
    before: Head | None = None
    for head in scan(segment.view, position, last.position):
        before = head
    known = (-1, 0) if before is None else (before.position, before.store_ms)
    return Checked(
        last.position, False, f"torn record at {last.position}", walk.records - 1, *known
    )


def _forget_cached(segment: Segment) -> None:
    """After a failed flush the page cache may show bytes that the disk does not have."""
    descriptor = os.open(segment.path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _sound_behind(segment: Segment, position: int) -> int:
    """How many bytes of sound records lie behind what stopped a walk at `position`.

    None behind the end that a process had written when it died; if there are, what stopped the walk
    is damage. Looked for as far as a record of usual size reaches, and not at all behind zeros.
    """
    view = segment.view
    if view[position : position + 8] == bytes(8):
        return 0
    for found in _MAGICS.finditer(view[position : position + DAMAGED_BYTES_MAX], 5):
        start = position + found.start() - 4
        walk = check(view, start, segment.size, segment.start, True)
        if walk.records:
            return walk.position - start
    return 0
