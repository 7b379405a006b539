"""Brokers that skip messages: real processes with a planted bug, which the campaign must find by its name."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tandemmq.chaos import deliveries, gathering, traffic
from tandemmq.chaos.failover import Failover
from tandemmq.chaos.groups import GroupPlan
from tandemmq.chaos.traffic import TrafficPlan

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

#: what every server of the run executes before anything else
PLANTED = """
    from tandemmq.cluster.broker.sending import delay
    from tandemmq.cluster.broker.tables import cuts

    # consumers beyond the end that a cut left stay there: what is sent to those offsets passes them by
    cuts.Cuts.target = lambda *_: None

    # progress of a delay level is moved on before its message is delivered, and some never are
    deliver, count = delay.DelaySchedule._deliver, 0

    def forgetful(self, *place):
        global count
        count += 1
        return deliver(self, *place) if count % 5 else True

    delay.DelaySchedule._deliver = forgetful
"""


async def test_a_broker_that_skips_messages_is_found_by_the_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text(textwrap.dedent(PLANTED))
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(planted), before])))
    monkeypatch.setattr(deliveries, "STALLED_S", 1.0)
    for module in (deliveries, gathering, traffic):
        monkeypatch.setattr(module, "DELAYS_S", (1.0,))
    plan = GroupPlan(synchronous=False)
    run = tmp_path / "run"
    run.mkdir()
    campaign = Failover(plan, TrafficPlan(producers=2, rate=200), run, 3, lambda _: None)
    campaign.rounds, campaign.load_s, campaign.fault = 1, 0.5, "host"
    outcome = await campaign.run()
    kinds = {problem.split()[0] for problem in outcome.problems}
    assert kinds == {"SKIPPED", "UNDELIVERED"}
    assert outcome.verdict is not None
    assert outcome.verdict.undelivered > 0
