"""Apache RocketMQ's broker starts with the settings files that we ship under its directories' names."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tandemmq.chaos.java import JavaBroker
from tandemmq.chaos.servers import NameServer
from tandemmq.cluster.client import Admin
from tandemmq.cluster.config import read_properties
from tandemmq.java import NEWEST

CONF = Path(__file__).parents[2] / "deploy" / "conf"


@pytest.mark.parametrize("name", ["2m-2s-sync/broker-a", "2m-noslave/broker-b"])
def test_a_java_broker_serves_with_a_shipped_file(name: str, java: None, tmp_path: Path) -> None:
    file = read_properties(CONF / f"{name}.properties")

    async def in_force(broker: JavaBroker) -> dict[str, str]:
        async with Admin(namesrv=broker.name_servers) as admin:
            return await admin.broker_config(broker.address)

    with (
        NameServer(tmp_path).start() as name_server,
        JavaBroker(
            NEWEST, tmp_path, name_server.address, name=file["brokerName"], settings=file
        ).start() as broker,
    ):
        found = asyncio.run(in_force(broker))
    assert {key: found.get(key) for key in file} == file
