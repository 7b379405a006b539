"""docker and docker compose as these tests call them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
BASE_FILES: Final = "TANDEM_BASE_FILES"  # of the environment: where deploy/base.sh put its archives
LOCAL_BASE: Final = "tandemmq-base:local"
BUILD_BASE: Final = "tandemmq-base:build"
REGISTRY_BASE: Final = "python:3.12-slim"
IMAGE: Final = "tandemmq:test"
DOCKER_S: Final = 120.0
BUILD_S: Final = 900.0


class DockerFailed(Exception):
    """A docker command ended with an error; carries what it said."""


def docker(
    *words: str,
    timeout_s: float = DOCKER_S,
    env: Mapping[str, str] | None = None,
    merged: bool = False,
) -> str:
    """What `docker ...` printed, merged: on stderr, too. Raises DockerFailed."""
    return _output(["docker", *words], timeout_s, env, merged=merged)


def _output(
    command: list[str],
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    *,
    merged: bool = False,
) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=timeout_s, cwd=ROOT,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    if done.returncode:
        said = f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
        raise DockerFailed(f"{' '.join(command)}: {done.returncode}\n{said}")
    return done.stdout + done.stderr if merged else done.stdout


def daemon_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    asked = subprocess.run(["docker", "version"], capture_output=True, check=False, timeout=30)
    return asked.returncode == 0


def compose_command() -> list[str] | None:
    """`docker compose` where the client has it, else docker-compose."""
    asked = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if asked.returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


def until(holds: Callable[[], object], timeout_s: float, what: str) -> float:
    """How long it took until `holds`. Fails the test when that is longer than timeout_s."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.1)
    return time.monotonic() - began


def build(tag: str = IMAGE, **arguments: str) -> None:
    """Build the image, from the base images that are to be had here. Raises DockerFailed."""
    files = os.environ.get(BASE_FILES)
    given: dict[str, str] = {}
    without: list[str] = []
    if files:
        docker("--version")
        _output([str(ROOT / "deploy" / "base.sh"), files], BUILD_S)
        given = {"BASE_IMAGE": LOCAL_BASE, "BUILD_IMAGE": BUILD_BASE}
        without = ["--network", "none"]  # all that it needs is in there: show it
    words = [f"--build-arg={key}={value}" for key, value in {**given, **arguments}.items()]
    docker("build", *without, "-f", "deploy/Dockerfile", "-t", tag, *words, ".", timeout_s=BUILD_S)


def base_image() -> str:
    """What the image was built on."""
    return LOCAL_BASE if os.environ.get(BASE_FILES) else REGISTRY_BASE


def inspected(kind: str, name: str) -> Any:
    (found,) = json.loads(docker(kind, "inspect", name))
    return found


@dataclass(frozen=True)
class Project:
    """What one compose file, or several on top of each other, started."""

    name: str
    files: tuple[str, ...]
    command: list[str]
    env: Mapping[str, str] = field(default_factory=dict)

    def compose(self, *words: str) -> str:
        """Raises DockerFailed."""
        files = [word for file in self.files for word in ("-f", f"deploy/{file}")]
        env = {"TANDEM_IMAGE": IMAGE, **self.env}
        return _output([*self.command, "-p", self.name, *files, *words], DOCKER_S, env)

    def labelled(self, kind: str) -> list[str]:
        """Ids of this project's containers ("ps -a"), volumes or networks."""
        label = f"label=com.docker.compose.project={self.name}"
        return docker(*kind.split(), "-q", "--filter", label).split()

    def container(self, service: str) -> str:
        """The id of a service's container, running or not."""
        label = f"label=com.docker.compose.service={service}"
        mine = f"label=com.docker.compose.project={self.name}"
        (found,) = docker("ps", "-a", "-q", "--filter", mine, "--filter", label).split()
        return found

    def health(self) -> list[str]:
        """Of every container: healthy, starting, unhealthy, or how it stands if nobody asks it."""
        states = [inspected("container", each)["State"] for each in self.labelled("ps -a")]
        return [each.get("Health", each)["Status"] for each in states]

    def healthy(self, count: int) -> bool:
        return self.health() == ["healthy"] * count
