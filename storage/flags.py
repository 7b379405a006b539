"""Why the store may refuse writes. Reading is never refused: what is on disk stays served."""

from __future__ import annotations

from enum import IntFlag


class Problem(IntFlag):
    """RocketMQ's running-flag bits, and three of ours. Source: its RunningFlags."""

    FLUSH_FAILED = 2
    QUEUE_ERROR = 4
    INDEX_ERROR = 8
    DISK_FULL = 16
    FENCED = 32
    QUEUES_FULL = 128  # no space for queue or index entries; dispatch clears it when it gets on
    LOG_FULL = 256  # no space for the next segment
    CLOSED = 512


FULL = Problem.DISK_FULL | Problem.QUEUES_FULL | Problem.LOG_FULL
# Only these come and go. The others stay until the process restarts and recovery repairs what they
# hit.
PASSING = FULL | Problem.FENCED

_TEXTS = {
    Problem.FLUSH_FAILED: "flushing to disk failed",
    Problem.QUEUE_ERROR: "a consume queue cannot be written",
    Problem.INDEX_ERROR: "an index file cannot be written",
    Problem.DISK_FULL: "disk usage is above diskSpaceWarningLevelRatio",
    Problem.FENCED: "this broker's role is not settled",
    Problem.QUEUES_FULL: "no space left for consume queues or index",
    Problem.LOG_FULL: "no space left for the next CommitLog file",
    Problem.CLOSED: "the store is closed",
}


class StoreFlags:
    """`writable` is one attribute, for who asks often: the bits of an IntFlag cost a microsecond."""

    __slots__ = ("_details", "problems", "writable")

    def __init__(self) -> None:
        self.problems = Problem(0)
        self.writable = True
        self._details: dict[Problem, str] = {}

    def set(self, problem: Problem, detail: str = "") -> bool:
        """True when it is news."""
        news = not self.problems & problem
        if news:
            self._details[problem] = detail
        self.problems |= problem
        self.writable = False
        return news

    def clear(self, problem: Problem) -> bool:
        """True when it had been set. Only passing problems can be cleared."""
        assert problem in PASSING, problem
        had = bool(self.problems & problem)
        self.problems &= ~problem
        self._details.pop(problem, None)
        self.writable = not self.problems
        return had

    @property
    def full(self) -> bool:
        """Whether a full disk is among the reasons, whatever else is."""
        return not self.writable and bool(self.problems & FULL)

    @property
    def queue_writable(self) -> bool:
        """May dispatch go on? An index error does not stop the queues, unlike in RocketMQ."""
        return self.writable or not self.problems & (Problem.FLUSH_FAILED | Problem.QUEUE_ERROR)

    @property
    def sound(self) -> bool:
        """May a clean stop be recorded? A full disk or a fence breaks nothing."""
        return not self.problems & ~(PASSING | Problem.CLOSED)

    def why(self) -> str:
        """The reasons in words, '' when writable."""
        reasons = []
        for problem, text in _TEXTS.items():
            if self.problems & problem:
                detail = self._details.get(problem, "")
                reasons.append(f"{text} ({detail})" if detail else text)
        return "; ".join(reasons)
