"""Many power cuts: one seed is one workload, with cuts at random calls of it, several of each moment."""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tandemmq.chaos.powercut.disk import Disk, Names
from tandemmq.chaos.powercut.judge import judge
from tandemmq.chaos.powercut.slave import Slave
from tandemmq.chaos.powercut.tables import Tables, judge_tables
from tandemmq.chaos.powercut.workload import FEW, Expected, Place, Workload

MEMORY: Final = Path("/dev/shm")  # a file system in memory: a cut takes milliseconds there

Slice = tuple[int, int, Path | None]  # first seed, cuts, keep


@dataclass(frozen=True, slots=True)
class Manner:
    """How workloads are drawn and cut.

    slaves, tables  shares of the workloads that are a slave's, and those with small files of replica and controller
    bursts          share of the others with bursts
    weights         of the steps, instead of all in their proportions
    few             three queues are used, and not now and then only
    moments         share of the calls at which power fails
    second_every    every so manieth cut recovery and the life after it are cut as well
    thorough_every  every so manieth cut is judged with everything that there is
    any_order_every every so manieth cut may leave names in any order
    """

    slaves: float = 0.25
    tables: float = 0.25
    bursts: float = 0.1
    weights: dict[str, int] | None = None
    few: bool = False
    steps: int = 60
    moments: float = 0.25
    cuts_per_moment: int = 3
    second_every: int = 29
    second_steps: int = 6
    second_moments: float = 0.12
    thorough_every: int = 5
    any_order_every: int = 3


USUAL: Final = Manner()


@dataclass(frozen=True, slots=True)
class Finding:
    """What went wrong: replay it with the same seed, it is cut number `cut` of it."""

    seed: int
    cut: int
    problem: str
    where: str


@dataclass(slots=True)
class Outcome:
    """Sums over seeds. second: cuts while a store recovered from one, or went on after it."""

    seeds: int = 0
    cuts: int = 0
    second: int = 0
    moments: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.seeds += other.seeds
        self.cuts += other.cuts
        self.second += other.second
        self.moments += other.moments
        self.findings += other.findings


class Enough(Exception):
    """As many cuts as were asked for, or a finding: this workload ends."""


