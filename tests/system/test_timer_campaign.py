"""The campaign of timed messages on a replicated group, in small: a failover, a restart, and both replicas killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.chaos.promises import figures
from tandemmq.chaos.timers import LATE_MS_MAX, TimerRun

pytestmark = pytest.mark.system


async def test_no_timed_message_is_lost_early_or_twice_while_masters_die(tmp_path: Path) -> None:
    """INV-53"""
    outcome = await TimerRun(tmp_path, 7, 800, 9.0, lambda text: None).run()
    assert outcome.good, outcome.problems
    assert outcome.timers == 800
    assert len(outcome.outages) == 3
    assert outcome.served_ms["p99"] < LATE_MS_MAX


def test_what_is_judged_is_told_in_figures() -> None:
    assert figures([]) == {"count": 0}
    assert figures([3.0, 1.0, 2.0])["max"] == 3.0
