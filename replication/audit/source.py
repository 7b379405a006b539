"""Where an audit reads log bytes from: a directory of this machine, or any file system pyarrow knows.

Readers copy into a buffer (pread) and never map a file: a mapped file that is cut while it is read kills
the process, a short read is only data.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from tandemmq.replication.audit.errors import AuditIncomplete, BadInput

NAME_DIGITS: Final = 20


class SegmentFile(NamedTuple):
    """One file of a log: the offset it starts at, and the bytes that are there."""

    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class LogSource(Protocol):
    """The files of one log."""

    name: str

    def segments(self) -> list[SegmentFile]:
        """By rising start. Raises BadInput, AuditIncomplete."""

    def read_into(self, segment: int, offset: int, buffer: memoryview) -> int:
        """Fill the buffer from a log offset on; the bytes read, fewer where the segment's file ends.

        segment  start of the segment that holds the offset
        Raises AuditIncomplete when the file cannot be read or is gone.
        """

    def close(self) -> None: ...


class LocalLog:
    """A commitlog directory of this machine."""

    def __init__(self, directory: str | Path) -> None:
        self.name = str(directory)
        self._directory = Path(directory)
        self._descriptors: dict[int, int] = {}
        self._lock = threading.Lock()  # guards _descriptors: workers share one log

    def segments(self) -> list[SegmentFile]:
        try:
            with os.scandir(self._directory) as entries:
                found = [(entry.name, entry.stat().st_size) for entry in entries if entry.is_file()]
        except OSError as problem:
            raise BadInput(f"cannot list {self._directory}: {problem.strerror}") from problem
        return segment_files(found)

    def read_into(self, segment: int, offset: int, buffer: memoryview) -> int:
        done = 0
        try:
            descriptor = self._descriptor(segment)
            while done < len(buffer):
                count = os.preadv(descriptor, [buffer[done:]], offset - segment + done)
                if count == 0:
                    break
                done += count
        except OSError as problem:
            name = self._directory / segment_name(segment)
            raise AuditIncomplete(f"cannot read {name}: {problem.strerror}") from problem
        return done

    def _descriptor(self, segment: int) -> int:
        with self._lock:
            descriptor = self._descriptors.get(segment)
            if descriptor is None:
                if len(self._descriptors) >= 256:
                    os.close(self._descriptors.pop(next(iter(self._descriptors))))
                descriptor = os.open(self._directory / segment_name(segment), os.O_RDONLY)
                self._descriptors[segment] = descriptor
            return descriptor

    def close(self) -> None:
        with self._lock:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors.clear()


class RemoteLog:
    """A commitlog directory on a file system that pyarrow opens by URI (s3://, gs://, hdfs://, file://)."""

    def __init__(self, uri: str) -> None:
        self.name = uri
        try:
            from pyarrow import fs  # an extra: audits of local directories do without
        except ImportError as problem:
            raise BadInput(f"{uri} needs pyarrow: pip install 'tandemmq[audit]'") from problem
        try:
            self._system, self._path = fs.FileSystem.from_uri(uri)
        except (ValueError, OSError) as problem:
            raise BadInput(f"cannot open {uri}: {problem}") from problem
        self._selector = fs.FileSelector
        self._files: dict[int, Any] = {}

    def segments(self) -> list[SegmentFile]:
        try:
            entries = self._system.get_file_info(self._selector(self._path))
        except OSError as problem:
            raise BadInput(f"cannot list {self.name}: {problem}") from problem
        return segment_files([(entry.base_name, entry.size) for entry in entries if entry.is_file])

    def read_into(self, segment: int, offset: int, buffer: memoryview) -> int:
        try:
            file = self._files.get(segment)
            if file is None:
                file = self._system.open_input_file(f"{self._path}/{segment_name(segment)}")
                self._files[segment] = file
            data = file.read_at(len(buffer), offset - segment)
        except OSError as problem:
            raise AuditIncomplete(
                f"cannot read {self.name}/{segment_name(segment)}: {problem}"
            ) from problem
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def open_log(place: str | Path) -> LogSource:
    """The log in a commitlog directory: a path, or a URI. Raises BadInput."""
    text = str(place)
    return RemoteLog(text.replace("s3a://", "s3://", 1)) if "://" in text else LocalLog(text)


def segment_name(start: int) -> str:
    """The file name of the segment that starts at a log offset."""
    return f"{start:0{NAME_DIGITS}d}"


def segment_files(entries: Sequence[tuple[str, int]]) -> list[SegmentFile]:
    """The segments among (name, size) pairs, by start. What does not look like one is left out."""
    return sorted(
        SegmentFile(int(name), size)
        for name, size in entries
        if len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
    )


def segment_bytes_of(files: Sequence[SegmentFile], where: str) -> int:
    """The size of a log's segments: that of its largest file, if all starts fit it, else the distance of
    neighbours. A file cut short does not change it. Raises BadInput.
    """
    largest = max((file.size for file in files), default=0)
    if not largest:
        raise BadInput(f"{where} holds no segment files: not a store, or an empty one")
    distances = [after.start - before.start for before, after in pairwise(files)]
    size = largest
    if any(file.start % largest for file in files):
        size = min(distances, default=largest)
    for file in files:
        if file.start % size or file.size > size:
            raise BadInput(
                f"{where}: {segment_name(file.start)} ({file.size} bytes) is no segment of {size} bytes:"
                " files of two sizes are mixed"
            )
    return size
