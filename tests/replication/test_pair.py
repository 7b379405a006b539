"""Two replicas over real stores: each dialect, handshakes cut anywhere, strangers, damage, rejoin, promotion."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pairkit import SEGMENT_BYTES, Net, Replica
from timekit import HandClock

from tandemmq.replication.epochs import EpochHistory
from tandemmq.replication.frames import Dialect
from tandemmq.replication.keeping import EpochFile
from tandemmq.replication.masterevents import Flushed
from tandemmq.replication.replica import Registered, ReplicaRole
from tandemmq.replication.slave import DispatchBroken, SlaveState
from tandemmq.storage import (
    SegmentUnavailable,
    StorageConfig,
    inspect_store,
    open_store,
    setaside,
)

DIALECTS: dict[str, dict[str, Any]] = {
    "auto-switch": {"extended": False},
    "extended": {},
    "secret": {"secret": b"shared"},
    "lz4": {"compressed": True},
}


@asynccontextmanager
async def pair(
    tmp_path: Path, slave: dict[str, Any] | None = None, **both: Any
) -> AsyncIterator[tuple[Net, Replica, Replica]]:
    """A master of epoch 1 and a slave that has not been told of it."""
    net, clock = Net(), HandClock()
    master = Replica(net, tmp_path / "1", 1, clock, **both).start()
    follower = Replica(net, tmp_path / "2", 2, clock, **{**both, **(slave or {})}).start()
    master.lead(1)
    await net.settle()
    assert master.core.role is ReplicaRole.MASTER
    try:
        yield net, master, follower
        master.check()
        follower.check()
    finally:
        for each in (master, follower):
            await each.stop()


@pytest.mark.parametrize("kind", DIALECTS)
@pytest.mark.parametrize("chunk", [1 << 20, 1000, 7])
async def test_a_slave_ends_up_with_its_masters_log_in_every_dialect(
    tmp_path: Path, kind: str, chunk: int
) -> None:
    async with pair(tmp_path, **DIALECTS[kind]) as (net, master, slave):
        net.chunk = chunk
        master.put(60)
        slave.follow(master, 1)
        await net.settle()
        master.put(100, 900)
        await net.settle()
        assert slave.log_bytes() == master.log_bytes()
        assert len(slave.store.log.run.segments) > 5
        assert slave.core.slave.history == master.core.slave.history
        status = master.sender.status()[0]
        assert status.acked == master.store.end and status.replica == 2
        wanted = Dialect.AUTO_SWITCH if kind == "auto-switch" else Dialect.EXTENDED
        assert status.dialect is wanted
        master.sender.tell_confirmed()
        await net.settle()
        assert slave.core.confirmed == master.core.confirmed == master.store.end
        for queue in master.store.queues:
            assert slave.store.max_offset("T", queue.queue_id) == queue.max_offset > 0
        sent = len(net.made[0].said_down)
        assert (sent < master.store.end) == (kind == "lz4")


@pytest.mark.parametrize("flushed", [0, 300])
async def test_our_slaves_say_what_is_on_their_disk(tmp_path: Path, flushed: int) -> None:
    async with pair(tmp_path) as (net, master, slave):
        slave.follow(master, 1)
        master.put(10)
        await net.settle()
        slave.feed.feed(Flushed(flushed))
        await net.settle()
        assert master.core.master is not None
        known = master.core.master.slaves[2]
        assert (known.received, known.flushed, known.silent) == (master.store.end, flushed, False)


async def test_a_stock_slave_is_taken_at_its_word_for_the_disk(tmp_path: Path) -> None:
    async with pair(tmp_path, extended=False) as (net, master, slave):
        slave.follow(master, 1)
        master.put(10)
        await net.settle()
        assert master.core.master is not None and master.core.master.slaves[2].silent


async def handshake_bytes(tmp_path: Path, **both: Any) -> tuple[int, int]:
    """How many bytes go up and down before the first one of the log."""
    async with pair(tmp_path, **both) as (net, master, slave):
        slave.follow(master, 1)
        await net.settle()
        made = net.made[0]
        return len(made.said_up), len(made.said_down)


@pytest.mark.parametrize("kind", DIALECTS)
@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_handshake_cut_at_any_byte_changes_nothing_and_succeeds_later(
    tmp_path: Path, kind: str, direction: str
) -> None:
    up, down = await handshake_bytes(tmp_path / "measure", **DIALECTS[kind])
    count = up if direction == "up" else down
    assert count > 20
    async with pair(tmp_path, **DIALECTS[kind]) as (net, master, slave):
        master.put(5)
        slave.follow(master, 1)
        for cut in range(count):
            net.cut_up, net.cut_down = (cut, None) if direction == "up" else (None, cut)
            await net.settle()
            assert slave.store.end == 0 and slave.core.slave.history.entries == ()
            assert slave.core.slave.state is not SlaveState.STREAMING or direction == "up"
            slave.tick(2000)
            await net.settle()
            assert master.core.master is not None
        net.heal()
        slave.tick(2000)
        await net.settle()
        assert slave.log_bytes() == master.log_bytes() != b""


def only_line(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Whoever refused said why, in one line; the other side may pass it on."""
    said = [each.getMessage() for each in caplog.records if text in each.getMessage()]
    refusals = [each for each in said if each.startswith(("slave dropped", "left master"))]
    assert refusals, [each.getMessage() for each in caplog.records]
    assert sum(each.startswith("slave dropped") for each in refusals) <= 1, refusals
    assert sum(each.startswith("left master") for each in refusals) <= 1, refusals


