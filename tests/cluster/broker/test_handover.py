"""cluster/broker/standing/replicagroup.py: how a reign ends, planned or not, without sockets."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from replicakit import Controllers, Kit, answered, controllers, draft, hold, reigning, turns
from timekit import run

from tandemmq.cluster.broker.errors import NotMaster
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.replication import GroupView, ReplicaRole
from tandemmq.replication import election as e
from tandemmq.replication import masterevents as m
from tandemmq.replication import replica as r
from tandemmq.replication.master import MasterState
from tandemmq.storage import FlushFailed, Problem

__all__ = ["controllers"]


# -- the end of a reign -------------------------------------------------------------------------


def later_reign(kit: Kit) -> GroupView:
    return GroupView(
        kit.replica.epoch + 1, 2, "10.0.0.2:10911", "10.0.0.2:10912", frozenset({2}), 9
    )


def test_who_waits_when_a_reign_ends_is_told_that_it_is_stored_and_no_more(
    tmp_path: Path, controllers: Controllers
) -> None:
    # INV-33
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            feed = kit.replica.feed
            feed.feed(m.SlaveGreeted(connection=7, replica=2, incarnation=5))
            feed.feed(m.SlaveReported(7, 0, 0, 0, 0, kit.store.end))
            placed = kit.put(draft())
            connection = hold(kit, placed.end)
            await turns()
            feed.feed(r.RoleNotified(later_reign(kit)))
            refused = kit.replica.refusal()
            assert refused is not None and isinstance(refused.why, NotMaster), "at once"
            await turns()
            answer = answered(connection)
            assert answer is not None and answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert kit.replica.core.role is ReplicaRole.FOLLOWING
            assert kit.replica.broker_id == 1 and kit.told[-1] == "SLAVE"
            assert Problem.FENCED in kit.store.flags.problems
            assert kit.replica.core.slave.end == placed.end

    run(main())


def test_what_a_connection_has_staged_when_the_reign_ends_is_part_of_the_log_that_is_handed_over(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            kit.put(draft())  # makes the first file
            tail = kit.store.log.tail
            staged = tail.append(draft(), 1, 0)
            assert staged == kit.store.end < tail.end
            kit.replica.feed.feed(r.RoleNotified(later_reign(kit)))
            asyncio.get_running_loop().call_soon(kit.store.commit)
            await turns()
            assert kit.replica.core.role is ReplicaRole.FOLLOWING
            assert kit.replica.core.slave.end == kit.store.end == tail.end

    run(main())


def refuse_commit(kit: Kit) -> None:
    """A connection stages a message, and the disk will not have it."""
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, kit.store.log.run.segments[-1]._descriptor)
    os.close(full)
    kit.store.log.tail.append(draft(), 1, 0)
    with pytest.raises(FlushFailed):
        kit.store.commit()
    assert kit.store.log.tail.end > kit.store.end


def test_a_reign_ends_even_if_the_disk_refuses_what_a_connection_has_staged(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            placed = kit.put(draft())
            refuse_commit(kit)
            kit.replica.feed.feed(r.RoleNotified(later_reign(kit)))
            await turns()
            assert kit.replica.core.role is ReplicaRole.FOLLOWING
            assert kit.replica.core.slave.end == kit.store.end == placed.end

    with pytest.raises(FlushFailed, match="cannot write the log"):  # and so does closing the store
        run(main())


def test_single_jobs_end_before_the_next_role_begins(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            stopped = asyncio.get_running_loop().create_future()

            async def stop(role: Role) -> None:
                if role is Role.SLAVE and not stopped.done():
                    await stopped

            kit.replica.changes.watch(stop)
            kit.replica.feed.feed(r.RoleNotified(later_reign(kit)))
            await asyncio.sleep(1)
            assert kit.replica.core.role is ReplicaRole.SETTLING
            stopped.set_result(None)
            await turns()
            assert kit.replica.core.role is ReplicaRole.FOLLOWING

    run(main())


# -- planned switchover -------------------------------------------------------------------------


def test_sends_wait_for_a_switchover_and_go_on_when_it_is_abandoned(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            replica, feed = kit.replica, kit.replica.feed
            feed.feed(m.SlaveGreeted(connection=7, replica=2, incarnation=5))
            feed.feed(m.SlaveReported(7, 0, 0, 0, 0, kit.store.end))
            kit.put(draft())  # the slave never gets it
            await turns()
            replica.link._feed(r.SwitchAsked(replica.epoch, 2))
            refused = replica.refusal()
            assert refused is not None and isinstance(refused.why, NotMaster) and refused.wait_ms
            began = asyncio.get_running_loop().time()
            await asyncio.wait((replica.changes.settled(refused.wait_ms),))
            drain_ms = kit.config.rules.drain_ms_max
            waited_ms = (asyncio.get_running_loop().time() - began) * 1000
            assert drain_ms <= waited_ms <= drain_ms + 100
            assert replica.refusal() is None
            assert kit.store.flags.writable

    run(main())


def test_what_is_staged_when_a_switchover_is_asked_for_is_handed_over_with_the_rest(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            replica, store = kit.replica, kit.store
            feed, heard = replica.feed, replica.link._feed
            first = kit.put(draft())
            await turns()
            feed.feed(m.SlaveGreeted(connection=7, replica=2, incarnation=5))
            feed.feed(m.SlaveReported(7, first.end, 0, 1, first.end, kit.store.end))
            store.log.tail.append(draft(), 1, 0)
            heard(r.SwitchAsked(replica.epoch, 2))
            master = replica.core.master
            assert master is not None and master.state is MasterState.SERVING
            store.commit()
            connection = hold(kit, store.end)
            await turns(3)
            assert master.state is MasterState.DRAINING and not store.flags.writable
            feed.feed(m.SlaveReported(7, store.end, 0, 1, store.end, kit.store.end))
            assert master.state is MasterState.RESIGNED
            answer = answered(connection)
            assert answer is not None and answer.code == ResponseCode.SUCCESS
            refused = replica.refusal()
            assert refused is not None and refused.wait_ms

    run(main())


def test_a_master_whose_disk_refuses_what_is_staged_hands_over_what_it_has(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            placed = kit.put(draft())
            await turns()
            feed, heard = kit.replica.feed, kit.replica.link._feed
            feed.feed(m.SlaveGreeted(connection=7, replica=2, incarnation=5))
            feed.feed(m.SlaveReported(7, placed.end, 0, 1, placed.end, kit.store.end))
            await turns()
            refuse_commit(kit)
            heard(r.SwitchAsked(kit.replica.epoch, 2))
            master = kit.replica.core.master
            assert master is not None and master.state is MasterState.RESIGNED
            assert master.end == placed.end

    with pytest.raises(FlushFailed, match="cannot write the log"):  # and so does closing the store
        run(main())


def test_a_switchover_to_nobody_we_know_changes_nothing(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            kit.replica.link._feed(r.SwitchAsked(kit.replica.epoch, 9))
            assert kit.replica.refusal() is None and kit.store.flags.writable

    run(main())


def test_a_master_that_stops_asks_for_the_member_that_has_most_and_does_not_wait_for_ever(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controller = controllers.add()
        async with reigning(tmp_path) as kit:
            await kit.replica.hand_over()
            assert [each.designated for each in controller.events(e.ElectMaster)] == [False]
            feed = kit.replica.feed
            placed = kit.put(draft())
            await turns()
            for replica, received in ((2, 0), (3, placed.end), (4, placed.end)):
                feed.feed(m.SlaveGreeted(connection=replica, replica=replica, incarnation=5))
                feed.feed(m.SlaveReported(replica, received, 0, 1, placed.end, kit.store.end))
            members = frozenset({1, 2, 3})
            feed.feed(r.RoleNotified(GroupView(1, 1, "", "", members, 100)))
            began = asyncio.get_running_loop().time()
            await kit.replica.hand_over()
            assert asyncio.get_running_loop().time() - began <= 1.1
            asked = controller.events(e.ElectMaster)[-1]
            assert (asked.designated, asked.replica) == (True, 3)

    run(main())


def test_refused_senders_are_slowed_down_right_after_a_reign_and_not_for_long(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            kit.replica.feed.feed(r.RoleNotified(later_reign(kit)))
            await turns()
            refused = kit.replica.refusal()
            assert refused is not None and refused.wait_ms
            assert kit.replica.refusal() is not None, "asking changes nothing"
            await asyncio.sleep(2)
            refused = kit.replica.refusal()
            assert refused is not None and refused.wait_ms == 0

    run(main())
