"""INV-44 with real processes: raw sockets on the HA port that shake hands as a stock replica does."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from steady_sends import TOPIC, eventually, group_of, one_send, roles, sending

from tandemmq.chaos.groups import GroupPlan, ReplicaGroup, ReplicaProcess
from tandemmq.cluster.controlplane import encode_alter_sync_set, encode_register_broker
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.replication import LeaseTimes
from tandemmq.replication import election as e

pytestmark = pytest.mark.system

HANDSHAKE = struct.Struct(">iHHq")
GREETING = struct.Struct(">iiqi")
REPORT = struct.Struct(">iq")
TRANSFER = struct.Struct(">iiqiqq")


class Stranger:
    """Shakes hands under an invented id, and reports what it gets as an honest slave would, or nothing.

    closed    when the master hung up
    received  what the master sent it
    """

    def __init__(self, replica: int, *, reports: bool) -> None:
        self.replica = replica
        self.reports = reports
        self.closed = False
        self.received = b""

    def end(self) -> int:
        """What an honest slave would have by now: up to the master's end at first, then what came."""
        if len(self.received) < GREETING.size:
            return 0
        _, body, end, _ = GREETING.unpack_from(self.received)
        at = GREETING.size + body
        while at + TRANSFER.size <= len(self.received):
            _, body, offset, *_ = TRANSFER.unpack_from(self.received, at)
            at += TRANSFER.size + body
            if at <= len(self.received):
                end = max(end, offset + body)
        return end

    async def live(self, host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(HANDSHAKE.pack(1, 0, 0, self.replica))
            while data := await reader.read(1 << 16):
                self.received += data
                if self.reports and (end := self.end()):
                    writer.write(REPORT.pack(2, end))
        except ConnectionError:
            pass
        self.closed = True
        writer.close()


@asynccontextmanager
async def strangers(master: ReplicaProcess, *them: Stranger) -> AsyncIterator[None]:
    host, _, port = master.address.rpartition(":")
    tasks = [asyncio.create_task(each.live(host, int(port) + 1)) for each in them]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def copies(group: ReplicaGroup, master: ReplicaProcess) -> int:
    """What the master says of one message."""
    answer = await group.pool.request(master.address, one_send(), 5_000)
    assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
    return int((answer.ext or {})["copies"])


async def test_strangers_on_the_ha_port_are_no_copies_and_hold_up_no_sender(tmp_path: Path) -> None:
    async with group_of(tmp_path, GroupPlan()) as group:
        master, slave, view = await roles(group)
        them = [
            Stranger(90, reports=True),
            Stranger(91, reports=False),
            Stranger(92, reports=True),
            Stranger(93, reports=False),
        ]
        async with sending(group) as steady, strangers(master, *them):
            began = time.monotonic()
            for _ in range(20):
                assert await copies(group, master) == 2
                await asyncio.sleep(0.1)
            assert steady.pause_after(began, time.monotonic()) < 1
            await eventually(lambda: all(each.closed for each in them), 5, "let in")
        assert [each.received for each in them] == [b""] * len(them), "not a byte of the log"
        assert "is not registered with the controller" in master.log.read_text()
        after = await group.view()
        assert after is not None and after.in_sync == {master.address, slave.address}
        assert after.epoch == view.epoch


async def test_a_stranger_does_not_pass_for_a_registered_replica(tmp_path: Path) -> None:
    async with group_of(tmp_path, GroupPlan()) as group:
        master, slave, _ = await roles(group)
        async with sending(group) as steady:
            began = time.monotonic()
            for replica in (1, 2):
                stranger = Stranger(replica, reports=True)
                async with strangers(master, stranger):
                    await eventually(lambda who=stranger: who.closed, 5, "let in")
                assert stranger.received == b""
            assert await copies(group, master) == 2
            assert steady.pause_after(began, time.monotonic()) < 1
        after = await group.view()
        assert after is not None and after.in_sync == {master.address, slave.address}


async def test_forged_requests_depose_no_master_and_move_no_route(tmp_path: Path) -> None:
    async with group_of(tmp_path, GroupPlan()) as group:
        master, slave, view = await roles(group)
        cluster, name = group.plan.cluster, group.plan.name
        as_master = e.RegisterBroker(0, 0, cluster, name, 1, "127.0.0.1:9")
        as_slave = e.RegisterBroker(0, 0, cluster, name, 2, "127.0.0.1:9")
        alone = e.AlterSyncSet(0, name, 1, view.epoch, frozenset({1}), 2)
        route = {
            "brokerName": name, "brokerAddr": "127.0.0.1:9", "clusterName": cluster, "brokerId": "0",
            "haServerAddr": "127.0.0.1:10", "bodyCrc32": "0",
        }  # fmt: skip
        async with sending(group) as steady:
            began = time.monotonic()
            for number in (2, 3, 4):
                alone = msgspec.structs.replace(alone, number=number)
                for command in (
                    encode_register_broker(as_master, LeaseTimes(), 0),
                    encode_register_broker(as_slave, LeaseTimes(), 0),
                    encode_alter_sync_set(alone, 0),
                ):
                    command.ext.pop("incarnation", None)
                    answer = await group.pool.request(group.controller_address, command, 5_000)
                    assert answer.code != ResponseCode.SUCCESS
            forged = Command(RequestCode.REGISTER_BROKER, route)
            answer = await group.pool.request(group.name_server_address, forged, 5_000)
            assert answer.code != ResponseCode.SUCCESS
            await asyncio.sleep(1)
            assert steady.pause_after(began, time.monotonic()) < 1
            assert not steady.failed
            assert (await group.addresses(TOPIC) or {})[0] == master.address
        after = await group.view()
        assert after is not None and after.in_sync == {master.address, slave.address}
        assert (after.epoch, after.master) == (view.epoch, master.address)


async def test_a_new_replica_is_let_in_at_once(tmp_path: Path) -> None:
    async with group_of(tmp_path, GroupPlan(replicas=3)) as group:
        await group.whole()
        refused = [each for each in group.replicas if "not registered with" in each.log.read_text()]
        assert not refused, "the master hears of a replica before the replica connects"
