"""The log: appending, rolling, reading, flushing, truncating, and opening what RocketMQ wrote."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.storage.codec import (
    BLANK_BYTES,
    Draft,
    SysFlag,
    decode,
    encode,
    pack_host,
    record_size,
    scan,
)
from tandemmq.storage.commitlog import CommitLog, Placed
from tandemmq.storage.config import StorageConfig
from tandemmq.storage.errors import (
    CorruptRecord,
    FlushFailed,
    MessageTooLarge,
    SegmentUnavailable,
    StoreIsFull,
)
from tandemmq.storage.record import BatchItem, join_batch
from tandemmq.storage.segment import Segment
from tandemmq.storage.segments import segment_name

SEGMENT = 4096
Open = Callable[..., CommitLog]


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Open]:
    """open_log() -> the log below tmp_path, ready for appends where its records end."""
    logs: list[CommitLog] = []

    def make(config: StorageConfig | None = None) -> CommitLog:
        log = CommitLog(config or StorageConfig(root=str(tmp_path), segment_bytes=SEGMENT))
        logs.append(log)
        log.load()
        log.truncate(end_of_records(log))
        return log

    yield make
    for log in logs:
        log.close()


def heads(log: CommitLog) -> Iterator[tuple[int, Any]]:
    for segment in log.run.segments:
        for head in scan(segment.view, 0, segment.wrote, crc_checked=True):
            yield segment.start + head.position, head


def end_of_records(log: CommitLog) -> int:
    """What recovery does, in short."""
    end = log.start
    for segment in log.run.segments:
        if end != segment.start:
            break
        try:
            for head in scan(segment.view, 0, segment.size, crc_checked=True):
                end = segment.start + head.position + head.size
        except CorruptRecord as error:
            return segment.start + error.position
    return end


def offsets(log: CommitLog) -> list[int]:
    return [offset for offset, head in heads(log) if not head.blank]


def draft(size: int, topic: str = "T", queue_id: int = 0) -> Draft:
    """A message whose record takes `size` bytes."""
    made = Draft(topic, queue_id, b"")
    made.body = b"b" * (size - record_size(made))
    return made


def append(log: CommitLog, size: int, store_ms: int = 0) -> Placed:
    return log.append(draft(size), log.queue_tail(b"T", 0), store_ms)


def files(root: Path) -> list[int]:
    return sorted(int(path.name) for path in (root / "commitlog").iterdir())


def test_new_log_makes_its_first_file_with_its_first_record(open_log: Open, tmp_path: Path) -> None:
    log = open_log()
    assert (log.start, log.end, log.flushed) == (0, 0, 0)
    assert not (tmp_path / "commitlog").exists()
    assert append(log, 200) == Placed(0, 200, 0)
    assert files(tmp_path) == [0]
    assert (log.end, log.read(0, 200), log.flush()) == (200, log.record_at(0), 200)


def test_what_is_staged_is_no_part_of_the_log_before_its_commit(open_log: Open) -> None:
    log = open_log()
    append(log, 100)
    assert not log.staged
    log.tail.append(draft(100), 1, 0)
    assert log.staged and log.end == 100
    log.commit()
    assert not log.staged and log.end == 200


def test_queue_offsets_count_per_queue(open_log: Open) -> None:
    # INV-5
    log = open_log()
    first, second = log.queue_tail(b"T", 0), log.queue_tail(b"T", 1)
    placed = [log.append(draft(100), tail, 0) for tail in (first, second, first)]
    assert [one.queue_offset for one in placed] == [0, 0, 1]
    assert log.queue_tail(b"T", 0) is first
    assert (first.next_offset, second.next_offset) == (2, 1)


@pytest.mark.parametrize(
    ("flag", "takes_one"),
    [(0, True), (SysFlag.COMMIT, True), (SysFlag.PREPARED, False), (SysFlag.ROLLBACK, False)],
)
def test_transaction_halves_take_no_queue_offset(
    open_log: Open, flag: int, takes_one: bool
) -> None:
    log = open_log()
    tail = log.queue_tail(b"T", 0)
    tail.next_offset = 7
    placed = log.append(Draft("T", 0, b"x", sys_flag=flag | SysFlag.COMPRESSED), tail, 0)
    record = log.record_at(placed.offset)
    assert record is not None and decode(record).queue_offset == (7 if takes_one else 0)
    assert tail.next_offset == (8 if takes_one else 7)


def test_record_that_leaves_eight_bytes_stays_and_one_byte_more_rolls(open_log: Open) -> None:
    # INV-2
    log = open_log()
    append(log, SEGMENT - 200 - BLANK_BYTES)
    assert append(log, 200).offset == SEGMENT - 200 - BLANK_BYTES
    assert append(log, 100).offset == SEGMENT, "after a blank of exactly 8 bytes"
    append(log, SEGMENT - 300)
    assert append(log, 200 - BLANK_BYTES + 1).offset == 2 * SEGMENT
    blanks = [(offset, head.size) for offset, head in heads(log) if head.blank]
    assert blanks == [(SEGMENT - 8, 8), (2 * SEGMENT - 200, 200)]
    blank = log.read(SEGMENT - 8, 8)
    assert blank is not None and blank.hex() == "00000008cbd43194"


def test_record_bigger_than_a_file_is_refused_and_nothing_rolls(
    open_log: Open, tmp_path: Path
) -> None:
    log = open_log()
    append(log, 100)
    with pytest.raises(MessageTooLarge, match=str(SEGMENT - BLANK_BYTES)):
        append(log, SEGMENT - BLANK_BYTES + 1)
    assert (log.end, files(tmp_path), log.queue_tail(b"T", 0).next_offset) == (100, [0], 1)
    assert append(log, SEGMENT - BLANK_BYTES).offset == SEGMENT


def batch_of(sizes: list[int], properties: bytes = b"") -> Draft:
    items = [BatchItem(0, memoryview(draft(size).body), b"") for size in sizes]
    return Draft("T", 0, join_batch(items), properties)


def test_batch_moves_to_the_next_file_as_a_whole(open_log: Open) -> None:
    log = open_log()
    append(log, SEGMENT - 500)
    queue = log.queue_tail(b"T", 0)
    placed = log.append_batch(batch_of([200, 293]), queue, 0)
    assert placed.offsets == [SEGMENT, SEGMENT + 200]
    assert (placed.first_queue_offset, queue.next_offset) == (1, 3)
    assert placed.end == log.end == SEGMENT + 493
    assert offsets(log) == [0, SEGMENT, SEGMENT + 200]


def test_batch_bigger_than_a_file_is_refused(open_log: Open) -> None:
    log = open_log()
    queue = log.queue_tail(b"T", 0)
    properties = b"p\x01v\x02"
    extra = 2 * len(properties)
    with pytest.raises(MessageTooLarge, match=f"^{SEGMENT - 7} bytes"):
        log.append_batch(batch_of([2000, SEGMENT - 2007 - extra], properties), queue, 0)
    assert (log.end, queue.next_offset) == (0, 0)
    log.append_batch(batch_of([2000, SEGMENT - 2008 - extra], properties), queue, 0)
    assert log.end == SEGMENT - 8


def test_store_times_never_go_back(open_log: Open) -> None:
    log = open_log()
    placed = [append(log, 100, store_ms) for store_ms in (50, 40, 60)]
    assert [log.store_ms_at(one.offset) for one in placed] == [50, 50, 60]


def test_store_time_is_found_behind_an_ipv6_host(open_log: Open) -> None:
    log = open_log()
    made = Draft("T", 0, b"x", born_host=pack_host("::1", 1), store_host=pack_host("::1", 1))
    placed = log.append(made, log.queue_tail(b"T", 0), 1234)
    assert log.store_ms_at(placed.offset) == 1234
    assert log.store_ms_at(placed.offset + 1) is None


def test_reads_outside_what_is_written_find_nothing(open_log: Open) -> None:
    log = open_log()
    append(log, SEGMENT - 100)
    append(log, 200)
    assert log.read(SEGMENT - 200, 100) is not None
    for offset, size in ((-1, 1), (SEGMENT - 4, 8), (SEGMENT + 150, 51), (2 * SEGMENT, 1), (0, -1)):
        assert log.read(offset, size) is None, (offset, size)
    for offset in (-1, 1, SEGMENT - 100, SEGMENT + 200, SEGMENT + 120, 9 * SEGMENT):
        assert log.record_at(offset) is None, offset


# --- the next file ---


def test_next_file_is_made_ahead_and_used(open_log: Open, tmp_path: Path) -> None:
    log = open_log()
    assert not log.next_segment_needed()
    append(log, SEGMENT // 4 - 1)
    assert not log.next_segment_needed()
    append(log, 100)
    assert log.next_segment_needed()
    log.make_next_segment()
    log.make_next_segment()
    assert not log.next_segment_needed()
    assert files(tmp_path) == [0, SEGMENT]
    assert log.end == SEGMENT // 4 + 99, "it is not part of the log yet"
    made = log._next
    assert append(log, SEGMENT - 200).offset == SEGMENT
    assert log.run.segments[-1] is made


def test_clean_close_deletes_the_unused_next_file(open_log: Open, tmp_path: Path) -> None:
    log = open_log()
    append(log, 100)
    log.make_next_segment()
    log.close()
    assert files(tmp_path) == [0]


def test_unused_next_file_of_a_killed_process_goes_at_the_next_start(
    open_log: Open, tmp_path: Path
) -> None:
    log = open_log()
    append(log, 100)
    log.make_next_segment()
    assert open_log().end == 100
    assert files(tmp_path) == [0]


def test_full_disk_is_told_and_leaves_the_log_as_it_was(
    open_log: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    append(log, SEGMENT - 200)

    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(StoreIsFull, match="No space"):
        append(log, 300)
    assert (log.end, files(tmp_path)) == (SEGMENT - 200, [0])
    assert append(log, 100).offset == SEGMENT - 200, "smaller ones still fit"
    monkeypatch.undo()
    assert append(log, 300) == Placed(SEGMENT, 300, 2)


def test_file_in_the_way_makes_the_next_segment_unavailable(open_log: Open, tmp_path: Path) -> None:
    log = open_log()
    append(log, SEGMENT - 200)
    (tmp_path / "commitlog" / segment_name(SEGMENT)).write_bytes(b"stray")
    with pytest.raises(SegmentUnavailable):
        append(log, 300)


def test_full_segment_waits_for_the_thread_that_makes_the_next(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    append(log, SEGMENT - 200)
    making, rolled = threading.Event(), threading.Event()
    real = os.posix_fallocate

    def slow(fd: int, offset: int, size: int) -> None:
        making.set()
        assert not rolled.wait(0.05), "the roll did not wait"
        real(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", slow)
    thread = threading.Thread(target=log.make_next_segment)
    thread.start()
    assert making.wait(10)
    placed = append(log, 300)
    rolled.set()
    thread.join()
    assert placed.offset == SEGMENT
    assert log._next is None and len(log.run.segments) == 2


# --- staged bytes ---


def stage(log: CommitLog, size: int) -> int:
    """As the send path does it: past append(), so nothing is committed."""
    queue = log.queue_tail(b"T", 0)
    offset = log.tail.append(draft(size), queue.next_offset, 0)
    assert offset >= 0
    queue.next_offset += 1
    return offset


def test_nothing_staged_is_part_of_the_log_before_the_commit(open_log: Open) -> None:
    log = open_log()
    append(log, 100)
    flushed = log.flush()
    staged = stage(log, 200)
    assert (log.end, log.tail.end) == (100, 300)
    assert log.read(staged, 200) is None and log.read(0, 101) is None
    assert log.record_at(staged) is None and log.store_ms_at(staged) is None
    assert log.flush() == flushed == 100
    log.commit()
    assert log.end == 300
    assert offsets(log) == [0, 100]
    assert log.record_at(staged) == log.read(staged, 200)


def test_append_commits_what_was_staged_before_it(open_log: Open) -> None:
    log = open_log()
    append(log, 100)
    stage(log, 200)
    assert append(log, 300).offset == 300
    stage(log, 100)
    log.append_batch(batch_of([100, 100]), log.queue_tail(b"T", 0), 0)
    assert log.end == 900
    assert offsets(log) == [0, 100, 300, 600, 700, 800]


def test_roll_with_staged_bytes_keeps_them_in_front_of_the_blank(open_log: Open) -> None:
    log = open_log()
    append(log, 100)
    staged = stage(log, 200)
    placed = append(log, SEGMENT - 100)
    assert (staged, placed.offset) == (100, SEGMENT)
    assert offsets(log) == [0, 100, SEGMENT]
    first = log.run.segments[0]
    assert first.wrote == first.size
    assert first.view[300:308] == (SEGMENT - 300).to_bytes(4, "big") + bytes.fromhex("cbd43194")


def test_truncation_and_close_commit_first(open_log: Open, tmp_path: Path) -> None:
    log = open_log()
    append(log, 100)
    staged = stage(log, 200)
    log.truncate(staged)
    assert (log.end, log.tail.end) == (100, 100)
    staged = stage(log, 300)
    log.close()
    log = open_log()
    assert offsets(log)[:2] == [0, staged]


def test_replicated_bytes_that_find_no_next_file_leave_none_staged(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    append(log, 100)

    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(StoreIsFull):
        log.append_raw(bytes(SEGMENT), 100)
    assert log.end == log.tail.end == SEGMENT


def test_commit_that_fails_is_final_for_the_log(
    open_log: Open, refuse_writes: Callable[[Segment], None]
) -> None:
    log = open_log()
    append(log, 100)
    refuse_writes(log.run.segments[0])
    queue = log.queue_tail(b"T", 0)
    for _ in range(2):
        with pytest.raises(FlushFailed, match="cannot write the log at 100"):
            log.append(draft(100), queue, 0)
        with pytest.raises(FlushFailed):
            log.commit()
        with pytest.raises(FlushFailed):
            log.flush()
    assert "cannot write the log at 100" in log.failure
    assert (log.end, offsets(log)) == (100, [0])
    assert not log.staged, "nobody may wait for a commit that never comes"


def test_segment_made_in_advance_needs_nothing_more_to_be_gone_on_in(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    append(log, 100)
    log.make_next_segment()

    def refuse(*arguments: Any) -> int:
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(os, "open", refuse)
    log.roll()
    assert log.end == SEGMENT


def test_next_segment_that_cannot_be_opened_leaves_no_file(
    open_log: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    append(log, 100)
    real = os.open

    def refuse(path: Any, flags: int, *mode: int) -> int:
        if flags == os.O_WRONLY:
            raise OSError(errno.EMFILE, "too many")
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SegmentUnavailable, match="too many"):
        log.roll()
    assert (log.end, files(tmp_path)) == (100, [0])


# --- replicated bytes ---


@pytest.mark.parametrize("size", [777, SEGMENT - 1, SEGMENT, SEGMENT + 1, 5000, 3 * SEGMENT])
def test_replicated_bytes_make_the_same_files(open_log: Open, tmp_path: Path, size: int) -> None:
    log = open_log()
    for record_bytes in (1000, 3000, 500, 3700, 100):
        append(log, record_bytes)
    stream = b"".join(bytes(segment.read(0, segment.wrote)) for segment in log.run.segments)
    copy = open_log(StorageConfig(root=str(tmp_path / "slave"), segment_bytes=SEGMENT))
    for at in range(0, len(stream), size):
        assert copy.append_raw(stream[at : at + size], at) == min(at + size, len(stream))
    assert files(tmp_path / "slave") == files(tmp_path)
    assert offsets(copy) == offsets(log)
    for one, other in zip(log.run.segments, copy.run.segments, strict=True):
        assert one.view == other.view


def test_replicated_bytes_must_continue_the_log(open_log: Open) -> None:
    log = open_log()
    append(log, 100)
    for offset in (0, 99, 101):
        with pytest.raises(ValueError, match="ends at 100"):
            log.append_raw(b"x", offset)


def test_empty_log_starts_where_replication_starts(open_log: Open, tmp_path: Path) -> None:
    log = open_log()
    record = encode(draft(200), 0, 5 * SEGMENT + 100, 9)
    assert log.append_raw(record, 5 * SEGMENT + 100) == 5 * SEGMENT + 300
    assert files(tmp_path) == [5 * SEGMENT]
    found = log.record_at(5 * SEGMENT + 100)
    assert found is not None and found == record


@pytest.mark.parametrize("empty", ["power cut", "cut to nothing"])
def test_log_whose_first_file_has_no_byte_starts_where_replication_starts(
    open_log: Open, tmp_path: Path, empty: str
) -> None:
    log = open_log()
    if empty == "power cut":  # the file is there, what was in it is not
        log.roll()
    else:
        append(log, 3000)
        append(log, 3000)
        log.make_next_segment()
        log.cut(0)
    assert (files(tmp_path), log.end) == ([0], 0)
    record = encode(draft(200), 0, 5 * SEGMENT + 100, 9)
    assert log.append_raw(b"", 5 * SEGMENT + 100) == 5 * SEGMENT + 100
    assert log.append_raw(record, 5 * SEGMENT + 100) == 5 * SEGMENT + 300
    assert files(tmp_path) == [5 * SEGMENT]
    assert log.flush() == 5 * SEGMENT + 300


# --- truncating ---


def test_truncated_log_forgets_what_was_behind(open_log: Open, tmp_path: Path) -> None:
    log = open_log()
    placed = [append(log, 1000) for _ in range(10)]
    log.make_next_segment()
    log.truncate(placed[1].offset)
    assert (log.end, log.flushed, files(tmp_path)) == (1000, 1000, [0])
    assert not any(log.run.segments[0].view[1000:])
    queue = log.queue_tail(b"T", 0)
    queue.next_offset = 1
    assert append(log, 1000) == placed[1]
    assert open_log().end == 2000, "no stale record came back to life"


def test_log_is_continued_where_it_was_left(open_log: Open) -> None:
    log = open_log()
    append(log, 1000, 5)
    log.close()
    log = open_log()
    assert (log.end, log.flushed) == (1000, 1000)
    assert append(log, 1000, 5).offset == 1000


def test_truncate_beyond_the_end_is_refused(open_log: Open) -> None:
    with pytest.raises(ValueError, match="ends at 0"):
        open_log().truncate(1)


def test_existing_sparse_last_file_is_allocated_before_it_is_written(
    open_log: Open, golden_config: Callable[[str], StorageConfig]
) -> None:
    config = golden_config("533-clean")
    path = config.commitlog_path / segment_name(0)
    assert path.stat().st_blocks * 512 < config.segment_bytes
    open_log(config)
    assert path.stat().st_blocks * 512 >= config.segment_bytes


# --- stores that RocketMQ wrote ---


def test_golden_log_opens_and_goes_on(
    golden_name: str,
    golden_config: Callable[[str], StorageConfig],
    golden_lines: Callable[..., list[dict[str, Any]]],
    open_log: Open,
) -> None:
    described = golden_lines(golden_name, "store")[0]["commitlog"]
    records = [line["phy"] for line in golden_lines(golden_name, "record")]
    log = open_log(golden_config(golden_name))
    assert (log.start, log.end, log.flushed) == (0, described["end"], described["end"])
    assert offsets(log) == records
    placed = append(log, 300, 1)
    assert placed.offset >= described["end"]
    assert log.store_ms_at(placed.offset) == 1
    assert offsets(log) == [*records, placed.offset]


def test_golden_rolls_are_rolled_alike(
    tmp_path: Path,
    golden_config: Callable[[str], StorageConfig],
    golden_lines: Callable[..., list[dict[str, Any]]],
    open_log: Open,
) -> None:
    """The same messages make the same files, blanks of 8 and 9 bytes included."""
    for name in ("533-roll", "497-roll"):
        config = golden_config(name)
        theirs = open_log(config)
        fresh = StorageConfig(
            root=str(tmp_path / "ours" / name), segment_bytes=config.segment_bytes
        )
        ours = open_log(fresh)
        batches = golden_batches(golden_lines(name, "record"), golden_lines(name, "client"))
        for group in batches:
            records = [decode(record_bytes(theirs, offset)) for offset in group]
            first = records[0]
            queue = ours.queue_tail(first.topic.encode(), first.queue_id)
            assert queue.next_offset == first.queue_offset
            shared = Draft(
                first.topic, first.queue_id, first.body, b"", 0, first.sys_flag, first.born_ms,
                first.born_host, first.store_host, first.reconsume_times, first.prepared_offset,
            )  # fmt: skip
            if len(records) == 1:
                shared.properties, shared.flag = first.properties, first.flag
                assert ours.append(shared, queue, first.store_ms).offset == group[0]
            else:
                items = [
                    BatchItem(record.flag, memoryview(record.body), record.properties)
                    for record in records
                ]
                assert (
                    ours.append_batch(
                        replace(shared, body=join_batch(items)), queue, first.store_ms
                    ).offsets
                    == group
                )
        assert ours.end == theirs.end
        for one, other in zip(ours.run.segments, theirs.run.segments, strict=True):
            assert bytes(one.view) == bytes(other.view), one.start


def record_bytes(log: CommitLog, offset: int) -> memoryview:
    record = log.record_at(offset)
    assert record is not None
    return record


def golden_batches(records: list[dict[str, Any]], clients: list[dict[str, Any]]) -> list[list[int]]:
    """Offsets of records that were sent together, in log order."""
    batches = {
        ids[0]: len(ids)
        for line in clients
        if len(ids := (line.get("offsetMsgId") or "").split(",")) > 1
    }
    starts = {int(first[-16:], 16): count for first, count in batches.items()}
    groups: list[list[int]] = []
    open_count = 0
    for line in records:
        if open_count:
            groups[-1].append(line["phy"])
            open_count -= 1
        else:
            groups.append([line["phy"]])
            open_count = starts.get(line["phy"], 1) - 1
    return groups


# --- against a model ---


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(95, 2500), min_size=1, max_size=4), max_size=30), st.data())
def test_log_is_a_list_of_records(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[int]], data: st.DataObject
) -> None:
    config = StorageConfig(root=str(tmp_path_factory.mktemp("log")), segment_bytes=SEGMENT)
    log = CommitLog(config)
    log.load()
    log.truncate(0)
    queue = log.queue_tail(b"T", 0)
    model: list[tuple[int, int]] = []  # (offset, size)
    for sizes in groups:
        end = log.end
        if sum(sizes) + BLANK_BYTES > SEGMENT:
            with pytest.raises(MessageTooLarge):
                log.append_batch(batch_of(sizes), queue, 0)
            assert log.end == end
        elif len(sizes) == 1:
            placed = log.append(draft(sizes[0]), queue, 0)
            model.append((placed.offset, placed.size))
        else:
            placed_batch = log.append_batch(batch_of(sizes), queue, 0)
            model += zip(placed_batch.offsets, sizes, strict=True)
        if data.draw(st.booleans(), label="make next"):
            log.make_next_segment()
    assert offsets(log) == [offset for offset, _ in model]
    assert queue.next_offset == len(model)
    cut = data.draw(st.integers(0, len(model)), label="records kept")
    end = model[cut - 1][0] + model[cut - 1][1] if cut else 0
    log.flush()
    log.close()
    log = CommitLog(config)
    log.load()
    log.truncate(end)
    assert offsets(log) == [offset for offset, _ in model[:cut]]
    assert (log.end, log.flushed) == (end, end)
    log.close()


def test_batch_body_of_a_client_goes_through_unchanged(open_log: Open) -> None:
    body = (
        b"".join(number.to_bytes(4, "big") for number in (22 + 3 + 4, 0, 0, 5, 3))
        + b"abc\0\x04k\x01v\x02"
    )
    log = open_log()
    envelope = Draft("T", 0, body * 2, b"W\x01t\x02")
    placed = log.append_batch(envelope, log.queue_tail(b"T", 0), 1)
    for offset in placed.offsets:
        record = decode(record_bytes(log, offset))
        assert (record.flag, record.body, record.properties) == (5, b"abc", b"k\x01v\x02W\x01t\x02")
