"""Both implementations of the record codec in one run, and the stores that RocketMQ wrote."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import storage.record
from storage.config import StorageConfig

GOLDEN_STORES = Path(__file__).parent.parent / "golden" / "stores"
GOLDEN_NAMES = sorted(path.stem for path in GOLDEN_STORES.glob("*.jsonl"))


def _codecs() -> list[Any]:
    if os.environ.get("TANDEM_PURE_PYTHON"):
        return [storage.record]
    try:
        compiled = import_module("storage._record")
    except ImportError as error:
        pytest.exit(
            f"storage._record is not built ({error}): half of the codec tests would not run."
            " Build it (pip install -e .), or set TANDEM_PURE_PYTHON=1 to test Python alone.",
            returncode=4,
        )
    return [storage.record, compiled]


@pytest.fixture(params=_codecs(), ids=lambda module: module.__name__)
def codec(request: pytest.FixtureRequest) -> Any:
    """storage.record, then storage._record."""
    return request.param


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
