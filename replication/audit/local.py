"""The local engine: the passes over bytes in threads of this process. No Spark, no JVM.

The kernel and the digests release the interpreter lock, so threads are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from replication.audit.blocks import Block, Range, digest_replica
from replication.audit.islands import Compared, find_islands
from replication.audit.kernel import Island
from replication.audit.plan import Options
from replication.audit.rangecheck import Interval, RangeReport, Shelf, check_range
from replication.audit.stores import Replica

#: above this a machine's cores are busy long enough for a JVM's start not to matter
LOCAL_BYTES_MAX: Final = 20 << 30


class LocalEngine:
    """Runs an audit's passes here."""

    name = "local"

    def __init__(self, workers: int = 2) -> None:
        self._workers = workers

    def digests(self, replica: Replica, start: int, end: int) -> list[Block]:
        return digest_replica(replica, start, end, self._workers)

    def islands(
        self,
        reference: Replica,
        replica: Replica,
        ranges: Sequence[Range],
        end: int,
        compared: Compared,
    ) -> list[Island]:
        return find_islands(reference, replica, ranges, end, compared)

    def checks(
        self,
        reference: Replica,
        shelves: Sequence[Shelf],
        islands: Sequence[Interval],
        start: int,
        options: Options,
    ) -> list[RangeReport]:
        return [
            check_range(reference, shelves, islands, start, reference.end, options.delay_levels)
        ]
