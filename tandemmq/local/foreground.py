"""`tandem local run`: a whole cluster in the foreground. It ends, and takes all of it along, on SIGTERM.

What servers import is imported once, and each member is a fork of this process: that halves the time of a start.
Where Linux allows it, members stop by themselves when this process is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from tandemmq.command import cli
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.health import ask
from tandemmq.local import processes
from tandemmq.local.layout import ANYWHERE, LOOPBACK, Layout, LocalProcess, Shape, open_or_create

READY_S: Final = 60.0
LOOK_S: Final = 0.02
STOP_S: Final = 15.0
_PR_SET_PDEATHSIG: Final = 1
_SERVERS: Final = ("command.serving", "cluster.nameserver", "cluster.broker")
_ENDINGS: Final = (signal.SIGTERM, signal.SIGINT)


class _Asked(BaseException):
    """SIGTERM or SIGINT came. No Exception: nothing on the way may take it for a failure."""


def run_foreground(arguments: argparse.Namespace) -> ExitCode:
    """Start everything, say so, and wait: for SIGTERM or Ctrl-C, or with --attached for the end of stdin."""
    began_s = time.monotonic()
    with _directory(arguments) as directory:
        try:
            layout = open_or_create(
                directory, arguments.mode, arguments.namesrv_port, arguments.broker_port,
                _shape(arguments),
            )  # fmt: skip
        except OSError as problem:
            raise CommandFailed(
                f"{problem.filename or directory} cannot be written: {problem.strerror}; name another "
                "directory with --dir",
                ExitCode.STORE_UNUSABLE,
            ) from problem
        cluster = _Members(layout)
        try:
            with _signals():
                cluster.start_all()
                _announce(layout, time.monotonic() - began_s, as_json=arguments.json)
                _Watch(cluster, arguments).run()
        except _Asked:
            pass  # that is how it is meant to end
        finally:
            ended = processes.stop(layout, STOP_S, kill=True)
            if not arguments.json:
                print(*(f"{name}: {result}" for name, result in ended.items()), sep="\n")
    return ExitCode.OK


def _shape(arguments: argparse.Namespace) -> Shape:
    bind = ANYWHERE if arguments.host is not None else LOOPBACK
    serving = importlib.import_module(
        "tandemmq.command.serving"
    )  # the servers' extra, and only here
    settings = serving.assignments(arguments.set)
    return Shape(
        arguments.groups,
        arguments.host or LOOPBACK,
        bind,
        settings,
        console=not arguments.temporary,
    )


@contextlib.contextmanager
def _directory(arguments: argparse.Namespace) -> Iterator[Path]:
    if not arguments.temporary:
        yield arguments.dir.absolute()
        return
    made = Path(tempfile.mkdtemp(prefix="tandem-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """The first SIGTERM or SIGINT raises _Asked; a second one ends this process at once, and the kernel the others."""

    def ask_once(number: int, frame: object) -> NoReturn:
        for each in _ENDINGS:
            signal.signal(each, signal.SIG_DFL)
        raise _Asked

    for each in _ENDINGS:
        signal.signal(each, ask_once)
    try:
        yield
    finally:
        for each in _ENDINGS:
            signal.signal(each, signal.SIG_DFL)


def _announce(layout: Layout, took_s: float, *, as_json: bool) -> None:
    reached = f"{layout.shape.host}:{layout.name_server.port}"
    if not as_json:
        for each in layout.members:
            print(f"{each.name:<11} {layout.shape.host}:{each.port}  {layout.log_file(each)}")
        print(
            f"ready: name server {reached} ({took_s:.1f} s); Ctrl-C or SIGTERM stops all",
            flush=True,
        )
        return
    members = [
        {"name": each.name, "group": each.group, "pid": processes.running_pid(layout, each),
         "address": f"{layout.shape.host}:{each.port}", "log": str(layout.log_file(each))}
        for each in layout.members
    ]  # fmt: skip
    _tell(
        {"ready": reached, "directory": str(layout.directory), "mode": layout.mode,
         "controller": layout.controller if layout.mode else "", "seconds": round(took_s, 3),
         "members": members}
    )  # fmt: skip


def _tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


class _Members:
    """The processes of a cluster as our children."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._ready: dict[str, int] = {}  # by member: where it says that it serves
        for module in (*_SERVERS, *(["cluster.controller"] if layout.mode else [])):
            importlib.import_module(f"tandemmq.{module}")
        gc.freeze()  # what is loaded by now the children share

    def start_all(self) -> None:
        """Raises CommandFailed when one ends instead, or it takes too long."""
        layout = self.layout
        processes.check_ports(layout, layout.members)
        firsts = [members[0] for members in layout.groups.values()]
        rest = [each for each in layout.brokers if each not in firsts]
        new = not any(layout.store(each).exists() for each in layout.brokers)
        self._start([layout.name_server])  # a broker that finds it registers at once
        self._start(firsts)
        if rest and new:  # who comes first is made master: so that it is NAME-0
            for each in firsts:
                self._until(partial(_leads, each), each)
        self._start(rest)
        self._wait_for_sync(layout.members)

    def start(self, member: LocalProcess) -> None:
        """Bring one back and wait until it serves; a replica until it is in sync. Raises CommandFailed."""
        self.ended(member)  # or the kernel keeps what is left of the one before
        self._start([member])
        self._wait_for_sync([member])

    def _start(self, members: Sequence[LocalProcess]) -> None:
        for each in processes.check_ports(self.layout, members):
            self._fork(each)
        for each in members:
            self._until(partial(self._serves, each), each)

    def _wait_for_sync(self, members: Sequence[LocalProcess]) -> None:
        if self.layout.mode:
            # the client takes longer to load than all the rest, and only replicas are asked by it
            ready = importlib.import_module("tandemmq.local.commands").ready
            asyncio.run(ready(self.layout, members))

    def _fork(self, member: LocalProcess) -> None:
        layout = self.layout
        reading, writing = os.pipe()
        log = layout.log_file(member)
        log.parent.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
        pid = os.fork()
        if not pid:
            _become(layout, member, log, writing, before)
        processes.note(layout, member, pid)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writing)
        self._ready[member.name] = reading

    def _serves(self, member: LocalProcess) -> bool:
        """Whether it said so. Clears up after it did."""
        pipe = self._ready.get(member.name)
        if pipe is None:
            return True
        if not select.select([pipe], [], [], 0)[0] or not os.read(pipe, 1):
            return False
        os.close(self._ready.pop(member.name))
        return True

    def _until(self, holds: Callable[[], bool], member: LocalProcess) -> None:
        deadline_s = time.monotonic() + READY_S
        while not holds():
            code = self.ended(member)
            if code is not None:
                ending = "".join(processes.last_lines(self.layout.log_file(member), 15))
                taken = code == ExitCode.PORT_TAKEN
                raise CommandFailed(
                    f"{member.name} ended with {code} instead of getting ready:\n{ending}",
                    ExitCode.PORT_TAKEN if taken else ExitCode.NOT_RUNNING,
                )
            if time.monotonic() > deadline_s:
                raise CommandFailed(
                    f"{member.name} is not ready within {READY_S:g} s; see "
                    f"{self.layout.log_file(member)}",
                    ExitCode.NOT_RUNNING,
                )
            time.sleep(LOOK_S)

    def ended(self, member: LocalProcess) -> int | None:
        """How a child ended, as a shell has it below 0 for signals; None while it runs."""
        try:
            pid = int(json.loads(self.layout.pid_file(member).read_text())["pid"])
            found, status = os.waitpid(pid, os.WNOHANG)
        except (ChildProcessError, FileNotFoundError):
            return None  # not ours: `tandem local start` brought it back
        return os.waitstatus_to_exitcode(status) if found else None


