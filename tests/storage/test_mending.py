"""Damaged queue entries hide no message: bits flipped, pages lost, entries of elsewhere."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tandemmq.storage import (
    BLANK_SIZE,
    Draft,
    GetStatus,
    Mended,
    MessageStore,
    Selector,
    StorageConfig,
    decode,
    encode_properties,
    mending,
    open_store,
    tags_code,
)
from tandemmq.storage.derivation import QUEUE_ENTRY

MESSAGES = 60
TAGS = ("red", "green", "blue")
PLACES = ("at the first that is there", "in the middle", "at the end")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:

        def opened(**settings: Any) -> MessageStore:
            sizes = {"segment_bytes": 4096, "queue_segment_bytes": 20 * MESSAGES}
            config = StorageConfig(root=str(tmp_path / "store"), **{**sizes, **settings})
            return stack.enter_context(open_store(config))

        yield opened


def fill(store: MessageStore, count: int = MESSAGES) -> None:
    """`count` messages of two queues each, in turns, of several sizes and tags."""
    for number in range(count):
        for topic in ("T", "U"):
            properties = encode_properties({"TAGS": TAGS[number % 3]})
            store.put(Draft(topic, 0, f"{topic}{number}".encode() * (number % 7 + 1), properties))
    while store.dispatch():
        pass


def damage(store: MessageStore, queue_offset: int, *, entry: bytes) -> None:
    """Write what may be the bytes of several entries over those of topic T, from one on."""
    queue = store.queue("T", 0)
    assert queue is not None
    view, at, _ = queue.window(queue_offset, 1)
    view[at : at + len(entry)] = entry


def raw(store: MessageStore, queue_offset: int) -> bytes:
    queue = store.queue("T", 0)
    assert queue is not None
    return bytes(queue.chunk(queue_offset, 1))


def consumed(
    store: MessageStore, selector: Selector | None = None, count: int = 32, begin: int = 0
) -> list[int]:
    """Queue offsets of what a consumer is given that goes where it is sent."""
    found: list[int] = []
    at, asked = begin, 0
    while True:
        asked += 1
        assert asked < 10 * MESSAGES, f"it is sent round and round at {at}"
        answer = store.get("T", 0, at, count, selector=selector or Selector())
        if answer.status is GetStatus.OFFSET_OVERFLOW_ONE:
            return found
        records = [decode(record) for record in answer.records]
        answer.records.clear()
        assert all(record.topic == "T" for record in records), "of another queue"
        found += [record.queue_offset for record in records]
        assert answer.next_offset >= at
        at = answer.next_offset


@pytest.mark.parametrize("hot_memory_percent", [40, 0])
def test_no_flipped_bit_of_an_entry_hides_a_message(opened: Any, hot_memory_percent: int) -> None:
    store = opened(hot_memory_percent=hot_memory_percent)
    fill(store)
    everything = list(range(MESSAGES))
    reds = Selector(frozenset({tags_code("red")}))
    rng = random.Random(18)
    for bit in range(
        96
    ):  # of the place and the size: what follows is the tag, which only the audit can tell
        queue_offset = rng.choice([0, MESSAGES - 1, rng.randrange(MESSAGES)])
        right = raw(store, queue_offset)
        wrong = bytearray(right)
        wrong[bit // 8] ^= 1 << bit % 8
        damage(store, queue_offset, entry=bytes(wrong))
        before = store.mending.mended
        if bit % 2:
            assert consumed(store, reds) == everything[::3], (bit, queue_offset)
        assert consumed(store) == everything, (bit, queue_offset)
        assert raw(store, queue_offset) == right, (bit, queue_offset)
        assert store.mending.mended == before + 1
    assert store.mending.missing == 0


@pytest.mark.parametrize(
    "garbage",
    [bytes(400), b"\xff" * 400, random.Random(7).randbytes(400), QUEUE_ENTRY.pack(0, 200, 5) * 20],
    ids=["zeros", "ones", "noise", "foreign"],
)
@pytest.mark.parametrize("first", [0, 17, MESSAGES - 20])
def test_a_lost_page_of_entries_is_made_good(opened: Any, garbage: bytes, first: int) -> None:
    store = opened()
    fill(store)
    right = [raw(store, each) for each in range(MESSAGES)]
    damage(store, first, entry=garbage)
    if (
        not first and garbage[8:12] != b"\0\0\0\xc8"
    ):  # of a place that may be one, the tag is believed
        blue = Selector(frozenset({tags_code("blue")}))
        assert consumed(store, blue) == list(range(2, MESSAGES, 3))
    assert consumed(store, Selector(matches=lambda _: True)) == list(range(MESSAGES))
    assert [raw(store, each) for each in range(MESSAGES)] == right


def test_what_was_mended_is_on_the_disk_after_a_flush_and_stays(tmp_path: Path) -> None:
    config = StorageConfig(root=str(tmp_path), segment_bytes=4096, queue_segment_bytes=1200)
    with open_store(config) as store:
        fill(store)
        store.flush_queues()
        queue = store.queue("T", 0)
        right = raw(store, 7)
        damage(store, 7, entry=bytes(20))
        assert store.mending.mend(queue, 7) is Mended.RIGHT
        assert not queue.flush(1 << 20), "it has something to flush"
        store.flush_queues()
        assert queue.flush()
    with open_store(config) as store:
        assert raw(store, 7) == right
        assert store.mending.mended == 0


def test_a_message_that_the_log_lost_is_passed_over_alone_once_and_loudly(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened()
    fill(store)
    queue = store.queue("T", 0)
    physical, size, code = queue.entry(20)
    segment = store.log.run.find(physical)
    struct.pack_into(">i", segment.view, physical - segment.start, size ^ 64)
    entry = raw(store, 20)
    left = [each for each in range(MESSAGES) if each != 20]
    for _ in range(3):
        assert consumed(store) == left
    assert (store.mending.mended, store.mending.missing) == (0, 1)
    assert [record.levelname for record in caplog.records].count(
        "ERROR"
    ) == 2  # the cause, and this
    assert raw(store, 20) == entry, "what it says may help whoever repairs the log"
    assert code == tags_code("blue")


def test_damage_on_both_sides_of_a_lost_record_costs_that_record_only(opened: Any) -> None:
    store = opened()
    fill(store)
    for each in (19, 21):
        damage(store, each, entry=bytes(20))
    physical, _, _ = store.queue("T", 0).entry(22)
    segment = store.log.run.find(physical)
    struct.pack_into(">i", segment.view, physical - segment.start, -5)
    assert consumed(store) == [each for each in range(MESSAGES) if each != 22]


def test_a_long_search_goes_on_where_it_stopped_and_nobody_passes_meanwhile(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mending, "SEARCHED_BYTES", 300)
    store = opened()
    fill(store)
    damage(store, 10, entry=bytes(20 * 40))
    answers = []
    while not answers or answers[-1].status is not GetStatus.FOUND:
        answers.append(store.get("T", 0, 10, 1))
        assert answers[-1].next_offset == 10 + answers[-1].count
        assert answers[-1].status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
    answers.clear()
    damage(store, 10, entry=bytes(20))
    queue = store.queue("T", 0)
    monkeypatch.setattr(mending, "NEIGHBOURS_MAX", 1)  # none is looked at: all of the log
    steps = 1
    while store.mending.mend(queue, 10) is Mended.SEARCHING:
        steps += 1
    assert steps > 3
    monkeypatch.undo()
    assert consumed(store) == list(range(MESSAGES))


def test_a_record_in_a_body_is_not_taken_for_the_one_that_is_missed(opened: Any) -> None:
    store = opened()
    fill(store, 5)
    physical, size, _ = store.queue("T", 0).entry(4)
    forged = bytearray(store.log.record_at(physical))
    end = store.log.end
    for place in range(end, end + 400):  # one of them names its own place, whatever precedes it
        struct.pack_into(">qq", forged, 20, 5, place)
        store.put(Draft("V", 0, bytes(forged)))
    true = store.put(Draft("T", 0, b"true"))
    while store.dispatch():
        pass
    damage(store, 5, entry=bytes(20))
    while store.mending.mend(store.queue("T", 0), 5) is Mended.SEARCHING:
        pass
    assert store.queue("T", 0).entry(5)[:2] == (true.offset, true.size)
    assert size


def test_blank_entries_and_those_of_deleted_files_are_nobodys_to_mend(opened: Any) -> None:
    store = opened(queue_segment_bytes=20 * 2 * MESSAGES)
    fill(store)
    queue = store.queue("T", 0)
    placed = store.put(Draft("T", 1, b"later"))
    queue.put(placed.offset, placed.size, 0, MESSAGES + 5)
    assert queue.entry(MESSAGES + 2)[1] == BLANK_SIZE
    assert store.mending.mend(queue, MESSAGES + 2) is Mended.GONE
    segment = store.log.run.drop_first()
    segment.retire(0)
    assert segment.free(0, 0)
    assert store.mending.mend(queue, 0) is Mended.GONE
    assert store.mending.mend(queue, 10**6) is Mended.GONE
    alive = next(n for n in range(MESSAGES) if queue.entry(n)[0] >= store.start)
    right = raw(store, alive + 1)
    damage(store, alive + 1, entry=QUEUE_ENTRY.pack(5, 100, 0))  # as if it were gone as well
    assert store.mending.mend(queue, alive + 1) is Mended.RIGHT
    assert raw(store, alive + 1) == right
    assert store.mending.missing == 0


def drop_first_files(store: MessageStore, count: int) -> None:
    for _ in range(count):
        segment = store.log.run.drop_first()
        segment.retire(0)
        assert segment.free(0, 0)
    store.queues.start_at(store.start)


@pytest.mark.parametrize("hot_memory_percent", [40, 0])
@pytest.mark.parametrize("place", PLACES)
def test_a_lost_page_hides_nothing_once_the_first_files_are_deleted(
    opened: Any, place: str, hot_memory_percent: int
) -> None:
    """Its zeros name a place below the log's start, and are not of deleted records for that."""
    store = opened(queue_segment_bytes=20 * 512, hot_memory_percent=hot_memory_percent)
    fill(store, 200)
    drop_first_files(store, 3)
    lowest = store.min_offset("T", 0)
    first = {PLACES[0]: lowest - 7, PLACES[1]: (lowest + 200) // 2, PLACES[2]: 180}[place]
    right = [raw(store, each) for each in range(lowest, 200)]
    damage(store, first, entry=bytes(20 * 20))
    store.queue("T", 0).log_start_moved()
    assert store.min_offset("T", 0) <= lowest
    begin = max(lowest, first + 9)  # a consumer stood there
    assert consumed(store, begin=begin) == list(range(begin, 200))
    assert consumed(store, begin=lowest) == list(range(lowest, 200))
    assert [raw(store, each) for each in range(lowest, 200)] == right
    assert store.mending.missing == 0


def test_damage_among_entries_of_deleted_files_is_passed_over_without_a_search(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search of each in a whole log would keep its consumer, and the processor, busy for hours."""
    store = opened(queue_segment_bytes=20 * 512)
    fill(store, 200)
    drop_first_files(store, 3)
    lowest = store.min_offset("T", 0)
    damage(store, 10, entry=random.Random(3).randbytes(20 * 30))
    monkeypatch.setattr(store.mending, "_search", None)
    for each in range(lowest):
        assert store.mending.mend(store.queue("T", 0), each) is Mended.GONE


def test_a_search_ends_at_a_later_message_of_the_queue(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mending, "NEIGHBOURS_MAX", 1)  # nothing says where to look
    monkeypatch.setattr(mending, "SEARCHED_BYTES", 300)
    store = opened(segment_bytes=1 << 16)
    fill(store)
    queue = store.queue("T", 0)
    physical, _, _ = queue.entry(2)
    segment = store.log.run.find(physical)
    struct.pack_into(">q", segment.view, physical - segment.start + 20, 1 << 40)  # of elsewhere
    damage(store, 2, entry=bytes(20))
    steps = 1
    while store.mending.mend(queue, 2) is Mended.SEARCHING:
        steps += 1
    assert steps <= 4
    assert consumed(store) == [each for each in range(MESSAGES) if each != 2]


def test_a_queue_whose_first_entry_names_a_place_below_nought_keeps_it(opened: Any) -> None:
    store = opened()
    fill(store)
    damage(store, 0, entry=QUEUE_ENTRY.pack(-1 << 63, 100, 0))
    queue = store.queue("T", 0)
    queue.log_start_moved()
    assert store.min_offset("T", 0) == 0
    assert consumed(store) == list(range(MESSAGES))


def test_a_lost_page_where_the_live_entries_begin_hides_none_of_them(opened: Any) -> None:
    """Nobody knows where in it the deleted ones end: readers begin behind the last that is known to be deleted."""
    store = opened()
    fill(store)
    queue = store.queue("T", 0)
    for _ in range(2):
        segment = store.log.run.drop_first()
        segment.retire(0)
        assert segment.free(0, 0)
    store.queues.start_at(store.start)
    alive = store.min_offset("T", 0)
    assert 10 < alive < MESSAGES - 10
    for first in (alive - 10, alive, alive - 3):
        damage(store, first, entry=bytes(20 * 10))
        queue.log_start_moved()
        assert alive - 10 <= store.min_offset("T", 0) <= alive
        given = consumed(store)
        assert given == list(range(alive, MESSAGES)), first
