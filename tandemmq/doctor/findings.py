"""What the doctor says: one finding is what is the case, how bad that is, and what to do."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Severity(enum.IntEnum):
    """How bad it is; the worst one of all is how the command ends."""

    ADVICE = 0  # it would run better, or be easier to look after
    WARNING = (
        1  # something is not as it should be: nothing is lost, and the next fault may cost more
    )
    CRITICAL = 2  # somebody waits now, or acknowledged messages are at risk

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that looks wrong.

    check  its name, which stays the same from release to release: programs may match it
    where  what it is about: this machine, a broker name, an address, a group
    text   what is the case, with its numbers
    do     what to do about it
    """

    check: str
    severity: Severity
    where: str
    text: str
    do: str


def worst(findings: Iterable[Finding]) -> Severity | None:
    """None when nothing was found."""
    return max((each.severity for each in findings), default=None)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first; as they were found among equals."""
    return sorted(findings, key=lambda each: -each.severity)


def size_text(size_bytes: float) -> str:
    """`1.5 GiB`."""
    value, units = float(size_bytes), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    for larger in units:
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
