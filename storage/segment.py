"""One memory-mapped file of fixed size: make, open, share, flush and let go of it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import mmap
import os
from pathlib import Path
from typing import Final

from tandemmq.storage.directories import fsync_directory, make_directory
from tandemmq.storage.errors import (
    FlushFailed,
    NotAStore,
    SegmentUnavailable,
    StorageError,
    StoreIsFull,
)
from tandemmq.storage.tail import LogTail

log = logging.getLogger(__name__)

NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of os.open: it passes

ZERO_STEP_BYTES: Final = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_KEEP_SIZE: Final = 0x01  # modes of fallocate, linux/falloc.h
_PUNCH_HOLE: Final = 0x02
_ZERO_RANGE: Final = 0x10


def _refused(path: Path, error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreIsFull(f"no space for {path}: {error.strerror}")
    return SegmentUnavailable(f"cannot make {path}: {error}")


def _zero_range(fd: int, start: int, end: int) -> bool:
    """Let the file system turn a range into zeros: no byte is read or written. False when it cannot.

    Blocks stay allocated where all of the file is, holes stay holes elsewhere. Reading to find out
    what is not zero takes 3 s per GiB: each fault reads ahead, and what was read ahead counts as
    data from then on.
    """
    found = os.fstat(fd)
    mode = _ZERO_RANGE if found.st_blocks * 512 >= found.st_size else _PUNCH_HOLE
    return start < end and _libc.fallocate(fd, mode | _KEEP_SIZE, start, end - start) == 0


class Segment:
    """One mapped file. Everything belongs to one thread except what says [thread].

    start, size, end  its place among the bytes of its run; end is exclusive
    wrote, flushed    bytes from its own start: in the file, on the disk
    view  the whole file, writable unless opened read-only. Slices of it may outlive retire():
          unmapping waits. A LogTail writes through the file instead; both show the same bytes.

    Whoever keeps slices across an await or hands them to another thread calls hold() first and
    release() after. Pages that a full disk cannot back kill the process (SIGBUS) when touched, so
    files are allocated, never sparse.
    """

    def __init__(self, path: Path, start: int, mapping: mmap.mmap) -> None:
        self.path = path
        self.start = start
        self.size = len(mapping)
        self.view = memoryview(mapping)
        self.flushed = 0
        self.retired = False
        self._wrote = 0
        self._tail: LogTail | None = None
        self._descriptor = -1  # what the tail writes to
        self._mapping = mapping
        self._references = 1
        self._retired_ms = 0
        self._overdue_logged = False
        self._failure = ""
        self._cuts = 0
        self._cuts_flushed = 0

    @staticmethod
    def create(path: Path, start: int, size: int, allocate: bool, random_access: bool) -> Segment:
        """A new zero-filled file. [thread]

        allocate       reserve its blocks now; without it a full disk is found out by SIGBUS
        random_access  no read-ahead around faults: a first touch costs one page, not read_ahead_kb
        Raises StoreIsFull, SegmentUnavailable; then no file is left behind.
        """
        try:
            make_directory(path.parent)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise _refused(path, error) from error
        try:
            # The length first, in one step: RocketMQ refuses files of any length but 0 and the
            # right one.
            os.ftruncate(fd, size)
            if allocate:
                os.posix_fallocate(fd, 0, size)
            segment = Segment(path, start, mmap.mmap(fd, size))
            fsync_directory(path.parent)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise _refused(path, error) from error
        finally:
            os.close(fd)  # the mapping has its own
        segment.advise(random_access)
        return segment

    @staticmethod
    def open(
        path: Path, start: int, size: int, *, random_access: bool = False, read_only: bool = False
    ) -> Segment:
        """An existing file, all of it counting as written and nothing as flushed. Raises NotAStore,
        OSError."""
        fd = os.open(path, os.O_RDONLY if read_only else os.O_RDWR)
        try:
            found = os.fstat(fd).st_size
            if found != size:
                raise NotAStore(f"{path} has {found} bytes, files of this store have {size}")
            access = mmap.ACCESS_READ if read_only else mmap.ACCESS_DEFAULT
            segment = Segment(path, start, mmap.mmap(fd, size, access=access))
        finally:
            os.close(fd)
        segment._wrote = size
        segment.advise(random_access)
        return segment

    def __repr__(self) -> str:
        return (
            f"Segment({self.path}, start={self.start}, wrote={self.wrote}, flushed={self.flushed})"
        )

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def wrote(self) -> int:
        """Bytes in the file, from the segment's start. While a LogTail is attached it alone knows;
        what it has staged does not count."""
        tail = self._tail
        if tail is not None:
            committed = tail.committed
            if tail.segment_start == self.start:
                return committed
            # else it went on since, and left our number behind
        return self._wrote

    @wrote.setter
    def wrote(self, position: int) -> None:
        assert self._tail is None, "the attached tail says how much is written"
        assert 0 <= position <= self.size, (position, self.size)
        self._wrote = position

    def open_for_appends(self) -> None:
        """Open the descriptor that attach() gives to the tail; detach() and close() close it.

        Apart from attach(), for who must not fail there. Raises SegmentUnavailable.
        """
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self.path, os.O_WRONLY)
            except OSError as error:
                raise SegmentUnavailable(f"cannot open {self.path}: {error}") from error

    def attach(self, tail: LogTail) -> None:
        """Let a tail append here, from `wrote` on. Raises SegmentUnavailable."""
        self.open_for_appends()
        tail.open(self._descriptor, self.start, self._wrote, self.size)
        self._tail = tail

    def detach(self) -> None:
        """Take the tail off; what it staged is committed. Raises FlushFailed; it is off all the
        same."""
        tail = self._tail
        try:
            if tail is not None:
                tail.close()
        finally:
            if tail is not None:
                self._wrote = tail.committed
                self._tail = None
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    # --- bytes ---

    def read(self, position: int, size: int) -> memoryview:
        """A view of bytes that are written. Raises ValueError beyond them."""
        if position < 0 or size < 0 or position + size > self.wrote:
            raise ValueError(
                f"[{position}, {position + size}) of {self.path}, {self.wrote} written"
            )
        return self.view[position : position + size]

    def pread(self, position: int, size: int) -> bytes:
        """A copy read through the file, for bytes that may not be in memory. [thread] Raises
        OSError."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            return os.pread(fd, size, position)
        finally:
            os.close(fd)

    def zero(self, start: int, end: int) -> None:
        """Make [start, end) zero, touching only what the file system says holds data. Raises
        OSError."""
        fd = os.open(self.path, os.O_RDWR)
        try:
            if _zero_range(fd, start, end):
                return
            zeros = bytes(ZERO_STEP_BYTES)
            at = start
            while at < end:
                try:
                    at = os.lseek(fd, at, os.SEEK_DATA)
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        raise
                    return  # nothing but holes up to the file's end
                step_end = min(end, at + ZERO_STEP_BYTES)
                if at < step_end and bytes(self.view[at:step_end]) != zeros[: step_end - at]:
                    self.view[at:step_end] = zeros[: step_end - at]
                at = step_end
        finally:
            os.close(fd)

    def cut(self, position: int) -> None:
        """Make `position` the end of what is written, and the rest zero: on the disk with the next
        flush(), which has that to do even if all that stays was flushed before (INV-40). Raises
        OSError."""
        self._cuts += 1  # first: zeros that came only in part are to be synced as well
        self.zero(position, self.size)
        self.wrote = position
        self.flushed = min(self.flushed, position)

    @property
    def cut_unflushed(self) -> bool:
        """Whether the disk may still hold what was cut off."""
        return self._cuts > self._cuts_flushed

    def allocate(self) -> None:
        """Reserve blocks for the whole of an existing, possibly sparse file. Raises StoreIsFull,
        SegmentUnavailable."""
        try:
            fd = os.open(self.path, os.O_RDWR)
            try:
                os.posix_fallocate(fd, 0, self.size)
            finally:
                os.close(fd)
        except OSError as error:
            raise _refused(self.path, error) from error

    def advise(self, random_access: bool) -> None:
        """No read-ahead around faults, or the usual one. Sets a flag of the mapping: cheap."""
        self._mapping.madvise(mmap.MADV_RANDOM if random_access else mmap.MADV_NORMAL)

    def flush(self) -> int:
        """Put everything written so far on the disk, the zeros of a cut too; bytes flushed. [thread]

        Raises FlushFailed. That is final: the kernel drops pages it could not write and then
        reports success, so every later call raises again. Raises OSError when there was no
        descriptor to be had: nothing was tried, and a later call may succeed.
        """
        if self._failure:
            raise FlushFailed(self._failure)
        wrote, cuts = self.wrote, self._cuts  # before the call: what comes meanwhile is not covered
        if wrote <= self.flushed and cuts <= self._cuts_flushed:
            return self.flushed
        try:
            fd = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            if self.retired and error.errno == errno.ENOENT:
                return self.flushed  # deleted on purpose while this thread was on its way
            if error.errno in NO_DESCRIPTOR:
                raise
            raise self._failed(error) from error
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise self._failed(error) from error
        finally:
            os.close(fd)
        self.flushed, self._cuts_flushed = wrote, cuts
        return wrote

    def _failed(self, error: OSError) -> FlushFailed:
        self._failure = f"cannot flush {self.path}: {error}"
        return FlushFailed(self._failure)

    # --- life ---

    def hold(self) -> bool:
        """Take a reference; False when the segment is on its way out. Each True needs one
        release()."""
        if self.retired or self._references <= 0:
            return False
        self._references += 1
        return True

    def release(self) -> None:
        """Give a reference back."""
        self._references -= 1

    def retire(self, now_ms: int) -> None:
        """Refuse new references and drop the segment's own. Further calls change nothing."""
        if not self.retired:
            self.retired = True
            self._retired_ms = now_ms
            self.release()

    def free(self, now_ms: int, forced_after_ms: int) -> bool:
        """Unmap a retired segment; True once that is done. [thread]

        While references are out this waits, at most forced_after_ms after retire(). Even then a
        slice that somebody still has keeps the mapping alive: False again, and one warning.
        """
        assert self.retired, f"{self.path} is in use"
        overdue = now_ms - self._retired_ms >= forced_after_ms
        if self._references > 0 and not overdue:
            return False
        if self.close():
            return True
        if overdue and not self._overdue_logged:
            self._overdue_logged = True
            age_ms = now_ms - self._retired_ms
            log.warning(
                "segment still in use path=%s references=%d retired_ms_ago=%d",
                self.path,
                self._references,
                age_ms,
            )
        return False

    def close(self) -> bool:
        """Unmap unless slices of the view are still out; True when unmapped. The view is gone
        either way. What a tail could not write was never promised to anybody."""
        with contextlib.suppress(FlushFailed):
            self.detach()
        self.view.release()
        try:
            self._mapping.close()
        except BufferError:
            return False
        return True

    def unlink(self) -> None:
        """Delete the file for good; mapped bytes stay readable until unmapped. [thread] Raises OSError.

        On the disk before the next one goes: were that one gone and this one not, the files left would have a
        gap, and be no store.
        """
        self.path.unlink(missing_ok=True)
        fsync_directory(self.path.parent)
