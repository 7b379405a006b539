"""getMessage: every status, every limit, and entries that lead nowhere."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tandemmq.storage import (
    Draft,
    Fetch,
    GetResult,
    GetStatus,
    MessageStore,
    Selector,
    StorageConfig,
    decode,
    encode_properties,
    open_store,
    tags_code,
)
from tandemmq.storage.residency import PIECE_BYTES, Residency
from tandemmq.storage.segment import Segment

ENTRIES_PER_FILE = 50


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:

        def opened(**settings: Any) -> MessageStore:
            sizes = {"segment_bytes": 1 << 16, "queue_segment_bytes": 20 * ENTRIES_PER_FILE}
            config = StorageConfig(root=str(tmp_path / "store"), **{**sizes, **settings})
            return stack.enter_context(open_store(config))

        yield opened


def fill(
    store: MessageStore, count: int, body: bytes = b"x", tags: tuple[str, ...] = ("a",)
) -> None:
    for number in range(count):
        properties = encode_properties({"TAGS": tags[number % len(tags)], "n": f"v{number}"})
        store.put(Draft("T", 0, body, properties))
    while store.dispatch():
        pass


def offsets(result: GetResult) -> list[int]:
    found = [decode(record).queue_offset for record in result.records]
    result.records.clear()
    return found


def test_statuses_of_offsets_outside_the_queue(opened: Any) -> None:
    store = opened()
    empty = store.get("T", 0, 7, 32)
    assert (empty.status, empty.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    assert store.get("unknown", 9, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
    fill(store, 10)
    at_end, beyond = store.get("T", 0, 10, 32), store.get("T", 0, 11, 32)
    assert (at_end.status, at_end.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 10)
    assert (beyond.status, beyond.next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 10)
    below = store.get("T", 0, -1, 32)
    assert (below.status, below.next_offset, below.min_offset) == (GetStatus.OFFSET_TOO_SMALL, 0, 0)


def test_found_messages_are_whole_records_in_order(opened: Any) -> None:
    store = opened()
    fill(store, 10)
    result = store.get("T", 0, 3, 4)
    assert (result.status, result.next_offset, result.count) == (GetStatus.FOUND, 7, 4)
    assert (result.min_offset, result.max_offset) == (0, 10)
    assert result.bytes == sum(len(record) for record in result.records)
    assert not result.suggest_slave
    assert offsets(result) == [3, 4, 5, 6]


def test_one_pull_never_crosses_a_queue_file(opened: Any) -> None:
    store = opened()
    fill(store, ENTRIES_PER_FILE + 5)
    assert offsets(store.get("T", 0, 45, 32)) == [45, 46, 47, 48, 49]
    assert offsets(store.get("T", 0, 50, 32)) == [50, 51, 52, 53, 54]


def test_never_more_than_32_messages_whatever_was_asked(opened: Any) -> None:
    store = opened()
    fill(store, 49)
    assert store.get("T", 0, 0, 64).count == 32


def test_byte_limits_hold_but_the_first_message_always_comes(opened: Any) -> None:
    store = opened(transfer_bytes_max_hot=1100)
    fill(store, 5, bytes(400))
    size = len(store.get("T", 0, 0, 1).records[0])
    assert offsets(store.get("T", 0, 0, 32)) == [0, 1]
    assert offsets(store.get("T", 0, 0, 32, bytes_max=100)) == [0]
    assert offsets(store.get("T", 0, 0, 32, bytes_max=2 * size)) == [0, 1]
    assert offsets(store.get("T", 0, 0, 32, bytes_max=2 * size - 1)) == [0]
    assert offsets(store.get("T", 0, 0, 32, bytes_max=1)) == [0]
    store.put(Draft("big", 0, bytes(5000)))
    store.dispatch()
    assert offsets(store.get("big", 0, 0, 32)) == [0]


class Kernel:
    """Says what a PageCache would: the part of a range of a file that is in memory, None when it does not tell."""

    def __init__(self, part: float | None) -> None:
        self.part = part
        self.asked: list[tuple[int, int]] = []

    def resident(self, path: Path, start: int, size: int) -> float | None:
        self.asked.append((start, size))
        return self.part


@pytest.mark.parametrize("part", [1.0, 0.99, 0.0, None])
def test_what_is_not_in_memory_comes_in_smaller_portions_and_suggests_the_slave(
    opened: Any, part: float | None
) -> None:
    store = opened(transfer_count_max_cold=3)
    fill(store, 20, bytes(100))
    store.reader._hot_bytes = 1000
    store.reader.residency = Residency(store.clock, Kernel(part))
    assert store.get("T", 0, 0, 3).suggest_slave
    cold = store.get("T", 0, 0, 32)
    assert cold.suggest_slave == (part != 1.0), "it reached what is near the end"
    from_file = isinstance(cold.records[0].obj, bytes)
    assert from_file == (part != 1.0), "only what is in memory may be touched through the mapping"
    assert offsets(cold) == ([0, 1, 2] if from_file else list(range(20)))
    hot = store.get("T", 0, 17, 32)
    assert not hot.suggest_slave
    assert offsets(hot) == [17, 18, 19]


def test_the_kernel_is_asked_once_a_second_and_piece_and_not_at_all_with_a_ratio_of_zero(
    opened: Any,
) -> None:
    store = opened(segment_bytes=3 * PIECE_BYTES)
    fill(store, 10, bytes(1 << 20))
    kernel, clock = Kernel(1.0), ManualClock()
    store.reader.residency = Residency(clock, kernel)
    store.reader._hot_bytes = 0
    assert len(store.get("T", 0, 0, 1).records) == 1
    assert not kernel.asked
    store.reader._hot_bytes = 100
    for _ in range(5):
        got = store.get("T", 0, 3, 1, selector=Selector())  # crosses into the second piece
        assert not isinstance(got.records[0].obj, bytes)
        assert offsets(got) == [3]
    assert kernel.asked == [(0, PIECE_BYTES), (PIECE_BYTES, PIECE_BYTES)]
    clock.monotonic += 1_000
    kernel.part = 0.5
    assert isinstance(store.get("T", 0, 3, 1).records[0].obj, bytes)
    assert len(kernel.asked) == 3
    kernel.part = 1.0
    assert isinstance(store.get("T", 0, 3, 1).records[0].obj, bytes), "not asked again so soon"
    clock.monotonic += 1_000
    assert not isinstance(store.get("T", 0, 3, 1).records[0].obj, bytes)


@pytest.mark.parametrize("spread", [1, 3])
def test_a_patient_reader_is_told_what_to_fetch_and_never_waits_for_the_disk(
    opened: Any, monkeypatch: pytest.MonkeyPatch, spread: int
) -> None:
    """spread: of the records over segments, where 3 leaves none in the pieces that are asked about."""
    store = opened(segment_bytes=4 * PIECE_BYTES)
    for number in range(6):
        store.put(Draft("T", 0, bytes((1 << 19) if number < 3 or spread == 1 else 3 << 20)))
    fill(store, 5)
    places = [store.queues.get("T", 0).entry(number)[:2] for number in range(6)]
    store.reader._hot_bytes = 5_000
    kernel = Kernel(0.0)
    store.reader.residency = Residency(store.clock, kernel)
    monkeypatch.setattr(Segment, "pread", lambda *_: pytest.fail("waited for the disk"))
    told = store.get("T", 0, 0, 32, patient=True)
    assert (told.count, told.next_offset) == (0, 0)
    assert told.fetch is not None
    if (
        spread == 1
    ):  # as a piece, here as much of it as there is, and what lies behind it ahead of the reader
        assert told.fetch.ranges == ((0, store.end),)
        assert told.fetch.ahead == store.end
    else:
        assert told.fetch.ranges == tuple(places)
        assert told.fetch.ahead == -1
    told.fetch.run()
    kernel.part = 1.0
    asked = len(kernel.asked)
    found = store.get("T", 0, 0, 32, patient=True)
    assert len(kernel.asked) > asked, "the kernel is asked again about what was fetched"
    assert found.fetch is None
    assert offsets(found)[0] == 0
    hot = store.get("T", 0, 7, 32, patient=True)
    assert hot.fetch is None
    assert offsets(hot) == [7, 8, 9, 10]


@pytest.mark.parametrize("between", [False, True], ids=["cut in two", "all of it behind"])
def test_a_patient_reader_gets_what_is_in_memory_first(
    opened: Any, monkeypatch: pytest.MonkeyPatch, between: bool
) -> None:
    """The fourth record ends in a piece that is not there, or begins in it."""
    store = opened(segment_bytes=4 * PIECE_BYTES, transfer_bytes_max_hot=64 << 20)
    for number in range(8):
        if number == 3 and between:
            store.put(Draft("U", 0, bytes(1 << 20)))
        store.put(Draft("T", 0, bytes(1 << 20)))
    fill(store, 5)
    store.reader._hot_bytes = 3_000

    class First(Kernel):
        def resident(self, path: Path, start: int, size: int) -> float | None:
            return 1.0 if start == 0 else 0.5

    store.reader.residency = Residency(store.clock, First(None))
    monkeypatch.setattr(Segment, "pread", lambda *_: pytest.fail("waited for the disk"))
    first = store.get("T", 0, 0, 32, bytes_max=64 << 20, patient=True)
    assert first.fetch is None
    assert offsets(first) == [0, 1, 2]
    second = store.get("T", 0, 3, 32, bytes_max=64 << 20, patient=True)
    assert second.fetch is not None
    assert not second.records


def test_what_a_thread_fetches_may_be_gone_or_shorter(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(5_000))
    Fetch(file, ((0, 1 << 21), (4_990, 100), (9_000, 1)), ahead=1 << 20).run()
    with pytest.raises(FileNotFoundError):
        Fetch(tmp_path / "none", ((0, 1),)).run()


class ManualClock:
    monotonic = 5_000

    def monotonic_ms(self) -> int:
        return self.monotonic

    def now_ms(self) -> int:
        raise AssertionError("durations are monotonic")


def test_tags_are_compared_by_hash(opened: Any) -> None:
    store = opened()
    fill(store, 12, tags=("payment", "b", "c"))  # the first has a negative hash
    codes = frozenset({tags_code("payment"), tags_code("c")})
    result = store.get("T", 0, 0, 4, selector=Selector(codes))
    assert (result.status, result.next_offset) == (GetStatus.FOUND, 6)
    assert offsets(result) == [0, 2, 3, 5]
    nothing = store.get("T", 0, 0, 32, selector=Selector(frozenset({5})))
    assert (nothing.status, nothing.next_offset, nothing.count) == (
        GetStatus.NO_MATCHED_MESSAGE,
        12,
        0,
    )


def test_a_filter_that_rejects_all_examines_800_entries_at_most(opened: Any) -> None:
    store = opened(queue_segment_bytes=20 * 2000)
    fill(store, 1000)
    result = store.get("T", 0, 5, 32, selector=Selector(frozenset({5})))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 805)


def test_properties_are_judged_after_tags(opened: Any) -> None:
    store = opened()
    fill(store, 9, tags=("a", "b"))
    seen: list[bytes] = []

    def match(properties: bytes) -> bool:
        seen.append(properties)
        return b"v4" in properties

    result = store.get("T", 0, 0, 32, selector=Selector(frozenset({tags_code("a")}), match))
    assert offsets(result) == [4]
    assert len(seen) == 5
    assert seen[0] == b"TAGS\x01a\x02n\x01v0\x02"
    none = store.get("T", 0, 5, 32, selector=Selector(matches=lambda properties: False))
    assert (none.status, none.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 9)


@pytest.mark.parametrize("wanted", [True, False])
def test_an_answer_is_due_after_so_many_bytes_of_judged_properties(
    opened: Any, wanted: bool
) -> None:
    """Whether messages are wanted or not: what it costs is to judge them."""
    store = opened()
    for _ in range(30):
        store.put(Draft("T", 0, b"x", b"p\x01" + b"v" * 1_000))
    while store.dispatch():
        pass
    judged: list[bytes] = []

    def matches(properties: bytes) -> bool:
        judged.append(properties)
        return wanted

    found = store.get("T", 0, 0, 32, selector=Selector(None, matches, judged_bytes_max=4_500))
    assert len(judged) == found.next_offset == 5
    assert len(offsets(found)) == (5 if wanted else 0)
    found = store.get("T", 0, 5, 32, selector=Selector(None, matches, judged_bytes_max=1))
    assert found.next_offset == 6  # one at least, or a consumer would never get on
    offsets(found)


def test_properties_of_ipv6_and_long_topic_records_are_found(opened: Any) -> None:
    store = opened()
    topic = "%RETRY%" + "g" * 150
    for host in (bytes(8), bytes(20)):
        store.put(Draft(topic, 0, b"body", b"a\x01b\x02", born_host=host, store_host=host))
    store.dispatch()
    result = store.get(
        topic, 0, 0, 32, selector=Selector(matches=lambda properties: properties == b"a\x01b\x02")
    )
    assert offsets(result) == [0, 1]


def test_entries_of_deleted_records_are_passed_over_a_file_at_a_time(opened: Any) -> None:
    store = opened(segment_bytes=1024, queue_segment_bytes=20_000)
    fill(store, 40)
    first_kept = store.log.run.segments[2].start
    queue = store.queues.get("T", 0)
    kept = next(n for n in range(40) if queue.entry(n)[0] >= first_kept)
    for _ in range(2):
        segment = store.log.run.drop_first()
        segment.retire(0)
        assert segment.free(0, 0)
    assert queue.min_offset == 0, "nobody has told the queue yet"
    result = store.get("T", 0, 0, 32)
    assert result.status is GetStatus.FOUND
    assert offsets(result)[0] == kept
    gone = store.get("T", 0, 0, 32, selector=Selector(frozenset({5})))
    assert gone.status is GetStatus.NO_MATCHED_MESSAGE


def test_only_unreadable_entries_mean_being_removed(opened: Any) -> None:
    store = opened(segment_bytes=1024, queue_segment_bytes=100)
    fill(store, 40)
    for _ in range(3):
        segment = store.log.run.drop_first()
        segment.retire(0)
        assert segment.free(0, 0)
    result = store.get("T", 0, 0, 32)
    assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 5)


@pytest.mark.parametrize(
    "entry",
    [(1 << 40, 100, 0), (10, 100, 0), (0, 50, 0), (0, 91, 0), (0, 0x7FFFFFFE, 0)],
)
def test_entry_that_points_at_no_record_is_never_served(
    opened: Any, entry: tuple[int, ...]
) -> None:
    store = opened()
    fill(store, 3)
    queue = store.queues.get("T", 0)
    file = next(iter(store.queues.cache.mapped))
    struct.pack_into(">qiq", store.queues.cache.view(file), 20, *entry)
    result = store.get("T", 0, 1, 1)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 1), "ask again"
    assert (result.last_physical, result.count) == (0, 0)
    assert offsets(store.get("T", 0, 1, 1)) == [1]
    assert queue.max_offset == 3


def test_blank_entries_in_the_middle_do_not_hide_what_follows(opened: Any) -> None:
    store = opened()
    fill(store, 3)
    placed = store.put(Draft("T", 0, b"later"))
    store.queues.get("T", 0).put(placed.offset, placed.size, 0, 7)
    assert offsets(store.get("T", 0, 0, 32)) == [0, 1, 2]  # a blank looks larger than any limit
    result = store.get("T", 0, 3, 32)
    assert (result.status, result.next_offset, result.count) == (GetStatus.FOUND, 8, 1)
    assert decode(result.records[0]).body == b"later"
    result.records.clear()
