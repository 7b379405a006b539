"""Flow control and commit positions of one queue; queues take turns."""

from __future__ import annotations

import asyncio

import pytest
from clientkit import received
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.cluster.client.consuming.queue_cache import CacheLimits, QueueCache, ReadyQueues
from tandemmq.cluster.client.message import MessageQueue

QUEUE = MessageQueue("T", "a", 0)


def cache_at(offset: int, limits: CacheLimits | None = None) -> QueueCache:
    return QueueCache(QUEUE, offset, limits or CacheLimits())


def test_commit_position_is_the_oldest_message_still_being_consumed() -> None:
    cache = cache_at(5)
    cache.put([received(5), received(6), received(7)], 8)
    assert cache.done(6) == 5
    assert cache.done(5) == 7
    assert cache.done(7) == 8


def test_commit_position_passes_messages_that_the_filter_left_out() -> None:
    cache = cache_at(0)
    cache.put([received(3)], 32)
    assert cache.commit_offset == 3
    assert cache.done(3) == 32


@given(st.permutations(range(20)))
def test_commit_position_never_passes_an_unfinished_message(order: list[int]) -> None:
    cache = cache_at(0)
    cache.put([received(number) for number in range(20)], 20)
    unfinished = set(range(20))
    for number in order:
        unfinished.discard(number)
        assert cache.done(number) == min(unfinished, default=20)
    assert cache.byte_count == 0


def test_messages_pulled_twice_are_delivered_once() -> None:
    cache = cache_at(0)
    assert cache.put([received(0), received(1)], 2) == 2
    assert cache.put([received(1), received(2)], 3) == 1
    assert cache.count == 3


def test_pulling_pauses_at_the_message_limit() -> None:
    cache = cache_at(0, CacheLimits(messages_max=2))
    cache.put([received(0)], 1)
    assert cache.why_full() is None
    cache.put([received(1)], 2)
    assert cache.why_full() == "2 messages cached, at most 2"
    cache.done(0)
    assert cache.why_full() is None


def test_pulling_pauses_at_the_byte_limit() -> None:
    cache = cache_at(0, CacheLimits(bytes_max=10))
    cache.put([received(0, b"x" * 10)], 1)
    assert cache.why_full() == "10 bytes cached, at most 10"


def test_pulling_pauses_when_one_stuck_message_lets_the_span_grow() -> None:
    cache = cache_at(0, CacheLimits(span_max=100))
    cache.put([received(0), received(100)], 101)
    assert cache.why_full() is None
    cache.put([received(101)], 102)
    assert "101 entries between oldest and newest" in (cache.why_full() or "")


@pytest.mark.parametrize("limit", ["messages_max", "bytes_max", "span_max"])
def test_limits_below_one_are_refused(limit: str) -> None:
    with pytest.raises(ValueError, match=limit):
        CacheLimits(**{limit: 0})


def test_message_put_back_is_taken_first() -> None:
    cache = cache_at(0)
    cache.put([received(0), received(1)], 2)
    first = cache.take()
    assert first is not None
    cache.put_back(first)
    assert cache.take() == first


def test_next_offset_is_what_the_application_gets_next() -> None:
    cache = cache_at(4)
    assert cache.next_offset == 4
    cache.put([received(4), received(5)], 6)
    cache.take()
    assert cache.next_offset == 5
    cache.take()
    assert cache.next_offset == 6


async def test_queues_take_turns_message_by_message() -> None:
    ready = ReadyQueues()
    caches = [QueueCache(MessageQueue("T", "a", number), 0, CacheLimits()) for number in range(2)]
    for number, cache in enumerate(caches):
        cache.put([received(offset, queue_id=number) for offset in range(2)], 2)
        ready.announce(cache)
    taken = [(await ready.take())[1] for _ in range(4)]
    assert [message.queue.queue_id for message in taken] == [0, 1, 0, 1]
    assert ready.take_some_nowait(1) is None


async def test_announcing_twice_does_not_give_a_queue_two_turns() -> None:
    ready = ReadyQueues()
    cache = cache_at(0)
    cache.put([received(0)], 1)
    ready.announce(cache)
    ready.announce(cache)
    assert ready.take_some_nowait(1) is not None
    assert ready.take_some_nowait(1) is None


async def test_messages_of_a_dropped_queue_are_not_taken() -> None:
    ready = ReadyQueues()
    dropped, kept = cache_at(0), cache_at(0)
    for cache in (dropped, kept):
        cache.put([received(0)], 1)
        ready.announce(cache)
    dropped.dropped = True
    async with asyncio.timeout(5):
        assert (await ready.take())[0] is kept
    assert ready.take_some_nowait(1) is None
