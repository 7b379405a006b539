"""A connection without a socket: chunks in, writes out, deadlines by hand."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cluster.remoting.channel import Channel, split_address
from cluster.remoting.codes import LanguageCode, ResponseCode
from cluster.remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from cluster.remoting.connection import ChunkHandler, Connection, Endpoint, Handler
from cluster.remoting.errors import ConnectionLost, HeaderProblem, RequestTimedOut
from cluster.remoting.frame import FrameLimits, FrameSplitter
from cluster.remoting.server import Listen, RemotingServer, _Accepted
from cluster.remoting.stream import ConnectionLimits
from cluster.remoting.tls import TlsMode


class HandClock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class FakeTransport(asyncio.Transport):
    """Keeps what is written; one entry per write."""

    def __init__(self, peer: tuple[str, int] = ("10.0.0.7", 4711)) -> None:
        super().__init__({"peername": peer})
        self.writes: list[bytes] = []
        self.buffered = 0
        self.reading = True
        self.ended = ""

    def write(self, data: Any) -> None:
        assert isinstance(data, bytes), "a transport may keep what it gets"
        assert not self.ended
        self.writes.append(data)

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def commands(self) -> list[Command]:
        return [
            Command.decode(frame) for data in self.writes for frame in FrameSplitter().feed(data)
        ]


class Peer:
    """The other end of a connection under test."""

    def __init__(
        self,
        table: Mapping[int, Handler] | None = None,
        *,
        chunk: ChunkHandler | None = None,
        limits: ConnectionLimits | None = None,
        error_reply: Callable[[Exception], tuple[int, str] | None] | None = None,
        mirrors: bool = True,
    ) -> None:
        self.clock = HandClock()
        self.endpoint = Endpoint(
            table or {}, limits=limits, chunk=chunk, clock=self.clock, error_reply=error_reply
        )
        self.connection = Connection(self.endpoint, mirrors=mirrors)
        self.transport = FakeTransport()
        self.connection.connection_made(self.transport)

    def sends(self, data: bytes) -> None:
        """Deliver bytes as the loop does: in reads of at most the shared buffer's size."""
        while data and not self.connection.closed:
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.connection.buffer_updated(count)
            buffer[:count] = b"\xee" * count  # the next connection's read overwrites it
            data = data[count:]

    def vanishes(self, problem: Exception | None = None) -> None:
        self.connection.connection_lost(problem)


def echo(request: Command, _: Connection) -> Command:
    return request.reply(ext=request.ext, body=request.body)


async def settled() -> None:
    """Let callbacks and ready tasks run."""
    for _ in range(5):
        await asyncio.sleep(0)


# ---- requests in, answers out


async def test_all_answers_of_one_chunk_leave_in_one_write() -> None:
    peer = Peer({10: echo})
    peer.sends(b"".join(Command(10, {"n": str(n)}, opaque=n).encode() for n in range(50)))
    assert len(peer.transport.writes) == 1
    answers = peer.transport.commands()
    assert [answer.opaque for answer in answers] == list(range(50))
    assert all(answer.is_response for answer in answers)


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


async def test_the_answer_comes_in_the_header_form_of_the_request() -> None:
    peer = Peer({10: echo})
    peer.sends(
        Command(10, binary=True).encode() + Command(10).encode() + Command(77, binary=True).encode()
    )
    assert [answer.binary for answer in peer.transport.commands()] == [True, False, True]


async def test_an_unknown_code_is_answered_3_with_the_text_that_tools_show() -> None:
    peer = Peer()
    peer.sends(Command(9999, opaque=5).encode())
    (answer,) = peer.transport.commands()
    assert (answer.code, answer.opaque, answer.remark) == (3, 5, " request type 9999 not supported")
    assert not peer.connection.closed


