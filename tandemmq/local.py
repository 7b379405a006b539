"""`tandem local`: a name server and two masters as background processes, and what became of them.

In the directory the user names: cluster.json (ports), *.conf (ours at first, the user's to change),
run/*.pid, logs/*.log, store/BROKER, namesrv/.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from cluster.client import Admin, ClientError
from tandemmq.exits import CommandFailed, ExitCode
from tandemmq.screen import coloured, refresh, table

LOOPBACK: Final = "127.0.0.1"
CLUSTER: Final = "TandemCluster"
NAME_SERVER: Final = "namesrv"
BROKERS: Final = ("broker-a", "broker-b")
READY_S: Final = 30.0
_COLOURS: Final = {"running": "green", "died": "red"}
LOOK_S: Final = 0.05  # between two looks at a process that is starting
EPHEMERAL_PORT: Final = 32_768  # from here on Linux hands ports to outgoing connections


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the local cluster."""

    name: str
    port: int

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def is_broker(self) -> bool:
        return self.name != NAME_SERVER


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a local cluster keeps things, and who belongs to it."""

    directory: Path
    members: tuple[Member, ...]

    @property
    def name_server(self) -> Member:
        return self.members[0]

    def pid_file(self, member: Member) -> Path:
        return self.directory / "run" / f"{member.name}.pid"

    def log_file(self, member: Member) -> Path:
        return self.directory / "logs" / f"{member.name}.log"

    def config_file(self, member: Member) -> Path:
        return self.directory / f"{member.name}.conf"

    def store(self, member: Member) -> Path:
        return self.directory / "store" / member.name


@dataclass(frozen=True, slots=True)
class Condition:
    """What became of one process. state: running, stopped (never started, or by us), died."""

    name: str
    address: str
    state: str
    pid: int | None
    registered: bool | None  # None: a name server has nowhere to register
    log: str


# Commands


def run_up(arguments: argparse.Namespace) -> ExitCode:
    """Start what does not run and wait until brokers are registered."""
    directory: Path = arguments.dir.absolute()
    layout = _open_or_create(directory, arguments.namesrv_port, arguments.broker_port)
    start(layout)
    conditions = asyncio.run(_wait_ready(layout))
    _print_conditions(layout, conditions, as_json=arguments.json)
    if not arguments.json:
        print(f"\nready: name server {layout.name_server.address}, data in {directory}")
        print(f"try:   tandem send Hello world -n {layout.name_server.address}")
    return ExitCode.OK


def run_down(arguments: argparse.Namespace) -> ExitCode:
    """SIGTERM to brokers, then to the name server; report how each ended."""
    layout = _open(arguments.dir.absolute())
    results = stop(layout, arguments.timeout, kill=arguments.kill)
    if arguments.json:
        print(json.dumps(results))
    else:
        for name, result in results.items():
            print(f"{name}: {result}")
    return ExitCode.NOT_STOPPED if "still running" in results.values() else ExitCode.OK


def run_status(arguments: argparse.Namespace) -> ExitCode:
    """Say who runs. Exit code NOT_RUNNING unless everything does and is registered."""
    layout = _open(arguments.dir.absolute())
    if arguments.watch:
        try:
            asyncio.run(_watch(layout, arguments))
        except KeyboardInterrupt:
            return ExitCode.OK  # that is how it is meant to end
    conditions = asyncio.run(_conditions(layout))
    _print_conditions(layout, conditions, as_json=arguments.json)
    return ExitCode.OK if all(map(_well, conditions)) else ExitCode.NOT_RUNNING


async def _watch(layout: Layout, arguments: argparse.Namespace) -> None:
    """Until Ctrl-C or a broken pipe."""
    if arguments.interval <= 0:
        raise CommandFailed(
            f"--interval must be above 0, got {arguments.interval:g}", ExitCode.USAGE
        )
    while True:
        conditions = await _conditions(layout)
        if arguments.json:
            _print_conditions(layout, conditions, as_json=True)
            sys.stdout.flush()
        else:
            refresh(_condition_table(conditions))
        await asyncio.sleep(arguments.interval)


def run_logs(arguments: argparse.Namespace) -> ExitCode:
    """Print the last lines of each log, or of one."""
    layout = _open(arguments.dir.absolute())
    names = [member.name for member in layout.members]
    if arguments.name is not None and arguments.name not in names:
        raise CommandFailed(f"no process {arguments.name!r}; there are {', '.join(names)}")
    for member in layout.members:
        if arguments.name in (None, member.name):
            print(coloured(f"==> {layout.log_file(member)} <==", "bold"))
            print("".join(_last_lines(layout.log_file(member), arguments.lines)), end="")
    return ExitCode.OK


def run_kill(arguments: argparse.Namespace) -> ExitCode:
    """kill -9 one process, to see what happens; `up` starts it again."""
    layout = _open(arguments.dir.absolute())
    members = {member.name: member for member in layout.members}
    if arguments.name not in members:
        raise CommandFailed(f"no process {arguments.name!r}; there are {', '.join(members)}")
    pid = _running_pid(layout, members[arguments.name])
    if pid is None:
        raise CommandFailed(f"{arguments.name} does not run", ExitCode.NOT_RUNNING)
    os.kill(pid, signal.SIGKILL)
    if not _wait_gone(pid, 5.0):
        raise CommandFailed(f"{arguments.name} (pid {pid}) still runs", ExitCode.NOT_STOPPED)
    print(json.dumps({"killed": arguments.name}) if arguments.json else f"{arguments.name}: killed")
    return ExitCode.OK


# Setting up


def _open_or_create(directory: Path, namesrv_port: int, broker_port: int) -> Layout:
    if (directory / "cluster.json").exists():
        layout = _open(directory)
        wanted = [namesrv_port, broker_port, broker_port + 10]
        found = [member.port for member in layout.members]
        if wanted != found and wanted != [9876, 10911, 10921]:
            raise CommandFailed(
                f"{directory} holds a cluster with ports {found}; "
                "leave the port options out, or choose another --dir"
            )
        return layout
    ports = [namesrv_port, broker_port, broker_port + 10]
    for port in [namesrv_port, broker_port - 2, broker_port + 11]:
        if not 1024 <= port < EPHEMERAL_PORT:
            raise CommandFailed(
                f"port {port} is not in 1024..{EPHEMERAL_PORT - 1}: above that range outgoing "
                "connections may take it first",
                ExitCode.USAGE,
            )
    members = tuple(
        Member(name, port) for name, port in zip((NAME_SERVER, *BROKERS), ports, strict=True)
    )
    layout = Layout(directory, members)
    for path in (directory / "run", directory / "logs", directory / "namesrv"):
        path.mkdir(parents=True, exist_ok=True)
    for member in members:
        if not layout.config_file(member).exists():
            layout.config_file(member).write_text(_settings(layout, member))
    entries = [{"name": member.name, "port": member.port} for member in members]
    (directory / "cluster.json").write_text(json.dumps({"members": entries}, indent=1) + "\n")
    return layout


def _open(directory: Path) -> Layout:
    path = directory / "cluster.json"
    try:
        entries = json.loads(path.read_text())["members"]
        members = tuple(Member(str(entry["name"]), int(entry["port"])) for entry in entries)
    except FileNotFoundError:
        raise CommandFailed(
            f"no local cluster in {directory}: start one with `tandem local up --dir {directory}`",
            ExitCode.NOT_RUNNING,
        ) from None
    except (ValueError, KeyError, TypeError) as problem:
        raise CommandFailed(f"{path} cannot be read: {problem!r}", ExitCode.BAD_CONFIG) from problem
    return Layout(directory, members)


def _settings(layout: Layout, member: Member) -> str:
    if not member.is_broker:
        lines = {
            "listenPort": member.port,
            "kvConfigPath": layout.directory / "namesrv" / "kvConfig.json",
        }
    else:
        lines = {
            "brokerClusterName": CLUSTER,
            "brokerName": member.name,
            "brokerId": 0,
            "brokerRole": "ASYNC_MASTER",
            "brokerIP1": LOOPBACK,
            "listenPort": member.port,
            "namesrvAddr": layout.name_server.address,
            "storePathRootDir": layout.store(member),
            "mappedFileSizeCommitLog": 64 << 20,
            "flushDiskType": "ASYNC_FLUSH",
        }
    head = f"# {member.name} of the local cluster, written by `tandem local up`; yours to change\n"
    return head + "".join(f"{key}={value}\n" for key, value in lines.items())


# Processes


def start(layout: Layout) -> None:
    """Start every member that does not run. Raises CommandFailed when one of its ports is taken."""
    for member in layout.members:
        if _running_pid(layout, member) is not None:
            continue
        for port in [member.port, member.port - 2] if member.is_broker else [member.port]:
            _check_port_free(member, port)
        role = "broker" if member.is_broker else "nameserver"
        command = [sys.executable, "-m", "tandemmq", role, "-c", str(layout.config_file(member))]
        layout.log_file(member).parent.mkdir(parents=True, exist_ok=True)
        with layout.log_file(member).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in this terminal is not for them
            )
        identity = {"pid": process.pid, "born": _birth_of(process.pid)}
        layout.pid_file(member).parent.mkdir(parents=True, exist_ok=True)
        layout.pid_file(member).write_text(json.dumps(identity) + "\n")
        process.returncode = 0  # it outlives us on purpose: nothing of it is ours to wait for


def _check_port_free(member: Member, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as problem:
            raise CommandFailed(
                f"{member.name} cannot listen on {LOOPBACK}:{port}: {problem.strerror}; "
                "stop what uses it, or choose ports with --namesrv-port and --broker-port",
                ExitCode.PORT_TAKEN,
            ) from problem


async def _wait_ready(layout: Layout) -> list[Condition]:
    deadline = time.monotonic() + READY_S
    while True:
        conditions = await _conditions(layout)
        if all(map(_well, conditions)):
            return conditions
        for condition in conditions:
            if condition.state != "running":
                ending = "".join(_last_lines(Path(condition.log), 15))
                raise CommandFailed(
                    f"{condition.name} did not start; the end of {condition.log}:\n{ending}",
                    ExitCode.NOT_RUNNING,
                )
        if time.monotonic() > deadline:
            late = ", ".join(each.name for each in conditions if not _well(each))
            raise CommandFailed(
                f"not ready within {READY_S:g} s: {late}; see `tandem local logs`",
                ExitCode.NOT_RUNNING,
            )
        await asyncio.sleep(LOOK_S)


def _well(condition: Condition) -> bool:
    return condition.state == "running" and condition.registered is not False


async def _conditions(layout: Layout) -> list[Condition]:
    try:
        async with Admin(layout.name_server.address) as admin:
            known = {
                address for ids in (await admin.brokers()).values() for address in ids.values()
            }
    except ClientError:
        known = set()  # the name server is away: nobody is registered
    found = []
    for member in layout.members:
        pid = _running_pid(layout, member)
        died = pid is None and layout.pid_file(member).exists()
        state = "running" if pid is not None else "died" if died else "stopped"
        registered = member.address in known and pid is not None if member.is_broker else None
        log = str(layout.log_file(member))
        found.append(Condition(member.name, member.address, state, pid, registered, log))
    return found


def stop(layout: Layout, timeout_s: float, *, kill: bool) -> dict[str, str]:
    """Ask brokers, then the name server, to stop; name -> how it ended."""
    brokers = [member for member in layout.members if member.is_broker]
    results = _stop_together(layout, brokers, timeout_s, kill=kill)
    return results | _stop_together(layout, [layout.name_server], timeout_s, kill=kill)


def _stop_together(
    layout: Layout, members: Iterable[Member], timeout_s: float, *, kill: bool
) -> dict[str, str]:
    results: dict[str, str] = {}
    began = time.monotonic()
    asked: list[tuple[Member, int]] = []
    for member in members:
        pid = _running_pid(layout, member)
        if pid is None:
            results[member.name] = (
                "died before" if layout.pid_file(member).exists() else "was not running"
            )
            layout.pid_file(member).unlink(missing_ok=True)
        else:
            os.kill(pid, signal.SIGTERM)
            asked.append((member, pid))
    for member, pid in asked:
        if _wait_gone(pid, began + timeout_s - time.monotonic()):
            results[member.name] = f"stopped in {time.monotonic() - began:.1f} s"
        elif not kill:
            results[member.name] = "still running"
            continue
        else:
            os.kill(pid, signal.SIGKILL)
            _wait_gone(pid, 5.0)
            results[member.name] = f"killed after {timeout_s:g} s"
        layout.pid_file(member).unlink(missing_ok=True)
    return results


def _wait_gone(pid: int, timeout_s: float) -> bool:
    """Wait until the process has ended; False after timeout_s."""
    if hasattr(os, "pidfd_open"):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([handle], [], [], max(0.0, timeout_s))[0])
        finally:
            os.close(handle)
    deadline = time.monotonic() + timeout_s
    while _birth_of(pid) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True


def _running_pid(layout: Layout, member: Member) -> int | None:
    """The member's process, None when it does not run.

    A pid that now names another process is not it.
    """
    try:
        identity = json.loads(layout.pid_file(member).read_text())
        pid, born = int(identity["pid"]), identity["born"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return pid if born is not None and _birth_of(pid) == born else None


def _birth_of(pid: int) -> str | None:
    """When a process was born, to tell it from a later one of the same pid; None: it is gone."""
    try:
        # behind the command's closing bracket: state is field 3, the start time field 22
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
        shown = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )  # not Linux
        return shown.stdout.strip() or None
    return None if fields[0] == "Z" else fields[19]


# Output


def _print_conditions(layout: Layout, conditions: Sequence[Condition], *, as_json: bool) -> None:
    if as_json:
        members = [asdict(condition) for condition in conditions]
        print(json.dumps({"directory": str(layout.directory), "members": members}))
        return
    print(_condition_table(conditions))


def _condition_table(conditions: Sequence[Condition]) -> str:
    rows = [
        (
            each.name,
            each.address,
            coloured(each.state, _COLOURS.get(each.state, "yellow")),
            each.pid or "-",
            {None: "-", True: "yes", False: "no"}[each.registered],
            each.log,
        )
        for each in conditions
    ]
    return table(["NAME", "ADDRESS", "STATE", "PID", "REGISTERED", "LOG"], rows)


def _last_lines(path: Path, count: int) -> list[str]:
    try:
        with path.open(errors="replace") as lines:
            return list(deque(lines, maxlen=max(0, count)))
    except FileNotFoundError:
        return []
