"""One replica's disk and page cache. What is below `flushed` is durable; the rest survives a crash, not a power cut.

The log is a list of *cells*, the simulator's bytes: a record takes 1 to 6 cells, a cell is record number * 8 + position
in the record. So the content of two logs is compared with ==, and a torn record is one whose cells are not all there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from replication.epochs import EpochHistory

PAGE_CELLS: Final = 4
LOST: Final = -1


@dataclass(slots=True)
class Disk:
    """What a restart finds.

    holes    ranges that a failed sync left clean but not durable
    suspect  the mark of a power cut that the controller has not heard of
    """

    cells: list[int] = field(default_factory=list)
    flushed: int = 0
    history: EpochHistory = field(default_factory=EpochHistory)
    confirmed: int = 0
    suspect: bool = False
    sizes: list[int] = field(
        default_factory=list
    )  # of every record of the run, shared by all disks
    holes: list[tuple[int, int]] = field(default_factory=list)
    set_aside: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    cuts: int = 0

    @property
    def end(self) -> int:
        return len(self.cells)

    def boundary(self, offset: int) -> int:
        """The largest record boundary at or below an offset: where an incomplete record would be cut."""
        if offset == 0:
            return 0
        last = self.cells[offset - 1]
        position = last & 7
        return offset if position + 1 == self.sizes[last >> 3] else offset - position - 1

    def truncate(self, end: int) -> None:
        """Durable: the mark is synced before this returns."""
        assert end <= len(self.cells), (end, len(self.cells))
        del self.cells[end:]
        self.cuts += 1
        self.flushed = min(self.flushed, end)
        self.confirmed = min(self.confirmed, end)

    def flush(self, end: int) -> None:
        self.flushed = max(self.flushed, min(end, len(self.cells)))

    def cut_power(self, rng: random.Random) -> int:
        """Lose what was not durable: each page old, new or torn on its own. The cells that were lost."""
        before = len(self.cells)
        survived = list(self.cells)
        at = self.flushed
        while at < before:
            stop = min((at // PAGE_CELLS + 1) * PAGE_CELLS, before)
            fate = rng.random()
            if fate < 0.4:
                survived[at:stop] = [LOST] * (stop - at)
            elif fate < 0.6:
                torn = rng.randint(at, stop)
                survived[torn:stop] = [LOST] * (stop - torn)
            at = stop
        for start, stop in self.holes:
            survived[start:stop] = [LOST] * len(survived[start:stop])
        self.cells = survived
        self.holes = []
        self.recover()
        return before - len(self.cells)

    def recover(self) -> None:
        """Keep what is whole from the start on; a record behind a hole is not used, however whole it looks."""
        cells = self.cells
        at = 0
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
