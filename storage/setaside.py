"""Keeps what is cut off the end of a log: a file that tells by its name where it was and what is in it.

setaside/epoch-E-from-START-to-END-R-records.log in the store's root: log[START:END] as it was, written in reign E.
Nothing deletes these files: a person looks at them with `tandem inspect` and decides.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.storage.codec import BLANK_BYTES, Head, scan
from tandemmq.storage.commitlog import CommitLog
from tandemmq.storage.directories import fsync_directory, make_directory

DIRECTORY: Final = "setaside"
STEP_BYTES: Final = 1 << 20

_NAME: Final = re.compile(r"epoch-(\d+)-from-(\d+)-to-(\d+)-(\d+)-records\.log")
_SIZE: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class SetAside:
    """One file of cut bytes: log[start:end], written in reign `epoch`, `records` whole messages."""

    path: Path
    epoch: int
    start: int
    end: int
    records: int


@dataclass(frozen=True, slots=True)
class FileRange:
    """`size` bytes from `position` on of one file of the log."""

    path: Path
    position: int
    size: int


def file_ranges(log: CommitLog, start: int, end: int) -> list[FileRange]:
    """Where log[start:end] lies. For the thread that owns the log: files come and go there."""
    ranges = []
    for segment in log.run.segments:
        first, stop = max(start, segment.start), min(end, segment.end)
        if first < stop:
            ranges.append(FileRange(segment.path, first - segment.start, stop - first))
    assert sum(each.size for each in ranges) == end - start, f"[{start}, {end}) is not all there"
    return ranges


def keep(root: Path, ranges: list[FileRange], start: int, epoch: int) -> SetAside:
    """Copy ranges of the log, which begin at offset `start`, into a file; durable when done. [thread]

    Raises OSError: then nothing may be cut.
    """
    directory = root / DIRECTORY
    make_directory(directory)
    fresh = directory / f"from-{start}.new"
    try:
        with open(fresh, "wb") as target:
            for each in ranges:
                _copy(each, target.fileno())
            os.fsync(target.fileno())
        end = start + fresh.stat().st_size
        records = sum(1 for _ in heads_of(fresh))
        path = directory / f"epoch-{epoch}-from-{start}-to-{end}-{records}-records.log"
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    fsync_directory(directory)
    return SetAside(path, epoch, start, end, records)


def _copy(source: FileRange, target: int) -> None:
    descriptor = os.open(source.path, os.O_RDONLY)
    try:
        at, stop = source.position, source.position + source.size
        while at < stop:
            piece = os.pread(descriptor, min(stop - at, STEP_BYTES), at)
            if not piece:
                raise OSError(f"{source.path} ends at {at}")
            at += len(piece)
            view = memoryview(piece)
            while view:
                view = view[os.write(target, view) :]
    finally:
        os.close(descriptor)


def named(path: Path) -> SetAside | None:
    """What a file's name says; None for another file."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        return None
    epoch, start, end, records = (int(each) for each in found.groups())
    return SetAside(path, epoch, start, end, records)


def listed(root: Path) -> list[SetAside]:
    """Every file that was set aside from a store, by log offset. Raises OSError."""
    directory = root / DIRECTORY
    paths = directory.iterdir() if directory.is_dir() else ()
    found = [each for path in paths if (each := named(path)) is not None]
    return sorted(found, key=lambda each: (each.start, each.epoch, each.end))


def heads_of(path: Path) -> Iterator[Head]:
    """The messages in such a file, in order, positions from its start; blanks between files of the
    log are passed over. Raises CorruptRecord, OSError."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with mapping, memoryview(mapping) as view:
        position: int | None = 0
        while position is not None:
            at, position = position, None
            for head in scan(view, at, len(view)):
                if head.blank:
                    (size,) = _SIZE.unpack_from(view, head.position)
                    behind = head.position + size
                    position = behind if size >= BLANK_BYTES and behind <= len(view) else None
                else:
                    yield head
