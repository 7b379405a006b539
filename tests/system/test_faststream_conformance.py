"""FastStream's conformance tests for brokers, where its sources are: its distributions come without them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tandemmq.chaos.servers import REPOSITORY, python_env

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

SOURCES = Path(os.environ.get("FASTSTREAM_SOURCES", REPOSITORY / ".cache" / "faststream"))
OURS = Path(__file__).with_name("faststream_conformance.py")
PASSED_MIN = 220


def test_faststreams_own_tests_pass_on_our_broker(tmp_path: Path) -> None:
    pytest.importorskip("faststream", reason="pip install 'tandemmq[faststream]'")
    if not (SOURCES / "tests" / "brokers" / "base").is_dir():
        pytest.skip(
            "no sources of FastStream: git clone --depth 1 https://github.com/ag2ai/faststream "
            ".cache/faststream, or name others with FASTSTREAM_SOURCES"
        )
    shutil.copytree(SOURCES / "tests" / "brokers" / "base", tmp_path / "tests" / "brokers" / "base")
    for each in (SOURCES / "tests").glob("*.py"):
        if each.name != "conftest.py":
            shutil.copy(each, tmp_path / "tests")
    (tmp_path / "tests" / "brokers" / "__init__.py").touch()
    shutil.copy(OURS, tmp_path / "tests" / "brokers")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto",
         "--noconftest", "--import-mode=importlib", "-c", os.devnull, "--rootdir", str(tmp_path),
         f"tests/brokers/{OURS.name}"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=380,
        env={**os.environ, **python_env(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= PASSED_MIN
