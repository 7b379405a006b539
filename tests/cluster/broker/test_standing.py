"""cluster/broker/standing/standing.py: a role, and what follows it."""

from __future__ import annotations

import asyncio

import pytest
from brokerkit import MakeBroker

from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.classicmaster import ClassicMaster
from tandemmq.cluster.broker.standing.standing import OnMaster
from tandemmq.cluster.process import running


@pytest.fixture
def standing(make_broker: MakeBroker) -> ClassicMaster:
    standing = make_broker().broker.standing
    assert isinstance(standing, ClassicMaster)
    return standing


async def turn(standing: ClassicMaster, role: Role) -> None:
    standing.role = role
    async with asyncio.timeout(5):
        await standing.changes.tell(role)


async def test_single_services_run_on_a_master_only_and_follow_its_role(
    standing: ClassicMaster,
) -> None:
    running_now: set[str] = set()
    started = asyncio.Event()

    async def serve() -> None:
        running_now.add("schedule")
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # ends take their time; a new role waits for them
            running_now.discard("schedule")

    single = OnMaster(standing, {"schedule": serve})
    async with running(single=single.run):
        await started.wait()
        await turn(standing, Role.SLAVE)
        assert not running_now
        await turn(standing, Role.SLAVE)
        assert not running_now
        started.clear()
        await turn(standing, Role.SYNC_MASTER)
        await started.wait()
    assert not running_now
    await turn(standing, Role.SLAVE)  # nobody serves: nobody is waited for


async def test_failed_single_service_ends_the_broker(standing: ClassicMaster) -> None:
    async def fail() -> None:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        async with running(single=OnMaster(standing, {"schedule": fail}).run):
            await asyncio.Event().wait()


async def test_those_who_follow_a_role_are_told_in_order_and_waited_for(
    standing: ClassicMaster,
) -> None:
    told: list[str] = []

    async def slow(role: Role) -> None:
        await asyncio.sleep(0)
        told.append(f"slow {role.value}")

    standing.changes.watch(slow)
    standing.changes.watch(lambda role: told.append(f"quick {role.value}"))
    await turn(standing, Role.SLAVE)
    assert told == ["slow SLAVE", "quick SLAVE"]
