"""The C++ client of 2019, which is inside PyPI's `rocketmq`, sends and consumes: its JSON is unlike Java's."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from clients import Cluster

from tandemmq.chaos.servers import REPOSITORY

WHEEL = "rocketmq==0.4.4"  # the newest, and built for this platform only
CACHE = REPOSITORY / ".cache" / "cpp"
DRIVER = Path(__file__).parent / "cpp" / "driver.py"
RUN_S = 90
COUNT = 8


@pytest.fixture(scope="session")
def cpp_package() -> Path:
    """The package, unpacked beside our own environment, which it is no part of."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip(f"{WHEEL} holds a library for Linux on x86_64 only")
    kept = CACHE / WHEEL.replace("==", "-")
    if not kept.exists():
        command = [
            sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(CACHE), WHEEL,
        ]  # fmt: skip
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr[-2000:]
        (wheel,) = CACHE.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(fresh := CACHE / f"{os.getpid()}.new")
        fresh.rename(kept)
    return kept


def test_its_producer_and_each_kind_of_its_consumers_work(
    cpp_package: Path, cluster: Cluster, tmp_path: Path
) -> None:
    topic = "CppTopic"
    command = [sys.executable, str(DRIVER), cluster.name_server, topic, str(COUNT)]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(cpp_package), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    bodies = [f"body {number}" for number in range(COUNT)]
    assert [line["sent"] for line in lines if "sent" in line] == bodies
    for consumer in ("clustering", "broadcasting", "orderly"):
        got = [line["body"] for line in lines if line.get("consumer") == consumer]
        assert sorted(got) == bodies, f"{consumer}: {got}"
