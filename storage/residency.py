"""Which parts of the log lie in memory, asked of the kernel a piece at a time and remembered for a moment.

Reading through a mapping what is not there stops every thread until the disk has answered, and reading through the
file what is there costs a system call per record. A piece that the kernel says is there is read through the mapping.
"""

from __future__ import annotations

from typing import Final

from tandemmq.storage.clock import Clock
from tandemmq.storage.pagecache import PageCache
from tandemmq.storage.segment import Segment

PIECE_BYTES: Final = 4 << 20
ASK_AGAIN_MS: Final = 1_000
PIECES_MAX: Final = 1_024


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

    def forget(self, segment: Segment, offset: int) -> None:
        """The pieces around `offset` were just read from the disk: ask about them again."""
        start = offset - (offset - segment.start) % PIECE_BYTES
        self._pieces.pop(start, None)
        self._pieces.pop(start + PIECE_BYTES, None)
