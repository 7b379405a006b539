"""Answers that wait for the disk."""

from __future__ import annotations

import pytest
from messagekit import FakeClock, FakeConnection

from tandemmq.cluster.broker.sending.acks import (
    DISK_UNKNOWN,
    FATE_UNKNOWN,
    LEARNING_MS,
    STOPPED_WAITING,
    UNKNOWN,
    UNSETTLED,
    Acks,
    Overdue,
    Safety,
    at_once,
    settled,
    with_code,
)
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.command import Command

SEND = Command(310, opaque=7)
STORED = SEND.reply(ext={"queueId": "1", "msgId": "AB", **UNSETTLED, "queueOffset": "5"})
REFUSED = SEND.reply(17, "no such topic")


def test_answers_leave_in_order_when_the_log_is_safe_up_to_their_end() -> None:
    # INV-7
    clock, connection = FakeClock(), FakeConnection()
    acks = Acks(clock, timeout_ms=5_000)
    for end in (100, 200, 300):
        acks.hold(end, connection, b"answer %d," % end)

    acks.reached(99, 1, 1)
    assert connection.written == b""
    acks.reached(250, 1, 1)
    assert connection.written == b"answer 100,answer 200,"
    assert acks.waiting and acks.wanted_end == 300
    acks.reached(300, 1, 1)
    assert connection.written == b"answer 100,answer 200,answer 300,"
    assert not acks.waiting and acks.held_bytes == 0


def test_answers_of_several_commits_leave_at_once_each_connection_in_order() -> None:
    acks = Acks(FakeClock(), timeout_ms=5_000)
    first, second, third = (FakeConnection() for _ in range(3))
    acks.hold_all(100, [(first, b"1a,", UNKNOWN), (second, b"2a,", UNKNOWN)], 6)
    acks.hold_all(200, [(third, b"3a,", UNKNOWN)], 3)
    acks.reached(200, 1, 1)
    assert [each.written for each in (first, second, third)] == [b"1a,", b"2a,", b"3a,"]
    acks.hold_all(300, [(first, b"1b,", UNKNOWN), (second, b"2b,", UNKNOWN)], 6)
    acks.hold_all(400, [(first, b"1c,", UNKNOWN)], 3)
    acks.reached(400, 1, 1)
    assert [each.written for each in (first, second)] == [b"1a,1b,1c,", b"2a,2b,"]
    assert not acks.waiting and acks.held_bytes == 0


def test_an_answer_that_waits_too_long_says_so_and_keeps_its_fields() -> None:
    # INV-7
    clock, connection = FakeClock(), FakeConnection()
    acks = Acks(clock, timeout_ms=5_000)
    acks.hold(100, connection, STORED)
    clock.pass_ms(4_999)
    acks.expire(clock.monotonic_ms())
    assert connection.answers() == []
    clock.pass_ms(1)
    acks.expire(clock.monotonic_ms())

    (answer,) = connection.answers()
    assert (answer.code, answer.opaque) == (10, 7)
    assert answer.ext == {**STORED.ext, "copies": "1", "durable": "0"}  # type: ignore[dict-item]
    assert not acks.waiting and acks.unsafe == {ResponseCode.FLUSH_DISK_TIMEOUT: 1}


@pytest.mark.parametrize("binary", [False, True])
def test_an_answer_says_how_safe_its_message_is(binary: bool) -> None:
    request = Command(310, opaque=7, binary=binary)
    ext = {"queueId": "1", **UNSETTLED, "queueOffset": "5"}
    connection = FakeConnection()
    acks = Acks(FakeClock(), 5_000)
    acks.epoch = 2_147_483_647
    acks.hold(100, connection, request.reply(ext=ext).encode() * 3)
    acks.reached(100, copies=12, durable=1)
    for answer in connection.answers():
        assert answer.ext == {
            "queueId": "1", "epoch": "2147483647", "copies": "9", "durable": "1", "queueOffset": "5"
        }  # fmt: skip
    assert len(connection.answers()) == 3


def test_answers_that_already_say_the_truth_leave_as_they_are_and_others_are_corrected() -> None:
    connection, clock = FakeConnection(), FakeClock()
    acks = Acks(clock, 5_000)
    acks.epoch = 7
    guess = Safety(7, 2, 0)
    chunk = SEND.reply(ext=guess.ext()).encode()
    for end in (100, 200, 300):
        acks.hold(end, connection, chunk, guess)
    acks.reached(100, copies=2, durable=0)
    assert connection.written == chunk
    acks.reached(200, copies=2, durable=1)
    acks.expire(clock.monotonic_ms())
    acks.give_up(Overdue(ResponseCode.FLUSH_SLAVE_TIMEOUT, 1, 0))
    found = [answer.ext for answer in connection.answers()]
    assert found == [guess.ext(), Safety(7, 2, 1).ext(), Safety(7, 1, 0).ext()]


