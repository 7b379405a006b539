"""A process that can be killed, paused, woken and started again, its output in a log file.

Tests and the benchmark wait in their own thread for what they do to it (ServerProcess), campaigns in
an event loop that also sends and reads meanwhile (AsyncProcess).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

POLL_S: Final = 0.002
LOOK_S: Final = 0.01  # between two looks whether a server is ready: most of them connect
EFFECT_S: Final = 2.0  # SIGSTOP or SIGCONT that shows no effect by then had none
GONE_S: Final = 60.0  # as long may the kernel take after SIGKILL: a disk may be slow
STOP_S: Final = 15.0


class ProcessBroken(Exception):
    """A process did not become ready, ended by itself, did not stop, or a fault had no effect; carries the
    end of its log."""


def state_of(pid: int) -> str:
    """The kernel's letter for a process: R, S, D, T (stopped), Z; "" for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(")")[2].split()[0]


def run(*command: str) -> str:
    """What a command printed. Raises ProcessBroken unless it ended well."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ProcessBroken(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def wait_until(
    holds: Callable[[], object], within_s: float, what: str, *, every_s: float = 0.03
) -> None:
    """Look until `holds()` is true. Raises AssertionError naming `what` when that takes too long."""
    for pause_s in _looks(
        holds, within_s, every_s, lambda: AssertionError(f"not within {within_s:g} s: {what}")
    ):
        time.sleep(pause_s)


def _looks(
    holds: Callable[[], object], within_s: float, every_s: float, late: Callable[[], Exception]
) -> Iterator[float]:
    """Look whether something holds; how long to sleep before the next look. Raises late()."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise late()
        yield every_s


class Process:
    """A command and the process that it was started as, if it was.

    command  may be changed before a launch, like all that follow
    env      on top of this process' own environment
    prefix   put before the command; it must end by replacing itself by the command
    cwd      where it runs, beside its log unless told otherwise
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        *,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.env = dict(env or {})
        self.cwd = cwd
        self.prefix: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0  # bytes in the log before the last launch

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def code(self) -> int | None:
        """Exit status; None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int:
        """Of the last start."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def state(self) -> str:
        """The kernel's letter: R, S, D, T (stopped), Z; "" for a process that is gone."""
        return "" if self._process is None else state_of(self._process.pid)

    @property
    def paused(self) -> bool:
        return self.alive and self.state == "T"

    def launch(self) -> None:
        """Start the process, without waiting until it is ready."""
        assert not self.alive, f"{self.name} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [*self.prefix, *self.command]
        with self.log.open("ab") as log:
            log.write(f"--- {' '.join(command)[-600:]}\n".encode())
            log.flush()
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, **self.env}, cwd=self.cwd or self.log.parent,
                start_new_session=True,
            )  # fmt: skip

    def signal(self, what: signal.Signals) -> None:
        """Send a signal, without waiting for its effect. Raises ProcessBroken if it has ended by itself."""
        assert self._process is not None, f"{self.name} was never started"
        if not self.alive:
            raise self.broken(f"ended by itself ({self.code})")
        self._process.send_signal(what)

    def abandon(self) -> None:
        """End the process in whatever state it is, if it runs."""
        if self._process is not None and self.alive:
            self._process.kill()
            self._process.wait()

    def broken(self, what: str) -> ProcessBroken:
        return ProcessBroken(f"{self.name} {what}\n{self.tail()}")

    def tail(self, characters: int = 6000) -> str:
        """The end of the log."""
        return self.output()[-characters:]

    def output(self) -> str:
        """The whole log, of all starts."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def said(self) -> str:
        """The log since the last launch."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    # --- what both kinds wait for: each yields how long to sleep before it is asked again

    def _killing(self) -> Iterator[float]:
        self.signal(signal.SIGKILL)
        return self._until(lambda: not self.alive, "still runs after SIGKILL", GONE_S)

    def _pausing(self) -> Iterator[float]:
        self.signal(signal.SIGSTOP)
        return self._until(lambda: self.state == "T", "is not stopped")

    def _resuming(self) -> Iterator[float]:
        self.signal(signal.SIGCONT)
        return self._until(lambda: self.state != "T", "is still stopped")

    def _ending(self, within_s: float) -> Iterator[float]:
        self.signal(signal.SIGTERM)
        try:
            yield from self._until(lambda: not self.alive, "did not stop after SIGTERM", within_s)
        except ProcessBroken:
            self.abandon()
            raise

    def _until(
        self, holds: Callable[[], object], what: str, within_s: float = EFFECT_S
    ) -> Iterator[float]:
        return _looks(holds, within_s, POLL_S, lambda: self.broken(f"{what}, {within_s:g} s"))


class ServerProcess(Process):
    """A process whose faults return when their effect was seen."""

    def wait_ready(self, ready: Callable[[], object], within_s: float) -> None:
        """Wait for `ready()`. Raises ProcessBroken when that takes too long, or the process ends first."""

        def holds() -> bool:
            if ready():
                return True
            if not self.alive:
                raise self.broken(f"ended by itself ({self.code}) instead of getting ready")
            return False

        for pause_s in _looks(
            holds, within_s, LOOK_S, lambda: self.broken(f"not ready in {within_s:g} s")
        ):
            time.sleep(pause_s)

    def kill(self) -> None:
        """kill -9. Raises ProcessBroken if it was dead already."""
        for pause_s in self._killing():
            time.sleep(pause_s)

    def pause(self) -> None:
        """SIGSTOP to all threads. Raises ProcessBroken without effect."""
        for pause_s in self._pausing():
            time.sleep(pause_s)

    def resume(self) -> None:
        """SIGCONT. Raises ProcessBroken without effect."""
        for pause_s in self._resuming():
            time.sleep(pause_s)

    def terminate(self, within_s: float = STOP_S) -> int:
        """SIGTERM; the exit status. Raises ProcessBroken when it has to be killed after `within_s`."""
        for pause_s in self._ending(within_s):
            time.sleep(pause_s)
        assert self.code is not None
        return self.code


class AsyncProcess(Process):
    """A process of a campaign. Signals leave at once; what is awaited is their effect."""

    async def gone(self) -> None:
        """Wait until the process is no more, after `signal(SIGKILL)`."""
        for pause_s in self._until(lambda: not self.alive, "still runs", GONE_S):
            await asyncio.sleep(pause_s)

    async def kill(self) -> None:
        """kill -9. Raises ProcessBroken if it was dead already."""
        for pause_s in self._killing():
            await asyncio.sleep(pause_s)

    async def pause(self) -> None:
        """SIGSTOP to all threads. Raises ProcessBroken without effect."""
        for pause_s in self._pausing():
            await asyncio.sleep(pause_s)

    async def resume(self) -> None:
        """SIGCONT. Raises ProcessBroken without effect."""
        for pause_s in self._resuming():
            await asyncio.sleep(pause_s)

    async def terminate(self, within_s: float = STOP_S) -> None:
        """SIGTERM. Raises ProcessBroken unless the process ends well and in time."""
        for pause_s in self._ending(within_s):
            await asyncio.sleep(pause_s)
        if self.code not in (0, 143):  # a JVM ends with 128 + SIGTERM
            raise self.broken(f"ended with {self.code} after SIGTERM")
