"""The same schedules against our servers and against RocketMQ's, both judged alike, in one table.

Whatever measures is the same for both: senders and probes ask a name server for the master as often as it takes, so
that no client's route cache is in the figures. Stock servers run in controller mode (tandemmq.chaos.groups).
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from tandemmq.chaos.checking.findings import INVALID, UNKNOWN
from tandemmq.chaos.checking.lines import Delivered, decode_line
from tandemmq.chaos.faults.fault import Unsupported
from tandemmq.chaos.promises import percentile
from tandemmq.chaos.scenarios.catalog import SCENARIOS
from tandemmq.chaos.scenarios.reports.report import clean, commit, write_report
from tandemmq.chaos.scenarios.run import ScenarioRun
from tandemmq.chaos.scenarios.schedule import Schedule
from tandemmq.chaos.verdict import HISTORY
from tandemmq.java import NEWEST, java_missing

OURS: Final = "tandem"
NAMES: Final[Mapping[str, str]] = {"tandem": "TandemMQ", "java": f"RocketMQ {NEWEST}"}
#: stages that stock servers can be played on: the others need settings or shims that they do not have
STOCK_STAGES: Final = frozenset({"plain", "spaces", "hosts"})
DEFAULT: Final = ("kill", "pause", "rolling", "controller")
RESULT: Final = "comparison.json"
BEGIN: Final = "<!-- the comparison is written by tandem chaos compare --document -->"
END: Final = "<!-- the end of the comparison -->"
TITLE: Final = "## Beside Apache RocketMQ"
PLACES: Final = frozenset({"--report", "--document"})  # options with a path
#: findings that have a column of their own
COUNTED: Final = frozenset({"C-1", "C-7", "C-8"})


class Side(msgspec.Struct, frozen=True):
    """One scenario on one kind of servers, all its runs together.

    twice          deliveries to the consumer group beyond the first of a message
    reordered      messages that lie, or were read, behind one that was sent later
    unavailable_s  of each fault, the longest without any acknowledgement
    findings       others than lost and reordered, by the id of the property
    """

    scenario: str
    servers: str
    mode: str
    seeds: tuple[int, ...]
    verdicts: tuple[str, ...]
    acknowledged: int
    lost: int
    twice: int
    reordered: int
    unavailable_s: tuple[float, ...]
    findings: dict[str, int]
    doubts: tuple[str, ...]

    @property
    def p50_s(self) -> float:
        return percentile(list(self.unavailable_s), 0.5)

    @property
    def max_s(self) -> float:
        return max(self.unavailable_s, default=0.0)

    def joined(self, other: Side) -> Side:
        """Both as one: runs of one scenario on the same servers."""
        findings = dict(self.findings)
        for check, count in other.findings.items():
            findings[check] = findings.get(check, 0) + count
        return Side(
            self.scenario, self.servers, self.mode, self.seeds + other.seeds, self.verdicts + other.verdicts,
            self.acknowledged + other.acknowledged, self.lost + other.lost, self.twice + other.twice,
            self.reordered + other.reordered, self.unavailable_s + other.unavailable_s, findings,
            self.doubts + other.doubts,
        )  # fmt: skip


def run_comparison(arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Exit code 0: ours were all valid, whatever the others were. 5: one of ours was invalid. 1: one proves nothing.

    Raises Unsupported.
    """
    if arguments.servers == "java" and (missing := java_missing()):
        raise Unsupported(missing)
    names: Sequence[str] = arguments.scenario or DEFAULT
    for name in names:
        if arguments.servers == "java" and SCENARIOS[name].stage not in STOCK_STAGES:
            raise Unsupported(
                f"{name} breaks what stock servers do not have; there are "
                f"{', '.join(each.name for each in SCENARIOS.values() if each.stage in STOCK_STAGES)}"
            )
    directory: Path = arguments.report or Path(tempfile.mkdtemp(prefix="tandem-compare-"))
    directory.mkdir(parents=True, exist_ok=True)
    directory = directory.resolve()
    sides: dict[tuple[str, str], Side] = {}
    for name in names:
        for seed in range(arguments.seed, arguments.seed + arguments.runs):
            schedule = SCENARIOS[name].schedule(
                seed, arguments.steps, arguments.mode, None, arguments.workload
            )
            for place, servers in enumerate((OURS, arguments.servers)):
                at = directory / f"{name}-{seed}-{place}-{servers}"
                say(f"{name}, seed {seed}, on {NAMES[servers]}: {at}")
                side = play_side(schedule, servers, at, arguments.rate, say)
                key = (name, f"{place} {servers}")
                sides[key] = sides[key].joined(side) if key in sides else side
                say(
                    f"  {', '.join(side.verdicts)}: {side.acknowledged} acknowledged, {side.lost} lost"
                )
                for doubt in side.doubts[:3]:
                    say(f"  {doubt}")
                write_result(directory / RESULT, list(sides.values()), arguments.command_line)
    result = table(list(sides.values()))
    if arguments.json:
        print((directory / RESULT).read_text(), end="")
    else:
        print(result)
    if arguments.document is not None:
        put_section(arguments.document, section(result, arguments.command_line))
        say(f"written into {arguments.document}")
    say(f"reports: {directory}")
    ours = [
        verdict
        for key, side in sides.items()
        if key[1].startswith("0")
        for verdict in side.verdicts
    ]
    return 5 if INVALID in ours else 1 if UNKNOWN in ours else 0


