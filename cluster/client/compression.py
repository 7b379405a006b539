"""Bodies of messages: compress on the way out, decompress what any client has sent."""

from __future__ import annotations

import enum
import sys
import zlib
from typing import Final

import lz4.frame

from tandemmq.cluster.client.errors import BrokerAnswerBroken

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESSED: Final = 0x1
TYPE_MASK: Final = 0x700
TYPE_LZ4: Final = 0x100
TYPE_ZSTD: Final = 0x200
TYPE_ZLIB: Final = 0x300
BODY_BYTES_MAX: Final = (
    64 << 20
)  # a decompressed body beyond this is an attack or damage, not a message


class Compression(enum.Enum):
    """How producers compress large bodies. Every RocketMQ client reads ZLIB; LZ4 and ZSTD need 5.x.

    Example: Producer("shop", compression=Compression.ZSTD)
    """

    ZLIB = TYPE_ZLIB
    LZ4 = TYPE_LZ4
    ZSTD = TYPE_ZSTD


def compress(
    body: bytes, level: int = 5, kind: Compression = Compression.ZLIB
) -> tuple[bytes, int]:
    """Return (body, flags to set): compressed when it gets smaller, else the body as it is and 0.

    level  zlib's 0 to 9; LZ4 and Zstandard take it as their own
    zlib with its type bits set is what every client can read: old ones look at bit 0 only and
    always use zlib.
    """
    if kind is Compression.ZLIB:
        smaller = zlib.compress(body, level)
    elif kind is Compression.LZ4:
        smaller = lz4.frame.compress(body, compression_level=level)
    else:
        smaller = zstd.compress(body, level)
    if len(smaller) >= len(body):
        return body, 0
    return smaller, COMPRESSED | kind.value


def decompress(body: bytes, sys_flag: int, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """The body as its producer gave it.

    Type bits: 0 and 0x300 zlib, 0x100 LZ4 frame, 0x200 Zstandard.

    Raises BrokerAnswerBroken for an unknown type, damage, or a result above bytes_max.
    """
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & TYPE_MASK
    try:
        if kind in (0, TYPE_ZLIB):
            inflater = zlib.decompressobj()
            plain = inflater.decompress(body, bytes_max + 1)
            whole = inflater.eof
        elif kind == TYPE_LZ4:
            unpacker = lz4.frame.LZ4FrameDecompressor()
            plain = unpacker.decompress(body, bytes_max + 1)
            whole = unpacker.eof
        elif kind == TYPE_ZSTD:
            reader = zstd.ZstdDecompressor()
            plain = reader.decompress(body, bytes_max + 1)
            whole = reader.eof
        else:
            raise BrokerAnswerBroken(
                f"a body is compressed in an unknown way: type bits 0x{kind:x}"
            )
    except (zlib.error, RuntimeError, zstd.ZstdError) as damage:
        raise BrokerAnswerBroken(f"a compressed body does not decompress: {damage}") from damage
    if len(plain) > bytes_max:
        raise BrokerAnswerBroken(f"a compressed body is larger than {bytes_max} bytes")
    if not whole:
        raise BrokerAnswerBroken("a compressed body ends early")
    return plain
