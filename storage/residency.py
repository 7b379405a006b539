"""Which parts of the log lie in memory, asked of the kernel a piece at a time and remembered for a moment; and how what
does not comes there.

Reading through a mapping what is not there stops every thread until the disk has answered, and reading through the
file what is there costs a system call per record. A piece that the kernel says is there is read through the mapping;
another one is fetched by a thread first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from tandemmq.storage.clock import Clock
from tandemmq.storage.pagecache import PageCache
from tandemmq.storage.segment import Segment

PIECE_BYTES: Final = 4 << 20
ASK_AGAIN_MS: Final = 1_000
PIECES_MAX: Final = 1_024
READ_BYTES: Final = 1 << 20
#: behind a piece that was wanted, so much is asked for: the disk works on while consumers take the piece
AHEAD_BYTES: Final = 2 * PIECE_BYTES


class Fetch(NamedTuple):
    """What to read into memory before a reader gets it: (position, size) in one file, and a place to read ahead."""

    path: Path
    ranges: tuple[tuple[int, int], ...]
    ahead: int = -1

    def run(self) -> None:
        """Read it. [thread] Raises OSError, FileNotFoundError for a file that was deleted meanwhile."""
        into = bytearray(READ_BYTES)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            for position, size in self.ranges:
                end = position + size
                while position < end:
                    step = memoryview(into)[: min(READ_BYTES, end - position)]
                    got = os.preadv(descriptor, [step], position)
                    if not got:
                        break  # the file is shorter: the reader finds that out
                    position += got
            if self.ahead >= 0:
                os.posix_fadvise(descriptor, self.ahead, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


class Residency:
    """Of one log. Where the kernel does not tell, nothing is said to be in memory."""

    def __init__(self, clock: Clock, page_cache: PageCache | None = None) -> None:
        self._clock = clock
        self._page_cache = page_cache
        self._pieces: dict[
            int, tuple[int, int]
        ] = {}  # start -> when it was asked about, its end or 0

    def end(self, segment: Segment, offset: int) -> int:
        """Up to which log offset the bytes from `offset` on are known to be in memory: two pieces at most, the one
        that `offset` is in and the next, so that no record is cut in two. 0: they are not.

        Costs a few system calls, once per piece and second.
        """
        start = offset - (offset - segment.start) % PIECE_BYTES
        end = self._piece(segment, start)
        if end == start + PIECE_BYTES:
            end = self._piece(segment, end) or end
        return end

    def _piece(self, segment: Segment, start: int) -> int:
        """The end of the piece that starts there; 0 unless all of it is in memory."""
        now_ms = self._clock.monotonic_ms()
        known = self._pieces.get(start)
        if known is not None and now_ms - known[0] < ASK_AGAIN_MS:
            return known[1]
        position = start - segment.start
        size = min(PIECE_BYTES, segment.wrote - position)
        if size <= 0:
            return 0
        if self._page_cache is None:
            self._page_cache = PageCache()  # when wanted: most stores are read near their end
        resident = self._page_cache.resident(segment.path, position, size)
        end = start + size if resident == 1.0 else 0
        if len(self._pieces) >= PIECES_MAX:
            self._pieces.clear()
        self._pieces[start] = (now_ms, end)
        return end

    def fetch(self, segment: Segment, records: list[tuple[int, int]]) -> Fetch:
        """How to bring these (log offset, size), at least one and all in `segment`, into memory.

        Where they lie in one piece or close to it that is the whole piece: who reads old messages reads on. The kernel
        is asked again about what is fetched.
        """
        first, last = records[0], records[-1]
        start = first[0] - (first[0] - segment.start) % PIECE_BYTES
        self._pieces.pop(start, None)
        if last[0] + last[1] - first[0] > PIECE_BYTES:
            ranges = [(offset - segment.start, size) for offset, size in records]
            return Fetch(segment.path, tuple(ranges))
        position = start - segment.start
        size = max(PIECE_BYTES, last[0] + last[1] - start)
        for each in range(start, start + size, PIECE_BYTES):
            self._pieces.pop(each, None)
        size = min(size + -size % PIECE_BYTES, segment.wrote - position)
        return Fetch(segment.path, ((position, size),), position + size)
