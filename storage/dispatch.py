"""Follows the log and derives queue and index entries, in bounded steps behind the appends."""

from __future__ import annotations

import errno
import logging
import re
from dataclasses import dataclass
from typing import Final

from tandemmq.storage.commitlog import CommitLog
from tandemmq.storage.derivation import BLANK, BROKEN, MORE, Arrival, Derived, derive
from tandemmq.storage.derive import Sink
from tandemmq.storage.errors import CorruptFile
from tandemmq.storage.flags import Problem, StoreFlags
from tandemmq.storage.keyindex import IndexUnavailable, KeyIndex
from tandemmq.storage.owner import Owner

log = logging.getLogger(__name__)

ALL_RECORDS: Final = (1 << 62) - 1
RECOVERY_RECORDS: Final = 100_000
#: what passes by itself: no space, or no descriptor or mapping left just now
PASSING_ERRORS: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
_LEVEL = re.compile(r"(\d+)([smhd])")
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


NOTHING: Final = Derived(0, 0, MORE, -1, 0, None)


def parse_delay_levels(text: str) -> dict[int, int]:
    """Delay in ms by level (1-based) of a messageDelayLevel setting such as "1s 5s 10s". Raises
    ValueError.
    """
    levels = {}
    for level, word in enumerate(text.split(), start=1):
        match = _LEVEL.fullmatch(word)
        if match is None:
            raise ValueError(f"messageDelayLevel: {word!r} is not a number with one of s, m, h, d")
        levels[level] = int(match.group(1)) * _UNIT_MS[match.group(2)]
    return levels


@dataclass(slots=True)
class DispatchStats:
    records: int = 0
    store_ms: int = 0  # of the last record


