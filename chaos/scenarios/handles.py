"""Handles of processes that somebody else started: what of a running cluster may be broken, and nothing else.

A handle names a broker by the address that it is registered with: `127.0.0.1:10911=pid:4711` can be frozen; with
`,start:COMMAND` it can be killed as well, and COMMAND starts it again. `=container:NAME` is a container of docker's.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tandemmq.chaos.faults.fault import Fault, NoEffect
from tandemmq.chaos.faults.processes import Killed, Paused, Stuttering
from tandemmq.chaos.processes import AsyncProcess, state_of
from tandemmq.chaos.scenarios.containers import ContainerProcess
from tandemmq.chaos.scenarios.schedule import Planned, Schedule
from tandemmq.chaos.traffic import Route

BREAKABLE: Final[Mapping[str, Callable[[AsyncProcess, str], Fault]]] = {
    "kill": Killed,
    "pause": Paused,
    "stutter": Stuttering,
}


class ForeignProcess(AsyncProcess):
    """A process that we did not start. After a kill it is ours: started by its command."""

    def __init__(self, name: str, pid: int, start: str, log: Path) -> None:
        super().__init__(name, shlex.split(start), log)
        self._foreign = pid

    @property
    def alive(self) -> bool:
        if self._process is not None:
            return super().alive
        return self.state not in ("", "Z")

    @property
    def pid(self) -> int:
        return self._foreign if self._process is None else super().pid

    @property
    def state(self) -> str:
        return state_of(self.pid)

    def signal(self, what: signal.Signals) -> None:
        if self._process is not None:
            super().signal(what)
        else:
            os.kill(self._foreign, what)

    def abandon(self) -> None:
        """It is not ours to end."""


def parse_handle(text: str, directory: Path) -> tuple[str, AsyncProcess]:
    """(address, process). Raises ValueError, Unsupported for a container that does not run here."""
    address, _, rest = text.partition("=")
    kind, _, value = rest.partition(":")
    if kind == "container" and value and ":" in address:
        return address, ContainerProcess(value)
    pid, _, start = value.partition(",start:")
    if kind != "pid" or not pid.isdecimal() or ":" not in address:
        raise ValueError(
            f"--handle {text}: it is HOST:PORT=pid:PID, with ,start:COMMAND where it may be killed, or "
            "HOST:PORT=container:NAME"
        )
    if not Path(f"/proc/{pid}").exists():
        raise ValueError(f"--handle {text}: there is no process {pid}")
    log = directory / f"{address.replace(':', '-')}.log"
    return address, ForeignProcess(address, int(pid), start, log)


class Handles:
    """What may be broken, by address. Makes faults of it once a route says who has which role."""

    route: Route

    def __init__(self, texts: Sequence[str], directory: Path, rng: random.Random) -> None:
        """Raises ValueError."""
        self.processes = dict(parse_handle(each, directory) for each in texts)
        self._rng = rng

    def check(self, schedule: Schedule) -> None:
        """Whether all that is planned can be done with them. Raises ValueError."""
        kinds = {each.kind for step in schedule.steps for each in step.faults}
        if strange := sorted(kinds - set(BREAKABLE)):
            raise ValueError(
                f"{', '.join(strange)} needs more than a handle: play {schedule.scenario} with --target local"
            )
        if kinds and not self.processes:
            raise ValueError(
                "--target breaks what it has a --handle for, and there is none; calm needs none"
            )
        if "kill" in kinds and not all(each.command for each in self.processes.values()):
            raise ValueError(
                "a broker that is killed must be started again: --handle ADDRESS=pid:PID,start:COMMAND"
            )

    async def fault(self, planned: Planned) -> Fault:
        """Raises NoEffect when there is no handle for who has the role."""
        by_id = self.route.addresses
        if planned.victim == "master":
            wanted = [by_id[0]] if 0 in by_id else []
        else:
            wanted = [address for number, address in by_id.items() if number]
        able = [address for address in wanted if address in self.processes]
        if not able:
            raise NoEffect(
                f"no handle for {planned.victim}, which is {', '.join(wanted) or 'nobody'}"
            )
        address = self._rng.choice(able)
        return BREAKABLE[planned.kind](self.processes[address], address)

    def happened(self, fault: Fault) -> None:
        """Nothing more is known of a cluster of somebody else's."""
