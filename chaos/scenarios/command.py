"""`tandem chaos`: break a cluster on purpose, judge what is left, and write a report that anybody can read."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from tandemmq.chaos.checking.__main__ import say as say_judgement
from tandemmq.chaos.checking.findings import INVALID, UNKNOWN, VALID
from tandemmq.chaos.checking.judging import judge_history
from tandemmq.chaos.command import say
from tandemmq.chaos.faults.fault import Unsupported
from tandemmq.chaos.processes import ProcessBroken
from tandemmq.chaos.scenarios.catalog import SCENARIOS
from tandemmq.chaos.scenarios.comparing import DEFAULT as COMPARED
from tandemmq.chaos.scenarios.comparing import run_comparison
from tandemmq.chaos.scenarios.containers import COMPOSE, composed
from tandemmq.chaos.scenarios.reports.report import HTML, clean, write_report
from tandemmq.chaos.scenarios.reports.timeline import GAP_NS
from tandemmq.chaos.scenarios.run import LOCAL, SCHEDULE, Played, ScenarioRun
from tandemmq.chaos.scenarios.schedule import Schedule
from tandemmq.chaos.scenarios.served import PortTaken, serving
from tandemmq.chaos.scenarios.stages import STAGES, stages_here
from tandemmq.chaos.scenarios.target import TargetRun
from tandemmq.chaos.scenarios.workloads.chosen import WORKLOADS, Unfit

OK, INVALID_CODE, UNKNOWN_CODE, USAGE, MISSING, INTERRUPTED = 0, 5, 1, 2, 11, 130
CODES: Final = {VALID: OK, INVALID: INVALID_CODE, UNKNOWN: UNKNOWN_CODE}
EXAMPLES: Final = """examples:
  tandem chaos list
  tandem chaos run kill --report report            a cluster on this machine, its master killed again and again
  tandem chaos run partition --seed 7 --steps 10
  tandem chaos run --replay report/schedule.json   the same faults again
  tandem chaos run kill --workload transactions --workload orderly
  tandem chaos run pause --target 127.0.0.1:9876 --handle 127.0.0.1:10911=pid:4711
  tandem chaos run kill --target compose           containers of deploy/compose.yaml
  tandem chaos campaign --hours 8 --state campaign.jsonl
  tandem chaos compare --scenario kill --runs 3    the same faults on RocketMQ's servers: one table
  tandem chaos sim --seeds 2000 --jobs 2           whole clusters in simulated time
  tandem chaos sim --seeds 5 --replay report       what real processes lived through, in simulated time
  tandem chaos judge report/history.jsonl --linearizability

