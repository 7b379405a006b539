"""The bytes of a peer: cut anywhere, slow, broken, or more than it reads; deadlines by hand."""

from __future__ import annotations

import asyncio
import struct

import pytest
from peerkit import FakeTransport, Peer, echo, settled

from tandemmq.cluster.remoting.command import ONEWAY_FLAG, Command
from tandemmq.cluster.remoting.connection import Connection, Endpoint
from tandemmq.cluster.remoting.frame import FrameLimits
from tandemmq.cluster.remoting.stream import ConnectionLimits

# ---- bytes in


async def test_frames_cut_anywhere_are_answered_the_same() -> None:
    stream = b"".join(
        Command(10, {"n": str(n)}, b"x" * n, opaque=n, binary=bool(n % 2)).encode()
        for n in range(8)
    )
    for size in (1, 2, 3, 7, 8, 9, 50, 1000):
        peer = Peer({10: echo})
        for start in range(0, len(stream), size):
            peer.sends(stream[start : start + size])
        answers = peer.transport.commands()
        assert [answer.opaque for answer in answers] == list(range(8)), size
        assert [len(answer.body or b"") for answer in answers] == list(range(8)), size


async def test_a_frame_larger_than_the_shared_buffer_is_put_together() -> None:
    peer = Peer({10: echo})
    body = bytes(range(256)) * 5000
    peer.sends(Command(10, None, body).encode() + Command(10, opaque=2).encode())
    first, second = peer.transport.commands()
    assert first.body == body
    assert second.opaque == 2


async def test_a_request_keeps_its_body_when_the_buffer_is_read_into_again() -> None:
    kept: list[Command] = []
    peer = Peer({10: lambda request, _: kept.append(request)})
    peer.sends(Command(10, {"k": "v"}, b"precious").encode())
    assert kept[0].body == b"precious"
    assert kept[0].ext == {"k": "v"}


async def test_a_partial_frame_holds_only_what_was_received() -> None:
    # INV-13
    peer = Peer({10: echo})
    peer.sends(struct.pack(">II", 16_000_000, 100) + b"abc")
    assert peer.connection._pending is not None
    assert len(peer.connection._pending) == 11


async def test_frame_limits_of_the_listener_reach_the_decoder() -> None:
    peer = Peer({10: echo}, limits=ConnectionLimits(frame=FrameLimits(ext_fields_max=2)))
    peer.sends(Command(10, {"a": "1", "b": "2", "c": "3"}).encode())
    assert peer.connection.closed


