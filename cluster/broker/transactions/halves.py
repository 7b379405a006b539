"""Which half messages are pending, and what is to be done with each when. No I/O, no clock.

A half message is a transaction that its producer has not ended: RocketMQ keeps it in RMQ_SYS_TRANS_HALF_TOPIC, queue
0, and notes its end in an op message, a list of queue offsets in RMQ_SYS_TRANS_OP_HALF_TOPIC. One that waits long is
put again at the queue's end, as a copy, so that what lies below the first pending one is over and done with. Here:

* A half and its copies are one thing, known by the queue offset of the first (`origin`); only the newest copy is
  pending. So an end that names an older copy ends the transaction, once, and none is asked for after its end (INV-60).
* Of what the log says, all that lies behind the first pending half is replayed (`saw_...`) when a reign begins: halves,
  copies, committed messages, which name their half, and op messages. A commit is known by its message, whether its op
  message was written or not.

Times are monotonic milliseconds. Source: RocketMQ's TransactionalMessageServiceImpl.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PENDING_MAX: Final = 1_000_000  # some 300 bytes each; beyond, no more transactions are begun
ENDED_KEPT: Final = 65_536  # whose repeated end is answered like the first
KEEP_MS: Final = 600_000  # what is not to be asked for yet is put again so often
OPS_MAX: Final = 20_000  # RocketMQ's: ends that wait to be noted

#: what tells a half and its copies from others where a copy does not name its origin: unique id, birth, birthplace
Birth = tuple[bytes, int, bytes]


class Outcome(enum.Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    GIVEN_UP = "given up"


class Step(enum.Enum):
    """What to do with a half whose time has come."""

    ASK = enum.auto()  # put it again, with one check more, and ask its producers
    KEEP = enum.auto()  # put it again as it is
    GIVE_UP = enum.auto()
    WAIT = enum.auto()


@dataclass(slots=True)
class Half:
    """The newest copy of a half message.

    queue_offset, offset  in the half queue and in the log
    origin      queue offset of the first copy
    topic       where it goes when it is committed
    checks      how often its producers were asked
    began_ms    when the first copy was stored, as far as that is known
    stored_ms   when this one was
    ask_ms      not asked for before
    end_ms      after that only an answer to a check ends it; None: any end does
    """

    queue_offset: int
    offset: int
    origin: int
    topic: str
    checks: int
    began_ms: int
    stored_ms: int
    ask_ms: int
    end_ms: int | None = None


class Halves:
    """Everything about one master's pending transactions."""

    def __init__(self) -> None:
        self._pending: dict[int, Half] = {}  # by queue offset, ascending
        self._newest: dict[int, int] = {}  # origin -> queue offset, of those that were copied
        self._ended: dict[int, Outcome] = {}  # by origin, the oldest first
        self._due: list[tuple[int, int]] = []  # heap of when, queue offset; some are over by now
        self._end = 0
        self._ops: deque[tuple[int, int]] = deque()  # op queue offset, highest half it names
        self._ops_end = 0
        self._by_offset: dict[
            int, tuple[int, Birth]
        ] = {}  # log offset -> origin; these two while replaying
        self._by_birth: dict[Birth, int] = {}
        self.counts: Counter[str] = Counter()  # topic -> pending

    def begin(self, half_offset: int, op_offset: int) -> None:
        """A reign begins: nothing is known but from which queue offsets on there may be something."""
        for known in (self._pending, self._newest, self._ended, self._by_offset, self._by_birth):
            known.clear()
        self._due.clear()
        self._ops.clear()
        self.counts.clear()
        self._end, self._ops_end = half_offset, op_offset

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def full(self) -> bool:
        """No more transactions are taken."""
        return len(self._pending) >= PENDING_MAX

    # -- what the log says, in its order ---------------------------------------------------

    def saw_half(self, half: Half, birth: Birth) -> None:
        """A half message or a copy. One that names no origin may still be a copy: RocketMQ's are."""
        if half.origin == half.queue_offset and half.checks:
            half.origin = self._by_birth.get(birth, half.origin)
        self._by_birth.setdefault(birth, half.origin)
        self._by_offset[half.offset] = half.origin, birth
        self.stored(half)

    def saw_commit(self, prepared_offset: int, birth: Birth) -> None:
        """A committed message, with the log offset of its half.

        Ordinary messages may have the flag of committed ones: a copy for a retry keeps it, and a client may set it.
        They name offset 0, where the half of somebody else may lie: birth tells.
        """
        origin, born = self._by_offset.get(prepared_offset, (-1, None))
        if born != birth:  # of a half below all that is pending, but RocketMQ may have copied it
            origin = self._by_birth.get(birth, -1)
            half = self.find(origin)
            if half is not None and half.checks:
                self.end(half, Outcome.COMMITTED)
            return
        half = self.find(origin)
        if half is not None:
            self.end(half, Outcome.COMMITTED)
        else:
            self._ended[origin] = Outcome.COMMITTED

    def saw_op(self, op_queue_offset: int, half_offsets: Iterable[int]) -> None:
        """An op message. It ends exactly what it names: a copy behind it is another matter."""
        highest = -1
        for queue_offset in half_offsets:
            highest = max(highest, queue_offset)
            half = self._pending.get(queue_offset)
            if half is not None:
                self.end(half, Outcome.ROLLED_BACK)
        self.noted(op_queue_offset, highest)

    def caught_up(self) -> None:
        """The log's end is reached: from now on we know of everything that happens."""
        self._by_offset.clear()
        self._by_birth.clear()

    # -- what happens ----------------------------------------------------------------------

    def stored(self, half: Half) -> None:
        """A half was put, or a copy that takes the place of the one before it."""
        self._end = max(self._end, half.queue_offset + 1)
        if half.origin != half.queue_offset:
            former = self._pending.pop(self._newest.get(half.origin, half.origin), None)
            if former is not None:
                self._count(former.topic, -1)
            elif half.origin in self._ended:
                return  # RocketMQ copied it after its end
            self._newest[half.origin] = half.queue_offset
        self._pending[half.queue_offset] = half
        self._count(half.topic, 1)
        heapq.heappush(self._due, (min(half.ask_ms, half.stored_ms + KEEP_MS), half.queue_offset))

    def end(self, half: Half, outcome: Outcome) -> None:
        """Its end is decided, and will be noted."""
        del self._pending[half.queue_offset]
        self._newest.pop(half.origin, None)
        self._count(half.topic, -1)
        self._ended[half.origin] = outcome
        if len(self._ended) > ENDED_KEPT:
            del self._ended[next(iter(self._ended))]

    def noted(self, op_queue_offset: int, highest_half: int) -> None:
        """An op message is in the log."""
        self._ops_end = op_queue_offset + 1
        self._ops.append((op_queue_offset, highest_half))

    def _count(self, topic: str, change: int) -> None:
        self.counts[topic] += change
        if not self.counts[topic]:
            del self.counts[topic]

    # -- questions -------------------------------------------------------------------------

    def find(self, origin: int) -> Half | None:
        """The pending copy of what was first stored at a queue offset."""
        return self._pending.get(self._newest.get(origin, origin))

    def outcome(self, origin: int) -> Outcome | None:
        """How it ended, if that is remembered."""
        return self._ended.get(origin)

    @property
    def progress(self) -> int:
        """All half messages below this queue offset are over, or have a copy above."""
        return next(iter(self._pending), self._end)

    @property
    def op_progress(self) -> int:
        """Op messages below this queue offset name nothing above `progress`."""
        progress, ops = self.progress, self._ops
        while ops and ops[0][1] < progress:
            ops.popleft()
        return ops[0][0] if ops else self._ops_end

    # -- checks ----------------------------------------------------------------------------

    def next_due(self, now_ms: int) -> Half | None:
        """One whose time has come; stored(), end() or later() must follow."""
        while self._due and self._due[0][0] <= now_ms:
            half = self._pending.get(heapq.heappop(self._due)[1])
            if half is not None:
                return half
        return None

    def later(self, half: Half, now_ms: int) -> None:
        """Nothing was done with it in this round."""
        heapq.heappush(self._due, (now_ms + 1, half.queue_offset))

    def step(
        self, half: Half, now_ms: int, *, checks_max: int, kept_ms: int, reachable: bool
    ) -> Step:
        """What to do with a half that is due.

        checks_max, kept_ms  after so many checks without an answer it is given up, and when it is so old
        reachable  whether a producer of its group is connected. Where none is, nobody was asked, and it does not
                   count as a check, unlike in RocketMQ; but so many must not wait that others cannot begin
        """
        if now_ms >= half.ask_ms:
            if half.checks >= checks_max or now_ms - half.began_ms > kept_ms:
                return Step.GIVE_UP
            if reachable or 2 * len(self._pending) > PENDING_MAX:
                return Step.ASK
        return Step.KEEP if now_ms - half.stored_ms >= KEEP_MS else Step.WAIT


