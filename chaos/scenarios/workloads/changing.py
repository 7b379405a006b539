"""Changes that operators make, while it burns: groups made and changed, progress reset, masters handed over."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from tandemmq.chaos.checking.lines import FAIL, INFO, OK, Admin, Commit
from tandemmq.chaos.scenarios.workloads.workload import Ground, Workload
from tandemmq.chaos.traffic import TOPIC
from tandemmq.cluster.client import Admin as AdminClient
from tandemmq.cluster.client import (
    ClientError,
    GroupSettings,
    NoNameServer,
    NoRoute,
)

GROUP: Final = "ChaosChanged"
RESET_GROUP: Final = "ChaosReset"
PAUSE_S: Final = (0.3, 1.2)
SWITCHOVER_S: Final = 12.0  # so long between two: each may take a group's writes away for a moment
VALUES: Final = 16
Answer = TypeVar("Answer")


class AdminChanges(Workload):
    """A consumer group written and read by turns, another's progress set to and fro, and switchovers."""

    name = "admin"
    does = ("change of a group", "reset of progress")
    says = "a group's settings changed and read, progress reset, masters handed over"

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._switched_s = time.monotonic()
        self._number = 0

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[None]:
        async with AdminClient(config=self.ground.config("admin")) as self._admin:
            yield

    async def run(self) -> None:
        rng = self.ground.rng
        while not self.stopping.is_set():  # a group that nobody made has no progress
            outcome, _ = await asked(lambda: self._admin.put_group(GroupSettings(RESET_GROUP)))
            if outcome == OK:
                break
            await self.pause(PAUSE_S[0])
        while not self.stopping.is_set():
            await self._change_group()
            await self._reset()
            if self.ground.controllers and time.monotonic() - self._switched_s > SWITCHOVER_S:
                await self._switch()
            await self.pause(rng.uniform(*PAUSE_S))

    async def drained(self) -> None:
        """Nothing is on its way to anybody."""

    async def _change_group(self) -> None:
        """Written at the master of the moment, read from it: C-16 asks whether one order explains what was read."""
        self._number += 1
        value = str(self._number % VALUES + 1)
        settings = GroupSettings(GROUP, retry_max_times=int(value))
        master = await self._master()
        if master is None:
            return
        began_ns = time.monotonic_ns()
        outcome, _ = await asked(lambda: self._admin.put_group(settings, master))
        self._line("write", value, began_ns, outcome)
        self.done["change of a group"] += outcome == OK
        began_ns = time.monotonic_ns()
        outcome, found = await asked(lambda: self._admin.group_settings(GROUP, master))
        if outcome == OK and found is not None:
            self._line("read", str(found.retry_max_times), began_ns, OK, client=1)

    def _line(self, action: str, value: str, began_ns: int, outcome: str, client: int = 0) -> None:
        line = Admin(
            f"group {GROUP}", action, value, began_ns, time.monotonic_ns(), outcome, client
        )
        self.ground.journal.line(line)

    async def _reset(self) -> None:
        """A group that nobody is a member of is sent somewhere."""
        queue = self.ground.queue(TOPIC, 0)
        outcome, end = await asked(lambda: self._admin.max_offset(queue))
        if outcome != OK or end is None:
            return
        wanted = self.ground.rng.randint(0, end)
        outcome, _ = await asked(lambda: self._admin.commit(RESET_GROUP, queue, wanted))
        if outcome == OK:
            self._progress(wanted, "reset")
            self.done["reset of progress"] += 1
        outcome, found = await asked(lambda: self._admin.committed(RESET_GROUP, queue))
        if outcome == OK and found is not None:
            self._progress(found, "commit")

    def _progress(self, offset: int, how: str) -> None:
        line = Commit(RESET_GROUP, TOPIC, 0, offset, "", time.monotonic_ns(), how)
        self.ground.journal.line(line)

    async def _switch(self) -> None:
        """To any member of the set. Who is cut off or behind refuses: that is no finding."""
        self._switched_s = time.monotonic()
        self.ground.journal.event("switchover", why="ordered by the workload of admin changes")
        outcome, done = await asked(
            lambda: self._admin.switchover(
                self.ground.broker_name, controllers=self.ground.controllers
            )
        )
        took = f"{done.elected_ms} ms" if done is not None else "refused"
        self.ground.journal.event("switched over", outcome=outcome, took=took)

    async def _master(self) -> str | None:
        _, masters = await asked(self._admin.masters)
        return (masters or {}).get(self.ground.broker_name)


async def asked(ask: Callable[[], Awaitable[Answer]]) -> tuple[str, Answer | None]:
    """(outcome as of a send, answer) of a question or a change."""
    try:
        return OK, await ask()
    except (NoRoute, NoNameServer):
        return FAIL, None
    except ClientError:
        return INFO, None
