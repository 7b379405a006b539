"""Frames for a slave that lags: read on a thread of their own, so that a cold disk never stops the loop.

The thread brings the pages into the kernel's cache and takes their checksum on the way; the loop then sends them from
file to socket. Memory: one scratch buffer, whatever lags.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from replication.joinedcrc import shift

try:
    from isal.isal_zlib import crc32
except ImportError:  # slower, never different
    from zlib import crc32

SCRATCH_BYTES: Final = 256 << 10  # stays in the second-level cache


@dataclass(frozen=True, slots=True)
class Ahead:
    """A frame to be: log[start:stop], which lies at `position` of a file."""

    path: Path
    position: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Such a frame, its pages in memory. crc32 of the body alone."""

    start: int
    stop: int
    crc: int


def read_ahead(frames: list[Ahead]) -> list[Ready]:
    """Bring the bytes of these frames into memory. [thread] Raises OSError: a file that is gone, a
    disk that cannot read."""
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    ready = []
    descriptor, path = -1, None
    try:
        for frame in frames:
            if frame.path != path:
                if descriptor >= 0:
                    os.close(descriptor)
                    descriptor = -1
                descriptor, path = os.open(frame.path, os.O_RDONLY), frame.path
            at, left, crc = frame.position, frame.stop - frame.start, 0
            while left:
                count = os.preadv(descriptor, [scratch[: min(left, SCRATCH_BYTES)]], at)
                if count == 0:
                    raise OSError(f"{path} ends at {at}")
                crc = crc32(scratch[:count], crc)
                at += count
                left -= count
            shift(frame.stop - frame.start)  # for joined_crc(), which runs on the loop
            ready.append(Ready(frame.start, frame.stop, crc))
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return ready
