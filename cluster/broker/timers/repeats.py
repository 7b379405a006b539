"""Which timed messages the log already holds delivered: what need not come twice after a crash or an election."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeAlias

from tandemmq.cluster.broker.sending import messages
from tandemmq.cluster.broker.timers import rules
from tandemmq.cluster.broker.timers.marks import Progress
from tandemmq.storage import MessageStore, Record, decode, get_property

_DEQUEUE: Final = rules.DEQUEUE_MS.encode()

#: what a copy has in common with the record it was made of
Key: TypeAlias = tuple[str, str, int, int, int]


def key_of(record: Record, properties: Mapping[str, str], more_rolls: int = 0) -> Key:
    """more_rolls: 1 for the key that the copy of a message has which is put back."""
    rolls = (rules.number(properties, rules.ROLL_TIMES) or 0) + more_rolls
    unique_id = properties.get(messages.UNIQ_KEY, "")
    return unique_id, properties.get(rules.OUT_MS, ""), record.born_ms, record.body_crc, rolls


class Delivered:
    """Copies behind a mark, counted: each stands for one delivery that need not be made again.

    Two messages of one key are two deliveries. Only what was there when a reign began is looked at, queue by queue,
    when a message for that queue is due.
    """

    def __init__(self, store: MessageStore, since: Progress, end: int) -> None:
        self._store = store
        self.since: Final = since
        self.end: Final = end
        self._copies: dict[tuple[str, int], Counter[Key]] = {}

    def take(self, topic: str, queue_id: int, key: Key) -> bool:
        """Whether a copy of this message lies in that queue that stands for no other delivery."""
        copies = self._copies.get((topic, queue_id))
        if copies is None:
            copies = self._copies[topic, queue_id] = self._find(topic, queue_id)
        if copies[key] <= 0:
            return False
        copies[key] -= 1
        return True

    def _find(self, topic: str, queue_id: int) -> Counter[Key]:
        found: Counter[Key] = Counter()
        queue = self._store.queue(topic, queue_id)
        if queue is None:
            return found
        for queue_offset in range(queue.max_offset - 1, queue.min_offset - 1, -1):
            entry = queue.entry(queue_offset)
            if entry is None or entry[0] >= self.end:
                continue
            if entry[0] < self.since.log_offset:
                break
            view = self._store.stored_at(entry[0])
            if view is None:
                continue
            record = decode(view, crc_checked=False)
            if record.store_ms < self.since.from_ms:
                break
            if get_property(record.properties, _DEQUEUE) is not None:
                found[key_of(record, record.property_map)] += 1
        return found
