"""One mapped file: made whole, flushed truthfully, never unmapped under a reader."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemmq.storage.codec import LogTail
from tandemmq.storage.errors import FlushFailed, NotAStore, SegmentUnavailable, StoreIsFull
from tandemmq.storage.segment import Segment

SIZE = 1 << 16


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    made = Segment.create(tmp_path / "dir" / "file", 4 * SIZE, SIZE, True, True)
    yield made
    made.close()


def allocated_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_created_file_is_zero_and_has_its_length_and_its_blocks(segment: Segment) -> None:
    assert segment.path.stat().st_size == SIZE
    assert allocated_bytes(segment.path) >= SIZE
    assert not any(segment.view)
    assert (segment.start, segment.end, segment.wrote, segment.flushed) == (
        4 * SIZE,
        5 * SIZE,
        0,
        0,
    )


def test_file_that_need_not_be_allocated_is_sparse(tmp_path: Path) -> None:
    made = Segment.create(tmp_path / "file", 0, SIZE, False, True)
    assert allocated_bytes(made.path) == 0
    made.allocate()
    assert allocated_bytes(made.path) >= SIZE
    made.close()


def test_existing_file_is_never_overwritten(segment: Segment) -> None:
    segment.view[0:5] = b"bytes"
    with pytest.raises(SegmentUnavailable, match="exists"):
        Segment.create(segment.path, 0, SIZE, True, True)
    assert segment.path.read_bytes()[:5] == b"bytes"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_file_that_cannot_be_allocated_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    expected = SegmentUnavailable if code == errno.EIO else StoreIsFull
    with pytest.raises(expected):
        Segment.create(tmp_path / "file", 0, SIZE, True, True)
    assert list(tmp_path.iterdir()) == []


def test_mapping_keeps_no_file_descriptor_of_ours(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    made = Segment.create(tmp_path / "file", 0, SIZE, True, True)
    made.view[0] = 1
    made.flush()
    assert len(os.listdir("/proc/self/fd")) <= before + 1, "the mmap module duplicates one"
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_opened_file_counts_as_written_but_not_as_flushed(segment: Segment) -> None:
    opened = Segment.open(segment.path, 0, SIZE)
    assert (opened.wrote, opened.flushed) == (SIZE, 0)
    opened.close()


def test_file_of_another_length_is_not_ours(segment: Segment) -> None:
    with pytest.raises(NotAStore, match=f"{SIZE} bytes"):
        Segment.open(segment.path, 0, SIZE * 2)


def test_read_only_mapping_cannot_be_written(segment: Segment) -> None:
    opened = Segment.open(segment.path, 0, SIZE, read_only=True)
    with pytest.raises(TypeError):
        opened.view[0] = 1
    opened.close()


def test_read_and_pread_return_written_bytes_only(segment: Segment) -> None:
    segment.view[10:15] = b"hello"
    segment.wrote = 15
    with segment.read(10, 5) as view:
        assert bytes(view) == b"hello"
    assert segment.pread(10, 5) == b"hello"
    for position, size in ((11, 5), (-1, 2), (0, -1)):
        with pytest.raises(ValueError, match="15 written"):
            segment.read(position, size)


def test_attached_tail_alone_knows_what_is_written(segment: Segment) -> None:
    tail = LogTail()
    segment.wrote = 7
    segment.attach(tail)
    assert tail.append_raw(b"abc") == segment.start + 7
    assert segment.wrote == 7, "what is staged is not written"
    tail.commit()
    assert segment.wrote == tail.position == 10
    assert segment.view[7:10] == b"abc"
    with pytest.raises(AssertionError):
        segment.wrote = 3
    tail.append_raw(b"de")
    segment.detach()
    segment.detach()
    assert segment.wrote == 12
    assert segment.view[7:12] == b"abcde"
    assert tail.append_raw(b"abc") == -1


def open_descriptors(path: Path) -> int:
    """How many of this process's descriptors are this file, its mapping's own included."""
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return sum(link.exists() and link.samefile(path) for link in links)


def test_descriptor_is_open_exactly_while_somebody_appends(segment: Segment) -> None:
    mapped = open_descriptors(segment.path)
    segment.attach(LogTail())
    assert open_descriptors(segment.path) == mapped + 1
    segment.detach()
    assert open_descriptors(segment.path) == mapped
    segment.open_for_appends()
    segment.open_for_appends()
    assert open_descriptors(segment.path) == mapped + 1
    segment.close()
    assert open_descriptors(segment.path) == 0


def test_segment_that_cannot_be_opened_for_appends_is_unavailable(segment: Segment) -> None:
    segment.unlink()
    with pytest.raises(SegmentUnavailable, match="No such file"):
        segment.attach(LogTail())


def test_tail_that_cannot_commit_comes_off_all_the_same(
    segment: Segment, refuse_writes: Callable[[Segment], None]
) -> None:
    tail = LogTail()
    segment.attach(tail)
    tail.append_raw(b"abc")
    refuse_writes(segment)
    with pytest.raises(FlushFailed):
        segment.detach()
    assert segment.wrote == 0
    segment.detach()


def test_segment_left_by_its_tail_does_not_take_the_next_ones_position(
    segment: Segment, tmp_path: Path
) -> None:
    following = Segment.create(tmp_path / "next", segment.end, SIZE, True, True)
    tail = LogTail()
    segment.attach(tail)
    tail.append_raw(b"abc")
    tail.commit()
    segment._wrote = 3
    following.attach(tail)  # what a thread may see in the middle of a roll
    assert (segment.wrote, following.wrote) == (3, 0)
    segment._tail = None
    following.close()


# --- flush ---


def test_flush_covers_what_was_written_when_it_began(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = LogTail()
    segment.attach(tail)
    tail.append_raw(b"before")
    tail.commit()
    real = os.fdatasync

    def write_meanwhile(fd: int) -> None:
        tail.append_raw(b"meanwhile")
        tail.commit()
        real(fd)

    monkeypatch.setattr(os, "fdatasync", write_meanwhile)
    assert segment.flush() == segment.flushed == 6
    assert segment.wrote == 15


def test_flush_without_news_does_not_touch_the_disk(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment.wrote = 5
    segment.flush()
    monkeypatch.setattr(os, "fdatasync", lambda fd: pytest.fail("nothing to flush"))
    assert segment.flush() == 5


def test_failed_flush_is_final(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    segment.wrote = 5
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(FlushFailed, match="Input/output"):
        segment.flush()
    monkeypatch.undo()
    with pytest.raises(FlushFailed, match="Input/output"):
        segment.flush()
    assert segment.flushed == 0


def test_flush_without_a_descriptor_tried_nothing_and_may_be_tried_again(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(path: object, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    segment.wrote = 5
    monkeypatch.setattr(os, "open", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        segment.flush()
    assert segment.flushed == 0
    monkeypatch.undo()
    assert segment.flush() == 5


def test_flush_of_a_file_deleted_on_purpose_is_no_failure(segment: Segment) -> None:
    segment.wrote = 5
    segment.unlink()
    segment.retire(0)
    assert segment.flush() == 0


def test_flush_of_a_file_that_vanished_is_a_failure(segment: Segment) -> None:
    segment.wrote = 5
    segment.unlink()
    with pytest.raises(FlushFailed):
        segment.flush()


# --- zero ---


@pytest.mark.parametrize(
    ("start", "end"), [(0, SIZE), (1, SIZE), (5000, 5001), (4096, 8192), (9, 9)]
)
def test_zero_clears_its_range_and_nothing_else(segment: Segment, start: int, end: int) -> None:
    segment.view[:] = b"x" * SIZE
    segment.zero(start, end)
    assert bytes(segment.view) == b"x" * start + bytes(end - start) + b"x" * (SIZE - end)


def test_zero_clears_bytes_that_are_flushed_and_bytes_that_are_not(segment: Segment) -> None:
    segment.view[100:200] = b"a" * 100
    segment.wrote = 200
    segment.flush()
    segment.view[50_000:50_100] = b"b" * 100
    segment.zero(150, SIZE)
    assert bytes(segment.view) == bytes(100) + b"a" * 50 + bytes(SIZE - 150)


def test_zero_does_not_fill_the_holes_of_a_sparse_file(tmp_path: Path) -> None:
    made = Segment.create(tmp_path / "file", 0, 1 << 30, False, True)
    made.view[1 << 29] = 1
    made.flush()
    made.zero(0, 1 << 30)
    assert made.view[1 << 29] == 0
    assert allocated_bytes(made.path) <= 2 << 20
    made.close()


# --- life ---


def test_retired_segment_takes_no_new_readers_and_goes_with_the_last(segment: Segment) -> None:
    assert segment.hold()
    segment.retire(1000)
    segment.retire(9000)
    assert not segment.hold()
    assert not segment.free(1001, 120_000)
    segment.release()
    assert segment.free(1002, 120_000)
    assert segment.free(1003, 120_000), "freeing twice is harmless"


def test_overdue_reference_does_not_keep_a_segment_but_an_exported_slice_does(
    segment: Segment, caplog: pytest.LogCaptureFixture
) -> None:
    segment.view[0:5] = b"bytes"
    segment.wrote = 5
    assert segment.hold()
    slice_ = segment.read(0, 5)
    segment.retire(1000)
    segment.unlink()
    assert not segment.free(120_999, 120_000)
    assert caplog.records == []
    assert not segment.free(121_000, 120_000)
    assert not segment.free(131_000, 120_000)
    assert [record.message.split(" path=")[0] for record in caplog.records] == [
        "segment still in use"
    ]
    assert bytes(slice_) == b"bytes", "the reader still has its bytes"
    slice_.release()
    assert segment.free(141_000, 120_000), "the reference was forced away"
    assert not segment.path.exists()


def test_free_is_only_for_retired_segments(segment: Segment) -> None:
    with pytest.raises(AssertionError, match="in use"):
        segment.free(0, 0)
