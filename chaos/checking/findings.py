"""What checkers say: findings by id, how much each checker saw, and the verdict that follows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

VALID: Final = "valid"
INVALID: Final = "invalid"
UNKNOWN: Final = "unknown"  # the run proves nothing, which is a failure
KEPT_MAX: Final = 20  # findings of one id that are kept whole; the rest is counted

#: id -> the property that is checked
CHECKS: Final[dict[str, str]] = {
    "C-1": "what was acknowledged is kept",
    "C-2": "nothing is there that nobody sent",
    "C-3": "nothing is there that was refused",
    "C-4": "one message per position, whoever looks, for ever",
    "C-5": "queues have no hole",
    "C-6": "an acknowledgement names the message's place",
    "C-7": "who was acknowledged before another was sent lies before it",
    "C-8": "a reader goes forward, one by one",
    "C-9": "no message comes twice without a cause",
    "C-10": "a group's progress never goes back, nor beyond the end",
    "C-11": "nothing below a group's progress was skipped",
    "C-12": "what was read does not vanish",
    "C-13": "bodies are what was sent",
    "C-14": "one master at a time, epochs only grow",
    "C-15": "replicas hold the same bytes",
    "C-16": "settings read as if one had changed them after the other",
    "C-17": "unavailable only while something is broken",
    "C-18": "delayed and transactional messages come when they must, and only then",
    "C-19": "acknowledged messages are found by key and id",
    "C-20": "the audit agrees with the comparison of bytes",
}
LINEARIZABILITY: Final = "C-21"
#: those that judge only where they are asked for: they need what not every machine has
ON_REQUEST: Final[dict[str, str]] = {
    LINEARIZABILITY: "one order explains each queue and each setting, as Porcupine judges",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken property.

    at_ns    when it happened, 0 where that is unknown
    excerpt  the operations around it, one a line
    """

    check: str
    text: str
    at_ns: int = 0
    excerpt: tuple[str, ...] = ()


@dataclass(slots=True)
class Findings:
    """Collects what checkers find and how much each of them looked at."""

    kept: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    observed: Counter[str] = field(default_factory=Counter)
    tally: Counter[str] = field(default_factory=Counter)  # what Judgement has under this name

    def add(self, check: str, text: str, at_ns: int = 0, excerpt: tuple[str, ...] = ()) -> None:
        self.counts[check] += 1
        if self.counts[check] <= KEPT_MAX:
            self.kept.append(Finding(check, text, at_ns, excerpt))

    def wants(self, check: str) -> bool:
        """Whether one more finding of this id would be kept whole: excerpts cost time."""
        return self.counts[check] < KEPT_MAX

    def saw(self, check: str, count: int = 1) -> None:
        self.observed[check] += count


@dataclass(slots=True)
class Judgement:
    """The verdict on a history.

    word      VALID, INVALID or UNKNOWN
    doubts    why it is UNKNOWN, also where it is INVALID beside
    counts    findings by id; observed: what each checker looked at
    tally     messages that were "acknowledged", "lost" (also where that was declared), "lost bytes", "skipped" and
              "undelivered" of a group
    """

    word: str
    findings: list[Finding]
    doubts: list[str]
    counts: dict[str, int]
    observed: dict[str, int]
    operations: int
    acknowledged: int
    seconds: float = 0.0
    tally: dict[str, int] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return self.word == VALID


def judged(findings: Findings, doubts: list[str], operations: int, acknowledged: int) -> Judgement:
    """A broken property is invalid, whatever else is unknown."""
    word = INVALID if findings.counts else UNKNOWN if doubts else VALID
    ordered = sorted(findings.kept, key=lambda each: (int(each.check[2:]), each.at_ns))
    return Judgement(
        word,
        ordered,
        doubts,
        dict(findings.counts),
        dict(findings.observed),
        operations,
        acknowledged,
        tally=dict(findings.tally),
    )
