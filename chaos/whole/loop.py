"""The event loop of one simulated process: what asyncio's own does, on the stage's clock, in turns that never vary.

Threads are simulated too: a function given to an executor runs whole at one moment, and its caller hears of it later.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final

from tandemmq.chaos.whole.wires import FakeListener, FakeSocket, StreamTransport

if TYPE_CHECKING:
    from tandemmq.chaos.whole.stage import Life

TURN_US: Final = (1, 40)  # from a callback's being due to the turn that runs it


class TurnHandle(asyncio.TimerHandle):
    """A callback that is due, now or at a time. asyncio's own asks its loop whether it debugs when it is made and when
    it is cancelled, and a seed makes five thousand."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._when = 0.0

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]  # as asyncio's: they may hold much

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._callback}>"


class CountedFuture(asyncio.Future[Any]):
    """Its hash is a number and no address: sets of futures are walked in the same order in every run."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class CountedTask(asyncio.Task[Any]):
    """As CountedFuture."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class TurnLoop(asyncio.AbstractEventLoop):
    """Runs in turns: each performs what was ready when it began. A paused process has none; a dead one never again."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._host = life.host
        self._stage = life.stage
        self._ready: deque[TurnHandle] = deque()
        self._turn_due = False
        self._numbers = 0
        self._judge: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], Any] | None = None
        self._signals: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._busy_until_us: dict[int, int] = {}  # by id of an executor with one thread

    # --- what coroutines use ---

    def time(self) -> float:
        return self._host.monotonic_us() / 1e6

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = TurnHandle(callback, args, context)
        self._ready.append(handle)
        if not self._turn_due:
            self.wake()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:  # fmt: skip
        handle = TurnHandle(callback, args, context)
        handle._when = self.time() + delay
        self._stage.after(max(0, int(delay * 1e6)) + 1, self._fire, handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:  # fmt: skip
        handle = TurnHandle(callback, args, context)
        handle._when = when
        delay_us = max(0, int((when - self.time()) * 1e6)) + 1
        self._stage.after(delay_us, self._fire, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        future = CountedFuture(loop=self)
        self._numbers += 1
        future.number = self._numbers
        return future

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:  # fmt: skip
        task = CountedTask(coro, loop=self, name=name, context=context)
        self._numbers += 1
        task.number = self._numbers
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # processes are killed here
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        stage, host = self._stage, self._life.host
        begins_us, ends_us = host.thread_us()
        begin = stage.now_us + begins_us
        if getattr(executor, "_max_workers", 0) == 1:
            begin = max(begin, self._busy_until_us.get(id(executor), 0))
            self._busy_until_us[id(executor)] = begin + ends_us
        stage.at(begin, self._thread, future, func, args, ends_us)
        return future

    get_debug = staticmethod(bool)  # False; each future asks, and this costs no frame

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    # --- failures and signals ---

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], Any] | None
    ) -> None:
        self._judge = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._life.dead:
            return
        (self._judge or TurnLoop.default_exception_handler)(self, context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """asyncio's own would log and go on; here it is a finding."""
        self._stage.unhandled(self._life, context)

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., object], *args: Any
    ) -> None:
        self._signals[int(sig)] = (callback, args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self._signals.pop(int(sig), None) is not None

    def terminate(self) -> None:
        """SIGTERM; the default action ends the process at once."""
        found = self._signals.get(signal.SIGTERM)
        if found is None:
            self._life.die("SIGTERM")
        else:
            self.call_soon(found[0], *found[1])

    # --- connections ---

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        return [(2, 1, 6, "", (str(host), int(port)))]

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, Any]:  # fmt: skip
        end = await self._stage.wires.connect(self._life, (host, port))
        protocol = protocol_factory()
        transport = StreamTransport(end, protocol, self)
        made = self.create_future()
        self.call_soon(transport.begin, made)
        await made
        return transport, protocol

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> FakeServer:  # fmt: skip
        server = FakeServer(self, protocol_factory, (host, port))
        self._stage.wires.listen(self._life, (host, port), server.accept)
        return server

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        assert isinstance(fd, FakeSocket | FakeListener)
        fd.watch_reading(self, callback, args)

    def remove_reader(self, fd: Any) -> bool:
        return bool(fd.ignore_reading())

    def add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        assert isinstance(fd, FakeSocket)
        fd.watch_writing(self, callback, args)

    def remove_writer(self, fd: Any) -> bool:
        return isinstance(fd, FakeSocket) and fd.ignore_writing()

    # --- running ---

    def wake(self) -> None:
        """Have a turn soon, if there is anything to do and the process runs."""
        if not self._turn_due and self._ready and not self._life.paused and not self._life.dead:
            self._turn_due = True
            self._stage.within(TURN_US, self._turn)

    def _fire(self, handle: TurnHandle) -> None:
        if not handle._cancelled and not self._life.dead:
            self._ready.append(handle)
            if not self._turn_due:
                self.wake()

    def _turn(self) -> None:
        self._turn_due = False
        life, ready = self._life, self._ready
        if life.paused or life.dead:
            return
        stage = self._stage
        stage.events += 1
        stage.current = life
        if stage.running_loop is not self:
            stage.running_loop = self
            asyncio._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as problem:
                    message = f"Exception in callback {handle}"
                    self.call_exception_handler(
                        {"message": message, "exception": problem, "handle": handle}
                    )
                if life.host.life is not life:
                    return
        finally:
            stage.current = None
        if ready and not self._turn_due:
            self.wake()

    def _thread(
        self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...], ends_us: int
    ) -> None:  # fmt: skip
        life = self._life
        if life.dead:
            return
        if life.paused:
            life.later.append((self._thread, future, func, args, ends_us))
            return
        result, problem = None, None
        self._stage.running_loop = None  # it is in a thread
        asyncio._set_running_loop(None)
        with life.running():
            try:
                result = func(*args)
            except BaseException as raised:
                problem = raised
        if not life.dead:
            self._stage.after(ends_us, self._done, future, result, problem)

    def _done(
        self, future: asyncio.Future[Any], result: Any, problem: BaseException | None
    ) -> None:
        def tell() -> None:
            if future.done():
                return
            if problem is None:
                future.set_result(result)
            else:
                future.set_exception(problem)

        if not self._life.dead:
            self.call_soon(tell)


class FakeServer:
    """What create_server() gives: accepts while it is open."""

    def __init__(
        self, loop: TurnLoop, make: Callable[[], asyncio.BaseProtocol], address: tuple[str, int]
    ) -> None:
        self._loop = loop
        self._make = make
        self._address = address
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def accept(self, end: Any) -> None:
        """A connection came in; on the loop's own turn it is looked at."""
        self._loop.call_soon(self._accept, end)

    def _accept(self, end: Any) -> None:
        StreamTransport(end, self._make(), self._loop).begin(None)

    def close(self) -> None:
        self._loop._stage.wires.unlisten(self._address)

    async def wait_closed(self) -> None:
        return
