"""Where progress may be kept and told: the one rule for every table that follows from the log.

How far consumers and delay levels came is derived from the log: a position speaks for messages that were
delivered, put back or consumed, and some of these are records themselves (the delivered copy of a delayed
message, the copy that a consumer sent back). A table that outlives such a record delivers its message never.

INV-41: no progress is on a disk, or in the hands of a slave, that rests on log bytes which are not on that
disk, not confirmed, or not with that slave. Whatever is written down rests on the log's end at that moment:
everything it can speak for lies below.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tandemmq.cluster.broker.settings.config import Role
from tandemmq.cluster.broker.standing.standing import Standing
from tandemmq.storage import MessageStore

SETTLE_MS: Final = 1_000  # a save, or an answer, waits at most so long for the log
LOOK_MS: Final = 10
KEPT_MAX: Final = 32

#: On the answer with a table of progress (ours): the log offset on which it rests.
RESTS_ON: Final = "restsOn"


@dataclass(frozen=True, slots=True, eq=False)
class Resting:
    """The log that progress rests on, as this broker has it.

    flush   have the log on the disk up to an offset; raises FlushFailed
    """

    store: MessageStore
    standing: Standing
    flush: Callable[[int], Awaitable[None]]

    @property
    def end(self) -> int:
        """On which all progress rests that is there now."""
        return self.store.end

    def settled(self, end: int) -> bool:
        """Whether progress that rests on `end` may be saved. A slave has taken over only what it holds,
        and what is confirmed of its own log is its master's to say."""
        if self.store.flushed < end:
            return False
        return self.standing.role is Role.SLAVE or self.store.confirmed >= end

    async def settle(self, end: int) -> bool:
        """Have it settled, which takes a flush and SETTLE_MS at most; whether it is. Raises FlushFailed."""
        await self.flush(end)
        return await _within(SETTLE_MS, lambda: self.settled(end))

    async def shared(self, end: int) -> bool:
        """Wait, SETTLE_MS at most, until progress that rests on `end` may be told to somebody who will
        not look at what it rests on: a stock slave, a tool. Whether it may."""
        return await _within(SETTLE_MS, lambda: self._may_be_shared(end))

    def _may_be_shared(self, end: int) -> bool:
        if self.standing.role is Role.SLAVE:
            return True  # what its master told
        if self.store.confirmed < end:
            return False
        # Where nobody is waited for, what is confirmed may be here alone.
        return all(each.acked >= end for each in self.standing.slaves() if each.in_sync)

    def holds(self, end: int) -> bool:
        """Whether this slave's log is its master's up to `end`, and that is confirmed."""
        following = self.standing.following
        streaming = end == 0 or (following is not None and following.streaming)
        return streaming and self.store.confirmed >= end


class Recent:
    """What progress was when the log ended where, the last ones: to go back to when the log is cut.

    At most KEPT_MAX, the older the sparser. Values must not be changed once they are here.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[int, dict[int, int]]] = []

    def note(self, end: int, progress: dict[int, int]) -> None:
        """Progress that rests on the log up to `end`."""
        kept = self._kept
        while kept and kept[-1][0] >= end:
            kept.pop()
        kept.append((end, progress))
        if len(kept) > KEPT_MAX:
            spans = [
                (kept[at + 1][0] - kept[at - 1][0]) / (end - kept[at - 1][0] + 1)
                for at in range(1, len(kept) - 1)
            ]
            del kept[1 + spans.index(min(spans))]

    def at(self, end: int) -> dict[int, int] | None:
        """The newest that rests on no more than `end`, and nothing newer is known any more; None:
        nothing is known that does."""
        while self._kept and self._kept[-1][0] > end:
            self._kept.pop()
        return self._kept[-1][1] if self._kept else None

    @property
    def rests_on(self) -> int:
        """Of the newest; 0 without one."""
        return self._kept[-1][0] if self._kept else 0


async def _within(limit_ms: int, holds: Callable[[], bool]) -> bool:
    for _ in range(limit_ms // LOOK_MS):
        if holds():
            return True
        await asyncio.sleep(LOOK_MS / 1000)
    return holds()
