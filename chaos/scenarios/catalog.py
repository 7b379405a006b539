"""The scenarios: what each does, what it needs of the machine, and how a seed draws its schedule."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq.chaos.faults.grudges import SHAPES
from tandemmq.chaos.faults.rot import PARTS
from tandemmq.chaos.scenarios.schedule import Planned, Role, Schedule, Step, Value
from tandemmq.chaos.scenarios.workloads.chosen import WORKLOADS

JUMPS_S: Final = (-3600, -60, 60, 3600)
DRIFTS_PPM: Final = (-50_000, -20_000, 20_000, 50_000)
Draw = Callable[[random.Random, int], tuple[Step, ...]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """weight: how often a campaign draws it, among all. steps: of a run that is told nothing.

    workloads  beside the traffic (tandemmq.chaos.scenarios.workloads), unless others are asked for
    """

    name: str
    says: str
    stage: str
    draw: Draw
    weight: int = 1
    steps: int = 3
    replicas: int = 2
    mode: str = "S0"
    workloads: tuple[str, ...] = ()

    def schedule(
        self,
        seed: int,
        steps: int | None = None,
        mode: str | None = None,
        replicas: int | None = None,
        workloads: Sequence[str] | None = None,
    ) -> Schedule:
        """Drawn from the seed alone: the same again for the same arguments."""
        rng = random.Random(f"{self.name}/{seed}")
        drawn = self.draw(rng, self.steps if steps is None else steps)
        mode, replicas = mode or self.mode, replicas or self.replicas
        beside = self.workloads if workloads is None else tuple(workloads)
        return Schedule(self.name, seed, mode, replicas, self.stage, drawn, beside)


def _step(rng: random.Random, *faults: Planned) -> Step:
    return Step(round(rng.uniform(2.0, 3.5), 1), faults)


def _fault(
    rng: random.Random, kind: str, victim: Role, lasts_s: tuple[float, float], **how: Value
) -> Planned:
    return Planned(kind, victim, round(rng.uniform(*lasts_s), 1), with_=how)


def _calm(rng: random.Random, steps: int) -> tuple[Step, ...]:
    return tuple(Step(round(rng.uniform(3.0, 5.0), 1), ()) for _ in range(steps))


def _kills(rng: random.Random, steps: int) -> tuple[Step, ...]:
    victims: tuple[Role, ...] = ("master", "master", "master", "slave")
    return tuple(
        _step(rng, _fault(rng, "kill", victims[number % 4], (1.0, 3.0))) for number in range(steps)
    )


def _pauses(rng: random.Random, steps: int) -> tuple[Step, ...]:
    return tuple(
        _step(rng, _fault(rng, rng.choice(("pause", "pause", "stutter")), "master", (2.0, 8.0)))
        for _ in range(steps)
    )


def _rolling(rng: random.Random, steps: int) -> tuple[Step, ...]:
    """Every replica once, the controller last."""
    victims: tuple[Role, ...] = ("slave", "master", "controller")
    return tuple(
        _step(rng, _fault(rng, "stop", victims[number % 3], (1.0, 2.0))) for number in range(steps)
    )


def _storm(rng: random.Random, steps: int) -> tuple[Step, ...]:
    return tuple(_step(rng, _fault(rng, "storm", "replicas", (12.0, 20.0))) for _ in range(steps))


def _partitions(rng: random.Random, steps: int) -> tuple[Step, ...]:
    links = ("controller", "stream", "clients", "alone", "names", "routes")
    return tuple(
        _step(
            rng,
            _fault(
                rng, "partition", "slave" if links[number % 6] == "names" else "master", (3.0, 7.0),
                links=links[number % 6], way=rng.choice(("both", "both", "up", "down")),
            ),
        )
        for number in range(steps)
    )  # fmt: skip


def _slow(rng: random.Random, steps: int) -> tuple[Step, ...]:
    """Replication and clients in turn: two steps slow both, six do each to each."""
    how: tuple[tuple[str, dict[str, Value]], ...] = (
        ("latency", {"latency_ms": 200, "jitter_ms": 100}),
        ("bandwidth", {"rate_kb": 30}),
        ("slicing", {"piece_bytes": 64}),
    )
    links = ("stream", "clients")
    return tuple(
        _step(
            rng,
            _fault(
                rng, how[number % 3][0], "master", (3.0, 5.0), links=links[number % 2],
                **how[number % 3][1],
            ),
        )
        for number in range(steps)
    )  # fmt: skip


def _broken(rng: random.Random, steps: int) -> tuple[Step, ...]:
    links = ("stream", "clients", "controller")
    return tuple(
        _step(
            rng,
            _fault(
                rng, ("reset", "refuse")[number % 2], "master", (2.0, 4.0), links=links[number % 3]
            ),
        )
        for number in range(steps)
    )


def _split(rng: random.Random, steps: int) -> tuple[Step, ...]:
    steps_of = []
    for number in range(steps):
        if number % 6 == 5:
            fault = _fault(
                rng, "packets", "master", (4.0, 8.0), shape="loss", percent=rng.choice((5, 15, 30))
            )
        else:
            fault = _fault(rng, "packets", "master", (4.0, 8.0), shape=SHAPES[number % 5])
        steps_of.append(_step(rng, fault))
    return tuple(steps_of)


def _power(rng: random.Random, steps: int) -> tuple[Step, ...]:
    victims: tuple[Role, ...] = ("master", "replicas", "slave")
    return tuple(
        _step(rng, _fault(rng, "power", victims[number % 3], (0.5, 2.0))) for number in range(steps)
    )


def _full(rng: random.Random, steps: int) -> tuple[Step, ...]:
    victims: tuple[Role, ...] = ("master", "slave")
    return tuple(
        _step(rng, _fault(rng, "disk-full", victims[number % 2], (4.0, 6.0)))
        for number in range(steps)
    )


def _failing(rng: random.Random, steps: int) -> tuple[Step, ...]:
    """The third stands still for as long as the fault lasts."""
    ways: tuple[tuple[tuple[float, float], dict[str, Value]], ...] = (
        ((2.0, 4.0), {"call": "fdatasync", "delay_ms": 200, "part": "commitlog"}),
        ((2.0, 4.0), {"call": "fdatasync", "errno": errno.EIO, "part": "commitlog"}),
        ((5.0, 8.0), {"call": "fdatasync", "delay_ms": 60_000, "part": "commitlog"}),
    )
    steps_made = []
    for number in range(steps):
        lasts_s, way = ways[number % 3]
        steps_made.append(_step(rng, _fault(rng, "calls", "master", lasts_s, **way)))
    return tuple(steps_made)


def _clock(rng: random.Random, steps: int) -> tuple[Step, ...]:
    return tuple(
        _step(
            rng,
            _fault(rng, "clock", ("master", "slave")[number % 2], (3.0, 5.0), jump_s=rng.choice(JUMPS_S)),
        )
        for number in range(steps)
    )  # fmt: skip


def _drift(rng: random.Random, steps: int) -> tuple[Step, ...]:
    return tuple(
        _step(
            rng,
            _fault(
                rng,
                "drift",
                ("master", "slave")[number % 2],
                (4.0, 7.0),
                ppm=rng.choice(DRIFTS_PPM),
            ),
        )
        for number in range(steps)
    )


def _thin(rng: random.Random, steps: int) -> tuple[Step, ...]:
    victims: tuple[Role, ...] = ("master", "slave")
    return tuple(
        _step(rng, _fault(rng, "thin-disk", victims[number % 2], (1.0, 3.0)))
        for number in range(steps)
    )


def _rot(rng: random.Random, steps: int) -> tuple[Step, ...]:
    """The log in every other step, of the others each part once before one comes again."""
    others = rng.sample([each for each in PARTS if each != "log"], len(PARTS) - 1)
    victims: tuple[Role, ...] = ("slave", "master", "slave")
    return tuple(
        _step(
            rng,
            _fault(
                rng, "rot", victims[number % 3], (1.0, 2.0),
                part=others[number // 2 % len(others)] if number % 2 else "log",
            ),
        )
        for number in range(steps)
    )  # fmt: skip


def _memory(rng: random.Random, steps: int) -> tuple[Step, ...]:
    victims: tuple[Role, ...] = ("master", "slave")
    return tuple(
        _step(
            rng,
            _fault(rng, "memory", victims[number % 2], (4.0, 8.0), limit_mib=rng.choice((3, 4, 6))),
        )
        for number in range(steps)
    )  # fmt: skip


def _controller(rng: random.Random, steps: int) -> tuple[Step, ...]:
    kinds = ("kill", "pause")
    return tuple(
        _step(rng, _fault(rng, kinds[number % 2], "controller", (2.0, 6.0)))
        for number in range(steps)
    )


def _everything(rng: random.Random, steps: int) -> tuple[Step, ...]:
    kinds: tuple[tuple[str, Role], ...] = (
        ("kill", "master"),
        ("stop", "slave"),
        ("pause", "master"),
    )
    return tuple(
        _step(rng, _fault(rng, kinds[number % 3][0], kinds[number % 3][1], (2.0, 4.0)))
        for number in range(steps)
    )


def _pairs(rng: random.Random, steps: int) -> tuple[Step, ...]:
    """Two at once: the master, and what it or its heir would need."""
    firsts = ("kill", "pause")
    seconds = (
        Planned("kill", "controller", 2.0),
        Planned(
            "latency",
            "slave",
            3.0,
            with_={"links": "controller", "latency_ms": 300, "jitter_ms": 0},
        ),
        Planned("partition", "master", 3.0, with_={"links": "controller", "way": "both"}),
    )
    return tuple(
        _step(
            rng,
            seconds[number % 3],
            Planned(firsts[number % 2], "master", round(rng.uniform(2.0, 4.0), 1), 1.0),
        )
        for number in range(steps)
    )


SCENARIOS: Final[Mapping[str, Scenario]] = {
    each.name: each
    for each in (
        Scenario("calm", "nothing is broken: everything is judged all the same", "plain", _calm, 1),
        Scenario("kill", "kill -9 of masters, and of a slave", "plain", _kills, 6, steps=4),
        Scenario("pause", "the master falls silent (SIGSTOP) for 2 to 8 s, or stutters", "plain", _pauses, 4),
        Scenario("rolling", "slave, master and controller stopped in good order and started", "plain", _rolling, 2),
        Scenario("storm", "every replica killed -9 and started every 1 to 4 s", "plain", _storm, 2, steps=1),
        Scenario(
            "everything", "masters die and freeze beside every kind of message and consumer", "plain",
            _everything, 2, steps=3, workloads=tuple(WORKLOADS),
        ),
        Scenario("controller", "controller and name server killed -9 or silent", "plain", _controller, 2, steps=2),
        Scenario("partition", "links of the master swallow all, both ways or one", "links", _partitions, 4, steps=6),
        Scenario("slow-network", "latency with jitter, little bandwidth, small pieces", "links", _slow, 2, steps=6),
        Scenario("broken-connections", "connections reset again and again, or refused", "links", _broken, 2, steps=3),
        Scenario("two-at-once", "the master dies or freezes while the controller or a link fails", "links", _pairs, 3),
        Scenario(
            "split", "partitions between nodes: alone, halves, bridge, ring, one-way; packet loss", "spaces", _split, 3,
            steps=6, replicas=3,
        ),
        Scenario("power", "power cut of the master's host, of all hosts, of a slave's", "hosts", _power, 3, mode="S1"),
        Scenario("disk-full", "the disk of a master, of a slave, is full for a while", "small", _full, 2, steps=2),
        Scenario("failing-disk", "slow flushes, an I/O error, a stalled disk", "shims", _failing, 2, mode="S1"),
        Scenario("thin-disk", "write-back fails where room was promised", "thin", _thin, 2, steps=2, mode="S1"),
        Scenario("bit-rot", "one bit of a file of a store is another one after a crash", "plain", _rot, 2, steps=4),
        Scenario("memory", "a broker gets hardly any new pages", "memory", _memory, 2, steps=2),
        Scenario("drift", "all clocks of a broker run fast or slow by some per cent", "shims", _drift, 2, steps=2),
        Scenario("clock", "the wall clock of a broker jumps by minutes or an hour", "shims", _clock, 2, steps=2),
    )
}  # fmt: skip
