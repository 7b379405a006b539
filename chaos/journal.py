"""The history of a run, as a file: every send with its outcome, every message seen, every fault.

One line each, of the kinds of tandemmq.chaos.checking.lines. Checkers read the file: a run without history has shown
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

import msgspec

from tandemmq.chaos.checking.lines import (
    FAIL,
    INFO,
    OK,
    Delivered,
    Event,
    Line,
    Seen,
    Send,
    decode_line,
    encode_line,
)
from tandemmq.chaos.history import HistoryMissing

Kind = TypeVar("Kind", bound=Line)


class Journal:
    """Appends lines; `counts` tells how many sends had which outcome.

    expected     topics that a consumer group reads along
    undelivered  unique ids of these that were acknowledged and not given to it yet
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts = {OK: 0, FAIL: 0, INFO: 0}
        self.seen_count = 0
        self.expected: frozenset[str] = frozenset()
        self.undelivered: set[str] = set()
        self._early: set[str] = set()  # delivered before their acknowledgement was heard
        self._file: BinaryIO = path.open("xb")

    def send(self, send: Send) -> None:
        self.counts[send.outcome] += 1
        if send.outcome == OK and send.topic in self.expected:
            if send.unique_id not in self._early:
                self.undelivered.add(send.unique_id)
            self._early.discard(send.unique_id)
        self.line(send)

    def seen(self, seen: Seen) -> None:
        self.seen_count += len(seen.unique_ids)
        self.line(seen)

    def delivered(self, delivered: Delivered) -> None:
        if delivered.unique_id in self.undelivered:
            self.undelivered.discard(delivered.unique_id)
        else:
            self._early.add(delivered.unique_id)
        self.line(delivered)

    def event(self, what: str, **fields: object) -> None:
        """A fault, its evidence, its healing, a measurement. Flushed at once."""
        self.line(Event({"what": what, "at_ns": time.monotonic_ns(), **fields}))
        self._file.flush()

    def flush(self) -> None:
        """Everything so far can be read."""
        self._file.flush()

    def line(self, line: Line) -> None:
        """One more line of any kind, as it is."""
        self._file.write(encode_line(line) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_sends(path: Path) -> Iterator[Send]:
    """Every send. Raises HistoryMissing when there is no file or nothing was acknowledged."""
    acknowledged = 0
    for send in _lines(path, Send):
        acknowledged += send.outcome == OK
        yield send
    if not acknowledged:
        raise HistoryMissing(f"nothing was acknowledged in {path}")


def read_seen(path: Path) -> Iterator[Seen]:
    """Everything that was read while the run went on. Raises HistoryMissing."""
    return _lines(path, Seen)


def read_delivered(path: Path) -> Iterator[Delivered]:
    """Everything that a consumer group was given, redeliveries too. Raises HistoryMissing."""
    return _lines(path, Delivered)


def read_events(path: Path) -> Iterator[Mapping[str, Any]]:
    """Faults and measurements. Raises HistoryMissing."""
    return (event.fields for event in _lines(path, Event))


def _lines(path: Path, kind: type[Kind]) -> Iterator[Kind]:
    """Lines of one kind; the others are not decoded."""
    head = f'["{kind.__struct_config__.tag}"'.encode()
    try:
        with path.open("rb") as file:
            for text in file:
                if text.startswith(head):
                    line = decode_line(text)
                    assert isinstance(line, kind)
                    yield line
    except FileNotFoundError:
        raise HistoryMissing(f"no history at {path}") from None
    except msgspec.MsgspecError as problem:
        raise HistoryMissing(f"a line of {path} cannot be read: {problem}") from None
