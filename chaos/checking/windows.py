"""The faults of a history as stretches of time: what they excuse, and whether each had an effect that was seen."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

RTO_NS: Final = 5_000_000_000  # goal for silent deaths: this long after its healing a fault excuses


@dataclass(slots=True)
class Window:
    """One fault. 0: not yet, or never. ppm: so much faster than ours its victim's clocks ran."""

    number: int
    kind: str
    says: str = ""
    began_ns: int = 0
    seen_ns: int = 0
    healing_ns: int = 0
    healed_ns: int = 0
    evidence: str = ""
    healing: str = ""
    problem: str = ""
    ppm: int = 0


@dataclass(slots=True)
class Windows:
    """Fed with events, in order; asked afterwards."""

    faults: dict[int, Window] = field(default_factory=dict)
    planned_changes_ns: list[int] = field(default_factory=list)  # switchovers that were ordered
    unwatched: bool = False  # nobody wrote down when a fault began: all of the run is excused
    _starts: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)

    def take(self, event: Mapping[str, Any]) -> None:
        """An event of the history, of whatever kind."""
        if event["what"] == "switchover":
            self.planned_changes_ns.append(int(event["at_ns"]))
        if event["what"] != "fault":
            return
        at_ns, phase = int(event["at_ns"]), event["phase"]
        window = self.faults.setdefault(
            event["number"], Window(event["number"], str(event.get("kind", "")))
        )
        match phase:
            case "start":
                window.began_ns, window.says = at_ns, str(event.get("says", ""))
                window.ppm = int(event.get("ppm", 0))
            case "effect":
                window.seen_ns, window.evidence = at_ns, str(event.get("evidence", ""))
            case "heal":
                window.healing_ns = at_ns
            case "healed":
                window.healed_ns, window.healing = at_ns, str(event.get("evidence", ""))
            case _:
                window.problem = str(event.get("problem") or phase)

    def close(self) -> None:
        """All events were taken: make the stretches that are excused, joined where they touch."""
        spans = [
            (each.began_ns, (each.healed_ns + RTO_NS) if each.healed_ns else 1 << 62)
            for each in self.faults.values()
        ]
        spans += [(at_ns, at_ns + RTO_NS) for at_ns in self.planned_changes_ns]
        if self.unwatched:
            spans.append((0, 1 << 62))
        self._starts, self._ends = [], []
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def clocks_apart_ns(self, at_ns: int) -> int:
        """At most so far are two brokers' clocks from each other then: drifts go, what they made stays."""
        return sum(
            abs(each.ppm) * (min(each.healed_ns or at_ns, at_ns) - each.began_ns) // 1_000_000
            for each in self.faults.values()
            if each.ppm and each.began_ns < at_ns
        )

    def excuse(self, began_ns: int, ended_ns: int) -> bool:
        """Whether [began, ended] touches a stretch in which something was broken or getting well."""
        at = bisect_right(self._starts, ended_ns) - 1
        return at >= 0 and self._ends[at] >= began_ns

    def cover(self, began_ns: int, ended_ns: int, slack_ns: int = 0) -> bool:
        """Whether all of [began, ended] but `slack` at its end lies in such a stretch."""
        at = bisect_right(self._starts, began_ns + slack_ns) - 1
        return at >= 0 and self._ends[at] >= ended_ns - slack_ns

    def doubts(self) -> Iterable[str]:
        """Faults that show nothing."""
        for each in self.faults.values():
            what = f"fault {each.number} ({each.says or each.kind})"
            if not each.seen_ns:
                yield f"{what} had no effect that was seen: {each.problem or 'no evidence'}"
            elif not each.healed_ns:
                yield f"{what} was not seen to be over: {each.problem or 'no evidence'}"
            elif each.problem:
                yield f"{what}: {each.problem}"
