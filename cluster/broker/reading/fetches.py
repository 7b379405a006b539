"""Reads of what is not in memory: each by a thread, each once however many readers want it."""

from __future__ import annotations

import asyncio
import contextlib

from tandemmq.storage import Fetch


class Fetches:
    """Those that run right now. As many threads at once as the loop's executor has."""

    def __init__(self) -> None:
        self._running: dict[Fetch, asyncio.Task[None]] = {}

    async def done(self, fetch: Fetch) -> None:
        """Have it run, or wait for who asked before. Raises OSError."""
        task = self._running.get(fetch)
        if task is None:
            task = self._running[fetch] = asyncio.create_task(asyncio.to_thread(fetch.run))
            task.add_done_callback(lambda _: self._running.pop(fetch))
        with contextlib.suppress(
            FileNotFoundError
        ):  # retention was quicker: who reads again finds that out
            await asyncio.shield(task)  # others may wait for it
