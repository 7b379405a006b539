"""Three restarts of our brokers under stock consumers, and under ours beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.chaos.repeats import OURS, STOCK
from tandemmq.chaos.restarts import Settings, campaign


@pytest.mark.timeout(480)
async def test_stock_consumers_get_everything_and_nothing_twice_that_was_on_the_disk(
    java: None, tmp_path: Path
) -> None:
    said: list[str] = []
    outcome = await campaign(Settings(3, 20261123, tmp_path), said.append)
    assert outcome.problems == []
    assert outcome.groups.keys() == {OURS, STOCK}, said
    assert sum(outcome.restarts.values()) == len(said) == 3
    for found in outcome.groups.values():
        assert outcome.sent > 500
        assert 0 <= found.messages - outcome.sent <= outcome.unanswered
