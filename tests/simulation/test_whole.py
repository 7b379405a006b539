"""What ships, run whole in simulated time: it keeps its promises, and bugs that only shells can have are found."""

from __future__ import annotations

from collections import Counter

import pytest
from shellbugs import PLANTED, PlantedBug

from tandemmq.chaos.whole import seeds
from tandemmq.chaos.whole.__main__ import main
from tandemmq.chaos.whole.seeds import SeedOutcome, SeedRun, run_seed, run_seeds, shrunk

pytestmark = pytest.mark.simulation

SEEDS = 2000
PART = 250  # of them to a test
BUG_SEEDS_MAX = 60

#: what must have happened in some of each part's seeds, or they prove little
SITUATIONS = {
    "kill", "power", "power_all", "fuse", "fuse_power", "pause", "stop", "partition", "one_way", "isolate",
    "slow_disk", "stalled_disk", "slow_wires", "sync_error", "full", "controller", "consumer", "switch", "reign",
    "loss declared", "nobody can be elected", "operator elects", "check-back", "check-back at another producer",
    "check-back across a failover", "committed across a failover", "timer across a failover",
}  # fmt: skip

#: seeds that found something once, with what it was
KEPT = [
    pytest.param(
        SeedRun(44), id="a producer never heard of the new master before its topic existed"
    ),
    pytest.param(SeedRun(349), id="slots without their log were walked without end"),
]


@pytest.mark.timeout(
    2700
)  # half a minute on two free cores; beside other lanes it gets what they leave
@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_promises_hold_in_every_seed(first: int) -> None:
    marks: Counter[str] = Counter()
    failed: list[SeedOutcome] = []
    acked = 0
    for outcome in run_seeds((SeedRun(seed) for seed in range(first, first + PART)), jobs=2):
        marks.update(outcome.marks)
        acked += outcome.acked
        if outcome.promise:
            failed.append(outcome)
    assert not failed, "\n".join(f"seed {each.seed}: {each.finding}" for each in failed)
    assert marks.keys() >= SITUATIONS, SITUATIONS - marks.keys()
    assert acked > 10 * PART


@pytest.mark.parametrize("run", KEPT)
def test_seeds_that_found_something_stay_quiet(run: SeedRun) -> None:
    assert run_seed(run).finding == ""


def test_a_seed_does_again_what_it_did() -> None:
    first, second = (run_seed(SeedRun(17)) for _ in range(2))
    assert (first.digest, first.events, first.acked) == (second.digest, second.events, second.acked)
    assert run_seed(SeedRun(18)).digest != first.digest


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.plant.__name__)
def test_a_bug_of_shells_is_found(bug: PlantedBug) -> None:
    """By the promise that it breaks; the search begins at a seed that is known to break it."""
    seeds = [bug.seed, *range(BUG_SEEDS_MAX)]
    runs = (SeedRun(seed, mode=bug.mode, plant=bug.plant) for seed in seeds)
    found = next((each for each in run_seeds(runs, jobs=1) if each.promise), None)
    assert found is not None, f"not in {len(seeds)} seeds"
    assert found.promise in bug.breaks, found.finding


def test_a_seed_that_goes_round_and_round_is_found_and_told_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def circle() -> None:
        while True:
            pass

    monkeypatch.setattr(seeds, "CPU_S_MAX", 0.5)
    outcome = run_seed(SeedRun(1, plant=circle))
    assert outcome.promise == "SPINS"
    assert "in circle" in outcome.finding


def test_a_failing_seed_is_shrunk_to_faults_that_matter() -> None:
    bug = next(
        each for each in PLANTED if each.plant.__name__ == "counts_reports_of_the_stream_before"
    )
    run = SeedRun(bug.seed, mode=bug.mode, plant=bug.plant)
    before = run_seed(run)
    least, after = shrunk(run)
    assert after.promise == before.promise
    assert len(least.left_out) < before.faults or before.faults == 1


def test_a_seed_is_replayed_from_the_command_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["whole", "--seed", "3", "--events", "300"])
    assert main() == 0
    assert "seed=3" in capsys.readouterr().out
