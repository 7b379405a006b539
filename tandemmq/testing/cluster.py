"""A real cluster for tests: name server and broker as processes of this one, on ports of their own, gone afterwards."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from tandemmq.local.layout import port_problem

PORTS: Final = range(
    20_000, 32_000
)  # below Linux's ephemeral ones: no outgoing connection takes one first
PORTS_VARIABLE: Final = "TANDEM_PORTS"  # of the environment: another range, "20000-24000"
STEP: Final = 10
WIDTH: Final = 60  # ports that one cluster may take, from the name server's on
TRIES: Final = 20
READY_S: Final = 60.0
STOP_S: Final = 20.0
LOOK_S: Final = 0.02
PORT_TAKEN: Final = 8  # of tandemmq.command.exits
DELAY_LEVELS: Final = 18

#: of the brokers: what tests want and production does not
SETTINGS: Final[Mapping[str, str]] = {
    "messageDelayLevel": " ".join(
        ["1s"] * DELAY_LEVELS
    ),  # a message that failed comes again in a second, not in ten
    "enablePropertyFilter": "true",
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "1000",
    "recallMessageEnable": "true",
    "mappedFileSizeCommitLog": str(16 << 20),
}


class ClusterFailed(Exception):
    """The cluster did not start, or did not do what it was asked. The text holds the end of the log."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process. group: the broker name that it serves, "" for the name server."""

    name: str
    group: str
    address: str
    pid: int
    log: Path


