"""What tandemmq.chaos.crowded makes of what it saw."""

from __future__ import annotations

import pytest

from tandemmq.chaos.crowded import without_lease


@pytest.mark.parametrize(
    ("seen", "times", "longest"),
    [
        ([], 0, 0.0),
        ([(1.0, 1500), (1.1, 900)], 0, 0.0),
        ([(1.0, 100), (1.1, 0), (1.3, 0), (1.6, 2000)], 1, 0.5),
        ([(1.0, 0), (1.2, 1900), (2.0, 0), (2.1, 1900)], 2, 0.2),
        ([(1.0, 0), (1.8, 0)], 1, 0.8),  # it had none yet when it was looked at last
    ],
)
def test_a_lease_is_gone_until_one_is_seen_again(
    seen: list[tuple[float, int]], times: int, longest: float
) -> None:
    assert without_lease(seen) == (times, pytest.approx(longest))
