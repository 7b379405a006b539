"""cluster/broker/standing/replicagroup.py: one replica as its controller and its clients see it, without sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import shutil
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from messagekit import FakeConnection
from replicakit import (
    Controllers,
    answered,
    controllers,
    draft,
    hold,
    joined,
    open_kit,
    reigning,
    turns,
    until,
)
from timekit import run

from tandemmq.cluster.broker.errors import BrokerError, NotMaster, TooFewReplicas
from tandemmq.cluster.broker.serving import leave_as_found
from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.replicagroup import ControlledReplica
from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.replication import GroupView, ReplicaRole
from tandemmq.replication import election as e
from tandemmq.replication import masterevents as m
from tandemmq.replication import replica as r
from tandemmq.replication.epochs import Epoch, EpochHistory
from tandemmq.replication.slave import Append
from tandemmq.storage import Problem, fastjson

__all__ = ["controllers"]


# -- taking part --------------------------------------------------------------------------------


def why_refused(replica: ControlledReplica) -> BrokerError | None:
    refused = replica.refusal()
    return None if refused is None else refused.why


def test_the_first_replica_of_a_group_becomes_its_master(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controller = controllers.add()
        async with joined(tmp_path) as kit:
            replica = kit.replica
            assert (replica.role, replica.broker_id) == (Role.SLAVE, 1)
            assert isinstance(why_refused(replica), NotMaster)
            assert Problem.FENCED in kit.store.flags.problems
            await until(lambda: replica.role is Role.SYNC_MASTER, "no master")
            assert (replica.broker_id, replica.epoch, replica.master) == (0, 1, None)
            assert replica.refusal() is None and kit.store.flags.writable
            assert kit.told[-1] == "SYNC_MASTER"
            assert controller.record.mode == "S0"
            assert (tmp_path / "epochFileCheckpoint").read_text().endswith("1-0\n")
            assert (tmp_path / "brokerIdentity").read_text() == "C#broker-a#1"

    run(main())


def test_an_answer_leaves_when_the_set_has_its_message_and_says_which_reign_it_was(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            placed = kit.put(draft())
            assert kit.store.max_offset("T", 0) == 0
            connection = hold(kit, placed.end)
            await turns()
            answer = answered(connection)
            assert answer is not None and answer.code == ResponseCode.SUCCESS
            assert answer.ext == {"epoch": "0000000001", "copies": "1", "durable": "0"}
            assert kit.store.max_offset("T", 0) == 1

    run(main())


def test_a_message_waits_for_the_slave_in_the_set_and_consumers_do_too(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            feed = kit.replica.feed
            feed.feed(m.SlaveGreeted(connection=7, replica=2, incarnation=5))
            feed.feed(m.SlaveReported(7, 0, 0, 0, 0, kit.store.end))
            first = kit.put(draft())
            connection = hold(kit, first.end)
            await turns()
            assert answered(connection) is None, "the slave counts before the controller knows"
            assert kit.store.max_offset("T", 0) == 0
            feed.feed(m.SlaveReported(7, first.end, 0, 1, first.end, kit.store.end))
            answer = answered(connection)
            assert answer is not None and (answer.ext or {})["copies"] == "2"
            assert kit.replica.readable_elsewhere(first.end)

    run(main())


def test_a_slave_counts_once_it_has_the_tables_and_changes_wait_for_it_from_then_on(
    tmp_path: Path, controllers: Controllers
) -> None:
    """INV-43: what was changed while it was away, nobody waits for."""

    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            asked: list[tuple[int, int]] = []
            having: set[tuple[int, int]] = set()

            def follows(replica: int, incarnation: int) -> bool:
                asked.append((replica, incarnation))
                return (replica, incarnation) in having

            kit.replica.follows = follows
            feed = kit.replica.feed
            feed.feed(m.SlaveGreeted(connection=7, replica=2, incarnation=5))
            feed.feed(m.SlaveReported(7, 0, 0, 0, 0, kit.store.end))
            feed.feed(r.Tick())
            assert asked[-1] == (2, 5) and kit.replica.in_sync == frozenset()
            having.add((2, 5))
            feed.feed(r.Tick())
            assert kit.replica.in_sync == {2}

    run(main())


@pytest.mark.parametrize(
    ("role", "lossy_epoch", "lost"),
    [("SYNC_MASTER", 0, False), ("SYNC_MASTER", 1, True), ("ASYNC_MASTER", 0, True)],
)
def test_a_reign_knows_whether_readers_may_have_been_given_more_than_it_has(
    tmp_path: Path, controllers: Controllers, role: str, lossy_epoch: int, lost: bool
) -> None:
    """INV-42: nothing is confirmed in a synchronous mode that the set does not hold, unless that was declared."""

    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path, brokerRole=role) as kit:
            core = kit.replica.core
            core.view = dataclasses.replace(core.view, lossy_epoch=lossy_epoch)
            assert kit.replica.may_have_lost is lost

    run(main())


@pytest.mark.parametrize(
    ("reigns", "lost"),
    [
        # who was elected in 4, with a loss, went before it had its lease
        (((2, 0), (5, 15)), True),
        # it wrote: its own cut was for its readers
        (((2, 0), (4, 15), (5, 18)), False),
        (((5, 0),), True),
    ],
)
def test_a_declared_loss_counts_until_a_reign_wrote_something(
    tmp_path: Path, controllers: Controllers, reigns: tuple[tuple[int, int], ...], lost: bool
) -> None:
    """INV-42. The simulator found it, seed 71807 of the cores."""

    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path, brokerRole="SYNC_MASTER") as kit:
            core = kit.replica.core
            core.view = dataclasses.replace(core.view, epoch=5, lossy_epoch=4)
            core.slave.history = EpochHistory(tuple(Epoch(*each) for each in reigns))
            assert kit.replica.may_have_lost is lost

    run(main())


def test_too_few_replicas_in_the_set_refuse_before_the_append(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path, minInSyncReplicas="2") as kit:
            assert isinstance(why_refused(kit.replica), TooFewReplicas)
            assert str(why_refused(kit.replica)) == "in-sync replicas not enough"

    run(main())


def test_a_slave_follows_and_says_where_its_master_is(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with joined(tmp_path) as kit:
            await until(lambda: kit.replica.core.role is ReplicaRole.WAITING, "not registered")
            view = GroupView(3, 2, "10.0.0.2:10911", "10.0.0.2:10912", frozenset({2}), 4)
            kit.replica.feed.feed(r.RoleNotified(view))
            await turns()
            assert kit.replica.master == "10.0.0.2:10911"
            assert (kit.replica.broker_id, kit.replica.epoch) == (1, 3)
            following = kit.replica.following
            assert following is not None and following.address == "10.0.0.2:10912"
            assert kit.replica.ha_status()["master"] is False

    run(main())


# -- leases -------------------------------------------------------------------------------------


def test_without_its_controller_a_master_refuses_when_the_lease_is_over(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controller = controllers.add()
        async with reigning(tmp_path) as kit:
            lease_ms = kit.config.lease.lease_ms
            controller.silent = True
            await asyncio.sleep((lease_ms - 500) / 1000)
            assert kit.replica.refusal() is None
            await asyncio.sleep(0.6)
            assert isinstance(why_refused(kit.replica), NotMaster)
            assert kit.replica.role is Role.SYNC_MASTER, "nobody else reigns yet"
            controller.silent = False
            await until(lambda: kit.replica.refusal() is None, "no new lease")

    run(main())


def test_a_controller_that_is_slow_under_load_is_kept_and_its_answers_count(
    tmp_path: Path, controllers: Controllers
) -> None:
    # INV-23: a lease counts from the sending, so a late answer is worth what is left
    async def main() -> None:
        controller = controllers.add()
        async with reigning(tmp_path) as kit:
            lease_ms = kit.config.lease.lease_ms
            controller.delay_s = (lease_ms - 2 * kit.config.lease.heartbeat_ms) / 1000
            connects = len(controllers.connects)
            refused = 0
            for _ in range(100):
                await asyncio.sleep(0.1)
                refused += kit.replica.refusal() is not None
            assert refused == 0, "the lease ran out"
            assert len(controllers.connects) - connects <= 2, "one look around, at both addresses"
            assert kit.replica.link.connected

    run(main())


@pytest.mark.parametrize(
    "settings", [{"brokerRole": "SYNC_MASTER"}, {"brokerRole": "ASYNC_MASTER", "haLeasePolicy": "strict"}]
)  # fmt: skip
def test_a_process_that_stood_still_alone_acknowledges_nothing_until_its_lease_is_renewed(
    tmp_path: Path, controllers: Controllers, settings: dict[str, str]
) -> None:
    # INV-23
    async def main() -> None:
        controller = controllers.add()
        async with reigning(tmp_path, **settings) as kit:
            controller.silent = True
            placed = kit.put(draft())
            cast(Any, asyncio.get_running_loop()).now_s += 30  # between the append and its answer
            connection = hold(kit, placed.end)
            await turns()
            assert answered(connection) is None
            assert kit.store.max_offset("T", 0) == 0
            controller.silent = False
            await until(lambda: answered(connection), "not acknowledged by the same master")

    run(main())


def test_an_asynchronous_master_goes_on_without_its_controller_unless_it_is_told_otherwise(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controller = controllers.add()
        async with reigning(tmp_path, brokerRole="ASYNC_MASTER") as kit:
            controller.silent = True
            cast(Any, asyncio.get_running_loop()).now_s += 30
            await turns()
            assert kit.replica.refusal() is None
            placed = kit.put(draft())
            connection = hold(kit, placed.end)
            await until(lambda: answered(connection), "it waits for a controller that is away")

    run(main())


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
def test_what_waits_when_a_reign_ends_is_called_stored_and_its_fate_unknown(
    tmp_path: Path, controllers: Controllers, role: str
) -> None:
    # INV-7
    async def main() -> None:
        controller = controllers.add()
        async with reigning(tmp_path, brokerRole=role, haLeasePolicy="strict") as kit:
            controller.silent = True
            placed = kit.put(draft())
            cast(Any, asyncio.get_running_loop()).now_s += 30
            connection = hold(kit, placed.end)
            view = GroupView(2, 2, "10.0.0.2:10911", "10.0.0.2:10912", frozenset({2}), 4)
            kit.replica.feed.feed(r.RoleNotified(view))
            await turns()
            answer = answered(connection)
            assert answer is not None and answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert answer.remark and "stored, fate unknown" in answer.remark
            assert (answer.ext or {})["epoch"] == "0000000001"

    run(main())


# -- what waits too long ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flush", "flushed", "waited_ms", "code"),
    [
        ("ASYNC_FLUSH", False, 1_999, None),
        ("ASYNC_FLUSH", False, 2_000, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        ("SYNC_FLUSH", False, 4_999, None),
        ("SYNC_FLUSH", False, 5_000, ResponseCode.FLUSH_DISK_TIMEOUT),
        ("SYNC_FLUSH", True, 2_000, ResponseCode.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_an_answer_that_waits_too_long_says_for_what(
    tmp_path: Path,
    controllers: Controllers,
    flush: str,
    flushed: bool,
    waited_ms: int,
    code: ResponseCode | None,
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path, flushDiskType=flush) as kit:
            placed = kit.put(draft())
            if flushed:
                kit.store.flush_log()
                kit.replica.flushed(placed.end)
            overdue = kit.replica.overdue(placed.end, waited_ms)
            assert (overdue.code if overdue else None) == code
            assert kit.acks.timeout_ms == 2_000

    run(main())


def test_a_slow_disk_of_the_master_is_never_called_a_slow_slave(
    tmp_path: Path, controllers: Controllers
) -> None:
    """A flush ends in a thread; the core hears of it in a later turn of the loop, and answers are looked at between."""

    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path, flushDiskType="SYNC_FLUSH") as kit:
            feed = kit.replica.feed
            feed.feed(m.SlaveGreeted(connection=7, replica=2, incarnation=5))
            feed.feed(m.SlaveReported(7, 0, 0, 0, 0, kit.store.end))
            placed = kit.put(draft())
            connection = hold(kit, placed.end)
            await turns()
            feed.feed(m.SlaveReported(7, placed.end, placed.end, 1, placed.end, kit.store.end))
            kit.store.flush_log()  # in its thread; nobody was told yet
            cast(Any, asyncio.get_running_loop()).now_s += 2.5
            kit.acks.expire(kit.replica._clock.monotonic_ms(), kit.replica.overdue)
            await turns()
            assert answered(connection) is None, "nobody is too slow yet"
            feed.feed(r.HeartbeatAnswered(0, True, False, kit.replica.core.view))
            kit.replica.flushed(placed.end)
            await until(lambda: answered(connection), "not acknowledged")
            answer = answered(connection)
            assert answer is not None and answer.code == ResponseCode.SUCCESS

    run(main())


def test_a_slave_asks_for_flushes_where_its_disk_is_waited_for(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with joined(tmp_path, flushDiskType="SYNC_FLUSH") as kit:
            kit.replica.core.master = None
            kit.replica._taken(Append(0, 100))
            assert kit.flushes == [kit.store.end]

    run(main())


# -- restarts -----------------------------------------------------------------------------------


def test_after_a_restart_consumers_see_only_what_was_confirmed(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            for _ in range(3):
                kit.put(draft())
            await turns()
            confirmed = kit.replica.confirmed()
            assert confirmed == kit.store.end
            kit.store.flush_log()
            kit.store.flush_checkpoint(kit.store.confirmed)
            kit.replica.feed.feed(m.SlaveGreeted(connection=7, replica=2, incarnation=5))
            kit.replica.feed.feed(m.SlaveReported(7, confirmed, 0, 1, confirmed, kit.store.end))
            await turns()
            kit.put(draft(b"never confirmed"))
            kit.put(draft(b"never confirmed", topic="New"))
            await turns()
            assert kit.replica.confirmed() == confirmed
        controllers.at.clear()  # nobody to say who is master
        with open_kit(tmp_path) as kit:  # a start that is stopped before anything was asked
            assert kit.store.max_offset("T", 0) == 4, "recovery derives all there is"
            leave_as_found(kit.config, kit.store, kit.suspect)
        with open_kit(tmp_path) as kit:
            assert kit.store.max_offset("T", 0) == 4
            await kit.join()
            assert kit.replica.confirmed() == confirmed < kit.store.end
            kit.dispatch()
            assert (kit.store.max_offset("T", 0), kit.store.max_offset("New", 0)) == (3, 0)
            found = kit.store.query("T", "k", 1, 0, 1 << 60)
            assert found.records == []

    run(main())


def test_what_was_confirmed_and_is_gone_after_a_crash_is_not_confirmed(
    tmp_path: Path, controllers: Controllers
) -> None:
    """apache/rocketmq#6703: there the confirmed offset stays behind the end of the log that is left."""

    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path / "store") as kit:
            placed = [kit.put(draft()) for _ in range(3)]
            await turns()
            kit.store.flush_log()
            kit.store.flush_checkpoint(kit.store.confirmed)
            assert kit.store.checkpoint.confirmed == kit.store.end == placed[2].end
            shutil.copytree(tmp_path / "store", tmp_path / "cut")
        path = sorted((tmp_path / "cut" / "commitlog").iterdir())[0]
        content = bytearray(path.read_bytes())
        content[placed[2].offset : placed[2].end] = bytes(placed[2].size)
        path.write_bytes(content)
        controllers.at.clear()
        with open_kit(tmp_path / "cut") as kit:
            await kit.join()
            assert kit.replica.confirmed() == kit.store.end == placed[1].end
            kit.dispatch()
            assert kit.store.max_offset("T", 0) == 2

    run(main())


