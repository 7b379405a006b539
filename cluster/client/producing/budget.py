"""The time of one send, and how its attempts share it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Budget:
    """Time for all attempts of one send. began_s: loop time."""

    def __init__(self, began_s: float, timeout_ms: int) -> None:
        self._time_s: Callable[[], float] = asyncio.get_running_loop().time
        self._began_s = began_s
        self._timeout_ms = timeout_ms

    def spent_ms(self) -> int:
        return int((self._time_s() - self._began_s) * 1000)

    def left_ms(self) -> int:
        return self._timeout_ms - self.spent_ms()


def part_ms(left_ms: int, attempts: int, given_ms: int | None) -> int:
    """What the next of so many attempts may take: half of what is left, the last one all of it.

    Not equal parts: a broker that is only slow has stored the message, and each try stores it again.
    """
    if attempts <= 1:
        return left_ms
    return min(left_ms, given_ms if given_ms is not None else max(left_ms // 2, 1))
