"""Readers that sleep through a loss and the reign after it: what decision 0010 ("Not kept") lets pass them by.

A master knows the cut of its own reign. A reader that did not ask in a reign that began with a cut below it, and comes
to the master of a later one, which has no cut or a higher, is believed where it should go back: it passes over what
came in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tandemmq.chaos.sim.delivery import Reader
    from tandemmq.chaos.sim.world import Record


class Reign(NamedTuple):
    """Of a master: its epoch, and from which queue offset on it moves readers; without a loss what it was asked for."""

    epoch: int
    cut: int


class Slept:
    """Of one run: the cuts that readers have not heard of, and what they were let pass by for that."""

    def __init__(self) -> None:
        self._unheard: dict[tuple[str, int], list[Reign]] = {}
        self._passed: list[tuple[str, int, Reign, int]] = []  # the last: from where it went on

    def lost(self, readers: list[Reader], epoch: int, ends: Mapping[int, int]) -> None:
        """A master's reign begins with cuts: queue -> where; a queue that is not named has its cut at 0."""
        for reader in readers:
            stands = reader.kept | reader.positions
            for queue, position in stands.items():
                cut = ends.get(queue, 0)
                if position > cut:
                    reigns = self._unheard.setdefault((reader.group, queue), [])
                    reigns.append(Reign(epoch, cut))

    def heard(self, group: str, queue: int, master: Reign, at: int) -> bool:
        """A master answered a reader, which goes on at `at`. Whether it was let pass something by."""
        slept = False
        later: list[Reign] = []
        for reign in self._unheard.pop((group, queue), ()):
            if reign.epoch > master.epoch:
                later.append(reign)  # a former master answered, which does not know of it
            elif reign.epoch < master.epoch and reign.cut < min(master.cut, at):
                self._passed.append((group, queue, reign, at))
                slept = True
        if later:
            self._unheard[group, queue] = later
        return slept

    def excuses(self, group: str, record: Record) -> bool:
        """Whether a group may have missed a record: one of a reign whose cut it did not hear of, or later, at what was
        an offset of before."""
        return any(
            group == who
            and record.queue == queue
            and record.epoch >= reign.epoch
            and reign.cut <= record.queue_offset < at
            for who, queue, reign, at in self._passed
        )