def play_side(
    schedule: Schedule, servers: str, directory: Path, rate: float, say: Callable[[str], None]
) -> Side:
    """One run; its report stays. Raises Unsupported."""
    directory.mkdir()
    played = asyncio.run(ScenarioRun(schedule, directory, say, rate=rate, servers=servers).play())
    told = write_report(played)
    clean(directory)
    return side_of(schedule, servers, told, twice_in(directory / HISTORY, str(told["group"])))


def side_of(schedule: Schedule, servers: str, told: Mapping[str, Any], twice: int) -> Side:
    """What a report (tandemmq.chaos.scenarios.reports.report) comes to in this table."""
    counts: dict[str, int] = {
        each["id"]: each["findings"] for each in told["checks"] if each["findings"]
    }
    return Side(
        schedule.scenario, servers, schedule.mode, (schedule.seed,), (told["verdict"],), told["acknowledged"],
        told["lost"], twice, counts.get("C-7", 0) + counts.get("C-8", 0),
        tuple(round(each["silent_ms"] / 1000, 3) for each in told["faults"]),
        {check: count for check, count in counts.items() if check not in COUNTED}, tuple(told["doubts"]),
    )  # fmt: skip


def twice_in(history: Path, group: str) -> int:
    """Deliveries to a group beyond the first of each message; 0 without a history."""
    if not history.exists():
        return 0
    given: set[str] = set()
    count = 0
    with history.open("rb") as lines:
        for text in lines:
            if text.startswith(b'["delivered"'):
                line = decode_line(text)
                assert isinstance(line, Delivered)
                if line.group == group:
                    count += line.unique_id in given
                    given.add(line.unique_id)
    return count


def table(sides: Sequence[Side]) -> str:
    """Markdown: a row for each scenario and kind of servers."""
    heads = (
        "runs", "faults", "acknowledged", "lost", "given twice", "reordered", "unavailable p50", "max",
        "other findings", "verdict",
    )  # fmt: skip
    lines = [
        f"| scenario | servers | {' | '.join(heads)} |",
        "| --- | --- |" + " ---: |" * 8 + " --- | --- |",
    ]
    for each in sides:
        cells = [
            each.scenario, NAMES[each.servers], len(each.seeds), len(each.unavailable_s), f"{each.acknowledged:,}",
            each.lost, each.twice, each.reordered,
            *((f"{each.p50_s:.2f} s", f"{each.max_s:.2f} s") if each.unavailable_s else ("", "")),
            ", ".join(f"{check}: {count}" for check, count in sorted(each.findings.items())) or "none",
            _verdicts(each.verdicts),
        ]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def _verdicts(words: Iterable[str]) -> str:
    found = list(words)
    if len(set(found)) == 1:
        return found[0]
    return ", ".join(f"{found.count(word)} {word}" for word in sorted(set(found)))


def repeatable(command_line: Sequence[str]) -> str:
    """The command for whoever wants to repeat it: not where reports and document lie on this machine."""
    kept: list[str] = []
    words = iter(command_line)
    for word in words:
        if word in PLACES:
            next(words, None)
        elif word.partition("=")[0] not in PLACES:
            kept.append(word)
    return shlex.join(["tandem", "chaos", *kept])


def write_result(path: Path, sides: Sequence[Side], command_line: Sequence[str]) -> None:
    """Everything so far, for programs."""
    tree = {
        "command": repeatable(command_line), "commit": commit(), "date": _today(),
        "machine": _machine(),
        "sides": [
            {**msgspec.to_builtins(each), "unavailable_p50_s": each.p50_s, "unavailable_max_s": each.max_s}
            for each in sides
        ],
    }  # fmt: skip
    path.write_text(json.dumps(tree, indent=1) + "\n")


def section(result: str, command_line: Sequence[str]) -> str:
    """What stands between the marks of a document."""
    of_what = (
        f"`{repeatable(command_line)}`, commit {commit() or 'unknown'}, {_today()}, {_machine()}"
    )
    return (
        f"{BEGIN}\n\n{of_what}:\n\n{result}\n"
        "*Unavailable*: of each fault, the longest without any acknowledgement while it lasted and two seconds behind\n"
        "its end. *Given twice*: deliveries to the consumer group beyond the first of a message, which neither\n"
        "promises to avoid. Findings are of the properties in [the how-to](howto/chaos.md).\n\n"
        f"{END}\n"
    )


def put_section(document: Path, text: str) -> None:
    """In the place of the one before; at the end, with a title, where there is none. Raises OSError."""
    content = document.read_text() if document.exists() else ""
    marks = re.compile(re.escape(BEGIN) + r".*?" + re.escape(END) + r"\n?", re.S)
    if marks.search(content):
        content = marks.sub(lambda _: text, content, count=1)
    else:
        content = f"{content.rstrip()}\n\n{TITLE}\n\n{text}".lstrip()
    document.write_text(content)


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")


def _machine() -> str:
    one, _, _ = os.getloadavg()
    return f"{os.cpu_count()} processors, {platform.system()} {platform.release()}, load average {one:.0f}"
