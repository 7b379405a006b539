"""Transactions while producers and masters are killed: a short run of the campaign, and a master that takes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.chaos.groups import GroupPlan
from tandemmq.chaos.transactions import SETTINGS, TransactionsCampaign

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


async def test_every_committed_transaction_is_there_once_though_masters_and_producers_die(
    tmp_path: Path,
) -> None:
    campaign = TransactionsCampaign(
        GroupPlan(settings=SETTINGS), tmp_path, 1, lambda _: None, count=250, rate=60,
        pause_s=(0.5, 1.5),
    )  # fmt: skip
    outcome = await campaign.run()
    assert outcome.problems == []
    assert outcome.masters_killed and outcome.producers_killed
    assert outcome.decided >= 250 and outcome.delivered == outcome.committed > 100
    assert outcome.questions and outcome.confirmed_ends
