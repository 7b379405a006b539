"""The history of a run as a file: what the system under test acknowledged, and what was done to it.

JSON lines. Checkers read the file, not the memory of the run: a run whose history is missing or
empty has shown nothing, and that is a failure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self, TextIO


class HistoryMissing(Exception):
    """There is no history, or nothing was acknowledged in it."""


class Acknowledged(NamedTuple):
    """A message whose send was answered with success, and the place the answer gave it.

    unique_id  32 hex digits of ours: running number, then the hash of the body (tandemmq.chaos.load)
    offset_id  the broker's id: its address and the position in its log
    """

    topic: str
    queue_id: int
    queue_offset: int
    unique_id: str
    offset_id: str
    round: int


class HistoryWriter:
    """Appends lines; each round's lines are on disk before its checks begin."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acknowledged = 0
        self._file: TextIO = path.open("x", encoding="utf-8")

    def acknowledge(self, message: Acknowledged) -> None:
        self.acknowledged += 1
        self._file.write(json.dumps(["ack", *message], separators=(",", ":")) + "\n")

    def note(self, what: str, **fields: object) -> None:
        """An event that is no acknowledgement: a kill, a restart, a verdict."""
        self._file.write(json.dumps([what, fields], separators=(",", ":")) + "\n")

    def flush(self) -> None:
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_acknowledged(path: Path) -> Iterator[Acknowledged]:
    """Every acknowledgement of a history file. Raises HistoryMissing."""
    count = 0
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                what, *fields = json.loads(line)
                if what == "ack":
                    count += 1
                    yield Acknowledged(*fields)
    except FileNotFoundError:
        raise HistoryMissing(f"no history at {path}") from None
    if not count:
        raise HistoryMissing(f"nothing was acknowledged in {path}")