class Trial:
    """One seed: its workload, and what is cut and judged meanwhile."""

    def __init__(
        self, seed: int, outcome: Outcome, cuts_max: int, keep: Path | None, manner: Manner
    ) -> None:
        self._seed = seed
        self._outcome = outcome
        self._cuts_max = cuts_max
        self._keep = keep
        self._manner = manner
        self._number = 0
        self._over = False
        self._judges = judge
        self._lots = random.Random(~seed)
        self._base = Path(tempfile.mkdtemp(prefix="powercut-", dir=MEMORY if MEMORY.is_dir() else None))  # fmt: skip
        self._boots: list[Path] = []
        for number in range(3):  # the machine goes down twice at most
            self._boots.append(self._base / f"boot{number}")
            self._boots[-1].write_text(f"{number}")
        self._disk = Disk(self._base / "disk")
        self._disk.base.mkdir()

    def run(self) -> None:
        manner = self._manner
        rng = random.Random(self._seed)
        lot = rng.random()
        kind: type[Workload] = Workload
        if lot < manner.slaves + manner.tables:
            kind = Slave if lot < manner.slaves else Tables
            self._judges = judge_tables if kind is Tables else judge
        place = Place(self._disk.base / "store", self._boots[0], rng, self._disk.quiet)
        workload = kind(place, manner.weights)
        if manner.few or rng.random() < 0.2:
            workload.queues = FEW
        if manner.weights is None and rng.random() < manner.bursts and kind is Workload:
            workload.weights["burst"] = 2
        try:
            with contextlib.suppress(Enough), self._disk:
                self._disk.on_call = lambda: self._cut_now(workload)
                workload.run(manner.steps)
        finally:
            shutil.rmtree(self._base)
        self._outcome.seeds += 1

    def _cut_now(self, workload: Workload) -> None:
        manner = self._manner
        if self._over or self._lots.random() > manner.moments:
            return
        self._outcome.moments += 1
        moment = self._disk.moment()
        for _ in range(manner.cuts_per_moment):
            number = self._count()
            after = self._base / "after"
            lots = random.Random(self._seed << 32 | number)
            self._disk.cut_power(lots, after, moment, self._names(number, workload))
            try:
                lives = self._judges is judge and len(workload.expected.logs) == 1
                if lives and number % manner.second_every == 0:
                    self._live_again(after, workload, lots)
                else:
                    self._judge(after, workload.expected, number)
            finally:
                shutil.rmtree(after)

    def _live_again(self, after: Path, before: Workload, lots: random.Random) -> None:
        """Recover, go on, and have the power fail meanwhile, again."""
        disk = Disk(after)
        place = Place(after / "store", self._boots[1], lots, disk.quiet)
        workload = before.successor(place)
        workload.clock.ms = before.clock.ms
        manner = self._manner

        def cut() -> None:
            if self._over or self._lots.random() > manner.second_moments:
                return
            number = self._count()
            self._outcome.second += 1
            again = self._base / "again"
            lots = random.Random(self._seed << 32 | number)
            disk.cut_power(lots, again, None, self._names(number, workload))
            try:
                self._judge(again, workload.expected, number, boot=2)
            finally:
                shutil.rmtree(again)

        number = self._number
        with disk:
            disk.on_call = cut
            try:
                workload.live_again(before.expected, manner.second_steps)
            except Enough:
                raise
            except Exception as problem:  # it cannot go on, for whatever reason
                self._found(number, problem)

    def _names(self, number: int, workload: Workload) -> Names:
        # A gap among many new files of one queue costs offsets, no messages: not judged where names have no order.
        ordered = number % self._manner.any_order_every or workload.weights.get("burst")
        return Names.IN_ORDER if ordered else Names.ANY_ORDER

    def _count(self) -> int:
        if self._outcome.cuts >= self._cuts_max:
            self._over = True
            raise Enough
        self._outcome.cuts += 1
        self._number += 1
        return self._number

    def _judge(self, after: Path, expected: Expected, number: int, boot: int = 1) -> None:
        keep = self._keep
        kept = keep and shutil.copytree(after, keep / f"{self._seed}-{number}", dirs_exist_ok=True)
        thorough = number % self._manner.thorough_every == 0
        try:
            self._judges(after / "store", self._boots[boot], expected, thorough=thorough)
        except Exception as problem:  # a finding, whatever it is
            self._found(number, problem)
        if kept:
            shutil.rmtree(kept)

    def _found(self, number: int, problem: Exception) -> None:
        """What is wrong with this store stays wrong: the workload ends. Raises Enough."""
        said = f"{type(problem).__name__}: {problem}"
        self._outcome.findings.append(Finding(self._seed, number, said, traceback.format_exc()))
        self._over = True
        raise Enough


def campaign(
    first_seed: int,
    cuts: int,
    *,
    findings_max: int = 10,
    progress: Callable[[Outcome], None] | None = None,
    keep: Path | None = None,
    manner: Manner = USUAL,
) -> Outcome:
    """Seeds from first_seed on until there were so many cuts, or so many findings."""
    outcome = Outcome()
    seed = first_seed
    while outcome.cuts < cuts and len(outcome.findings) < findings_max:
        Trial(seed, outcome, cuts, keep, manner).run()
        seed += 1
        if progress is not None:
            progress(outcome)
    return outcome


def cut_slice(work: Slice) -> tuple[int, Outcome]:
    """One process's share of a campaign; its first seed, and what came of it."""
    seed, cuts, keep = work
    logging.disable(logging.CRITICAL)  # every cut is recovered from, in several lines
    return seed, campaign(seed, cuts, keep=keep)
