"""Run a whole cluster in simulated time: python -m tandemmq.chaos.whole --seed N [--trace] | --seeds A..B."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tandemmq.chaos.whole.seeds import EVENTS, SeedOutcome, SeedRun, run_seed, run_seeds, shrunk
from tandemmq.replication.config import Mode

EXAMPLES = """examples:
  python -m tandemmq.chaos.whole --seeds 0..2000          two thousand seeds, both cores
  python -m tandemmq.chaos.whole --seed 44 --trace        one of them, with what its servers log
  python -m tandemmq.chaos.whole --seed 44 --shrink       its fewest faults that still fail
  python -m tandemmq.chaos.whole --seed 44 --without 1,3  without two of its faults"""
PROGRESS_S = 30
CLASSIC_ONE_IN = 4  # seeds of a campaign with a controller, a classic pair too


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m tandemmq.chaos.whole", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    which = options.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="replay this one")
    which.add_argument("--seeds", help="run A..B, B exclusive")
    options.add_argument(
        "--events",
        type=int,
        default=EVENTS,
        help="turns of event loops with faults, before healing",
    )
    options.add_argument(
        "--mode", choices=[mode.value for mode in Mode], help="instead of the drawn one"
    )
    options.add_argument(
        "--classic", action="store_true", help="a pair without a controller; alone, where there are several seeds"
    )  # fmt: skip
    options.add_argument("--without", default="", help="faults to leave out, by number: 1,3")
    options.add_argument(
        "--shrink", action="store_true", help="find the fewest faults that still fail"
    )
    options.add_argument(
        "--trace", action="store_true", help="print what happened, and what servers log"
    )
    options.add_argument("--jobs", type=int, default=2, help="seeds at once")
    return options


def campaign(runs: list[SeedRun], jobs: int) -> list[SeedOutcome]:
    """Run all, with progress; those that failed."""
    began_s = said_s = time.monotonic()
    sums: Counter[str] = Counter()
    marks: Counter[str] = Counter()
    cpu_s = simulated_s = 0.0
    failed: list[SeedOutcome] = []
    for outcome in run_seeds(runs, jobs=jobs):
        sums.update(seeds=1, turns=outcome.events, acked=outcome.acked, faults=outcome.faults)
        marks.update(outcome.marks.keys())
        cpu_s, simulated_s = cpu_s + outcome.cpu_s, simulated_s + outcome.simulated_s
        if outcome.promise:
            failed.append(outcome)
            kind = " --classic" if outcome.classic else ""
            print(
                f"FAILED --seed {outcome.seed}{kind}: {outcome.finding.splitlines()[0]}", flush=True
            )
        if time.monotonic() - said_s > PROGRESS_S:
            said_s = time.monotonic()
            print(f"{sums['seeds']} of {len(runs)} seeds, {len(failed)} failed", flush=True)
    took_s = time.monotonic() - began_s
    print(
        f"{sums['seeds']} seeds, {sums['turns']:,} turns, {simulated_s:,.0f} s simulated in {took_s:.0f} s "
        f"({cpu_s:.0f} s of CPU: {60 * sums['seeds'] / max(cpu_s, 0.01):,.0f} seeds a minute and core), "
        f"{sums['acked']:,} acknowledged, {sums['faults']:,} faults, {len(failed)} failed"
    )
    for situation, count in sorted(marks.items()):
        print(f"  {count:>8} seeds: {situation}")
    return failed


def main() -> int:
    options = parser().parse_args()
    mode = Mode(options.mode) if options.mode else None
    if options.seeds:
        first, _, last = options.seeds.partition("..")
        numbers = range(int(first), int(last))
        runs = [SeedRun(seed, options.events, mode, classic=options.classic) for seed in numbers]
        if not options.classic:
            beside = [seed for seed in numbers if seed % CLASSIC_ONE_IN == 0]
            runs += [SeedRun(seed, options.events, mode, classic=True) for seed in beside]
        return 1 if campaign(runs, options.jobs) else 0
    left_out = frozenset(map(int, filter(None, options.without.split(","))))
    run = SeedRun(
        options.seed, options.events, mode, left_out, trace=options.trace, classic=options.classic
    )
    if options.shrink:
        try:
            run, outcome = shrunk(run)
        except ValueError as problem:
            print(problem)
            return 0
        print(f"--seed {run.seed} --without {','.join(map(str, sorted(run.left_out)))}")
    else:
        outcome = run_seed(run)
    print(outcome)
    return 1 if outcome.promise else 0


if __name__ == "__main__":
    sys.exit(main())