@pytest.mark.parametrize(
    "data",
    [
        bytes.fromhex("7fffffff0000000000000000"),
        bytes.fromhex("ffffffff00000000"),
        bytes(12),
        bytes.fromhex("0000000200000000"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        bytes.fromhex("0d0a0d0a000d0a515549540a2111000c"),
        struct.pack(">II", 4, 0),
        struct.pack(">II", 10, 0x02000002) + bytes(6),
        struct.pack(">II", 6, 2) + b"[]",
    ],
)
async def test_broken_frames_close_without_an_answer_after_what_came_before_was_answered(
    data: bytes,
) -> None:
    peer = Peer({10: echo})
    peer.sends(Command(10, opaque=1).encode() + data)
    assert [each.opaque for each in peer.transport.commands()] == [1]
    assert peer.connection.closed
    assert peer.transport.ended == "closed"
    assert peer.endpoint.stats.protocol_violations == 1
    peer.sends(Command(10, opaque=2).encode())
    assert len(peer.transport.commands()) == 1


# ---- bytes out


async def test_what_is_sent_outside_a_chunk_leaves_in_one_write_per_turn_of_the_loop() -> None:
    peer = Peer()
    peer.connection.send(Command(1, opaque=1))
    peer.connection.send(Command(2, opaque=2))
    view = memoryview(bytearray(b"record"))
    peer.connection.write(Command(3, flag=1).encode_head(6))
    peer.connection.write(view)
    assert peer.transport.writes == []
    await settled()
    assert len(peer.transport.writes) == 1
    assert [each.body for each in peer.transport.commands()] == [None, None, b"record"]


async def test_many_parts_leave_in_one_write_and_a_closed_connection_takes_none() -> None:
    def pull(command: Command, connection: Connection) -> None:
        log = memoryview(b"firstsecond")
        head = command.reply().encode_head(11)
        connection.writelines([head, log[:5], log[5:]])
        connection.writelines([])

    peer = Peer({11: pull})
    peer.sends(Command(11, opaque=1).encode() + Command(11, opaque=2).encode())
    assert len(peer.transport.writes) == 1
    assert [each.body for each in peer.transport.commands()] == [b"firstsecond"] * 2
    peer.connection.close()
    peer.connection.writelines([b"late", b"parts"])
    await settled()
    assert len(peer.transport.writes) == 1


async def test_requests_behind_large_answers_wait_until_the_peer_reads() -> None:
    handled: list[int] = []

    def large(request: Command, _: Connection) -> Command:
        handled.append(request.opaque)
        return request.reply(body=bytes(600))

    peer = Peer({11: large}, limits=ConnectionLimits(output_high_bytes=1000, drain_ms=60_000))
    asked = b"".join(Command(11, opaque=n).encode() for n in range(6))
    peer.sends(asked[:-5])
    assert handled == [0, 1] and not peer.transport.reading
    peer.connection.pause_writing()
    await asyncio.sleep(0)
    assert handled == [0, 1], "it does not read: nothing more is done for it"
    peer.clock.ms += 50_000
    peer.connection.check_deadlines(peer.clock.ms)
    assert not peer.connection.closed
    peer.connection.resume_writing()
    await asyncio.sleep(0)
    assert handled == [0, 1, 2, 3] and not peer.transport.reading
    await asyncio.sleep(0)
    assert handled == [0, 1, 2, 3, 4] and peer.transport.reading
    peer.sends(asked[-5:])
    assert handled == [0, 1, 2, 3, 4, 5]
    assert [answer.opaque for answer in peer.transport.commands()] == handled


async def test_answers_beyond_the_limit_are_dropped_and_never_copied_together() -> None:
    peer = Peer(limits=ConnectionLimits(output_bytes_max=1 << 20))
    huge = memoryview(bytes(1 << 19))
    for _ in range(3):
        peer.connection.write(huge)
    await asyncio.sleep(0)
    assert peer.transport.ended == "aborted"
    assert peer.transport.writes == []
    assert peer.endpoint.stats.slow_readers == 1


async def test_what_is_written_now_leaves_now_and_behind_what_was_queued() -> None:
    peer = Peer()
    connection, transport = peer.connection, peer.transport
    connection.write_now(b"one")
    assert transport.writes == [b"one"]
    connection.write(b"two")
    connection.write_now(b"three")
    assert transport.writes == [b"one", b"twothree"]
    await asyncio.sleep(0)
    assert transport.writes == [b"one", b"twothree"]
    connection.close("done")
    connection.write_now(b"four")
    assert transport.writes == [b"one", b"twothree"]


async def test_what_a_handler_writes_now_leaves_with_the_answers_of_its_chunk() -> None:
    def say_and_echo(request: Command, connection: Connection) -> Command:
        connection.write_now(Command(99, opaque=request.opaque + 10).encode())
        return echo(request, connection)

    peer = Peer({10: say_and_echo})
    peer.sends(b"".join(Command(10, opaque=opaque).encode() for opaque in (1, 2)))
    assert len(peer.transport.writes) == 1
    assert [each.opaque for each in peer.transport.commands()] == [11, 1, 12, 2]


async def test_what_is_written_now_counts_as_activity_and_against_the_limit() -> None:
    peer = Peer(limits=ConnectionLimits(output_bytes_max=1000))
    peer.clock.ms += 100_000
    peer.connection.write_now(b"x")
    assert peer.connection.active_ms == peer.clock.ms
    peer.transport.buffered = 998
    peer.connection.write_now(b"xy")
    assert not peer.connection.closed
    peer.connection.write_now(b"xyz")
    assert peer.transport.ended == "aborted" and peer.endpoint.stats.slow_readers == 1
    assert peer.transport.writes == [b"x", b"xy"]


# ---- peers that are slow


async def test_slow_loris_is_closed_frame_by_frame_and_in_all() -> None:
    limits = ConnectionLimits(first_frame_ms=10_000, frame_ms=15_000, idle_ms=120_000)
    peer = Peer({10: echo}, limits=limits)
    frame = Command(10).encode()
    for byte in frame[:9]:  # one byte a second never makes a first frame
        peer.clock.ms += 1_000
        peer.sends(bytes([byte]))
        peer.connection.check_deadlines(peer.clock.ms)
        assert not peer.connection.closed
    peer.clock.ms += 2_000
    peer.connection.check_deadlines(peer.clock.ms)
    assert peer.connection.closed and "no frame within 10000 ms" in peer.connection.close_reason

    peer = Peer({10: echo}, limits=limits)
    peer.sends(frame + frame[:5])
    for _ in range(15):
        peer.clock.ms += 1_000
        peer.connection.check_deadlines(peer.clock.ms)
        assert not peer.connection.closed
    peer.clock.ms += 1_000
    peer.connection.check_deadlines(peer.clock.ms)
    assert peer.connection.closed and "15000 ms" in peer.connection.close_reason


async def test_a_frame_that_we_stopped_reading_is_not_the_peers_slowness() -> None:
    peer = Peer({10: echo}, limits=ConnectionLimits(frame_ms=15_000, drain_ms=60_000))
    whole = Command(10, opaque=1).encode()
    peer.sends(whole + whole[:9])
    peer.connection.pause_writing()
    peer.clock.ms += 20_000
    peer.connection.check_deadlines(peer.clock.ms)
    assert not peer.connection.closed
    peer.connection.resume_writing()
    peer.clock.ms += 14_000
    peer.connection.check_deadlines(peer.clock.ms)
    assert not peer.connection.closed
    peer.clock.ms += 1_001
    peer.connection.check_deadlines(peer.clock.ms)
    assert peer.connection.closed


async def test_an_idle_connection_is_closed_and_either_direction_keeps_it() -> None:
    peer = Peer({10: echo})
    peer.sends(Command(10).encode())
    for _ in range(5):
        peer.clock.ms += 100_000
        peer.connection.check_deadlines(peer.clock.ms)
        peer.connection.send(Command(40, flag=ONEWAY_FLAG))
        await settled()
    assert not peer.connection.closed
    peer.clock.ms += 120_001
    peer.connection.check_deadlines(peer.clock.ms)
    assert peer.connection.closed and "idle" in peer.connection.close_reason


async def test_a_slow_reader_is_read_no_further_and_cut_off_at_the_limit() -> None:
    peer = Peer({10: echo}, limits=ConnectionLimits(output_bytes_max=1000, drain_ms=60_000))
    peer.sends(Command(10).encode())
    peer.connection.pause_writing()
    assert not peer.transport.reading
    peer.connection.resume_writing()
    assert peer.transport.reading
    peer.connection.pause_writing()
    peer.clock.ms += 60_001
    peer.connection.check_deadlines(peer.clock.ms)
    assert peer.transport.ended == "aborted"

    peer = Peer({10: echo}, limits=ConnectionLimits(output_bytes_max=1000))
    peer.transport.buffered = 1001
    peer.sends(Command(10).encode())
    assert peer.transport.ended == "aborted"
    assert peer.endpoint.stats.slow_readers == 1


# ---- from the first address to the last callback


async def test_an_ipv4_peer_on_an_ipv6_socket_keeps_its_four_bytes() -> None:
    connection = Connection(Endpoint({}), mirrors=True)
    connection.connection_made(FakeTransport(("::ffff:10.1.2.3", 80)))
    assert connection.peer_host == bytes([10, 1, 2, 3, 0, 0, 0, 80])
    connection = Connection(Endpoint({}), mirrors=True)
    connection.connection_made(FakeTransport(("2001:db8::1", 80)))
    assert len(connection.peer_host) == 20


async def test_a_closing_connection_that_does_not_drain_is_cut() -> None:
    peer = Peer()
    peer.connection.close("done")
    assert peer.transport.ended == "closed"
    peer.clock.ms += 5_001
    peer.connection.check_deadlines(peer.clock.ms)
    assert peer.transport.ended == "aborted"


async def test_close_sends_what_is_queued_and_drops_what_comes_after() -> None:
    peer = Peer()
    peer.connection.send(Command(1, opaque=1))
    peer.connection.close("done")
    peer.connection.send(Command(1, opaque=2))
    await settled()
    assert [each.opaque for each in peer.transport.commands()] == [1]


async def test_close_callbacks_run_once_when_the_transport_is_gone() -> None:
    peer = Peer()
    seen: list[str] = []
    peer.connection.on_close(lambda connection: seen.append(connection.close_reason))
    peer.connection.close("done")
    assert seen == []
    peer.vanishes()
    assert seen == ["done"]
    peer.connection.on_close(lambda connection: seen.append("late"))
    assert seen == ["done", "late"]


async def test_tasks_with_large_answers_wait_until_there_is_room() -> None:
    """60 pulls of old messages were answered by 120 MB at once, and who sent them was cut off for it."""

    async def large(request: Command, connection: Connection) -> Command:
        await asyncio.sleep(0)
        await connection.room()
        return request.reply(body=b"x" * 600)

    peer = Peer({11: large}, limits=ConnectionLimits(output_high_bytes=1000))
    written = peer.transport.writes
    peer.sends(b"".join(Command(11, opaque=n).encode() for n in range(9)))
    for _ in range(30):
        await settled()
    assert [answer.opaque for answer in peer.transport.commands()] == list(range(9))
    assert max(map(len, written)) < 1_800, "of two answers, not of nine"

    written.clear()
    peer.connection.pause_writing()
    peer.sends(b"".join(Command(11, opaque=n).encode() for n in range(9)))
    await settled()
    assert not written
    peer.connection.resume_writing()
    await settled()
    peer.connection.pause_writing()
    for _ in range(30):
        await settled()
    assert 0 < len(peer.transport.commands()) < 9
    peer.vanishes()
    await settled()
    assert not peer.endpoint.tasks, "the end of a connection ends the waiting, too"
