"""At most so many at once, first come first served, at a constant cost per turn."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType


class Turns:
    """`async with turns:` waits while `count` others are inside.

    asyncio.Semaphore looks through everybody who waits each time somebody leaves: 10,000 concurrent
    sends would spend most of their time there. Here a leaver hands its place to the next.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # the place was ours already
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else its task was cancelled while it waited
                turn.set_result(None)
                return
        self._free += 1
