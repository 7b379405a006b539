"""Documents that are written from the code are in step with it, and links in documents lead somewhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import missing
from tandemmq.cluster.remoting.codes import RequestCode

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PRESENT = [
    path for path in DOCUMENTS if path.name != "CHANGELOG.md"
]  # the changelog speaks of the past
PLACES = (
    "bench",
    "chaos",
    "cluster",
    "docs",
    "release",
    "replication",
    "storage",
    "tandemmq",
    "tests",
)
SOURCES = sorted(
    path
    for place in PLACES
    for path in (ROOT / place).rglob("*.*")
    if path.suffix in {".py", ".pyx", ".pxd", ".c", ".h", ".java", ".go"}
    and not (path.suffix == ".c" and path.with_suffix(".pyx").exists())  # made by Cython
)

#: what points into a document by its heading, section or rule without a file that is here
ABSENT = re.compile(
    r"""\b[Ss]pec(?:ification)?,?\s+(?:"|\d|section\b|fault\b)  # a heading or section of one
    | \b[Ss]ources?(?:\ of\ [\w\ ]+)?:[^."]*\b[Ss]pec(?:ification)?\b
    | \b[Ss]pecification's\b
    | (?<![\w-])R-\d+\b  # a rule by its number
    | "\ \(\d+\.\d+[,)]  # a heading and its section number
    """,
    re.VERBOSE,
)


def test_generated_pages_are_in_step_with_the_code() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "docs.generate", "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr


def test_the_list_of_what_is_not_here_follows_the_handlers() -> None:
    here = missing.handled()
    assert {"POP", "static topics", "BatchCQ queues"} <= set(missing.missing(here))
    assert "POP" not in missing.missing(here | {RequestCode.POP_MESSAGE})
    with pytest.raises(ValueError, match="SEND_MESSAGE_V2"):
        missing.missing(here - {RequestCode.SEND_MESSAGE_V2})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_of_a_document_exists(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", PRESENT, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_source_file_that_a_document_names_exists(document: Path) -> None:
    pattern = rf"`((?:{'|'.join(PLACES)})/[\w/.-]+\.(?:py|pyx|pxd|md|c))`"
    for target in re.findall(pattern, document.read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


def functions_in(file: Path) -> set[str]:
    """`name` of functions, `Name.name` of methods."""
    found = set[str]()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
            inner = (each for each in node.body if isinstance(each, ast.FunctionDef))
            found |= {f"{node.name}.{each.name}" for each in inner}
    return found


def test_every_function_that_the_architecture_names_is_where_it_says() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    told = re.findall(r"`([\w.]+)`\s+\(`([\w/]+\.py)`\)", text)
    rows = re.findall(r"^\|[^|]+\| `([\w/]+\.py)` \| ([^|]+) \|$", text, re.MULTILINE)
    told += [(name, file) for file, names in rows for name in re.findall(r"`([\w.]+)`", names)]
    assert len(told) > 25
    lost = [(name, file) for name, file in told if name not in functions_in(ROOT / file)]
    assert not lost


@pytest.mark.parametrize("document", PRESENT, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_and_transcript_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for cited in re.findall(r"`(tests/[^`]*::[^`]*)`", text):
        target, _, name = cited.partition("::")
        assert (ROOT / target).is_file(), cited
        definition = rf"^\s*(?:async def|def|class) {re.escape(name.partition('[')[0])}[(:]"
        source = (ROOT / target).read_text(encoding="utf-8")
        assert re.search(definition, source, re.MULTILINE), cited
    for target in re.findall(r"`(tests/[\w/.-]+\.txt)`", text):
        assert (ROOT / target).is_file(), target


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


def test_nothing_cites_a_document_that_is_not_here() -> None:
    here = {path.name for path in [*DOCUMENTS, *ROOT.glob("tests/**/*.md")]}
    for path in [*SOURCES, *DOCUMENTS]:
        text = _as_one_line(path)
        named = set(re.findall(r"(?<![\w.*-])[A-Za-z][\w-]*\.md\b", text))
        found = sorted(named - here) + re.findall(ABSENT, text)
        assert not found, f"{path.relative_to(ROOT)}: {found}"


def test_every_format_that_the_code_cites_has_its_heading() -> None:
    page = (ROOT / "docs/formats.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"^## (.+?)(?: \(`.*)?$", page, re.MULTILINE))
    for path in [*SOURCES, *DOCUMENTS]:
        for quoted in re.findall(r'docs/formats\.md ((?:"[^"]+"(?:, )?)+)', _as_one_line(path)):
            cited = set(re.findall(r'"([^"]+)"', quoted))
            assert cited <= headings, f"{path.relative_to(ROOT)}: {sorted(cited - headings)}"


def _as_one_line(path: Path) -> str:
    """A file's text without line ends and marks of comments: citations run over both."""
    return re.sub(r"\s*\n\s*(?:#:?|//|\*(?!/))?\s*", " ", path.read_text(encoding="utf-8"))
