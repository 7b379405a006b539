"""The history of a run on a replicated group, as a file: every send with its outcome, every message seen.

JSON lines, one array each: ["send", ...], ["seen", ...], ["delivered", ...], ["event", {...}]. Times are
CLOCK_MONOTONIC ns of the one host that all clients ran on. Checkers read the file: a run without history has
shown nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TextIO

from tandemmq.chaos.history import HistoryMissing

OK: Final = "ok"  # SEND_OK: a promise
FAIL: Final = "fail"  # refused before the append, or never sent: it must not be there
INFO: Final = "info"  # unknown: it may be there


class Send(NamedTuple):
    """One attempt to send; there are no retries of one message.

    unique_id     32 hex digits (tandemmq.chaos.load): running number and the hash of the body
    lane, sequence  a lane sends to one queue, one message after the other; sequences grow within it
    queue_offset, offset  entry number and position in the log as acknowledged, else -1
    epoch, copies, durable  as the acknowledgement says, -1 where it says nothing (stock brokers)
    """

    unique_id: str
    topic: str
    queue_id: int
    lane: int
    sequence: int
    round: int
    began_ns: int
    ended_ns: int
    outcome: str
    code: int
    broker: str
    queue_offset: int = -1
    offset: int = -1
    epoch: int = -1
    copies: int = -1
    durable: int = -1
    size: int = 0


class Seen(NamedTuple):
    """What one pull returned: unique ids of consecutive queue offsets from `first` on."""

    topic: str
    queue_id: int
    first: int
    unique_ids: tuple[str, ...]
    broker: str
    at_ns: int


class Delivered(NamedTuple):
    """One message as a member of a consumer group was given it."""

    topic: str
    queue_id: int
    queue_offset: int
    unique_id: str
    member: int
    at_ns: int


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
        self._file: TextIO = path.open("x", encoding="utf-8")

    def send(self, send: Send) -> None:
        self.counts[send.outcome] += 1
        if send.outcome == OK and send.topic in self.expected:
            if send.unique_id not in self._early:
                self.undelivered.add(send.unique_id)
            self._early.discard(send.unique_id)
        self._write(["send", *send])

    def seen(self, seen: Seen) -> None:
        self.seen_count += len(seen.unique_ids)
        self._write(["seen", *seen])

    def delivered(self, delivered: Delivered) -> None:
        if delivered.unique_id in self.undelivered:
            self.undelivered.discard(delivered.unique_id)
        else:
            self._early.add(delivered.unique_id)
        self._write(["delivered", *delivered])

    def event(self, what: str, **fields: object) -> None:
        """A fault, its evidence, its healing, a measurement. Flushed at once."""
        self._write(["event", {"what": what, "at_ns": time.monotonic_ns(), **fields}])
        self._file.flush()

    def flush(self) -> None:
        """Everything so far can be read."""
        self._file.flush()

    def raw(self, line: str) -> None:
        """One more line of a history, encoded (tandemmq.chaos.checking.lines)."""
        self._file.write(line + "\n")

    def _write(self, line: object) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._file.close()


def read_sends(path: Path) -> Iterator[Send]:
    """Every send. Raises HistoryMissing when there is no file or nothing was acknowledged."""
    acknowledged = 0
    for fields in _lines(path, "send"):
        send = Send(*fields)
        acknowledged += send.outcome == OK
        yield send
    if not acknowledged:
        raise HistoryMissing(f"nothing was acknowledged in {path}")


def read_seen(path: Path) -> Iterator[Seen]:
    """Everything that was read while the run went on. Raises HistoryMissing."""
    for topic, queue_id, first, unique_ids, broker, at_ns in _lines(path, "seen"):
        yield Seen(topic, queue_id, first, tuple(unique_ids), broker, at_ns)


def read_delivered(path: Path) -> Iterator[Delivered]:
    """Everything that a consumer group was given, redeliveries too. Raises HistoryMissing."""
    for fields in _lines(path, "delivered"):
        yield Delivered(*fields)


def read_events(path: Path) -> Iterator[Mapping[str, Any]]:
    """Faults and measurements. Raises HistoryMissing."""
    for (fields,) in _lines(path, "event"):
        yield fields


def _lines(path: Path, wanted: str) -> Iterator[list[Any]]:
    head = f'["{wanted}",'
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.startswith(head):
                    yield json.loads(line)[1:]
    except FileNotFoundError:
        raise HistoryMissing(f"no history at {path}") from None
