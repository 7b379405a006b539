"""Frames read ahead on a thread, and checksums put together out of pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.replication.joinedcrc import joined_crc
from tandemmq.replication.readahead import Ahead, Ready, read_ahead


@given(st.binary(max_size=60), st.binary(max_size=3000))
def test_a_joined_checksum_is_that_of_both_pieces(first: bytes, second: bytes) -> None:
    joined = joined_crc(crc32c(first), crc32c(second), len(second))
    assert joined == crc32c(first + second)


@pytest.mark.parametrize("size", [1 << 18, (1 << 18) - 13, 1 << 20])
def test_large_pieces_join_too(size: int) -> None:
    first, second = b"head", bytes(range(256)) * (size // 256 + 1)
    second = second[:size]
    assert joined_crc(crc32c(first), crc32c(second), size) == crc32c(first + second)


def test_frames_of_several_files_are_read_in_one_go(tmp_path: Path) -> None:
    data = bytes(range(251)) * 4000
    for number in range(2):
        (tmp_path / str(number)).write_bytes(data)
    frames = [
        Ahead(tmp_path / "0", 700_000, 700_000, 1_004_000),
        Ahead(tmp_path / "1", 0, 1_004_000, 1_004_010),
        Ahead(tmp_path / "1", 10, 1_004_010, 1_504_010),
    ]
    plain = [Ready(each.start, each.stop, 0) for each in frames]
    assert read_ahead(frames, checked=False) == plain
    assert read_ahead(frames, checked=True) == [
        Ready(700_000, 1_004_000, crc32c(data[700_000:])),
        Ready(1_004_000, 1_004_010, crc32c(data[:10])),
        Ready(1_004_010, 1_504_010, crc32c(data[10:500_010])),
    ]


@pytest.mark.parametrize("checked", [True, False])
def test_a_file_that_is_gone_or_short_is_an_error(tmp_path: Path, checked: bool) -> None:
    (tmp_path / "short").write_bytes(b"x" * 100)
    with pytest.raises(OSError, match="ends at 100"):
        read_ahead([Ahead(tmp_path / "short", 0, 0, 101)], checked)
    with pytest.raises(FileNotFoundError):
        read_ahead([Ahead(tmp_path / "gone", 0, 0, 1)], checked)
