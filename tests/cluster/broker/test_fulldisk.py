"""cluster/broker/standing/handover.py: when a master whose disk is full, or stands still, lets another take over, and
when it does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from replicakit import Controllers, Kit, MemoryController, controllers, reigning, turns, until
from timekit import run

from tandemmq.cluster.broker.standing.handover import (
    ASK_AGAIN_MS,
    CLEANING_MS,
    STAY_MS,
    BadDisk,
    StalledFlush,
)
from tandemmq.replication import election as e
from tandemmq.replication import masterevents as m
from tandemmq.storage import Draft, Problem

__all__ = ["controllers"]


def test_cleaning_is_given_a_moment_and_the_members_are_asked_in_turn() -> None:
    disk, asked = BadDisk(CLEANING_MS), []
    for now_ms in range(0, 20_000, 100):
        found = disk.look(now_ms, bad=now_ms >= 1_000, in_sync=(2, 3))
        if found is not None:
            asked.append((now_ms, found))
    first = 1_000 + CLEANING_MS
    steps = [first + number * ASK_AGAIN_MS for number in range(4)]
    assert asked == list(zip(steps, (2, 3, 2, 3), strict=True))


def test_who_has_space_again_or_nobody_in_sync_asks_nobody() -> None:
    disk = BadDisk(CLEANING_MS)
    for now_ms in range(0, 60_000, 100):
        full = now_ms % 1_500 != 0  # cleaning helps every time
        assert disk.look(now_ms, bad=full, in_sync=(2,)) is None
        assert BadDisk(CLEANING_MS).look(now_ms, bad=True, in_sync=()) is None


def test_two_full_disks_do_not_take_turns() -> None:
    """Each is master in turn, both always full, and both said a moment ago that they had space."""
    disks = {1: BadDisk(CLEANING_MS), 2: BadDisk(CLEANING_MS)}
    master, changes = 1, []
    for now_ms in range(0, 300_000, 100):
        other = 3 - master
        if disks[master].look(now_ms, bad=True, in_sync=(other,)) is not None:
            disks[master].deposed(now_ms)
            changes.append(now_ms)
            master = other
    per_minute = [sum(start <= each < start + STAY_MS for each in changes) for start in changes]
    assert changes and max(per_minute) <= 2, changes


@pytest.mark.parametrize("answer_ms", [30, 100, 200])
def test_two_disks_that_stand_still_now_and_then_do_not_take_turns(answer_ms: int) -> None:
    """A flush may end between the wish and the end of the reign."""
    disks = {1: BadDisk(0), 2: BadDisk(0)}
    master, deposed_ms, changes = 1, 0, []
    for now_ms in range(0, 300_000, 10):
        bad = now_ms % 1_650 >= 1_550
        if deposed_ms and now_ms >= deposed_ms:
            disks[master].deposed(now_ms)
            changes.append(now_ms)
            master, deposed_ms = 3 - master, 0
        elif disks[master].look(now_ms, bad=bad, in_sync=(3 - master,)) is not None:
            deposed_ms = now_ms + answer_ms
    per_minute = [sum(start <= each < start + STAY_MS for each in changes) for start in changes]
    assert changes and max(per_minute) <= 2, changes


def with_slave(kit: Kit, controller: MemoryController, *, space: bool) -> None:
    """A second replica that is registered, alive, follows everything, and says whether it has space."""
    for event in (
        e.ApplyBrokerId(0, "C", "broker-a", 2, "code2"),
        e.RegisterBroker(
            0, 77, "C", "broker-a", 2, "10.0.0.2:10911", "10.0.0.2:10912", 5, "S0", False, 1, 0
        ),
    ):
        controller.feed(event)
    beat_of_slave(controller, space=space)
    kit.replica.feed.feed(m.SlaveGreeted(connection=7, replica=2, incarnation=5))
    kit.replica.feed.feed(m.SlaveReported(7, 0, 0, 0, 0, kit.store.end))


def beat_of_slave(controller: MemoryController, *, space: bool) -> None:
    controller.feed(e.Heartbeat(77, "broker-a", 2, 5, 1, 1, 0, 0, streaming=True, space=space))


@pytest.mark.parametrize("space", [True, False])
def test_a_full_master_hands_over_to_a_member_that_says_it_has_space_and_to_no_other(
    tmp_path: Path, controllers: Controllers, space: bool
) -> None:
    async def main() -> None:
        controller = controllers.add()
        async with reigning(tmp_path) as kit:
            with_slave(kit, controller, space=space)
            await until(lambda: 2 in controller.record.sync_set, "the slave is not in the set")
            assert controller.events(e.Heartbeat)[-1].space or not space
            kit.store.flags.set(Problem.DISK_FULL, "95 % used")
            for _ in range(100):
                await asyncio.sleep(0.1)
                beat_of_slave(controller, space=space)
                kit.replica.feed.feed(m.SlaveReported(7, 0, 0, 0, 0, kit.store.end))
                if controller.record.master == 2:
                    break
            await turns()
            asked = controller.events(e.ElectMaster)[1:]  # the first made this one the master
            assert asked and all(each.spacious and each.replica == 2 for each in asked)
            ours = [each for each in controller.events(e.Heartbeat) if each.replica == 1]
            assert not ours[-1].space, "a full disk is not called spacious"
            assert controller.record.master == (2 if space else 1)
            assert len(asked) == (1 if space else 2), (
                "asked again after a while, and not all the time"
            )

    run(main())


def test_a_full_master_stays_where_going_would_leave_too_few_copies(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controller = controllers.add()
        async with reigning(tmp_path, minInSyncReplicas="2") as kit:
            with_slave(kit, controller, space=True)
            await until(lambda: 2 in controller.record.sync_set, "the slave is not in the set")
            kit.store.flags.set(Problem.DISK_FULL, "95 % used")
            for _ in range(60):
                await asyncio.sleep(0.1)
                beat_of_slave(controller, space=True)
                kit.replica.feed.feed(m.SlaveReported(7, 0, 0, 0, 0, kit.store.end))
            assert controller.record.master == 1 and 2 in controller.record.sync_set

    run(main())


def test_a_flush_stands_still_only_while_somebody_looks_on() -> None:
    flush = StalledFlush()
    assert [flush.seen_ms(now_ms, 1_000) for now_ms in (1_050, 1_150, 1_250)] == [0, 100, 200]
    assert flush.seen_ms(9_000, 1_000) == 400, "the process was stopped: who knows how long it took"
    assert flush.seen_ms(9_100, 9_050) == 0, "another one"
    assert flush.seen_ms(9_200, None) == flush.seen_ms(9_300, 9_250) == 0


@pytest.mark.parametrize("successor_flushes", [True, False])
def test_a_master_whose_disk_stands_still_hands_over_to_a_member_whose_disk_does_not(
    tmp_path: Path, controllers: Controllers, successor_flushes: bool
) -> None:
    """S1: nothing is acknowledged while its own flush does not end, and what waits is neither a success nor refused."""

    async def main() -> None:
        controller = controllers.add()
        async with reigning(tmp_path, flushDiskType="SYNC_FLUSH") as kit:
            with_slave(kit, controller, space=True)
            await until(lambda: 2 in controller.record.sync_set, "the slave is not in the set")
            began_ms = kit.clock.monotonic_ms()
            kit.put(Draft("T", 0, b"x"))
            kit.flushing_since_ms = began_ms
            for _ in range(40):
                end = kit.store.end
                kit.replica.feed.feed(
                    m.SlaveReported(7, end, end if successor_flushes else 0, 1, end, end)
                )
                beat_of_slave(controller, space=True)
                await asyncio.sleep(0.1)
                if controller.record.master == 2:
                    break
            took_ms = kit.clock.monotonic_ms() - began_ms
            assert controller.record.master == (2 if successor_flushes else 1)
            assert 1_500 <= took_ms <= 2_200 or not successor_flushes, took_ms
            assert kit.replica.core.master is None or kit.replica.core.master.acknowledged == 0
            if not successor_flushes:  # its puts go on once the attempt was given up
                kit.replica.feed.feed(m.Flushed(kit.store.end))
                assert kit.replica.refusal() is None

    run(main())
