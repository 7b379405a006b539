"""Index files: RocketMQ's bytes, found again by key and time, and what happens at their edges."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from newinputs import new_inputs

from tandemmq.storage import FlushFailed, StorageConfig
from tandemmq.storage.keyindex import IndexFile, IndexUnavailable, KeyIndex

SLOTS, ENTRIES = 10, 8
T0 = 1_700_000_000_000


class Clock:
    ms = T0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


def config(root: Path, slots: int = SLOTS, entries: int = ENTRIES) -> StorageConfig:
    return StorageConfig(root=str(root), index_slots=slots, index_entries=entries)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def index(tmp_path: Path, clock: Clock) -> Iterator[KeyIndex]:
    index = KeyIndex(config(tmp_path), clock)
    yield index
    index.close()


def found(index: KeyIndex, key: str, begin_ms: int = 0, end_ms: int = 1 << 62) -> list[int]:
    return index.query("T", key, 64, begin_ms, end_ms)[0]


def test_entries_and_header_have_rocketmqs_bytes(tmp_path: Path, clock: Clock) -> None:
    index = KeyIndex(config(tmp_path, 5_000_000, 100), clock)
    index.put(b"TopicTest", b"0A000001000000000000000000000001", b"k1", 0, T0)
    index.put(b"TopicTest", None, b"k1", 696, T0 + 3999)
    index.close()
    (path,) = (tmp_path / "index").iterdir()
    data = path.read_bytes()
    assert len(data) == 40 + 5_000_000 * 4 + 100 * 20
    assert struct.unpack_from(">qqqqii", data) == (T0, T0 + 3999, 0, 696, 2, 4)
    assert struct.unpack_from(">i", data, 7143892) == (1,)
    assert struct.unpack_from(">i", data, 10984136) == (3,)
    entries = 40 + 5_000_000 * 4
    assert struct.unpack_from(">iqii", data, entries + 20) == (426785963, 0, 0, 0)
    assert struct.unpack_from(">iqii", data, entries + 40) == (2746024, 0, 0, 0)
    assert struct.unpack_from(">iqii", data, entries + 60) == (2746024, 696, 3, 2)


def test_every_key_of_a_message_is_found_newest_first(index: KeyIndex) -> None:
    index.put(b"T", b"id1", b"a  b", 0, T0)
    index.put(b"T", None, b" b c ", 100, T0 + 2000)
    assert found(index, "id1") == [0]
    assert found(index, "b") == [100, 0]
    assert found(index, "c") == [100]
    assert found(index, "nothing") == []
    assert index.query("U", "b", 64, 0, 1 << 62)[0] == []
    assert index.query("T", "b", 1, 0, 1 << 62) == ([100], T0 + 2000, 100)


def test_time_range_is_whole_seconds_rounded_down(index: KeyIndex) -> None:
    for number in range(4):
        index.put(b"T", None, b"k", number * 100, T0 + number * 1500)
    assert found(index, "k", T0 + 1000, T0 + 3000) == [200, 100]  # stored at 1500 and 3000
    assert found(index, "k", T0 + 1001, T0 + 4499) == [300, 200]
    assert found(index, "k", T0 + 4500) == []  # its second began earlier: RocketMQ misses it too
    assert found(index, "k", 0, T0 - 1) == []


def test_full_file_is_followed_by_one_that_repeats_its_end(index: KeyIndex, clock: Clock) -> None:
    for number in range(20):
        index.put(b"T", None, b"k%d" % number, number * 100, T0 + number)
    headers = [header for _, header in index.headers]
    assert [header.next_entry for header in headers] == [8, 8, 7]
    assert headers[1].begin_physical == 700
    assert [found(index, f"k{number}") for number in range(20)] == [[n * 100] for n in range(20)]
    names = [name for name, _ in index.headers]
    assert names[0] == time.strftime("%Y%m%d%H%M%S", time.localtime(T0 // 1000)) + "000"
    assert names == sorted(set(names)), "the clock stood still, names must not"


def test_names_go_on_when_the_clock_goes_back(index: KeyIndex, clock: Clock) -> None:
    for number in range(30):
        clock.ms -= 3_600_000
        index.put(b"T", None, b"k", number, T0)
    names = [name for name, _ in index.headers]
    assert len(names) == 5
    assert names == sorted(set(names))


def test_record_that_is_indexed_already_is_not_indexed_again(index: KeyIndex) -> None:
    index.put(b"T", None, b"k", 500, T0)
    index.put(b"T", None, b"k", 400, T0)
    assert found(index, "k") == [500]


def test_files_are_loaded_and_go_on(index: KeyIndex, clock: Clock, tmp_path: Path) -> None:
    for number in range(10):
        index.put(b"T", None, b"k", number * 100, T0 + number)
    index.close()
    (tmp_path / "index" / "notes.txt").write_text("not ours")
    again = KeyIndex(config(tmp_path), clock)
    again.load()
    again.put(b"T", None, b"k", 1000, T0 + 10)
    assert found(again, "k") == [number * 100 for number in range(10, -1, -1)]
    assert again.last_indexed == 1000
    again.close()


@pytest.mark.parametrize("damage", ["cut", "count", "times", "slots"])
def test_damaged_file_and_all_newer_ones_are_given_up(
    index: KeyIndex, clock: Clock, tmp_path: Path, damage: str
) -> None:
    for number in range(24):
        index.put(b"T", None, b"k%d" % number, number * 100, T0 + number)
    index.close()
    paths = sorted((tmp_path / "index").iterdir())
    assert len(paths) == 4
    data = bytearray(paths[1].read_bytes())
    if damage == "cut":
        del data[60:]
    elif damage == "count":
        struct.pack_into(">i", data, 36, 1000)
    elif damage == "times":
        struct.pack_into(">q", data, 8, 5)
    paths[1].write_bytes(data)
    again = KeyIndex(config(tmp_path, SLOTS + 1 if damage == "slots" else SLOTS), clock)
    again.load()
    assert [name for name, _ in again.headers] == ([] if damage == "slots" else [paths[0].name])
    assert again.last_indexed == (-1 if damage == "slots" else 600)
    again.close()


def test_entries_of_a_killed_writer_are_taken_back_even_in_one_chain(
    index: KeyIndex, clock: Clock, tmp_path: Path
) -> None:
    index.put(b"T", None, b"k", 0, T0)
    before = index.headers[0][1]
    (hashed,) = struct.unpack_from(">i", next(iter(index)).view, 40 + 4 * SLOTS + 20)
    index.end.put([hashed, hashed, hashed + 1], 100, T0)  # and no seal()
    index.close()
    again = KeyIndex(config(tmp_path), clock)
    again.load()
    assert again.headers[0][1] == before
    assert found(again, "k") == [0]
    again.put(b"T", None, b"k", 100, T0)
    assert found(again, "k") == [100, 0]
    again.close()


def test_loop_in_a_chain_ends_the_search(index: KeyIndex) -> None:
    for number in range(4):
        index.put(b"T", None, b"k", number * 100, T0)
    view = next(iter(index)).view
    struct.pack_into(">i", view, 40 + 4 * SLOTS + 20 * 2 + 16, 3)  # entry 2 names entry 3 as older
    assert found(index, "k") == [300, 200, 100]


def test_files_that_point_behind_the_log_are_given_up(index: KeyIndex) -> None:
    for number in range(20):
        index.put(b"T", None, b"k", number * 100, T0 + number)
    index.keep_until(1400)
    assert [header.end_physical for _, header in index.headers] == [600, 1300]
    index.keep_until(0)
    assert index.headers == []
    index.put(b"T", None, b"k", 0, T0)
    assert found(index, "k") == [0]


def test_files_not_known_to_be_on_disk_are_given_up(index: KeyIndex) -> None:
    for number in range(20):
        index.put(b"T", None, b"k", number * 100, T0 + number)
    index.drop_newer(T0 + 13)
    assert [header.end_ms for _, header in index.headers] == [T0 + 6, T0 + 13]


def test_files_of_deleted_records_go_but_never_the_newest(index: KeyIndex) -> None:
    for number in range(20):
        index.put(b"T", None, b"k", number * 100, T0 + number)
    assert index.drop_before(600) == []
    assert len(index.drop_before(601)) == 1
    assert len(index.drop_before(1 << 40)) == 1
    assert len(index.headers) == 1


def test_full_disk_is_told_before_a_page_is_touched(
    index: KeyIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(IndexUnavailable) as raised:
            index.put(b"T", None, b"k", 0, T0)
    assert raised.value.errno == errno.ENOSPC
    assert list((tmp_path / "index").iterdir()) == []
    index.put(b"T", None, b"k", 0, T0)
    assert found(index, "k") == [0]


def test_default_file_takes_slots_and_little_more_of_the_disk(tmp_path: Path) -> None:
    file = IndexFile.create(tmp_path / "20261121000000000", 5_000_000, 20_000_000, None)
    file.allocate(1)
    found = (tmp_path / "20261121000000000").stat()
    assert found.st_size == 420_000_040
    assert found.st_blocks * 512 < 30_000_000
    file.close()


def test_failed_flush_is_final(index: KeyIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    index.put(b"T", None, b"k", 0, T0 + 5)
    assert index.flush() == T0 + 5

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    assert index.flush() == T0 + 5  # nothing new
    index.put(b"T", None, b"k", 9, T0 + 6)
    with pytest.raises(FlushFailed):
        index.flush()


@pytest.mark.fuzz
def test_20_000_damaged_index_files_are_answered_from_or_given_up(clock: Clock) -> None:
    rng = new_inputs()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as root:
        index = KeyIndex(config(Path(root), entries=30), clock)
        for number in range(20):
            index.put(b"T", b"id%d" % number, None, number * 100, T0 + number * 300)
        index.close()
        (path,) = (Path(root) / "index").iterdir()
        good = path.read_bytes()
        given_up = 0
        for _ in range(20_000):
            data = bytearray(good)
            for _ in range(rng.randrange(1, 5)):
                at = rng.choice(
                    [rng.randrange(40), rng.randrange(40, 80), rng.randrange(len(data))]
                )
                data[at : at + 4] = rng.choice(
                    [bytes(4), b"\xff" * 4, rng.randbytes(4), b"\0\0\0\x05"]
                )
            path.write_bytes(data[: rng.choice([len(good), len(good), rng.randrange(len(good))])])
            index = KeyIndex(config(Path(root), entries=30), clock)
            index.load()
            given_up += not index.headers
            for key in ("id3", "id19", "none"):
                assert len(found(index, key)) <= 64
            index.put(b"T", b"new", None, 1 << 60, T0)
            assert found(index, "new") in ([1 << 60], [])
            index.close()
            for left in (Path(root) / "index").iterdir():
                left.unlink()
        assert 1000 < given_up < 19_000
