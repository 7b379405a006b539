"""What happened when in a run, out of its history: throughput, latency, roles, epochs, lag, faults."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tandemmq.chaos.checking.lines import OK, Event, Send, decode_line
from tandemmq.chaos.checking.windows import Window, Windows
from tandemmq.chaos.promises import percentile

BUCKET_NS: Final = 250_000_000
AFTER_NS: Final = 2_000_000_000  # what a fault did shows up to so long behind its healing
GAP_NS: Final = 250_000_000  # longer without an acknowledgement is drawn as an outage
SAMPLE: Final = "sample"


@dataclass(slots=True)
class Bucket:
    """A quarter of a second. p50_ms, p99_ms: from the beginning of a send to its acknowledgement."""

    acknowledged: int = 0
    failed: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The controller's word. master "": nobody; answered: whether it said anything."""

    at_ns: int
    answered: bool
    master: str
    epoch: int
    in_sync: frozenset[str]
    alive: frozenset[str]
    lag_bytes: int


@dataclass(frozen=True, slots=True)
class FaultFigures:
    """One fault, as its history shows it. Times in ms since its order.

    silent_ms  longest without any acknowledgement while it lasted and shortly after
    whole_ms   from its healing until every replica was in the sync-state-set; -1: not seen
    """

    window: Window
    effect_ms: float
    lasted_ms: float
    healing_ms: float
    silent_ms: float
    whole_ms: float


@dataclass(slots=True)
class Timeline:
    """Everything that is drawn. Times are ns since start_ns."""

    start_ns: int = 0
    end_ns: int = 0
    buckets: list[Bucket] = field(default_factory=list)
    outages: list[tuple[int, int]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)  # (first seen, epoch)
    replicas: list[str] = field(default_factory=list)  # addresses
    faults: list[FaultFigures] = field(default_factory=list)
    run: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def longest_outage_ms(self) -> float:
        return max(((end - start) / 1e6 for start, end in self.outages), default=0.0)


def timeline(history: Path) -> Timeline:
    """Raises OSError, msgspec.DecodeError."""
    windows, samples, run = Windows(), [], {}
    sends: list[tuple[int, int, bool]] = []  # (ended, began, acknowledged)
    with history.open("rb") as lines:
        for text in lines:
            if not text.startswith((b'["send"', b'["event"')):
                continue
            line = decode_line(text)
            if isinstance(line, Send):
                if not (line.due_ns or line.fate):  # these end when they are due, or decided
                    sends.append((line.ended_ns, line.began_ns, line.outcome == OK))
            elif isinstance(line, Event):
                windows.take(line.fields)
                if line.fields["what"] == SAMPLE:
                    samples.append(_sample(line.fields))
                elif line.fields["what"] == "run":
                    run = line.fields
    sends.sort()
    found = Timeline(samples=samples, run=run)
    if not sends:
        return found
    found.start_ns, found.end_ns = min(each[1] for each in sends), sends[-1][0]
    found.buckets = _buckets(sends, found.start_ns, found.end_ns)
    ends = [ended for ended, _, acknowledged in sends if acknowledged]
    found.outages = [
        (before, after) for before, after in itertools.pairwise(ends) if after - before > GAP_NS
    ]
    found.replicas = sorted({address for each in samples for address in each.in_sync | each.alive})
    found.epochs = _epochs(samples)
    found.faults = [
        _figures(each, ends, samples, len(found.replicas), _next_ns(each, windows))
        for each in windows.faults.values()
    ]
    return found


def _sample(fields: dict[str, Any]) -> Sample:
    return Sample(
        int(fields["at_ns"]), bool(fields.get("controller")), fields.get("master") or "",
        int(fields.get("epoch", -1)), frozenset(fields.get("in_sync", ())), frozenset(fields.get("alive", ())),
        int(fields.get("lag_bytes", 0)),
    )  # fmt: skip


def _buckets(sends: Iterable[tuple[int, int, bool]], start_ns: int, end_ns: int) -> list[Bucket]:
    buckets = [Bucket() for _ in range((end_ns - start_ns) // BUCKET_NS + 1)]
    latencies: list[list[float]] = [[] for _ in buckets]
    for ended_ns, began_ns, acknowledged in sends:
        at = (ended_ns - start_ns) // BUCKET_NS
        if acknowledged:
            buckets[at].acknowledged += 1
            latencies[at].append((ended_ns - began_ns) / 1e6)
        else:
            buckets[at].failed += 1
    for bucket, values in zip(buckets, latencies, strict=True):
        bucket.p50_ms, bucket.p99_ms = percentile(values, 0.5), percentile(values, 0.99)
    return buckets


def _epochs(samples: Iterable[Sample]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for each in samples:
        if each.answered and each.master and (not found or each.epoch > found[-1][1]):
            found.append((each.at_ns, each.epoch))
    return found


def _over_ns(window: Window) -> int:
    return window.healed_ns or window.healing_ns or window.began_ns


def _next_ns(window: Window, windows: Windows) -> int:
    """When the next fault began after this one was over: what comes then is that one's."""
    later = (each.began_ns for each in windows.faults.values())
    return min((at_ns for at_ns in later if at_ns > _over_ns(window)), default=1 << 62)


def _figures(
    window: Window,
    ends: Sequence[int],
    samples: Iterable[Sample],
    replicas: int,
    next_ns: int,
) -> FaultFigures:
    """ends: when sends were acknowledged, ascending."""
    over_ns = _over_ns(window)
    until_ns = min(over_ns + AFTER_NS, next_ns)
    first, last = bisect_left(ends, window.began_ns), bisect_left(ends, until_ns)
    around = ends[max(0, first - 1) : last + 1]
    silent_ns = max((min(b, next_ns) - a for a, b in itertools.pairwise(around)), default=0)
    whole_ns = next(
        (
            each.at_ns
            for each in samples
            if each.at_ns > over_ns and each.master and len(each.in_sync) == replicas
        ),
        0,
    )
    return FaultFigures(
        window,
        _ms(window.began_ns, window.seen_ns),
        _ms(window.seen_ns, window.healing_ns),
        _ms(window.healing_ns, window.healed_ns),
        silent_ns / 1e6,
        _ms(over_ns, whole_ns),
    )


def _ms(since_ns: int, until_ns: int) -> float:
    return (until_ns - since_ns) / 1e6 if since_ns and until_ns else -1.0
