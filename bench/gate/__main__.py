"""`python -m bench.gate`: count, print, compare. Exit codes: 0 within a tenth, 1 above, 2 cannot count here."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.gate.stages import dumped

HERE: Final = Path(__file__).parent
FIGURES: Final = HERE / "figures.json"
ALLOWED: Final = 1.10
#: stages below so many instructions a message vary by more than they matter
SMALL: Final = 300
COUNT_S: Final = 600

Figures = dict[str, dict[str, int]]


class CannotCount(Exception):
    """What is missing here, and how to get it."""


def missing() -> str:
    """Why this machine cannot count; empty when it can."""
    lacking = [tool for tool in ("valgrind", "cc") if shutil.which(tool) is None]
    if lacking:
        return f"{' and '.join(lacking)} not found: apt-get install valgrind build-essential"
    return ""


def count() -> Figures:
    """Instructions per message: of each load, by stage. Raises CannotCount."""
    lacking = missing()
    if lacking:
        raise CannotCount(lacking)
    with tempfile.TemporaryDirectory(prefix="tandem-gate-") as place:
        marks = Path(place, "marks.so")
        built = subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-o", str(marks), str(HERE / "marks.c")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if built.returncode:
            raise CannotCount(f"marks.c does not compile (valgrind's headers?): {built.stderr}")
        ran = subprocess.run(
            [
                "valgrind", "--tool=callgrind", "--instr-atstart=no", "--log-file=/dev/null",
                f"--callgrind-out-file={place}/counted", sys.executable, "-m", "bench.gate.loads", str(marks),
            ],
            capture_output=True, text=True, check=False, cwd=HERE.parents[1], timeout=COUNT_S,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": ""},
        )  # fmt: skip
        if ran.returncode:
            raise CannotCount(f"the loads ended with {ran.returncode}: {ran.stderr[-3000:]}")
        messages = {
            name: int(number) for name, number, _ in map(str.split, ran.stdout.splitlines())
        }
        found = dict(dumped(path) for path in Path(place).glob("counted.*"))
    return {
        name: {stage: round(total / number) for stage, total in sorted(found[name].items())}
        for name, number in messages.items()
    }


def grown(now: Figures, recorded: Figures) -> list[str]:
    """A sentence for each load that costs more than a tenth above what is recorded, with the stages that grew."""
    sentences = []
    for name, stages in recorded.items():
        before, after = sum(stages.values()), sum(now.get(name, {}).values())
        if name not in now:
            sentences.append(f"{name}: not counted any more")
        elif after > before * ALLOWED:
            by = sorted(
                (now[name].get(stage, 0) - stages.get(stage, 0), stage)
                for stage in now[name].keys() | stages.keys()
            )
            worse = ", ".join(
                f"{stage} by {more:,}" for more, stage in reversed(by) if more >= SMALL
            )
            sentences.append(
                f"{name}: {after:,} instructions a message, {after / before - 1:+.0%} over {before:,}: {worse}"
            )
    return sentences


def table(now: Figures, recorded: Figures) -> str:
    lines = []
    for name, stages in now.items():
        total, before = sum(stages.values()), sum(recorded.get(name, {}).values())
        change = f"{total / before - 1:+7.1%}" if before else "    new"
        lines.append(f"{name:22}{total:>9,}{change}")
        lines += [
            f"    {stage:24}{stages[stage]:>9,}"
            for stage in sorted(stages, key=lambda stage: -stages[stage])
            if stages[stage] >= SMALL // 10
        ]
    return "\n".join(lines)


def recorded_figures() -> tuple[str, Figures]:
    """The interpreter they were counted with, another counts otherwise; and the figures."""
    found: Any = json.loads(FIGURES.read_text(encoding="utf-8"))
    return str(found["python"]), {name: dict(stages) for name, stages in found["loads"].items()}


def interpreter() -> str:
    return f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gate",
        description="Instructions that the broker spends per message, by stage, counted by valgrind: about a minute.",
        epilog="examples:\n  python -m bench.gate\n  python -m bench.gate --record    # a cost that is worth it",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--record", action="store_true", help="write the figures that others are held to"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(words)
    try:
        now = count()
    except CannotCount as problem:
        print(f"bench.gate: {problem}", file=sys.stderr)
        return 2
    counted_with, recorded = recorded_figures()
    print(json.dumps(now, indent=2) if options.json else table(now, recorded))
    if options.record:
        figures = {"python": interpreter(), "loads": now}
        FIGURES.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        return 0
    if counted_with != interpreter():
        print(f"not compared: recorded with {counted_with}, this is {interpreter()}")
        return 0
    worse = grown(now, recorded)
    for sentence in worse:
        print(sentence, file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
