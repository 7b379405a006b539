"""Replay one seed, or run a campaign of many: python -m chaos.sim --seed N [--trace] | --seeds A..B [--jobs 2]."""

from __future__ import annotations

import argparse
import logging
import sys
import traceback

from tandemmq.chaos.sim.campaign import Campaign, campaign
from tandemmq.chaos.sim.mishaps import KINDS
from tandemmq.chaos.sim.world import Outcome, Parts, World
from tandemmq.replication.config import Mode


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m tandemmq.chaos.sim", description=__doc__)
    which = options.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="replay this one")
    which.add_argument("--seeds", help="run A..B, B exclusive")
    options.add_argument("--events", type=int, default=2000, help="with faults, before healing")
    options.add_argument(
        "--mode", choices=[mode.value for mode in Mode], help="instead of the drawn one"
    )
    options.add_argument(
        "--rolling", action="store_true", help="change S0 groups to S1 and back, one by one"
    )
    options.add_argument(
        "--mishap", choices=KINDS, help="what befalls every seed, instead of what it draws"
    )
    options.add_argument("--trace", action="store_true", help="print what happened, and the plan")
    options.add_argument("--jobs", type=int, default=2, help="processes of a campaign")
    return options


def replay(
    seed: int,
    events: int,
    mode: Mode | None,
    parts: Parts | None,
    rolling: bool,
    trace: bool,
) -> Outcome:
    world = World(seed, mode=mode, parts=parts, rolling=rolling)
    if trace:
        world.trace = print
        print(world.plan)
    return world.run(events)


def report(found: Campaign) -> None:
    rate = found.events / max(found.seconds, 0.001)
    print(
        f"{found.seeds} seeds, {found.events} events in {found.seconds:.1f} s ({rate:,.0f} events/s), "
        f"{found.acked} acknowledged, {found.reigns} epochs, {found.faults} faults"
    )
    for situation, count in sorted(found.marks.items()):
        print(f"  {count:>8} seeds: {situation}")


def main() -> int:
    options = parser().parse_args()
    logging.getLogger("tandemmq.cluster").setLevel(logging.CRITICAL)
    mode = Mode(options.mode) if options.mode else None
    parts = Parts(mishaps=frozenset({options.mishap})) if options.mishap else None
    if options.seed is not None:
        try:
            print(
                replay(
                    options.seed, options.events, mode, parts, options.rolling,
                    options.trace,
                )
            )  # fmt: skip
        except Exception:  # whatever is wrong, the seed is what the reader needs
            traceback.print_exc()
            print(f"FAILED seed {options.seed}")
            return 1
        return 0
    first, _, last = options.seeds.partition("..")
    found = campaign(
        range(int(first), int(last)), options.events, mode=mode, parts=parts, rolling=options.rolling,
        jobs=options.jobs, progress=print,
    )  # fmt: skip
    report(found)
    for seed, problem in found.failures:
        print(f"FAILED seed {seed}: {problem.splitlines()[0]}")
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