class Dispatcher:
    """Everything below `position` is in the consume queues; below `index_position` in the index.

    A record is left only when its queue entry is written: an error stops dispatch at that record,
    and a restart goes on from it. The index may fall behind on a full disk, and gives up on any
    other error; neither holds up the queues (in RocketMQ an index error makes every queue drop its
    messages).
    Source: RocketMQ's DefaultMessageStore.ReputMessageService, RunningFlags.
    """

    def __init__(
        self,
        log_: CommitLog,
        queues: Sink,
        index: KeyIndex | None,
        flags: StoreFlags,
        delay_ms_by_level: dict[int, int],
    ) -> None:
        self.position = 0
        self.index_position = 0
        #: (position, where the last dispatched record starts; -1: not known), for other threads
        self.reached = (0, -1)
        self.stats = DispatchStats()
        self._skips_damage = False
        self.starved = (
            False  # a full disk keeps a record from its queue, or the index from following
        )
        self.owner = Owner()
        self._log = log_
        self._queues = queues
        self._index = index
        self._flags = flags
        self._delay_ms_by_level = delay_ms_by_level

    def begin_at(
        self, offset: int, last_record: int = -1, index_position: int | None = None
    ) -> None:
        """Dispatch begins here: what lies before is derived, or nobody has it. The index may stand elsewhere."""
        self.position = offset
        self.index_position = offset if index_position is None else index_position
        self.reached = (offset, last_record)

    def fall_back(self, offset: int, index_position: int) -> None:
        """Queues and index were cut there: go on from there at most."""
        self.position = min(self.position, offset)
        self.index_position = min(self.index_position, self.position, index_position)
        self.reached = (self.position, -1)

    def go_back(self, offset: int) -> None:
        """Derive again what lies behind an offset, where dispatch was there before: queues were dropped that have
        messages there. Those that have their entries leave them."""
        if offset < self.position:
            self.position = offset
            self.reached = (offset, -1)

    def recover(self, limit: int) -> None:
        """Derive everything from `position` (and the index from `index_position`) up to limit.

        Damage in the middle costs the rest of that file's records instead of stopping here. Stands
        below limit afterwards only when the flags say why.
        """
        self._skips_damage = True
        while self.position < limit and self._flags.queue_writable and not self.starved:
            self.step(RECOVERY_RECORDS, limit)
        self._catch_up_index(ALL_RECORDS)
        self._skips_damage = False

    def step(self, records_max: int, limit: int) -> int:
        """Dispatch at most records_max records below the log offset `limit`; how many were.

        Reports arrivals once. Nothing is raised: a full disk makes later calls try again, another
        error stops
        dispatch for good; the flags say so.
        """
        # INV-3
        assert limit <= self._log.end, f"dispatch up to {limit}, the log ends at {self._log.end}"
        arrivals: list[Arrival] | None = None if self.owner.arrived is None else []
        done = 0
        self.starved = False
        if self.index_position < self.position:
            self._catch_up_index(records_max)
        flags = self._flags
        while (
            done < records_max
            and self.position < limit
            and (flags.writable or flags.queue_writable)
        ):
            start = self.position
            index = self._index if self.index_position == start and not self.starved else None
            if start < self.index_position:  # recovery: the index was ahead of the queues
                stop = min(limit, self.index_position)
            else:
                stop = limit
            reached, last_record, derived = self._walk(
                start, stop, records_max - done, self._queues, index, arrivals
            )
            self.position = reached
            self.reached = (reached, last_record if derived.records else self.reached[1])
            if index is not None:
                self.index_position = reached
            if derived.records:
                done += derived.records
                self.stats.store_ms = derived.store_ms
            if derived.failure is not None or derived.stopped == BROKEN:
                if not self._goes_on_after(derived.failure or self._broken(reached)):
                    break
            elif reached == start:
                break
        self.stats.records += done
        if not flags.writable and flags.full and not self.starved:
            flags.clear(Problem.QUEUES_FULL)
        if arrivals and self.owner.arrived is not None:
            self.owner.arrived(arrivals)
        return done

    def _catch_up_index(self, records_max: int) -> None:
        while self._index is not None and self.index_position < self.position:
            start = max(self.index_position, self._log.start)
            reached, _, derived = self._walk(
                start, self.position, records_max, None, self._index, None
            )
            self.index_position = reached
            if derived.failure is not None:
                self._goes_on_after(derived.failure)
                return
            if derived.records >= records_max or reached == start:
                return

    def _walk(
        self,
        start: int,
        limit: int,
        records_max: int,
        queues: Sink | None,
        index: KeyIndex | None,
        arrivals: list[Arrival] | None,
    ) -> tuple[int, int, Derived]:
        """Derive from one segment: log offsets of the next and of the last record, and how."""
        segment = self._log.run.find(start)
        if segment is None:
            # Only retention can do this, to a dispatch that stands still.
            log.error(
                "records deleted before they were dispatched from=%d to=%d", start, self._log.start
            )
            assert start < self._log.start, f"dispatch at {start}, the log ends at {self._log.end}"
            return self._log.start, -1, NOTHING
        base = segment.start
        derived = derive(
            segment.view, start - base, min(segment.wrote, limit - base), base,
            queues, index, self._delay_ms_by_level, arrivals, records_max,
        )  # fmt: skip
        last_record = base + derived.last_record
        if derived.stopped == BLANK:
            return segment.end, last_record, derived
        if derived.stopped == BROKEN and self._skips_damage:
            log.error("log damaged, rest of the file skipped offset=%d", base + derived.position)
            return segment.end, last_record, derived._replace(stopped=MORE)
        return base + derived.position, last_record, derived

    def _broken(self, offset: int) -> CorruptFile:
        return CorruptFile(f"no sound record at log offset {offset}, before the log's end")

    def _goes_on_after(self, failure: Exception) -> bool:
        """Write down what a failure means; whether the queues may go on."""
        full = getattr(failure, "errno", 0) in PASSING_ERRORS
        of_index = isinstance(failure, IndexUnavailable)
        if full:
            self.starved = True
            news = self._flags.set(Problem.QUEUES_FULL, str(failure))
        elif of_index:
            self._index = None  # a restart rebuilds what is missing from here on
            news = self._flags.set(Problem.INDEX_ERROR, str(failure))
        else:
            news = self._flags.set(Problem.QUEUE_ERROR, str(failure))
        if news:
            log.error("store refuses writes until_restart=%s why=%s", not full, failure)
            if not (full or of_index) and self.owner.broken is not None:
                self.owner.broken(str(failure))
        return of_index