async def test_oneway_requests_are_answered_on_no_path() -> None:
    def fails(request: Command, _: Connection) -> Command:
        raise ValueError("no")

    async def later(request: Command, _: Connection) -> Command:
        return request.reply()

    peer = Peer({10: echo, 11: fails, 12: later})
    peer.sends(b"".join(Command(code, flag=ONEWAY_FLAG).encode() for code in (10, 11, 12, 9999)))
    await settled()
    assert peer.transport.writes == []


async def test_a_failing_handler_is_answered_and_the_connection_lives_on() -> None:
    def fails(request: Command, _: Connection) -> Command:
        raise RuntimeError("x" * 5000)

    def misread(request: Command, _: Connection) -> Command:
        raise HeaderProblem("queueId", "the request header has no queueId")

    async def fails_later(request: Command, _: Connection) -> Command:
        raise LookupError("gone")

    peer = Peer({10: fails, 11: misread, 12: fails_later})
    peer.sends(b"".join(Command(code).encode() for code in (10, 11, 12)))
    await settled()
    first, second, third = peer.transport.commands()
    assert {each.code for each in (first, second, third)} == {ResponseCode.SYSTEM_ERROR}
    assert first.remark is not None and first.remark.startswith("RuntimeError: xxx")
    assert len(first.remark) == 512
    assert second.remark == "the request header has no queueId"
    assert third.remark == "LookupError: gone"
    assert peer.endpoint.stats.handler_failures == 2


async def test_an_owner_maps_its_exceptions_to_codes() -> None:
    def full(request: Command, _: Connection) -> Command:
        raise OverflowError("disk full")

    peer = Peer(
        {10: full}, error_reply=lambda e: (14, str(e)) if isinstance(e, OverflowError) else None
    )
    peer.sends(Command(10).encode())
    (answer,) = peer.transport.commands()
    assert (answer.code, answer.remark) == (14, "disk full")
    assert peer.endpoint.stats.handler_failures == 0


async def test_a_failed_assertion_in_a_handler_is_not_answered_but_handed_to_the_loop() -> None:
    def broken(request: Command, _: Connection) -> Command:
        raise AssertionError("offset went backwards")

    peer = Peer({10: broken})
    with pytest.raises(AssertionError, match="backwards"):
        peer.sends(Command(10).encode())
    assert peer.transport.writes == []

    async def broken_later(request: Command, _: Connection) -> Command:
        raise AssertionError("later")

    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    peer = Peer({10: broken_later})
    peer.sends(Command(10).encode())
    await settled()
    assert [str(context["exception"]) for context in seen] == ["later"]
    assert peer.transport.writes == []


async def test_a_suspended_request_does_not_hold_up_those_behind_it() -> None:
    gate = asyncio.get_running_loop().create_future()

    async def held(request: Command, _: Connection) -> Command:
        await gate
        return request.reply()

    peer = Peer({10: echo, 11: held})
    peer.sends(Command(11, opaque=1).encode() + Command(10, opaque=2).encode())
    await settled()
    assert [each.opaque for each in peer.transport.commands()] == [2]
    gate.set_result(None)
    await settled()
    assert [each.opaque for each in peer.transport.commands()] == [2, 1]
    assert not peer.endpoint.tasks


async def test_more_requests_at_work_than_allowed_are_refused_as_busy() -> None:
    gate = asyncio.get_running_loop().create_future()

    async def held(request: Command, _: Connection) -> Command:
        await gate
        return request.reply()

    peer = Peer({11: held}, limits=ConnectionLimits(tasks_max=2))
    peer.sends(b"".join(Command(11, opaque=n).encode() for n in range(3)))
    (answer,) = peer.transport.commands()
    assert (answer.code, answer.opaque) == (ResponseCode.SYSTEM_BUSY, 2)
    assert answer.remark is not None and answer.remark.startswith("[OVERLOAD]")
    gate.set_result(None)
    await settled()
    peer.sends(Command(11, opaque=9).encode())
    await settled()
    assert sorted(each.opaque for each in peer.transport.commands()) == [0, 1, 2, 9]


