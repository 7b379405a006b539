"""storage/pagecache.py: what the kernel says of a file's pages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandemmq.storage import PageCache


def test_a_written_file_is_in_memory_and_an_empty_range_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    cache = PageCache()
    found = cache.resident(path, 4097, 100_000)
    if not cache.tells:
        pytest.skip("this kernel does not tell")
    assert found == 1.0
    assert cache.resident(path, 0, 0) is None
    assert cache.resident(tmp_path / "gone", 0, 4096) is None


def test_both_ways_of_asking_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 << 20))
    ways = []
    for number in (0, 1):
        cache = PageCache()
        cache._ways = cache._ways[number:][:1]
        found = cache.resident(path, 1 << 20, 2 << 20)
        if cache.tells:
            ways.append(found)
    assert set(ways) <= {1.0}


def test_a_refused_way_is_given_up_and_the_next_one_tried(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    cache = PageCache()

    def _by_nothing(descriptor: int, first: int, length: int) -> int:
        raise OSError(38, "Function not implemented")

    cache._ways = [_by_nothing, lambda descriptor, first, length: 1]
    assert cache.resident(path, 0, 8192) == 0.5
    assert len(cache._ways) == 1
    cache._ways = [_by_nothing]
    assert cache.resident(path, 0, 8192) is None
    assert not cache.tells


def test_pages_that_the_kernel_was_told_to_drop_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(bytes(8 << 20))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 4 << 20, os.POSIX_FADV_DONTNEED)
    cache = PageCache()
    if cache.resident(path, 0, 4 << 20) != 0:
        pytest.skip("this file system keeps what it is told to drop, or the kernel does not tell")
    assert cache.resident(path, 4 << 20, 4 << 20) == 1
    assert cache.resident(path, 0, 8 << 20) == 0.5
