"""One replica's disk and page cache. What is below `flushed` is durable; the rest survives a crash, not a power cut.

Retention takes whole files from the front: cells stay where they are in the list, those that are gone read GONE.

The log is a list of *cells*, the simulator's bytes: a record takes 1 to 6 cells, a cell is record number * 8 + position
in the record. So the content of two logs is compared with ==, and a torn record is one whose cells are not all there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tandemmq.replication.epochs import EpochHistory

PAGE_CELLS: Final = 4
FILE_CELLS: Final = 12
LOST: Final = -1
GONE: Final = -2


@dataclass(slots=True)
class Disk:
    """What a restart finds.

    start    of the log: retention took what was before
    begun    where the log began when it was empty: it never knew who wrote the byte before
    deleted  what was before `start`, in our log or our first master's: for the judge
    queues   next queue offset of each queue at `start`, as queue files keep it
    holes    ranges that a failed sync left clean but not durable
    stale    what was cut off and is still there below the zeros of the page cache, by offset
    suspect  the mark of a power cut that the controller has not heard of
    lost_power  since the last start
    lineage  the processes that had this store
    files    small ones, by name: each is written whole and at once
    """

    cells: list[int] = field(default_factory=list)
    start: int = 0
    begun: int = 0
    deleted: list[int] = field(default_factory=list)
    queues: dict[int, int] = field(default_factory=dict)
    flushed: int = 0
    history: EpochHistory = field(default_factory=EpochHistory)
    confirmed: int = 0
    suspect: bool = False
    lost_power: bool = False
    lineage: tuple[int, ...] = ()
    sizes: list[int] = field(
        default_factory=list
    )  # of every record of the run, shared by all disks
    holes: list[tuple[int, int]] = field(default_factory=list)
    stale: dict[int, int] = field(default_factory=dict)
    set_aside: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    cuts: int = 0
    files: dict[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.cells)

    def had(self, at: int) -> int:
        """The cell at an offset, also when it was deleted."""
        return self.cells[at] if at >= self.start else self.deleted[at]

    def boundary(self, offset: int) -> int:
        """The largest record boundary at or below an offset: where an incomplete record would be cut."""
        if offset <= self.start:
            return self.start
        last = self.cells[offset - 1]
        position = last & 7
        return offset if position + 1 == self.sizes[last >> 3] else offset - position - 1

    def begin(self, deleted: list[int], queues: dict[int, int]) -> None:
        """An empty log begins where that of its master does by now."""
        start = len(deleted)
        self.cells, self.deleted, self.queues = [GONE] * start, deleted, queues
        self.begun = self.start = self.flushed = self.confirmed = start

    @property
    def log(self) -> list[int]:
        """All that ever was."""
        return self.deleted + self.cells[self.start :]

    def file_starts(self, end: int) -> list[int]:
        """Where files begin, the first one left out, that lie below `end`: each with a whole record."""
        places = range(self.start // FILE_CELLS + 1, end // FILE_CELLS + 1)
        starts = {self.boundary(place * FILE_CELLS) for place in places}
        return sorted(start for start in starts if self.start < start < len(self.cells))

    def drop_before(self, start: int) -> None:
        """Retention. What was there was durable, and confirmed."""
        assert self.start < start <= self.flushed, (self.start, start, self.flushed)
        self.deleted += self.cells[self.start : start]
        self.cells[self.start : start] = [GONE] * (start - self.start)
        self.start = start
        self.confirmed = max(self.confirmed, start)

    def empty(self) -> None:
        """A person moves the store away, and says so to the controller."""
        self.set_aside.append((0, tuple(self.log)))
        self.cells, self.deleted, self.holes, self.queues, self.stale = [], [], [], {}, {}
        self.begun = self.start = self.flushed = self.confirmed = 0
        self.history = EpochHistory()
        self.files.clear()
        self.suspect = True
        self.cuts += 1

    def snapshot(self) -> Disk:
        """What an administrator keeps, and may put back."""
        return replace(
            self, cells=list(self.cells), deleted=list(self.deleted), queues=dict(self.queues), holes=[], stale={},
            set_aside=[], files=dict(self.files),
        )  # fmt: skip

    def go_back(self, to: Disk) -> int:
        """A snapshot is put back, or nothing: up to where the log is what it was."""
        shared = 0
        for mine, theirs in zip(self.cells, to.cells, strict=False):
            if mine != theirs:
                break
            shared += 1
        self.cells, self.deleted, self.queues = list(to.cells), list(to.deleted), dict(to.queues)
        self.holes, self.stale = [], {}
        self.start, self.begun, self.history = to.start, to.begun, to.history
        self.flushed, self.confirmed = len(to.cells), to.confirmed
        self.suspect, self.lineage = to.suspect, to.lineage
        self.cuts += 1
        return shared

    def truncate(self, end: int) -> None:
        """Durable: it is synced before this returns."""
        assert self.start <= end <= len(self.cells), (self.start, end, len(self.cells))
        self.stale.update(
            zip(range(end, self.flushed), self.cells[end : self.flushed], strict=True)
        )
        self.sync_cut()
        del self.cells[end:]
        self.cuts += 1
        self.flushed = min(self.flushed, end)
        self.confirmed = min(self.confirmed, end)

    def sync_cut(self) -> None:
        """INV-40: also when all that stays was flushed before."""
        self.stale.clear()

    def flush(self, end: int) -> None:
        self.flushed = max(self.flushed, min(end, len(self.cells)))
        self.stale.clear()

    def cut_power(self, rng: random.Random) -> int:
        """Lose what was not durable: each page old, new or torn on its own. The cells that were lost."""
        before = len(self.cells)
        survived = list(self.cells)
        at, reach = self.flushed, max(before, max(self.stale, default=-1) + 1)
        survived += [LOST] * (reach - before)
        while at < reach:
            stop = min((at // PAGE_CELLS + 1) * PAGE_CELLS, reach)
            fate = rng.random()
            if fate < 0.4:
                survived[at:stop] = self._old(at, stop)
            elif fate < 0.6:
                torn = rng.randint(at, stop)
                survived[torn:stop] = self._old(torn, stop)
            at = stop
        for start, stop in self.holes:
            survived[start:stop] = [LOST] * len(survived[start:stop])
        self.cells = survived
        self.holes = []
        self.stale.clear()
        self.recover()
        return before - len(self.cells)

    def _old(self, start: int, stop: int) -> list[int]:
        """What the disk has of cells that were not synced."""
        return [self.stale.get(at, LOST) for at in range(start, stop)]

    def recover(self) -> None:
        """Keep what is whole from the start on; a record behind a hole is not used, however whole it looks."""
        cells = self.cells
        at = self.start
        while at < len(cells):
            first = cells[at]
            if first == LOST or first & 7:
                break
            size = self.sizes[first >> 3]
            if cells[at : at + size] != list(range(first, first + size)):
                break
            at += size
        del cells[at:]
        self.flushed = min(self.flushed, at)
        self.confirmed = min(self.confirmed, at)
        self.history = self.history.cut(at)
