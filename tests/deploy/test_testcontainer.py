"""tandemmq.testing.containers with a real daemon: reached from here, told the right address, gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dockers import DockerFailed, docker

pytest.importorskip("testcontainers", reason="pip install 'tandemmq[testcontainers]'")

from testcontainers.core.config import testcontainers_config

from tandemmq import StartFrom
from tandemmq.blocking import Producer, consume
from tandemmq.testing.containers import ContainerFailed, TandemContainer


@pytest.fixture(autouse=True)
def _no_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its image is in a registry, and these tests remove what they start."""
    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)


@pytest.fixture(scope="module")
def container(image: str) -> Iterator[TandemContainer]:
    testcontainers_config.ryuk_disabled = True
    with TandemContainer(image, replicas=2) as running:
        yield running


def exists(identity: str) -> bool:
    try:
        docker("container", "inspect", identity)
    except DockerFailed:
        return False
    return True


def test_a_client_of_the_host_sends_and_consumes(container: TandemContainer) -> None:
    topic = container.create_topic("Orders", 2)
    with Producer("test", namesrv=container.namesrv) as producer:
        results = [producer.send(topic, b"%d" % number) for number in range(10)]
    assert {each.copies for each in results} == {2}
    found = consume(
        "test", topic, namesrv=container.namesrv, start=StartFrom.FIRST, count=10, idle_s=30
    )
    assert sorted(each.body for each in found) == [b"%d" % number for number in range(10)]


def test_it_fails_over_inside(container: TandemContainer) -> None:
    with Producer("test", namesrv=container.namesrv, timeout_ms=30_000) as producer:
        assert producer.send("Orders", b"before").ok
        container.kill("broker-a-0")
        after = producer.send("Orders", b"after")
        assert after.ok
        assert after.epoch > 1
        container.restart("broker-a-0")


def test_it_is_gone_afterwards_and_says_why_it_did_not_start(image: str) -> None:
    with TandemContainer(image, settings={"messageDelayLevel": "1s 1s 1s"}) as running:
        identity = running.get_container_id()
        assert exists(identity)
    assert not exists(identity)
    with pytest.raises(ContainerFailed, match="flushDiskType"):
        TandemContainer(image, settings={"flushDiskType": "SOMETIMES"}).start()
