"""Answers that wait for the disk."""

from __future__ import annotations

from messagekit import FakeClock, FakeConnection

from cluster.broker.acks import Acks, as_timed_out
from cluster.remoting.command import Command

SEND = Command(310, opaque=7)
STORED = SEND.reply(ext={"queueId": "1", "msgId": "AB", "queueOffset": "5"})
REFUSED = SEND.reply(17, "no such topic")


def test_answers_leave_in_order_when_the_log_is_safe_up_to_their_end() -> None:
    clock, connection = FakeClock(), FakeConnection()
    acks = Acks(clock, timeout_ms=5_000)
    for end in (100, 200, 300):
        acks.hold(end, connection, b"answer %d," % end)

    acks.reached(99)
    assert connection.written == b""
    acks.reached(250)
    assert connection.written == b"answer 100,answer 200,"
    assert acks.waiting and acks.wanted_end == 300
    acks.reached(300)
    assert connection.written == b"answer 100,answer 200,answer 300,"
    assert not acks.waiting and acks.held_bytes == 0


def test_an_answer_that_waits_too_long_says_so_and_keeps_its_fields() -> None:
    clock, connection = FakeClock(), FakeConnection()
    acks = Acks(clock, timeout_ms=5_000)
    acks.hold(100, connection, STORED)
    clock.pass_ms(4_999)
    acks.expire(clock.monotonic_ms())
    assert connection.answers() == []
    clock.pass_ms(1)
    acks.expire(clock.monotonic_ms())

    (answer,) = connection.answers()
    assert (answer.code, answer.ext, answer.opaque) == (10, STORED.ext, 7)
    assert not acks.waiting and acks.timed_out == 1


def test_of_a_chunk_of_answers_only_the_stored_ones_turn_into_timeouts() -> None:
    binary = Command(310, opaque=9, binary=True).reply(ext={"queueId": "2"})
    chunk = STORED.encode() + REFUSED.encode() + binary.encode()
    connection = FakeConnection()
    connection.write(as_timed_out(chunk))
    assert [(a.code, a.opaque, a.binary) for a in connection.answers()] == [
        (10, 7, False),
        (17, 7, False),
        (10, 9, True),
    ]
    assert connection.answers()[1].remark == "no such topic"


def test_the_flush_job_is_called_when_the_first_answer_begins_to_wait() -> None:
    calls = []
    acks = Acks(FakeClock(), 5_000, on_hold=lambda: calls.append(1))
    acks.hold(1, FakeConnection(), b"a")
    acks.hold(2, FakeConnection(), b"b")
    assert len(calls) == 1
    acks.reached(2)
    acks.hold(3, FakeConnection(), b"c")
    assert len(calls) == 2


def test_held_bytes_are_bounded_by_refusing_further_sends() -> None:
    acks = Acks(FakeClock(), 5_000, bytes_max=10)
    acks.hold(1, FakeConnection(), b"12345")
    assert not acks.full
    acks.hold(2, FakeConnection(), b"12345")
    assert acks.full
    acks.reached(1)
    assert not acks.full
