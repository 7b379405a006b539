"""Reading with and without the compiled front of the walk finds the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.storage import (
    Draft,
    MessageStore,
    Selector,
    StorageConfig,
    java_hash,
    open_store,
    reading,
)

TAGS = ["", "a", "b", "payment"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """Three queues over many small segments; the first segments are gone."""
    rng = random.Random(3)
    config = StorageConfig(
        root=str(tmp_path),
        segment_bytes=1 << 14,
        queue_segment_bytes=20 * 150,
        index_enabled=False,
        transfer_count_max_hot=48,
        transfer_bytes_max_hot=20_000,
    )
    with open_store(config) as store:
        for _ in range(1_200):
            tag = rng.choice(TAGS)
            properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
            body = rng.randbytes(rng.choice([1, 40, 400, 3_000]))
            store.put(Draft("T", rng.randrange(3), body, properties))
        while store.dispatch():
            pass
        while store.log.start < 5 << 14:
            segment = store.log.run.segments.pop(0)
            segment.retire(0)
            segment.free(0, 0)
        yield store


def found(store: MessageStore, *arguments: Any) -> tuple[Any, ...]:
    result = store.get(*arguments)
    records = [bytes(record) for record in result.records]
    return (
        result.status,
        result.next_offset,
        result.min_offset,
        result.max_offset,
        result.bytes,
        result.suggest_slave,
        records,
    )


@pytest.mark.parametrize("hot_bytes", [1 << 40, 300_000, 0])
def test_the_compiled_front_changes_nothing(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, hot_bytes: int
) -> None:
    if reading.gather is None:
        pytest.skip("built without a compiler")
    compiled = reading.gather
    monkeypatch.setattr(store.reader, "_hot_bytes", hot_bytes)
    rng = random.Random(4)
    statuses = set()
    for _ in range(600):
        queue = rng.randrange(3)
        codes = rng.choice([None, frozenset(map(java_hash, rng.sample(TAGS[1:], 2))), frozenset()])
        arguments = (
            "T",
            queue,
            rng.randrange(store.max_offset("T", queue) + 2),
            rng.choice([1, 5, 32, 1_000]),
            rng.choice([100, 5_000, 1 << 20]),
            Selector(codes),
        )
        monkeypatch.setattr(reading, "gather", None)
        expected = found(store, *arguments)
        monkeypatch.setattr(reading, "gather", compiled)
        assert found(store, *arguments) == expected
        statuses.add(expected[0].name)
    assert {"FOUND", "NO_MATCHED_MESSAGE", "OFFSET_OVERFLOW_ONE"} <= statuses


def test_an_entry_that_points_at_no_record_is_left_to_the_loop(store: MessageStore) -> None:
    if reading.gather is None:
        pytest.skip("built without a compiler")
    segment = store.log.run.segments[-1]
    start, end = segment.start, segment.start + segment.wrote
    size = int.from_bytes(segment.view[0:4], "big")
    sound = reading.QUEUE_ENTRY.pack(start, size, 0)
    for odd in (
        reading.QUEUE_ENTRY.pack(start + 1, size, 0),  # no record begins there
        reading.QUEUE_ENTRY.pack(start, size + 1, 0),  # not its size
        reading.QUEUE_ENTRY.pack(end - 90, 91, 0),  # beyond what is written
        reading.QUEUE_ENTRY.pack(start - 100, 91, 0),  # another segment
        reading.QUEUE_ENTRY.pack(start, -5, 0),
        reading.QUEUE_ENTRY.pack((1 << 63) - 1, size, 0),
        reading.QUEUE_ENTRY.pack(-(1 << 63), size, 0),
    ):
        records: list[memoryview] = []
        view = segment.view
        assert reading.gather(
            memoryview(sound + odd + sound), view, start, end, 0, 1 << 20, 32, None, records
        ) == (1, size, start, False)
        assert [bytes(record) for record in records] == [bytes(view[:size])]
        records.clear()


def test_a_segment_shorter_than_what_it_should_hold_is_refused(store: MessageStore) -> None:
    if reading.gather is None:
        pytest.skip("built without a compiler")
    with pytest.raises(ValueError, match="segment"):
        reading.gather(memoryview(b""), memoryview(b"abc"), 0, 4, 0, 1, 1, None, [])
