"""What is done to a process has an effect that was seen, or is an error with the end of its log."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tandemmq.chaos.processes import AsyncProcess, ProcessBroken, ServerProcess, wait_until

READY = "import time; print('ready', flush=True); time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY
READY_S = 20


def started(tmp_path: Path, code: str = READY) -> ServerProcess:
    process = ServerProcess("child", [sys.executable, "-c", code], tmp_path / "child.log")
    process.launch()
    process.wait_ready(lambda: "\nready" in f"\n{process.said()}", READY_S)
    return process


def test_leaving_the_block_leaves_nothing_running_not_even_what_is_paused(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        process.pause()
        assert process.paused
        process.resume()
        assert process.alive and not process.paused
        process.pause()
    assert not process.alive and process.code == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_fault_of_a_process_that_ended_before_is_refused_with_its_last_words(
    tmp_path: Path,
) -> None:
    process = ServerProcess(
        "child", [sys.executable, "-c", "print('no luck')"], tmp_path / "child.log"
    )
    process.launch()
    wait_until(lambda: not process.alive, READY_S, "it ends")
    for fault in (process.kill, process.pause, process.resume, process.terminate):
        with pytest.raises(ProcessBroken, match=r"child ended by itself \(0\)(.|\n)*no luck"):
            fault()


def test_one_that_ends_instead_of_getting_ready_is_reported_at_once(tmp_path: Path) -> None:
    process = ServerProcess("child", [sys.executable, "-c", "exit(3)"], tmp_path / "child.log")
    process.launch()
    began = time.monotonic()
    with pytest.raises(ProcessBroken, match=r"ended by itself \(3\)"):
        process.wait_ready(lambda: False, 60)
    assert time.monotonic() - began < READY_S


def test_one_that_does_not_get_ready_in_time_is_reported(tmp_path: Path) -> None:
    with started(tmp_path) as process, pytest.raises(ProcessBroken, match=r"not ready in 0.1 s"):
        process.wait_ready(lambda: False, 0.1)


def test_one_that_does_not_stop_is_killed_and_reported(tmp_path: Path) -> None:
    with started(tmp_path, DEAF) as process:
        with pytest.raises(ProcessBroken, match=r"did not stop after SIGTERM, 0.2 s"):
            process.terminate(0.2)
        assert not process.alive


def test_a_ready_line_of_an_earlier_start_does_not_count(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        assert process.terminate() == -signal.SIGTERM
        process.command[-1] = "import time; time.sleep(60)"
        process.launch()
        assert "ready" in process.output() and "ready" not in process.said()


async def test_a_campaign_does_the_same_to_it_in_its_event_loop(tmp_path: Path) -> None:
    process = AsyncProcess("child", [sys.executable, "-c", READY], tmp_path / "child.log")
    with process:
        process.launch()
        await process.pause()
        assert process.paused
        await process.resume()
        assert not process.paused
        with pytest.raises(ProcessBroken, match="ended with -15 after SIGTERM"):
            await process.terminate()
        process.launch()
        process.signal(signal.SIGKILL)
        await process.gone()
        with pytest.raises(ProcessBroken, match=r"ended by itself \(-9\)"):
            await process.kill()