class TandemCluster:
    """A cluster from `start()` to `stop()`, or in a `with` block; stopped also when this process is killed.

    replicas  1: one broker; 2: a master and a slave, with a controller that makes the slave master when it must
    settings  of the brokers, over tandemmq.testing.cluster.SETTINGS. Delay levels are one second each there, so that
              a message that failed is tried again soon

    Needs the extra `testing`. No asyncio here: it works in any test.

    Example:
        with TandemCluster() as cluster:
            asyncio.run(orders_are_billed_once(cluster.namesrv))
    """

    def __init__(
        self, *, replicas: Literal[1, 2] = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        if replicas not in (1, 2):
            raise ValueError(f"replicas must be 1 or 2, got {replicas}")
        self.replicas = replicas
        self.settings = {**SETTINGS, **(settings or {})}
        self.namesrv = ""
        self.directory = Path()
        self.members: dict[str, Member] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._dead: set[str] = set()

    @property
    def whole(self) -> bool:
        """Whether it runs and nobody was killed that was not started again."""
        return self._process is not None and self._process.poll() is None and not self._dead

    # Life

    def start(self) -> Self:
        """Returns when it serves. Raises ClusterFailed."""
        if self._process is not None:
            return self
        for attempt in range(1, TRIES + 1):
            try:
                self._launch(_free_ports())
                return self
            except _PortTaken:  # somebody was faster: others look for ports at the same time
                if attempt == TRIES:
                    raise
        return self

    def _launch(self, namesrv_port: int) -> None:
        words = [
            sys.executable, "-m", "tandemmq", "local", "run", "--temporary", "--attached", "--json",
            "--namesrv-port", str(namesrv_port), "--broker-port", str(namesrv_port + 2 * STEP),
            *(["--mode", "sync"] if self.replicas == 2 else []),
            *(word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")),
        ]  # fmt: skip
        process = self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the tests: they stop us
        )  # fmt: skip
        self._said, self._dead = b"", set()
        try:
            told = self._answer("ready", READY_S)
        except BaseException:
            self._abandon(process)
            raise
        self.namesrv = told["ready"]
        self.directory = Path(told["directory"])
        self.members = {
            each["name"]: Member(
                each["name"], each["group"], each["address"], each["pid"], Path(each["log"])
            )
            for each in told["members"]
        }

    def stop(self) -> None:
        """End every process and remove the directory. Raises ClusterFailed when it has to be killed."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise ClusterFailed(
                f"the cluster in {self.directory} did not stop within {STOP_S:g} s and was killed"
            ) from None
        finally:
            self._abandon(process)

    def _abandon(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        if process.poll() is None:
            process.kill()  # its members get SIGTERM from the kernel
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Topics

    def create_topic(self, topic: str, queue_count: int = 4) -> str:
        """Make a topic, or change it; returns its name when clients can use it.

        Example: cluster.create_topic("Orders")
        """
        # the client takes a while to load: only who makes topics waits for it
        from tandemmq.blocking.portal import PORTAL
        from tandemmq.testing.topics import create_topic

        PORTAL.call(create_topic(self.namesrv, topic, queue_count))
        return topic

    # Faults

    def master(self) -> Member:
        """The broker that is master now. Raises ClusterFailed when there is none within ten seconds."""
        return self._until(self._find_master, 10.0, "there is no master")

    def _find_master(self) -> Member | None:
        from tandemmq.command.health import ask

        for member in self.members.values():
            if not member.group:
                continue
            host, _, port = member.address.rpartition(":")
            try:
                told = ask(host, int(port))
            except (OSError, ValueError):
                continue
            if told.get("replicaState", told.get("brokerRole", "")) in ("master", "ASYNC_MASTER"):
                return member
        return None

    def kill(self, name: str) -> None:
        """kill -9 a member, and wait until it is gone. Raises ClusterFailed for a name that nobody has."""
        member = self._member(name)
        os.kill(member.pid, signal.SIGKILL)
        self._dead.add(name)
        self._answer("died", STOP_S)

    def kill_master(self) -> Member:
        """kill -9 the master and return when its slave is master instead: that one. Needs replicas=2.

        Raises ClusterFailed.
        """
        if self.replicas < 2:
            raise ClusterFailed("nobody could follow the master: use TandemCluster(replicas=2)")
        before = self.master()
        self.kill(before.name)
        return self.master()

    def restart(self, name: str) -> None:
        """Start a member that was killed; returns when it serves, and as a replica is in sync. Raises ClusterFailed."""
        member = self._member(name)
        process = self._running()
        assert process.stdin is not None
        process.stdin.write(f"start {name}\n".encode())
        process.stdin.flush()
        told = self._answer("started", READY_S)
        self._dead.discard(name)
        self.members[name] = Member(
            member.name, member.group, member.address, told["pid"], member.log
        )

    def log(self, name: str) -> str:
        """What a member wrote. Raises ClusterFailed for a name that nobody has."""
        return self._member(name).log.read_text(errors="replace")

    # What it says

    def _member(self, name: str) -> Member:
        if name not in self.members:
            known = ", ".join(self.members) or "none: it was not started"
            raise ClusterFailed(f"no member {name!r}; there are {known}")
        return self.members[name]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ClusterFailed("the cluster does not run: use it with `with`")
        return self._process

    def _answer(self, word: str, within_s: float) -> dict[str, Any]:
        """The next line that tells this. Raises ClusterFailed."""
        process = self._running()
        assert process.stdout is not None
        deadline_s = time.monotonic() + within_s
        while True:
            line, newline, rest = self._said.partition(b"\n")
            if newline:
                self._said = rest
                told: dict[str, Any] = json.loads(line)
                if "refused" in told:
                    raise ClusterFailed(told["refused"])
                if word in told:
                    return told
                continue
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
                raise ClusterFailed(f"the cluster did not say {word!r} within {within_s:g} s")
            part = os.read(process.stdout.fileno(), 65_536)
            if not part:
                raise self._ended(process)
            self._said += part

    def _ended(self, process: subprocess.Popen[bytes]) -> ClusterFailed:
        assert process.stderr is not None
        said = process.stderr.read().decode(errors="replace")[-6000:]
        code = process.wait()
        kind = _PortTaken if code == PORT_TAKEN else ClusterFailed
        return kind(f"`tandem local run` ended with exit code {code}:\n{said}")

    def _until(self, find: Any, within_s: float, what: str) -> Member:
        deadline_s = time.monotonic() + within_s
        while True:
            found: Member | None = find()
            if found is not None:
                return found
            if time.monotonic() > deadline_s:
                raise ClusterFailed(f"{what} after {within_s:g} s; logs in {self.directory}/logs")
            time.sleep(LOOK_S)


class _PortTaken(ClusterFailed):
    """Between our look and its start somebody took one of the ports."""


def _free_ports() -> int:
    """A port from which on a cluster finds all that it takes free. Raises ClusterFailed."""
    among = PORTS
    if given := os.environ.get(PORTS_VARIABLE):
        among = range(*map(int, given.split("-")))
    for _ in range(200):
        first = random.SystemRandom().randrange(among.start, among.stop - WIDTH, STEP)
        if not any(map(port_problem, range(first, first + WIDTH))):
            return first
    raise ClusterFailed(f"no {WIDTH} free ports in a row in {among.start}..{among.stop}")
