"""Controllers' commands crosswise: the stock mqadmin about our replicas, and our Admin about stock ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_java_controller
from command_line import run

from tandemmq.chaos.processes import wait_until
from tandemmq.cluster.client import Admin
from tandemmq.java import NEWEST, Driver
from tandemmq.local.layout import Layout, open_layout


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Layout]:
    """`tandem local up --mode sync`, whole."""
    directory = tmp_path / "replicas"
    up = run("local", "up", "--mode", "sync", "--dir", directory)
    assert up.code == 0, up.err
    yield open_layout(directory)
    assert run("local", "down", "--kill", "--dir", directory).code == 0


def test_stock_mqadmin_sees_and_moves_our_masters(replicas: Layout, newest_driver: Driver) -> None:
    names, controller = ("-n", replicas.name_server.address), ("-a", replicas.controller)

    def admin(*words: str) -> str:
        printed = newest_driver.mqadmin(*words)
        assert "Exception" not in printed, printed
        return printed

    def members() -> dict[str, dict[str, object]]:
        shown = run("local", "status", "--json", "--dir", replicas.directory).json["members"]
        return {each["name"]: each for each in shown}

    shown = admin("getSyncStateSet", *controller, "-c", "TandemCluster", *names)
    assert "#SyncStateSetNums\t2" in shown
    assert shown.count("alive=true") == 4
    epochs = admin("getBrokerEpoch", "-b", "broker-a", *names)
    assert epochs.count("#brokerName\tbroker-a") == 2
    assert "EpochEntry{epoch=1, startOffset=0" in epochs
    assert admin("haStatus", "-c", "TandemCluster", *names).count("#InSyncSlaveNum\t1") == 2
    assert replicas.controller in admin("getControllerMetaData", *controller)
    assert "enableElectUncleanMaster" in admin("getControllerConfig", *controller)

    elected = admin("electMaster", *controller, "-b", "2", "-bn", "broker-a", "-c", "TandemCluster")
    assert "#MasterEpoch\t2" in elected
    wait_until(lambda: members()["broker-a-1"]["role"] == "master", 10, "replica 2 leads")
    wait_until(lambda: bool(members()["broker-a-0"]["in_sync"]), 20, "replica 1 follows")

    living = newest_driver.mqadmin(
        "cleanBrokerMetadata", *controller, "-b", "1", "-bn", "broker-a", "-c", "TandemCluster"
    )
    assert "CODE: 2009" in living
    gone = run("local", "kill", "broker-a-0", "--dir", replicas.directory)
    assert gone.code == 0, gone.err
    wait_until(lambda: not members()["broker-a-0"]["in_sync"], 20, "the dead one left the set")
    admin("cleanBrokerMetadata", *controller, "-b", "1", "-bn", "broker-a", "-c", "TandemCluster")
    assert "brokerId=1" not in admin("getSyncStateSet", *controller, "-b", "broker-a", *names)


@pytest.fixture
def stock(
    java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[test_java_controller.Group]:
    """A stock name server with controller, and two stock brokers of one group."""
    monkeypatch.setattr(test_java_controller, "AGAINST", NEWEST)
    made = test_java_controller.Group(tmp_path)
    try:
        made.names.start()
        made.brokers[0].start()
        made.wait(1, [1])
        made.brokers[1].start()
        made.wait(1, [1, 2])
        yield made
    finally:
        made.close()


async def test_our_admin_sees_and_moves_stock_masters(stock: test_java_controller.Group) -> None:
    async with Admin(stock.names.address) as admin:
        assert await admin.controllers() == (stock.controller,)
        assert (await admin.controller_state(stock.controller)).leader_address == stock.controller
        config = await admin.controller_config(stock.controller)
        assert config["enableElectUncleanMaster"] == "false"
        before = (await admin.replica_sets())["broker-a"]
        assert before.master_address == stock.brokers[0].address
        assert [each.broker_id for each in before.in_sync] == [1, 2]
        history = await admin.epoch_history(stock.brokers[0].address)
        assert [each.epoch for each in history.epochs] == [before.epoch]
        moved = await admin.switchover("broker-a")
        assert (moved.after.master_id, moved.after.epoch) == (2, before.epoch + 1)
        assert moved.announced_ms is not None
    shown = await asyncio.to_thread(
        run, "admin", "getSyncStateSet", "-b", "broker-a", "--json", "-n", stock.names.address
    )
    assert json.loads(shown.out)[0]["master_id"] == 2
