"""A listener that keeps what it got, and waits with an end, for tests of our client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tandemmq import ReceivedMessage

WAIT_S = 30.0


class Inbox:
    """A listener that keeps what it got."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self._changed = asyncio.Condition()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        async with self._changed:
            self._changed.notify_all()

    @property
    def bodies(self) -> list[bytes]:
        return sorted(message.body for message in self.messages)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(holds)

    async def count(self, count: int) -> None:
        await self.until(lambda: len(self.messages) >= count)


async def eventually(holds: Callable[[], bool], what: str) -> None:
    """Look until it holds; for states of other tasks and processes that nobody announces."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {what}"
        await asyncio.sleep(0.02)
