"""An event loop of one simulated process: real coroutines run in simulated time, deterministically.

Everything that a coroutine can wait for here is a timer or a future of this loop; there are no sockets and no threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tandemmq.chaos.sim.world import World

FASTER: Final = 10  # simulated lease times are so much shorter than the defaults


class ProcessLoop(asyncio.AbstractEventLoop):
    """Runs callbacks as events of the world, FASTER times as fast as the code thinks, by a clock that drifts.

    A paused process runs nothing and everything later; a dead one never again. What a callback raises goes up to who
    steps the world.
    """

    def __init__(self, world: World, drift: float) -> None:
        self._world = world
        self._rate = FASTER * (1 + drift) / 1e6  # our seconds in one microsecond of the world's
        self._paused = False
        self._dead = False
        self._waiting: deque[asyncio.Handle] = deque()
        self._problem: BaseException | None = None

    def pause(self, paused: bool) -> None:
        self._paused = paused
        while self._waiting and not self._paused:
            self._perform(self._waiting.popleft())

    def die(self) -> None:
        self._dead = True
        self._waiting.clear()

    # --- what coroutines use ---

    def time(self) -> float:
        return self._world.now_us * self._rate

    def monotonic_ms(self) -> int:
        return int(self.time() * 1000)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self._schedule(0, asyncio.Handle(callback, args, self, context))

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.time() + delay, callback, args, self, context)
        self._schedule(int(delay / self._rate) + 1, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # processes are killed here
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._problem = context.get("exception") or RuntimeError(context["message"])

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return

    # --- running ---

    def _schedule(self, delay_us: int, handle: asyncio.Handle) -> asyncio.Handle:
        self._world.after(delay_us, self._run, handle)
        return handle

    def _run(self, handle: asyncio.Handle) -> None:
        if self._paused:
            self._waiting.append(handle)
        elif not self._dead:
            self._perform(handle)

    def _perform(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(before)
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
