"""A master that wants another to take over: because it stops, because its disk is full, or because it stands still.

A full master cannot take a message, and a member of its set that has space can. It is no emergency: cleaning is given a
moment first, and what cannot help is left alone. Whether the other has space only the controller knows, by its
heartbeats: it refuses a successor that does not say so.

Where acknowledgements wait for disks, one flush that does not end stops a whole group, while its master lives and
renews its lease. A successor whose disk works has written all that we have; one whose disk does not never gets there,
and then nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq.cluster.broker.standing.controllerlink import ControllerLink
from tandemmq.storage import StoreFlags

log = logging.getLogger(__name__)

HAND_OVER_MS: Final = 1_000  # a stop waits at most so long for a successor to serve
CLEANING_MS: Final = 2_000  # so long a disk is full before anybody is asked: cleaning may help
ASK_AGAIN_MS: Final = 5_000  # after an attempt that nothing came of
STAY_MS: Final = (
    60_000  # from one hand-over of this process to its next: two bad disks must not take turns
)
LOOK_MS_MAX: Final = 200  # more than so long after the last look nobody looked on

NEVER: Final = -(1 << 60)


@dataclass(slots=True)
class BadDisk:
    """The core of the other kinds, without I/O. Asked now and then by a master: to whom should it hand over now?

    None: to nobody. patience_ms: so long its disk is bad before anybody is asked.
    """

    patience_ms: int
    _bad_since_ms: int | None = None
    _asked_ms: int = NEVER
    _handed_over_ms: int = NEVER
    _attempts: int = 0

    def look(self, now_ms: int, *, bad: bool, in_sync: Sequence[int]) -> int | None:
        """bad: no put is taken, or acknowledged, for its sake. in_sync: connected members of the set besides
        ourselves, the best first; they are asked in turn."""
        if not bad:
            self._bad_since_ms = None
            self._attempts = 0
            return None
        if self._bad_since_ms is None:
            self._bad_since_ms = now_ms
        if (
            not in_sync
            or now_ms - self._bad_since_ms < self.patience_ms
            or now_ms - self._asked_ms < ASK_AGAIN_MS
            or now_ms - self._handed_over_ms < STAY_MS
        ):
            return None
        self._asked_ms = now_ms
        successor = in_sync[self._attempts % len(in_sync)]
        self._attempts += 1
        return successor

    def deposed(self, now_ms: int) -> None:
        """The reign ended. If that was our wish, the next one of this process lasts for a while."""
        if now_ms - self._asked_ms < ASK_AGAIN_MS:  # be the disk well again since we asked
            self._handed_over_ms = now_ms
        self._bad_since_ms = None
        self._attempts = 0


@dataclass(slots=True)
class StalledFlush:
    """For how long one flush has been running, as far as somebody looked on: not while this process was stopped."""

    _began_ms: int | None = None
    _looked_ms: int = 0
    _seen_ms: int = 0

    def seen_ms(self, now_ms: int, began_ms: int | None) -> int:
        """began_ms: of the flush that runs now; None: none does."""
        if began_ms is None or began_ms != self._began_ms:
            self._seen_ms = 0
        else:
            self._seen_ms += min(now_ms - self._looked_ms, LOOK_MS_MAX)
        self._began_ms, self._looked_ms = began_ms, now_ms
        return self._seen_ms


class HandOver:
    """Asks the controller for a planned switchover.

    stall_ms     a flush that lasts so long is one of a disk that stands still; 0: none is
    copies_min   of minInSyncReplicas: where a full disk would leave fewer than that, staying or going is the same
    succeeded    set when we follow somebody: whoever it is takes messages
    """

    def __init__(
        self, link: ControllerLink, flags: StoreFlags, copies_min: int, stall_ms: int
    ) -> None:
        self.succeeded = asyncio.Event()
        self._full = BadDisk(CLEANING_MS)
        self._stalled = BadDisk(0)
        self._flush = StalledFlush()
        self._stall_ms = stall_ms
        self._link = link
        self._flags = flags
        self._copies_min = copies_min

    async def before_stop(self, near: Sequence[int]) -> None:
        """Have one of these serve first; the best one comes first. Waits for it, but not for long."""
        if not near:
            return
        successor = near[0]
        log.info("handing over before the stop successor=%d", successor)
        self._link.hand_over(successor)
        try:
            async with asyncio.timeout(HAND_OVER_MS / 1000):
                await self.succeeded.wait()
        except TimeoutError:
            log.warning("no successor serves yet, stopping all the same successor=%d", successor)

    def if_full(self, now_ms: int, near: Sequence[int]) -> None:
        """Have one of these take over that has space, when this disk has none."""
        if not self._link.leases:
            return  # a stock controller deposes a master at once: what is on its way would be lost
        successor = self._full.look(now_ms, bad=self._flags.full, in_sync=self._enough(near))
        if successor is not None:
            log.warning("no space on this disk, asking to hand over successor=%d", successor)
            self._link.hand_over(successor, spacious=True)

    def if_stalled(self, now_ms: int, began_ms: int | None, near: Sequence[int]) -> bool:
        """Have one of these take over when a flush that somebody waits for does not end; whether one was asked.

        began_ms: of the flush that runs now; None: none does.
        """
        seen_ms = self._flush.seen_ms(now_ms, began_ms)
        if not self._link.leases:
            return False
        stalled = 0 < self._stall_ms <= seen_ms
        successor = self._stalled.look(now_ms, bad=stalled, in_sync=self._enough(near))
        if successor is not None:
            log.warning(
                "the disk stands still, asking to hand over flush_ms=%d successor=%d",
                seen_ms,
                successor,
            )
            self._link.hand_over(successor)
        return successor is not None

    def deposed(self, now_ms: int) -> None:
        """The reign ended."""
        self._full.deposed(now_ms)
        self._stalled.deposed(now_ms)

    def _enough(self, near: Sequence[int]) -> Sequence[int]:
        return near if len(near) >= self._copies_min else ()
