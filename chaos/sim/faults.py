"""What one run suffers: mode, size, rates and kinds of faults, all drawn from the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from tandemmq.replication.config import LeasePolicy, LeaseTimes, Mode, StreamRules

#: ten times shorter than the defaults, so that two thousand events see several leases end
TIMES: Final = LeaseTimes(heartbeat_ms=60, lease_ms=240, election_wait_ms=280, drift_percent=5)
RULES: Final = StreamRules(
    slave_timeout_ms=200,
    catch_up_ms_max=150,
    lost_grace_ms=20,
    drain_ms_max=80,
    proposal_retry_ms=60,
    stream_heartbeat_ms=80,
    stream_silence_ms=300,
)
TICK_MS: Final = 30

FAULTS: Final = (
    "crash",
    "power",
    "power_all",
    "pause",
    "freeze",
    "cut",
    "partition",
    "one_way",
    "isolate",
    "slow_disk",
    "sync_error",
    "fuse",
    "controller_crash",
    "controller_pause",
    "switchover",
    "clog",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """One seed's swarm configuration. Rates are per second of simulated time, delays in microseconds.

    fault_kinds  a random subset: many bugs need one kind often and another one never
    wire         replication streams go through the real codec in randomly cut chunks
    learner      the replica that follows and never counts; 0 for none
    """

    mode: Mode
    replicas: int
    rules: StreamRules
    put_rate: float
    read_rate: float
    fault_rate: float
    fault_kinds: tuple[str, ...]
    producers: int
    queues: int
    delay_us: tuple[int, int]
    slow_delay_us: int
    slow_share: float
    frame_cells_max: int
    window: int
    flush_us: tuple[int, int]
    drifts: tuple[float, ...]
    wire: bool
    learner: int = 0


def draw(rng: random.Random, mode: Mode | None = None) -> Plan:
    """The plan of one seed."""
    modes = (Mode.S0, Mode.S0, Mode.S1, Mode.S1, Mode.A0, Mode.A1)
    drawn = rng.choice(modes)
    mode = mode or drawn
    replicas = rng.choice((2, 2, 2, 3, 3, 1, 4))
    copies_min = rng.choice((1, 1, 1, 2)) if replicas > 1 and mode.waits_for_slaves else 1
    rules = RULES
    if copies_min != 1:
        fields = {name: getattr(RULES, name) for name in RULES.__struct_fields__}
        rules = StreamRules(**{**fields, "copies_min": copies_min})
    kinds = [kind for kind in FAULTS if rng.random() < 0.45]
    if not kinds and rng.random() < 0.8:
        kinds = [rng.choice(FAULTS)]
    delay_max = rng.choice((300, 1000, 5000))
    flush = (50, 400) if mode.waits_for_disk else (5000, rng.choice((20_000, 120_000, 400_000)))
    return Plan(
        mode=mode,
        replicas=replicas,
        rules=rules,
        put_rate=rng.choice((4.0, 20.0, 60.0, 120.0)),
        read_rate=rng.choice((5.0, 20.0)),
        fault_rate=rng.choice((2.0, 6.0, 12.0)) if kinds else 0.0,
        fault_kinds=tuple(kinds),
        producers=rng.randint(1, 3),
        queues=rng.randint(1, 4),
        delay_us=(50, delay_max),
        slow_delay_us=rng.choice((10_000, 60_000)),
        slow_share=rng.choice((0.0, 0.02, 0.1)),
        frame_cells_max=rng.choice((3, 12, 64)),
        window=rng.randint(1, 4),
        flush_us=flush,
        drifts=tuple(rng.uniform(-0.02, 0.02) for _ in range(replicas + 1)),
        wire=rng.random() < 0.1,
    )


def varied(plan: Plan, rng: random.Random) -> Plan:
    """The plan with what came later than its draws: `rng` is another one, so that no older seed changes."""
    changes: dict[str, Any] = {
        "lease_policy": rng.choice((LeasePolicy.AUTO, LeasePolicy.STRICT, LeasePolicy.AVAILABLE))
    }
    fewer, learns, fills = (rng.random() for _ in range(3))
    if plan.replicas > 2 and plan.mode.waits_for_slaves and fewer < 0.25:
        changes |= {"all_in_set": False, "copies_wanted": 2}
    kinds = plan.fault_kinds
    if kinds and fills < 0.3:
        kinds = (*kinds, "disk_full")
    learner = plan.replicas if plan.replicas > 2 and learns < 0.25 else 0
    rules = msgspec.structs.replace(plan.rules, **changes)
    return replace(plan, rules=rules, fault_kinds=kinds, learner=learner)
