"""Messages that were handed out over HTTP and are not acknowledged: when they come again, how far a group is. Core.

INV: a position that take_positions() gives is at or below every message that is handed out and not acknowledged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from tandemmq.cluster.client import MessageQueue, ReceivedMessage

_RECEIPT: Final = re.compile(r"(.{1,255}):([0-9]{1,9}):([0-9]{1,19})", re.ASCII).fullmatch


@dataclass(slots=True)
class Lease:
    """One message that somebody has. until_ms: then somebody else may have it. deliveries: 1 the first time."""

    message: ReceivedMessage
    until_ms: int
    deliveries: int = 1

    @property
    def receipt(self) -> str:
        return receipt_of(self.message)


def receipt_of(message: ReceivedMessage) -> str:
    """What acknowledges this message: "broker-a:3:17", its broker, queue and queue offset."""
    queue = message.queue
    return f"{queue.broker_name}:{queue.queue_id}:{message.queue_offset}"


class Leases:
    """Of one topic and group.

    messages_max, bytes_max   of what is handed out and not acknowledged; then nothing new is taken
    """

    def __init__(self, topic: str, messages_max: int, bytes_max: int) -> None:
        self._topic = topic
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._out: dict[MessageQueue, dict[int, Lease]] = {}
        self._ends: dict[
            MessageQueue, int
        ] = {}  # behind the last message of it that was handed out
        self._moved: set[MessageQueue] = set()
        self.count = 0
        self.bytes = 0

    @property
    def room(self) -> int:
        """How many more messages may be taken."""
        return 0 if self.bytes >= self._bytes_max else max(0, self._messages_max - self.count)

    def hand_out(
        self, messages: Iterable[ReceivedMessage], now_ms: int, lease_ms: int
    ) -> list[Lease]:
        """These were just read of their queues, in order; nobody else gets them for lease_ms."""
        found = []
        for message in messages:
            lease = Lease(message, now_ms + lease_ms)
            held = self._out.setdefault(message.queue, {})
            self._forget(held.pop(message.queue_offset, None))
            held[message.queue_offset] = lease
            self.count += 1
            self.bytes += len(message.body)
            self._ends[message.queue] = max(
                self._ends.get(message.queue, 0), message.queue_offset + 1
            )
            found.append(lease)
        return found

    def due_again(self, count_max: int, now_ms: int, lease_ms: int) -> list[Lease]:
        """Messages whose time is over, oldest first: leased once more."""
        due = sorted(
            (lease for held in self._out.values() for lease in held.values() if lease.until_ms <= now_ms),
            key=lambda lease: lease.until_ms,
        )[:count_max]  # fmt: skip
        for lease in due:
            lease.until_ms = now_ms + lease_ms
            lease.deliveries += 1
        return due

    def give_back(self, leases: Iterable[Lease], now_ms: int) -> None:
        """They did not reach who asked: the next one gets them."""
        for lease in leases:
            lease.until_ms = now_ms

    def acknowledge(self, receipts: Iterable[str]) -> list[str]:
        """Those of the receipts that mean no message that is handed out: done before, or of somebody else by now."""
        unknown = []
        for receipt in receipts:
            lease = None
            if (found := _RECEIPT(receipt)) is not None:
                queue = MessageQueue(self._topic, found[1], int(found[2]))
                lease = self._out.get(queue, {}).pop(int(found[3]), None)
            if lease is None:
                unknown.append(receipt)
            else:
                self._moved.add(queue)
                self._forget(lease)
        return unknown

    def _forget(self, lease: Lease | None) -> None:
        if lease is not None:
            self.count -= 1
            self.bytes -= len(lease.message.body)

    def take_positions(self) -> dict[MessageQueue, int]:
        """How far the group is in each queue in which something was acknowledged since the last call."""
        moved, self._moved = self._moved, set()
        return {queue: min(self._out.get(queue) or (self._ends[queue],)) for queue in moved}

    def not_stored(self, queues: Collection[MessageQueue]) -> None:
        """Brokers do not have those positions: take_positions() gives them again."""
        self._moved.update(queue for queue in queues if queue in self._ends)

    def keep(self, queues: Collection[MessageQueue]) -> None:
        """All other queues are somebody else's now, with what was handed out of them."""
        for queue in self._ends.keys() - set(queues):
            for lease in self._out.pop(queue, {}).values():
                self._forget(lease)
            del self._ends[queue]
            self._moved.discard(queue)
