"""Who is connected, in which groups, and how far each group is; who may read a queue in order."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tandemmq.cluster.remoting import Command, RequestCode

if TYPE_CHECKING:
    from tandemmq.testing.memory.wires import MemoryWire

Place = tuple[str, str, int]
"""(group, topic, queue id)"""


class Members:
    """Consumers and producers by group, committed positions and queue locks of one broker."""

    def __init__(self) -> None:
        self.offsets: dict[Place, int] = {}
        self.locks: dict[Place, str] = {}  # -> client id
        self._consumers: defaultdict[str, dict[MemoryWire, str]] = defaultdict(dict)
        self._producers: defaultdict[str, dict[MemoryWire, str]] = defaultdict(dict)

    def joined(self, group: str, wire: MemoryWire, client_id: str) -> bool:
        """A heartbeat named a consumer; True when it is new, which the others must hear of."""
        wire.client_id = client_id
        known = self._consumers[group].get(wire)
        self._consumers[group][wire] = client_id
        return known is None

    def produces(self, group: str, wire: MemoryWire, client_id: str) -> None:
        """A heartbeat named a producer."""
        wire.client_id = client_id
        self._producers[group][wire] = client_id

    def forget(self, wire: MemoryWire, consumer_group: str = "", producer_group: str = "") -> None:
        """It left these groups, or with none given all; the consumers that stay hear of it."""
        everything = not consumer_group and not producer_group
        for group in list(self._consumers) if everything else [consumer_group]:
            if self._consumers[group].pop(wire, None) is not None:
                self.locks = {
                    place: owner for place, owner in self.locks.items()
                    if place[0] != group or owner != wire.client_id
                }  # fmt: skip
                self.notify(group)
        for group in list(self._producers) if everything else [producer_group]:
            self._producers[group].pop(wire, None)

    def notify(self, group: str) -> None:
        """Have every consumer of a group share the queues anew."""
        for wire in self._alive(self._consumers[group]):
            code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            wire.push(Command(code, {"consumerGroup": group}))

    def consumers(self, group: str) -> list[str]:
        """Client ids."""
        return list(self._alive(self._consumers[group]).values())

    def producer(self, group: str) -> MemoryWire | None:
        """One of a group's producers, the newest."""
        return next(reversed(self._alive(self._producers[group])), None)

    def producer_named(self, client_id: str) -> MemoryWire | None:
        found = [
            wire
            for wires in self._producers.values()
            for wire, name in self._alive(wires).items()
            if name == client_id
        ]
        return found[-1] if found else None

    @staticmethod
    def _alive(wires: dict[MemoryWire, str]) -> dict[MemoryWire, str]:
        """Without those whose event loop is gone."""
        for wire in [each for each in wires if not each.alive]:
            del wires[wire]
        return wires

    def is_orderly(self, group: str) -> bool:
        """Whether somebody of the group holds a queue's lock."""
        return any(place[0] == group for place in self.locks)
