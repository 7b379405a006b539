"""Time in tests: a clock that a test moves by hand, and an event loop on which every wait is over at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from tandemmq.storage import SystemClock

Result = TypeVar("Result")


class HandClock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class _JumpingSelector(selectors.DefaultSelector):
    """When nothing is ready the time of the next timer has come at once."""

    loop: JumpingLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("deadlock: every task is blocked and no timer is set")
        self.loop.now_s += timeout
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop with its own time."""

    def __init__(self) -> None:
        selector = _JumpingSelector()
        selector.loop = self
        self.now_s = 1_000.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s


class LoopClock(SystemClock):
    """Monotonic time is the loop's, so that it jumps too."""

    def monotonic_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on a loop whose time jumps; every wait in it is over at once."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(asyncio.wait_for(main, 3_600))
