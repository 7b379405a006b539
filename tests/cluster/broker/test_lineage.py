"""cluster/broker/standing/lineage.py and what a start finds out of its own files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from replicakit import Controllers, controllers, draft, hold, open_kit, reigning, turns, until
from timekit import run

from tandemmq.cluster.broker.standing.lineage import FILE_NAME, PROCESSES_MAX, registered, succeed
from tandemmq.storage import Owner

__all__ = ["controllers"]


def test_each_process_writes_itself_down_and_knows_who_was_before_it(tmp_path: Path) -> None:
    assert succeed(tmp_path, 7) == ()
    assert succeed(tmp_path, 8) == (7,)
    assert succeed(tmp_path, 9) == (7, 8)
    for number in range(100, 100 + PROCESSES_MAX):
        succeed(tmp_path, number)
    newest = tuple(range(100, 100 + PROCESSES_MAX))[2 - PROCESSES_MAX :]
    assert succeed(tmp_path, 1) == (7, *newest), "the first and the newest"


def test_the_process_that_registered_last_is_never_forgotten(tmp_path: Path) -> None:
    """INV-38: the controller asks for it, however many starts reached nobody since."""
    succeed(tmp_path, 7)
    succeed(tmp_path, 8)
    registered(tmp_path, 8)
    registered(tmp_path, 8)
    assert (tmp_path / FILE_NAME).read_bytes() == b"8\n7\n"
    for number in range(100, 100 + 3 * PROCESSES_MAX):
        before = succeed(tmp_path, number)
        assert before[0] == 8
        assert len(before) < PROCESSES_MAX
    registered(tmp_path, number)
    assert succeed(tmp_path, 9)[0] == number
    assert 8 in succeed(tmp_path, 10), "an older controller's file may ask for that one"


def test_starts_that_reach_no_controller_do_not_make_a_replica_a_copy_of_itself(
    tmp_path: Path, controllers: Controllers
) -> None:
    """INV-38"""

    async def main() -> None:
        controller = controllers.add()
        async with reigning(tmp_path):
            pass
        async with reigning(tmp_path):
            last = controller.record.members[1].incarnation
            path = tmp_path / FILE_NAME
            await until(lambda: path.read_text().startswith(f"{last}\n"), "it is remembered")
        for number in range(1, 2 * PROCESSES_MAX):
            succeed(tmp_path, number)
        async with reigning(tmp_path) as kit:
            assert controller.record.suspects == ()
            assert kit.replica.epoch == 3

    run(main())


@pytest.mark.parametrize("content", [b"seven\n", b"7\n0\n", b"9" * 40, b"\xff\n"])
def test_a_damaged_lineage_says_nothing_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert succeed(tmp_path, 8) == ()
    assert succeed(tmp_path, 9) == (8,)


def test_a_restart_names_its_predecessor_and_is_trusted(
    tmp_path: Path, controllers: Controllers
) -> None:
    """INV-38"""

    async def main() -> None:
        controller = controllers.add()
        async with reigning(tmp_path):
            first = controller.record.members[1].incarnation
        async with reigning(tmp_path) as kit:
            assert controller.record.members[1].incarnation != first
            assert controller.record.suspects == ()
            assert kit.replica.epoch == 2
        assert f"{first}\n" in (tmp_path / FILE_NAME).read_text()

    run(main())


def test_a_log_that_ends_below_what_was_confirmed_makes_its_replica_suspect(
    tmp_path: Path, controllers: Controllers
) -> None:
    """INV-37: the store itself says so, under a controller that knows nothing of it."""

    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            for _ in range(10):
                placed = kit.put(draft())
            hold(kit, placed.end)
            await turns()
            assert kit.replica.confirmed() == placed.end
            kit.store.flush_log()
            kit.store.flush_checkpoint(kit.store.confirmed)
        for path in (tmp_path / "commitlog").iterdir():
            path.unlink()
        with open_kit(tmp_path) as kit:
            replica = await kit.join()
            assert replica.core.suspect
            assert "confirmed" in (tmp_path / "suspect").read_text()

    run(main())


def test_half_a_record_that_a_dead_master_left_makes_nobody_suspect(
    tmp_path: Path, controllers: Controllers
) -> None:
    """INV-37: the slave of an asynchronous master calls confirmed what it has, and a start cuts the half record."""

    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path / "master") as kit:
            for _ in range(3):
                placed = kit.put(draft())
            log = bytes(kit.store.log.run.segments[0].view[: placed.end])
        half = placed.end - placed.size // 2
        with open_kit(tmp_path / "slave") as kit:
            kit.store.belong_to(Owner(confirmed=lambda: half))
            kit.store.append_raw(log[:half], 0)
            kit.dispatch()
            assert kit.store.confirmed == half
            assert kit.store.whole(half) == placed.offset, "what the controller is told"
            await asyncio.to_thread(kit.store.flush_queues)
        with open_kit(tmp_path / "slave") as kit:
            assert kit.store.checkpoint.confirmed == kit.store.end == placed.offset

    run(main())
