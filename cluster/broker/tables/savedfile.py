"""One small JSON file of a broker.

Written by the loop's thread or by another, never out of order.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tandemmq.storage import jsonfile

log = logging.getLogger(__name__)

CHANGES_KEPT: Final = 4_096


class Rests(Protocol):
    """The log that a table rests on: see tandemmq.cluster.broker.tables.resting."""

    @property
    def end(self) -> int: ...

    def settled(self, end: int) -> bool: ...

    async def settle(self, end: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Held:
    """A table as it was in a generation, when its log ended at `end`."""

    generation: int
    content: dict[str, Any] | bytes
    end: int


class SavedFile:
    """Writes generations of one table to one file.

    The table counts its changes in `generation`; a write of an older generation than the one on
    disk is skipped, so a slow write in a thread never undoes a quick one on the loop. Which entries
    the last changes were of is remembered, for who has the table of a moment ago.

    rests   the log that the table must not outlive, if there is one: while it does not reach far
            enough the table stays unsaved (INV-41), and the next call tries again. What it tries is the
            table as it was: under constant change the log would never reach far enough for the newest
    """

    def __init__(
        self,
        path: Path,
        snapshot: Callable[[], dict[str, Any] | bytes],
        *,
        mode: int | None = None,
    ) -> None:
        """snapshot: the whole table as it is now, or that as JSON already. mode: permissions, where it has secrets"""
        self.path = path
        self._mode = mode
        self.generation = 0
        self.rests: Rests | None = None
        self._snapshot = snapshot
        self._written = 0
        self._changes: deque[tuple[int, tuple[str, ...]]] = deque()
        self._named_from = 0  # of every change behind this generation the names are known
        self._held: _Held | None = None  # not written yet, for the log it rests on
        self._waiting: list[asyncio.Future[None]] = []
        self._turn = (
            asyncio.Lock()
        )  # taken first: one writing task at a time, the others share its next write
        self._lock = (
            threading.Lock()
        )  # taken second: a save() on the loop's thread against a write in a thread

    def load(self) -> dict[str, Any] | None:
        """The file's content, from .bak when the file is missing or damaged.

        None when there is neither.
        """
        return jsonfile.load(self.path)

    @property
    def unsaved(self) -> bool:
        return self._written < self.generation

    def changed(self, *names: str) -> None:
        """The table is newer than the file now.

        names   the entries that were made, changed or taken away; none: all may have been
        """
        self.generation += 1
        if names:
            self._changes.append((self.generation, names))
            if len(self._changes) > CHANGES_KEPT:
                self._named_from = self._changes.popleft()[0]
        else:
            self._changes.clear()
            self._named_from = self.generation
        self.release()

    def changed_since(self, generation: int) -> set[str] | None:
        """The entries that changed after a generation; None: all of them may have."""
        if not self._named_from <= generation <= self.generation:
            return None
        found: set[str] = set()
        for at, names in reversed(self._changes):
            if at <= generation:
                break
            found.update(names)
        return found

    async def newer(self, generation: int, timeout_ms: int) -> None:
        """Wait until the table is newer than a generation, or it took too long, or release()."""
        if self.generation > generation:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await asyncio.wait((waiting,), timeout=timeout_ms / 1000)
        if not waiting.done():
            self._waiting.remove(waiting)

    def release(self) -> None:
        """Whoever waits in newer() waits no longer."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def save(self) -> None:
        """Write what the table holds now; returns when it is on disk.

        Blocks: start, stop and rare moments.
        """
        if not self.unsaved:
            return
        if self.rests is None or self.rests.settled(self.rests.end):
            self._write(self.generation, self._snapshot())
        elif self._held is not None and self.rests.settled(self._held.end):
            self._write(self._held.generation, self._held.content)

    def take_back(self) -> None:
        """Write the table when the log that it speaks of was cut, before more of the log comes. Blocks.

        At a later start nobody could tell that what the file speaks for went: the log may have grown past it again. It
        waits for no log: less progress only repeats. A failure is logged: the next save() tries again.
        """
        if not self.unsaved:
            return
        try:
            self._write(self.generation, self._snapshot())
        except OSError as problem:
            log.error("what a cut took back is not saved path=%s why=%s", self.path, problem)

    async def saved(self) -> None:
        """Wait until every change made so far is on disk.

        A call that comes while one writes shares the next. Raises OSError, and FlushFailed where the
        table rests on a log.
        """
        wanted = self.generation
        async with self._turn:
            while self._written < wanted:
                if self._held is None:
                    # What is written was true when the log ended here, so it rests on nothing later.
                    end = self.rests.end if self.rests is not None else 0
                    self._held = _Held(self.generation, self._snapshot(), end)
                held = self._held
                if self.rests is not None and not await self.rests.settle(held.end):
                    return
                if self._held is held:  # its log was not cut meanwhile
                    self._held = None
                    await asyncio.to_thread(self._write, held.generation, held.content)

    def cut(self, log_end: int) -> None:
        """The log that the table rests on was cut: what rested behind is never written."""
        if self._held is not None and self._held.end > log_end:
            self._held = None

    def _write(self, generation: int, content: dict[str, Any] | bytes) -> None:
        with self._lock:
            if generation > self._written:
                jsonfile.save(self.path, content, mode=self._mode)
                self._written = generation
