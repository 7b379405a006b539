"""INV-44 with real processes: who comes from elsewhere stops no group and gives it no other master."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from raw_wire import Answer, Wire
from steady_sends import group_of, roles, sending

from tandemmq.chaos.groups import GroupPlan, ReplicaGroup
from tandemmq.cluster import controlplane as plane
from tandemmq.cluster.addresses import reached_at
from tandemmq.cluster.remoting import Command, ResponseCode
from tandemmq.replication import LeaseTimes
from tandemmq.replication import election as e

pytestmark = pytest.mark.system

DOCUMENTATION = "198.51.100.7"  # RFC 5737: nobody's
LEASE_S = LeaseTimes().election_wait_ms / 1000


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """An address of this machine that is not loopback, as a controller sees other machines."""
    if found := reached_at():
        yield found[0]
        return
    change = ["ip", "address", "add", f"{DOCUMENTATION}/32", "dev", "lo"]
    try:
        made = subprocess.run(change, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no address but loopback, and no `ip` (iproute2) to add one")
    if made.returncode:
        pytest.skip(f"no address but loopback, and none can be added: {made.stderr}")
    yield DOCUMENTATION
    change[2] = "delete"
    subprocess.run(change, check=True)


def cleans(group: ReplicaGroup, *replicas: int) -> Command:
    """1011, even of those that live. replicas: all when none is named."""
    return plane.encode_clean_broker_data(
        e.CleanBrokerData(0, group.plan.cluster, group.plan.name, replicas, True), 0
    )


def asked(address: str, command: Command, source: str) -> Answer:
    with Wire(address, source=source) as wire:
        return wire.request(command.encode())


async def test_a_stranger_cleans_no_group_and_deposes_no_master(
    tmp_path: Path, elsewhere: str
) -> None:
    async with group_of(tmp_path, GroupPlan()) as group, sending(group) as steady:
        master, slave, before = await roles(group)
        ids = {each.address: each.broker_id for each in before.members}
        elects = e.ElectMaster(
            0, group.plan.cluster, group.plan.name, ids[slave.address], designated=True
        )
        requests = [
            cleans(group),
            cleans(group, ids[master.address]),
            cleans(group, ids[slave.address]),
            plane.encode_elect_master(elects, 0),
        ]
        for command in requests:
            answer = await asyncio.to_thread(asked, group.controller_address, command, elsewhere)
            assert answer.code == ResponseCode.NO_PERMISSION, answer
            assert "controllerAllowedAddresses" in answer.header["remark"]
        acknowledged = len(steady.acknowledged)
        await asyncio.sleep(LEASE_S + 1)  # longer than a master goes on that has been forgotten
        assert len(steady.acknowledged) > acknowledged + 100
        assert steady.failed == [] and steady.unsafe == []
        assert await group.view() == before
        said = group.name_server.tail(100_000)
        assert said.count(f"cleanBrokerMetadata was not believed peer={elsewhere}:") == 3
        assert said.count(f"electMaster was not believed peer={elsewhere}:") == 1
