"""The campaign of consumers in order, in small: real masters die under a group whose members come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.chaos.groups import GroupPlan
from tandemmq.chaos.ordering import QUEUES, Ordering
from tandemmq.chaos.traffic import TrafficPlan

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

TAKEN_OVER_MS_MAX = 4000  # by a machine with too much to do; a quiet one takes 50


async def test_no_queue_is_in_two_hands_or_out_of_order_while_masters_die(tmp_path: Path) -> None:
    """INV-45"""
    traffic = TrafficPlan(rate=300, queues=QUEUES)
    campaign = Ordering(GroupPlan(), traffic, tmp_path, 20261124, lambda _: None)
    campaign.rounds, campaign.load_s = 4, 1.0
    outcome = await campaign.run()
    print(*outcome.lines(), sep="\n")  # docs/goals.md has what a run shows
    assert outcome.problems == []
    assert outcome.counts["masters killed"] >= 4
    whole_before = outcome.samples_ms.get("kill", [])  # none where each kill met a group not whole
    assert max(whole_before, default=0) < TAKEN_OVER_MS_MAX
    assert outcome.counts["messages handled in order"] > 1_000
    assert outcome.counts["queues taken over"] > 0
    for replica in campaign.group.replicas:
        assert (replica.store / "config" / "queueLocks.json").exists()
