"""Campaigns that break a group again and again: each round draws a kind of harm, and leaves the group whole."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping

from tandemmq.chaos.campaign import Campaign


class Rounds(Campaign):
    """Each kind of round is a method of its name, which leaves all replicas running.

    load_s  longest stretch of load between the group being whole and the next fault
    notes   of the round that goes on, for people
    """

    rounds = 1
    load_s = 1.5

    @property
    @abstractmethod
    def weights(self) -> Mapping[str, int]:
        """Kinds of rounds, and how often each comes."""

    def drawn(self, number: int) -> str:
        """The kind of this round."""
        return self.rng.choices(list(self.weights), list(self.weights.values()))[0]

    async def play(self, name: str) -> None:
        """One round."""
        await getattr(self, name)()

    async def faults(self) -> None:
        self.notes: list[str] = []
        for number in range(1, self.rounds + 1):
            name = self.drawn(number)
            self.notes.clear()
            await self.loaded(number, self.load_s)
            self.journal.event("round", number=number, kind=name)
            await self.play(name)
            if not self.outcome.good:
                return
            began = time.monotonic()
            await self.group.whole()
            whole_s = time.monotonic() - began
            self.outcome.sample("whole again", whole_s * 1000)
            self.outcome.rounds = number
            said = ", ".join([*self.notes, f"whole after {whole_s:.2f} s"])
            acknowledged = self.journal.counts["ok"]
            self.say(
                f"round {number}/{self.rounds} {name}: {said}; {acknowledged} acknowledged so far"
            )
