"""A short memory of why: the last decisions of one core, for the log when something final happens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

LINES_MAX: Final = 256


class Story:
    """The last LINES_MAX decisions as (now_ms, sentence)."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=LINES_MAX)

    def add(self, now_ms: int, sentence: str) -> None:
        self._lines.append((now_ms, sentence))

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def __str__(self) -> str:
        return "\n".join(f"{now_ms} {sentence}" for now_ms, sentence in self._lines)
