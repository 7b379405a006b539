"""`tandem doctor` and `tandem rolling-restart` against Apache RocketMQ: as far as it can be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from replicas import runtime

from tandemmq import Message, Producer
from tandemmq.chaos.java import JavaBroker, JavaNameServer
from tandemmq.chaos.processes import wait_until
from tandemmq.cluster.client import Admin, ClientConfig
from tandemmq.command.exits import CommandFailed
from tandemmq.doctor.asking import cluster_facts
from tandemmq.doctor.clusters import cluster_findings
from tandemmq.doctor.findings import Severity
from tandemmq.java import VERSIONS
from tandemmq.rolling.order import Server
from tandemmq.rolling.rollout import Limits, Rollout

pytestmark = pytest.mark.timeout(300)

SYNC = {"brokerRole": "SYNC_MASTER", "brokerId": 0, "inSyncReplicas": 1}


@pytest.fixture(scope="module", params=VERSIONS)
def stock(
    request: pytest.FixtureRequest, java: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaBroker]:
    """A stock name server and a SYNC_MASTER whose slave never came."""
    directory = tmp_path_factory.mktemp("doctor")
    with JavaNameServer(request.param, directory) as names:
        names.start()
        with JavaBroker(request.param, directory, names.address, settings=SYNC) as broker:
            runtime(broker.start())  # in its first second it fails at that
            yield broker


def found(name_server: str) -> dict[str, Severity]:
    facts = asyncio.run(cluster_facts(ClientConfig(name_server)))
    return {each.check: each.severity for each in cluster_findings(facts)}


def test_what_a_stock_cluster_says_of_itself_is_understood(stock: JavaBroker) -> None:
    facts = asyncio.run(cluster_facts(ClientConfig(stock.name_servers)))
    (broker,) = facts.brokers
    assert (broker.problem, broker.is_master) == ("", True)
    assert broker.settings["brokerRole"] == "SYNC_MASTER"
    assert broker.skew_ms is not None and abs(broker.skew_ms) < 2_000
    assert facts.unasked == ()


def test_a_sync_master_without_its_slave_is_found_and_nothing_else(stock: JavaBroker) -> None:
    wait_until(lambda: "replica-missing" in found(stock.name_servers), 30, "it is found")
    shown = found(stock.name_servers)
    shown.pop("broker-disk", None)  # this machine's disk may be near the mark
    assert shown == {"replica-missing": Severity.WARNING}


def test_it_is_restarted_and_takes_messages_again(stock: JavaBroker) -> None:
    """Nobody else takes its messages, and the command says so before it restarts it."""
    said: list[str] = []
    restarted: list[Server] = []

    async def restart(server: Server) -> None:
        restarted.append(server)
        await asyncio.to_thread(stock.stop)
        await asyncio.to_thread(stock.start)

    async def roll() -> None:
        config = ClientConfig(stock.name_servers)
        async with Admin(config=config) as admin:
            await Rollout(
                admin, config, restart, Limits(timeout_s=90, drain_s=1), said.append
            ).brokers(None)
        async with Producer("p", namesrv=stock.name_servers) as producer:
            await producer.send(Message("TopicTest", b"17"))

    asyncio.run(roll())
    assert [each.address for each in restarted] == [stock.address]
    assert "sends fail while it is away" in said[0]
    with pytest.raises(CommandFailed, match="no broker named nobody"):
        asyncio.run(_named(stock))


async def _named(stock: JavaBroker) -> None:
    async def never(_: Server) -> None:
        raise AssertionError

    config = ClientConfig(stock.name_servers)
    async with Admin(config=config) as admin:
        await Rollout(admin, config, never, Limits(), print).brokers(["nobody"])
