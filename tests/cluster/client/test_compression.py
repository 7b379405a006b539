"""Bodies come back as they were, whichever client compressed them; damage and bombs are refused."""

from __future__ import annotations

import sys
import zlib

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.cluster.client.compression import (
    COMPRESSED,
    TYPE_LZ4,
    TYPE_ZLIB,
    TYPE_ZSTD,
    Compression,
    compress,
    decompress,
)
from tandemmq.cluster.client.errors import BrokerAnswerBroken

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = b"a message that repeats itself, " * 300


@given(st.binary(max_size=5_000))
def test_whatever_is_compressed_comes_back(body: bytes) -> None:
    packed, flags = compress(body)
    assert decompress(packed, flags) == body
    assert len(packed) <= len(body)


def test_body_that_does_not_shrink_travels_as_it_is() -> None:
    assert compress(b"xyz") == (b"xyz", 0)


def test_compressed_body_says_zlib_in_its_flags() -> None:
    packed, flags = compress(TEXT)
    assert flags == COMPRESSED | TYPE_ZLIB
    assert zlib.decompress(packed) == TEXT


def java_zstd(body: bytes) -> bytes:
    """A frame without its content size, as Java's stream writer makes it."""
    unsized = {zstd.CompressionParameter.content_size_flag: 0}
    return zstd.ZstdCompressor(options=unsized).compress(body, zstd.ZstdCompressor.FLUSH_FRAME)


@pytest.mark.parametrize(
    ("packed", "flags"),
    [
        (zlib.compress(TEXT), COMPRESSED),
        (zlib.compress(TEXT), COMPRESSED | TYPE_ZLIB),
        (lz4.frame.compress(TEXT), COMPRESSED | TYPE_LZ4),
        (zstd.compress(TEXT), COMPRESSED | TYPE_ZSTD),
        (java_zstd(TEXT), COMPRESSED | TYPE_ZSTD),
        (TEXT, 0),
        (TEXT, TYPE_ZLIB),
    ],
)
def test_every_kind_of_compression_is_read(packed: bytes, flags: int) -> None:
    assert decompress(packed, flags) == TEXT


@pytest.mark.parametrize(
    ("packed", "flags"),
    [
        (zlib.compress(TEXT)[:-5], COMPRESSED | TYPE_ZLIB),
        (lz4.frame.compress(TEXT)[:-9], COMPRESSED | TYPE_LZ4),
        (zstd.compress(TEXT)[:-3], COMPRESSED | TYPE_ZSTD),
        (java_zstd(TEXT)[:-3], COMPRESSED | TYPE_ZSTD),
        (b"no compressed data", COMPRESSED),
        (b"no compressed data", COMPRESSED | TYPE_LZ4),
        (b"no compressed data", COMPRESSED | TYPE_ZSTD),
        (TEXT, COMPRESSED | 0x400),
    ],
)
def test_damaged_body_is_an_error_and_not_half_a_message(packed: bytes, flags: int) -> None:
    with pytest.raises(BrokerAnswerBroken):
        decompress(packed, flags)


@pytest.mark.parametrize(
    ("packed", "flags"),
    [
        (zlib.compress(bytes(10_000)), COMPRESSED),
        (lz4.frame.compress(bytes(10_000)), COMPRESSED | TYPE_LZ4),
        (zstd.compress(bytes(10_000)), COMPRESSED | TYPE_ZSTD),
        (java_zstd(bytes(10_000)), COMPRESSED | TYPE_ZSTD),
    ],
)
def test_body_above_the_limit_is_refused(packed: bytes, flags: int) -> None:
    assert decompress(packed, flags, 10_000) == bytes(10_000)
    with pytest.raises(BrokerAnswerBroken, match="larger than 9999"):
        decompress(packed, flags, 9_999)


@pytest.mark.parametrize("kind", list(Compression))
@pytest.mark.parametrize("level", [1, 5, 9])
def test_every_kind_comes_back_as_it_went(kind: Compression, level: int) -> None:
    body = b"some text that repeats " * 500
    packed, flags = compress(body, level, kind)
    assert len(packed) < len(body)
    assert flags == COMPRESSED | kind.value
    assert decompress(packed, flags) == body
    assert compress(b"\x93\x01", level, kind) == (b"\x93\x01", 0)
