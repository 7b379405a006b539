"""Messages handed out over HTTP: leased to one at a time, again when the time is over, positions never beyond."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.cluster.client import MessageQueue, ReceivedMessage
from tandemmq.plane.leases import Leases, receipt_of

QUEUE = MessageQueue("Orders", "broker-a", 3)
OTHER = MessageQueue("Orders", "broker-b", 0)


def message(offset: int, queue: MessageQueue = QUEUE, body: bytes = b"x") -> ReceivedMessage:
    return ReceivedMessage(
        topic=queue.topic, body=body, queue=queue, queue_offset=offset, message_id=f"{offset}",
        offset_message_id="", physical_offset=offset, born_ms=0, born_host="", store_ms=0,
        store_host="", reconsume_times=0, sys_flag=0, flag=0, properties={},
    )  # fmt: skip


def leases(*offsets: int, at_ms: int = 0) -> Leases:
    found = Leases("Orders", 100, 1_000)
    found.hand_out([message(each) for each in offsets], at_ms, 30_000)
    return found


def test_position_stays_at_the_oldest_message_that_is_not_done() -> None:
    found = leases(5, 6, 7, 9)
    assert found.acknowledge(["broker-a:3:6", "broker-a:3:9"]) == []
    assert found.take_positions() == {QUEUE: 5}
    assert found.take_positions() == {}
    found.acknowledge(["broker-a:3:5"])
    assert found.take_positions() == {QUEUE: 7}
    found.acknowledge(["broker-a:3:7"])
    assert found.take_positions() == {QUEUE: 10}
    assert (found.count, found.bytes) == (0, 0)


def test_position_that_no_broker_has_is_given_again() -> None:
    found = leases(5)
    found.acknowledge(["broker-a:3:5"])
    found.not_stored(found.take_positions().keys())
    assert found.take_positions() == {QUEUE: 6}


def test_message_comes_again_when_its_time_is_over_and_not_before() -> None:
    found = leases(5, 6)
    assert found.due_again(10, 29_999, 30_000) == []
    again = found.due_again(1, 30_000, 30_000)
    assert [(each.message.queue_offset, each.deliveries) for each in again] == [(5, 2)]
    assert [each.message.queue_offset for each in found.due_again(10, 30_000, 30_000)] == [6]
    found.give_back(again, 30_001)
    assert [each.deliveries for each in found.due_again(10, 30_001, 30_000)] == [3]
    assert found.acknowledge(["broker-a:3:5"]) == []


@pytest.mark.parametrize(
    "receipt",
    ["", "x", "broker-a:3:7", "broker-b:3:5", "broker-a:4:5", "broker-a:3:-5", "broker-a:3:٥",
     ":3:5", "broker-a:3:" + "9" * 5_000, "broker-a:3:5:5", "broker-a:3", "3:5"],
)  # fmt: skip
def test_receipt_of_nothing_that_is_handed_out_is_unknown(receipt: str) -> None:
    found = leases(5)
    assert found.acknowledge([receipt]) == [receipt]
    assert found.take_positions() == {}
    assert found.count == 1


def test_receipt_counts_once() -> None:
    found = leases(5)
    receipt = receipt_of(message(5))
    assert found.acknowledge([receipt, receipt]) == [receipt]


def test_queue_that_went_to_another_member_takes_its_messages_along() -> None:
    found = leases(5, 6)
    found.hand_out([message(1, OTHER)], 0, 30_000)
    found.acknowledge(["broker-a:3:5"])
    found.keep([OTHER])
    assert found.take_positions() == {}
    assert found.acknowledge(["broker-a:3:6"]) == ["broker-a:3:6"]
    assert (found.count, found.bytes) == (1, 1)


def test_nothing_new_is_taken_when_too_much_is_handed_out() -> None:
    found = Leases("Orders", 3, 10)
    found.hand_out([message(0), message(1)], 0, 1)
    assert found.room == 1
    found.hand_out([message(2, body=b"x" * 9)], 0, 1)
    assert found.room == 0
    found.acknowledge(["broker-a:3:0"])
    assert found.room == 0  # by bytes
    found.acknowledge(["broker-a:3:2"])
    assert found.room == 2


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("hand"), st.integers(1, 4)),
        st.tuples(st.just("ack"), st.integers(0, 30)),
        st.tuples(st.just("due"), st.integers(1, 3)),
        st.tuples(st.just("fail"), st.just(0)),
    ),
    max_size=60,
)


@given(ACTS)
def test_whatever_happens_no_position_goes_beyond_what_is_not_done(
    acts: list[tuple[str, int]],
) -> None:
    found, next_offset, done, stored, now_ms = Leases("Orders", 1_000, 1 << 20), 0, set(), 0, 0
    for act, number in acts:
        now_ms += 10_000
        match act:
            case "hand":
                found.hand_out(
                    [message(next_offset + each) for each in range(number)], now_ms, 30_000
                )
                next_offset += number
            case "ack":
                if not found.acknowledge([f"broker-a:3:{number}"]):
                    done.add(number)
            case "due":
                found.due_again(number, now_ms, 30_000)
            case "fail":
                found.not_stored(found.take_positions().keys())
        positions = found.take_positions()
        stored = positions.get(QUEUE, stored)
        assert all(each in done for each in range(stored))
    assert found.count == next_offset - len(done)
