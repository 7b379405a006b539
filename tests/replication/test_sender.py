"""The master's shell of classic HA: a recorded stream byte for byte, and slaves that are slow, silent or lie."""

from __future__ import annotations

import base64
import json
import lzma
import random
from pathlib import Path
from typing import Any

import pytest
from senderkit import FakeWire, Master, MemoryLog, frames_of

import tandemmq.replication.sender as sender_module
from tandemmq.replication.master import NEVER
from tandemmq.replication.masterevents import Acknowledge, Confirmed

WIRE = Path(__file__).parents[1] / "golden" / "wire" / "ha-classic.jsonl.xz"


def recorded() -> list[dict[str, Any]]:
    with lzma.open(WIRE, "rt") as file:
        return [json.loads(line) for line in file]


def recorded_stream(direction: str) -> bytes:
    return b"".join(
        base64.b64decode(line["b"])
        for line in recorded()
        if line["k"] == "bytes" and line["d"] == direction
    )


def test_the_recorded_session_of_stock_brokers_is_answered_byte_for_byte() -> None:
    expected = recorded_stream("<")
    whole = b"".join(bytes(each.body) for each in frames_of(expected))
    master = Master(MemoryLog(), batch_bytes=32768)
    wire = FakeWire()
    number = master.slave(wire)
    for line in (each for each in recorded() if each["k"] == "frame"):
        master.clock.ms = round(line["t"])
        if line["d"] == ">":
            master.hear(number, wire, line["ack"])
        elif line["size"]:
            end = line["offset"] + line["size"]
            master.grow(whole[master.log.end : end])
        else:
            master.sender.tick()
    assert bytes(wire.got) == expected
    assert master.sender.status()[0].acked == master.log.end == len(whole) == 421747


def test_nothing_is_sent_and_no_slave_counts_before_the_first_report() -> None:
    master = Master(MemoryLog(b"x" * 100), copies_wanted=2)
    wire = FakeWire()
    number = master.slave(wire)
    master.sender.pump()
    master.clock.ms += 6000
    master.sender.tick()
    assert wire.writes == [] and master.core.slaves == {}
    assert master.sender.status()[0].next_offset == NEVER
    master.hear(number, wire, 0)
    assert [(each.offset, len(each.body)) for each in frames_of(wire.got)] == [(0, 100)]


def test_a_first_report_in_two_pieces_is_one_report() -> None:
    master = Master(MemoryLog(b"x" * 300))
    wire = FakeWire()
    number = master.slave(wire)
    for piece in (b"\0\0\0\0\0", b"\0\0\x64"):
        wire.incoming.append(piece)
        master.sender.readable(number)
    assert [(each.offset, len(each.body)) for each in frames_of(wire.got)] == [(100, 200)]


def test_one_write_takes_frames_up_to_the_batch_and_none_crosses_a_file() -> None:
    data = random.Random(1).randbytes(1000)
    master = Master(MemoryLog(data, segment_bytes=128), batch_bytes=300)
    wire = FakeWire()
    master.slave(wire, 100)
    assert len(wire.writes) == 1
    frames = frames_of(wire.got)
    assert [(each.offset, len(each.body)) for each in frames] == [
        (100, 28), (128, 128), (256, 128), (384, 16),
    ]  # fmt: skip
    assert wire.waits  # more is to be written: the loop calls again
    number = next(iter(master.sender._streams))
    while wire.waits:
        master.sender.writable(number)
    assert len(wire.writes) == 3
    assert b"".join(bytes(each.body) for each in frames_of(wire.got)) == data[100:]


