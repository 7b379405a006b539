"""The image: small, whole, without privileges, and one volume is all that it writes to."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dockers import (
    BUILD_BASE,
    DockerFailed,
    base_image,
    build,
    docker,
    inspected,
    until,
)

from tandemmq.command.exits import ExitCode

OVER_ITS_BASE_MAX = 150_000_000
STOP_S = 10
NO_SHELL = [
    word
    for shell in ("/bin/sh", "/bin/bash", "/bin/dash")
    for word in ("-v", f"/dev/null:{shell}:ro")
]
LOCKED = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
BROKER = [
    "broker", "--insecure", "--set", "bindAddress=0.0.0.0", "--set", "brokerName=broker-a",
    "--set", "storePathRootDir=/data/store", "--set", "mappedFileSizeCommitLog=16777216",
]  # fmt: skip


@contextlib.contextmanager
def started(image: str, *words: str) -> Iterator[str]:
    """A container in the background, gone afterwards."""
    identity = docker(
        "run", "-d", *words[: words.index("--")], image, *words[words.index("--") + 1 :]
    )
    identity = identity.strip()
    try:
        yield identity
    finally:
        docker("rm", "-f", "-v", identity)


@pytest.fixture
def volume(image: str) -> Iterator[str]:
    name = docker("volume", "create").strip()
    try:
        yield name
    finally:
        docker("volume", "rm", name)


def said(container: str) -> str:
    """Both streams of its log."""
    done = subprocess.run(
        ["docker", "logs", container],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def healthy(container: str) -> bool:
    return bool(inspected("container", container)["State"]["Health"]["Status"] == "healthy")


def test_it_adds_less_than_150_megabytes_to_its_base(image: str) -> None:
    added = inspected("image", image)["Size"] - inspected("image", base_image())["Size"]
    print(f"{added:,} bytes over {base_image()}")
    assert 10_000_000 < added < OVER_ITS_BASE_MAX


def test_it_is_run_by_nobody_in_particular(image: str) -> None:
    config = inspected("image", image)["Config"]
    assert config["User"] == "10001:10001"
    assert config["Healthcheck"]["Test"][0] == "CMD", "a shell would be needed"
    assert docker("run", "--rm", *LOCKED, image, "--version").startswith("tandem ")


def test_a_broker_needs_its_volume_and_nothing_else(image: str, volume: str) -> None:
    """No shell, no privileges, nothing to write but the volume; SIGTERM to process 1 ends it cleanly."""
    mount = ("-v", f"{volume}:/data")
    with started(image, *LOCKED, *NO_SHELL, *mount, "--", *BROKER) as container:
        until(lambda: healthy(container), 60, "the image's own health check holds")
        began = time.monotonic()
        docker("stop", "-t", str(STOP_S * 3), container)
        took_s = time.monotonic() - began
        state = inspected("container", container)["State"]
        assert (state["ExitCode"], state["OOMKilled"], took_s < STOP_S) == (0, False, True)
    with started(image, *LOCKED, *mount, "--", *BROKER) as container:
        until(lambda: "broker started" in said(container), 60, "it starts again")
        assert "store recovered Recovered(clean=True" in said(container)


@pytest.mark.parametrize("process", ["nameserver", "controller"])
def test_the_other_processes_are_healthy_by_the_same_check(image: str, process: str) -> None:
    with started(image, *LOCKED, "--", process, "--insecure") as container:
        until(lambda: healthy(container), 60, "the image's own health check holds")


def test_a_process_that_hangs_is_unhealthy_until_it_goes_on(image: str) -> None:
    often = ("--health-interval=1s", "--health-timeout=2s", "--health-retries=1")
    with started(image, *often, "--health-start-period=0s", "--", "nameserver") as container:
        until(lambda: healthy(container), 60, "it is healthy")
        docker("kill", "-s", "STOP", container)
        until(lambda: not healthy(container), 30, "it is not")
        docker("kill", "-s", "CONT", container)
        until(lambda: healthy(container), 30, "it is healthy again")


def test_another_port_is_asked_by_name(image: str) -> None:
    with started(image, "--", "nameserver", "-p", "9999") as container:
        until(lambda: "boot success" in said(container), 30, "it serves")
        with pytest.raises(DockerFailed, match="nobody listens"):
            docker("exec", container, "tandem", "health")
        assert "answers" in docker("exec", container, "tandem", "health", "127.0.0.1:9999")


def test_a_volume_of_somebody_else_is_said_to_be_one(image: str, volume: str) -> None:
    own = "import os; open('/data/theirs', 'w').close(); os.chown('/data', 0, 0); os.chmod('/data', 0o755)"
    docker(
        "run", "--rm", "-u", "0", "-v", f"{volume}:/data", "--entrypoint", "/opt/tandemmq/bin/python",
        image, "-c", own,
    )  # fmt: skip
    with started(image, "-v", f"{volume}:/data", "--", *BROKER) as container:
        until(
            lambda: not inspected("container", container)["State"]["Running"], 30, "it is refused"
        )
        assert inspected("container", container)["State"]["ExitCode"] == ExitCode.STORE_UNUSABLE
        (line,) = said(container).splitlines()[-1:]
    assert "/data" in line
    assert "Permission denied" in line
    assert "here 10001" in line


@pytest.fixture
def small_volume(image: str) -> Iterator[str]:
    """64 MB, kept by a container that holds it as long as the test wants it."""
    options = (
        "--opt",
        "type=tmpfs",
        "--opt",
        "device=tmpfs",
        "--opt",
        "o=size=64m,uid=10001,gid=10001",
    )
    name = docker("volume", "create", *options).strip()
    try:
        with started(image, "-v", f"{name}:/data", "--entrypoint", "/bin/sleep", "--", "600"):
            yield name
    finally:
        docker("volume", "rm", name)


def test_a_full_volume_is_said_to_be_one_and_loses_nothing(image: str, small_volume: str) -> None:
    mount = ("-v", f"{small_volume}:/data", "--name", "tandem-full", "--network", "none")
    fill = (
        "import asyncio, os\n"
        "from tandemmq import ClientError, Message, Producer\n"
        "async def main():\n"
        "    kept = 0\n"
        "    async with Producer('p', namesrv='127.0.0.1:9876') as producer:\n"
        "        for _ in range(200):\n"
        "            try:\n"
        "                result = await producer.send(Message('Full', os.urandom(1 << 20)))\n"
        "            except ClientError as problem:\n"
        "                print(kept, problem)\n"
        "                return\n"
        "            kept += result.status.name == 'SEND_OK'\n"
        "    print(kept, 'no end')\n"
        "asyncio.run(main())\n"
    )

    def inside(program: str, *words: str) -> str:
        return docker("exec", "tandem-full", *([program] if not words else [program, *words]))

    with started(image, *mount, "--entrypoint", "/bin/sleep", "--", "600"):
        for command in (
            ["nameserver"],
            # as RocketMQ's by default, it would make room by what is oldest, where filling takes long enough
            [
                *BROKER,
                "--set",
                "cleanFileForciblyEnable=false",
                "--set",
                "brokerIP1=127.0.0.1",
                "-n",
                "127.0.0.1:9876",
            ],
        ):
            docker("exec", "-d", "tandem-full", "tandem", *command)
        until(lambda: healthy_inside("tandem-full"), 60, "it serves")
        kept, _, why = inside("/opt/tandemmq/bin/python", "-c", fill).partition(" ")
        assert int(kept) > 10
        assert "full" in why or "disk" in why, why
        shown = inside("tandem", "tail", "Full", "--from", "first", "--until-end", "--body", "none")
        assert shown.count("(1048576 bytes)") >= int(kept)
        told = docker(
            "exec", "tandem-full", "sh", "-c", "tandem doctor --json --data /data; echo $?"
        )
        assert '"disk-space"' in told
        assert int(told.split()[-1]) in (ExitCode.LOOKS_WRONG, ExitCode.AT_RISK), told


def healthy_inside(container: str) -> bool:
    try:
        return "answers" in docker("exec", container, "tandem", "health", "127.0.0.1:10911")
    except DockerFailed:
        return False


def test_a_setting_with_a_typo_is_named_and_one_that_cannot_be_ends_the_start(
    image: str, tmp_path: Path
) -> None:
    file = tmp_path / "broker.conf"
    mount = ("-v", f"{file}:/etc/tandemmq/broker.conf:ro")
    command = ("broker", "-c", "/etc/tandemmq/broker.conf", "--set", "storePathRootDir=/data/store")
    file.write_text("brokerNam=broker-a\nbrokerName=broker-b\n")
    with started(image, *LOCKED, *mount, "--", *command) as container:
        until(lambda: "boot success" in said(container), 60, "a key that nobody knows stops nobody")
        assert "unknown setting ignored key=brokerNam did_you_mean=brokerName" in said(container)
    file.write_text("brokerName=broker-a\nlistenPort=1o911\n")
    with started(image, *LOCKED, *mount, "--", *command) as container:
        until(lambda: not inspected("container", container)["State"]["Running"], 30, "it ends")
        assert inspected("container", container)["State"]["ExitCode"] == ExitCode.BAD_CONFIG
        assert "listenPort=1o911: must be a whole number" in said(container)


def test_no_image_is_made_without_the_compiled_modules(image: str) -> None:
    if base_image() != "tandemmq-base:local":
        pytest.skip("needs the base image that deploy/base.sh makes")
    without = "tandemmq-base:without"
    done = subprocess.run(
        ["docker", "build", "-q", "-t", without, "-"],
        input=f"FROM {BUILD_BASE}\nENV CC=false\n", text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with pytest.raises(DockerFailed, match="was built without tandemmq"):
        build("tandemmq:without", BUILD_IMAGE=without)
