"""Pairs without a controller, by brokers and clients that ship: each mode keeps its promise, whatever a person does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tandemmq.chaos.whole.seeds import SeedRun, run_seed, run_seeds
from tandemmq.replication.config import Mode

pytestmark = pytest.mark.simulation

SEEDS = 8  # in each mode; `python -m tandemmq.chaos.whole --seeds A..B` has one beside every fourth of its seeds
EVENTS = 3000
#: seeds that broke a promise once, as `python -m tandemmq.chaos.whole --seed N --classic` runs them
#: 204: readers of a group that had committed nothing yet were moved back, and dropped what they had not consumed
FAILED_ONCE = (204,)
SEEDS_MAX = 40  # until all of this has happened:
SITUATIONS = {
    "power", "promote", "two logs", "slave made the master", "log to be cut by the operator's word",
    "slave seeded anew", "acknowledged message lost within the promise",
}  # fmt: skip


@pytest.mark.timeout(1800)
def test_a_classic_pair_keeps_what_its_mode_promises() -> None:
    """INV-36."""
    marks: Counter[str] = Counter()

    def runs() -> Iterator[SeedRun]:
        for seed in range(SEEDS_MAX):
            if seed >= SEEDS and marks.keys() >= SITUATIONS:
                return
            for mode in Mode:
                yield SeedRun(seed, EVENTS, mode, classic=True)

    for outcome in run_seeds(runs(), jobs=2):
        assert not outcome.promise, f"--classic --seed {outcome.seed} {outcome.finding}"
        assert outcome.acked > 0
        marks.update(outcome.marks)
    assert marks.keys() >= SITUATIONS, SITUATIONS - marks.keys()


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_what_failed_once_holds(seed: int) -> None:
    outcome = run_seed(SeedRun(seed, classic=True))
    assert not outcome.promise, outcome.finding


def test_a_pair_s_seed_does_again_what_it_did() -> None:
    first, second = (run_seed(SeedRun(5, 500, classic=True)).digest for _ in range(2))
    assert first == second != run_seed(SeedRun(5, 500)).digest
