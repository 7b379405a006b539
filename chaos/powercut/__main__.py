"""Cut the power under storage: python -m tandemmq.chaos.powercut --cuts 1000000 [--seed N] [--jobs 2] [--json].

With --state FILE what is done is written there, slice by slice, and a run that was ended goes on from there.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tandemmq.chaos.powercut.campaign import Finding, Outcome, Slice, cut_slice
from tandemmq.storage import jsonfile

SLICE_CUTS: Final = 5_000
SEEDS_PER_SLICE: Final = 1_000  # more than a slice ever comes to
PROGRESS_S: Final = 10


class State(msgspec.Struct):
    """How far a campaign is. slices: first seeds of those that are done."""

    first_seed: int
    slices: list[int] = []
    seconds: float = 0.0
    total: Outcome = msgspec.field(default_factory=Outcome)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m tandemmq.chaos.powercut", description=__doc__)
    options.add_argument("--cuts", type=int, default=10_000)
    options.add_argument(
        "--seed", type=int, default=0, help="the first one; a finding names its own"
    )
    options.add_argument("--jobs", type=int, default=2, help="processes")
    options.add_argument(
        "--keep", type=Path, help="where stores are copied to that were found wrong"
    )
    options.add_argument(
        "--state", type=Path, help="a file to go on from, and to write what is done to"
    )
    options.add_argument("--json", action="store_true", help="the outcome for machines")
    return options


def _load(path: Path | None, first_seed: int) -> State:
    """Raises ValueError for a file of another campaign."""
    if path is None or not path.exists():
        return State(first_seed)
    state = msgspec.json.decode(path.read_bytes(), type=State)
    if state.first_seed != first_seed:
        raise ValueError(f"{path} is of --seed {state.first_seed}")
    return state


def _slices(state: State, cuts: int, keep: Path | None) -> Iterator[Slice]:
    for at in range(0, cuts, SLICE_CUTS):
        seed = state.first_seed + at // SLICE_CUTS * SEEDS_PER_SLICE
        if seed not in state.slices:
            yield seed, min(SLICE_CUTS, cuts - at), keep


def _said(finding: Finding) -> str:
    return f"FAILED seed {finding.seed} cut {finding.cut}: {finding.problem}"


def main() -> int:
    options = parser().parse_args()
    state = _load(options.state, options.seed)
    total, before, said = state.total, state.seconds, 0.0
    started = time.monotonic()
    work = list(_slices(state, options.cuts, options.keep))
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for seed, outcome in pool.imap_unordered(cut_slice, work):
            total.add(outcome)
            state.slices.append(seed)
            state.seconds = before + time.monotonic() - started
            if options.state is not None:
                jsonfile.write_atomically(options.state, msgspec.json.encode(state))
            for finding in outcome.findings:
                print(_said(finding), file=sys.stderr, flush=True)
            if state.seconds - said > PROGRESS_S:
                said = state.seconds
                found = len(total.findings)
                print(
                    f"{total.cuts} of {options.cuts} cuts, {found} findings, {said:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    if options.json:
        print(msgspec.json.encode(total).decode())
    else:
        print(
            f"{total.cuts} power cuts, {total.second} of them after another, at {total.moments} moments of "
            f"{total.seeds} workloads in {state.seconds:.0f} s"
        )
        for finding in total.findings:
            print(_said(finding))
    return 1 if total.findings else 0


if __name__ == "__main__":
    sys.exit(main())
