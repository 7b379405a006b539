"""Jobs that live and die together, stopping by signal, and the guards of a server process."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Awaitable, Callable

import pytest

from tandemmq.cluster import process
from tandemmq.cluster.process import (
    ExitCode,
    JobReturned,
    connections_affordable,
    raise_open_files_limit,
    refuse_optimized,
    run,
    running,
    stop_requested,
    stop_signals,
)


def job(log: list[str], name: str) -> Callable[[], Awaitable[None]]:
    """Serves until cancelled and says so."""

    async def serve() -> None:
        log.append(f"{name} starts")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            log.append(f"{name} ends")

    return serve


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_leaving_the_body_cancels_and_awaits_every_job() -> None:
    log: list[str] = []
    async with running(flush=job(log, "flush"), dispatch=job(log, "dispatch")):
        await turn()
        assert log == ["flush starts", "dispatch starts"]
    assert sorted(log[2:]) == ["dispatch ends", "flush ends"]


async def test_an_error_of_the_body_comes_out_as_itself_after_the_jobs_ended() -> None:
    log: list[str] = []
    with pytest.raises(LookupError, match="gone"):
        async with running(flush=job(log, "flush")):
            await turn()
            raise LookupError("gone")
    assert log == ["flush starts", "flush ends"]


async def test_a_failing_job_cancels_the_body_and_its_siblings_and_comes_out_as_itself() -> None:
    log: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        async with running(flush=fails, dispatch=job(log, "dispatch")):
            await asyncio.get_running_loop().create_future()
            log.append("never")
    assert log == ["dispatch starts", "dispatch ends"]
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_a_job_that_returns_is_a_bug_with_its_name() -> None:
    async def returns() -> None:
        return

    with pytest.raises(JobReturned, match="flush returned") as caught:
        async with running(flush=returns):
            await asyncio.get_running_loop().create_future()
    assert caught.value.name == "flush"


async def test_several_failures_come_as_a_group() -> None:
    async def fails() -> None:
        raise OSError("one")

    async def fails_at_the_end() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise ValueError("two")

    with pytest.raises(ExceptionGroup) as caught:
        async with running(one=fails, two=fails_at_the_end):
            await asyncio.get_running_loop().create_future()
    assert {type(each) for each in caught.value.exceptions} == {OSError, ValueError}


async def test_cancellation_from_outside_stays_a_cancellation() -> None:
    log: list[str] = []

    async def serve() -> None:
        async with running(flush=job(log, "flush")):
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(serve())
    await turn()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["flush starts", "flush ends"]


async def test_nested_jobs_stop_in_the_opposite_order_of_their_start() -> None:
    log: list[str] = []
    async with running(store=job(log, "store")):
        await turn()
        async with running(port=job(log, "port")):
            await turn()
    assert log == ["store starts", "port starts", "port ends", "store ends"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_asks_to_stop_and_the_default_action_returns(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    waiting = asyncio.create_task(stop_requested())
    await turn()
    os.kill(os.getpid(), number)
    assert await asyncio.wait_for(waiting, 5) == number.name
    after = signal.getsignal(number)
    assert after in (before, signal.default_int_handler, signal.SIG_DFL)


async def test_a_signal_that_comes_before_anybody_waits_is_not_lost() -> None:
    with stop_signals() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        await turn()
        assert await asyncio.wait_for(asked, 5) == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


async def test_nobody_waiting_for_a_signal_leaves_no_handler_behind() -> None:
    waiting = asyncio.create_task(stop_requested())
    await turn()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_python_without_assertions_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    refuse_optimized(0)
    with pytest.raises(SystemExit) as caught:
        refuse_optimized(1)
    assert caught.value.code == ExitCode.OPTIMIZED
    assert "python -O" in capsys.readouterr().err


def test_the_limit_on_open_files_is_raised_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"now": (256, 20_000)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update(now=new))
    assert raise_open_files_limit(10_000) == 10_000
    assert limits["now"] == (10_000, 20_000)
    assert raise_open_files_limit(65_536) == 20_000
    assert raise_open_files_limit(1_000) == 20_000  # never lowered
    limits["now"] = (256, resource.RLIM_INFINITY)
    assert raise_open_files_limit(65_536) == 65_536


def test_run_ends_with_its_coroutine_and_raises_what_it_raises() -> None:
    seen: list[str] = []

    async def main() -> None:
        seen.append(type(asyncio.get_running_loop()).__module__)

    run(main)
    assert len(seen) == 1

    async def fails() -> None:
        raise OSError("port taken")

    with pytest.raises(OSError, match="port taken"):
        run(fails)


def test_run_works_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "new_event_loop", asyncio.new_event_loop)
    seen: list[str] = []

    async def main() -> None:
        seen.append(type(asyncio.get_running_loop()).__module__)

    run(main)
    assert seen[0].startswith("asyncio")


@pytest.mark.parametrize("where", ["main", "callback", "task", "job", "returned job"])
def test_a_failed_assertion_anywhere_on_the_loop_stops_the_process(where: str) -> None:
    cleaned: list[str] = []

    def bug() -> None:
        raise AssertionError("offset went backwards")

    async def bug_later() -> None:
        bug()

    async def returns() -> None:
        return

    async def main() -> None:
        try:
            if where == "main":
                bug()
            elif where == "callback":
                asyncio.get_running_loop().call_soon(bug)
            elif where == "task":
                asyncio.create_task(bug_later()).add_done_callback(lambda t: t.result())
            else:
                async with running(flush=bug_later if where == "job" else returns):
                    await asyncio.get_running_loop().create_future()
            await asyncio.get_running_loop().create_future()
        finally:
            cleaned.append("store closed")

    with pytest.raises(SystemExit) as caught:
        run(main)
    assert caught.value.code == ExitCode.BUG
    assert cleaned == ["store closed"]


def test_connections_leave_descriptors_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, expected in (
        (65_536, (30_720, 512)),
        (20_000, (7_952, 512)),
        (150, (37, 9)),
        (resource.RLIM_INFINITY, (30_720, 512)),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=limit: (soft, soft))
        assert connections_affordable(2) == expected
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65_536, 65_536))
    assert connections_affordable(1) == (61_440, 1_024)


async def test_single_failure_keeps_the_cause_that_it_named() -> None:
    taken = OSError(98, "taken")

    async def fail() -> None:
        raise ValueError("cannot listen") from taken

    with pytest.raises(ValueError, match="cannot listen") as caught:
        async with running(fails=fail):
            await asyncio.Event().wait()
    assert caught.value.__cause__ is taken
