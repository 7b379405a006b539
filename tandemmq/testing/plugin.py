"""Fixtures for pytest, which finds them by itself where tandemmq is installed; the rest is loaded when one is used.

def test_orders(tandem_cluster, tandem_topic):        # a real cluster, and a topic of this test's own
def test_rules(tandem_memory):                        # the in-memory double
def test_failover(tandem_cluster, kill_master):       # a cluster with a slave, for this test alone
"""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tandemmq.blocking import Producer
    from tandemmq.testing.cluster import Member, TandemCluster
    from tandemmq.testing.memory import MemoryCluster

NAME_LENGTH_MAX = 60

# pytest rewrites the assertions of every module of a distribution that has a plug-in: of brokers and clients, too,
# which takes longer than all that is tested of them. It has no other word for "not these".
for finder in sys.meta_path:
    getattr(finder, "_must_rewrite", set()).discard("tandemmq")


@pytest.fixture(scope="session")
def tandem_session_cluster() -> Iterator[TandemCluster]:
    """One cluster for the whole run, of each worker with pytest-xdist: for fixtures of a wider scope than a test's."""
    from tandemmq.testing.cluster import TandemCluster

    with TandemCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _tandem_spare() -> Iterator[list[TandemCluster]]:
    """A replicated cluster that nobody has killed a master of yet."""
    spare: list[TandemCluster] = []
    yield spare
    for cluster in spare:
        cluster.stop()


@pytest.fixture
def tandem_failover_cluster(_tandem_spare: list[TandemCluster]) -> Iterator[TandemCluster]:
    """A master, a slave and a controller, to be broken: whoever is dead after a test is not there for the next one."""
    from tandemmq.testing.cluster import TandemCluster

    cluster = _tandem_spare.pop() if _tandem_spare else TandemCluster(replicas=2).start()
    try:
        yield cluster
    finally:
        if cluster.whole:
            _tandem_spare.append(cluster)
        else:
            cluster.stop()


@pytest.fixture
def tandem_cluster(request: pytest.FixtureRequest) -> TandemCluster:
    """A real name server and broker in processes of their own, shared by all tests; `.namesrv` is its address.

    In a test that also has kill_master: a cluster with a slave and a controller, of that test alone.
    """
    wanted = "tandem_session_cluster"
    if "kill_master" in request.fixturenames:
        wanted = "tandem_failover_cluster"
    found: TandemCluster = request.getfixturevalue(wanted)
    return found


@pytest.fixture
def tandem_topic(tandem_cluster: TandemCluster, request: pytest.FixtureRequest) -> str:
    """The name of a new topic of four queues on tandem_cluster, of this test alone."""
    test = re.sub(r"[^a-zA-Z0-9_-]+", "-", request.node.name)[:NAME_LENGTH_MAX].strip("-")
    return tandem_cluster.create_topic(f"{test}-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def tandem_producer(tandem_cluster: TandemCluster) -> Iterator[Producer]:
    """A tandemmq.blocking.Producer on tandem_cluster, for tests with and without asyncio."""
    from tandemmq.blocking import Producer

    with Producer("tandem-tests", namesrv=tandem_cluster.namesrv) as producer:
        yield producer


@pytest.fixture
def kill_master(tandem_failover_cluster: TandemCluster) -> Callable[[], Member]:
    """Call it: the master is killed with SIGKILL, and when it returns its slave, which it returns, is master."""
    return tandem_failover_cluster.kill_master


@pytest.fixture
def tandem_memory() -> Iterator[MemoryCluster]:
    """A cluster that is a few dictionaries in this process, of this test alone: no sockets, no disk, no waiting."""
    from tandemmq.testing.memory import MemoryCluster

    with MemoryCluster() as cluster:
        yield cluster
