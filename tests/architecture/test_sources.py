"""Rules that no linter knows: what server packages may call, how modules open, where compiled twins stand."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("storage", "replication", "cluster", "chaos", "tandemmq")
LINKED = {"storage", "replication", "cluster", "chaos"}  # docs/decisions/0011
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
SERVER_SOURCES = [
    path
    for path in SOURCES
    if path.relative_to(ROOT).parts[0] in {"storage", "replication", "cluster"}
]

FORBIDDEN_IMPORTS = {"subprocess", "pickle", "marshal", "shelve", "multiprocessing"}
SAFE_OF_YAML = {"safe_load", "safe_dump", "YAMLError", "MarkedYAMLError"}  # the others make objects
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "system",
    "popen",
    "execv",
    "execve",
    "spawnv",
    "__import__",
    "import_module",
}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def called(node: ast.Call) -> str:
    target = node.func
    return (
        target.id
        if isinstance(target, ast.Name)
        else target.attr
        if isinstance(target, ast.Attribute)
        else ""
    )


@pytest.mark.parametrize("path", SERVER_SOURCES, ids=name_of)
def test_servers_start_no_process_and_load_no_code(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN_IMPORTS, (
                node.lineno
            )
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in {*FORBIDDEN_IMPORTS, "yaml"}, (
                node.lineno
            )
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "yaml":
            assert node.attr in SAFE_OF_YAML, node.lineno
        elif isinstance(node, ast.Call):
            picks = path.name == "twins.py" and called(node) == "import_module"
            assert picks or called(node) not in FORBIDDEN_CALLS, node.lineno


@pytest.mark.parametrize("path", SERVER_SOURCES, ids=name_of)
def test_servers_never_flush_a_mapping_with_the_interpreter_lock_held(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if (
            isinstance(node, ast.Call)
            and called(node) == "flush"
            and isinstance(node.func, ast.Attribute)
        ):
            receiver = ast.unparse(node.func.value)
            assert "map" not in receiver.lower(), f"line {node.lineno}: {receiver}.flush()"


EVERYTHING = sorted(
    path
    for folder in (*PACKAGES, "bench", "docs", "release", "tests")
    for path in (ROOT / folder).rglob("*.py")
)


@pytest.mark.parametrize("path", EVERYTHING, ids=name_of)
def test_packages_have_one_name_on_the_import_path(path: Path) -> None:
    """Beside tandemmq.storage a module `storage` can be imported in a checkout: the same file, other classes."""
    for node in ast.walk(parsed(path)):
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
        assert not {name.split(".")[0] for name in names} & LINKED, f"line {node.lineno}"


def test_each_folder_is_linked_into_the_package() -> None:
    links = {
        path.name: os.readlink(path) for path in (ROOT / "tandemmq").iterdir() if path.is_symlink()
    }
    assert links == {name: f"../{name}" for name in LINKED}


def test_a_wheel_holds_every_package_that_processes_need() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        installed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    inner = ("storage", "replication", "cluster")
    folders = {
        mark.parent.relative_to(ROOT)
        for package in ("tandemmq", *inner)  # links are not followed
        for mark in (ROOT / package).rglob("__init__.py")
    }
    names = {".".join(each.parts).removeprefix("tandemmq.") for each in folders} - {"tandemmq"}
    assert installed == {"tandemmq", *(f"tandemmq.{name}" for name in names)}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_module_opens_by_saying_its_one_job(path: Path) -> None:
    if path.read_text(encoding="utf-8").strip():
        assert ast.get_docstring(parsed(path)), "no docstring"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_module_is_a_drawer_for_odds_and_ends(path: Path) -> None:
    assert path.stem not in {"utils", "util", "common", "helpers", "helper", "misc"}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_an_error_is_never_swallowed_in_silence(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"}
            silent = all(isinstance(line, ast.Pass) for line in node.body)
            assert not (broad and silent), f"line {node.lineno}: broad handler that does nothing"


#: compiled form -> the module that picks it, and its readable form
TWINS = {
    "tandemmq.storage._record": ("storage.codec", "storage.record", "storage.tail"),
    "tandemmq.storage._derive": ("storage.derivation", "storage.derive"),
    "tandemmq.storage._reading": ("storage.reading", "storage.reading"),
    "tandemmq.cluster.broker.sending._sendpath": (
        "cluster.broker.sending.fastpath", "cluster.broker.sending.sendpath",
    ),
    "tandemmq.cluster.client._fast": ("cluster.client.hot", "cluster.client.fast"),
    "tandemmq.replication.audit._kernel": (
        "replication.audit.kernels", "replication.audit.kernel", "replication.audit.ledger",
    ),
}  # fmt: skip
NO_TWIN = {"check_layout", "QueueSpan"}  # what only a compiled form needs


def test_every_compiled_module_has_its_twin_here() -> None:
    sources = {
        "tandemmq." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.pyx")
    }
    assert sources == TWINS.keys()
    with (ROOT / "pyproject.toml").open("rb") as file:
        built = tomllib.load(file)["tool"]["setuptools"]["ext-modules"]
    assert sources == {each["name"] for each in built}


ASKED = """
import importlib, sys
twin, picker, *readable = sys.argv[1:]
picking = importlib.import_module("tandemmq." + picker)
compiled = sys.modules.get(twin)
own = lambda module: {
    name: value for name, value in vars(module).items()
    if getattr(value, "__module__", "").rpartition(".")[2] == twin.rpartition(".")[2] and name[0] != "_"
}
made = own(compiled) if compiled else {}
twins = [importlib.import_module("tandemmq." + name) for name in readable]
print(compiled is not None)
print(bool(own(picking)))
print(*sorted(name for name in made if not any(hasattr(each, name) for each in twins)))
"""


@pytest.mark.parametrize("twin", TWINS)
def test_compiled_modules_are_built_here_and_can_be_switched_off(twin: str) -> None:
    """Built, its functions are what users get, and each has a readable form; switched off, it is not even loaded."""
    for pure in ("", "1"):
        environment = {**os.environ, "TANDEM_PURE_PYTHON": pure}
        if not pure:
            del environment["TANDEM_PURE_PYTHON"]
        run = subprocess.run(
            [sys.executable, "-c", ASKED, twin, *TWINS[twin]],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=ROOT,
        )
        loaded, used, alone = run.stdout.split("\n")[:3]
        assert (loaded, used) == (str(not pure), str(not pure)), run.stderr
        assert set(alone.split()) <= NO_TWIN


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "tandemmq/py.typed").exists()
