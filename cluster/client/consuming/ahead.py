"""Pulls of one range that are asked for before their turn, so that requests and answers travel together.

Where the next pulls begin is a guess: brokers end an answer after so many messages or bytes, so that answers are of one
length while messages are of one size. Nothing depends on it: who asks for an offset gets the answer to a pull of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tandemmq.cluster.client.consuming.pulls import PullFuture
from tandemmq.cluster.remoting import Channel

AHEAD_BYTES: Final = 2 << 20  # of a queue under way
AHEAD_MAX: Final = 48  # so many answers of 32 messages of 1 KiB hold as much


class PullsAhead:
    """The pulls under way of one range.

    ask     sends a pull of a queue offset through a channel
    forget  what was asked is not waited for any more
    """

    def __init__(
        self, ask: Callable[[Channel, int], PullFuture], forget: Callable[[PullFuture], None]
    ) -> None:
        self._ask = ask
        self._forget = forget
        self._under_way: dict[int, PullFuture] = {}
        self._step = 0  # messages of the last answer
        self._depth = 0  # how many pulls are asked ahead: more while answers are of one length

    def take(self, channel: Channel, offset: int, end: int) -> PullFuture:
        """The pull of an offset: asked for already, or now, with those behind it."""
        found = self._under_way.pop(offset, None)
        if found is not None and found.channel is not channel:
            self._forget(found)
            found = None
        if found is None:
            if self._under_way:  # a wrong guess
                self.drop()
            found = self._ask(channel, offset)
        if 2 * len(self._under_way) <= self._depth:  # many at once: they share a write and a read
            last = max(self._under_way, default=offset)
            ahead = range(last + self._step, end, self._step or 1)
            for each in ahead[: self._depth - len(self._under_way)]:
                self._under_way[each] = self._ask(channel, each)
        return found

    def answered(self, offset: int, end: int) -> PullFuture | None:
        """The pull of an offset where it was asked for before its turn, and its answer is here."""
        found = self._under_way.get(offset)
        if found is None or not found.done() or found.cancelled() or found.exception() is not None:
            return None
        return self.take(found.channel, offset, end)

    def learn(self, count: int, size: int) -> None:
        """An answer had so many messages, and bytes."""
        if count and count == self._step:
            depth_max = max(1, min(AHEAD_MAX, AHEAD_BYTES // max(1, size)))
            self._depth = min(depth_max, 2 * self._depth or 1)
            return
        self._step = count
        self.drop()

    def drop(self) -> None:
        """Nothing is asked ahead until answers are of one length again."""
        self._depth = 0
        for each in self._under_way.values():
            self._forget(each)
        self._under_way.clear()

    async def arrived(self, timeout_s: float) -> None:
        """Wait until nothing is under way: afterwards the loop may stand still for a while."""
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=timeout_s)
