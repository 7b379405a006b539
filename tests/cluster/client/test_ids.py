"""Unique ids: the layout that RocketMQ's tools decode, and no two alike."""

from __future__ import annotations

import random
from datetime import datetime

import pytest

from tandemmq.cluster.client.producing.ids import (
    UniqueIds,
    local_address,
    month_bounds,
    packed_address,
)

MONTH_START_MS = int(datetime(2025, 9, 1).timestamp() * 1000)


def test_id_holds_address_pid_milliseconds_of_the_month_and_a_counter() -> None:
    ids = UniqueIds(packed_address("192.168.1.10"), random.Random(1), pid=12345)
    first = bytes.fromhex(ids.next(MONTH_START_MS + 1_585_815_123))
    second = bytes.fromhex(ids.next(MONTH_START_MS + 1_585_815_123))
    assert first[:4] == bytes([192, 168, 1, 10])
    assert int.from_bytes(first[4:6]) == 12345
    assert first[6:10] == second[6:10]
    assert int.from_bytes(first[10:14]) == 0x5E859E53
    assert (int.from_bytes(second[14:]) - int.from_bytes(first[14:])) & 0xFFFF == 1


def test_ipv6_id_is_56_digits_long() -> None:
    ids = UniqueIds(packed_address("fe80::1%eth0"), random.Random(1))
    assert len(ids.next(MONTH_START_MS)) == 56


def test_pid_keeps_its_low_16_bits() -> None:
    ids = UniqueIds(bytes(4), random.Random(1), pid=0x12345)
    assert ids.next(MONTH_START_MS)[8:12] == "2345"


def test_100000_ids_of_one_millisecond_window_differ() -> None:
    ids = UniqueIds(bytes(4), random.Random(1))
    made = {ids.next(MONTH_START_MS + place // 1000) for place in range(100_000)}
    assert len(made) == 100_000


def test_clock_set_back_a_little_does_not_wrap_the_time() -> None:
    ids = UniqueIds(bytes(4), random.Random(1))
    ids.next(MONTH_START_MS)
    assert ids.next(MONTH_START_MS - 5)[20:28] == "00000000"


def test_new_month_starts_at_zero_again() -> None:
    ids = UniqueIds(bytes(4), random.Random(1))
    ids.next(MONTH_START_MS)
    _, october_ms = month_bounds(MONTH_START_MS)
    assert int(ids.next(october_ms + 7)[20:28], 16) == 7


@pytest.mark.parametrize(("month", "year_after", "month_after"), [(12, 2026, 1), (1, 2025, 2)])
def test_month_ends_where_the_next_begins(month: int, year_after: int, month_after: int) -> None:
    middle_ms = int(datetime(2025, month, 15, 12).timestamp() * 1000)
    start_ms, end_ms = month_bounds(middle_ms)
    assert datetime.fromtimestamp(start_ms / 1000) == datetime(2025, month, 1)
    assert datetime.fromtimestamp(end_ms / 1000) == datetime(year_after, month_after, 1)


def test_after_a_fork_ids_carry_the_new_pid_and_other_random_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = UniqueIds(bytes(4), random.Random(1))
    before = ids.next(MONTH_START_MS)
    monkeypatch.setattr("tandemmq.cluster.client.producing.ids.os.getpid", lambda: 77)
    after = ids.next(MONTH_START_MS)
    assert int(after[8:12], 16) == 77
    assert before[12:20] != after[12:20]


def test_address_that_cannot_be_found_is_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: object, **options: object) -> None:
        raise OSError("name or service not known")

    monkeypatch.setattr("tandemmq.cluster.client.producing.ids.socket.getaddrinfo", unknown)
    assert local_address(("name.invalid", 9876)) == "127.0.0.1"
    assert local_address(None) == "127.0.0.1"
