"""One period in which this controller leads: its core, and effects that wait until what they rest on is durable."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from tandemmq.cluster.controller.store import Changes, StoreUnreachable
from tandemmq.cluster.logs import once_per
from tandemmq.replication import GroupRecord
from tandemmq.replication import election as e

log = logging.getLogger(__name__)

HELD_MAX: Final = 4_096  # effects that wait for the store; beyond it requests are refused
RETRY_S: Final = 0.3  # after the store failed

Write = Callable[[Changes], Awaitable[None]]


class Reign:
    """Feeds the core and performs its effects in order.

    INV-34: an effect is performed only when every record before it is durable. All records that wait are written at
    once: a later record of a group stands for the earlier ones, and to be durable early harms no effect.

    write    makes records durable. Raises StoreUnreachable (tried again, for ever), LeadershipLost (out of run())
    perform  does one effect that is no Persist, now
    may_lead asked before every step: once false, nothing is decided or said any more
    """

    def __init__(
        self,
        core: e.ControllerCore,
        write: Write,
        perform: Callable[[e.Effect], None],
        now_ms: Callable[[], int],
        may_lead: Callable[[], bool],
    ) -> None:
        self.core = core
        self.failing_since_ms: int | None = None
        self._write = write
        self._perform = perform
        self._now_ms = now_ms
        self._may_lead = may_lead
        self._held: deque[e.Effect] = deque()
        self._writing = False
        self._work = asyncio.Event()
        self._failures = once_per(10)

    @property
    def held(self) -> int:
        """Effects that wait for the store."""
        return len(self._held)

    @property
    def overloaded(self) -> bool:
        """Whether the store is too slow for more requests."""
        return len(self._held) >= HELD_MAX

    def feed(self, event: e.Event) -> None:
        """Step the core; effects leave now, or when their records are durable."""
        if not self._may_lead():
            self._work.set()  # run() finds out and ends
            return
        self._held.extend(self.core.step(event, self._now_ms()))
        self._release()

    def _release(self) -> None:
        if self._writing or not self._may_lead():
            return
        while self._held:
            if isinstance(self._held[0], e.Persist):
                self._work.set()
                return
            self._perform(self._held.popleft())

    async def run(self) -> None:
        """Write records; returns when this controller may lead no more. Raises LeadershipLost."""
        while self._may_lead():
            await self._work.wait()
            self._work.clear()
            if not self._may_lead():
                return
            if self._held and isinstance(self._held[0], e.Persist):
                await self._commit()

    async def _commit(self) -> None:
        """Make every record that waits now durable, then perform what waited for them."""
        self._writing = True
        changes: dict[str, GroupRecord | None] = {}
        count = 0
        for number, effect in enumerate(self._held, 1):
            if isinstance(effect, e.Persist):
                changes[effect.group] = effect.record
                count = number
        try:
            await self._write(changes)
        except StoreUnreachable as problem:
            self._note_failure(problem)
            await asyncio.sleep(RETRY_S)
            self._writing = False
            self._work.set()
            return
        if self.failing_since_ms is not None:
            log.info("store works again after_ms=%d", self._now_ms() - self.failing_since_ms)
            self.failing_since_ms = None
        if self._may_lead():
            for _ in range(count):
                effect = self._held.popleft()
                if not isinstance(effect, e.Persist):
                    self._perform(effect)
        else:
            self._work.set()
        self._writing = False
        self._release()

    def _note_failure(self, problem: StoreUnreachable) -> None:
        if self.failing_since_ms is None:
            self.failing_since_ms = self._now_ms()
        if self._failures():
            log.error(
                "records cannot be made durable, nothing is decided until they are: %s waiting=%d",
                problem,
                len(self._held),
            )
