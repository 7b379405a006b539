"""Frames for a slave that lags: read on a thread of their own, so that a cold disk never stops the loop.

The thread brings the pages into the kernel's cache and takes their checksum; the loop then sends them from file to
socket. Errors of the disk come as errors: a mapping alone would end the process.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from tandemmq.replication.joinedcrc import crc32c, shift


@dataclass(frozen=True, slots=True)
class Ahead:
    """A frame to be: log[start:stop], which lies at `position` of a file."""

    path: Path
    position: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Such a frame, its pages in memory. `crc` is of the body alone, 0 where nobody asked for it."""

    start: int
    stop: int
    crc: int


def read_ahead(frames: list[Ahead], checked: bool) -> list[Ready]:
    """Bring the bytes of these frames into memory; with `checked` take their checksums. [thread]

    Raises OSError: a file that is gone, a disk that cannot read.
    """
    ready = []
    with open(os.devnull, "wb") as nowhere:
        descriptor, path = -1, None
        try:
            for frame in frames:
                if frame.path != path:
                    if descriptor >= 0:
                        os.close(descriptor)
                        descriptor = -1
                    descriptor, path = os.open(frame.path, os.O_RDONLY), frame.path
                ready.append(_read(frame, descriptor, checked, nowhere.fileno()))
        finally:
            if descriptor >= 0:
                os.close(descriptor)
    return ready


def _read(frame: Ahead, descriptor: int, checked: bool, nowhere: int) -> Ready:
    at, left = frame.position, frame.stop - frame.start
    while left:  # the pages are wanted, not the bytes: no copy
        count = os.sendfile(nowhere, descriptor, at, left)
        if count == 0:
            raise OSError(f"{frame.path} ends at {at}")
        at += count
        left -= count
    return Ready(frame.start, frame.stop, _checksum(frame, descriptor) if checked else 0)


def _checksum(frame: Ahead, descriptor: int) -> int:
    """Of bytes that are in memory: through a mapping, which costs half of reading them into a buffer."""
    size = frame.stop - frame.start
    shift(size)  # for joined_crc(), which runs on the loop
    skipped = frame.position % mmap.ALLOCATIONGRANULARITY
    with (
        mmap.mmap(
            descriptor, skipped + size, access=mmap.ACCESS_READ, offset=frame.position - skipped
        ) as mapping,
        memoryview(mapping) as view,
        view[skipped:] as body,
    ):
        return crc32c(body)
