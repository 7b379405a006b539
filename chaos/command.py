"""What campaigns share as commands: arguments, seed, directory, progress, report, exit code."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from tandemmq.chaos.campaign import Campaign
from tandemmq.chaos.groups import GroupPlan
from tandemmq.chaos.outcome import Outcome
from tandemmq.chaos.traffic import TrafficPlan

PROBLEMS_SHOWN: Final = 20
OfGroup = TypeVar("OfGroup", bound=Campaign)


@dataclass(frozen=True, slots=True)
class Begun:
    """One run of a command. kept: the directory was given and stays."""

    seed: int
    directory: Path
    kept: bool
    as_json: bool


def parser(
    name: str, about: str | None, example: str = "", *, rounds: int = 0
) -> argparse.ArgumentParser:
    """A parser with the arguments that all campaigns have. example: arguments; rounds: how many unless told."""
    made = argparse.ArgumentParser(
        prog=f"python -m tandemmq.chaos.{name}",
        description=(about or "").split("\n")[0],
        epilog=f"example: python -m tandemmq.chaos.{name} {example}" if example else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(campaign=name)
    made.add_argument("--seed", type=int, help="default: drawn, and printed")
    made.add_argument("--directory", type=Path, help="default: a temporary one, removed if good")
    made.add_argument("--json", action="store_true", help="the outcome as JSON")
    if rounds:
        made.add_argument("--rounds", type=count, default=rounds)
    return made


def count(text: str) -> int:
    """An argument of 1 or more."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def amount(text: str) -> float:
    """An argument above 0."""
    if (value := float(text)) <= 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def begin(arguments: argparse.Namespace) -> Begun:
    """Seed and directory; both are printed."""
    logging.getLogger("tandemmq.cluster.client").setLevel(logging.ERROR)  # it meets every fault
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    given: Path | None = arguments.directory
    directory = given or Path(tempfile.mkdtemp(prefix=f"tandem-{arguments.campaign}-"))
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


def group_plan(arguments: argparse.Namespace, **more: Any) -> GroupPlan:
    """The group that add_group_arguments() asked for. more: fields of it beside."""
    return GroupPlan(
        replicas=arguments.replicas,
        synchronous=arguments.mode == "sync",
        sync_flush=arguments.sync_flush,
        copies_min=arguments.copies_min,
        servers=arguments.servers,
        **more,
    )


def group_campaign(
    kind: type[OfGroup], run: Begun, arguments: argparse.Namespace, queues: int = 4
) -> OfGroup:
    """A campaign on the group and with the load that add_group_arguments() asked for."""
    traffic = TrafficPlan(rate=arguments.rate, queues=queues)
    return kind(group_plan(arguments), traffic, run.directory, run.seed, say)


def play(run: Begun, running: Coroutine[Any, Any, Outcome]) -> int:
    """Run it, print the report, remove what a good run left behind; the exit code."""
    began = time.monotonic()
    outcome = asyncio.run(running)
    outcome.seconds = round(time.monotonic() - began, 1)
    if run.as_json:
        print(json.dumps({"good": outcome.good, **outcome.report()}))
    else:
        print("\n".join(outcome.lines()))
        for problem in outcome.problems[:PROBLEMS_SHOWN]:
            print(f"PROBLEM {problem}")
        problems = (
            f"{len(outcome.problems)} problems; seed {run.seed}, everything is in {run.directory}"
        )
        print(outcome.held if outcome.good else problems)
    if outcome.good and not run.kept:
        shutil.rmtree(run.directory)
    return 0 if outcome.good else 1
