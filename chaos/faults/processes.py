"""Faults of processes: killed, frozen, stuttering, stopped in good order, restarted again and again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from typing import Final

from tandemmq.chaos.faults.fault import Fault, NoEffect, NotHealed, until
from tandemmq.chaos.processes import AsyncProcess, ProcessBroken

ANSWERS_S: Final = 40.0
CONNECT_S: Final = 1.0
STUTTER_S: Final = 0.05  # stopped, and running, in turn
STOP_S: Final = 40.0


async def listens(address: str) -> bool:
    """Whether somebody takes connections there."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


class ProcessFault(Fault):
    """What happens to one process. address: where it takes connections when it is well."""

    def __init__(self, process: AsyncProcess, address: str) -> None:
        super().__init__(process.name)
        self.process = process
        self.address = address

    async def answering(self) -> str:
        """Start it if it does not run; wait until it takes connections. Raises NotHealed."""
        began_s = time.monotonic()
        if not self.process.alive:
            self.process.launch()

        async def answers() -> bool:
            if not self.process.alive:
                raise NotHealed(
                    f"{self.process.name} ended by itself ({self.process.code})\n{self.process.tail()}"
                )
            return await listens(self.address)

        late = NotHealed(f"{self.process.name} does not listen on {self.address} again")
        await until(answers, ANSWERS_S, late)
        return f"takes connections on {self.address} again, {time.monotonic() - began_s:.2f} s after its start"


class Killed(ProcessFault):
    """kill -9; started again when it is over."""

    kind = "kill"

    def describe(self) -> str:
        return f"kill -9 of {self.process.name}, started again at the end"

    async def inject(self) -> str:
        pid, began_s = self.process.pid, time.monotonic()
        await self.process.kill()
        return f"process {pid} is gone {1000 * (time.monotonic() - began_s):.0f} ms after SIGKILL"

    async def heal(self) -> str:
        return await self.answering()


class Stopped(ProcessFault):
    """SIGTERM, as an operator stops it; started again when it is over."""

    kind = "stop"

    def describe(self) -> str:
        return f"graceful stop (SIGTERM) of {self.process.name}, started again at the end"

    async def inject(self) -> str:
        began_s = time.monotonic()
        await self.process.terminate(STOP_S)
        return f"ended with exit code {self.process.code} after {time.monotonic() - began_s:.2f} s"

    async def heal(self) -> str:
        return await self.answering()


class Paused(ProcessFault):
    """SIGSTOP to all its threads: alive for the kernel, silent for everybody else."""

    kind = "pause"

    def describe(self) -> str:
        return f"SIGSTOP of {self.process.name}: it falls silent with its connections open"

    async def inject(self) -> str:
        await self.process.pause()
        return f"the kernel shows process {self.process.pid} as stopped (T)"

    async def heal(self) -> str:
        if not self.process.alive:
            return "it had ended meanwhile"
        try:
            await self.process.resume()
        except ProcessBroken as problem:
            raise NotHealed(str(problem)) from None
        return f"the kernel shows process {self.process.pid} as running again"


class Stuttering(ProcessFault):
    """Stopped for 50 ms in every 100: slow, and never silent for long."""

    kind = "stutter"

    def __init__(self, process: AsyncProcess, address: str) -> None:
        super().__init__(process, address)
        self._task: asyncio.Task[None] | None = None
        self._times = 0

    def describe(self) -> str:
        return f"{self.process.name} stands still for 50 ms in every 100"

    async def inject(self) -> str:
        self._task = asyncio.create_task(self._run(), name="stutter")

        async def stopped() -> bool:
            return self._times > 1

        await until(stopped, 5.0, NoEffect(f"{self.process.name} was not seen stopped"))
        return "the kernel showed it stopped (T), twice"

    async def _run(self) -> None:
        while True:
            await self.process.pause()
            self._times += 1
            await asyncio.sleep(STUTTER_S)
            await self.process.resume()
            await asyncio.sleep(STUTTER_S)

    async def heal(self) -> str:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self.process.alive:  # also one that does not look stopped yet: a stop may be on its way
            await self.process.resume()
        return f"running again after {self._times} stops"


class RestartStorm(Fault):
    """Every one of them is killed -9 and started again after random gaps, until it is over."""

    kind = "storm"

    def __init__(
        self,
        processes: Sequence[tuple[AsyncProcess, str]],
        rng: random.Random,
        gap_s: tuple[float, float] = (1.0, 4.0),
    ) -> None:
        super().__init__(", ".join(each.name for each, _ in processes))
        self._all = [Killed(*each) for each in processes]
        self._rng = rng
        self._gap_s = gap_s
        self._tasks: list[asyncio.Task[None]] = []
        self.restarts = 0

    def describe(self) -> str:
        low, high = self._gap_s
        return f"restart storm: each of {self.story.victim} killed -9 and started every {low:g} to {high:g} s"

    async def inject(self) -> str:
        self._tasks = [asyncio.create_task(self._storm(each), name="storm") for each in self._all]

        async def restarted() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            return self.restarts > 0

        await until(restarted, ANSWERS_S, NoEffect("nobody was killed and started again"))
        return "the first of them was killed and takes connections again"

    async def _storm(self, one: Killed) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(*self._gap_s))
            await one.inject()
            await one.heal()
            self.restarts += 1

    async def heal(self) -> str:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in self._all:
            await each.heal()
        for result in results:
            if isinstance(result, Exception):
                raise NotHealed(str(result))
        return f"all take connections again after {self.restarts} restarts"
