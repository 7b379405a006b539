"""How fast a consumer works, per topic, for the tools that ask it. No I/O, no clock of its own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

WINDOW_MS: Final = 60_000
SNAPSHOTS_MAX: Final = 16


@dataclass(slots=True)
class _Counts:
    pulled: int = 0
    handled: int = 0
    failed: int = 0
    busy_ms: float = 0.0
    past: deque[tuple[int, int, int, int, float]] = field(
        default_factory=lambda: deque(maxlen=SNAPSHOTS_MAX)
    )


class Rates:
    """Counters of one consumer; rates are those of the last minute, as far as snapshots reach."""

    def __init__(self) -> None:
        self._topics: dict[str, _Counts] = {}

    def pulled(self, topic: str, count: int) -> None:
        """Messages arrived."""
        self._topics.setdefault(topic, _Counts()).pulled += count

    def consumed(self, topic: str, handled: int, failed: int, took_ms: float) -> None:
        """A listener finished with some messages."""
        counts = self._topics.setdefault(topic, _Counts())
        counts.handled += handled
        counts.failed += failed
        counts.busy_ms += took_ms

    def snapshot(self, now_ms: int) -> None:
        """Remember where the counters stand. Call every few seconds."""
        for counts in self._topics.values():
            counts.past.append(
                (now_ms, counts.pulled, counts.handled, counts.failed, counts.busy_ms)
            )
            while len(counts.past) > 1 and now_ms - counts.past[1][0] >= WINDOW_MS:
                counts.past.popleft()

    def as_json(self, topic: str, now_ms: int) -> dict[str, float | int]:
        """ConsumeStatus of a topic."""
        counts = self._topics.get(topic, _Counts())
        at_ms, pulled, handled, failed, busy_ms = counts.past[0] if counts.past else (0, 0, 0, 0, 0)
        seconds = max(1.0, (now_ms - at_ms) / 1000) if at_ms else 1.0
        if not at_ms:
            pulled, handled, failed, busy_ms = counts.pulled, counts.handled, counts.failed, 0
        done = counts.handled + counts.failed - handled - failed
        return {
            "consumeFailedMsgs": counts.failed,
            "consumeFailedTPS": (counts.failed - failed) / seconds,
            "consumeOKTPS": (counts.handled - handled) / seconds,
            "consumeRT": (counts.busy_ms - busy_ms) / done if done else 0.0,
            "pullRT": 0.0,
            "pullTPS": (counts.pulled - pulled) / seconds,
        }
