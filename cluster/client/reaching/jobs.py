"""Background tasks of one owner: named, awaited at the end, never failing in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

log = logging.getLogger(__name__)


class Jobs:
    """Tasks that live until stop().

    What a job is expected to meet it handles itself; anything else is kept as
    `failure`, logged, and handed to whoever waits.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self.failure: BaseException | None = None

    def start(self, name: str, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run a coroutine beside the caller until it ends or stop() is called."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None and self.failure is None:
            log.error("client job failed name=%s", task.get_name(), exc_info=failure)
            self.failure = failure
            self._ended.set()

    def cancel(self) -> None:
        """Cancel everything that still runs, without waiting."""
        for task in list(self._tasks):
            task.cancel()
        self._ended.set()

    async def stop(self) -> None:
        """Cancel everything that still runs and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # failures are kept by _finished
        self._ended.set()

    async def wait(self) -> None:
        """Return after stop(); raise a job's failure as soon as there is one."""
        await self._ended.wait()
        if self.failure is not None:
            raise self.failure
