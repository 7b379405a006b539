"""One Spark session for all of this directory: starting it takes longer than the tests."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "replication" / "audit"))  # storekit

pytest.importorskip("pyspark", reason="needs the audit extra")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local session with two slots, warmed by nothing: the first test to read pays for the start."""
    from tandemmq.audit import sparkling

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Spark and py4j warn of is theirs
        made = sparkling.session("local[2]")
        formats = __import__("tandemmq.replication.audit.spark_formats", fromlist=["register"])
        formats.register(made)
        yield made
        made.stop()
