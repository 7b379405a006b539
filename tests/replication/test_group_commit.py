"""Where answers wait for a slave, one shipment is under way and the next one gathers until it is reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from senderkit import FakeWire, Master, MemoryLog, frames_of, on_loop

from tandemmq.replication.config import Mode
from tandemmq.replication.masterevents import Acknowledge
from tandemmq.replication.stream import GROUP_BYTES


@asynccontextmanager
async def serving(mode: Mode) -> AsyncIterator[tuple[Master, FakeWire, int]]:
    """A master on a loop with a slave that holds its first ten bytes."""
    log, wire = MemoryLog(b"0123456789", segment_bytes=1 << 20), FakeWire()
    master = Master(log, mode=mode, copies_wanted=2)
    async with on_loop(master.sender, master.feed):
        number = master.slave(wire, 0)
        master.hear(number, wire, 10)
        yield master, wire, number


def shipped(wire: FakeWire) -> list[int]:
    """Where each frame ends."""
    return [each.offset + len(each.body) for each in frames_of(wire.got)]


async def test_what_comes_while_a_shipment_is_unreported_goes_with_its_report() -> None:
    async with serving(Mode.S0) as (master, wire, number):
        master.grow(b"a" * 100)
        master.grow(b"b" * 100)
        master.grow(b"c" * 100)
        assert shipped(wire) == [10, 110]
        seen: list[int] = []
        master.feed.register(Acknowledge, lambda _: seen.append(shipped(wire)[-1]))
        master.hear(number, wire, 110)
        assert shipped(wire) == [10, 110, 310]
        assert master.acknowledged() == 110
        assert seen == [310], "the slave has work before senders are answered"


async def test_a_loop_without_work_ships_what_it_gathered() -> None:
    async with serving(Mode.S0) as (master, wire, _):
        master.grow(b"a" * 100)
        master.grow(b"b" * 100)
        master.log.staged = True  # more was read in that turn: once more
        await asyncio.sleep(0)
        assert shipped(wire) == [10, 110]
        master.log.staged = False
        master.grow(b"c" * 100)  # and more was appended: once more
        await asyncio.sleep(0)
        assert shipped(wire) == [10, 110]
        await asyncio.sleep(0)
        assert shipped(wire) == [10, 110, 310]


async def test_much_does_not_wait() -> None:
    async with serving(Mode.S0) as (master, wire, _):
        master.grow(b"a" * 100)
        master.grow(b"b" * GROUP_BYTES)
        assert shipped(wire)[-1] == master.log.end


async def test_many_small_ones_do_not_wait_either() -> None:
    async with serving(Mode.S0) as (master, wire, _):
        for _ in range(2 * GROUP_BYTES // 1000):
            master.grow(b"a" * 1000)
        assert shipped(wire) == [10, 1010, 1010 + 66_000]


async def test_a_slave_that_waits_for_nothing_gets_at_once_what_another_gathers() -> None:
    async with serving(Mode.S0) as (master, wire, _):
        other = FakeWire()
        number = master.slave(other, 0)
        master.hear(number, other, 10)
        master.grow(b"a" * 100)
        master.grow(b"b" * 100)
        master.hear(number, other, 110)
        master.hear(number, other, 210)
        master.grow(b"c" * 100)
        assert shipped(other) == [10, 110, 210, 310]
        assert shipped(wire)[-1] < 310


@pytest.mark.parametrize("mode", [Mode.A0, Mode.S1])
async def test_where_nobody_waits_or_the_disk_does_everything_goes_at_once(mode: Mode) -> None:
    async with serving(mode) as (master, wire, _):
        master.grow(b"a" * 100)
        master.grow(b"b" * 100)
        assert shipped(wire) == [10, 110, 210]


async def test_an_asynchronous_master_ships_before_it_acknowledges() -> None:
    async with serving(Mode.A0) as (master, wire, _):
        seen: list[int] = []
        master.feed.register(Acknowledge, lambda _: seen.append(shipped(wire)[-1]))
        master.grow(b"a" * 100)
        assert seen == [110]


async def test_a_last_report_counts_though_its_slave_can_be_sent_nothing_more() -> None:
    async with serving(Mode.S0) as (master, wire, number):
        master.grow(b"a" * 100)
        master.grow(b"b" * 100)
        wire.broken = ConnectionResetError("gone")
        master.hear(number, wire, 110)
        assert master.acknowledged() == 110
        assert wire.closed and not master.sender.status()


async def test_every_slave_is_shipped_what_a_report_of_one_lets_go() -> None:
    async with serving(Mode.A0) as (master, wire, number):
        other = FakeWire()
        master.hear(master.slave(other, 0), other, 10)
        seen: list[int] = []
        master.feed.register(Acknowledge, lambda _: seen.append(shipped(other)[-1]))
        master.log.data += b"a" * 100
        master.log.end += 100  # its turn of the loop has not come
        master.hear(number, wire, 10)
        assert master.acknowledged() == 110 and seen == [110]


async def test_nothing_is_gathered_by_who_stops() -> None:
    async with serving(Mode.S0) as (master, wire, _):
        master.grow(b"a" * 100)
        master.grow(b"b" * 100)
        master.log.data += b"c" * 100
        master.log.end += 100
    await asyncio.sleep(0)
    assert wire.closed and master.feed.failure is None
