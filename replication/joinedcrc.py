"""CRC-32C, and that of two pieces in a row out of the checksum of each, as zlib's crc32_combine() does for CRC-32."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78  # CRC-32C, reflected


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """CRC-32C of a piece, going on from that of what is before it."""
    return _compiled()(data, crc)


@cache
def _compiled() -> Callable[[bytes | bytearray | memoryview, int], int]:
    # Imported when wanted: the package reads its own metadata first, and most brokers send no such frame.
    from crc32c import crc32c

    return crc32c


def joined_crc(first: int, second: int, second_size: int) -> int:
    """CRC-32C of two pieces in a row, from the checksum of each."""
    return _applied(shift(second_size), first) ^ second


def _applied(matrix: tuple[int, ...], crc: int) -> int:
    """A linear map over GF(2), row by bit, applied to a checksum."""
    result = 0
    for row in matrix:
        if not crc:
            break
        if crc & 1:
            result ^= row
        crc >>= 1
    return result


@lru_cache(maxsize=64)  # frames have a few sizes
def shift(size: int) -> tuple[int, ...]:
    """What `size` zero bytes behind a text do to its checksum."""
    one_bit = (_POLYNOMIAL, *(1 << bit for bit in range(31)))
    power = one_bit
    for _ in range(3):  # 8 bits
        power = tuple(_applied(power, row) for row in power)
    result = tuple(1 << bit for bit in range(32))
    while size:
        if size & 1:
            result = tuple(_applied(power, row) for row in result)
        size >>= 1
        if size:
            power = tuple(_applied(power, row) for row in power)
    return result