def _leads(member: LocalProcess) -> bool:
    try:
        return ask(LOOPBACK, member.port).get("replicaState") == "master"
    except (OSError, ValueError):
        return False  # it does not serve yet


class _Announcing:
    """A member's stdout: the first line that a server prints there says that it serves."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def write(self, text: str) -> int:
        if self._pipe >= 0 and "boot success" in text:
            os.write(self._pipe, b"+")
            os.close(self._pipe)
            self._pipe = -1
        return os.write(1, text.encode(errors="replace"))

    def flush(self) -> None:
        """Nothing is kept back."""

    def fileno(self) -> int:
        return 1


def _become(layout: Layout, member: LocalProcess, log: Path, writing: int, mask: Any) -> NoReturn:
    """Go on as a member of the cluster, as `tandem broker` or `tandem nameserver` would."""
    code: int = ExitCode.BUG
    try:
        os.setsid()  # Ctrl-C in this terminal is for the one who started us: it stops us in order
        for each in (*_ENDINGS, signal.SIGCHLD):
            signal.signal(each, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _die_with_parent()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = _Announcing(writing)
        role = "broker" if member.is_broker else "nameserver"
        words = [role, "-c", str(layout.config_file(member))]
        if layout.shape.bind != LOOPBACK:
            words.append("--insecure")  # whoever gave --host knows: its help says so
        code = cli.main(words)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else ExitCode.FAILED
    except BaseException:
        traceback.print_exc()  # a bug: its place is the log, as with a process of its own
    finally:
        sys.stderr.flush()
        os._exit(code)


def _die_with_parent() -> None:
    """Have the kernel send SIGTERM when whoever started us is gone, whatever ended it."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)  # it was gone already


