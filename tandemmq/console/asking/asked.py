"""What viewers look at one by one, e.g. how full a topic of the page is: asked for behind the page, kept for a while.

A page never waits for it: it shows what is known, and is shown again when more is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tandemmq.cluster.client import ClientError

AT_ONCE: Final = 8
WANTED_MAX: Final = 1_000  # a page has fewer rows
KEPT_MAX: Final = 4_000

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something is not known."""

    why: str


class Asked(Generic[_Key, _Value]):
    """Answers by key.

    ask      asks the cluster; its ClientError is kept as the answer's Problem
    lasts_s  an older answer is shown, and asked for again
    changed  called when there are new answers, at most a few times a second
    """

    def __init__(
        self,
        ask: Callable[[_Key], Awaitable[_Value]],
        changed: Callable[[], Awaitable[None]],
        *,
        lasts_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._changed = changed
        self._lasts_s = lasts_s
        self._now_s = now_s
        self._known: dict[_Key, tuple[float, _Value | Problem]] = {}
        self._wanted: dict[_Key, None] = {}
        self._some = asyncio.Event()

    def look(self, key: _Key) -> _Value | Problem | None:
        """What is known, None when nothing is yet; it is asked for when it is old."""
        at_s, value = self._known.get(key, (float("-inf"), None))
        if self._now_s() - at_s > self._lasts_s and len(self._wanted) < WANTED_MAX:
            self._wanted.setdefault(key)
            self._some.set()
        return value

    def known(self, key: _Key) -> _Value | Problem | None:
        """What is known, without asking: from any thread."""
        return self._known.get(key, (0.0, None))[1]

    async def run(self) -> None:
        """Ask for what was looked for, until cancelled."""
        while True:
            await self._some.wait()
            batch = [self._wanted.popitem()[0] for _ in range(min(AT_ONCE, len(self._wanted)))]
            if not self._wanted:
                self._some.clear()
            answers = await asyncio.gather(*(self._answer(key) for key in batch))
            for key, answer in zip(batch, answers, strict=True):
                self._known.pop(key, None)
                self._known[key] = (self._now_s(), answer)
            while len(self._known) > KEPT_MAX:
                del self._known[next(iter(self._known))]
            if not self._wanted or len(self._known) % (AT_ONCE * 4) < AT_ONCE:
                await self._changed()

    async def _answer(self, key: _Key) -> _Value | Problem:
        try:
            return await self._ask(key)
        except (ClientError, OSError) as problem:
            return Problem(str(problem) or repr(problem))
