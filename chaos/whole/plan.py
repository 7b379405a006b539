"""What a seed is like: how many replicas, in which mode, under which load, and what goes wrong how often."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from tandemmq.replication.config import Mode

FAULTS: Final = (
    "kill",
    "kill",
    "power",
    "kill_all",
    "power_all",
    "fuse",
    "fuse_power",
    "pause",
    "stop",
    "partition",
    "one_way",
    "isolate",
    "slow_disk",
    "slow_wires",
    "sync_error",
    "full",
    "controller",
    "consumer",
    "switch",
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One seed's. Rates are per second of simulated time.

    forgetful  power cuts lose what was not synced: each call to a disk is listened to, which costs time
    delayed    the share of messages with a delay level; retried: of deliveries that fail the first time
    transacted the share of messages sent in a transaction; timed: of the others, with a time of their own
    classic    a master and a slave by their settings, without a controller (classic.py)
    stalls     the share of slow disks that are longer at a call than a master may be at a flush
    makes_room a full disk loses its oldest messages, delivered or not, as RocketMQ's does
    """

    mode: Mode
    replicas: int
    faults: tuple[str, ...]
    fault_rate: float
    send_rate: float
    producers: int
    delayed: float
    retried: float
    orderly: bool
    queues: int
    forgetful: bool
    drifts: tuple[float, ...]
    delay_us: tuple[int, int]
    transacted: float = 0.0
    timed: float = 0.0
    stalls: float = 0.0
    makes_room: bool = True
    classic: bool = False


def drawn(
    rng: random.Random, mode: Mode | None = None, beside: random.Random | None = None
) -> Scenario:
    """The scenario of one seed. beside: what came later is drawn from, so that older seeds stay what they were."""
    beside = beside or random.Random(0)
    chosen = rng.choice((Mode.S0, Mode.S0, Mode.S0, Mode.S1, Mode.A0, Mode.A1))
    faults = tuple(each for each in FAULTS if rng.random() < 0.4) or (rng.choice(FAULTS),)
    forgetful = any(each in ("power", "power_all", "fuse_power", "sync_error") for each in faults)
    return Scenario(
        mode=mode or chosen,
        replicas=rng.choice((2, 2, 2, 3, 3, 1)),
        faults=faults,
        fault_rate=rng.choice((0.8, 2.0, 4.0)),
        send_rate=rng.choice((8.0, 30.0, 80.0)),
        producers=rng.randint(1, 2),
        delayed=rng.choice((0.0, 0.0, 0.2)),
        retried=rng.choice((0.0, 0.0, 0.1)),
        orderly=rng.random() < 0.2,
        queues=rng.randint(1, 3),
        forgetful=forgetful,
        drifts=tuple(rng.uniform(-0.01, 0.01) for _ in range(10)),
        delay_us=rng.choice(((30, 400), (100, 3000), (1000, 20_000))),
        transacted=beside.choice((0.0, 0.0, 0.3, 0.6)),
        timed=beside.choice((0.0, 0.0, 0.3, 0.6)),
        stalls=beside.choice((0.0, 0.0, 0.7)),
    )
