"""What a consumer group may be given again when a broker restarts under it. Pure: no I/O, no clock.

A broker's positions are in memory, and on its disk every flushConsumerOffsetInterval: SIGTERM writes them, kill -9
sets them back by that much. So there are two promises, and who makes them:

* the broker: what it had on disk before the restart, it does not give again, to any client (COMMITTED);
* our client, which lives on: it keeps where it stood, whatever the broker knows by now. What the broker had said to
  be committed does not come again, on disk or not (COMMITTED), and a queue that nobody else read meanwhile does not go
  back at all (WENT BACK).

A message between the two, finished and not committed when its queue went to another member, may come again to that
one. How often that was is counted: for our client not more often than for RocketMQ's beside it, or, without it, than a
pull brings for each restart (MORE).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from tandemmq.cluster.client import MessageQueue

ON_DISK_MS: Final = 5_000  # flushConsumerOffsetInterval
WRITING_MS: Final = 1_500  # what the write and a late sample may take beyond it
OURS: Final = "python"  # names of the groups
STOCK: Final = "java"
ON_THE_WAY: Final = 32  # of one pull: a queue that goes to another member may take so many with it
PROBLEMS_MAX: Final = 20  # of one kind, in one group


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message at one member, whose listener returned success. at_ms: wall time."""

    member: str
    queue: MessageQueue
    queue_offset: int
    key: str
    at_ms: float


@dataclass(frozen=True, slots=True)
class Restart:
    """down_ms: wall time just before its end. in_order: by SIGTERM, so that everything was written."""

    broker: str
    how: str
    down_ms: float
    in_order: bool


class Positions:
    """A group's committed positions as brokers told them; samples come in order of time.

    count     of samples
    set_back  times that a broker told a smaller one than before
    """

    def __init__(self) -> None:
        self.count = self.set_back = 0
        #: when, what was told, and the furthest that was told until then
        self._told: defaultdict[MessageQueue, list[tuple[float, int, int]]] = defaultdict(list)

    def add(self, queue: MessageQueue, at_ms: float, committed: int) -> None:
        """at_ms: when the answer was there."""
        _, last, furthest = self._before(queue, math.inf)
        self.count += 1
        self.set_back += committed < last
        self._told[queue].append((at_ms, committed, max(committed, furthest)))

    def last(self, queue: MessageQueue, before_ms: float) -> int:
        """The last position told before that time, 0 when none was."""
        return self._before(queue, before_ms)[1]

    def highest(self, queue: MessageQueue, before_ms: float) -> int:
        """The furthest position told before that time, 0 when none was."""
        return self._before(queue, before_ms)[2]

    def _before(self, queue: MessageQueue, before_ms: float) -> tuple[float, int, int]:
        told = self._told[queue]
        place = bisect_left(told, before_ms, key=itemgetter(0))
        return told[place - 1] if place else (0.0, 0, 0)


@dataclass(slots=True)
class Tally:
    """What came to one group.

    delivered  in all; repeated: of these a second time, or a third
    messages   different ones; a send that was tried again may have stored one twice, as two records
    went_back  repeated at the member that had it, though nobody else read the queue meanwhile
    set_back   times that a broker's position of the group was smaller than before
    """

    delivered: int = 0
    repeated: int = 0
    messages: int = 0
    went_back: int = 0
    set_back: int = 0
    problems: list[str] = field(default_factory=list)


def tally(
    sent: Collection[str],
    given: Sequence[Delivery],
    restarts: Sequence[Restart],
    positions: Positions,
    *,
    ours: bool,
) -> Tally:
    """Count and judge one group. sent: keys of acknowledged messages. ours: members are our client."""
    found = Tally(len(given), set_back=positions.set_back)
    if not given or not positions.count or not restarts:
        found.problems.append("EMPTY: nothing was delivered, committed or restarted: nothing shown")
        return found
    problems: defaultdict[str, list[str]] = defaultdict(list)
    readers: Counter[MessageQueue] = Counter()  # times that another member began to read it
    reader: dict[MessageQueue, str] = {}
    had: dict[tuple[MessageQueue, int, str], dict[str, int]] = {}
    for each in sorted(given, key=lambda delivery: delivery.at_ms):
        if reader.get(each.queue) != each.member:
            reader[each.queue] = each.member
            readers[each.queue] += 1
        before = had.setdefault((each.queue, each.queue_offset, each.key), {})
        if before:
            found.repeated += 1
            where = f"{each.member} got {each.queue} offset {each.queue_offset} again"
            if before.get(each.member) == readers[each.queue]:
                found.went_back += 1
                if ours:
                    problems["WENT BACK"].append(f"{where}, which it had finished itself")
            committed, restart = _committed(each, restarts, positions, live=ours)
            if restart is not None and each.queue_offset < committed:
                problems["COMMITTED"].append(
                    f"{where} after {restart.how} of {restart.broker}, before which {committed} was committed"
                )
        before[each.member] = readers[each.queue]
    seen = {each.key for each in given}
    found.messages = len(seen)
    problems["UNREAD"] = [f"{key} was acknowledged" for key in sent if key not in seen]
    for kind, texts in problems.items():
        found.problems += [f"{kind}: {text}" for text in texts[:PROBLEMS_MAX]]
        if len(texts) > PROBLEMS_MAX:
            found.problems.append(f"{kind}: and {len(texts) - PROBLEMS_MAX} more")
    return found


def more_often(groups: Mapping[str, Tally], restarts: int) -> list[str]:
    """Whether our group was given more again than a stock one in the same run, or than a restart may cost."""
    allowed = ON_THE_WAY * restarts
    if STOCK in groups:
        allowed = max(ON_THE_WAY, groups[STOCK].repeated)
    count = groups[OURS].repeated
    return [f"MORE: {count} came to {OURS} again, at most {allowed} may"] if count > allowed else []


def _committed(
    each: Delivery, restarts: Sequence[Restart], positions: Positions, *, live: bool
) -> tuple[int, Restart | None]:
    """How far the queue was committed for good before its broker's last restart, and that restart."""
    earlier = [
        r for r in restarts if r.broker == each.queue.broker_name and r.down_ms <= each.at_ms
    ]
    if not earlier:
        return 0, None
    last = earlier[-1]
    late_ms = 0 if live or last.in_order else ON_DISK_MS + WRITING_MS
    return positions.highest(each.queue, last.down_ms - late_ms), last
