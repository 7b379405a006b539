"""bench/modes.py: which turns count, and what is made of them."""

from __future__ import annotations

import math

import pytest

from bench.load import Run
from bench.modes import (
    DEEP,
    MODES,
    STOLEN_MAX,
    WIDE,
    Row,
    Turn,
    keep_turns,
    quantile,
    ratio_of,
    report,
)


def turn(rate: float, stolen_share: float = 0.0) -> Turn:
    values = dict.fromkeys(Run.__dataclass_fields__, 1.0)
    return Turn(Run(**{**values, "rate": rate, "stolen_share": stolen_share}), 1.0)  # type: ignore[arg-type]


def test_ratio_is_that_of_all_turns_and_its_error_that_of_pairs() -> None:
    ratio, error = ratio_of([[90.0, 92.0], [80.0, 78.0]], [[100.0, 100.0], [100.0, 100.0]])
    assert ratio == pytest.approx(0.85)
    assert error == pytest.approx(0.06)  # the pairs have 0.91 and 0.79: sd / sqrt(2)
    same, none = ratio_of([[90.0, 80.0], [80.0, 90.0]], [[100.0, 100.0], [100.0, 100.0]])
    assert (same, none) == (pytest.approx(0.85), pytest.approx(0.0))


def test_a_pair_of_which_fewer_turns_count_weighs_less() -> None:
    ratio, _ = ratio_of([[90.0], [80.0, 80.0, 80.0]], [[100.0], [100.0, 100.0, 100.0]])
    assert ratio == pytest.approx(330 / 400)


def test_one_pair_says_nothing_of_the_error() -> None:
    ratio, error = ratio_of([[90.0]], [[100.0]])
    assert ratio == pytest.approx(0.9) and math.isnan(error)


def test_turns_that_the_host_disturbed_are_left_out_on_both_sides() -> None:
    rows = {mode: Row(WIDE, mode, [[]]) for mode in MODES}
    keep_turns(rows, {"async": turn(100), "sync": turn(90)})
    keep_turns(rows, {"async": turn(100), "sync": turn(10, STOLEN_MAX * 1.01)})
    keep_turns(rows, {"async": turn(10, STOLEN_MAX * 1.01), "sync": turn(90)})
    keep_turns(rows, {"async": turn(102), "sync": turn(92, STOLEN_MAX)})
    assert (rows["async"].rates, rows["sync"].rates) == ([[100, 102]], [[90, 92]])


def test_a_pair_without_a_turn_that_counts_is_none() -> None:
    row = Row(WIDE, "sync", [[turn(90)], [], [turn(80)]])
    assert row.rates == [[90], [80]]
    assert row.median_rate == 85 and row.best.rate == 90


def test_report_says_what_was_missed() -> None:
    rows = [
        Row(load, mode, [[turn(rate)]])
        for load in (WIDE, DEEP)
        for mode, rate in (("async", 100.0), ("sync", 87.0))
    ]
    text, missed = report(rows, [1.0] * 99 + [9.0], rate=50)
    assert [each.split(":")[0] for each in missed] == [WIDE.name]
    assert "0.870 +- nan" in text and "MISSED" in text and "met" in text
    _, missed = report(rows, [11.0] * 100, rate=50)
    assert len(missed) == 2 and "lag" in missed[1]


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 51), (0.99, 100), (1.0, 100)])
def test_quantile(share: float, expected: float) -> None:
    assert quantile([float(each) for each in range(100, 0, -1)], share) == expected
