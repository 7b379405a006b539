"""A user's tests: fixtures, a cluster, its double."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tandemmq import Producer as AsyncProducer
from tandemmq.blocking import Producer
from tandemmq.testing import Member, MemoryCluster, TandemCluster


@pytest.fixture(scope="module")
def own() -> Iterator[TandemCluster]:
    with TandemCluster(replicas=2, settings={"maxMessageSize": "1024"}) as cluster:
        cluster.kill("broker-a-1")
        cluster.restart("broker-a-1")
        yield cluster


def test_real(tandem_cluster: TandemCluster, tandem_topic: str, tandem_producer: Producer) -> None:
    assert tandem_producer.send(tandem_topic, b"17").ok
    assert tandem_cluster.namesrv.count(":") == 1
    assert {name: each.pid for name, each in tandem_cluster.members.items()}
    assert tandem_cluster.create_topic("Orders", 8) == "Orders"


def test_failover(tandem_cluster: TandemCluster, kill_master: Callable[[], Member]) -> None:
    master: Member = kill_master()
    assert master.name in tandem_cluster.members


async def test_memory(tandem_memory: MemoryCluster) -> None:
    async with AsyncProducer("shop", namesrv=tandem_memory.namesrv):
        tandem_memory.advance(60)
    with tandem_memory.outage():
        assert [each.body for each in tandem_memory.messages("Orders")] == []
    assert tandem_memory.lag("billing", "Orders") + tandem_memory.waiting == 0
