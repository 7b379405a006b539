"""A light install: what `pip install tandemmq` brings is what a client imports, and servers need their extra."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tandemmq.command import cli
from tandemmq.command.extras import SERVER_MODULES
from tandemmq.command.words.local import LOCAL_ACTIONS
from tandemmq.command.words.table import COMMANDS

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = ("tandemmq", "storage", "replication", "cluster")
DISTRIBUTED = sorted(path for package in FOLDERS for path in (ROOT / package).rglob("*.py*")
                     if path.suffix in {".py", ".pyx"})  # fmt: skip
#: distributions whose modules have other names
CALLED = {
    "PyYAML": "yaml", "opentelemetry-api": "opentelemetry", "opentelemetry-instrumentation": "opentelemetry",
}  # fmt: skip
REPLACED = {"compression": "backports"}  # in the standard library since 3.14


def modules(requirements: list[str]) -> set[str]:
    """Top-level modules of distributions: but for those of CALLED they are called alike."""
    names = (re.split(r"[\[<>=;~! ]", each)[0] for each in requirements)
    return {CALLED.get(name, name).replace("-", "_").partition(".")[0] for name in names}


BASE = modules(PYPROJECT["project"]["dependencies"])
EXTRAS = {
    name: modules(requirements)
    for name, requirements in PYPROJECT["project"]["optional-dependencies"].items()
}


def imported(path: Path) -> set[str]:
    """Top-level modules that a source names in imports, wherever they stand."""
    if path.suffix == ".pyx":
        found = re.findall(
            r"^\s*(?:from|import)\s+([\w.]+)", path.read_text(encoding="utf-8"), re.M
        )
        return {each.partition(".")[0] for each in found} - {"cpython", "libc"}
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    names = set[str]()
    for node in tree:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    return names


def foreign() -> set[str]:
    """Everything that our distribution imports from others."""
    found = {name for path in DISTRIBUTED for name in imported(path)}
    return {REPLACED.get(name, name) for name in found} - sys.stdlib_module_names - {"tandemmq"}


def test_everything_that_is_imported_is_declared_and_the_other_way_round() -> None:
    py4j_comes_with_spark = {"py4j"}
    docker_comes_with_testcontainers = {"docker"}
    faststream_brings = {"fast_depends", "anyio"}
    extras = ("server", "audit", "testing", "testcontainers", "otel", "faststream")
    declared = BASE.union(*(EXTRAS[each] for each in extras)) - {"tandemmq"}
    come_along = py4j_comes_with_spark | docker_comes_with_testcontainers | faststream_brings
    assert foreign() - come_along == declared


def test_the_command_asks_for_the_whole_extra_of_the_servers() -> None:
    assert set(SERVER_MODULES) == EXTRAS["server"] - {"uvloop"}
    assert not BASE & EXTRAS["server"]


def test_the_contract_of_the_client_names_all_that_extras_bring() -> None:
    (contract,) = (
        each for each in PYPROJECT["tool"]["importlinter"]["contracts"]
        if each["name"].startswith("a client needs nothing")
    )  # fmt: skip
    assert set(contract["forbidden_modules"]) >= EXTRAS["server"] | EXTRAS["audit"]


@pytest.mark.parametrize("absent", SERVER_MODULES)
def test_a_single_package_that_is_absent_is_named(
    absent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "tandemmq.command.extras.find_spec", lambda name: None if name == absent else name
    )
    assert cli.main(["broker"]) == 11
    said = capsys.readouterr().err
    assert f"{absent} is not installed: pip install 'tandemmq[server]'" in said
    assert "`tandem broker`" in said


def test_a_client_and_its_commands_import_nothing_of_the_extras() -> None:
    """What import contracts cannot see: modules that are imported by name, and compiled ones."""
    commands = [each for each in COMMANDS if not each.server and each.name != "audit"]
    chosen = sorted({f"tandemmq.{each.module}" for each in (*commands, *LOCAL_ACTIONS)})
    script = (
        "import sys, importlib\n"
        f"for name in {sorted(EXTRAS['server'] | EXTRAS['audit'])}: sys.modules[name] = None\n"
        f"for name in {chosen}: importlib.import_module(name)\n"
        "import tandemmq\n"
        "for name in tandemmq.__all__: getattr(tandemmq, name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