exit codes:
    0  valid: everything that was checked held
    1  unknown: the run proves nothing, and says why
    2  wrong usage
    5  invalid: a promise was broken (sim --replay: or the two verdicts differ)
   11  this machine lacks something that the scenario needs"""


def parser() -> argparse.ArgumentParser:
    """Of all actions."""
    made = argparse.ArgumentParser(
        prog="tandem chaos", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    actions = made.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, (summary, example, arguments, function) in _ACTIONS.items():
        action = actions.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + ".", epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        arguments(action)
        action.set_defaults(function=function)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run one action; returns its exit code."""
    arguments = parser().parse_args(argv)
    arguments.command_line = list(sys.argv[1:] if argv is None else argv)
    logging.getLogger("tandemmq.cluster.client").setLevel(logging.ERROR)  # it meets every fault
    function: Callable[[argparse.Namespace], int] = arguments.function
    try:
        with ended_by_sigterm():
            return function(arguments)
    except KeyboardInterrupt:
        say("tandem chaos: interrupted; what it had started is stopped")
        return INTERRUPTED
    except Unsupported as problem:
        say(f"tandem chaos: not possible here: {problem}")
        return MISSING
    except ProcessBroken as problem:
        say(f"tandem chaos: {problem}")
        return UNKNOWN_CODE


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM is Ctrl-C to a run: faults heal, and the processes that it started are ended."""

    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    try:
        terminated = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread: whoever runs it there ends it
        yield
        return
    # a shell lets what it starts in the background ignore Ctrl-C
    interrupted = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, terminated)
        signal.signal(signal.SIGINT, interrupted)


# --- list


def _list_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("--json", action="store_true", help="output for programs")


def _list(arguments: argparse.Namespace) -> int:
    missing = stages_here()
    if arguments.json:
        rows = [
            {
                "name": each.name, "says": each.says, "stage": each.stage, "needs": STAGES[each.stage],
                "missing": missing[each.stage], "steps": each.steps, "mode": each.mode, "weight": each.weight,
                "workloads": each.workloads,
            }
            for each in SCENARIOS.values()
        ]  # fmt: skip
        print(json.dumps(rows))
        return OK
    width = max(map(len, SCENARIOS))
    for each in SCENARIOS.values():
        lacks = f"\n{'':{width}}  not here: {missing[each.stage]}" if missing[each.stage] else ""
        print(f"{each.name:{width}}  {each.says}{lacks}")
    print("\nwhat they are played on:")
    for stage, needs in STAGES.items():
        names = ", ".join(each.name for each in SCENARIOS.values() if each.stage == stage)
        print(f"  {stage:6} {needs}: {names}")
    print("\nworkloads beside the traffic (--workload):")
    width = max(map(len, WORKLOADS))
    for name, workload in WORKLOADS.items():
        print(f"  {name:{width}}  {workload.says}")
    return OK


# --- run


def _add_schedule(made: argparse.ArgumentParser) -> None:
    made.add_argument("--steps", type=int, help="default: the scenario's own")
    made.add_argument(
        "--mode", choices=("A0", "A1", "S0", "S1"), help="default: the scenario's own"
    )


def _add_rate(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--rate", type=float, default=400.0, help="messages/s beside 100 probes/s (%(default)g)"
    )


def _add_workload(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--workload", action="append", choices=list(WORKLOADS), metavar="NAME",
        help=f"beside the traffic, instead of the scenario's own: {', '.join(WORKLOADS)}; may be repeated",
    )  # fmt: skip


def _run_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "scenario",
        nargs="?",
        choices=list(SCENARIOS),
        metavar="SCENARIO",
        help="see tandem chaos list",
    )
    made.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="a schedule.json instead of a scenario and a seed",
    )
    made.add_argument(
        "--target", default=LOCAL, metavar="local|compose|HOST:PORT",
        help="a cluster that is started for it; the containers of deploy/compose.yaml that run here; or the name "
        "server of a cluster that runs, Apache RocketMQ's as well (%(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--handle", action="append", default=[], metavar="ADDRESS=pid:PID[,start:COMMAND]|container:NAME",
        help="with a name server as target: what may be broken, by the address of a broker; may be repeated. Nothing "
        "else is touched",
    )  # fmt: skip
    made.add_argument("--seed", type=int, help="default: drawn, and printed")
    _add_schedule(made)
    made.add_argument("--replicas", type=int, choices=(2, 3), help="default: the scenario's own")
    _add_rate(made)
    _add_workload(made)
    made.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="default: a temporary directory, which is printed",
    )
    made.add_argument(
        "--keep", action="store_true", help="keep stores and server logs of a valid run, too"
    )
    made.add_argument(
        "--metrics-port", type=int, metavar="PORT",
        help="serve what the run does for Prometheus while it goes on, on loopback: /metrics, and /targets for "
        "http_sd_configs; 0: any port, which is printed",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="print report.json")


def _run(arguments: argparse.Namespace) -> int:
    schedule = schedule_of(arguments)
    if schedule is None:
        say("tandem chaos run: name a SCENARIO (see tandem chaos list) or --replay FILE")
        return USAGE
    directory = report_directory(arguments.report, schedule)
    if directory is None:
        say(f"tandem chaos run: {arguments.report} is not empty: name another directory")
        return USAGE
    say(
        f"scenario {schedule.scenario}, seed {schedule.seed}, mode {schedule.mode}; the schedule, written before:"
    )
    for step in schedule.steps:
        say(f"  {step}")
    run: ScenarioRun | TargetRun
    try:
        if arguments.target == LOCAL:
            run = ScenarioRun(schedule, directory, say, rate=arguments.rate)
        else:
            name_server, handles = arguments.target, arguments.handle
            if name_server == COMPOSE:
                found = composed()
                name_server, handles = found.name_server, [*found.handles, *handles]
            run = TargetRun(schedule, name_server, handles, directory, say, rate=arguments.rate)
    except (ValueError, Unfit) as problem:
        say(f"tandem chaos run: {problem}")
        return USAGE
    try:
        played = asyncio.run(play(run, arguments.metrics_port))
    except PortTaken as problem:
        say(f"tandem chaos run: --metrics-port: {problem}")
        return USAGE
    told = write_report(played)
    if played.judgement.good and not arguments.keep:
        clean(directory)
    finish(played, told, as_json=arguments.json)
    return CODES[played.judgement.word]


async def play(run: ScenarioRun | TargetRun, metrics_port: int | None) -> Played:
    """The run, and its metrics beside it. Raises PortTaken."""
    if metrics_port is None:
        return await run.play()
    async with serving(run.progress, metrics_port) as address:
        say(
            f"metrics: http://{address}/metrics, exporters of its brokers: http://{address}/targets"
        )
        return await run.play()


def schedule_of(arguments: argparse.Namespace) -> Schedule | None:
    """Drawn or read. None when neither was asked for."""
    if arguments.replay is not None:
        try:
            return Schedule.read(arguments.replay)
        except (OSError, msgspec.MsgspecError) as problem:
            say(f"tandem chaos run: {arguments.replay} is no schedule: {problem}")
            return None
    if arguments.scenario is None:
        return None
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    return SCENARIOS[arguments.scenario].schedule(
        seed, arguments.steps, arguments.mode, arguments.replicas, arguments.workload
    )


def report_directory(given: Path | None, schedule: Schedule) -> Path | None:
    """An empty directory; None when the one that was named is not."""
    if given is None:
        return Path(tempfile.mkdtemp(prefix=f"tandem-chaos-{schedule.scenario}-"))
    if used(given):
        return None
    given.mkdir(parents=True, exist_ok=True)
    return given.resolve()


def used(directory: Path) -> bool:
    """Whether there is something in it."""
    return directory.exists() and any(directory.iterdir())


def finish(played: Played, told: Mapping[str, Any], *, as_json: bool) -> None:
    """The verdict in a few lines, or all of it as JSON."""
    if as_json:
        print(json.dumps(told))
        return
    outage = f"never longer than {GAP_NS / 1e9:g} s without an acknowledgement"
    if told["outages_ms"]:
        outage = f"longest without an acknowledgement {told['longest_outage_ms'] / 1000:.2f} s"
    print(
        f"{told['verdict'].upper()}: {told['acknowledged']:,} acknowledged, {told['lost']} lost, "
        f"{len(told['faults'])} faults, {outage}, "
        f"{told['operations']:,} operations checked"
    )
    for each in told["faults"]:
        print(f"  {each['says']}: {each['silent_ms'] / 1000:.2f} s without an acknowledgement")
    for each in told["findings"][:10]:
        print(f"FINDING {each['check']} {each['text']}")
    for each in told["doubts"][:10]:
        print(f"UNKNOWN {each}")
    print(f"report: {played.directory / HTML}")


# --- judge


def _judge_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("history", type=Path, metavar="FILE", help="history.jsonl of a report")
    made.add_argument(
        "--linearizability", action="store_true",
        help="ask Porcupine, too, whether one order explains each queue and each setting (C-21): unknown where there "
        "is no Go to build it",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="output for programs")


def _judge(arguments: argparse.Namespace) -> int:
    judgement = judge_history(arguments.history, linearizability=arguments.linearizability)
    say_judgement(judgement, as_json=arguments.json)
    return CODES[judgement.word]


# --- sim


def _sim_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("--seeds", type=int, default=200, help="how many (%(default)s)")
    made.add_argument(
        "--from", dest="first", type=int, default=0, metavar="SEED", help="the first (%(default)s)"
    )
    made.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    made.add_argument(
        "--world", choices=("cores", "whole"), default="cores",
        help="cores: replication's decisions over simulated disks. whole: servers and clients that ship (%(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--replay", type=Path, metavar="DIR",
        help="the schedule of a report instead of a seed's own faults, with servers and clients that ship: whether it "
        "ends in the verdict of the report",
    )  # fmt: skip


def _sim(arguments: argparse.Namespace) -> int:
    if arguments.seeds < 1:
        say("tandem chaos sim: --seeds must be at least 1")
        return USAGE
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    logging.getLogger("tandemmq.cluster").setLevel(logging.CRITICAL)
    if arguments.replay is not None:
        return _simulated_again(arguments.replay, seeds, arguments.jobs)
    if arguments.world == "whole":
        from tandemmq.chaos.whole.__main__ import campaign as whole_campaign
        from tandemmq.chaos.whole.seeds import EVENTS, SeedRun

        failed = whole_campaign([SeedRun(seed, EVENTS, None) for seed in seeds], arguments.jobs)
        return INVALID_CODE if failed else OK
    from tandemmq.chaos.sim.__main__ import report as sim_report
    from tandemmq.chaos.sim.campaign import campaign as sim_campaign

    found = sim_campaign(seeds, 2000, jobs=arguments.jobs, progress=say)
    sim_report(found)
    for seed, problem in found.failures:
        print(f"FAILED seed {seed}: {problem.splitlines()[0]}")
    return INVALID_CODE if found.failures else OK


def _simulated_again(directory: Path, seeds: Sequence[int], jobs: int) -> int:
    """What real processes lived through, in the simulator."""
    from tandemmq.chaos.whole.replay import agree, on_real_processes, simulated

    try:
        real = on_real_processes(directory)
        schedule = Schedule.read(directory / SCHEDULE)
    except (OSError, ValueError, msgspec.MsgspecError) as problem:
        say(f"tandem chaos sim: {directory} is no report of a run: {problem}")
        return USAGE
    found = simulated(schedule, seeds, jobs)
    print(f"real processes   {real}")
    print(f"{f'{len(seeds)} simulated':16} {found}")
    for finding in found.findings[:3]:
        print(f"FINDING {finding}")
    for doubt in (real.doubts + found.doubts)[:10]:
        print(f"UNKNOWN {doubt}")
    same = agree(real, found)
    print("the same verdict" if same else "NOT THE SAME VERDICT")
    return CODES[real.word] if same else INVALID_CODE


# --- campaign


def _campaign_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--hours", type=float, default=1.0, help="begin no run after so long (%(default)g)"
    )
    made.add_argument("--runs", type=int, help="stop after so many of this call")
    made.add_argument(
        "--state",
        type=Path,
        default=Path("chaos-campaign.jsonl"),
        help="results so far (%(default)s)",
    )
    made.add_argument(
        "--only",
        action="append",
        choices=list(SCENARIOS),
        metavar="SCENARIO",
        help="may be repeated",
    )
    made.add_argument(
        "--seed", type=int, default=1, help="of the draw of scenarios and their seeds (%(default)s)"
    )
    _add_rate(made)
    made.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="write the table of all results there, as Markdown",
    )
    made.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        default=Path("chaos-campaign"),
        help="of runs that are not valid",
    )


def _campaign(arguments: argparse.Namespace) -> int:
    from tandemmq.chaos.scenarios.campaigning import run_campaign

    return run_campaign(arguments, say)


# --- compare


def _compare_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--servers", choices=("java", "tandem"), default="java",
        help="java: RocketMQ's, in controller mode, by a JDK and Maven; tandem: ours again, which shows how much is "
        "chance (%(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--scenario", action="append", choices=list(SCENARIOS), metavar="SCENARIO",
        help=f"may be repeated; default: {', '.join(COMPARED)}",
    )  # fmt: skip
    made.add_argument("--seed", type=int, default=1, help="of the schedules (%(default)s)")
    made.add_argument("--runs", type=int, default=1, help="seeds per scenario (%(default)s)")
    _add_schedule(made)
    _add_workload(made)
    _add_rate(made)
    made.add_argument(
        "--report", type=Path, metavar="DIR", help="a report of every run; default: a temporary directory"
    )  # fmt: skip
    made.add_argument(
        "--document", type=Path, metavar="FILE",
        help="put the table there, with command, commit and date: docs/chaos-results.md",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="output for programs")


def _compare(arguments: argparse.Namespace) -> int:
    if arguments.runs < 1:
        say("tandem chaos compare: --runs must be at least 1")
        return USAGE
    if arguments.report is not None and used(arguments.report):
        say(f"tandem chaos compare: {arguments.report} is not empty: name another directory")
        return USAGE
    try:
        return run_comparison(arguments, say)
    except Unfit as problem:
        say(f"tandem chaos compare: {problem}")
        return USAGE


Arguments = Callable[[argparse.ArgumentParser], None]
_ACTIONS: Final[dict[str, tuple[str, str, Arguments, Callable[[argparse.Namespace], int]]]] = {
    "list": ("scenarios, and what they need of this machine", "tandem chaos list", _list_arguments, _list),
    "run": ("break a cluster, judge it, write a report", "tandem chaos run kill --report report", _run_arguments, _run),
    "campaign": (
        "scenarios by weight for hours; goes on where it was ended", "tandem chaos campaign --hours 8",
        _campaign_arguments, _campaign,
    ),
    "compare": (
        "the same faults on RocketMQ's servers, in one table", "tandem chaos compare --servers java --scenario kill",
        _compare_arguments, _compare,
    ),
    "sim": ("whole clusters in simulated time", "tandem chaos sim --seeds 2000 --jobs 2", _sim_arguments, _sim),
    "judge": ("judge the history of a run again", "tandem chaos judge report/history.jsonl", _judge_arguments, _judge),
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