@pytest.mark.parametrize(
    ("both", "slave", "why"),
    [
        ({}, {"secret": b"guess"}, "wrong secret"),
        ({"secret": b"right"}, {"secret": b"guess"}, "wrong secret"),
        ({"secret": b"right"}, {"secret": b""}, "wrong secret"),
        ({"secret": b"right"}, {"extended": False, "secret": b""}, "offers no proof"),
        ({}, {"cluster": "other"}, "belongs to other/group, this is cluster/group"),
        ({}, {"group": "other"}, "belongs to cluster/other, this is cluster/group"),
    ],
)
async def test_a_stranger_is_refused_with_the_reason(
    tmp_path: Path,
    both: dict[str, Any],
    slave: dict[str, Any],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with pair(tmp_path, slave, **both) as (net, master, stranger):
        master.put(5)
        stranger.follow(master, 1)
        await net.settle()
        only_line(caplog, why)
        assert stranger.store.end == 0
        assert master.core.master is not None and master.core.master.slaves == {}
        assert stranger.core.slave.state is SlaveState.CONNECTING


async def test_a_slave_with_a_secret_does_not_follow_a_master_that_proves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path, {"extended": True, "secret": b"x"}, extended=False) as found:
        net, master, slave = found
        master.put(5)
        slave.follow(master, 1)
        await net.settle()
        only_line(caplog, "master offers no proof of the group's secret")
        assert slave.store.end == 0


async def test_a_slave_that_claims_the_masters_id_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (net, master, _):
        twin = Replica(net, tmp_path / "twin", 1, master.clock)
        twin.name = "twin"
        twin.start()
        twin.core.replica = 9  # it follows, and says 1 on the wire
        twin.follow(master, 1)
        await net.settle()
        only_line(caplog, "claims our own id 1")
        await twin.stop()


async def test_a_slave_of_a_later_epoch_is_refused_and_the_master_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (net, master, slave):
        slave.follow(master, 5)
        await net.settle()
        only_line(caplog, "knows epoch 5, ours is 1")
        assert slave.core.slave.state is SlaveState.CONNECTING


async def test_a_replica_that_is_no_master_serves_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (net, master, slave):
        third = Replica(net, tmp_path / "3", 3, master.clock).start()
        third.follow(slave, 1)
        await net.settle()
        only_line(caplog, "not a master")
        await third.stop()


async def test_a_flipped_bit_in_an_extended_frame_drops_the_connection_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (net, master, slave):
        slave.follow(master, 1)
        await net.settle()
        master.put(3)
        await net.settle()
        before = slave.log_bytes()
        for step in range(60):
            at = len(net.connections[0].said_down) + step * 7
            net.damage = {at: 1 << step % 8}
            master.put(3)
            await net.settle()
            assert slave.log_bytes() == before
            assert slave.core.slave.state is SlaveState.CONNECTING
            net.heal()
            slave.tick(2000)
            await net.settle()
            before = slave.log_bytes()
            assert before == master.log_bytes()
        assert caplog.text.count("wrong checksum") > 30


async def test_what_only_the_old_master_had_is_set_aside_when_it_rejoins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (net, old, new):
        new.follow(old, 1)
        old.put(20)
        await net.settle()
        shared = old.store.end
        net.cut_down = 0  # from here on the slave gets nothing
        for connection in net.connections:
            connection.ended = "network"
        await net.settle()
        old.put(50)
        lost = old.log_bytes()[shared:]
        new.lead(2)
        await net.settle()
        assert new.core.role is ReplicaRole.MASTER
        net.heal()
        new.put(5)
        old.follow(new, 2)
        await net.settle()
        assert old.core.role is ReplicaRole.FOLLOWING
        assert old.log_bytes() == new.log_bytes()
        kept = setaside.listed(tmp_path / "1")
        assert [(each.epoch, each.start, each.end, each.records) for each in kept] == [
            (1, shared, shared + len(lost), 50)
        ]
        assert kept[0].path.read_bytes() == lost
        assert sum(1 for _ in setaside.heads_of(kept[0].path)) == 50
        assert caplog.text.count("set aside records=50") == 1
        for queue_id in range(3):
            assert old.store.max_offset("T", queue_id) <= new.store.next_offset("T", queue_id)
        assert old.core.slave.history == new.core.slave.history
        end = new.store.end
        old = await old.restart()
        assert old.core.slave.history.last == 2 and old.store.end == end
    report = inspect_store(tmp_path / "1")
    assert report.problems == [], report.problems


