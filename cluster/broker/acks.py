"""Answers that wait: a send is acknowledged when the disk (later also a slave) has its message."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cluster.remoting.codes import ResponseCode
from cluster.remoting.command import Command
from cluster.remoting.connection import Connection
from storage import Clock

log = logging.getLogger(__name__)


class Overdue(NamedTuple):
    """What an answer says that waited too long: its message is stored, and its safety unknown.

    copies   replicas known to hold it, this one included; durable: on how many disks
    """

    code: ResponseCode
    copies: int
    durable: int


@dataclass(slots=True)
class _Held:
    end: int
    connection: Connection
    answers: bytes
    since_ms: int


class Acks:
    """Encoded answers in log order, each held until the log is safe up to its exclusive `end`.

    One entry holds the answers of one chunk of one connection, so the cost per message is near
    nothing. `end` never falls from one hold to the next, so safety is reached in order and one
    queue is enough. INV-7: an answer that leaves through `reached` says nothing that the disk does
    not hold.

    overdue     asked, once its timeout has passed, what an answer then says; None lets it wait on
    bytes_max   of held answers; beyond it `full` is true and senders are told to try elsewhere
    timeout_ms  after that long an answer may leave with another code in the place of SUCCESS: the
                message is stored, its safety unknown. Measured with clock.monotonic_ms
    on_hold     called when the first answer begins to wait: the flush job has something to do
    """

    def __init__(
        self,
        clock: Clock,
        timeout_ms: int,
        bytes_max: int = 64 << 20,
        on_hold: Callable[[], None] | None = None,
    ) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._bytes_max = bytes_max
        self.on_hold = on_hold
        self.overdue: Callable[[int, int], Overdue | None] = _flush_is_late
        self._held: deque[_Held] = deque()
        self.held_bytes = 0
        self.timed_out = 0

    @property
    def waiting(self) -> bool:
        return bool(self._held)

    @property
    def full(self) -> bool:
        return self.held_bytes >= self._bytes_max

    @property
    def wanted_end(self) -> int:
        """The log must be safe up to here to let every held answer go; 0 when none waits."""
        return self._held[-1].end if self._held else 0

    def hold(
        self,
        end: int,
        connection: Connection,
        answer: bytes | Command,
    ) -> None:
        """Keep an answer, or a chunk's encoded answers, until the log is safe up to `end`."""
        answers = answer.encode() if isinstance(answer, Command) else answer
        assert not self._held or end >= self._held[-1].end, "answers out of log order"
        self._held.append(_Held(end, connection, answers, self._clock.monotonic_ms()))
        self.held_bytes += len(answers)
        if len(self._held) == 1 and self.on_hold is not None:
            self.on_hold()

    def reached(self, end: int, copies: int = 1, durable: int = 1, epoch: int = 0) -> None:
        """The log is safe up to `end`: let the answers go that waited for no more than that.

        copies   replicas that hold all of it, this one included; durable: on how many disks
        """
        held = self._held
        while held and held[0].end <= end:
            first = held.popleft()
            self.held_bytes -= len(first.answers)
            first.connection.write(first.answers)

    def expire(self, now_ms: int) -> None:
        """Answer what waited too long: stored, but not known to be safe."""
        held = self._held
        expired: Counter[ResponseCode] = Counter()
        while held and now_ms - held[0].since_ms >= self._timeout_ms:
            overdue = self.overdue(held[0].end, now_ms - held[0].since_ms)
            if overdue is None:
                break
            first = held.popleft()
            self.held_bytes -= len(first.answers)
            first.connection.write(as_timed_out(first.answers, overdue.code))
            expired[overdue.code] += 1
        for code, chunks in expired.items():
            self.timed_out += chunks
            log.warning("too slow, answered code=%s chunks=%d", code.name, chunks)


def _flush_is_late(end: int, waited_ms: int) -> Overdue | None:
    """Where nothing but the disk is waited for."""
    return Overdue(ResponseCode.FLUSH_DISK_TIMEOUT, copies=1, durable=0)


def as_timed_out(answers: bytes, code: ResponseCode = ResponseCode.FLUSH_DISK_TIMEOUT) -> bytes:
    """The same answers with `code` in the place of SUCCESS; fields and refusals stay."""
    view = memoryview(answers)
    changed = []
    position = 0
    while position < len(view):
        end = position + 4 + int.from_bytes(view[position : position + 4], "big")
        answer = Command.decode(view[position:end])
        if answer.code == ResponseCode.SUCCESS:
            answer.code = code
            changed.append(answer.encode())
        else:
            changed.append(bytes(view[position:end]))
        position = end
    return b"".join(changed)
