"""How much of a file lies in the page cache, where the kernel tells."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

PAGE_BYTES: Final = mmap.PAGESIZE
CACHESTAT: Final = 451  # the number of the system call, on every architecture since Linux 6.5


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


class PageCache:
    """Asks by cachestat(2), else by mincore(2); a way that is refused is not tried again.

    Neither reads the file. A call costs up to 100 us per 1,000 pages, so callers keep answers.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._syscall = library.syscall
        self._mincore = library.mincore
        self._mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        self._ways = [self._by_cachestat, self._by_mincore]

    @property
    def tells(self) -> bool:
        """False when the kernel has refused to."""
        return bool(self._ways)

    def resident(self, path: Path, start: int, size: int) -> float | None:
        """The part of file bytes [start, start + size) that is in memory, from 0 to 1.

        None when the kernel does not tell, and for a file that is gone.
        """
        first = start - start % PAGE_BYTES
        length = start + size - first
        if length <= 0:
            return None
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            return None
        try:
            while self._ways:
                try:
                    pages = self._ways[0](descriptor, first, length)
                except (OSError, ValueError) as problem:
                    # An older kernel, or a sandbox that does not let us: it would say so again.
                    way = self._ways.pop(0)
                    log.info("page cache not told way=%s why=%s", way.__name__[4:], problem)
                else:
                    return min(1.0, pages / -(-length // PAGE_BYTES))
        finally:
            os.close(descriptor)
        return None

    def _by_cachestat(self, descriptor: int, first: int, length: int) -> int:
        asked, counts = _Range(first, length), _Counts()
        failed = self._syscall(
            ctypes.c_long(CACHESTAT), ctypes.c_uint(descriptor), ctypes.byref(asked),
            ctypes.byref(counts), ctypes.c_uint(0),
        )  # fmt: skip
        if failed:
            raise _failure()
        return int(counts.cached)

    def _by_mincore(self, descriptor: int, first: int, length: int) -> int:
        # Private and writable, for ctypes to find its address; nothing is written.
        mapping = mmap.mmap(
            descriptor, length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE,
            offset=first,
        )  # fmt: skip
        with mapping:
            pages = (ctypes.c_ubyte * -(-length // PAGE_BYTES))()
            start = ctypes.c_char.from_buffer(mapping)
            failed = self._mincore(ctypes.addressof(start), length, pages)
            del start  # the mapping cannot be closed while it is exported
            if failed:
                raise _failure()
            return sum(page & 1 for page in pages)


def _failure() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
