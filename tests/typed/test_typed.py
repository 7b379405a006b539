"""What users write with our types is clean under mypy --strict and pyright, and their mistakes are found."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

LONG_S = 300  # seconds each where nothing else runs

pytestmark = pytest.mark.timeout(LONG_S)

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
NEEDS = {"containers": "testcontainers", "otel": "opentelemetry", "service": "faststream"}
CLEAN = sorted(each.stem for each in PROGRAMS.glob("*.py") if each.stem != "wrong")
PYRIGHT_HERE = ROOT / ".cache" / "npm" / "node_modules" / ".bin" / "pyright"
#: lines of wrong.py, and so many mistakes
WRONG = {9, 10, 11, 12, 13}


def present(names: list[str]) -> list[Path]:
    """Programs whose extras are installed; skips where one is asked for and is not."""
    absent = [each for each in names if each in NEEDS and find_spec(NEEDS[each]) is None]
    if absent == names:
        pytest.skip(f"pip install 'tandemmq[{absent[0]}]'")
    return [PROGRAMS / f"{each}.py" for each in names if each not in absent]


def mypy(names: list[str], cache: Path) -> str:
    """What it says of the programs as of a user's: without our settings."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent",
         "--python-version=3.11", f"--cache-dir={cache}", "--no-error-summary", "--hide-error-context",
         *map(str, present(names))],
        capture_output=True, text=True, check=False, timeout=LONG_S - 20, cwd=PROGRAMS,
        env={**os.environ, "MYPYPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def pyright(names: list[str], directory: Path) -> list[dict[str, object]]:
    """Its complaints."""
    command = str(PYRIGHT_HERE) if PYRIGHT_HERE.exists() else shutil.which("pyright")
    if command is None:
        pytest.skip("no pyright: npm install --prefix .cache/npm pyright")
    for each in present(names):
        shutil.copy(each, directory)
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(ROOT)]}
    (directory / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [command, "--outputjson", "-p", str(directory / "pyrightconfig.json"), "--pythonpath", sys.executable],
        capture_output=True, text=True, check=False, timeout=LONG_S - 20,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)["generalDiagnostics"]
    return found


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def test_mypy_finds_nothing_in_what_users_write(cache: Path) -> None:
    assert mypy(CLEAN, cache) == ""


def test_mypy_finds_their_mistakes(cache: Path) -> None:
    assert {
        int(line) for line in re.findall(r"wrong\.py:(\d+): error", mypy(["wrong"], cache))
    } == WRONG


def test_pyright_finds_nothing_in_what_users_write_and_finds_their_mistakes(tmp_path: Path) -> None:
    told = pyright([*CLEAN, "wrong"], tmp_path)
    wrong = [each for each in told if str(each["file"]).endswith("wrong.py")]
    lines = {int(each["range"]["start"]["line"]) + 1 for each in wrong}  # type: ignore[index]
    assert [each for each in told if each not in wrong and each["severity"] == "error"] == []
    assert lines >= WRONG
