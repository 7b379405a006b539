"""The local engine: the passes over bytes in threads of this process. No Spark, no JVM.

The kernel and the digests release the interpreter lock, so threads are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandemmq.replication.audit.blocks import Block, Range, differing_ranges, digest_replica
from tandemmq.replication.audit.islands import Compared, find_islands
from tandemmq.replication.audit.kernel import Island
from tandemmq.replication.audit.plan import Level1, Options
from tandemmq.replication.audit.rangecheck import Interval, RangeReport, Shelf, check_range
from tandemmq.replication.audit.stores import ReplicaStore

#: above this a machine's cores are busy long enough for a JVM's start not to matter
LOCAL_BYTES_MAX: Final = 20 << 30


class LocalEngine:
    """Runs an audit's passes here."""

    name = "local"

    def __init__(self, workers: int = 2) -> None:
        self._workers = workers
        self._known: dict[tuple[str, int, int], list[Block]] = {}

    def compare(
        self, reference: ReplicaStore, replica: ReplicaStore, start: int, end: int
    ) -> Level1:
        mine = self._digests(reference, start, end)
        theirs = self._digests(replica, start, end)
        return Level1(
            differing_ranges(mine, theirs, start, end, reference.segment_bytes),
            sum(block.size for block in mine) + sum(block.size for block in theirs),
            len(theirs),
            {reference.name: mine, replica.name: theirs},
        )

    def _digests(self, replica: ReplicaStore, start: int, end: int) -> list[Block]:
        """The reference is compared with each replica, and read once."""
        key = (replica.name, start, end)
        if key not in self._known:
            self._known[key] = digest_replica(replica, start, end, self._workers)
        return self._known[key]

    def islands(
        self,
        reference: ReplicaStore,
        replica: ReplicaStore,
        ranges: Sequence[Range],
        end: int,
        compared: Compared,
    ) -> list[Island]:
        return find_islands(reference, replica, ranges, end, compared)

    def checks(
        self,
        reference: ReplicaStore,
        shelves: Sequence[Shelf],
        islands: Sequence[Interval],
        start: int,
        options: Options,
    ) -> list[RangeReport]:
        return [
            check_range(reference, shelves, islands, start, reference.end, options.delay_levels)
        ]

    def close(self) -> None:
        """Its threads end with each pass."""
