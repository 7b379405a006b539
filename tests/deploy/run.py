"""`make compose-test`: the image and the composed cluster with a real docker daemon.

    python tests/deploy/run.py [arguments of pytest]

Where a daemon runs, it is used. Where none does, root gets one for the time of the tests: in network and mount
namespaces of its own, so that it changes nothing of this machine's network, with a data directory of its own, which is
removed. What Debian can bring is installed first. Nothing outside can be reached from in there, so whatever has to be
fetched is fetched before; base images are kept in the user's cache, for every clone of this tree.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "deploy"))

from dockers import BASE_FILES, daemon_answers, until  # noqa: E402

from tandemmq.java import NEWEST, java_missing, stock  # noqa: E402

INSIDE: Final = "--inside"
PACKAGES: Final = {
    "dockerd": "docker.io", "docker-compose": "docker-compose", "mmdebstrap": "mmdebstrap", "ip": "iproute2",
}  # fmt: skip
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
BASE: Final = CACHE / "tandemmq" / "base"
REGISTRY_IMAGE: Final = "python:3.12-slim"
DAEMON_READY_S: Final = 60.0
DAEMON_STOP_S: Final = 60.0


class NoDocker(Exception):
    """Why the tests cannot run here; says what to install."""


def main(words: Sequence[str]) -> int:
    if words[:1] == [INSIDE]:
        with daemon():
            return run_tests(words[1:])
    try:
        if daemon_answers():
            if not registry_answers():
                make_base()
            return run_tests(words)
        prepare()
    except NoDocker as problem:
        print(f"compose-test: {problem}", file=sys.stderr)
        return 1
    # in our place: who stops us stops what runs in there, and the daemon with it
    os.chdir(ROOT)
    command = ["unshare", "--net", "--mount", sys.executable, __file__, INSIDE, *words]
    os.execvp(command[0], command)  # noqa: S606, no shell is what is wanted


def run_tests(words: Sequence[str]) -> int:
    return int(pytest.main(["-q", "-rs", "-m", "deploy", str(ROOT / "tests" / "deploy"), *words]))


def prepare() -> None:
    """Everything that comes from outside. Raises NoDocker."""
    if os.geteuid() != 0:
        raise NoDocker("no docker daemon answers, and only root can start one")
    lacking = sorted(PACKAGES[tool] for tool in PACKAGES if shutil.which(tool) is None)
    if lacking:
        install(lacking)
    make_base()
    if java_missing() is None:
        stock.compiled(NEWEST)


def install(packages: Sequence[str]) -> None:
    if shutil.which("apt-get") is None:
        raise NoDocker(f"install {', '.join(packages)}: there is no apt-get to do it")
    print(f"installing: {' '.join(packages)}", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (
        ["update", "-qq"],
        ["install", "-y", "-qq", "--no-install-recommends", *packages],
    ):
        done = subprocess.run(
            ["apt-get", *words], env=quiet, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NoDocker(f"apt-get {words[0]} failed: {done.stderr[-2000:]}")


def registry_answers() -> bool:
    """Whether the Dockerfile's own base image is here or can be had."""
    for words in (["image", "inspect", REGISTRY_IMAGE], ["pull", "-q", REGISTRY_IMAGE]):
        if subprocess.run(["docker", *words], capture_output=True, check=False).returncode == 0:
            return True
    return False


def make_base() -> None:
    """The archives that deploy/base.sh makes images of. Raises NoDocker."""
    if shutil.which("mmdebstrap") is None and os.geteuid() == 0:
        install(["mmdebstrap"])
    BASE.mkdir(parents=True, exist_ok=True)
    command = [str(ROOT / "deploy" / "base.sh"), "--files-only", str(BASE)]
    with (BASE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of another clone
        made = subprocess.run(command, check=False)
    if made.returncode:
        raise NoDocker("no registry answers, and deploy/base.sh made no base image")
    os.environ[BASE_FILES] = str(BASE)


@contextlib.contextmanager
def daemon() -> Iterator[None]:
    """A docker daemon in our namespaces; DOCKER_HOST of the environment names it meanwhile."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="tandem-docker-", dir="/var/lib") as where:
        host = f"unix://{where}/socket"
        command = [
            "setpriv", "--pdeathsig", "TERM",  # also when we are killed
            "dockerd", "--data-root", f"{where}/data", "--exec-root", f"{where}/exec",
            "--pidfile", f"{where}/pid", "--host", host,
        ]  # fmt: skip
        with Path(where, "log").open("wb") as log:
            started = subprocess.Popen(command, stdout=log, stderr=log)
        os.environ["DOCKER_HOST"] = host
        try:
            until(
                lambda: daemon_answers() or started.poll() is not None, DAEMON_READY_S,
                "the docker daemon answers",
            )  # fmt: skip
            if started.poll() is not None:
                said = Path(where, "log").read_text(errors="replace")[-3000:]
                raise NoDocker(f"dockerd ended with {started.returncode}:\n{said}")
            yield
        finally:
            started.terminate()
            started.wait(DAEMON_STOP_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
