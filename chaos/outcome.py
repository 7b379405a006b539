"""What every campaign's run comes to: what is wrong, figures of its own, and how it says both."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Outcome:
    """What a run did and found; it is good when there are no problems. Campaigns add figures as fields."""

    seed: int
    seconds: float = field(default=0.0, kw_only=True)
    problems: list[str] = field(default_factory=list, kw_only=True)

    @property
    def good(self) -> bool:
        return not self.problems

    @property
    def held(self) -> str:
        """What a good run has shown."""
        raise NotImplementedError

    def lines(self) -> list[str]:
        """The figures, for people."""
        raise NotImplementedError

    def report(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)
