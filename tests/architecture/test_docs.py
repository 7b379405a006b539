"""Documents that are written from the code are in step with it, and links in documents lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PRESENT = [
    path for path in DOCUMENTS if path.name != "CHANGELOG.md"
]  # the changelog speaks of the past


def test_generated_pages_are_in_step_with_the_code() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "docs/generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_of_a_document_exists(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", PRESENT, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_source_file_that_a_document_names_exists(document: Path) -> None:
    pattern = r"`((?:storage|replication|cluster|chaos|tandemmq|tests|bench|docs)/[\w/.-]+\.(?:py|pyx|pxd|md|c))`"
    for target in re.findall(pattern, document.read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


def invariants_in(directories: tuple[str, ...], suffixes: set[str]) -> dict[str, Path]:
    """Every invariant that sources name, and one that does."""
    return {
        name: source
        for directory in directories
        for source in (ROOT / directory).rglob("*")
        if source.suffix in suffixes
        for name in re.findall(r"INV-\d+", source.read_text(encoding="utf-8"))
    }


def test_invariants_are_written_down_kept_by_code_and_shown_by_tests() -> None:
    page = (ROOT / "docs/invariants.md").read_text(encoding="utf-8")
    known = set(re.findall(r"\*\*(INV-\d+)\*\*", page))
    packages = ("storage", "replication", "cluster", "chaos", "tandemmq")
    in_code = invariants_in(packages, {".py", ".pyx"})
    in_tests = invariants_in(("tests",), {".py", ".txt"})
    unknown = (in_code.keys() | in_tests.keys()) - known
    assert not unknown, [str((in_code | in_tests)[each]) for each in unknown]
    assert not known - in_code.keys(), "no code says that it keeps these"
    assert not known - in_tests.keys(), "no test says that it shows these"
