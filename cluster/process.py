"""What every server process does around its work: loop, signals, limits, jobs that end together."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import IntEnum
from typing import Any, Final

try:
    import uvloop

    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
except ImportError:  # not on this platform: slower, never different
    new_event_loop = asyncio.new_event_loop

log = logging.getLogger(__name__)

OPEN_FILES_WANTED: Final = 65_536  # 10,000 connections and as many mapped queue files

DESCRIPTORS_KEPT: Final = 4_096  # of them, for files and for connections on their way out
BACKLOG_MAX: Final = 1_024

Job = Callable[[], Awaitable[None]]


class ExitCode(IntEnum):
    """How a server process ends."""

    OK = 0
    BUG = 70  # a failed assertion: the log holds the story
    OPTIMIZED = 71  # started with python -O, which removes the assertions we rely on


class JobReturned(Exception):
    """A job that serves until cancelled came back: a bug of ours."""

    def __init__(self, name: str) -> None:
        super().__init__(f"job {name} returned")
        self.name = name


@asynccontextmanager
async def running(**jobs: Job) -> AsyncIterator[None]:
    """Run jobs beside the body. Leaving the body cancels and awaits them.

    A job that fails or returns cancels the body, and its exception or JobReturned comes out here.
    Several failures come as an ExceptionGroup, a single one as itself. Cancellation from outside
    stays a cancellation.
    """

    async def guard(name: str, job: Job) -> None:
        await job()
        raise JobReturned(name)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(guard(name, job), name=name) for name, job in jobs.items()]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as failures:
        if len(failures.exceptions) == 1:
            only = failures.exceptions[0]
            raise only from only.__cause__
        raise


@contextmanager
def stop_signals() -> Iterator[asyncio.Future[str]]:
    """The name of the first SIGTERM or SIGINT that comes while the body runs.

    Around whatever must not be cut short by one. A second one ends the process at once.
    """
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[str] = loop.create_future()

    def ask(number: signal.Signals) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)  # the default action is back: the next one kills
        if not asked.done():
            asked.set_result(number.name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask, number)
    try:
        yield asked
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def stop_requested() -> str:
    """Wait for SIGTERM or SIGINT; which one came. A second one ends the process at once."""
    with stop_signals() as asked:
        name = await asked
    log.info("stop requested signal=%s", name)
    return name


def refuse_optimized(optimized: int | None = None) -> None:
    """Exit when python runs with -O: assertions guard the log and must be there."""
    if sys.flags.optimize if optimized is None else optimized:
        sys.stderr.write(
            "tandem: refusing to run under python -O (or PYTHONOPTIMIZE): "
            "it removes the assertions that keep a broken broker from writing\n"
        )
        raise SystemExit(ExitCode.OPTIMIZED)


def collect_rarely() -> None:
    """Have the garbage collector run less often: most of what a server makes at its start stays."""
    gc.set_threshold(50_000, 20, 100)


def raise_open_files_limit(wanted: int = OPEN_FILES_WANTED) -> int:
    """Raise the soft limit on open files towards `wanted`, as far as the hard one allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < reachable:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
        soft = reachable
    if soft != resource.RLIM_INFINITY and soft < wanted:
        log.warning("open files limited limit=%d wanted=%d hint=raise ulimit -n", soft, wanted)
    return soft


def connections_affordable(ports: int) -> tuple[int, int]:
    """(connections, backlog) that each of so many listening ports may have.

    The rest of the descriptors is for files: a store that cannot open one cannot flush. The backlog
    counts because all of it may be accepted before the first is refused.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = OPEN_FILES_WANTED
    kept = min(DESCRIPTORS_KEPT, soft // 2)
    return (soft - kept) // ports, max(1, min(BACKLOG_MAX, kept // (4 * ports)))


def run(main: Callable[[], Coroutine[Any, Any, None]], *, debug: bool = False) -> None:
    """Run a server's coroutine to its end, on uvloop when it is installed.

    A failed assertion anywhere on the loop, in a callback or a task, ends the process with
    ExitCode.BUG: what it found broken must not go on. Raises whatever else `main` raises.
    """
    refuse_optimized()
    with asyncio.Runner(debug=debug, loop_factory=new_event_loop) as runner:
        try:
            runner.run(_stopped_by_bugs(main))
        except BaseException as problem:
            if not _is_bug(problem):
                raise
            log.critical("assertion failed: stopping", exc_info=problem)
            raise SystemExit(ExitCode.BUG) from None


def _is_bug(problem: BaseException) -> bool:
    if isinstance(problem, BaseExceptionGroup):
        return problem.split((AssertionError, JobReturned))[0] is not None
    return isinstance(problem, (AssertionError, JobReturned))


async def _stopped_by_bugs(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(main(), name="main")
    bugs: list[AssertionError] = []

    def judge(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        problem = context.get("exception")
        if isinstance(problem, AssertionError):
            bugs.append(problem)
            work.cancel()
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(judge)
    try:
        await work
    except asyncio.CancelledError:
        if not bugs:
            raise
    if bugs:
        raise bugs[0]
