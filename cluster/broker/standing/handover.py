"""A master that wants another to take over: because it stops, or because its disk is full.

A full master cannot take a message, and a member of its set that has space can. It is no emergency: cleaning is given a
moment first, and what cannot help is left alone. Whether the other has space only the controller knows, by its
heartbeats: it refuses a successor that does not say so.
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
    60_000  # from one hand-over of this process to its next: two full disks must not take turns
)

NEVER: Final = -(1 << 60)


@dataclass(slots=True)
class FullDisk:
    """The core of the second kind, without I/O. Asked now and then by a master: to whom should it hand over now?

    None: to nobody.
    """

    _full_since_ms: int | None = None
    _asked_ms: int = NEVER
    _handed_over_ms: int = NEVER
    _attempts: int = 0

    def look(self, now_ms: int, *, full: bool, in_sync: Sequence[int]) -> int | None:
        """full: the store refuses puts for want of space. in_sync: connected members of the set besides
        ourselves, the best first; they are asked in turn."""
        if not full:
            self._full_since_ms = None
            self._attempts = 0
            return None
        if self._full_since_ms is None:
            self._full_since_ms = now_ms
        if (
            not in_sync
            or now_ms - self._full_since_ms < CLEANING_MS
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
        if self._attempts and now_ms - self._asked_ms < ASK_AGAIN_MS:
            self._handed_over_ms = now_ms
        self._full_since_ms = None
        self._attempts = 0


class HandOver:
    """Asks the controller for a planned switchover.

    copies_min   of minInSyncReplicas: where a full disk would leave fewer than that, staying or going is the same
    succeeded    set when we follow somebody: whoever it is takes messages
    """

    def __init__(self, link: ControllerLink, flags: StoreFlags, copies_min: int) -> None:
        self.succeeded = asyncio.Event()
        self.full_disk = FullDisk()
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
        in_sync = near if len(near) >= self._copies_min else ()
        successor = self.full_disk.look(now_ms, full=self._flags.full, in_sync=in_sync)
        if successor is not None:
            log.warning("no space on this disk, asking to hand over successor=%d", successor)
            self._link.hand_over(successor, spacious=True)
