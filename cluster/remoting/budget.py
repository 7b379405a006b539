"""What the peers of all connections together may leave unread.

One peer may have output_bytes_max; thousands that ask and never read would take the machine's memory all the same.
Nothing is counted per message: a connection is noted when its buffer is so full that we stop reading from it, and
once a second all of them are looked at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from tandemmq.cluster.logs import once_per

log = logging.getLogger(__name__)

DOWN_TO_PERCENT: Final = 75  # so that the next one does not begin it anew

_cut_off = once_per(10)


class Holder(Protocol):
    """A connection, as far as the budget looks at it."""

    closed: bool

    @property
    def address(self) -> str: ...

    @property
    def output_bytes(self) -> int: ...

    def abort(self, reason: str) -> None: ...


class OutputBudget:
    """INV-46: the connections that share it hold at most about bytes_max of output that was not read.

    Above it those that hold most are cut off, until three quarters are left. What one connection holds
    below its own limit is noticed within a second.

    bytes_max   of output that waits in this process, over all connections
    unread      bytes, at the last look; cut: connections that were cut off since the start
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.unread = 0
        self.cut = 0
        self._sources: list[Callable[[], Iterable[Holder]]] = []
        self._stuck: dict[Holder, int] = {}
        self._stuck_bytes = 0
        self._due = False

    def watch(self, connections: Callable[[], Iterable[Holder]]) -> None:
        """Whose output counts."""
        self._sources.append(connections)

    def stuck(self, holder: Holder) -> None:
        """It holds so much that we stop reading from it. The loop's thread."""
        self.moving(holder)
        size = self._stuck[holder] = holder.output_bytes
        self._stuck_bytes += size
        if self._stuck_bytes > self.bytes_max and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._look_now)

    def moving(self, holder: Holder) -> None:
        """Its peer has read again, or it has ended."""
        self._stuck_bytes -= self._stuck.pop(holder, 0)

    def _look_now(self) -> None:
        self._due = False
        self.look()

    def look(self) -> None:
        """Count, and cut off who holds most if it is too much."""
        held = [
            (size, each)
            for source in self._sources
            for each in source()
            if not each.closed and (size := each.output_bytes)
        ]
        self.unread = sum(size for size, _ in held)
        if self.unread <= self.bytes_max:
            return
        before, goal = self.unread, self.bytes_max * DOWN_TO_PERCENT // 100
        held.sort(key=lambda pair: -pair[0])
        largest, count = held[0], 0
        for size, holder in held:
            if self.unread <= goal:
                break
            holder.abort("all connections together hold too much output that nobody reads")
            self.unread -= size
            count += 1
        self.cut += count
        _cut_off.warning(
            log, "too much unread output, connections cut off count=%d unread_bytes=%d largest=%s bytes=%d",
            count, before, largest[1].address, largest[0],
        )  # fmt: skip
