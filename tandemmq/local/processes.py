"""The processes of a local cluster: started in the background, signalled, and recognised again later."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tandemmq.cluster.config import ConfigError, read_properties
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.local.layout import LOOPBACK, Layout, LocalProcess, port_problem

LOOK_S: Final = 0.02  # between two looks at a process
EFFECT_S: Final = 5.0  # a signal that shows no effect by then was none
_STOPPED: Final = frozenset("Tt")


def start(layout: Layout, members: Iterable[LocalProcess]) -> list[LocalProcess]:
    """Start those that do not run; returns them. Raises CommandFailed when a port is taken."""
    started = check_ports(layout, members)
    for member in started:
        _launch(layout, member)
    return started


def check_ports(layout: Layout, members: Iterable[LocalProcess]) -> list[LocalProcess]:
    """Those that do not run, when all their ports are free. Raises CommandFailed when one is taken."""
    absent = [member for member in members if running_pid(layout, member) is None]
    for member in absent:
        for port in layout.ports(member):
            problem = port_problem(port)
            if problem is not None:
                raise CommandFailed(
                    f"{member.name} cannot listen on {LOOPBACK}:{port}: {problem}; stop what "
                    f"uses it, or {_other_ports(layout)}",
                    ExitCode.PORT_TAKEN,
                )
    return absent


def _other_ports(layout: Layout) -> str:
    """A kept cluster keeps its ports."""
    if (layout.directory / "cluster.json").exists():
        return "make another cluster, which takes free ports, with --dir"
    return "choose ports with --namesrv-port and --broker-port"


def _launch(layout: Layout, member: LocalProcess) -> None:
    role = "broker" if member.is_broker else "nameserver"
    settings = layout.config_file(member)
    command = [sys.executable, "-m", "tandemmq", role, "-c", str(settings)]
    if layout.shape.bind != LOOPBACK:
        command.append("--insecure")  # whoever gave `local run` a --host was told
    if says_no_address(settings):
        command += ["--set", f"bindAddress={LOOPBACK}"]
    layout.log_file(member).parent.mkdir(parents=True, exist_ok=True)
    with layout.log_file(member).open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in this terminal is not for them
        )
    note(layout, member, process.pid)
    process.returncode = 0  # it outlives us on purpose: nothing of it is ours to wait for


def note(layout: Layout, member: LocalProcess, pid: int) -> None:
    """Write down which process a member is, for commands that are run later."""
    identity = {"pid": pid, "born": _birth_of(pid)}
    layout.pid_file(member).parent.mkdir(parents=True, exist_ok=True)
    layout.pid_file(member).write_text(json.dumps(identity) + "\n")


def says_no_address(settings: Path) -> bool:
    """A name server's file of a former release: a server with a file that names none listens everywhere."""
    try:
        return not {"bindAddress", "brokerIP1"} & read_properties(settings).keys()
    except ConfigError:
        return False  # the process says so in its log


def state(layout: Layout, member: LocalProcess) -> tuple[str, int | None]:
    """(running, frozen, stopped or died; its pid while there is one)."""
    pid = running_pid(layout, member)
    if pid is not None:
        return "frozen" if _letter(pid) in _STOPPED else "running", pid
    return "died" if layout.pid_file(member).exists() else "stopped", None


def send_signal(layout: Layout, member: LocalProcess, what: signal.Signals) -> str:
    """Signal a process and see the effect; returns it as a word. Raises CommandFailed."""
    pid = running_pid(layout, member)
    if pid is None:
        raise CommandFailed(f"{member.name} does not run", ExitCode.NOT_RUNNING)
    os.kill(pid, what)
    if what is signal.SIGSTOP:
        _await(lambda: _letter(pid) in _STOPPED, f"{member.name} (pid {pid}) is not frozen")
        return "frozen"
    if what is signal.SIGCONT:
        _await(lambda: _letter(pid) not in _STOPPED, f"{member.name} (pid {pid}) is still frozen")
        return "goes on"
    if what is signal.SIGTERM:
        _wake(pid)
    if not wait_gone(pid, 3 * EFFECT_S if what is signal.SIGTERM else EFFECT_S):
        raise CommandFailed(f"{member.name} (pid {pid}) still runs", ExitCode.NOT_STOPPED)
    if what is signal.SIGTERM:
        layout.pid_file(member).unlink(missing_ok=True)
        return "stopped"
    return "killed"


def _await(holds: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + EFFECT_S
    while not holds():
        if time.monotonic() > deadline:
            raise CommandFailed(problem, ExitCode.NOT_STOPPED)
        time.sleep(LOOK_S)


def _wake(pid: int) -> None:
    """A frozen process would not notice that it is asked to stop."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def stop(layout: Layout, timeout_s: float, *, kill: bool) -> dict[str, str]:
    """Ask brokers, then the name server, to stop; name -> how it ended."""
    results = _stop_together(layout, layout.brokers, timeout_s, kill=kill)
    return results | _stop_together(layout, [layout.name_server], timeout_s, kill=kill)


def _stop_together(
    layout: Layout, members: Iterable[LocalProcess], timeout_s: float, *, kill: bool
) -> dict[str, str]:
    results: dict[str, str] = {}
    began = time.monotonic()
    asked: list[tuple[LocalProcess, int]] = []
    for member in members:
        pid = running_pid(layout, member)
        if pid is None:
            results[member.name] = (
                "died before" if layout.pid_file(member).exists() else "was not running"
            )
            layout.pid_file(member).unlink(missing_ok=True)
        else:
            os.kill(pid, signal.SIGTERM)
            _wake(pid)
            asked.append((member, pid))
    for member, pid in asked:
        if wait_gone(pid, began + timeout_s - time.monotonic()):
            results[member.name] = f"stopped in {time.monotonic() - began:.1f} s"
        elif not kill:
            results[member.name] = "still running"
            continue
        else:
            os.kill(pid, signal.SIGKILL)
            wait_gone(pid, EFFECT_S)
            results[member.name] = f"killed after {timeout_s:g} s"
        layout.pid_file(member).unlink(missing_ok=True)
    return results


def wait_gone(pid: int, timeout_s: float) -> bool:
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


def running_pid(layout: Layout, member: LocalProcess) -> int | None:
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
    fields = _stat(pid)
    if fields is not None:
        return None if fields[0] == "Z" else fields[19]
    if Path("/proc/self/stat").exists():
        return None
    return _ps(pid, "lstart") or None  # not Linux


def _letter(pid: int) -> str:
    """How the kernel calls its state: R, S, D, T (stopped), Z; "" for a process that is gone."""
    fields = _stat(pid)
    return fields[0] if fields is not None else _ps(pid, "state")[:1]


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat behind the command's closing bracket: the first is the state."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _ps(pid: int, field: str) -> str:
    if Path("/proc/self/stat").exists():
        return ""
    shown = subprocess.run(
        ["ps", "-o", f"{field}=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip()


def last_lines(path: Path, count: int) -> list[str]:
    """The end of a log, nothing when there is none."""
    try:
        with path.open(errors="replace") as lines:
            return list(deque(lines, maxlen=max(0, count)))
    except FileNotFoundError:
        return []


def whole_lines(path: Path, count: int) -> tuple[list[str], int]:
    """The last lines of a log that is being written, and the byte offset behind them."""
    found: deque[bytes] = deque(maxlen=max(0, count))
    end = 0
    try:
        with path.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    found.append(line)
                    end += len(line)
    except FileNotFoundError:
        pass  # it is not there yet
    return [line.decode(errors="replace") for line in found], end
