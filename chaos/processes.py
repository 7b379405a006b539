"""One server as a process that can be killed, paused, woken and started again on its directory."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

POLL_S: Final = 0.002
EFFECT_S: Final = 2.0  # a signal that shows no effect by then was none


class ProcessBroken(Exception):
    """A process ended by itself, did not stop, or a fault had no effect; carries the end of its log."""


class ServerProcess:
    """A command whose output goes to a log file. Every fault is verified before it counts.

    prefix  put before the command when it is launched; it must end by replacing itself by the command
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self.starts = 0
        self.prefix: list[str] = []
        self._command = list(command)
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def code(self) -> int | None:
        """Exit status; None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int:
        """Raises ProcessBroken when it does not run."""
        return self._running().pid

    @property
    def paused(self) -> bool:
        return self.alive and self.state == "T"

    @property
    def state(self) -> str:
        """The kernel's letter: R, S, D, T (stopped), Z; "" for a process that is gone."""
        if self._process is None:
            return ""
        try:
            text = Path(f"/proc/{self._process.pid}/stat").read_text()
        except FileNotFoundError:
            return ""
        return text.rpartition(")")[2].split()[0]

    def launch(self) -> None:
        """Start the process, without waiting until it is ready."""
        assert not self.alive, f"{self.name} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, *self._command], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=self._env, cwd=self.log.parent, start_new_session=True,
            )  # fmt: skip
        self.starts += 1

    def signal_kill(self) -> None:
        """Send SIGKILL only; gone() waits for the effect. Raises ProcessBroken if it was dead already."""
        self._running().kill()

    async def gone(self) -> None:
        """Wait until the process is no more."""
        assert self._process is not None, f"{self.name} was never started"
        await asyncio.to_thread(self._process.wait)

    async def kill(self) -> None:
        """kill -9, and its effect seen."""
        self.signal_kill()
        await self.gone()

    async def pause(self) -> None:
        """SIGSTOP to all threads, and its effect seen."""
        self._running().send_signal(signal.SIGSTOP)
        await self._until(lambda: self.state == "T", "is not stopped")

    async def resume(self) -> None:
        """SIGCONT, and its effect seen."""
        self._running().send_signal(signal.SIGCONT)
        await self._until(lambda: self.state != "T", "is still stopped")

    async def terminate(self, within_s: float = 15.0) -> None:
        """SIGTERM. Raises ProcessBroken unless the process ends well and in time."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(process.wait, within_s)
        except subprocess.TimeoutExpired:
            self.abandon()
            raise self.broken(f"not stopped {within_s:g} s after SIGTERM") from None
        if code not in (0, 143):  # a JVM ends with 128 + SIGTERM
            raise self.broken(f"ended with {code} after SIGTERM")

    def abandon(self) -> None:
        """End the process in whatever state it is."""
        if self._process is not None and self.alive:
            self._process.kill()
            self._process.wait()

    def broken(self, what: str) -> ProcessBroken:
        return ProcessBroken(f"{self.name} {what}\n{self.tail()}")

    def tail(self, characters: int = 3000) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was never started"
        if not self.alive:
            raise self.broken(f"ended by itself ({self._process.returncode})")
        return self._process

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + EFFECT_S
        while not holds():
            if time.monotonic() > deadline:
                raise self.broken(what)
            await asyncio.sleep(POLL_S)
