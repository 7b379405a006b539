"""Time as an argument: wall time stamps messages, monotonic time measures durations."""

from __future__ import annotations

import time
from typing import Final, Protocol

#: counts while the machine is suspended, where the kernel has such a clock: a lease must not outlive a nap
_MONOTONIC: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Two clocks. Only now_ms may jump; nothing may be timed with it."""

    def now_ms(self) -> int:
        """Wall time, milliseconds since the Unix epoch."""

    def monotonic_ms(self) -> int:
        """Milliseconds that only grow, also over a suspension; the origin means nothing."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(_MONOTONIC) // 1_000_000
