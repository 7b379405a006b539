"""tests/lanes.py runs every test, and each once."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def lanes() -> ModuleType:
    found = importlib.util.spec_from_file_location("tests_lanes", TESTS / "lanes.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # its dataclass looks there
    found.loader.exec_module(module)
    return module


def test_every_file_is_run_once(lanes: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "daemon_possible", lambda: True)
    work = [each for own in lanes.own_work().values() for each in own] + lanes.shared_work()
    run = Counter(
        file
        for each in work
        for path in each.paths or ("deploy",)
        for file in ([TESTS / path] if path.endswith(".py") else (TESTS / path).rglob("test_*.py"))
    )
    assert run == Counter(TESTS.rglob("test_*.py"))


def test_files_that_are_named_exist(lanes: ModuleType) -> None:
    for name in lanes.STOCK_SERVERS:
        assert (TESTS / "compat" / name).is_file(), name
    for name in lanes.LONG:
        assert (TESTS / "system" / name).is_file(), name


def test_only_what_failed_beside_programs_of_others_is_run_again(lanes: ModuleType) -> None:
    def run(path: str, code: int) -> object:
        return lanes.Run(lanes.Work(path, (path,)), code, (0, 0))

    stock, ours = "tests/compat/test_a.py::test_b[4.9.7]", "tests/system/test_a.py::test_b"
    green, red = run("system/test_b.py", 0), run("compat/test_a.py", 1)
    assert lanes.failed_beside_others([green, red], [stock]) == [stock]
    assert lanes.failed_beside_others([green], []) == []
    assert lanes.failed_beside_others([red, run("system/test_a.py", 1)], [stock, ours]) == []
    assert lanes.failed_beside_others([red, run("system/test_a.py", 1)], [stock]) == []
    assert lanes.failed_beside_others([red, run("compat/test_c.py", 2)], [stock]) == []
    assert lanes.failed_beside_others([red], [stock] * (lanes.AGAIN_MAX + 1)) == []
