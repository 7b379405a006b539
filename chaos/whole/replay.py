"""The differential check: a schedule that real processes lived through, in simulated time, ends in the same verdict.

What runs is the same, servers and clients that ship, and what is done to it is the same; clock, disks and network are
not. Where the verdicts differ, either the simulation is not like what it simulates, or one of them was lucky.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tandemmq.chaos.checking.findings import INVALID, UNKNOWN, VALID
from tandemmq.chaos.scenarios.schedule import Schedule
from tandemmq.chaos.whole.judge import Promise
from tandemmq.chaos.whole.seeds import Plant, SeedOutcome, SeedRun, run_seeds

SCHEDULE: Final = "schedule.json"
REPORT: Final = "report.json"
#: a promise of the simulation -> the checker of a history that says the same (tandemmq.chaos.checking.findings)
CHECK_OF: Final = {
    Promise.LOST: "C-1", Promise.COPIES: "C-1", Promise.FLUSHED: "C-1", Promise.REWRITTEN: "C-4",
    Promise.FOREIGN: "C-2", Promise.EARLY: "C-18", Promise.UNDONE: "C-18", Promise.TWICE: "C-9",
    Promise.ASKED: "C-18", Promise.ORDER: "C-8", Promise.DIVERGED: "C-15", Promise.STUCK: "C-17",
    Promise.FORKED: "C-15", Promise.ALARM: "C-17", Promise.DIED: "C-17", Promise.UNHANDLED: "C-17",
}  # fmt: skip


@dataclass(slots=True)
class Verdict:
    """word: VALID, INVALID or UNKNOWN. broken: checkers that found something, and how often."""

    word: str
    broken: Counter[str] = field(default_factory=Counter)
    doubts: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    acknowledged: int = 0
    faults: int = 0

    def __str__(self) -> str:
        broken = f" by {', '.join(sorted(self.broken))}" if self.broken else ""
        return f"{self.word}{broken}: {self.acknowledged:,} acknowledged, {self.faults} faults"


def agree(real: Verdict, simulated: Verdict) -> bool:
    """The same word; where something is broken, the same of it."""
    if INVALID in (real.word, simulated.word):
        return real.word == simulated.word and not real.broken.keys().isdisjoint(simulated.broken)
    return real.word == simulated.word


def simulated(
    schedule: Schedule, seeds: Iterable[int], jobs: int = 1, plant: Plant | None = None
) -> Verdict:
    """The schedule, once for each seed: what it leaves to chance (delays, drifts, the load) is drawn from that."""
    runs = (SeedRun(seed, plant=plant, schedule=schedule) for seed in seeds)
    found = Verdict(VALID)
    for outcome in run_seeds(runs, jobs=jobs):
        found.acknowledged += outcome.acked
        found.faults += outcome.faults
        found.doubts += [f"seed {outcome.seed}: {each}" for each in outcome.doubts]
        if outcome.promise:
            found.findings.append(f"seed {outcome.seed}: {outcome.finding}")
            found.broken[_check(outcome)] += 1
    found.word = INVALID if found.findings else UNKNOWN if found.doubts else VALID
    return found


def _check(outcome: SeedOutcome) -> str:
    """What is no promise (the simulation broke, or went round and round) goes by its own name."""
    if outcome.promise in Promise.__members__:
        return CHECK_OF[Promise[outcome.promise]]
    return outcome.promise


def on_real_processes(directory: Path) -> Verdict:
    """What report.json says. Raises OSError, ValueError."""
    told: dict[str, Any] = json.loads((directory / REPORT).read_bytes())
    try:
        broken = Counter(
            {each["id"]: each["findings"] for each in told["checks"] if each["findings"]}
        )
        return Verdict(
            told["verdict"], broken, told["doubts"], [each["text"] for each in told["findings"]],
            told["acknowledged"], len(told["faults"]),
        )  # fmt: skip
    except (KeyError, TypeError) as problem:
        raise ValueError(f"{directory / REPORT} is no report: {problem!r}") from None
