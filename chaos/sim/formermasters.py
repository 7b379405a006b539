"""Readers that a former master gave messages of its own: what decision 0010 ("Not kept") lets pass them by.

In the asynchronous modes a master confirms alone what its successor may lack. Until its log is cut, as a slave of that
one, it gives readers what it has. Where the successor has another message at that queue offset, a reader's position
does not say whose it had. It is moved back, unless it comes from no further than the successor had brought its group
before, or a still later reign began; or it was served from there by a slave, which knows of no loss. Then the other
message never reaches its group, and nobody could know.

Just that message is excused: at the offset of one that its group took from a replica that knew no later reign than its
writer's, while the later one lasted in which the missing one was written. What was taken before that reign began is for
the cut to mend with which it begins; and in the synchronous modes there is nothing like it.

The other way round where the successor's log is lost and the former master is elected again, whose log nobody cut: what
it once confirmed alone is confirmed to it, so its cut lies behind that. A group that took the successor's message at an
offset has the former one's there never. That one is excused: below what the new master had confirmed before its reign,
of an earlier reign than the message that its group took there before. Its election is lossy by the controller's record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tandemmq.chaos.sim.tables import Pulled
    from tandemmq.chaos.sim.world import Record


class Taken(NamedTuple):
    """A record that a group took.

    heard     in which reign the replica that gave it was told what is confirmed
    reigning  the highest epoch whose master took messages then
    """

    record: Record
    heard: int
    reigning: int


class FormerMasters:
    """Of one run: what groups took of them, and what they were let pass by for that."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records
        self._taken: dict[tuple[str, int], list[Taken]] = {}  # and may yet be moved back for
        self._passed: list[tuple[str, Taken]] = []
        self._at: dict[tuple[str, int, int], list[Taken]] = {}  # all that was, by queue offset
        self._agreed: dict[
            int, int
        ] = {}  # epoch -> below it its master called all confirmed before
        self.reigning = 0

    def began(self, epoch: int, agreed: int) -> None:
        """A reign whose election was lossy; its master called confirmed what lies below `agreed`."""
        self._agreed[epoch] = agreed

    def answered(self, group: str, queue: int, at: int, found: Pulled) -> None:
        """A reader that stands at `at` got an answer, and goes on from there."""
        left = []
        for taken in self._below(group, queue, at):
            if found.heard <= taken.heard or (found.known is None and not found.records):
                left.append(taken)
            elif found.known is None or at <= found.known:
                self._passed.append((group, taken))
        for number in found.records:
            taken = Taken(self._records[number], found.heard, self.reigning)
            self._at.setdefault((group, queue, taken.record.queue_offset), []).append(taken)
            if taken.heard < taken.reigning:
                left.append(taken)
        if left:
            self._taken[group, queue] = left

    def moved(self, group: str, queue: int, at: int) -> None:
        """A reader was moved to `at`, and takes what is there now."""
        self._taken[group, queue] = self._below(group, queue, at)

    def _below(self, group: str, queue: int, at: int) -> list[Taken]:
        """Forgets what else it took: who stands there reads it again."""
        found = self._taken.pop((group, queue), ())
        return [each for each in found if each.record.queue_offset < at]

    def excuses(self, group: str, record: Record) -> bool:
        """Whether a group may have missed a record for another that it took at this offset."""
        return self._came_back(group, record) or any(
            who == group
            and (taken.queue, taken.queue_offset) == (record.queue, record.queue_offset)
            and taken.epoch <= heard < record.epoch <= reigning
            for who, (taken, heard, reigning) in self._passed
        )

    def _came_back(self, group: str, record: Record) -> bool:
        """Whether it is a former master's that is elected again, in the place of a lost one of its successor's."""
        return any(
            record.epoch < taken.record.epoch <= taken.reigning < epoch and record.end <= agreed
            for taken in self._at.get((group, record.queue, record.queue_offset), ())
            for epoch, agreed in self._agreed.items()
        )