@pytest.mark.parametrize("seed", range(20))
def test_frames_stay_whole_however_little_the_socket_takes_at_once(seed: int) -> None:
    rng = random.Random(seed)
    data = rng.randbytes(5000)
    master = Master(MemoryLog(data[:1000], segment_bytes=512), batch_bytes=rng.randint(1, 700))
    wire = FakeWire(room=0)
    number = master.slave(wire, 0)
    while master.log.end < len(data) or wire.waits:
        if rng.random() < 0.2:
            master.grow(data[master.log.end : master.log.end + rng.randint(0, 400)])
        wire.room = rng.choice((0, 1, rng.randint(0, 50), 3000))
        master.sender.writable(number)
        if rng.random() < 0.1:
            master.clock.ms += 5000  # a heartbeat never lands inside a frame
            master.hear(number, wire, max(0, master.sender._streams[number].sent))
            master.sender.tick()
    wire.room = 1 << 20
    master.sender.writable(number)
    frames = frames_of(wire.got)
    assert b"".join(bytes(each.body) for each in frames) == data
    at = 0
    for each in frames:
        assert each.offset == at
        at += len(each.body)


def test_a_slave_that_does_not_read_keeps_no_memory_of_ours() -> None:
    master = Master(MemoryLog(b"a" * 100))
    wire = FakeWire(room=50)
    number = master.slave(wire, 0)
    for _ in range(1000):
        master.grow(b"b" * 1000)
    assert len(wire.got) == 50 and wire.waits
    for view in master.log.out:
        with pytest.raises(ValueError, match="released"):
            len(view)
    stream = master.sender._streams[number]
    assert stream.unfinished is not None and len(stream.unfinished.head) == 0
    wire.room = 1 << 40
    while wire.waits:
        master.sender.writable(number)
    assert b"".join(bytes(each.body) for each in frames_of(wire.got)) == bytes(master.log.data)