async def test_an_answer_for_a_peer_that_left_is_dropped_and_its_work_finished() -> None:
    gate = asyncio.get_running_loop().create_future()
    finished: list[str] = []

    async def held(request: Command, _: Connection) -> Command:
        await gate
        finished.append("done")
        return request.reply()

    peer = Peer({11: held})
    peer.sends(Command(11).encode())
    await settled()
    peer.vanishes()
    gate.set_result(None)
    await settled()
    assert finished == ["done"]
    assert peer.transport.writes == []


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


async def test_the_connection_remembers_who_speaks() -> None:
    peer = Peer({10: echo})
    assert peer.connection.peer == ("10.0.0.7", 4711)
    assert peer.connection.peer_host == bytes([10, 0, 0, 7]) + struct.pack(">i", 4711)
    assert peer.connection.address == "10.0.0.7:4711"
    peer.sends(Command(10, language=LanguageCode.GO, version=317, binary=True).encode())
    connection = peer.connection
    assert (connection.language, connection.version, connection.binary_last) == (9, 317, True)


async def test_an_ipv4_peer_on_an_ipv6_socket_keeps_its_four_bytes() -> None:
    connection = Connection(Endpoint({}), mirrors=True)
    connection.connection_made(FakeTransport(("::ffff:10.1.2.3", 80)))
    assert connection.peer_host == bytes([10, 1, 2, 3, 0, 0, 0, 80])
    connection = Connection(Endpoint({}), mirrors=True)
    connection.connection_made(FakeTransport(("2001:db8::1", 80)))
    assert len(connection.peer_host) == 20


# ---- the fast path


async def test_a_chunk_handler_takes_what_it_wants_and_leaves_the_rest() -> None:
    fast: list[int] = []

    def chunk(view: memoryview, start: int, end: int, connection: Connection) -> int:
        while start + 8 <= end:
            size = 4 + int.from_bytes(view[start : start + 4])
            if start + size > end:
                break
            command = Command.decode(view[start : start + size])
            if command.code == 99:
                break  # not mine: left in front
            if command.code == 310:
                fast.append(command.opaque)
                connection.write(command.reply(ext={"fast": "1"}).encode())
            else:
                connection.dispatch(view[start : start + size])
            start += size
        return start

    peer = Peer({10: echo, 99: echo}, chunk=chunk)
    codes = [310, 10, 99, 310, 99, 99, 310]
    stream = b"".join(Command(code, opaque=n).encode() for n, code in enumerate(codes))
    for size in (len(stream), 100, 11):
        peer.transport.writes.clear()
        fast.clear()
        for start in range(0, len(stream), size):
            peer.sends(stream[start : start + size])
        assert [each.opaque for each in peer.transport.commands()] == list(range(7)), size
        assert fast == [0, 3, 6]
    assert not peer.connection.closed


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


async def test_answers_beyond_the_limit_are_dropped_and_never_copied_together() -> None:
    peer = Peer(limits=ConnectionLimits(output_bytes_max=1 << 20))
    huge = memoryview(bytes(1 << 19))
    for _ in range(3):
        peer.connection.write(huge)
    await asyncio.sleep(0)
    assert peer.transport.ended == "aborted"
    assert peer.transport.writes == []
    assert peer.endpoint.stats.slow_readers == 1


async def test_a_chunk_handler_may_find_the_protocol_broken() -> None:
    from cluster.remoting.errors import PeerBrokeProtocol

    def chunk(view: memoryview, start: int, end: int, connection: Connection) -> int:
        raise PeerBrokeProtocol("not mine")

    peer = Peer(chunk=chunk)
    peer.sends(Command(10).encode())
    assert peer.connection.closed
    assert peer.transport.ended == "closed"


# ---- peers that misbehave


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