def test_who_guesses_is_told_better_but_not_all_the_time() -> None:
    connection, clock = FakeConnection(), FakeClock()
    acks = Acks(clock, 5_000)
    guesses = []
    for end in range(1, 9):
        guesses.append(acks.expected)
        acks.hold(end, connection, b"", acks.expected)
        acks.reached(end, copies=2, durable=end % 2)
        clock.pass_ms(LEARNING_MS // 4)
    one, none = Safety(0, 2, 1), Safety(0, 2, 0)
    assert guesses == [UNKNOWN, *[one] * 5, none, none]
    acks.epoch = 9
    assert acks.expected.epoch == 9


def test_answers_without_safety_and_lookalikes_keep_their_size_and_order() -> None:
    plain = SEND.reply(ext={"queueId": "1"}).encode()
    quoted = SEND.reply(ext={"transactionId": '"copies":"?","durable":"?"'}).encode()
    assert settled(plain + quoted, UNKNOWN, Safety(1, 2, 2)) == plain + quoted
    assert at_once(3) == {"epoch": "3", "copies": "1", "durable": "0"}


def test_of_a_chunk_of_answers_only_the_stored_ones_take_another_code() -> None:
    binary = Command(310, opaque=9, binary=True).reply(ext={"queueId": "2"})
    with_body = SEND.reply(ext={"queueId": "3"}, body=b"body")
    chunk = STORED.encode() + REFUSED.encode() + binary.encode() + with_body.encode()
    changed, count = with_code(chunk, ResponseCode.FLUSH_SLAVE_TIMEOUT)
    connection = FakeConnection()
    connection.write(changed)
    assert count == 3
    assert [(a.code, a.opaque, a.ext, a.binary, a.body) for a in connection.answers()] == [
        (12, 7, STORED.ext, False, None),
        (17, 7, REFUSED.ext, False, None),
        (12, 9, {"queueId": "2"}, True, None),
        (12, 7, {"queueId": "3"}, False, b"body"),
    ]
    assert connection.answers()[1].remark == "no such topic"


def test_without_a_slave_an_answer_says_so_at_once_or_as_soon_as_the_disk_has_it() -> None:
    connection, lost, stored = FakeConnection(), ResponseCode.SLAVE_NOT_AVAILABLE, STORED.encode()
    acks = Acks(FakeClock(), 5_000, disk_too=False)
    acks.hold_all(200, [(connection, stored, UNKNOWN)], len(stored), lost)
    (answer,) = connection.take()
    assert answer.code == 11 and answer.ext is not None
    assert (answer.ext["copies"], answer.ext["durable"]) == ("1", "0")

    acks = Acks(FakeClock(), 5_000)
    acks.hold(100, connection, STORED)
    acks.hold_all(300, [(connection, stored, UNKNOWN)], len(stored), lost)
    acks.on_disk(299)
    assert connection.take() == []
    acks.on_disk(300)
    (answer,) = connection.take()
    assert answer.code == 11 and answer.ext is not None
    assert (answer.ext["copies"], answer.ext["durable"]) == ("1", "1")
    acks.reached(100, 2, 2)  # one that waited for a slave before goes on waiting for it
    assert [a.code for a in connection.take()] == [0]
    assert not acks.waiting and acks.held_bytes == 0
    assert acks.unsafe == {ResponseCode.SLAVE_NOT_AVAILABLE: 1}


def test_who_knows_better_lets_an_answer_wait_on_behind_its_time() -> None:
    clock, connection = FakeClock(), FakeConnection()
    acks = Acks(clock, 2_000)
    asked: list[tuple[int, int]] = []

    def overdue(end: int, waited_ms: int) -> Overdue | None:
        asked.append((end, waited_ms))
        late = waited_ms >= 5_000
        return Overdue(ResponseCode.FLUSH_DISK_TIMEOUT, 2, 1) if late else None

    acks.hold(100, connection, STORED)
    assert acks.due_ms == clock.monotonic_ms() + 2_000
    for _ in range(2):
        clock.pass_ms(2_500)
        acks.expire(clock.monotonic_ms(), overdue)
    assert asked == [(100, 2_500), (100, 5_000)]
    (answer,) = connection.take()
    assert answer.code == 10 and answer.ext is not None and answer.ext["copies"] == "2"
    assert acks.due_ms is None


def test_when_a_reign_ends_everybody_who_waits_is_told() -> None:
    connection, acks = FakeConnection(), Acks(FakeClock(), 2_000)
    acks.hold(100, connection, STORED)
    acks.hold(200, connection, STORED)
    acks.give_up(Overdue(ResponseCode.FLUSH_SLAVE_TIMEOUT, 1, 0))
    assert [answer.code for answer in connection.take()] == [12, 12]
    assert not acks.waiting


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("why", [FATE_UNKNOWN, DISK_UNKNOWN, STOPPED_WAITING])
def test_what_is_stored_and_dropped_is_called_stored_with_its_place_and_a_reason(
    why: Overdue, binary: bool
) -> None:
    # INV-7: neither a success nor a refusal, which would say that nothing was stored
    request = Command(310, opaque=-7, binary=binary)
    ext = {"queueId": "1", "msgId": "AB", **UNSETTLED, "queueOffset": "5"}
    plain, with_body = request.reply(ext=ext), request.reply(ext=ext, body=b"body")
    connection, acks = FakeConnection(), Acks(FakeClock(), 2_000)
    refused = request.reply(17, "no such topic")
    acks.hold(100, connection, plain.encode() + refused.encode() + with_body.encode())
    acks.give_up(why)
    first, second, third = connection.take()
    for answer, body in ((first, None), (third, b"body")):
        assert answer.code in (10, 12) and answer.code == why.code
        assert answer.remark is not None and answer.remark.startswith("stored, fate unknown: ")
        assert answer.ext == {**ext, "epoch": "0" * 10, "copies": "1", "durable": "0"}
        assert (answer.opaque, answer.binary, answer.body) == (-7, binary, body)
    assert (second.code, second.remark) == (17, "no such topic")
    assert acks.unsafe == {why.code: 2}


def test_held_bytes_are_bounded_by_refusing_further_sends() -> None:
    acks = Acks(FakeClock(), 5_000, bytes_max=10)
    acks.hold(1, FakeConnection(), b"12345")
    assert not acks.full
    acks.hold(2, FakeConnection(), b"12345")
    assert acks.full
    acks.reached(1, 1, 1)
    assert not acks.full