class _Watch:
    """Waits while the cluster runs, and tells of members that die."""

    def __init__(self, cluster: _Members, arguments: argparse.Namespace) -> None:
        self._cluster = cluster
        self._json: bool = arguments.json
        self._attached: bool = arguments.attached
        self._gone: set[str] = set()
        self._said = b""  # of stdin, without its line end yet

    def run(self) -> None:
        """Until _Asked, the end of stdin where that counts, or nobody is left. Raises CommandFailed for the last."""
        while True:
            self._look_for_the_dead()
            ready, _, _ = select.select([0] if self._attached else [], [], [], 0.2)
            if not ready:
                continue
            part = os.read(0, 65_536)
            if not part:
                return
            *lines, self._said = (self._said + part).split(b"\n")
            for line in lines:
                self._obey(line.decode(errors="replace").split())

    def _look_for_the_dead(self) -> None:
        layout = self._cluster.layout
        for member in layout.members:
            code = self._cluster.ended(member)
            if code is None:
                continue
            self._gone.add(member.name)
            if self._json:
                _tell({"died": member.name, "code": code})
            else:
                print(
                    f"{member.name} died ({_ending(code)}); its log: {layout.log_file(member)}",
                    flush=True,
                )
        if self._attached or not self._gone:
            return
        running = [each for each in layout.members if processes.running_pid(layout, each)]
        if layout.name_server not in running or len(running) < 2:
            raise CommandFailed(
                f"nothing is left that could serve: {', '.join(sorted(self._gone))} died",
                ExitCode.NOT_RUNNING,
            )

    def _obey(self, words: list[str]) -> None:
        """`start NAME`: bring a member back that was stopped or killed."""
        if len(words) != 2 or words[0] != "start":
            _tell({"refused": f"{' '.join(words)!r} is no command: `start NAME` is the only one"})
            return
        try:
            member = self._cluster.layout.member(words[1])
            self._cluster.start(member)
        except CommandFailed as problem:
            _tell({"refused": str(problem)})
            return
        pid = processes.running_pid(self._cluster.layout, member)
        _tell({"started": member.name, "pid": pid})


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
