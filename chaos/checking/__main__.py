"""Judge a history, or measure what judging costs: python -m tandemmq.chaos.checking journal.jsonl | --made 10000000."""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tandemmq.chaos.checking.findings import CHECKS, ON_REQUEST, Judgement
from tandemmq.chaos.checking.judging import judge_history
from tandemmq.chaos.checking.made import MadeUp, write

PER_MESSAGE: Final = 3  # operations: sent, seen, delivered
EXAMPLES: Final = """examples:
  python -m tandemmq.chaos.checking report/history.jsonl
  python -m tandemmq.chaos.checking report/history.jsonl --check C-1 --check C-7
  python -m tandemmq.chaos.checking --made 10000000       how long, and how much memory"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tandemmq.chaos.checking", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    which = made.add_mutually_exclusive_group(required=True)
    which.add_argument("history", type=Path, nargs="?", help="a journal (JSON lines)")
    which.add_argument(
        "--made", type=int, metavar="N", help="a correct one of N operations, made up"
    )
    made.add_argument("--queues", type=int, default=16, help="of a made-up one (%(default)s)")
    made.add_argument(
        "--check",
        action="append",
        choices=CHECKS | ON_REQUEST,
        help="must have judged something (default: as the run asked)",
    )
    made.add_argument(
        "--linearizability", action="store_true", help="ask Porcupine, too (C-21; needs Go once)"
    )
    made.add_argument("--json", action="store_true", help="the judgement as JSON")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0: valid. 1: invalid or unknown. 2: wrong usage."""
    arguments = parser().parse_args(argv)
    if arguments.made is None:
        judgement = judge_history(
            arguments.history, arguments.check, linearizability=arguments.linearizability
        )
        return say(judgement, as_json=arguments.json)
    with tempfile.TemporaryDirectory(prefix="tandem-made-") as directory:
        path = Path(directory) / "history.jsonl"
        messages = max(1, arguments.made // PER_MESSAGE // arguments.queues)
        began_s = time.monotonic()
        write(path, MadeUp(arguments.queues, messages))
        print(
            f"written in {time.monotonic() - began_s:.0f} s: {path.stat().st_size / 1e6:.0f} MB",
            flush=True,
        )
        cpu_s = processor_s()
        judgement = judge_history(path, arguments.check, linearizability=arguments.linearizability)
        code = say(judgement, as_json=arguments.json)
        cpu_s = processor_s() - cpu_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{cpu_s:.0f} s of processor time, at most {peak_mb:.0f} MB of memory")
    return code


def processor_s() -> float:
    """Of this process, and of Porcupine."""
    return sum(os.times()[:4])


def say(judgement: Judgement, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(asdict(judgement)))
    else:
        print(
            f"{judgement.word}: {judgement.operations} operations, {judgement.acknowledged} acknowledged, judged in "
            f"{judgement.seconds:.0f} s"
        )
        for each in judgement.findings:
            print(f"{each.check} {each.text}", *each.excerpt, sep="\n    ")
        for doubt in judgement.doubts:
            print(f"UNKNOWN {doubt}")
    return 0 if judgement.good else 1


if __name__ == "__main__":
    sys.exit(main())
