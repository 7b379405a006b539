"""`python -m bench`: parse the command line, measure, print the report."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

from bench.accounting import describe_machine
from bench.build import CACHE, BuildFailed, blaster
from bench.measure import FULL, QUICK, Plan, measure_all
from bench.report import as_dict, as_text, missed

MARKERS = ("<!-- figures -->", "<!-- end of figures -->")
SERVERS = ("ours", "pure", "echo", "rocketmq")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Our broker beside an echo server with the same frames and Apache RocketMQ,"
        " in one measurement. Exit code 1 when a run was refused, 3 when --require is given and a"
        " required figure was missed.",
    )
    parser.add_argument("--full", action="store_true", help="all loads, not only the quick set")
    parser.add_argument("--only", default="", metavar="TEXT", help="loads whose name contains TEXT")
    parser.add_argument(
        "--servers", default=",".join(SERVERS), metavar="LIST", help="of %(default)s"
    )
    parser.add_argument("--runs", type=int, default=3, help="rounds per load (default %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="measured per run (default %(default)s)"
    )
    parser.add_argument(
        "--warmup", type=float, default=1.0, help="seconds before each run (default %(default)s)"
    )
    parser.add_argument(
        "--rocketmq-warmup", type=float, default=20.0, help="seconds, once (default %(default)s)"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=CACHE / "data",
        help="stores live here (default .cache/bench/data)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the report for machines; - is stdout"
    )
    parser.add_argument(
        "--doc",
        type=Path,
        metavar="FILE",
        help="put the report between the markers of a Markdown file",
    )
    parser.add_argument(
        "--require", action="store_true", help="fail when a required figure was missed"
    )
    given = parser.parse_args(arguments)
    if unknown := set(given.servers.split(",")) - set(SERVERS):
        parser.error(f"--servers: {', '.join(sorted(unknown))} is none of {', '.join(SERVERS)}")
    return given


def plan_from(given: argparse.Namespace) -> Plan:
    """What the command line asks for: servers on the first core, the generator on the second."""
    cores = sorted(os.sched_getaffinity(0))
    loads = tuple(load for load in (FULL if given.full else QUICK) if given.only in load.name)
    return Plan(
        loads=loads,
        servers=frozenset(given.servers.split(",")),
        runs=given.runs,
        warmup_s=given.warmup,
        seconds=given.seconds,
        rocketmq_warmup_s=given.rocketmq_warmup,
        data_dir=given.data,
        server_cores=frozenset(cores[:1]),
        all_cores=frozenset(cores),
        generator_core=cores[1] if len(cores) > 1 else None,
    )


def with_figures(document: str, report: str) -> str:
    """The Markdown document with the report between its markers."""
    before, begin, rest = document.partition(MARKERS[0])
    _, end, after = rest.partition(MARKERS[1])
    if not begin or not end:
        raise SystemExit(f"no {MARKERS[0]} ... {MARKERS[1]} in the file given to --doc")
    return f"{before}{begin}\n\n```text\n{report}```\n\n{end}{after}"


def main(arguments: list[str]) -> int:
    """Measure and report; the exit code."""
    given = parse(arguments)
    try:
        blaster()
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 1
    plan = plan_from(given)
    plan.data_dir.mkdir(parents=True, exist_ok=True)
    machine = describe_machine(plan.data_dir)
    command = shlex.join(["python", "-m", "bench", *arguments])
    results = measure_all(plan)
    report = json.dumps(as_dict(machine, plan, results, command), indent=1) + "\n"
    if given.json and str(given.json) != "-":
        given.json.write_text(report)
    if given.doc:
        text = as_text(machine, plan, results, command)
        given.doc.write_text(with_figures(given.doc.read_text(), text))
    print(
        report
        if given.json and str(given.json) == "-"
        else as_text(machine, plan, results, command),
        end="",
    )
    if results.refused:
        return 1
    return 3 if given.require and missed(results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
