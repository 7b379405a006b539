"""Time for delays: what a step of the wall clock does not corrupt.

A record's store time is wall time that never goes back within a log. So after a clock has been ahead and
was put right, store times stand still until real time has passed the highest of them, and after a step
nothing that is computed from them and the wall clock is a delay any more. Delays of what arrives while this
broker is the master are counted on the monotonic clock from its arrival; older messages have nothing but
their store time, and that is compared with a wall clock that follows a step only after a minute.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Final

from tandemmq.storage import Clock, MessageStore

log = logging.getLogger(__name__)

STEP_MS: Final = 1_000  # less is followed at once: clocks are slewed, and looks are late
BELIEVED_MS: Final = 60_000  # a step that lasts so long was meant
LOOK_MS: Final = 1_000


class SteadyTime:
    """The wall clock as the monotonic one continues it.

    steps     how many steps were seen
    moved_ms  monotonic time until which store times may be of a clock that is not this one: a step
              was seen, lasts, was followed or taken back then; -1: never
    """

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._ahead_ms = clock.now_ms() - clock.monotonic_ms()  # of the monotonic clock
        self._stepped: tuple[int, int] | None = None  # to where, and when
        self.steps = 0
        self.moved_ms = -1

    async def run(self) -> None:
        """Look until cancelled; a broker's job in every role."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_MS / 1000)

    def look(self) -> None:
        """Compare the clocks. Called often: a step that nobody sees is believed."""
        now_ms = self._clock.monotonic_ms()
        ahead_ms = self._clock.now_ms() - now_ms
        step_ms = ahead_ms - self._ahead_ms
        if abs(step_ms) < STEP_MS:
            self._ahead_ms = ahead_ms
            if self._stepped is not None:
                self._stepped = None
                self.moved_ms = now_ms
                self._say("is right again")
            return
        self.moved_ms = now_ms  # store times that were taken since it stepped are not ours
        if self._stepped is None or abs(ahead_ms - self._stepped[0]) >= STEP_MS:
            self._stepped = (ahead_ms, now_ms)
            self.steps += 1
            self._say(f"stepped by {step_ms} ms, delays are counted without that")
        elif now_ms - self._stepped[1] >= BELIEVED_MS:
            self._stepped = None
            self._ahead_ms = ahead_ms
            self._say(f"has stood by its step of {step_ms} ms and is believed")

    def monotonic_ms(self, wall_ms: int) -> int:
        """When it is, or was, this wall time."""
        return wall_ms - self._ahead_ms

    def _say(self, what: str) -> None:
        """With what follows for store times, by which messages are searched and kept."""
        frozen_ms = self._store.last_store_ms - self._clock.now_ms()
        log.warning("the clock %s store_times_stand_still_ms=%d", what, max(0, frozen_ms))


@dataclass(slots=True)
class _Came:
    """Entries below `end`, from where the one before ends: they came within this time (monotonic)."""

    end: int
    first_ms: int
    last_ms: int


class Arrivals:
    """When the entries of one level's queue came, as seen by who looks at it all the time.

    Kept finely enough for a thousandth of the delay; what was there at the first look came at some
    time before it.
    """

    def __init__(self, delay_ms: int, end: int, now_ms: int) -> None:
        self._delay_ms = delay_ms
        self._began_ms = now_ms
        self._known_from = self._end = end
        self._looked_ms = now_ms
        self._came: deque[_Came] = deque()

    def look(self, end: int, now_ms: int) -> None:
        """The queue ends here now."""
        if end < self._end:  # cut: what comes now is other messages
            self._came.clear()
            self._known_from = end
        elif end > self._end:
            newest = self._came[-1] if self._came else None
            if newest is not None and now_ms - newest.first_ms < self._delay_ms // 1_000:
                newest.end, newest.last_ms = end, now_ms
            else:
                self._came.append(_Came(end, self._looked_ms, now_ms))
        self._end = end
        self._looked_ms = now_ms

    def due_ms(self, queue_offset: int, stored_due_ms: int, moved_ms: int) -> int:
        """When an entry is due, on the monotonic clock. Asked in the order of the queue.

        stored_due_ms  the same by its store time, which may be ahead
        moved_ms       since when store times of before cannot be compared with the clock; -1: they can
        """
        came = self._came
        while came and came[0].end <= queue_offset:
            came.popleft()
        if queue_offset < self._known_from or not came:
            # It came before we looked: later than the whole delay from then is a wrong store time.
            return min(stored_due_ms, self._began_ms + self._delay_ms)
        seen_due_ms = came[0].last_ms + self._delay_ms
        if moved_ms > came[0].first_ms:
            return seen_due_ms  # it came by then: rather late by a look than early by one
        return min(stored_due_ms, seen_due_ms)
