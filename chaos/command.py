"""What the campaigns on replicated groups share as commands: seed, directory, progress, report, exit code."""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.chaos.campaign import Outcome
from tandemmq.chaos.groups import GroupPlan

PROBLEMS_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Begun:
    """One run of a command. kept: the directory was given and stays."""

    seed: int
    directory: Path
    kept: bool
    as_json: bool


def parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments that all campaigns have."""
    made = argparse.ArgumentParser(
        prog=f"python -m tandemmq.chaos.{name}",
        description=(about or "").split("\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--seed", type=int, help="default: drawn, and printed")
    made.add_argument("--directory", type=Path, help="default: a temporary one, removed if good")
    made.add_argument("--json", action="store_true", help="the outcome as JSON")
    return made


def begin(arguments: argparse.Namespace, name: str) -> Begun:
    """Seed and directory; both are printed."""
    logging.getLogger("tandemmq.cluster.client").setLevel(logging.ERROR)  # it meets every fault
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    given: Path | None = arguments.directory
    directory = Path(tempfile.mkdtemp(prefix=f"tandem-{name}-")) if given is None else given
    directory.mkdir(parents=True, exist_ok=True)
    say(f"seed {seed}, journal, stores and server logs in {directory}")
    return Begun(seed, directory, given is not None, arguments.json)


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def add_group_arguments(
    made: argparse.ArgumentParser,
    *,
    rate: float = 800,
    rate_help: str = "messages/s, 0: as many as go (%(default)g)",
    stock: bool = False,
) -> None:
    """What kind of group, and how much load. stock: what happens to it may happen to RocketMQ's brokers too."""
    made.add_argument("--mode", choices=("sync", "async"), default="sync")
    made.add_argument("--sync-flush", action="store_true", help="wait for the disk as well")
    made.add_argument("--replicas", type=int, default=2, choices=(2, 3))
    made.add_argument(
        "--copies-min", type=int, default=1, help="minInSyncReplicas: refuse sends below"
    )
    made.set_defaults(servers="tandem")
    if stock:
        made.add_argument(
            "--servers",
            choices=("tandem", "java"),
            help="java: RocketMQ's, by a JDK and Maven (%(default)s)",
        )
    made.add_argument("--rate", type=float, default=rate, help=rate_help)


def group_plan(arguments: argparse.Namespace) -> GroupPlan:
    """The group that add_group_arguments() asked for."""
    return GroupPlan(
        replicas=arguments.replicas,
        synchronous=arguments.mode == "sync",
        sync_flush=arguments.sync_flush,
        copies_min=arguments.copies_min,
        servers=arguments.servers,
    )


def end(run: Begun, outcome: Outcome) -> int:
    """Print the report, remove what a good run left behind; the exit code."""
    if run.as_json:
        print(json.dumps({"good": outcome.good, **outcome.report()}))
    else:
        print("\n".join(outcome.lines()))
        for problem in outcome.problems[:PROBLEMS_SHOWN]:
            print(f"PROBLEM {problem}")
        if outcome.good:
            kept = (
                "nothing lost" if outcome.mode.startswith("S") else "no loss but what was reported"
            )
            print(f"{kept}, nothing unsent, order kept, one log everywhere")
        else:
            count = len(outcome.problems)
            print(f"{count} problems; seed {run.seed}, everything is in {run.directory}")
    if outcome.good and not run.kept:
        shutil.rmtree(run.directory)
    return 0 if outcome.good else 1
