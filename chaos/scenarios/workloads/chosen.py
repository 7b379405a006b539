"""The workloads by name, and which of them fit a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tandemmq.chaos.scenarios.workloads.changing import AdminChanges
from tandemmq.chaos.scenarios.workloads.consuming import Broadcast, Orderly, Pull
from tandemmq.chaos.scenarios.workloads.sending import Batches, Bulk, Timed, Transactions
from tandemmq.chaos.scenarios.workloads.workload import Ground, Workload

WORKLOADS: Final[Mapping[str, type[Workload]]] = {
    each.name: each
    for each in (Batches, Bulk, Timed, Transactions, Orderly, Pull, Broadcast, AdminChanges)
}
#: what an asynchronous group may lose was consumed before: the order of what comes then is not promised
ORDERED: Final = frozenset({"orderly"})


class Unfit(Exception):
    """A workload cannot be judged in this run; the text says why."""


def chosen(names: Sequence[str], mode: str) -> list[type[Workload]]:
    """Each once, in a fixed order. mode: of the run, "" where it is not known. Raises Unfit."""
    if strange := sorted(set(names) - set(WORKLOADS)):
        raise Unfit(f"no workload is called {', '.join(strange)}; there are {', '.join(WORKLOADS)}")
    if mode.startswith("A") and (unordered := sorted(ORDERED & set(names))):
        raise Unfit(
            f"{', '.join(unordered)} promises nothing in mode {mode}: what a failover may lose was consumed before"
        )
    return [kind for name, kind in WORKLOADS.items() if name in names]


def topics_of(kinds: Sequence[type[Workload]]) -> dict[str, int]:
    """What they need made before: topic -> queues."""
    return {topic: queues for kind in kinds for topic, queues in kind.topics.items()}


def settings_of(kinds: Sequence[type[Workload]]) -> dict[str, object]:
    """What brokers are started with for them, by RocketMQ's keys."""
    return {key: value for kind in kinds for key, value in kind.settings.items()}


__all__ = [
    "ORDERED",
    "WORKLOADS",
    "Ground",
    "Unfit",
    "Workload",
    "chosen",
    "settings_of",
    "topics_of",
]
