"""A stock consumer beside losses, by chance: its master sends it to a slave and back, and answers and commits get lost.

INV-42: whatever survived, or came after, is delivered; and it gets through once nothing is lost any more.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from timekit import HandClock

from tandemmq.cluster.broker.reading.members import ConsumerMembers
from tandemmq.cluster.broker.tables.cuts import Cuts
from tandemmq.cluster.broker.tables.lives import Lives
from tandemmq.cluster.broker.tables.offsets import OffsetTable

PLACE = ("G", "T", 0)
SEEDS = 800
QUIET_PULLS = 400


class NoLives:
    """No topic was deleted."""

    def __len__(self) -> int:
        return 0

    def new(self, topic: str, queue_id: int) -> bool:
        return False


class Members:
    """One group whose members share the queue."""

    broadcasting = False

    def __init__(self) -> None:
        self.connections: dict[int, Any] = {}

    def group(self, name: str) -> Members:
        return self


class Played:
    """One queue of a master, and the one consumer of its group; `cached` has (whether of a history that is gone, queue
    offset)."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        clock, self.members = HandClock(), Members()
        self.offsets = OffsetTable(path / "consumerOffset.json", clock)
        self.cuts = Cuts(
            path / "queueCuts.json", self.offsets, cast(ConsumerMembers, self.members),
            cast(Lives, NoLives()), clock,
        )  # fmt: skip
        self.connection = 0
        self.reconnect()
        self.end = self.survived = chance.randint(1, 12)
        consumed = chance.randint(0, self.end)
        self.position = chance.randint(consumed, self.end)
        self.delivered = set(range(consumed))
        self.cached = [(False, each) for each in range(consumed, self.position)]
        self.at_slave = False
        self.losses = chance.choice((0.0, 0.3, 0.6))
        self.sends_away = chance.choice((0.0, 0.3, 0.8))
        self.moves = 0
        self.offsets.commit(*PLACE, chance.randint(0, consumed))
        self.lose()

    def reconnect(self) -> None:
        """The same client, on another connection."""
        self.connection += 1
        self.members.connections = {self.connection: SimpleNamespace(client_id="c")}
        self.at_slave = False

    @property
    def reader(self) -> Any:
        return SimpleNamespace(id=self.connection, peer=("host", 1))

    @property
    def progress(self) -> int:
        return self.cached[0][1] if self.cached else self.position

    def lose(self) -> None:
        """As Broker.lost."""
        cut = self.chance.randint(0, self.end)
        self.cached = [(gone or each >= cut, each) for gone, each in self.cached]
        self.delivered = {each for each in self.delivered if each < cut}
        self.end, self.survived = cut, min(cut, self.survived)
        self.cuts.lose({PLACE[1:]: cut}, "the model")

    def commit(self, offset: int) -> None:
        if not self.cuts.beyond(*PLACE, offset, self.reader):
            self.offsets.commit(*PLACE, offset)

    def consume(self) -> None:
        if self.cached:
            gone, offset = self.cached.pop(0)
            if not gone or offset < self.survived:
                self.delivered.add(offset)

    def take(self, upto: int) -> None:
        self.cached += [(False, each) for each in range(self.position, upto)]
        self.position = max(self.position, upto)

    def ask_slave(self) -> None:
        """It knows of no loss."""
        upto = min(self.end, self.position + self.chance.randint(0, 4))
        self.at_slave = upto > self.position and self.chance.random() < 0.7
        self.take(upto)

    def ask_master(self, *, quiet: bool) -> None:
        moved = self.cuts.target(*PLACE, self.position, self.reader)
        upto = min(self.end, self.position + self.chance.randint(1, 4)) if moved is None else moved
        self.cuts.gave(*PLACE, upto, self.reader)
        if self.chance.random() < 0.5:
            self.commit(self.progress)  # a pull says it, too
        away = not quiet and self.chance.random() < self.sends_away
        if away:
            self.cuts.sent_away(*PLACE, self.reader)
        self.moves += moved is not None
        if not quiet and self.chance.random() < self.losses:
            return
        if moved is not None or upto < self.position:  # it drops what it has, and asks where it is
            self.cached.clear()
            self.commit(upto)
            self.position = self.offsets.committed(*PLACE)
        else:
            self.take(upto)
        self.at_slave = away

    def play(self) -> None:
        for _ in range(self.chance.randint(5, 60)):
            kind = self.chance.random()
            if kind < 0.45:
                self.ask_slave() if self.at_slave else self.ask_master(quiet=False)
            elif kind < 0.65:
                self.consume()
            elif kind < 0.8:
                if self.chance.random() >= self.losses:
                    self.commit(self.progress)
            elif kind < 0.93:
                self.end += self.chance.randint(0, 4)
            elif kind < 0.96:
                self.lose()
            else:
                self.reconnect()

    def end_quietly(self) -> None:
        self.moves = 0
        for pulls in range(QUIET_PULLS):
            if pulls > 3 and self.position == self.end and not self.cached:
                return
            self.ask_master(quiet=True)
            self.consume()
        raise AssertionError(f"at {self.position} of {self.end}, moved {self.moves} times")


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS // 4))
def test_a_consumer_that_is_sent_away_while_answers_get_lost_misses_nothing(
    tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + SEEDS // 4):
        played = Played(tmp_path, seed)
        played.play()
        played.end_quietly()
        assert played.delivered >= set(range(played.end)), seed
        assert played.moves <= 2, seed
