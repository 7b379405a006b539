"""Where one frame ends and the next begins: length words checked before anything is allocated (INV-13).

    offset  size  field
    0       4     L: int32, bytes that follow this field = 4 + H + B; 4 <= L
    4       1     header serialization: 0 JSON, 1 binary
    5       3     H: unsigned, bytes of header; H <= L - 4
    8       H     header
    8+H     B     body; B = 0 means "no body"

A *frame* in this package is all of it, the length word included. Source: docs/formats.md "Frame".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from tandemmq.cluster.remoting.errors import PeerBrokeProtocol

Buffer = bytes | bytearray | memoryview

PREFIX_BYTES: Final = 8
"""Length word and header word: what must be there before a frame's size is known and checked."""

_PREFIX: Final = struct.Struct(">iI")
_LENGTH: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """What a peer may send. A larger frame closes the connection."""

    frame_bytes_max: int = 16 * 1024 * 1024  # RocketMQ's com.rocketmq.remoting.frameMaxLength
    header_bytes_max: int = 128 * 1024  # a send's properties may take 32 KiB, JSON escapes sixfold
    ext_fields_max: int = 256
    key_bytes_max: int = 255


DEFAULT_LIMITS: Final = FrameLimits()


def bytes_needed(
    view: Buffer, start: int, available: int, limits: FrameLimits = DEFAULT_LIMITS
) -> int:
    """How many bytes, from `start`, must be there before the frame that starts there is whole.

    available   bytes present from `start`; with fewer than PREFIX_BYTES the answer is PREFIX_BYTES
    Raises PeerBrokeProtocol as soon as a present word breaks a limit.
    """
    if available < PREFIX_BYTES:
        if available >= 4:
            (length,) = _LENGTH.unpack_from(view, start)
            if not 4 <= length < limits.frame_bytes_max - 3:
                raise PeerBrokeProtocol(
                    f"frame length {length} is outside 4..{limits.frame_bytes_max - 4}"
                )
        return PREFIX_BYTES
    length, header_word = _PREFIX.unpack_from(view, start)
    if not 4 <= length < limits.frame_bytes_max - 3:
        raise PeerBrokeProtocol(f"frame length {length} is outside 4..{limits.frame_bytes_max - 4}")
    header_size = header_word & 0xFFFFFF
    if header_word >> 24 > 1:
        raise PeerBrokeProtocol(f"unknown header serialization {header_word >> 24}")
    if header_size > length - 4:
        raise PeerBrokeProtocol(f"header of {header_size} bytes in a frame of {length}")
    if header_size > limits.header_bytes_max:
        raise PeerBrokeProtocol(
            f"header of {header_size} bytes, more than {limits.header_bytes_max}"
        )
    return int(4 + length)


def split(
    view: Buffer, start: int, end: int, limits: FrameLimits = DEFAULT_LIMITS
) -> tuple[list[tuple[int, int]], int]:
    """The whole frames in view[start:end] as (start, end), and where the first partial one begins.

    Raises PeerBrokeProtocol at the first frame that breaks a limit, a partial one included; frames
    before it are lost with the connection.
    """
    frames: list[tuple[int, int]] = []
    while start < end:
        size = bytes_needed(view, start, end - start, limits)
        if start + size > end:
            break
        frames.append((start, start + size))
        start += size
    return frames, start
