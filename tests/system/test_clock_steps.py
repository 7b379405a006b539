"""Delays when the wall clock steps, with real brokers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from failing_disk import compiler
from raw_wire import SEND, Wire, bodies, json_frame, lone_broker, send_ext, send_one
from steady_sends import roles
from stepping_clock import SteppingClock

from tandemmq.chaos.groups import GroupPlan, ReplicaGroup, ReplicaProcess
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker
from tandemmq.cluster.remoting import Command, RequestCode, ResponseCode

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(compiler() is None, reason="needs a C compiler for the stepping clock"),
]

HOUR_MS = 3_600_000
LEVEL, DELAY_S = 2, 5


def send_delayed(broker: Broker | ReplicaProcess, body: bytes) -> float:
    """When it was acknowledged."""
    with Wire(broker.address) as wire:
        ext = send_ext("T", properties=f"DELAY\x01{LEVEL}\x02")
        assert wire.request(json_frame(SEND, ext, body)).code == 0
    return time.monotonic()


def arrived(broker: Broker | ReplicaProcess, body: bytes) -> float:
    wait_until(lambda: body in bodies(broker.address, "T").values(), 20, f"{body!r} is delivered")
    return time.monotonic()


def test_a_step_that_is_taken_back_shortens_no_delay_and_lengthens_none(tmp_path: Path) -> None:
    clock = SteppingClock(tmp_path / "shim")
    with lone_broker(tmp_path, env=clock.env) as broker:
        broker.start()
        before = send_delayed(broker, b"before the step")
        clock.put_ahead(HOUR_MS)
        assert send_one(broker.address, "T", b"stored an hour ahead").code == 0
        during = send_delayed(broker, b"during the step")
        time.sleep(1)
        clock.put_ahead(0)
        after = send_delayed(broker, b"after the step")
        for body, sent in (
            (b"before the step", before), (b"during the step", during), (b"after the step", after),
        ):  # fmt: skip
            took = arrived(broker, body) - sent
            assert DELAY_S - 0.2 <= took <= DELAY_S + 1.5, (body, took)
        assert "the clock stepped by" in broker.output()
        assert broker.stop() == 0


async def test_after_a_switchover_too_a_step_that_was_taken_back_shortens_no_delay(
    tmp_path: Path,
) -> None:
    """The next master's log has the same stored times, an hour ahead of what its clock says."""
    clock = SteppingClock(tmp_path / "shim")
    async with ReplicaGroup(tmp_path, GroupPlan()) as group:
        for replica in group.replicas:
            replica.prefix = ["env", *(f"{key}={value}" for key, value in clock.env.items())]
        await group.start()
        await group.create_topic("T", 4)
        master, slave, before = await roles(group)
        clock.put_ahead(HOUR_MS)
        assert send_one(master.address, "T", b"stored an hour ahead").code == 0
        clock.put_ahead(0)
        (successor,) = (e.broker_id for e in before.members if e.address == slave.address)
        ext = {
            "clusterName": group.plan.cluster, "brokerName": group.plan.name,
            "brokerId": str(successor), "designateElect": "true",
        }  # fmt: skip
        deadline = time.monotonic() + 10
        while (
            answer := await group.pool.request(
                group.controller_address,
                Command(RequestCode.CONTROLLER_ELECT_MASTER, dict(ext)),
                5_000,
            )
        ).code != ResponseCode.SUCCESS:
            assert time.monotonic() < deadline, answer.remark
        assert (await group.whole()).master == slave.address
        sent = await asyncio.to_thread(send_delayed, slave, b"after both")
        took = await asyncio.to_thread(arrived, slave, b"after both") - sent
        assert DELAY_S - 0.2 <= took <= DELAY_S + 1.5