async def test_confirmed_data_is_not_cut_without_a_declared_loss(tmp_path: Path) -> None:
    # INV-27
    async with pair(tmp_path) as (net, old, new):
        old.put(10)  # a set of one: confirmed at once
        await net.settle()
        new.lead(2)
        await net.settle()
        new.put(3)
        old.follow(new, 2)
        await net.settle()
        assert old.core.slave.state is SlaveState.STOPPED and len(old.alarms) == 1
        assert setaside.listed(tmp_path / "1") == []
        before = old.log_bytes()
        old.follow(new, 3, lossy_epoch=3)
        new.lead(3)
        await net.settle()
        old.tick(2000)
        await net.settle()
        assert old.log_bytes() == new.log_bytes() != before
        assert setaside.listed(tmp_path / "1")[0].records == 10


async def test_roles_change_back_and_forth_over_one_feed(tmp_path: Path) -> None:
    async with pair(tmp_path) as (net, first, second):
        second.follow(first, 1)
        master, slave = first, second
        for epoch in range(2, 8):
            master.put(10)
            await net.settle()
            master.sender.tell_confirmed()
            await net.settle()
            slave.lead(epoch)
            master.follow(slave, epoch)
            await net.settle()
            master.tick(2000)
            await net.settle()
            assert (
                slave.core.role is ReplicaRole.MASTER and master.core.role is ReplicaRole.FOLLOWING
            )
            assert master.core.slave.state is SlaveState.STREAMING
            master, slave = slave, master
        master.put(10)
        await net.settle()
        assert first.log_bytes() == second.log_bytes()
        assert [each.number for each in second.core.slave.history.entries] == [1, 2, 3, 4, 5, 6, 7]
        assert setaside.listed(tmp_path / "1") == setaside.listed(tmp_path / "2") == []


async def test_a_master_that_is_elected_again_tells_its_slaves_the_new_epoch(
    tmp_path: Path,
) -> None:
    """apache/rocketmq#9689: there a stream that stays up goes on in the epoch it began with."""
    async with pair(tmp_path) as (net, master, slave):
        slave.follow(master, 1)
        master.put(10)
        await net.settle()
        start = master.store.end
        assert slave.store.end == start
        master.lead(2)
        await net.settle()
        assert master.core.role is ReplicaRole.MASTER
        assert net.connections == [], "the stream of the old epoch ended with it"
        slave.follow(master, 2)
        await net.settle()
        for _ in range(2):
            master.tick(2000)
            master.put(10)
            await net.settle()
        assert slave.core.slave.state is SlaveState.STREAMING
        assert slave.log_bytes() == master.log_bytes()
        assert slave.core.slave.history == master.core.slave.history
        assert [tuple(each) for each in slave.core.slave.history.entries] == [(1, 0), (2, start)]


async def test_reigns_without_a_message_leave_equal_histories(tmp_path: Path) -> None:
    """apache/rocketmq#9942: there masters that change while nobody writes leave epoch files that differ."""
    async with pair(tmp_path) as (net, first, second):
        second.follow(first, 1)
        first.put(10)
        await net.settle()
        first.sender.tell_confirmed()
        await net.settle()
        start = first.store.end
        master, slave = first, second
        for epoch in range(2, 8):
            slave.lead(epoch)
            master.follow(slave, epoch)
            await net.settle()
            master.tick(2000)
            await net.settle()
            assert slave.core.role is ReplicaRole.MASTER
            assert master.core.slave.state is SlaveState.STREAMING
            master, slave = slave, master
        master.put(10)
        await net.settle()
        assert first.log_bytes() == second.log_bytes()
        assert first.core.slave.history == second.core.slave.history
        assert [tuple(each) for each in first.core.slave.history.entries] == [(1, 0), (7, start)]
        assert first.alarms == second.alarms == []


