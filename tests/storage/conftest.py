"""Both implementations of the record codec in one run, and the stores that RocketMQ wrote."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from platterkit import Platter

import tandemmq.storage.record
import tandemmq.storage.tail
from tandemmq.storage.config import StorageConfig
from tandemmq.storage.segment import Segment

GOLDEN_STORES = Path(__file__).parent.parent / "golden" / "stores"
GOLDEN_NAMES = sorted(path.stem for path in GOLDEN_STORES.glob("*.jsonl"))


#: record.py and tail.py as one, like their compiled form
_READABLE = SimpleNamespace(
    **vars(tandemmq.storage.record),
    LogTail=tandemmq.storage.tail.LogTail,
    QueueTail=tandemmq.storage.tail.QueueTail,
)


def _codecs() -> list[Any]:
    if os.environ.get("TANDEM_PURE_PYTHON"):
        return [_READABLE]
    try:
        compiled = import_module("tandemmq.storage._record")
    except ImportError as error:
        pytest.exit(
            f"tandemmq.storage._record is not built ({error}): half of the codec tests would not run."
            " Build it (pip install -e .), or set TANDEM_PURE_PYTHON=1 to test Python alone.",
            returncode=4,
        )
    return [_READABLE, compiled]


@pytest.fixture(params=_codecs(), ids=lambda module: module.__name__)
def codec(request: pytest.FixtureRequest) -> Any:
    """tandemmq.storage.record with tandemmq.storage.tail, then tandemmq.storage._record."""
    return request.param


class MemoryFile:
    """A file for a LogTail to write to, in memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.descriptor = os.memfd_create("segment")
        os.ftruncate(self.descriptor, size)

    def contents(self) -> bytes:
        return os.pread(self.descriptor, self.size, 0)

    def close(self) -> None:
        os.close(self.descriptor)


@pytest.fixture
def memory_file() -> Iterator[Callable[[int], MemoryFile]]:
    """memory_file(size) -> an empty file; gone after the test."""
    made: list[MemoryFile] = []

    def make(size: int) -> MemoryFile:
        made.append(MemoryFile(size))
        return made[-1]

    yield make
    for file in made:
        file.close()


@pytest.fixture
def refuse_writes() -> Callable[[Segment], None]:
    """refuse_writes(segment) -> from now on its tail finds the disk full."""

    def refuse(segment: Segment) -> None:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, segment._descriptor)
        os.close(full)

    return refuse


@pytest.fixture
def platter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platter:
    """What would survive a power cut of the files below tmp_path, from now on."""
    return Platter(tmp_path, monkeypatch)


@pytest.fixture(params=GOLDEN_NAMES)
def golden_name(request: pytest.FixtureRequest) -> str:
    """Each golden store's name in turn."""
    name: str = request.param
    return name


@cache
def _lines(name: str) -> list[dict[str, Any]]:
    text = (GOLDEN_STORES / f"{name}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="session")
def golden_lines() -> Callable[..., list[dict[str, Any]]]:
    """golden_lines(name, kind) -> the store's description, all lines or those of one kind."""

    def lines(name: str, kind: str | None = None) -> list[dict[str, Any]]:
        return [line for line in _lines(name) if kind is None or line["k"] == kind]

    return lines


@pytest.fixture
def golden_store(tmp_path: Path) -> Callable[[str], Path]:
    """golden_store(name) -> root of a fresh copy of the store, to be written to as one likes."""

    def unpack(name: str) -> Path:
        with tarfile.open(GOLDEN_STORES / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
        return tmp_path / name

    return unpack


@pytest.fixture
def golden_config(
    golden_store: Callable[[str], Path], golden_lines: Callable[..., list[dict[str, Any]]]
) -> Callable[[str], StorageConfig]:
    """golden_config(name) -> settings that open a fresh copy of the store, with its file sizes."""

    def config(name: str) -> StorageConfig:
        settings = golden_lines(name, "store")[0]["settings"]
        sizes = {
            "segment_bytes": settings.get("mappedFileSizeCommitLog"),
            "queue_segment_bytes": settings.get("mappedFileSizeConsumeQueue"),
            "index_slots": settings.get("maxHashSlotNum"),
            "index_entries": settings.get("maxIndexNum"),
        }
        given = {key: size for key, size in sizes.items() if size is not None}
        return StorageConfig(root=str(golden_store(name)), **given)

    return config
