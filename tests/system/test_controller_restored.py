"""A controller whose file is put back as it was before the last changes of a set, while their master reigns on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from test_group_tables import roles, until

from tandemmq.chaos.groups import GroupPlan, ReplicaGroup, ReplicaProcess

pytestmark = pytest.mark.system


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[ReplicaGroup]:
    async with ReplicaGroup(tmp_path, GroupPlan(replicas=2)) as made:
        await made.start()
        yield made


async def leaves(group: ReplicaGroup, slave: ReplicaProcess) -> None:
    """The slave dies, and its master has it taken out of the set."""
    await slave.kill()

    async def alone() -> bool:
        view = await group.view()
        return view is not None and slave.address not in view.in_sync and len(view.in_sync) == 1

    await until(alone, "the set without its dead slave", 12)


async def test_a_restored_controller_is_told_the_set_by_which_its_master_acknowledges(
    group: ReplicaGroup,
) -> None:
    master, slave = await roles(group)
    path = group.directory / "namesrv" / "controller" / "controller.json"
    kept = path.read_bytes()
    await leaves(group, slave)
    slave.launch()
    before = await group.whole()

    await group.name_server.kill()
    path.write_bytes(kept)
    group.name_server.launch()

    async def told() -> bool:
        view = await group.view()
        return view is not None and view.set_epoch > before.set_epoch

    await until(told, "the controller has been told the set", 12)
    assert "an older state of it was restored" in master.tail(100_000)
    view = await group.view()
    assert view is not None
    assert (view.master, view.epoch) == (master.address, before.epoch), "and nobody was deposed"
