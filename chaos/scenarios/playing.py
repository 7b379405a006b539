"""Plays the planned faults of a run, on whatever cluster, and tells each in the same words."""

from __future__ import annotations

import asyncio
from typing import Protocol

from tandemmq.chaos.campaign import Say
from tandemmq.chaos.faults.fault import EventLog, Fault, FaultStory, NoEffect, NotHealed
from tandemmq.chaos.processes import ProcessBroken
from tandemmq.chaos.scenarios.schedule import Planned, Step


class WrongStage(Exception):
    """A schedule asks for a fault that its stage has no means for."""


class FaultMaker(Protocol):
    """Who knows a cluster: turns a plan into a fault when it is to happen."""

    async def fault(self, planned: Planned) -> Fault:
        """Raises NoEffect when nobody has the role, WrongStage."""

    def happened(self, fault: Fault) -> None:
        """It was entered: told to those who judge by more than the fault itself."""


class Player:
    """stories: what became of each fault. doubts: of those that showed nothing; the run goes on all the same."""

    def __init__(self, maker: FaultMaker, log: EventLog, say: Say) -> None:
        self.stories: list[FaultStory] = []
        self.doubts: list[str] = []
        self._maker = maker
        self._log = log
        self._say = say

    async def step(self, step: Step) -> None:
        """All faults of a step, until the last of them is over. Raises ProcessBroken."""
        await asyncio.gather(*(self._one(each) for each in step.faults))

    async def _one(self, planned: Planned) -> None:
        await asyncio.sleep(planned.after_s)
        try:
            fault = await self._maker.fault(planned)
        except (NoEffect, WrongStage) as problem:
            self.doubts.append(f"{planned} never happened: {problem}")
            return
        fault.log = self._log
        self.stories.append(fault.story)
        try:
            async with fault:
                self._maker.happened(fault)
                self._say(f"  {fault.story.says}: {fault.story.evidence}")
                await asyncio.sleep(planned.lasts_s)
        except (NoEffect, NotHealed) as problem:
            self.doubts.append(f"{fault.story.says}: {problem}")
        except ProcessBroken as problem:
            fault.story.problem = str(problem).splitlines()[0]
            raise
