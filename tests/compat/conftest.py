"""One cluster and one JVM of stock clients at a time for the compatibility tests.

TANDEM_COMPAT_AGAINST=5.3.3 (or 4.9.7) runs the same tests against the stock broker and name server:
a test that fails there asks for something that RocketMQ does not do.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemmq import java as stock
from tandemmq.chaos.servers import Broker

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "system"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from clients import Clients, Cluster, make_broker, make_name_server  # noqa: E402

# Retries of consumers start at level 3, after 2 s; nothing waits long.
DELAY_LEVELS = "1s 1s 2s " + " ".join(["1s"] * 15)
# A Maven that has to fetch everything first needs more than the usual limit.
TIMEOUT_S = 300

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.compat)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def java() -> None:
    """Skips where there is no JDK or Maven."""
    if reason := stock.java_missing():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A name server and one broker: ours, or the stock ones to check the tests themselves."""
    directory = tmp_path_factory.mktemp("cluster")
    settings = {
        "messageDelayLevel": DELAY_LEVELS,
        "enablePropertyFilter": "true",
        "mappedFileSizeCommitLog": 64 * 1024 * 1024,
        "transactionTimeOut": 1_000,
        "transactionCheckInterval": 500,
    }
    with make_name_server(directory) as name_server:
        name_server.start()
        with make_broker(directory, name_server.address, settings=settings) as broker:
            yield Cluster(name_server.address, broker.start())


@pytest.fixture(scope="session")
def cold_broker(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A second broker to which no message is fresh: new groups start where they ask to."""
    directory = tmp_path_factory.mktemp("cold")
    settings = {"accessMessageInMemoryMaxRatio": 0}
    with make_broker(
        directory, cluster.name_server, name="broker-cold", settings=settings
    ) as broker:
        yield broker.start()


@pytest.fixture(
    scope="session",
    params=[(v, s) for v in stock.VERSIONS for s in stock.SERIALIZATIONS],
    ids="-".join,
)
def driver(
    request: pytest.FixtureRequest,
    java: None,
    cluster: Cluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[stock.Driver]:
    """A JVM with stock clients of one release and header serialization."""
    version, serialization = request.param
    home = tmp_path_factory.mktemp(f"driver-{version}-{serialization}")
    with stock.Driver(version, serialization, cluster.name_server, home) as running:
        yield running


@pytest.fixture(scope="session")
def newest_driver(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[stock.Driver]:
    """A JVM of the newest release whose clients are told their name server one by one."""
    home = tmp_path_factory.mktemp("driver-newest")
    with stock.Driver(stock.NEWEST, "json", "", home) as running:
        yield running


@pytest.fixture
def another_driver(driver: stock.Driver, tmp_path: Path) -> Iterator[Callable[[], stock.Driver]]:
    """Starts a further JVM like `driver`, for a test that kills it."""
    started: list[stock.Driver] = []

    def start() -> stock.Driver:
        home = tmp_path / f"driver-{len(started)}"
        started.append(
            stock.Driver(driver.version, driver.serialization, driver.name_servers, home)
        )
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def clients(driver: stock.Driver, cluster: Cluster) -> Iterator[Clients]:
    """Short names for what a test does with `driver`; stops the consumers it started."""
    with Clients(driver, cluster, next(_numbers)) as short:
        yield short
