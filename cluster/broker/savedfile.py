"""One small JSON file of a broker.

Written by the loop's thread or by another, never out of order.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage import jsonfile


class SavedFile:
    """Writes generations of one table to one file.

    The table counts its changes in `generation`; a write of an older generation than the one on
    disk is skipped, so a slow write in a thread never undoes a quick one on the loop.
    """

    def __init__(self, path: Path, snapshot: Callable[[], dict[str, Any]]) -> None:
        self.path = path
        self.generation = 0
        self._snapshot = snapshot
        self._written = 0
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

    def changed(self) -> None:
        """The table is newer than the file now."""
        self.generation += 1

    def save(self) -> None:
        """Write what the table holds now; returns when it is on disk.

        Blocks: start, stop and rare moments.
        """
        if self.unsaved:
            self._write(self.generation, self._snapshot())

    async def saved(self) -> None:
        """Wait until every change made so far is on disk.

        A call that comes while one writes shares the next.
        """
        wanted = self.generation
        async with self._turn:
            if self._written < wanted:
                await asyncio.to_thread(self._write, self.generation, self._snapshot())

    def _write(self, generation: int, content: dict[str, Any]) -> None:
        with self._lock:
            if generation > self._written:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                jsonfile.save(self.path, content)
                self._written = generation
