"""chaos/steady.py: what counts as one stall."""

from __future__ import annotations

import pytest

from tandemmq.chaos.steady import longest_ms
from tandemmq.chaos.traffic import Stall


@pytest.mark.parametrize(
    ("stalls_ms", "longest"),
    [
        ([], 0),
        ([(100, 1600)], 1500),
        ([(100, 1600), (1610, 2700)], 2600),  # a trickle in between: one
        ([(1610, 2700), (100, 1600)], 2600),  # in whichever order
        ([(0, 1344), (3212, 3703)], 1344),  # a second later: another
        ([(-513, 682), (682, 2265)], 2265),  # what was before is not this cause's
        ([(-800, -400), (10, 300)], 290),
    ],
)
def test_pieces_of_a_stall_are_one_and_a_later_one_is_another(
    stalls_ms: list[tuple[int, int]], longest: float
) -> None:
    began_ns = 5_000_000_000
    stalls = [Stall(began_ns + a * 10**6, began_ns + b * 10**6) for a, b in stalls_ms]
    assert longest_ms(stalls, began_ns) == longest