async def test_a_partial_frame_holds_only_what_was_received() -> None:
    peer = Peer({10: echo})
    peer.sends(struct.pack(">II", 16_000_000, 100) + b"abc")
    assert peer.connection._pending is not None
    assert len(peer.connection._pending) == 11


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


# ---- requests of ours


async def test_requests_to_a_client_take_the_form_of_its_last_frame() -> None:
    for binary in (False, True):
        peer = Peer({34: echo})
        peer.sends(Command(34, binary=binary).encode())
        peer.transport.writes.clear()
        peer.connection.oneway(Command(40, {"consumerGroup": "g"}, binary=not binary))
        future = peer.connection.request_nowait(Command(307), 1000)
        await settled()
        oneway, request = peer.transport.commands()
        assert (oneway.binary, oneway.oneway) == (binary, True)
        assert (request.binary, request.oneway, request.is_response) == (binary, False, False)
        peer.sends(Command(0, flag=RESPONSE_FLAG, opaque=request.opaque, body=b"x").encode())
        assert (await future).body == b"x"
        peer.vanishes()


async def test_answers_are_matched_by_id_whatever_their_order_and_strangers_ignored() -> None:
    peer = Peer(mirrors=False)
    futures = [peer.connection.request_nowait(Command(105), 1000) for _ in range(3)]
    await settled()
    ids = [request.opaque for request in peer.transport.commands()]
    assert len(set(ids)) == 3 and 0 not in ids
    for opaque in [ids[2], 987654, ids[0], ids[1], ids[0]]:
        peer.sends(Command(0, {"id": str(opaque)}, flag=RESPONSE_FLAG, opaque=opaque).encode())
    assert [(await each).ext for each in futures] == [{"id": str(each)} for each in ids]
    assert peer.connection.requests_waiting == 0
    peer.vanishes()


async def test_a_lost_connection_fails_every_request_with_its_address() -> None:
    peer = Peer()
    futures = [peer.connection.request_nowait(Command(307), 1000) for _ in range(2)]
    peer.vanishes(OSError("reset"))
    for future in futures:
        with pytest.raises(ConnectionLost, match=r"10\.0\.0\.7:4711.*reset"):
            await future
    with pytest.raises(ConnectionLost):
        peer.connection.request_nowait(Command(307), 1000)


async def test_requests_time_out_each_at_its_own_deadline() -> None:
    peer = Peer()
    late = peer.connection.request_nowait(Command(307), 3_000)
    soon = peer.connection.request_nowait(Command(309), 1)
    peer.clock.ms += 1
    with pytest.raises(RequestTimedOut, match="309 within 1 ms") as caught:
        await soon
    assert (caught.value.code, caught.value.address) == (309, "10.0.0.7:4711")
    assert not late.done()
    assert peer.connection.requests_waiting == 1
    peer.vanishes()
    with pytest.raises(ConnectionLost):
        await late


async def test_a_cancelled_request_is_forgotten() -> None:
    peer = Peer()
    task = asyncio.create_task(peer.connection.request(Command(307), 1000))
    await settled()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert peer.connection.requests_waiting == 0
    peer.vanishes()


async def test_request_ids_wrap_before_they_turn_negative_and_never_are_zero() -> None:
    import itertools

    endpoint = Endpoint({})
    endpoint._opaque = itertools.count(0x7FFFFFFE)
    assert [endpoint.next_opaque() for _ in range(4)] == [0x7FFFFFFE, 0x7FFFFFFF, 1, 2]


# ---- admission


def accepted(server: RemotingServer, ip: str = "10.0.0.7") -> tuple[Connection, FakeTransport]:
    connection = _Accepted(server)
    transport = FakeTransport((ip, 1))
    connection.connection_made(transport)
    return connection, transport


