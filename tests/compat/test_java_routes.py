"""Brokers and name servers of both kinds find each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.chaos.asking import registered, routed
from tandemmq.chaos.java import JavaBroker, JavaNameServer
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.java import VERSIONS, Driver, text_of


@pytest.fixture(scope="module", params=VERSIONS)
def java_name_server(
    request: pytest.FixtureRequest, java: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaNameServer]:
    directory = tmp_path_factory.mktemp(f"namesrv-{request.param}")
    with JavaNameServer(request.param, directory) as running:
        yield running.start()


def exchange(driver: Driver, name_server: str, topic: str, count: int) -> set[str]:
    """Sends `count` messages and consumes them; the names of the brokers they went through."""
    at = {"namesrv": name_server, "topic": topic}
    word = f"{topic}-{name_server}"
    driver.call("producer.start", name=word, group=f"PG-{topic}", **at)
    bodies = [f"m{i}" for i in range(count)]
    sent = driver.call("send.sync", name=word, messages=[{"body": b} for b in bodies], **at)
    wait_until(lambda: routed(name_server, topic), 10, f"route of {topic}")
    driver.call("push.start", name=word, group=f"CG-{topic}", **at)
    got = driver.wait_messages(word, count)
    assert sorted(map(text_of, got)) == sorted(bodies)
    driver.call("push.stop", name=word)
    driver.call("producer.stop", name=word)
    assert {m["broker"] for m in got} == {s["broker"] for s in sent}
    return {s["broker"] for s in sent}


def test_our_broker_is_found_through_a_stock_name_server(
    java_name_server: JavaNameServer, newest_driver: Driver, tmp_path: Path
) -> None:
    at = java_name_server.address
    with Broker(tmp_path, at, name="broker-ours").start() as broker:
        newest_driver.call(
            "pull.create_topic", topic="ThroughJava", address=broker.address, namesrv=at
        )
        wait_until(lambda: routed(at, "ThroughJava"), 10, "route of a new topic at once")
        assert exchange(newest_driver, at, "ThroughJava", 12) == {"broker-ours"}
        assert exchange(newest_driver, at, "AutoThroughJava", 4) == {"broker-ours"}
        listed = newest_driver.mqadmin("clusterList", "-n", at)
        assert "broker-ours" in listed and broker.address in listed
        assert broker.stop() == 0
        assert not registered(at, "broker-ours"), "a clean stop takes the routes away"
        assert not routed(at, "ThroughJava")


def test_a_killed_broker_of_ours_vanishes_from_a_stock_name_server(
    java_name_server: JavaNameServer, tmp_path: Path
) -> None:
    at = java_name_server.address
    with Broker(tmp_path, at, name="broker-killed").start() as broker:
        broker.kill()
        wait_until(lambda: not registered(at, "broker-killed"), 10, "its connection is closed")
        broker.start()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stock_broker_is_found_through_our_name_server_beside_ours(
    version: str, newest_driver: Driver, tmp_path: Path
) -> None:
    with NameServer(tmp_path / "n").start() as name_server:
        at = name_server.address
        with (
            JavaBroker(version, tmp_path / "j", at, name="broker-java") as java_broker,
            Broker(tmp_path / "o", at, name="broker-ours") as our_broker,
        ):
            java_broker.launch()
            our_broker.start()
            java_broker.wait_ready(java_broker.ready, java_broker.READY_S)
            topic = "BothBrokers"
            printed = newest_driver.mqadmin(
                "updateTopic", "-c", "TestCluster", "-t", topic, "-r", "4", "-w", "4", "-n", at
            )
            assert printed.count("success.") == 2, printed
            route = newest_driver.mqadmin("topicRoute", "-t", topic, "-n", at)
            assert "broker-java" in route and "broker-ours" in route
            both = {"broker-java", "broker-ours"}
            assert exchange(newest_driver, at, topic, 32) == both
            java_broker.kill()
            wait_until(lambda: not registered(at, "broker-java"), 10, "the killed one is forgotten")
            assert exchange(newest_driver, at, "OnlyOurs", 4) == {"broker-ours"}
