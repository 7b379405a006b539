"""What an acknowledged message survives, by mode and fault: the one list of promises.

README's table is written from it (docs/generate.py), and who judges asks it: the simulator (chaos.sim.checks) and
the verdict on a run of real processes (tandemmq.chaos.verdict). So no sentence promises what nobody asks.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tandemmq.replication.config import Mode

#: flushIntervalCommitLog's default: how long an acknowledged message may wait for its disk in ASYNC_FLUSH
WINDOW_MS: Final = 500


class Fault(enum.Enum):
    """What happens to a group, as the head of the table's column says it."""

    CRASH = "a process crashes"
    HOST = "a machine loses power"
    HOSTS = "all machines lose power"
    GONE = "the master's machine is gone"


class Fate(enum.Enum):
    """What becomes of acknowledged messages, as the table's cell says it.

    WINDOW  those whose holders all lost them within WINDOW_MS, unflushed, may be missing
    LAG     those that the next master lacked may be missing; who comes back sets them aside and counts them
    """

    KEPT = "kept"
    WINDOW = f"last moment may be lost ({WINDOW_MS} ms)"
    LAG = "what slaves lacked is lost"


@dataclass(frozen=True, slots=True)
class Promise:
    """One row: how a mode is set, what its acknowledgement means, and what that survives."""

    settings: str
    meaning: str
    fates: Mapping[Fault, Fate]


PROMISES: Final[Mapping[Mode, Promise]] = {
    Mode.A0: Promise(
        "`ASYNC_MASTER`, `ASYNC_FLUSH` (default)",
        Mode.A0.meaning,
        {
            Fault.CRASH: Fate.KEPT,
            Fault.HOST: Fate.WINDOW,
            Fault.HOSTS: Fate.WINDOW,
            Fault.GONE: Fate.LAG,
        },
    ),
    Mode.A1: Promise(
        "`ASYNC_MASTER`, `SYNC_FLUSH`",
        Mode.A1.meaning,
        {
            Fault.CRASH: Fate.KEPT,
            Fault.HOST: Fate.KEPT,
            Fault.HOSTS: Fate.KEPT,
            Fault.GONE: Fate.LAG,
        },
    ),
    Mode.S0: Promise(
        "`SYNC_MASTER`, `ASYNC_FLUSH`",
        Mode.S0.meaning,
        {
            Fault.CRASH: Fate.KEPT,
            Fault.HOST: Fate.KEPT,
            Fault.HOSTS: Fate.WINDOW,
            Fault.GONE: Fate.KEPT,
        },
    ),
    Mode.S1: Promise(
        "`SYNC_MASTER`, `SYNC_FLUSH`",
        Mode.S1.meaning,
        {
            Fault.CRASH: Fate.KEPT,
            Fault.HOST: Fate.KEPT,
            Fault.HOSTS: Fate.KEPT,
            Fault.GONE: Fate.KEPT,
        },
    ),
}

#: who asks: faults of the simulator, and commands that do it to real processes
ASKED: Final[Mapping[Fault, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    Fault.CRASH: (("crash", "fuse"), ("tandemmq.chaos.kills", "tandemmq.chaos.failover")),
    Fault.HOST: (("power", "sync_error"), ("tandemmq.chaos.hostcuts",)),
    Fault.HOSTS: (("power_all",), ("tandemmq.chaos.hostcuts",)),
    Fault.GONE: (
        ("crash", "isolate", "partition"),
        ("tandemmq.chaos.failover", "tandemmq.chaos.partitions"),
    ),
}


def fate(mode: Mode, fault: Fault) -> Fate:
    """What becomes of messages acknowledged in this mode."""
    return PROMISES[mode].fates[fault]


def table() -> str:
    """README's table, in Markdown."""
    heads = ["`brokerRole`, `flushDiskType`", "acknowledged means", *(each.value for each in Fault)]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for mode, promise in PROMISES.items():
        cells = [
            f"{mode.value}: {promise.settings}",
            promise.meaning,
            *(promise.fates[each].value for each in Fault),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
