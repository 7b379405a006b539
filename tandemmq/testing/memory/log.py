"""Topics, queues and what waits for its time: one broker's messages, in memory. No I/O, no clock."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tandemmq.storage import (
    Draft,
    decode_properties,
    encode,
    encode_properties,
    offset_message_id,
    parse_delay_levels,
)

READABLE: Final = 4
WRITABLE: Final = 2
TEMPLATE: Final = "TBW102"  # who asks for its route may make topics
QUEUES: Final = 4
TIMERS: Final = ("TIMER_DELIVER_MS", "TIMER_DELAY_MS")
WAITING_MARKS: Final = frozenset({"DELAY", *TIMERS})


@dataclass(slots=True)
class Topic:
    """A topic's settings."""

    name: str
    queue_count: int = QUEUES
    perm: int = READABLE | WRITABLE
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored message. offset: of its record in the log, bytes; record: its bytes."""

    topic: str
    queue_id: int
    queue_offset: int
    offset: int
    store_ms: int
    record: bytes
    properties: dict[str, str]
    reconsume_times: int


@dataclass(order=True, slots=True)
class _Waiting:
    due_ms: int
    number: int
    draft: Draft = field(compare=False)
    recalled: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a message went. due_ms: it waits until then, and has no entry yet; 0: it does not wait."""

    queue_id: int
    queue_offset: int
    message_id: str
    due_ms: int = 0


class Log:
    """The messages of one broker.

    store_host    packed: a part of message ids
    delay_levels  messageDelayLevel, e.g. "1s 5s 10s"
    """

    def __init__(self, store_host: bytes, delay_levels: str) -> None:
        self.topics: dict[str, Topic] = {TEMPLATE: Topic(TEMPLATE)}
        self.queues: defaultdict[tuple[str, int], list[Entry]] = defaultdict(list)
        self.by_offset: dict[int, Entry] = {}
        self.halves: dict[int, Entry] = {}  # of transactions without an end, by offset
        self.end = 0
        self._store_host = store_host
        self._levels_ms: Final = tuple(parse_delay_levels(delay_levels).values())
        self._waiting: list[_Waiting] = []
        self._count = 0

    def topic(self, name: str, queue_count: int = QUEUES) -> Topic:
        """The topic, made if it is not there."""
        return self.topics.setdefault(name, Topic(name, queue_count))

    def put(self, draft: Draft, now_ms: int) -> Placed:
        """Store a message, or have it wait for its time."""
        due_ms = self._due_ms(draft, now_ms)
        if due_ms > now_ms:
            self._count += 1
            heapq.heappush(self._waiting, _Waiting(due_ms, self._count, draft))
            return Placed(draft.queue_id, self._count - 1, self._id_at(self.end), due_ms)
        entry = self.append(draft, now_ms)
        return Placed(entry.queue_id, entry.queue_offset, self._id_at(entry.offset))

    def append(self, draft: Draft, now_ms: int) -> Entry:
        """At the end of its queue, whatever its properties ask for."""
        queue = self.queues[draft.topic, draft.queue_id]
        entry = self._stored(draft, len(queue), now_ms)
        queue.append(entry)
        return entry

    def put_half(self, draft: Draft, now_ms: int) -> Placed:
        """Where nobody sees it."""
        entry = self._stored(draft, 0, now_ms)
        self.halves[entry.offset] = entry
        return Placed(draft.queue_id, 0, self._id_at(entry.offset))

    def _stored(self, draft: Draft, queue_offset: int, now_ms: int) -> Entry:
        draft.store_host = self._store_host
        record = encode(draft, queue_offset, self.end, now_ms)
        entry = Entry(
            draft.topic, draft.queue_id, queue_offset, self.end, now_ms, record,
            decode_properties(draft.properties), draft.reconsume_times,
        )  # fmt: skip
        self.by_offset[entry.offset] = entry
        self.end += len(record)
        return entry

    def _id_at(self, offset: int) -> str:
        return offset_message_id(self._store_host, offset)

    # What waits

    def _due_ms(self, draft: Draft, now_ms: int) -> int:
        properties = decode_properties(draft.properties)
        if level := int(properties.get("DELAY") or 0):
            return now_ms + self._levels_ms[min(level, len(self._levels_ms)) - 1]
        if at := properties.get("TIMER_DELIVER_MS"):
            return int(at)
        return now_ms + int(properties.get("TIMER_DELAY_MS") or 0)

    def release(self, now_ms: int) -> bool:
        """Put what is due into its queues; whether there was any."""
        found = False
        while self._waiting and self._waiting[0].due_ms <= now_ms:
            due = heapq.heappop(self._waiting)
            if not due.recalled:
                properties = decode_properties(due.draft.properties)
                kept = {k: v for k, v in properties.items() if k not in WAITING_MARKS}
                due.draft.properties = encode_properties(kept)
                self.append(due.draft, now_ms)
                found = True
        return found

    def next_due_ms(self) -> int | None:
        return self._waiting[0].due_ms if self._waiting else None

    @property
    def waiting(self) -> int:
        """Messages that wait for their time."""
        return sum(not each.recalled for each in self._waiting)

    def recall(self, topic: str, unique_id: str) -> bool:
        """Have a waiting message not delivered; False when none waits."""
        for each in self._waiting:
            properties = decode_properties(each.draft.properties)
            if each.draft.topic == topic and properties.get("UNIQ_KEY") == unique_id:
                found, each.recalled = not each.recalled, True
                return found
        return False

    # Reading

    def messages(self, topic: str) -> Sequence[Entry]:
        """Everything in a topic's queues, in the order in which it was stored."""
        found = [
            entry for (name, _), queue in self.queues.items() if name == topic for entry in queue
        ]
        return sorted(found, key=lambda entry: entry.offset)

    def offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Queue offset of the first message stored then or later."""
        queue = self.queues[topic, queue_id]
        return next((each.queue_offset for each in queue if each.store_ms >= time_ms), len(queue))