async def test_connections_beyond_the_limits_are_refused_and_places_come_free() -> None:
    ended: list[int] = []
    server = RemotingServer(
        Listen(connections_max=3, connections_per_address_max=2),
        {},
        on_close=lambda connection: ended.append(connection.id),
    )
    first, _ = accepted(server)
    accepted(server)
    third, refused = accepted(server)
    assert refused.ended == "aborted" and third.closed
    third.connection_lost(None)
    assert ended == []  # it never was one of ours
    accepted(server, "10.0.0.8")
    _, refused = accepted(server, "10.0.0.9")
    assert refused.ended == "aborted"
    first.connection_lost(None)
    assert ended == [first.id]
    _, welcome = accepted(server)
    assert not welcome.ended
    assert server.stats.connections_refused == 2


@pytest.mark.parametrize(
    ("mode", "first", "served"),
    [
        (TlsMode.DISABLED, b"\x16", False),
        (TlsMode.DISABLED, b"\x00", True),
        (
            TlsMode.PERMISSIVE,
            b"\x16",
            False,
        ),  # no certificate was loaded: the server was not started
        (TlsMode.PERMISSIVE, b"\x00", True),
        (TlsMode.ENFORCING, b"\x00", False),
    ],
)
async def test_the_first_byte_decides_by_the_mode(
    mode: TlsMode, first: bytes, served: bool
) -> None:
    connection, transport = accepted(RemotingServer(Listen(tls=mode), {}))
    connection.get_buffer(-1)[:1] = first
    connection.buffer_updated(1)
    assert (transport.ended == "") is served


def test_tls_modes_go_by_two_names_each() -> None:
    assert TlsMode.parse(" Off ") is TlsMode.parse("disabled") is TlsMode.DISABLED
    assert TlsMode.parse("required") is TlsMode.parse("ENFORCING") is TlsMode.ENFORCING
    with pytest.raises(ValueError, match="permissive"):
        TlsMode.parse("maybe")


@pytest.mark.parametrize(
    "text", ["", "host", ":1", "host:", "host:0", "host:65536", "host:x", "h:-1"]
)
def test_an_address_must_be_host_and_port(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(text)


def test_an_ipv6_address_may_stand_in_brackets() -> None:
    assert split_address("[::1]:9876") == ("::1", 9876)
    assert split_address("ns.example:9876") == ("ns.example", 9876)


@asynccontextmanager
async def channel_with(
    table: Mapping[int, Handler],
) -> AsyncIterator[tuple[Channel, FakeTransport]]:
    channel = Channel(Endpoint(table), "ns:9876", None)
    transport = FakeTransport()
    channel.connection_made(transport)
    try:
        yield channel, transport
    finally:
        channel.connection_lost(None)


async def test_a_channel_answers_requests_of_the_server_and_keeps_its_own_form() -> None:
    async with channel_with({40: echo}) as (channel, transport):
        await channel.ready()
        assert channel.address == "ns:9876"
        frame = Command(40, {"consumerGroup": "g"}, opaque=3, binary=True).encode()
        channel.get_buffer(-1)[: len(frame)] = frame
        channel.buffer_updated(len(frame))
        channel.oneway(Command(15))
        await settled()
        answer, oneway = transport.commands()
        assert (answer.opaque, answer.binary, answer.ext) == (3, True, {"consumerGroup": "g"})
        assert (oneway.binary, oneway.language) == (False, LanguageCode.PYTHON)


async def test_frame_limits_of_the_listener_reach_the_decoder() -> None:
    peer = Peer({10: echo}, limits=ConnectionLimits(frame=FrameLimits(ext_fields_max=2)))
    peer.sends(Command(10, {"a": "1", "b": "2", "c": "3"}).encode())
    assert peer.connection.closed


def test_limits_are_only_ever_lowered() -> None:
    listen = Listen()
    assert listen.limited(61_440, 4_096) == listen
    small = listen.limited(38, 9)
    assert (small.connections_max, small.connections_per_address_max, small.backlog) == (38, 28, 9)
