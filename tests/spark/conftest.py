"""One Spark session and one cluster for all of this directory: starting them takes longer than the tests."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

for folder in (
    Path(__file__).parent,  # topickit
    Path(__file__).parents[1] / "replication" / "audit",  # storekit
    Path(__file__).parents[1] / "system",  # raw_wire
):
    sys.path.insert(0, str(folder))

pytest.importorskip("pyspark", reason="needs the audit extra")

from topickit import Topics  # noqa: E402

from bench.quickpython import quick_python  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                # the start of a JVM and of Spark's Pythons on a busy machine; one that is given up fails all behind it
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local session with two slots, warmed by nothing: the first test to read pays for the start."""
    from tandemmq.audit import sparkling
    from tandemmq.spark import register

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", quick_python(tmp_path_factory.mktemp("python")))
        warnings.simplefilter("ignore")  # what Spark and py4j warn of is theirs
        made = sparkling.session("local[2]")
        formats = __import__("tandemmq.replication.audit.spark_formats", fromlist=["register"])
        formats.register(made)
        register(made)
        yield made
        made.stop()


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """A name server and a broker with an HTTP port."""
    with Topics(tmp_path_factory.mktemp("topics")) as made:
        yield made
