"""What all faults have in common: a sentence that says what will happen, and evidence of its effect and healing.

A fault whose effect nobody saw has shown nothing, and a run with one proves nothing: inject() returns the evidence
or raises NoEffect, heal() returns the evidence that it is over or raises NotHealed. Faults nest as any context
managers do.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, Self, TypeVar

from tandemmq.chaos.processes import ProcessBroken

LOOK_S: Final = 0.02
_numbers: Final = itertools.count(1)
Found = TypeVar("Found")


class Unsupported(Exception):
    """This machine cannot do it; the text says what is missing and how to get it. Never the same as passed."""


class NoEffect(Exception):
    """A fault was ordered and nothing shows that it happened."""


class NotHealed(Exception):
    """A fault was taken back and nothing shows that it is over."""


class EventLog(Protocol):
    """Where faults write down what they do: tandemmq.chaos.journal.Journal is one."""

    def event(self, what: str, **fields: object) -> None: ...


@dataclass(slots=True)
class FaultStory:
    """One fault from its order to its healing. Times are CLOCK_MONOTONIC ns, 0: not yet.

    began_ns  just before it was done; seen_ns: its effect was seen; healing_ns, healed_ns: the same of its end
    """

    number: int
    kind: str
    says: str = ""
    victim: str = ""
    began_ns: int = 0
    seen_ns: int = 0
    evidence: str = ""
    healing_ns: int = 0
    healed_ns: int = 0
    healing: str = ""
    problem: str = ""

    @property
    def effective(self) -> bool:
        """Whether both its effect and its healing were seen."""
        return bool(self.seen_ns and self.healed_ns and not self.problem)


class Fault(ABC):
    """`async with fault:` does it; leaving heals it.

    kind    as schedules and reports name it
    victim  what it is done to
    log     told of every step, when it is set before entering
    """

    kind: ClassVar[str]

    def __init__(self, victim: str) -> None:
        self.story = FaultStory(next(_numbers), self.kind, victim=victim)
        self.log: EventLog | None = None

    @abstractmethod
    def describe(self) -> str:
        """What will be done to whom, as one clause: "kill -9 of replica 1"."""

    def told(self) -> Mapping[str, object]:
        """What those who judge must know of it in numbers."""
        return {}

    @abstractmethod
    async def inject(self) -> str:
        """Do it; what shows that it happened. Raises NoEffect, or ProcessBroken, which is the same; Unsupported."""

    @abstractmethod
    async def heal(self) -> str:
        """Take it back, after inject() that failed half-way as well; what shows that. Raises NotHealed."""

    async def __aenter__(self) -> Self:
        story = self.story
        story.says = self.describe()
        story.began_ns = time.monotonic_ns()
        self._note("start", says=story.says, victim=story.victim, **self.told())
        try:
            try:
                story.evidence = await self.inject()
            except ProcessBroken as problem:
                raise NoEffect(str(problem)) from None
        except BaseException as problem:
            story.problem = f"{type(problem).__name__}: {problem}"
            self._note("no effect", problem=story.problem)
            await self._healed()
            raise
        story.seen_ns = time.monotonic_ns()
        self._note("effect", evidence=story.evidence)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._healed()

    async def _healed(self) -> None:
        story = self.story
        story.healing_ns = time.monotonic_ns()
        self._note("heal")
        try:
            story.healing = await self.heal()
        except BaseException as problem:
            story.problem = story.problem or f"{type(problem).__name__}: {problem}"
            self._note("not healed", problem=str(problem))
            raise
        story.healed_ns = time.monotonic_ns()
        self._note("healed", evidence=story.healing)

    def _note(self, phase: str, **fields: object) -> None:
        if self.log is not None:
            self.log.event("fault", number=self.story.number, kind=self.kind, phase=phase, **fields)


async def until(
    look: Callable[[], Awaitable[Found | None]], within_s: float, problem: Exception
) -> Found:
    """What look() finds, asked again until it is something. Raises `problem` when that takes too long."""
    deadline = time.monotonic() + within_s
    while True:
        found = await look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise problem
        await asyncio.sleep(LOOK_S)
