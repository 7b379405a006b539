"""A group changed from S0 to S1 replica by replica, and a power cut on the way: real processes.

No machine goes down here: the store is made to look as it does after that, by the boot id of another boot.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tandemmq import Message, Producer, SendStatus
from tandemmq.chaos.groups import GroupPlan, ReplicaGroup, ReplicaProcess

pytestmark = pytest.mark.system

TOPIC = "Rolling"
SUSPECT = "this replica may have lost what it had reported"


async def lose_power(replica: ReplicaProcess) -> None:
    await replica.kill()
    pid, _ = (replica.store / "bootid").read_text().split()
    (replica.store / "bootid").write_text(f"{pid} 00000000-another-boot")


def flush_synchronously(group: ReplicaGroup, replica: ReplicaProcess) -> None:
    conf = group.directory / f"replica-{replica.number}" / "broker.conf"
    text = conf.read_text()
    assert "flushDiskType=ASYNC_FLUSH" in text
    conf.write_text(text.replace("flushDiskType=ASYNC_FLUSH", "flushDiskType=SYNC_FLUSH"))


async def send(group: ReplicaGroup, count: int) -> None:
    async with Producer("PG", namesrv=group.name_server_address, timeout_ms=15_000) as producer:
        for number in range(count):
            result = await producer.send(Message(TOPIC, b"%d" % number))
            assert result.status is SendStatus.SEND_OK


async def rolling(directory: Path) -> None:
    async with ReplicaGroup(directory, GroupPlan()) as group:
        await group.start()
        await group.create_topic(TOPIC, 4)
        await send(group, 20)
        view = await group.whole()
        (slave,) = (each for each in group.replicas if each.address != view.master)
        flush_synchronously(group, slave)
        await lose_power(slave)  # before the restart that was meant: it ran with ASYNC_FLUSH
        said = len(slave.tail(1 << 20))
        slave.launch()
        await group.whole(30)  # and it has caught up
        assert SUSPECT in slave.tail(1 << 20)[said:], "INV-39: broker.conf was believed"
        # from now on it tells its S0 master of flushed bytes only, and loses none of them
        await send(group, 20)
        await lose_power(slave)
        said = len(slave.tail(1 << 20))
        slave.launch()
        await group.whole(30)
        await send(group, 5)
        assert SUSPECT not in slave.tail(1 << 20)[said:]


def test_a_power_cut_amid_a_rolling_change_is_judged_by_how_the_replica_ran(tmp_path: Path) -> None:
    asyncio.run(rolling(tmp_path))