def test_a_fast_slave_is_not_held_up_by_a_slow_one() -> None:
    master = Master(MemoryLog(b"a" * 100), copies_wanted=2)
    slow, fast = FakeWire(room=10), FakeWire()
    master.slave(slow, 0)
    number = master.slave(fast, 0)
    master.grow(b"b" * 5000)
    assert sum(len(each.body) for each in frames_of(fast.got)) == 5100
    master.hear(number, fast, 5100)
    assert master.acknowledged() == 5100


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ((501,), "beyond our end 500"),
        ((0, 501), "beyond our end 500"),
        ((-1,), "shows a pass that this process did not give"),
        ((0, -1), "reports position -1"),
        ((int.from_bytes(b"GET / HT", "big"),), "beyond our end 500"),
        ((100, 50), "reports 50 after 100"),
        ((0, 501, 500), "beyond our end 500"),
    ],
)
def test_an_impossible_report_closes_the_connection_and_counts_for_nothing(
    reports: tuple[int, ...], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    master = Master(MemoryLog(b"x" * 500), copies_wanted=2)
    wire = FakeWire()
    number = master.slave(wire)
    for report in reports if reports != (0, 501, 500) else ():
        master.hear(number, wire, report)
    if reports == (0, 501, 500):  # in one read: the last one does not hide what went before
        master.hear(number, wire, *reports)
    assert wire.closed and master.sender.status() == [] and master.core.slaves == {}
    assert why in caplog.text
    assert master.acknowledged() <= 100


def test_a_slave_cannot_report_what_was_not_sent_to_it() -> None:
    master = Master(MemoryLog(b"x" * 500), copies_wanted=2)
    wire = FakeWire(room=12 + 200)
    number = master.slave(wire, 0)
    master.hear(number, wire, 200)
    assert not wire.closed and master.acknowledged() == 200
    master.hear(number, wire, 201)
    assert wire.closed and master.acknowledged() == 200


def test_a_slave_from_before_our_retention_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    master = Master(MemoryLog(b"x" * 500, segment_bytes=100))
    master.log.start = 200
    wire, fresh = FakeWire(), FakeWire()
    master.slave(wire, 150)
    assert wire.closed and wire.writes == [] and "must be seeded anew" in caplog.text
    master.slave(fresh, 0)  # an empty slave begins where our log does
    assert frames_of(fresh.got)[0].offset == 200


def test_a_slave_that_retention_overtook_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    master = Master(MemoryLog(b"x" * 500, segment_bytes=100), batch_bytes=50)
    wire = FakeWire(room=30)
    number = master.slave(wire, 0)
    master.log.start = 100
    wire.room = 1000
    master.sender.writable(number)
    assert wire.closed and "needs 18, our log starts at 100" in caplog.text


def test_an_idle_stream_carries_a_heartbeat_every_five_seconds() -> None:
    master = Master(MemoryLog(b"x" * 500))
    wire = FakeWire()
    number = master.slave(wire, 500)
    beats = []
    for _ in range(60_000 // sender_module.TICK_MS):
        master.clock.ms += sender_module.TICK_MS
        before = len(wire.writes)
        master.sender.tick()
        if len(wire.writes) > before:
            beats.append(master.clock.ms)
            master.hear(number, wire, 500)
    assert len(beats) == 12 and not wire.closed
    assert {(each.offset, len(each.body)) for each in frames_of(wire.got)} == {(500, 0)}


def test_a_silent_connection_is_closed_after_twenty_seconds() -> None:
    master = Master(MemoryLog(b"x" * 500), copies_wanted=2)
    spoke, mute = FakeWire(), FakeWire()
    master.slave(spoke, 500)
    master.slave(mute)
    assert len(master.core.slaves) == 1
    master.clock.ms += 19_999
    master.sender.tick()
    assert not spoke.closed and not mute.closed
    master.clock.ms += 1
    master.sender.tick()
    assert spoke.closed and mute.closed and master.core.slaves == {}


@pytest.mark.parametrize("end", [b"", ConnectionResetError("reset by peer")])
def test_acknowledgements_go_with_their_connection(end: bytes | OSError) -> None:
    master = Master(MemoryLog(b"x" * 500), copies_wanted=2)
    wire = FakeWire()
    number = master.slave(wire, 500)
    assert master.acknowledged() == 500
    wire.incoming.append(end)
    master.sender.readable(number)
    assert wire.closed and master.core.slaves == {}
    master.grow(b"y" * 10)
    assert master.acknowledged() == 500
    master.sender.readable(number)  # callbacks that were on their way
    master.sender.writable(number)


def test_a_broken_pipe_while_writing_loses_that_slave_only() -> None:
    master = Master(MemoryLog(b"x" * 500))
    broken, sound = FakeWire(), FakeWire()
    master.slave(broken, 500)
    master.slave(sound, 500)
    broken.broken = BrokenPipeError("broken pipe")
    master.grow(b"y" * 10)
    assert broken.closed and not sound.closed
    assert sum(len(each.body) for each in frames_of(sound.got)) == 10


def test_effects_that_are_no_connections_go_to_the_broker_in_order() -> None:
    master = Master(MemoryLog(), copies_wanted=2)
    wire = FakeWire()
    number = master.slave(wire, 0)
    master.grow(b"x" * 10)
    master.hear(number, wire, 10)
    assert master.effects == [Confirmed(10), Acknowledge(10, 0, 2, 0)]


def test_closing_drops_every_slave_and_the_core_knows() -> None:
    master = Master(MemoryLog(b"x" * 10))
    wires = [FakeWire() for _ in range(3)]
    for wire in wires:
        master.slave(wire, 10)
    master.sender.close("the broker stops")
    assert all(wire.closed for wire in wires) and master.core.slaves == {}


def test_the_transfer_rate_is_measured_over_a_second() -> None:
    master = Master(MemoryLog(b"x" * 988))
    wire = FakeWire()
    master.slave(wire, 0)
    master.clock.ms += 1000
    master.sender.tick()
    assert master.sender.status()[0].bytes_per_second == 1000
    master.clock.ms += 1000
    master.sender.tick()
    assert master.sender.status()[0].bytes_per_second == 0
