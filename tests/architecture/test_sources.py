"""Rules that no linter knows: what server packages may call, how modules open, where compiled twins stand."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
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


def calls_what_servers_may_not(path: Path, node: ast.AST) -> bool:
    """Starts a process, or loads code or objects from what it is given."""
    match node:
        case ast.Import(names=names):
            return bool({alias.name.split(".")[0] for alias in names} & FORBIDDEN_IMPORTS)
        case ast.ImportFrom(module=module):
            return (module or "").split(".")[0] in {*FORBIDDEN_IMPORTS, "yaml"}
        case ast.Attribute(value=ast.Name(id="yaml"), attr=attr):
            return attr not in SAFE_OF_YAML
        case ast.Call():
            picks = path.name == "twins.py" and called(node) == "import_module"
            return called(node) in FORBIDDEN_CALLS and not picks
    return False


def flushes_a_mapping(path: Path, node: ast.AST) -> bool:
    """With the interpreter's lock held: nothing else runs until the disk has it."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "flush"
        and "map" in ast.unparse(node.func.value).lower()
    )


def swallows_an_error(path: Path, node: ast.AST) -> bool:
    """In silence, whatever it is."""
    return (
        isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"})
        and all(isinstance(line, ast.Pass) for line in node.body)
    )


def imports_a_second_copy(path: Path, node: ast.AST) -> bool:
    """Beside tandemmq.storage a module `storage` can be imported in a checkout: the same file, other classes."""
    match node:
        case ast.Import(names=aliases):
            names = [alias.name for alias in aliases]
        case ast.ImportFrom(module=str(module), level=0):
            names = [module]
        case _:
            return False
    return bool({name.split(".")[0] for name in names} & LINKED)


def says_no_job(path: Path, node: ast.AST) -> bool:
    """A module opens by saying its one job."""
    return isinstance(node, ast.Module) and bool(node.body) and not ast.get_docstring(node)


EVERYTHING = sorted(
    path
    for folder in (*PACKAGES, "bench", "docs", "release", "tests")
    for path in (ROOT / folder).rglob("*.py")
)
#: what a node of a source may not be -> in which sources
RULES: dict[Callable[[Path, ast.AST], bool], Sequence[Path]] = {
    calls_what_servers_may_not: SERVER_SOURCES,
    flushes_a_mapping: SERVER_SOURCES,
    swallows_an_error: SOURCES,
    says_no_job: SOURCES,
    imports_a_second_copy: EVERYTHING,
}


@pytest.fixture(scope="module")
def broken() -> dict[str, list[str]]:
    """Rule -> places that break it; every source is read and walked once."""
    found: dict[str, list[str]] = {rule.__name__: [] for rule in RULES}
    within = {rule: set(sources) for rule, sources in RULES.items()}
    for path in EVERYTHING:
        rules = [rule for rule in RULES if path in within[rule]]
        for node in ast.walk(parsed(path)):
            for rule in rules:
                if rule(path, node):
                    found[rule.__name__].append(f"{name_of(path)}:{getattr(node, 'lineno', 1)}")
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_source(rule: Callable[[Path, ast.AST], bool], broken: dict[str, list[str]]) -> None:
    assert len(RULES[rule]) > 100, "sources are found"
    assert not broken[rule.__name__], rule.__doc__


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (calls_what_servers_may_not, "import subprocess"),
        (calls_what_servers_may_not, "from pickle import loads"),
        (calls_what_servers_may_not, "yaml.load(text)"),
        (calls_what_servers_may_not, "importlib.import_module(name)"),
        (flushes_a_mapping, "self._mapping.flush()"),
        (swallows_an_error, "try:\n    f()\nexcept Exception:\n    pass"),
        (swallows_an_error, "try:\n    f()\nexcept:\n    pass"),
        (says_no_job, "x = 1"),
        (imports_a_second_copy, "from storage.store import MessageStore"),
        (imports_a_second_copy, "import chaos.journal"),
    ],
)
def test_a_rule_sees_what_breaks_it(rule: Callable[[Path, ast.AST], bool], text: str) -> None:
    assert any(rule(ROOT / "storage/x.py", node) for node in ast.walk(ast.parse(text)))


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "util", "common", "helpers", "helper", "misc"}
    assert not [name_of(path) for path in SOURCES if path.stem in drawers]


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


#: compiled form -> the module that picks it, and its readable form
TWINS = {
    "tandemmq.storage._record": ("storage.codec", "storage.record", "storage.tail"),
    "tandemmq.storage._derive": ("storage.derivation", "storage.derive"),
    "tandemmq.storage._reading": ("storage.reading", "storage.gathering"),
    "tandemmq.cluster.broker.sending._sendpath": (
        "cluster.broker.sending.fastpath", "cluster.broker.sending.sendpath",
    ),
    "tandemmq.cluster.broker.reading._pullpath": (
        "cluster.broker.reading.shortpulls", "cluster.broker.reading.pullpath",
    ),
    "tandemmq.cluster.client._fast": ("cluster.client.hot", "cluster.client.fast"),
    "tandemmq.replication.audit._kernel": (
        "replication.audit.kernels", "replication.audit.kernel", "replication.audit.ledger",
    ),
    "tandemmq.spark._columns": ("spark.columns", "spark.columns"),
}  # fmt: skip
NO_TWIN = {"check_layout", "QueueSpan"}  # what only a compiled form needs


def test_every_compiled_module_has_its_twin_here() -> None:
    sources = {
        "tandemmq."
        + ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("tandemmq.")
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
