"""What the modes of a replicated group promise of a run's messages in a power cut. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tandemmq.chaos.checking.lines import FAIL, Delivered, Send
from tandemmq.chaos.survival import WINDOW_MS, Fate, Fault, fate
from tandemmq.replication.config import Mode

#: longest that a message acknowledged from the page cache may wait for its disk: the interval, and a slow flush
WINDOW_NS: Final = (WINDOW_MS + 1000) * 1_000_000


class Stored(NamedTuple):
    """One message of the final log. body_hash: of the body as it lies there."""

    queue_offset: int
    unique_id: str
    offset: int
    size: int
    body_hash: str


class Cut(NamedTuple):
    """Bytes [start, end) of its log that a replica set aside and cut off.

    reported, found  records that it says and that are in the file
    unique_ids       of the run's messages among them
    """

    start: int
    end: int
    reported: int
    found: int
    unique_ids: frozenset[str] = frozenset()
    epoch: int = 0


class PowerCut(NamedTuple):
    """Hosts lost their power between two times: how many, and whether they were all. done_ns 0: at once."""

    at_ns: int
    hosts: int
    everybody: bool
    done_ns: int = 0


def within_window(
    sends: Iterable[Send], cuts: Sequence[PowerCut], mode: Mode, window_ns: int = WINDOW_NS
) -> frozenset[str]:
    """Unique ids that a power cut may have taken by the promises of this mode: those that waited for their disk
    then, on every host that held them.

    That is the last moment before a cut of all hosts, where the mode says so; before a cut of one where the mode
    says so, or where the acknowledgement named no more copies than lost their power.
    """
    return frozenset(
        send.unique_id
        for send in sends
        if send.outcome != FAIL
        and any(
            send.began_ns <= max(cut.at_ns, cut.done_ns)
            and cut.at_ns <= send.ended_ns + window_ns
            and _takes_unflushed(cut, mode, send.copies)
            for cut in cuts
        )
    )


def within_window_again(
    delivered: Iterable[Delivered], cuts: Sequence[PowerCut], mode: Mode, window_ns: int = WINDOW_NS
) -> frozenset[str]:
    """Unique ids of delayed messages of which a power cut may have taken a copy that had just been delivered: what
    it was made from is older and safe, and it is delivered again."""
    return frozenset(
        each.unique_id
        for each in delivered
        if any(
            0 <= cut.at_ns - each.at_ns <= window_ns and _takes_unflushed(cut, mode, -1)
            for cut in cuts
        )
    )


def _takes_unflushed(cut: PowerCut, mode: Mode, copies: int) -> bool:
    """Whether the mode lets this cut take what waits for its disk. copies: as acknowledged, -1 where unknown."""
    if fate(mode, Fault.HOST) is Fate.WINDOW:
        return True
    all_held = cut.everybody or 0 < copies <= cut.hosts
    return fate(mode, Fault.HOSTS) is Fate.WINDOW and all_held


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank; 0 for nothing."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def figures(values: Sequence[float]) -> dict[str, float]:
    """count, p50, p99 and max; the first alone of nothing."""
    if not values:
        return {"count": 0}
    middle, most = percentile(values, 0.5), percentile(values, 0.99)
    return {"count": len(values), "p50": middle, "p99": most, "max": max(values)}
