"""cluster/histogram.py: fixed buckets, one addition for a batch."""

from __future__ import annotations

import time
from collections.abc import Callable

from tandemmq.cluster.histogram import LATENCY_BOUNDS_US, Histogram
from tandemmq.cluster.metrictable import METRICS, RPC_BOUNDS_US


def test_a_bound_covers_what_is_as_large() -> None:
    found = Histogram((10, 20))
    for value in (0, 10, 11, 20, 21, 1_000_000):
        found.add(value)
    assert found.counts == [2, 2, 2] and found.below() == [2, 4, 6]
    assert found.sum == 1_000_062 and found.count == 6


def test_a_batch_is_one_addition() -> None:
    one, many = Histogram(), Histogram()
    one.add(1_234, 32)
    for _ in range(32):
        many.add(1_234)
    assert (one.counts, one.sum) == (many.counts, many.sum)


def test_some_of_its_bounds_are_shown_without_counting_twice() -> None:
    found = Histogram()
    for value in (400, 900, 2_500, 60_000, 99_000_000):
        found.add(value)
    assert found.below((1_000, 3_000, 100_000)) == [2, 3, 4, 5]


def test_buckets_that_are_shown_are_buckets_that_are_counted() -> None:
    assert set(RPC_BOUNDS_US) <= set(LATENCY_BOUNDS_US)
    for metric in METRICS:
        assert not (metric.bounds and metric.name.endswith("_total"))
        assert list(metric.bounds) == sorted(set(metric.bounds))


def test_an_addition_costs_no_more_than_a_few_calls_of_a_function_that_does_nothing() -> None:
    """A commit of a batch makes one, and takes a hundred times as long."""
    found = Histogram()

    def nothing(value: int) -> None:
        pass

    def cost_s(work: Callable[[int], object]) -> float:
        best = float("inf")
        for _ in range(5):
            began = time.thread_time()
            for value in range(20_000):
                work(value)
            best = min(best, time.thread_time() - began)
        return best

    assert cost_s(found.add) < 10 * cost_s(nothing)