class OpBatch:
    """Ends that are not noted in the log yet: `12,13,15,` once it is long or old enough."""

    def __init__(self, bytes_max: int, interval_ms: int) -> None:
        self._bytes_max = bytes_max
        self._interval_ms = interval_ms
        self._waiting: deque[int] = deque()
        self._bytes = 0
        self._since_ms = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """So many wait because none can be written: no transaction can be ended until then."""
        return len(self._waiting) >= OPS_MAX

    def add(self, queue_offset: int, now_ms: int) -> None:
        if not self._waiting:
            self._since_ms = now_ms
        self._waiting.append(queue_offset)
        self._bytes += len(b"%d," % queue_offset)

    def due_ms(self) -> int | None:
        """When the next op message is to be written; None while there is nothing to note."""
        if not self._waiting:
            return None
        return self._since_ms + (self._interval_ms if self._bytes < self._bytes_max else 0)

    def first(self) -> list[int]:
        """What the next op message names; it stays here until drop()."""
        found: list[int] = []
        size = 0
        for queue_offset in self._waiting:
            size += len(b"%d," % queue_offset)
            if found and size > self._bytes_max:
                break
            found.append(queue_offset)
        return found

    def drop(self, count: int, now_ms: int) -> None:
        """The first ones are noted."""
        for _ in range(count):
            self._bytes -= len(b"%d," % self._waiting.popleft())
        self._since_ms = now_ms

    def clear(self) -> None:
        self._waiting.clear()
        self._bytes = 0
