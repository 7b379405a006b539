"""Requests in, answers out, and requests of ours, over a peer without a socket."""

from __future__ import annotations

import asyncio
import itertools
import struct
from typing import Any

import pytest
from peerkit import Peer, echo, settled

from tandemmq.cluster.remoting.codes import LanguageCode, ResponseCode
from tandemmq.cluster.remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from tandemmq.cluster.remoting.connection import Connection, Endpoint
from tandemmq.cluster.remoting.errors import (
    ConnectionLost,
    HeaderProblem,
    PeerBrokeProtocol,
    RequestTimedOut,
)
from tandemmq.cluster.remoting.stream import ConnectionLimits

# ---- requests in, answers out


async def test_all_answers_of_one_chunk_leave_in_one_write() -> None:
    peer = Peer({10: echo})
    peer.sends(b"".join(Command(10, {"n": str(n)}, opaque=n).encode() for n in range(50)))
    assert len(peer.transport.writes) == 1
    answers = peer.transport.commands()
    assert [answer.opaque for answer in answers] == list(range(50))
    assert all(answer.is_response for answer in answers)


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
    # INV-12
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


async def test_the_connection_remembers_who_speaks() -> None:
    peer = Peer({10: echo})
    assert peer.connection.peer == ("10.0.0.7", 4711)
    assert peer.connection.peer_host == bytes([10, 0, 0, 7]) + struct.pack(">i", 4711)
    assert peer.connection.address == "10.0.0.7:4711"
    peer.sends(Command(10, language=LanguageCode.GO, version=317, binary=True).encode())
    connection = peer.connection
    assert (connection.language, connection.version, connection.binary_last) == (9, 317, True)


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


async def test_a_chunk_handler_may_find_the_protocol_broken() -> None:
    def chunk(view: memoryview, start: int, end: int, connection: Connection) -> int:
        raise PeerBrokeProtocol("not mine")

    peer = Peer(chunk=chunk)
    peer.sends(Command(10).encode())
    assert peer.connection.closed
    assert peer.transport.ended == "closed"


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
    endpoint = Endpoint({})
    endpoint._opaque = itertools.count(0x7FFFFFFE)
    assert [endpoint.next_opaque() for _ in range(4)] == [0x7FFFFFFE, 0x7FFFFFFF, 1, 2]
