"""A run of segments: names, gaps, truncation and what counts as flushed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemmq.storage.errors import FlushFailed, NotAStore
from tandemmq.storage.segments import SegmentRun, segment_name

SIZE = 4096
Opened = Callable[[], SegmentRun]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "commitlog"


@pytest.fixture
def open_run(directory: Path) -> Iterator[Opened]:
    runs: list[SegmentRun] = []

    def make() -> SegmentRun:
        run = SegmentRun(directory, SIZE)
        run.load()
        runs.append(run)
        return run

    yield make
    for run in runs:
        run.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def filled(run: SegmentRun, count: int) -> SegmentRun:
    for index in range(count):
        segment = run.add(index * SIZE)
        segment.view[:] = bytes([index + 1]) * SIZE
        segment.wrote = SIZE
    return run


def test_names_are_start_offsets_of_twenty_digits() -> None:
    assert segment_name(0) == "0" * 20
    assert segment_name(1 << 30) == "00000000001073741824"


def test_empty_run_has_no_offsets(open_run: Opened, directory: Path) -> None:
    run = open_run()
    assert (run.start, run.end, run.flushed, run.find(0)) == (0, 0, 0, None)
    assert not directory.exists(), "nothing is made before it is needed"


def test_first_file_covers_the_offset_it_is_made_for(open_run: Opened, directory: Path) -> None:
    run = open_run()
    assert run.add(3 * SIZE + 17).start == 3 * SIZE
    assert names(directory) == [segment_name(3 * SIZE)]
    assert (run.start, run.end) == (3 * SIZE, 3 * SIZE)


def test_find_returns_the_file_that_covers_an_offset(open_run: Opened) -> None:
    run = open_run()
    for start in (2, 3, 4):
        run.add(start * SIZE)
    for offset, start in ((2 * SIZE, 2), (3 * SIZE - 1, 2), (3 * SIZE, 3), (5 * SIZE - 1, 4)):
        segment = run.find(offset)
        assert segment is not None and segment.start == start * SIZE
    assert run.find(2 * SIZE - 1) is None
    assert run.find(5 * SIZE) is None
    assert run.find(-1) is None


def test_loaded_files_are_written_to_their_end(open_run: Opened) -> None:
    filled(open_run(), 3)
    run = open_run()
    assert [segment.start for segment in run.segments] == [0, SIZE, 2 * SIZE]
    assert (run.end, run.flushed) == (3 * SIZE, 0)
    assert run.flush() == 3 * SIZE


@pytest.mark.parametrize(
    "name", ["stray", "0", "0000000000000001228x", segment_name(SIZE) + ".tmp"]
)
def test_file_that_does_not_belong_is_refused_by_name(
    open_run: Opened, directory: Path, name: str
) -> None:
    filled(open_run(), 1)
    (directory / name).write_bytes(bytes(SIZE))
    with pytest.raises(NotAStore, match=name):
        open_run()


def test_directory_among_the_files_is_skipped(open_run: Opened, directory: Path) -> None:
    filled(open_run(), 1)
    (directory / "lost+found").mkdir()
    assert len(open_run().segments) == 1


@pytest.mark.parametrize("size", [1, SIZE - 1, SIZE + 1])
def test_file_of_another_length_is_refused(open_run: Opened, directory: Path, size: int) -> None:
    filled(open_run(), 1)
    (directory / segment_name(SIZE)).write_bytes(bytes(size))
    with pytest.raises(NotAStore, match=segment_name(SIZE)):
        open_run()


def test_empty_last_file_is_deleted_but_an_empty_one_before_it_is_refused(
    open_run: Opened, directory: Path
) -> None:
    filled(open_run(), 1)
    (directory / segment_name(SIZE)).touch()
    assert len(open_run().segments) == 1
    assert names(directory) == [segment_name(0)]
    (directory / segment_name(0)).write_bytes(b"")
    (directory / segment_name(SIZE)).write_bytes(bytes(SIZE))
    with pytest.raises(NotAStore, match=segment_name(0)):
        open_run()


def test_read_only_run_changes_no_file(open_run: Opened, directory: Path) -> None:
    filled(open_run(), 1)
    (directory / segment_name(SIZE)).touch()
    run = SegmentRun(directory, SIZE, read_only=True)
    run.load()
    assert len(run.segments) == 1 and run.segments[0].view.readonly
    run.close()
    assert names(directory) == [segment_name(0), segment_name(SIZE)]


def test_missing_file_in_the_middle_is_named(open_run: Opened, directory: Path) -> None:
    filled(open_run(), 3)
    (directory / segment_name(SIZE)).unlink()
    with pytest.raises(NotAStore, match=f"lacks {segment_name(SIZE)}"):
        open_run()


def test_truncate_zeroes_the_rest_and_deletes_later_files(
    open_run: Opened, directory: Path
) -> None:
    # INV-9
    run = filled(open_run(), 4)
    run.flush()
    run.truncate(SIZE + 100)
    assert names(directory) == [segment_name(0), segment_name(SIZE)]
    assert (run.end, run.flushed) == (SIZE + 100, SIZE + 100)
    assert bytes(run.segments[1].view) == b"\x02" * 100 + bytes(SIZE - 100)
    assert bytes(run.segments[0].view) == b"\x01" * SIZE


@pytest.mark.parametrize(
    ("offset", "files", "end"),
    [(0, 1, 0), (SIZE, 2, SIZE), (SIZE - 1, 1, SIZE - 1), (3 * SIZE, 3, 3 * SIZE)],
)
def test_truncate_at_a_boundary_keeps_the_file_that_starts_there_empty(
    open_run: Opened, offset: int, files: int, end: int
) -> None:
    run = filled(open_run(), 3)
    run.truncate(offset)
    assert (len(run.segments), run.end) == (files, end)


def test_truncate_below_the_start_leaves_nothing(open_run: Opened, directory: Path) -> None:
    run = open_run()
    run.add(2 * SIZE)
    run.truncate(SIZE)
    assert (run.segments, names(directory)) == ([], [])


def test_truncate_under_a_reader_leaves_him_his_bytes(open_run: Opened) -> None:
    run = filled(open_run(), 2)
    with run.segments[1].read(0, 4) as view:
        run.truncate(SIZE - 1)
        assert view == b"\x02" * 4


def test_oldest_files_can_be_taken_out_but_never_the_last(open_run: Opened) -> None:
    run = filled(open_run(), 4)
    assert [segment.start for segment in run.drop_before(2 * SIZE)] == [0, SIZE]
    assert (run.start, run.end) == (2 * SIZE, 4 * SIZE)
    (last,) = run.drop_before(100 * SIZE)
    assert last.start == 2 * SIZE
    with pytest.raises(AssertionError, match="last"):
        run.drop_first()


def test_flush_stops_at_its_target_and_goes_oldest_first(open_run: Opened) -> None:
    run = filled(open_run(), 3)
    assert run.flush(SIZE) == SIZE
    assert [segment.flushed for segment in run.segments] == [SIZE, 0, 0]
    assert run.flush(SIZE + 1) == 2 * SIZE
    assert run.flush() == 3 * SIZE


def test_failed_flush_stops_before_later_files(
    open_run: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = filled(open_run(), 2)

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(FlushFailed):
        run.flush()
    monkeypatch.undo()
    with pytest.raises(FlushFailed):
        run.flush()
    assert run.flushed == 0


def test_destroy_leaves_no_file_and_no_directory(open_run: Opened, directory: Path) -> None:
    run = filled(open_run(), 2)
    run.destroy()
    assert not directory.exists() and run.end == 0
