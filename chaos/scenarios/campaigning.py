"""Runs of scenarios drawn by weight, for hours: each result is a line of a file, from which a campaign goes on."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tandemmq.chaos.faults.fault import Unsupported
from tandemmq.chaos.promises import percentile
from tandemmq.chaos.scenarios.catalog import SCENARIOS
from tandemmq.chaos.scenarios.reports.report import commit, write_report
from tandemmq.chaos.scenarios.run import ScenarioRun
from tandemmq.chaos.scenarios.stages import stages_here

UNSUPPORTED: Final = "unsupported"


class Result(msgspec.Struct, frozen=True):
    """One run. silent_ms: of each fault, the longest without an acknowledgement; found: findings by id."""

    number: int
    scenario: str
    seed: int
    mode: str
    verdict: str
    faults: int
    acknowledged: int
    lost: int
    operations: int
    seconds: float
    silent_ms: tuple[float, ...]
    found: dict[str, int]
    commit: str
    date: str


def run_campaign(arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Exit code 0: all valid. 5: one was invalid. 1: one proves nothing."""
    state: Path = arguments.state
    done = read_results(state)
    if done:
        say(f"{len(done)} runs are in {state}; going on")
    missing = stages_here()
    names = arguments.only or [each.name for each in SCENARIOS.values()]
    able = [
        name
        for name in names
        if not missing[SCENARIOS[name].stage] or SCENARIOS[name].stage == "links"
    ]
    for name in sorted(set(names) - set(able)):
        say(f"left out: {name}: {missing[SCENARIOS[name].stage]}")
    deadline = time.monotonic() + 3600 * arguments.hours
    draw = drawn(arguments.seed, able)
    for _ in range(len(done)):
        next(draw)
    fresh = 0
    while time.monotonic() < deadline and fresh != arguments.runs:
        number, name, seed = len(done) + 1, *next(draw)
        result = one(number, name, seed, arguments, say)
        if result is None:
            return 11
        fresh += 1
        done.append(result)
        with state.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
        say(
            f"run {number} {name} seed {seed}: {result.verdict}, {result.acknowledged} acknowledged, "
            f"{result.lost} lost, {result.faults} faults"
        )
        if arguments.table:
            arguments.table.write_text(table(done))
    print(table(done))
    verdicts = {each.verdict for each in done}
    return 5 if "invalid" in verdicts else 1 if "unknown" in verdicts else 0


def drawn(seed: int, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    """(scenario, seed) without end, by weight: the same again for the same arguments."""
    rng = random.Random(seed)
    weights = [SCENARIOS[name].weight for name in names]
    while True:
        yield rng.choices(list(names), weights)[0], rng.randrange(1 << 31)


def one(
    number: int, name: str, seed: int, arguments: argparse.Namespace, say: Callable[[str], None]
) -> Result | None:
    """Play it in a directory that stays only if the run is not valid. None: not possible here."""
    directory = Path(tempfile.mkdtemp(prefix=f"tandem-chaos-{name}-"))
    schedule = SCENARIOS[name].schedule(seed)
    try:
        played = asyncio.run(
            ScenarioRun(schedule, directory, lambda _: None, rate=arguments.rate).play()
        )
    except Unsupported as problem:
        say(f"{name} is not possible here: {problem}")
        return None
    told = write_report(played)
    if played.judgement.good:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        kept = arguments.keep / f"{number}-{name}-{seed}"
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(directory, kept)
        say(f"  {played.judgement.word}: {kept}")
        for line in [each["text"] for each in told["findings"][:3]] + told["doubts"][:3]:
            say(f"    {line}")
    return Result(
        number, name, seed, schedule.mode, played.judgement.word, len(told["faults"]), told["acknowledged"],
        told["lost"], told["operations"], played.seconds, tuple(each["silent_ms"] for each in told["faults"]),
        dict(played.judgement.counts), commit(), datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    )  # fmt: skip


def read_results(state: Path) -> list[Result]:
    """Of earlier calls. A last line that was cut off is forgotten. Raises msgspec.ValidationError."""
    if not state.exists():
        return []
    text = state.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        state.write_bytes(whole)
    return [msgspec.json.decode(line, type=Result) for line in whole.splitlines()]


def table(results: Sequence[Result]) -> str:
    """By scenario: runs, faults, acknowledged, lost, verdicts, silence; and the sum of all. Markdown."""
    heads = (
        "runs",
        "faults",
        "acknowledged",
        "lost",
        "invalid",
        "unknown",
        "silent p50",
        "p99",
        "max",
    )
    lines = [f"| scenario | mode | {' | '.join(heads)} |", "| --- | --- |" + " ---: |" * len(heads)]
    for name in [each for each in SCENARIOS if any(result.scenario == each for result in results)]:
        lines.append(_row(name, [each for each in results if each.scenario == name]))
    if results:
        lines.append(_row("**all**", results))
        versions = sorted({(each.date, each.commit) for each in results})
        lines.append("")
        lines.append(
            "Commits: "
            + ", ".join(f"{commit or 'no repository'} ({date})" for date, commit in versions)
            + "."
        )
    return "\n".join(lines) + "\n"


def _row(name: str, results: Sequence[Result]) -> str:
    silent = [value for each in results for value in each.silent_ms]
    modes = ", ".join(sorted({each.mode for each in results}))
    cells = [
        name, modes, len(results), sum(each.faults for each in results),
        f"{sum(each.acknowledged for each in results):,}", sum(each.lost for each in results),
        sum(each.verdict == "invalid" for each in results), sum(each.verdict == "unknown" for each in results),
        *(f"{percentile(silent, share) / 1000:.2f} s" for share in (0.5, 0.99, 1.0)),
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"
