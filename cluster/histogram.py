"""How often something took how long, in fixed buckets: one addition for a batch, and no memory that grows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

#: of durations, in microseconds, inclusive: RocketMQ's (1, 3, 5, 7, 10 ms, 0.1, 1, 2, 3 s) and finer ones between
LATENCY_BOUNDS_US: Final = (
    50, 100, 200, 500, 1_000, 2_000, 3_000, 5_000, 7_000, 10_000, 20_000, 50_000,
    100_000, 200_000, 500_000, 1_000_000, 2_000_000, 3_000_000, 5_000_000, 10_000_000,
)  # fmt: skip


class Histogram:
    """Counts of values by size. For one thread.

    bounds  upper ends of the buckets, inclusive, ascending; one more bucket takes what is larger
    counts  of each bucket by itself; sum: of all values
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[int] = LATENCY_BOUNDS_US) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0

    def add(self, value: int, count: int = 1) -> None:
        """`count` times the same value: a batch costs what one does."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        return sum(self.counts)

    def below(self, bounds: Sequence[int] | None = None) -> list[int]:
        """How many values each bound covers, then how many there are. `bounds`: some of ours."""
        total, sums = 0, []
        for count in self.counts:
            total += count
            sums.append(total)
        if bounds is None:
            return sums
        return [*(sums[self.bounds.index(bound)] for bound in bounds), total]
