"""Short runs of the campaigns on replicated groups: real processes, real faults, everything judged."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

import pytest

from tandemmq.chaos.campaign import Campaign, GroupOutcome
from tandemmq.chaos.failover import Failover
from tandemmq.chaos.gathering import TOPICS
from tandemmq.chaos.groups import GroupPlan
from tandemmq.chaos.partitions import Partitions
from tandemmq.chaos.replicalogs import read_log
from tandemmq.chaos.steady import Steady
from tandemmq.chaos.switchover import Switchovers
from tandemmq.chaos.traffic import TOPIC, TrafficPlan
from tandemmq.chaos.verdict import judge
from tandemmq.replication.config import Mode

pytestmark = [pytest.mark.system, pytest.mark.timeout(480)]

SEED = 20261121
LOAD = TrafficPlan(producers=2, rate=800)
LIGHT = TrafficPlan(producers=2, rate=200)  # where this process is the network, too
ACKNOWLEDGED_MIN = 100
ROUNDS = 8  # of kills
MASTERS = 15  # killed one by one, beside those
FROZEN = 5
TAKEN_OVER_MS = 1000  # the goal, of kill -9: most of them even beside three lanes of tests
TAKEN_OVER_MS_MAX = 4000  # by a machine with too much to do; a quiet one takes 50
SILENT_MS_MAX = 5000  # the goal, of silence; half of it is waiting for the lease to end


async def good(campaign: Campaign) -> GroupOutcome:
    """Run it; it must have shown something, and all of it good."""
    outcome = await campaign.run()
    print(*outcome.lines(), sep="\n")  # docs/goals.md has what a run shows
    assert outcome.problems == []
    assert outcome.sends["ok"] > ACKNOWLEDGED_MIN
    assert outcome.messages_read > ACKNOWLEDGED_MIN
    assert outcome.verdict is not None
    assert outcome.verdict.log_bytes > 0
    return outcome


async def test_a_sync_group_survives_kills_and_the_loss_of_its_bytes_would_be_found(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    campaign = Failover(GroupPlan(), LOAD, tmp_path, SEED, said.append)
    campaign.rounds, campaign.load_s = ROUNDS, 0.5
    outcome = await good(campaign)
    assert outcome.rounds == ROUNDS
    assert outcome.counts["masters killed"] >= ROUNDS
    whole_before = outcome.samples_ms.get("kill", [])  # none where each kill met a group not whole
    assert max(whole_before, default=0) < TAKEN_OVER_MS_MAX
    assert outcome.verdict is not None
    assert outcome.verdict.reigns >= ROUNDS
    assert len([line for line in said if line.startswith("round")]) == ROUNDS
    stores = [each.store for each in campaign.group.replicas]
    for store in stores:
        forget_newest_messages(store)
    problems = judge(tmp_path / "journal.jsonl", stores, mode=Mode.S0).verdict.problems
    assert any(problem.startswith("LOST") for problem in problems)


def forget_newest_messages(store: Path) -> None:
    """As if the last message of each queue, and all behind the first of them, had never been written."""
    log = read_log(store, TOPICS)
    last = [
        found[-1].offset for (topic, _), found in log.queues.items() if topic == TOPIC and found
    ]
    for path in (store / "commitlog").iterdir():
        start = int(path.name)
        first, end = max(min(last), start), min(log.end, start + path.stat().st_size)
        if first < end:
            with path.open("r+b") as file:
                file.seek(first - start)
                file.write(bytes(end - first))


class MastersDie(Failover):
    """Kills of the master of a group that is whole, and nothing else."""

    @property
    def weights(self) -> Mapping[str, int]:
        return {"master_dies": 1}


async def test_who_loses_one_master_after_the_other_writes_on_within_a_second(
    tmp_path: Path,
) -> None:
    campaign = MastersDie(GroupPlan(), LIGHT, tmp_path, SEED, lambda _: None)
    campaign.rounds, campaign.load_s = MASTERS, 0.2
    outcome = await good(campaign)
    assert outcome.counts["masters killed"] == MASTERS
    took_ms = outcome.samples_ms["kill"]
    assert (
        len(took_ms) >= MASTERS - 3
    )  # a slave that was slow to come back may have left the set again
    assert statistics.median(took_ms) < TAKEN_OVER_MS
    assert max(took_ms) < TAKEN_OVER_MS_MAX


async def test_a_silent_master_is_replaced_and_acknowledges_nothing_when_it_wakes(
    tmp_path: Path,
) -> None:
    campaign = Failover(GroupPlan(), LOAD, tmp_path, SEED, lambda _: None)
    campaign.rounds, campaign.load_s, campaign.fault = FROZEN, 0.5, "stop"
    outcome = await good(campaign)
    assert outcome.counts["frozen"] == FROZEN
    assert statistics.median(outcome.samples_ms["freeze"]) < SILENT_MS_MAX


async def test_an_async_group_loses_no_more_than_it_reports(tmp_path: Path) -> None:
    campaign = Failover(GroupPlan(synchronous=False), LOAD, tmp_path, 3, lambda _: None)
    campaign.rounds, campaign.load_s, campaign.fault = 2, 0.5, "host"
    outcome = await good(campaign)
    assert outcome.counts["masters killed"] == 2
    assert outcome.verdict is not None
    assert outcome.verdict.lost > 0
    assert outcome.verdict.lost <= outcome.verdict.cut_records


async def test_a_partition_between_replicas_changes_no_master(tmp_path: Path) -> None:
    campaign = Partitions(GroupPlan(), LIGHT, tmp_path, SEED, lambda _: None)
    campaign.kinds, campaign.load_s = ("slave_loses_master",), 0.5
    outcome = await good(campaign)
    assert outcome.counts["slave loses master"] == 1


async def test_no_send_fails_while_a_group_is_handed_over(tmp_path: Path) -> None:
    campaign = Switchovers(GroupPlan(), LIGHT, tmp_path, SEED, lambda _: None)
    campaign.stall_ms_max = (
        5000  # other tests keep the machine busy: how fast it is, is measured elsewhere
    )
    campaign.rounds = 2
    outcome = await good(campaign)
    assert outcome.counts["client sends"] > ACKNOWLEDGED_MIN
    assert "client sends failed" not in outcome.counts


async def test_short_pauses_under_full_load_change_no_master(tmp_path: Path) -> None:
    campaign = Steady(GroupPlan(), LIGHT, tmp_path, SEED, lambda _: None)
    campaign.seconds = 5
    outcome = await good(campaign)
    assert outcome.rounds >= 1
    assert outcome.verdict is not None
    assert outcome.verdict.reigns == 1