def test_queue_offsets_of_unconfirmed_messages_are_never_given_out_again(
    tmp_path: Path, controllers: Controllers
) -> None:
    # INV-5
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            kit.replica.feed.feed(m.SlaveGreeted(connection=7, replica=2, incarnation=5))
            kit.replica.feed.feed(m.SlaveReported(7, 0, 0, 0, 0, kit.store.end))
            for _ in range(5):
                kit.put(draft())
            await turns()
            assert kit.store.max_offset("T", 0) == 0, "nothing is confirmed"
        async with reigning(tmp_path) as kit:
            assert kit.replica.epoch > 1
            assert kit.put(draft()).queue_offset == 5
            await turns()
            assert kit.store.max_offset("T", 0) == 6

    run(main())


def test_an_incomplete_record_is_cut_before_a_reign(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with joined(tmp_path) as kit:
            store, replica = kit.store, kit.replica
            await until(lambda: replica.core.role is ReplicaRole.WAITING, "not registered")
            with open_kit(tmp_path / "other") as other:
                placed = [other.store.put(draft(b"y" * 500)) for _ in range(3)]
                view = other.store.log.read(0, placed[2].end - 7)
                assert view is not None
                replica.core.slave.end = store.append_raw(view, 0)
                view.release()
            await until(lambda: replica.role is Role.SYNC_MASTER, "no master")
            assert store.end == placed[1].end == replica.core.confirmed
            assert replica.core.slave.history.entries == (Epoch(1, store.end),)
            assert store.put(draft()).queue_offset == 2

    run(main())


def test_a_power_cut_is_told_to_the_controller_before_anything_else(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controller = controllers.add()
        async with reigning(tmp_path) as kit:
            kit.put(draft())
            abort = (tmp_path / "abort").read_bytes()
        (tmp_path / "abort").write_bytes(abort)  # it ran when the machine went down
        (tmp_path / "bootid").write_text(f"{abort.decode()} some other boot")
        controllers.at.clear()
        with open_kit(tmp_path) as kit:
            await kit.join()
            assert kit.replica.core.suspect
        with open_kit(tmp_path) as kit:  # this time it was a clean stop; nobody was told yet
            await kit.join()
            assert kit.replica.core.suspect
        controllers.at["c:1"] = controller
        controller.seen.clear()
        async with joined(tmp_path) as kit:
            await until(lambda: kit.replica.core.role is not ReplicaRole.JOINING, "not registered")
            await turns()
            assert [each.suspect for each in controller.events(e.RegisterBroker)] == [True]
            assert controller.record.suspects == (1,)
            assert not kit.suspect.there

    run(main())


@pytest.mark.parametrize("count", [40, 100])
def test_a_replica_whose_log_was_cut_at_damage_is_suspect(
    tmp_path: Path, controllers: Controllers, count: int
) -> None:
    """Jepsen, NATS 2.12.1: a node that one flipped bit had cost its log could lead and delete."""

    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path / "store") as kit:
            placed = [kit.put(draft(b"y" * 1000)) for _ in range(count)]
            kit.store.flush_log()
            shutil.copytree(tmp_path / "store", tmp_path / "killed")
        damaged = placed[20]
        path = sorted((tmp_path / "killed" / "commitlog").iterdir())[0]
        content = bytearray(path.read_bytes())
        assert damaged.end < len(content)
        assert (placed[-1].offset > len(content)) == (count == 100), (
            "records follow, in the next file"
        )
        content[content.index(b"y" * 1000, damaged.offset) + 500] ^= 1
        path.write_bytes(content)
        controllers.at.clear()
        with open_kit(tmp_path / "killed") as kit:
            assert kit.store.end == damaged.offset
            assert kit.store.recovered.same_boot, "no power was lost"
            await kit.join()
            assert kit.replica.core.suspect

    run(main())


def test_with_a_synchronous_disk_a_power_cut_lost_nothing_that_was_reported(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        (tmp_path / "abort").write_text("1")
        (tmp_path / "flushmode").write_text("1 SYNC_FLUSH")
        with open_kit(tmp_path, flushDiskType="SYNC_FLUSH") as kit:
            await kit.join()
            assert not kit.replica.core.suspect
            assert kit.replica.core.slave.durable

    run(main())


def test_a_power_cut_is_judged_by_how_the_replica_ran_and_not_by_its_new_broker_conf(
    tmp_path: Path, controllers: Controllers
) -> None:
    """INV-39: the rolling change from S0 to S1, and power fails before the restart that was meant."""

    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            kit.put(draft())
            abort, ran = ((tmp_path / name).read_bytes() for name in ("abort", "flushmode"))
        (tmp_path / "abort").write_bytes(abort)
        (tmp_path / "flushmode").write_bytes(ran)
        (tmp_path / "bootid").write_text(f"{abort.decode()} some other boot")
        controllers.at.clear()
        with open_kit(tmp_path, flushDiskType="SYNC_FLUSH") as kit:
            await kit.join()
            assert kit.replica.core.suspect

    run(main())


@pytest.mark.parametrize("name", ["epochFileCheckpoint", "brokerIdentity"])
def test_a_damaged_file_of_a_replica_stops_the_start_and_says_what_to_do(
    tmp_path: Path, controllers: Controllers, name: str
) -> None:
    async def main() -> None:
        controllers.add()
        with open_kit(tmp_path) as kit:
            (tmp_path / name).write_text("1\n99\n1-0\n")
            with pytest.raises(ConfigError, match="start this replica with an empty store"):
                await kit.join()

    run(main())


def test_each_process_is_another_incarnation(tmp_path: Path, controllers: Controllers) -> None:
    async def main() -> None:
        controllers.add()
        with open_kit(tmp_path) as kit:
            replica = await kit.join()
            assert 0 < replica.core.incarnation < 1 << 63
            assert replica.core.incarnation == replica.link.incarnation

    run(main())


def test_a_member_that_was_lost_still_lags_by_what_it_lacks(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controller = controllers.add()
        async with reigning(tmp_path, brokerRole="ASYNC_MASTER") as kit:
            feed = kit.replica.feed
            first = kit.put(draft())
            await turns()
            feed.feed(m.SlaveGreeted(connection=7, replica=2, incarnation=5))
            feed.feed(m.SlaveReported(7, first.end, 0, 1, first.end, kit.store.end))
            master = kit.replica.core.master
            assert master is not None and controller.record.sync_set == (1,)
            view = GroupView(1, 1, "", "", frozenset({1, 2}), master.number + 1)
            feed.feed(r.RoleNotified(view))
            await asyncio.sleep(0.2)
            feed.feed(m.SlaveLost(7))
            second = kit.put(draft())
            await turns()
            (lag,) = kit.replica.absent()
            assert (lag.replica, lag.acked) == (2, first.end)
            assert lag.behind_bytes == second.end - first.end
            assert kit.replica.slaves() == []

    run(main())


# -- what operators ask -------------------------------------------------------------------------


def test_the_epochs_of_a_log_are_told_as_rocketmq_tells_them(
    tmp_path: Path, controllers: Controllers
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            kit.put(draft())
            await turns()
            master = kit.replica.core.master
            assert master is not None
            end = kit.store.end
            master.history = EpochHistory((Epoch(1, 0), Epoch(4, end - 10)))
            handler = kit.replica.table()[RequestCode.GET_BROKER_EPOCH_CACHE]
            answer = handler(Command(1007), cast(Connection, FakeConnection()))
            assert isinstance(answer, Command) and answer.body is not None
            assert fastjson.loads(bytes(answer.body)) == {
                "brokerId": 1,
                "brokerName": "broker-a",
                "clusterName": "C",
                "epochList": [
                    {"epoch": 1, "startOffset": 0, "endOffset": end - 10},
                    {"epoch": 4, "startOffset": end - 10, "endOffset": end},
                ],
                "maxOffset": end,
            }

    run(main())


def test_a_change_of_the_set_is_logged_and_one_copy_is_a_warning(
    tmp_path: Path, controllers: Controllers, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            master = kit.replica.core.master
            assert master is not None
            with caplog.at_level(logging.INFO):
                for members in (frozenset({1, 2}), frozenset({1})):
                    view = GroupView(1, 1, "", "", members, master.number + 1)
                    kit.replica.feed.feed(r.RoleNotified(view))
        told = [
            (each.levelname, each.message) for each in caplog.records if "before=" in each.message
        ]
        assert told == [
            ("INFO", "set changed in_sync=1,2 before=1 number=2"),
            ("WARNING", "one copy only in_sync=1 before=1,2 number=3"),
        ]

    run(main())


def test_an_alarm_is_kept_for_operators_and_named_once(
    tmp_path: Path, controllers: Controllers, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        controllers.add()
        async with reigning(tmp_path) as kit:
            assert not kit.replica.alarms
            for _ in range(2):
                kit.replica.feed.feed(r.Registered(GroupView()))  # a controller without memory
            assert len(kit.replica.alarms) == 1
            assert "its state was lost" in kit.replica.alarms[0]
        assert caplog.text.count("a person must act") == 1

    run(main())


def test_a_controller_that_comes_back_with_an_older_state_of_the_epoch_is_told_the_set(
    tmp_path: Path, controllers: Controllers
) -> None:
    """It would elect by a set that nobody acknowledges by, and fence every change of it for as long as we live."""

    async def main() -> None:
        controller = controllers.add()
        async with reigning(tmp_path) as kit:
            (group,) = controller.core.groups.values()
            core = kit.replica.core.master
            assert core is not None
            older = group.record.set_number
            group.record = msgspec.structs.replace(group.record, set_number=older + 4)
            await until(lambda: core.number == older + 4, "it has not heard of the number")
            group.record = msgspec.structs.replace(group.record, set_number=older)
            await until(lambda: controller.record.set_number > older + 4, "not healed")
            await until(lambda: core.number == controller.record.set_number, "not learned")
            (alarm,) = kit.replica.alarms_now()
            assert f"the controller knows set number {older} of epoch 1" in alarm
            proposals = len(controller.events(e.AlterSyncSet))
            await asyncio.sleep(2)
            assert len(controller.events(e.AlterSyncSet)) == proposals, "said once"

    run(main())
