"""Files of consume queues: made sparse, allocated piecewise ahead of the writer, mapped only while
in use.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tandemmq.storage.config import PAGE_BYTES, QUEUE_ENTRY_BYTES
from tandemmq.storage.derivation import QUEUE_ENTRY, QueueEnd
from tandemmq.storage.directories import fsync_directory

log = logging.getLogger(__name__)

BLANK_SIZE: Final = 0x7FFFFFFF  # of an entry that describes no record
BLANK_ENTRY: Final = QUEUE_ENTRY.pack(0, BLANK_SIZE, 0)
MAPPED_FILES_MAX: Final = 4096  # each mapping costs a file descriptor and a kernel map entry
ALLOCATE_BYTES_MIN: Final = 64 << 10
_ZERO_STEP_BYTES: Final = 64 << 10
_ZEROS: Final = bytes(_ZERO_STEP_BYTES)


def sync_directories(directories: Iterable[Path]) -> None:
    """Make names durable. [thread] Raises OSError; a directory deleted meanwhile needs no sync."""
    for directory in directories:
        with contextlib.suppress(FileNotFoundError):
            fsync_directory(directory)


class QueueFile:
    """One file of a queue. `view` is None while it is not mapped; ask FileCache.view() for it."""

    __slots__ = ("mapping", "name", "size", "start", "used", "view", "writer")

    def __init__(self, name: str, start: int, size: int) -> None:
        self.name = name  # the whole path; ten thousand Path objects would cost a quarter second
        self.start = start  # byte offset in the queue
        self.size = size
        self.used = False  # read since the cache last looked
        self.view: memoryview | None = None
        self.mapping: mmap.mmap | None = None
        self.writer: QueueEnd | None = None  # appends here through the mapping

    @property
    def end(self) -> int:
        return self.start + self.size

    def create(self) -> None:
        """Make the file: full length, nothing allocated. Raises OSError; no file is left then."""
        descriptor = os.open(self.name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.ftruncate(descriptor, self.size)
        except OSError:
            os.unlink(self.name)
            raise
        finally:
            os.close(descriptor)

    def allocate(self, start: int, position: int) -> int:
        """Reserve disk space for [start, past the entry at position); returns up to where there is space
        now.

        Writing to a sparse mapped page on a full disk kills the process, so this comes first. 6 MB
        for each of ten thousand queues would be 60 GB, so it comes in pieces that double. Raises
        OSError (ENOSPC: the disk is full).
        """
        limit = ALLOCATE_BYTES_MIN
        while limit < position + QUEUE_ENTRY_BYTES:
            limit *= 2
        limit = min(limit, self.size)
        start -= start % PAGE_BYTES
        descriptor = os.open(self.name, os.O_RDWR)
        try:
            os.posix_fallocate(descriptor, start, limit - start)
        finally:
            os.close(descriptor)
        return limit - limit % QUEUE_ENTRY_BYTES

    def back(self, position: int) -> None:
        """Have disk space under an entry that is to be written again. Raises OSError."""
        descriptor = os.open(self.name, os.O_RDWR)
        try:
            os.posix_fallocate(descriptor, position, QUEUE_ENTRY_BYTES)
        finally:
            os.close(descriptor)

    def read(self, position: int, size: int) -> bytes:
        """Without mapping the file. Raises OSError."""
        descriptor = os.open(self.name, os.O_RDONLY)
        try:
            return os.pread(descriptor, size, position)
        finally:
            os.close(descriptor)

    def measure(self, log_end: int) -> tuple[int, int]:
        """(entries whose records lie below log_end, end of the last of these records, -1 if all are blank).

        A binary search: the entries counted must be whole and in order. Raises OSError.
        """
        descriptor = os.open(self.name, os.O_RDONLY)
        try:

            def entry(number: int) -> tuple[int, int, int]:
                data = os.pread(descriptor, QUEUE_ENTRY_BYTES, number * QUEUE_ENTRY_BYTES)
                found: tuple[int, int, int] = QUEUE_ENTRY.unpack(data)
                return found

            low, high = 0, self.size // QUEUE_ENTRY_BYTES
            while low < high:
                middle = (low + high) // 2
                physical, size, _ = entry(middle)
                if (
                    physical >= 0
                    and size > 0
                    and (physical + size <= log_end or size == BLANK_SIZE)
                ):
                    low = middle + 1
                else:
                    high = middle
            for number in range(low - 1, -1, -1):
                physical, size, _ = entry(number)
                if size != BLANK_SIZE:
                    return low, physical + size
            return low, -1
        finally:
            os.close(descriptor)

    def zero_tail(self, position: int) -> bool:
        """Zero whatever the file system says is data from position on; True when something was
        there.

        Raises OSError.
        """
        found = False
        descriptor = os.open(self.name, os.O_RDWR)
        try:
            # What is read ahead would count as data in the next round, up to the end of the file.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            while position < self.size:
                try:
                    position = max(position, os.lseek(descriptor, position, os.SEEK_DATA))
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        raise
                    break  # only a hole up to the end
                data = os.pread(descriptor, _ZERO_STEP_BYTES, position)
                if not data:
                    break
                if data != _ZEROS[: len(data)]:
                    os.pwrite(descriptor, bytes(len(data)), position)
                    found = True
                position += len(data)
        finally:
            os.close(descriptor)
        return found

    def sync(self) -> None:
        """[thread] Raises OSError; a file that was deleted meanwhile needs no sync."""
        try:
            descriptor = os.open(self.name, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


class FileCache:
    """The mapped queue files, at most `limit`; those not used for longest go first."""

    def __init__(self, limit: int = MAPPED_FILES_MAX, *, read_only: bool = False) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.limit = limit if soft == resource.RLIM_INFINITY else max(16, min(limit, soft // 4))
        self._read_only = read_only
        self.mapped: dict[QueueFile, None] = {}

    def view(self, file: QueueFile) -> memoryview:
        """The whole file, writable. Do not keep slices: the file may be unmapped at the next call.
        Raises OSError.
        """
        file.used = True
        if file.view is None:
            self._map(file)
            assert file.view is not None
        return file.view

    def _map(self, file: QueueFile) -> None:
        if len(self.mapped) >= self.limit:
            self._evict()
        descriptor = os.open(file.name, os.O_RDONLY if self._read_only else os.O_RDWR)
        access = mmap.ACCESS_READ if self._read_only else mmap.ACCESS_DEFAULT
        try:
            file.mapping = mmap.mmap(descriptor, file.size, access=access)
        finally:
            os.close(descriptor)
        # Without it one touched page reads megabytes ahead: 1.3 ms instead of 9 us for the first
        # entry of a queue.
        file.mapping.madvise(mmap.MADV_RANDOM)
        file.view = memoryview(file.mapping)
        self.mapped[file] = None

    def _evict(self) -> None:
        for _ in range(2 * len(self.mapped)):
            file = next(iter(self.mapped))
            writer = file.writer
            if not file.used and not (writer is not None and writer.used):
                self.unmap(file)
                return
            file.used = False
            if writer is not None:
                writer.used = False
            del self.mapped[file]
            self.mapped[file] = None
        raise AssertionError("every file was used since it was asked")

    def unmap(self, file: QueueFile) -> None:
        """Pages that are not on disk yet stay with the kernel; sync() still reaches them."""
        if file.mapping is None:
            return
        if file.writer is not None:
            file.writer.close()
            file.writer = None
        assert file.view is not None
        file.view.release()
        file.mapping.close()
        file.view = file.mapping = None
        del self.mapped[file]

    def close(self) -> None:
        for file in list(self.mapped):
            self.unmap(file)