async def test_frames_that_come_while_an_effect_is_under_way_wait_in_order(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as (net, master, slave):
        for _ in range(30):
            master.put(2)
        slave.follow(master, 1)
        net.chunk = 150  # the first frame writes the epoch file before it is appended
        held = 0
        while slave.store.end < master.store.end:
            for connection in list(net.connections):
                connection.move()
                held += not connection.reading
            if slave.feed._under_way is not None:
                await slave.feed._under_way
            await asyncio.sleep(0)
        assert held > 0
        assert slave.log_bytes() == master.log_bytes()


async def test_no_room_for_the_epoch_file_ends_nothing_and_the_stream_goes_on_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave whose disk is full hears of a reign that it cannot note: it appends nothing of it."""
    full = [False]
    save = EpochFile.save

    def saved(self: EpochFile, history: EpochHistory) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, history)

    monkeypatch.setattr(EpochFile, "save", saved)
    async with pair(tmp_path) as (net, master, slave):
        full[0] = True
        slave.follow(master, 1)
        await net.settle()
        master.put(10)
        for _ in range(3):
            await net.settle()
            await asyncio.sleep(0.05)
            slave.check()
            assert slave.store.end == 0 and slave.core.slave.history.entries == ()
            slave.tick(2000)
        full[0] = False
        for _ in range(20):
            slave.tick(2000)
            await net.settle()
            await asyncio.sleep(0.02)
        assert slave.log_bytes() == master.log_bytes() != b""
        assert slave.core.slave.history == master.core.slave.history


async def test_a_slave_whose_dispatch_breaks_reports_nothing_more_in_this_life(
    tmp_path: Path,
) -> None:
    """INV-36: what cannot be served is no copy, so nobody may count it as one."""
    async with pair(tmp_path) as (net, master, slave):
        slave.follow(master, 1)
        master.put(10)
        await net.settle()
        reign = master.core.master
        assert reign is not None and reign.slaves[2].received == master.store.end
        slave.feed.feed(DispatchBroken("no sound record at 100"))
        await net.settle()
        assert slave.core.slave.state is SlaveState.STOPPED and reign.slaves == {}
        assert slave.alarms == ["no sound record at 100"]
        held = slave.store.end
        master.put(10)
        for _ in range(5):
            slave.tick(5_000)
            await net.settle()
        slave.follow(master, 2)  # whoever reigns
        await net.settle()
        assert slave.store.end == held and reign.slaves == {}
        await slave.restart()  # recovery cuts what is damaged; here nothing is
        slave.follow(master, 2)
        await net.settle()
        assert slave.core.slave.broken == ""


@pytest.mark.parametrize(("restarts", "has_file"), [(False, False), (True, False), (False, True)])
async def test_an_empty_slave_joins_a_master_that_has_no_byte_left_and_needs_a_second_copy(
    tmp_path: Path, restarts: bool, has_file: bool
) -> None:
    """Retention took what was before, a power cut the rest. Neither had anything to send the other, for good."""
    start = 3 * SEGMENT_BYTES
    if has_file:  # the power cut took what was in it, and the process ended whenever it was to begin elsewhere
        with open_store(
            StorageConfig(root=str(tmp_path / "2"), segment_bytes=SEGMENT_BYTES)
        ) as own:
            own.log.roll()
    with open_store(StorageConfig(root=str(tmp_path / "1"), segment_bytes=SEGMENT_BYTES)) as store:
        store.append_raw(b"", start)
    async with pair(tmp_path, copies_min=2) as (net, master, slave):
        assert (master.store.log.start, master.store.end) == (start, start)
        slave.follow(master, 1)
        await net.settle()
        if restarts:
            await slave.restart()
            assert slave.store.end == start
            slave.feed.feed(Registered(slave.view))
            await net.settle()
        reign = master.core.master
        assert reign is not None
        assert reign.slaves[2].received == start and reign.union == {1, 2}
        assert slave.store.dispatcher.position == start
        master.lead(1, 2, number=2)
        master.put(10)
        await net.settle()
        assert master.acknowledged == master.store.end > start
        assert slave.log_bytes() == master.log_bytes() != b""
        assert slave.core.slave.history == reign.history
        master.sender.tell_confirmed()
        await net.settle()
        for queue in master.store.queues:
            assert slave.store.max_offset("T", queue.queue_id) == queue.max_offset > 0


async def test_an_empty_slave_whose_disk_is_full_begins_its_log_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = 3 * SEGMENT_BYTES
    with open_store(StorageConfig(root=str(tmp_path / "1"), segment_bytes=SEGMENT_BYTES)) as store:
        store.append_raw(b"", start)
    async with pair(tmp_path, copies_min=2) as (net, master, slave):
        append, full = slave.store.append_raw, [True]

        def appended(data: memoryview, offset: int) -> int:
            if full[0]:
                raise SegmentUnavailable("No space left on device")
            return append(data, offset)

        monkeypatch.setattr(slave.store, "append_raw", appended)
        slave.follow(master, 1)
        await net.settle()
        core = slave.core.slave
        assert (core.end, core.history.entries, core.streaming) == (0, (), False)
        full[0] = False
        for _ in range(20):
            slave.tick(2000)
            await net.settle()
            await asyncio.sleep(0.02)
        assert (core.start, core.end, slave.store.end) == (start, start, start)
