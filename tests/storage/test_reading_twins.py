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
    gathering,
    java_hash,
    open_store,
    reading,
    residency,
)

try:
    from tandemmq.storage import _reading
except ImportError:  # built without a compiler
    _reading = None

COMPILED = reading.gather is not gathering.gather
FORMS: list[Any] = [gathering]
if COMPILED:
    FORMS.append(_reading)

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


class Sieve:
    """A kernel with every other piece in memory, and nobody else's pages."""

    def resident(self, path: Path, start: int, size: int) -> float | None:
        return 1.0 if start // PIECE % 2 else 0.0


PIECE = 1 << 12


@pytest.mark.parametrize("hot_bytes", [1 << 40, 300_000, 0])
def test_both_forms_find_the_same(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, hot_bytes: int
) -> None:
    if not COMPILED:
        pytest.skip("built without a compiler")
    monkeypatch.setattr(store.reader, "_hot_bytes", hot_bytes)
    monkeypatch.setattr(residency, "PIECE_BYTES", PIECE)
    store.reader.residency = residency.Residency(store.clock, Sieve())  # type: ignore[arg-type]
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
        monkeypatch.setattr(reading, "gather", gathering.gather)
        monkeypatch.setattr(reading, "Records", gathering.Records)
        expected = found(store, *arguments)
        monkeypatch.setattr(reading, "gather", _reading.gather)
        monkeypatch.setattr(reading, "Records", _reading.Records)
        assert found(store, *arguments) == expected
        statuses.add(expected[0].name)
    assert {"FOUND", "NO_MATCHED_MESSAGE", "OFFSET_OVERFLOW_ONE"} <= statuses


@pytest.mark.parametrize("form", FORMS)
def test_an_entry_that_points_at_no_record_is_left_to_the_caller(
    store: MessageStore, form: Any
) -> None:
    segment = store.log.run.segments[-1]
    start, end = segment.start, segment.start + segment.wrote
    size = int.from_bytes(segment.view[0:4], "big")
    sound = reading.QUEUE_ENTRY.pack(start, size, 0)
    view = segment.view
    for odd in (
        reading.QUEUE_ENTRY.pack(start + 1, size, 0),  # no record begins there
        reading.QUEUE_ENTRY.pack(start, size + 1, 0),  # not its size
        reading.QUEUE_ENTRY.pack(end - 90, 91, 0),  # beyond what is written
        reading.QUEUE_ENTRY.pack(start - 100, 91, 0),  # another segment
        reading.QUEUE_ENTRY.pack(start, -5, 0),
        reading.QUEUE_ENTRY.pack((1 << 63) - 1, size, 0),
        reading.QUEUE_ENTRY.pack(-(1 << 63), size, 0),
    ):
        records = form.Records()
        entries = memoryview(odd + sound + odd + sound)
        assert form.gather(
            entries, 20, 80, view, start, start, end, 1 << 20, 32, None, records
        ) == (40, start, False)
        assert list(records) == [view[:size]]
        assert (len(records), records.bytes) == (1, size)
        assert form.gather(
            entries, 40, 80, view, start, start, end, 1 << 20, 32, None, records
        ) == (40, -1, False)
        assert list(records) == [view[:size]]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_shorter_than_it_should_be_is_refused(form: Any) -> None:
    entry = bytes(20)
    for entries, at, stop, view, start, first, end in (
        (entry, 0, 20, b"abc", 0, 0, 4),
        (entry, 0, 40, b"abc", 0, 0, 3),
        (entry, -20, 20, b"abc", 0, 0, 3),
        (entry, 0, 20, b"abc", 8, 5, 8),
    ):
        with pytest.raises(ValueError, match="segment"):
            form.gather(
                memoryview(entries), at, stop, memoryview(view), start, first, end, 1, 1, None,
                form.Records(),
            )  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_records_are_copied_behind_a_head_in_their_order(form: Any) -> None:
    records = form.Records()
    assert not records
    assert records.after(b"head") == b"head"
    parts = [random.Random(each).randbytes(each % 40) for each in range(100)]
    for part in parts:
        records.add(memoryview(part))
    assert records.after(b"head") == b"head" + b"".join(parts)
    assert [bytes(each) for each in records] == parts
    assert bytes(records[-1]) == parts[-1]
    assert records.bytes == sum(map(len, parts))
    with pytest.raises(IndexError):
        records[100]
    records.clear()
    assert (len(records), records.bytes, list(records)) == (0, 0, [])


@pytest.mark.parametrize("form", FORMS)
def test_records_hold_what_they_show_and_nothing_of_the_caller(
    store: MessageStore, form: Any
) -> None:
    view = memoryview(bytearray(b"abcdef"))
    records = form.Records()
    records.add(view[2:4])
    shown = memoryview(view)
    records.add(shown)
    view.release()
    assert records.after(b"") == b"cdabcdef"
