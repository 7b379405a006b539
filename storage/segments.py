"""A run of segments of one size, addressed by one growing offset."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from tandemmq.storage.errors import NotAStore
from tandemmq.storage.segment import Segment

log = logging.getLogger(__name__)

NAME_DIGITS: Final = 20


def segment_name(start: int) -> str:
    """The file name of the segment that starts at an offset."""
    return f"{start:0{NAME_DIGITS}d}"


class SegmentRun:
    """Files of one size in one directory. `segments` is in offset order and has no gaps.

    directory      holds nothing but these files: RocketMQ takes every file in it for data
    segment_bytes  length of each file; a store keeps the one it was made with
    allocate, random_access  how new files are made, see Segment.create
    """

    def __init__(
        self,
        directory: Path,
        segment_bytes: int,
        *,
        allocate: bool = True,
        random_access: bool = True,
        read_only: bool = False,
    ) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self._allocate = allocate
        self._random_access = random_access
        self._read_only = read_only

    def load(self) -> None:
        """Map the files that are there; each counts as fully written, and as not flushed.

        What an earlier process left in the page cache may not be on the disk yet, so the first
        flush asks again. An empty last file is the trace of a crash while it was made, and deleted.
        Raises NotAStore for any other file that does not belong, or is missing; OSError.
        """
        assert not self.segments, "load() is the first call"
        if not self.directory.exists():
            return
        with os.scandir(self.directory) as entries:
            paths = sorted(Path(entry.path) for entry in entries if entry.is_file())
        if paths and paths[-1].stat().st_size == 0:
            unfinished = paths.pop()
            if not self._read_only:
                unfinished.unlink()
        for path in paths:
            if not (path.name.isascii() and path.name.isdigit() and len(path.name) == NAME_DIGITS):
                raise NotAStore(f"{path} is not a file of a store: its name is no 20-digit offset")
            start = int(path.name)
            if self.segments and start != self.segments[-1].end:
                missing = segment_name(self.segments[-1].end)
                raise NotAStore(f"{self.directory} lacks {missing}: {path.name} follows")
            self.segments.append(
                Segment.open(path, start, self.segment_bytes, read_only=self._read_only)
            )

    @property
    def start(self) -> int:
        """Smallest offset; 0 without files."""
        return self.segments[0].start if self.segments else 0

    @property
    def end(self) -> int:
        """Offset of the next byte; 0 without files."""
        if not self.segments:
            return 0
        last = self.segments[-1]
        return last.start + last.wrote

    @property
    def flushed(self) -> int:
        """Everything below this offset is on the disk."""
        for segment in reversed(self.segments):
            if segment.flushed:
                return segment.start + segment.flushed
        return self.start

    @property
    def cut_unflushed(self) -> bool:
        """Whether the disk may still hold what truncate() cut off."""
        return bool(self.segments) and self.segments[-1].cut_unflushed

    def find(self, offset: int) -> Segment | None:
        """The segment whose file covers an offset, written or not."""
        if not self.segments:
            return None
        index = (offset - self.segments[0].start) // self.segment_bytes
        return self.segments[index] if 0 <= index < len(self.segments) else None

    def make(self, start: int) -> Segment:
        """A new segment that is not part of the run yet. [thread] Raises StoreIsFull,
        SegmentUnavailable."""
        path = self.directory / segment_name(start)
        return Segment.create(path, start, self.segment_bytes, self._allocate, self._random_access)

    def adopt(self, segment: Segment) -> None:
        """Append a segment that make() made."""
        assert not self.segments or segment.start == self.segments[-1].end, (segment, self.end)
        self.segments.append(segment)

    def add(self, start: int) -> Segment:
        """Make and append the segment that covers an offset: in an empty run any, else the one
        behind the last.

        Raises StoreIsFull, SegmentUnavailable.
        """
        segment = self.make(start - start % self.segment_bytes)
        self.adopt(segment)
        return segment

    def flush(self, target: int | None = None) -> int:
        """Flush up to an offset (all of it without one), oldest segment first; the new `flushed`.
        [thread]

        Raises FlushFailed, from then on always; OSError when nothing could be tried (see Segment).
        """
        for segment in list(self.segments):
            wanted = target is None or segment.start < target
            if (wanted and segment.flushed < segment.size) or segment.cut_unflushed:
                segment.flush()
        return self.flushed

    def truncate(self, offset: int) -> None:
        """Make `offset` the end: delete the files behind it and zero the rest of the file that
        contains it.

        The rest is zeroed because stale records behind the end would look alive to the next crash
        recovery (INV-9); the zeros are on the disk after the next flush (INV-40). The files go for good
        one after the other, from the end: a gap between those that are left would be no store. Raises OSError.
        """
        while self.segments and self.segments[-1].start > offset:
            self._destroy(self.segments.pop())
        if self.segments and self.segments[-1].end > offset:
            last = self.segments[-1]
            last.detach()
            last.cut(offset - last.start)

    def drop_first(self) -> Segment:
        """Take the oldest segment out of the run; retire(), unlink() and free() are the caller's.
        Never the last."""
        assert len(self.segments) > 1, "the last segment stays"
        return self.segments.pop(0)

    def drop_before(self, offset: int) -> list[Segment]:
        """Take out every segment that ends at or below an offset, never the last one."""
        dropped = []
        while len(self.segments) > 1 and self.segments[0].end <= offset:
            dropped.append(self.drop_first())
        return dropped

    def destroy(self) -> None:
        """Delete every file and the directory. Raises OSError."""
        while self.segments:
            self._destroy(self.segments.pop())
        if self.directory.exists():
            self.directory.rmdir()

    def close(self) -> None:
        """Unmap everything. Slices that are still out keep their file's memory, and are
        reported."""
        for segment in self.segments:
            if not segment.close():
                log.warning("segment closed with slices still out path=%s", segment.path)
        self.segments.clear()

    def _destroy(self, segment: Segment) -> None:
        segment.detach()
        segment.retire(0)
        segment.unlink()
        if not segment.close():
            log.debug("deleted segment still read path=%s", segment.path)
