"""cluster/broker/standing/identity.py: a store's id, and what a crash between two of its files costs."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from replicakit import Controllers, config_of, controllers
from timekit import LoopClock, run

from tandemmq.cluster.broker.standing.identity import IdentityFiles, obtain_identity
from tandemmq.cluster.config import ConfigError
from tandemmq.replication import CorruptIdentityFile, Identity
from tandemmq.replication import election as e

__all__ = ["controllers"]


async def obtain(root: Path) -> Identity:
    return await obtain_identity(config_of(root), LoopClock(), random.Random(1))


def test_each_new_store_gets_the_next_id_and_keeps_it(
    tmp_path: Path, controllers: Controllers
) -> None:
    # INV-35
    async def main() -> None:
        controllers.add()
        (tmp_path / "one").mkdir()
        (tmp_path / "two").mkdir()
        assert (await obtain(tmp_path / "one")).replica == 1
        assert (await obtain(tmp_path / "two")).replica == 2
        assert not (tmp_path / "two" / "brokerIdentity-temp").exists()
        controllers.at.clear()
        assert (await obtain(tmp_path / "one")) == Identity("C", "broker-a", 1)

    run(main())


def test_a_new_store_waits_for_a_controller(tmp_path: Path, controllers: Controllers) -> None:
    async def main() -> None:
        task = asyncio.create_task(obtain(tmp_path))
        await asyncio.sleep(60)
        assert not task.done() and len(controllers.connects) > 20
        controllers.add("c:2")
        assert (await task).replica == 1

    run(main())


@pytest.mark.parametrize("known", [True, False])
def test_a_crash_before_the_identity_is_written_costs_no_id(
    tmp_path: Path, controllers: Controllers, known: bool
) -> None:
    async def main() -> None:
        controller = controllers.add()
        controller.feed(e.ApplyBrokerId(0, "C", "broker-a", 1, "somebody else"))
        IdentityFiles(tmp_path / "brokerIdentity", "C", "broker-a").want(2, "ours;7")
        if known:  # the controller had taken it before the crash
            controller.feed(e.ApplyBrokerId(0, "C", "broker-a", 2, "ours;7"))
        assert (await obtain(tmp_path)).replica == 2
        assert controller.record.members[2].check_code == "ours;7"

    run(main())


def test_an_id_that_somebody_else_got_first_is_given_up_for_the_next(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controller = controllers.add()
        controller.feed(e.ApplyBrokerId(0, "C", "broker-a", 1, "somebody else"))
        IdentityFiles(tmp_path / "brokerIdentity", "C", "broker-a").want(1, "ours;7")
        assert (await obtain(tmp_path)).replica == 2

    run(main())


@pytest.mark.parametrize("content", ["C#broker-b#1", "Other#broker-a#1"])
def test_a_store_of_another_group_or_cluster_is_refused(
    tmp_path: Path, controllers: Controllers, content: str
) -> None:
    (tmp_path / "brokerIdentity").write_text(content)
    with pytest.raises(ConfigError, match="belongs to"):
        run(obtain(tmp_path))


def test_a_damaged_identity_is_no_new_store(tmp_path: Path, controllers: Controllers) -> None:
    # INV-35
    (tmp_path / "brokerIdentity").write_text("C#broker-a")
    with pytest.raises(CorruptIdentityFile):
        run(obtain(tmp_path))


def test_a_damaged_temporary_file_only_costs_the_next_id(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        (tmp_path / "brokerIdentity-temp").write_bytes(b"\x00\xff")
        assert (await obtain(tmp_path)).replica == 1

    run(main())
