"""Containers as what may be broken: brokers killed and frozen by docker kill, and started by docker start.

`--target compose` takes what deploy/compose.yaml has made: its name server, and a handle for every broker in it.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tandemmq.chaos.faults.fault import Unsupported
from tandemmq.chaos.processes import AsyncProcess, state_of

COMPOSE: Final = "compose"
SERVICE: Final = "com.docker.compose.service"
NAME_SERVER: Final = "namesrv"
NAME_SERVER_PORT: Final = 9876
BROKER: Final = "broker"
CALL_S: Final = 30.0
LOG_LINES: Final = "60"


class ContainerProcess(AsyncProcess):
    """The main process of a container. What is asked of docker is not waited for: its effect is what counts."""

    def __init__(self, name: str) -> None:
        """Raises Unsupported when there is no such container here, or it does not run."""
        super().__init__(name, ["docker", "start", name], Path("/dev/null"))
        self._pid = running_pid(name)
        if not self._pid:
            raise Unsupported(f"container {name} does not run")
        self._starting: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def alive(self) -> bool:
        if self._starting is not None:
            if self._starting.poll() is None:
                return True
            self._starting = None
            self._pid = running_pid(self.name)
        return self.state not in ("", "Z")

    @property
    def code(self) -> int | None:
        return None if self.alive else int(inspected(self.name)["State"]["ExitCode"])

    @property
    def state(self) -> str:
        return state_of(self._pid) if self._pid else ""

    def launch(self) -> None:
        assert not self.alive, f"{self.name} runs already"
        self._starting = _begun(*self.command)

    def signal(self, what: signal.Signals) -> None:
        if not self.alive:
            raise self.broken(f"ended by itself ({self.code})")
        _begun("docker", "kill", "--signal", what.name, self.name)

    def abandon(self) -> None:
        """It is not ours to end."""

    def output(self) -> str:
        done = subprocess.run(
            ["docker", "logs", "--tail", LOG_LINES, self.name],
            check=False, capture_output=True, text=True, timeout=CALL_S,
        )  # fmt: skip
        return done.stdout + done.stderr


@dataclass(frozen=True, slots=True)
class Composed:
    """name_server: host:port. handles: as `--handle` takes them, one for each broker."""

    name_server: str
    handles: tuple[str, ...]


def composed() -> Composed:
    """The containers of a compose file that run here. Raises Unsupported."""
    ids = _docker("ps", "--quiet", "--filter", f"label={SERVICE}").split()
    if not ids:
        raise Unsupported(
            "no container of a compose file runs here (docker compose -f deploy/compose.yaml up -d)"
        )
    trees = json.loads(_docker("inspect", *ids))
    found = sorted(trees, key=lambda each: str(each["Config"]["Labels"][SERVICE]))
    servers = [each for each in found if _service(each).startswith(NAME_SERVER)]
    if not servers:
        raise Unsupported(f"no service is called {NAME_SERVER}...: which one is the name server?")
    handles = [
        f"{address}=container:{str(each['Name']).lstrip('/')}"
        for each in found
        if _service(each).startswith(BROKER)
        for address in addresses_of(each)
    ]
    return Composed(f"{_networks(servers[0])[0]}:{NAME_SERVER_PORT}", tuple(handles))


def addresses_of(tree: Any) -> list[str]:
    """Every ip:port that a container has in its networks, by what `docker inspect` says of it."""
    ports = [port.partition("/")[0] for port in tree["NetworkSettings"]["Ports"] or {}]
    return [f"{address}:{port}" for address in _networks(tree) for port in sorted(ports)]


def _networks(tree: Any) -> list[str]:
    networks = tree["NetworkSettings"]["Networks"].values()
    return [str(each["IPAddress"]) for each in networks if each["IPAddress"]]


def _service(tree: Any) -> str:
    return str(tree["Config"]["Labels"][SERVICE])


def inspected(name: str) -> Any:
    """What docker knows of a container. Raises Unsupported."""
    return json.loads(_docker("inspect", name))[0]


def running_pid(name: str) -> int:
    """Of the main process, as this machine sees it; 0: it does not run. Raises Unsupported."""
    return int(inspected(name)["State"]["Pid"])


def _docker(*words: str) -> str:
    if shutil.which("docker") is None:
        raise Unsupported("needs docker (Debian: docker.io)")
    command: Sequence[str] = ["docker", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=CALL_S)
    if done.returncode:
        raise Unsupported(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _begun(*command: str) -> subprocess.Popen[bytes]:
    """It is waited for beside: whoever asked has its effect to look for."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    threading.Thread(target=process.wait, name=" ".join(command), daemon=True).start()
    return process
