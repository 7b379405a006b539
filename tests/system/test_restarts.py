"""Three restarts of brokers under a group of our consumers: nothing is lost, nothing comes again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.chaos.repeats import ON_THE_WAY, OURS
from tandemmq.chaos.restarts import KILL, LOCAL, TERM, Settings, campaign

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


async def test_consumers_that_live_through_restarts_keep_their_place(tmp_path: Path) -> None:
    said: list[str] = []
    outcome = await campaign(Settings(3, 20261123, tmp_path, java=False), said.append)
    assert outcome.problems == []
    assert outcome.restarts == {KILL: 1, TERM: 1, LOCAL: 1}
    found = outcome.groups[OURS]
    assert outcome.sent > 500
    beyond = found.delivered - found.repeated - outcome.sent
    assert 0 <= beyond <= outcome.unanswered
    assert found.repeated <= ON_THE_WAY, "it was a third of all, while two members read the same"
    assert found.set_back, "a broker that was killed has forgotten what was committed last"
    assert len(said) == 3
