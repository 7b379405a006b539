"""`tandem local`: a whole cluster on this machine as background processes, and faults for it.

Either a name server and two masters, or (--mode) two groups of a master and a slave each, with a
controller in the name server that makes a slave master when its master is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.output import plain
from tandemmq.command.screen import coloured, refresh
from tandemmq.command.words.shared import LOCAL_DIRECTORY
from tandemmq.local import processes
from tandemmq.local.layout import Layout, LocalProcess, open_layout, open_or_create
from tandemmq.local.status import Status, look, looking, to_text, to_tree

READY_S: Final = 30.0
FOLLOW_S: Final = 0.2
SIGNALS: Final = {
    "KILL": signal.SIGKILL,
    "STOP": signal.SIGSTOP,
    "CONT": signal.SIGCONT,
    "TERM": signal.SIGTERM,
}


def run_up(arguments: argparse.Namespace) -> ExitCode:
    """Start what does not run and wait until it is ready."""
    began = time.monotonic()
    directory: Path = arguments.dir.absolute()
    try:
        layout = open_or_create(
            directory, arguments.mode, arguments.namesrv_port, arguments.broker_port
        )
    except OSError as problem:
        raise CommandFailed(
            f"{problem.filename or directory} cannot be written: {problem.strerror}; name another "
            "directory with --dir",
            ExitCode.STORE_UNUSABLE,
        ) from problem
    where = f" --dir {arguments.dir}" if arguments.dir != LOCAL_DIRECTORY else ""
    try:
        started = asyncio.run(_start_all(layout))
        status = asyncio.run(ready(layout, layout.members))
    except KeyboardInterrupt as problem:
        raise CommandFailed(
            f"interrupted: {len(_running(layout, layout.members))} of {len(layout.members)} "
            f"processes run; `tandem local up{where}` starts the others, `tandem local down{where}` "
            "stops them",
            ExitCode.INTERRUPTED,
        ) from problem
    took_s = time.monotonic() - began
    if arguments.json:
        tree = to_tree(status) | {"started": [each.name for each in started]}
        print(json.dumps(tree | {"seconds": round(took_s, 3)}))
        return ExitCode.OK
    print(to_text(status))
    address = layout.name_server.address
    if started:
        print(f"\nready: name server {address}, data in {directory} ({took_s:.1f} s)")
    else:
        print(f"\nruns already: name server {address}, data in {directory}")
    if layout.console:
        print(f"look:  {layout.console} (to act there: the token in {layout.token_file})")
    print(f"try:   tandem send Hello world -n {address}")
    if layout.mode and arguments.mode is None:
        print(f"it has replicas, as it was made (--mode {layout.mode}); --dir names another place")
    if layout.mode:
        print(f"       tandem local kill {layout.brokers[0].name}{where}")
        print(f"       tandem local status --watch{where}")
    return ExitCode.OK


def run_start(arguments: argparse.Namespace) -> ExitCode:
    """Start one process that was stopped or killed, and wait until it takes part again."""
    layout = open_layout(arguments.dir.absolute())
    member = layout.member(arguments.name)
    pid = processes.running_pid(layout, member)
    if pid is not None:
        raise CommandFailed(f"{member.name} runs already (pid {pid})")
    name_server = layout.name_server
    if member != name_server and processes.running_pid(layout, name_server) is None:
        raise CommandFailed(
            f"{name_server.name} does not run: start it first", ExitCode.NOT_RUNNING
        )
    began = time.monotonic()
    processes.start(layout, [member])
    status = asyncio.run(ready(layout, [member, *_dependents(layout, member)]))
    took_s = time.monotonic() - began
    condition = status.of(member.name)
    if arguments.json:
        found = {"started": member.name, "seconds": round(took_s, 3), "member": plain(condition)}
        print(json.dumps(found))
        return ExitCode.OK
    part = "ready" if member.is_broker else "ready, and every running broker registered,"
    if condition.role is not None:
        part = f"{condition.role} in epoch {condition.epoch}, in sync"
    print(f"{member.name}: {part} after {took_s:.1f} s (pid {condition.pid})")
    return ExitCode.OK


def _dependents(layout: Layout, member: LocalProcess) -> list[LocalProcess]:
    """Who has to find it again before it is of use: the running brokers their name server."""
    if member.is_broker:
        return []
    states = {each: processes.state(layout, each)[0] for each in layout.brokers}
    return [each for each, state in states.items() if state == "running"]


def run_kill(arguments: argparse.Namespace) -> ExitCode:
    """Signal one process, kill -9 unless told otherwise; `start` brings it back."""
    layout = open_layout(arguments.dir.absolute())
    member = layout.member(arguments.name)
    done = processes.send_signal(layout, member, SIGNALS[arguments.signal])
    if arguments.json:
        print(json.dumps({"name": member.name, "signal": arguments.signal, "result": done}))
    else:
        print(f"{member.name}: {done}")
    return ExitCode.OK


def run_down(arguments: argparse.Namespace) -> ExitCode:
    """SIGTERM to brokers, then to the name server; report how each ended."""
    layout = open_layout(arguments.dir.absolute())
    results = processes.stop(layout, arguments.timeout, kill=arguments.kill)
    if arguments.json:
        print(json.dumps(results))
    else:
        for name, result in results.items():
            print(f"{name}: {result}")
    return ExitCode.NOT_STOPPED if "still running" in results.values() else ExitCode.OK


def run_status(arguments: argparse.Namespace) -> ExitCode:
    """Say who runs and what as. Exit code NOT_RUNNING unless everything runs and takes part."""
    layout = open_layout(arguments.dir.absolute())
    if arguments.watch:
        try:
            asyncio.run(_watch(layout, arguments))
        except KeyboardInterrupt:
            return ExitCode.OK  # that is how it is meant to end
    status = asyncio.run(_look_once(layout))
    print(json.dumps(to_tree(status)) if arguments.json else to_text(status))
    return ExitCode.OK if status.well else ExitCode.NOT_RUNNING


async def _look_once(layout: Layout) -> Status:
    async with looking(layout) as admin:
        return await look(layout, admin)


async def _watch(layout: Layout, arguments: argparse.Namespace) -> None:
    """Until Ctrl-C or a broken pipe."""
    if arguments.interval <= 0:
        raise CommandFailed(
            f"--interval must be above 0, got {arguments.interval:g}", ExitCode.USAGE
        )
    async with looking(layout) as admin:
        while True:
            status = await look(layout, admin)
            if arguments.json:
                print(json.dumps(to_tree(status)))
                sys.stdout.flush()
            else:
                refresh(to_text(status))
            await asyncio.sleep(arguments.interval)


def run_logs(arguments: argparse.Namespace) -> ExitCode:
    """Print the last lines of each log, or of one."""
    if arguments.lines < 0:
        raise CommandFailed(f"--lines must be at least 0, got {arguments.lines}", ExitCode.USAGE)
    layout = open_layout(arguments.dir.absolute())
    chosen = layout.members if arguments.name is None else (layout.member(arguments.name),)
    if arguments.follow:
        with suppress(KeyboardInterrupt):  # that is how it is meant to end
            _follow({member.name: layout.log_file(member) for member in chosen}, arguments.lines)
        return ExitCode.OK
    for member in chosen:
        path = layout.log_file(member)
        _print_end(path, processes.last_lines(path, arguments.lines))
    return ExitCode.OK


def _print_end(path: Path, lines: list[str]) -> None:
    print(coloured(f"==> {path} <==", "bold"))
    print("".join(lines), end="")


def _follow(files: dict[str, Path], count: int) -> None:
    """Print the end of each and what is added to it, the names in front where there are several."""
    ends = {}
    for name, path in files.items():
        lines, ends[name] = processes.whole_lines(path, count)
        _print_end(path, lines)
    sys.stdout.flush()
    parts = dict.fromkeys(files, b"")
    while True:
        time.sleep(FOLLOW_S)
        for name, path in files.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(0 if path.stat().st_size < ends[name] else ends[name])  # it was cut
                *added, parts[name] = (parts[name] + file.read()).split(b"\n")
                ends[name] = file.tell()
            for line in added:
                text = line.decode(errors="replace")
                print(text if len(files) == 1 else f"{coloured(name, 'dim')}  {text}")
        sys.stdout.flush()


async def _start_all(layout: Layout) -> list[LocalProcess]:
    """Start what does not run; the first time the first replica of each group before the others.

    A controller makes the first one that comes master and gives it id 1: so that is what NAME-0 is.
    """
    processes.check_ports(layout, layout.members)
    first = [layout.name_server, *(members[0] for members in layout.groups.values())]
    others = [member for member in layout.members if member not in first]
    if not others or any(layout.store(member).exists() for member in layout.brokers):
        return processes.start(layout, layout.members)
    started = processes.start(layout, first)
    deadline = time.monotonic() + READY_S
    async with looking(layout) as admin:
        while not (await look(layout, admin)).led:
            if time.monotonic() > deadline or len(_running(layout, first)) < len(first):
                break  # _ready() says what is wrong
            await asyncio.sleep(processes.LOOK_S)
    return started + processes.start(layout, others)


def _running(layout: Layout, members: Sequence[LocalProcess]) -> list[LocalProcess]:
    return [member for member in members if processes.running_pid(layout, member) is not None]


async def ready(layout: Layout, members: Sequence[LocalProcess]) -> Status:
    """The status in which all of these take part. Raises CommandFailed when one ends, or after 30 s."""
    deadline = time.monotonic() + READY_S
    names = [member.name for member in members]
    async with looking(layout) as admin:
        while True:
            status = await look(layout, admin)
            late = [name for name in names if not status.is_well(status.of(name))]
            if not late:
                return status
            for name in late:
                condition = status.of(name)
                if condition.state in ("died", "stopped"):
                    ending = "".join(processes.last_lines(layout.log_file(layout.member(name)), 15))
                    raise CommandFailed(
                        f"{name} did not start; the end of {condition.log}:\n{ending}",
                        ExitCode.NOT_RUNNING,
                    )
            if time.monotonic() > deadline:
                raise CommandFailed(
                    f"not ready within {READY_S:g} s: {', '.join(late)}; see `tandem local logs`",
                    ExitCode.NOT_RUNNING,
                )
            await asyncio.sleep(processes.LOOK_S)
