"""One event loop in a thread of its own, for callers that have none, or one that they must not hold up."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

T = TypeVar("T")


class Portal:
    """Runs coroutines elsewhere and waits for them here. Safe for many threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns, or raises. Interrupted by Ctrl-C, it cancels it and waits for its end."""
        loop = self._running()
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except CancelledError:
            raise
        except BaseException:
            if not future.done():  # raised in this thread, not by the work
                future.cancel()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():  # a fork has no threads but its own
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                threading.Thread(
                    target=self._loop.run_forever, name="tandemmq.blocking", daemon=True
                ).start()
            return self._loop


PORTAL = Portal()
