"""One local cluster under traffic, and a Prometheus that asks all of its processes each second."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "system"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from watched import MISSING, Prometheus, has_prometheus  # noqa: E402
from watchedcluster import LocalCluster  # noqa: E402

TIMEOUT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.metrics)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def installed() -> None:
    """Skips where there is no Prometheus."""
    if not has_prometheus():
        pytest.skip(MISSING)


@pytest.fixture(scope="session")
def prometheus(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with Prometheus(tmp_path_factory.mktemp("prometheus")) as process:
        yield process.start()


@pytest.fixture(scope="session")
def cluster(
    prometheus: Prometheus, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Up, with traffic, audited once, and watched."""
    with ExitStack() as stack:
        found = LocalCluster(tmp_path_factory.mktemp("cluster"), stack)
        found.start()
        prometheus.watch("audit", [found.files.address])
        prometheus.watch("tandem", found.targets())
        yield found
