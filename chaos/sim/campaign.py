"""Many seeds in several processes, with progress, and the seeds that failed."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tandemmq.chaos.sim.world import Outcome, Parts, simulate
from tandemmq.replication.config import Mode

CHUNK_SEEDS: Final = 25


@dataclass(slots=True)
class Campaign:
    """Sums over all seeds. marks: situation -> number of seeds that met it."""

    seeds: int = 0
    events: int = 0
    acked: int = 0
    reigns: int = 0
    faults: int = 0
    seconds: float = 0.0
    marks: dict[str, int] = field(default_factory=dict)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.events += outcome.events
        self.acked += outcome.acked
        self.reigns += outcome.reigns
        self.faults += outcome.faults
        for situation in outcome.marks:
            self.marks[situation] = self.marks.get(situation, 0) + 1


def attempt(
    seed: int,
    events: int,
    mode: Mode | None = None,
    parts: Parts | None = None,
    *,
    rolling: bool = False,
) -> Outcome | str:
    """A seed's outcome, or what is wrong with it."""
    try:
        return simulate(seed, events, mode=mode, parts=parts, rolling=rolling)
    except (
        Exception
    ) as problem:  # a finding, whatever it is: violation, assertion, or a mistake in the code
        return f"{type(problem).__name__}: {problem}"


def _chunk(
    work: tuple[list[int], int, Mode | None, Parts | None, bool],
) -> list[tuple[int, Outcome | str]]:
    logging.getLogger("tandemmq.cluster").setLevel(
        logging.CRITICAL
    )  # what the tables' own modules say
    seeds, events, mode, parts, rolling = work
    return [(seed, attempt(seed, events, mode, parts, rolling=rolling)) for seed in seeds]


def campaign(
    seeds: range,
    events: int,
    *,
    mode: Mode | None = None,
    parts: Parts | None = None,
    rolling: bool = False,
    jobs: int = 2,
    progress: Callable[[str], None] | None = None,
) -> Campaign:
    """Run every seed; a failure does not stop the others."""
    started = time.monotonic()
    found = Campaign()
    numbers = list(seeds)
    work = [
        (numbers[at : at + CHUNK_SEEDS], events, mode, parts, rolling)
        for at in range(0, len(numbers), CHUNK_SEEDS)
    ]
    done = 0
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for chunk in pool.imap_unordered(_chunk, work):
            for seed, outcome in chunk:
                done += 1
                if isinstance(outcome, str):
                    found.failures.append((seed, outcome))
                    if progress is not None:
                        progress(f"FAILED seed {seed}: {outcome.splitlines()[0]}")
                else:
                    found.add(outcome)
            if progress is not None and done % (CHUNK_SEEDS * 20) == 0:
                seconds = time.monotonic() - started
                progress(
                    f"{done} of {len(numbers)} seeds, {len(found.failures)} failed, {seconds:.0f} s"
                )
    found.failures.sort()
    found.seconds = time.monotonic() - started
    return found
