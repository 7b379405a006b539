"""Messages of many queues in the order in which they were stored. No I/O."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tandemmq.cluster.client import MessageQueue, ReceivedMessage

HELD_MAX: Final = 10_000  # messages; beyond, the oldest go out though a queue has not told its next


class InOrder:
    """Holds messages back until no queue can bring an earlier one.

    ends  queue -> its end when reading began: below it a queue has more to tell
    """

    def __init__(self, ends: Mapping[MessageQueue, int]) -> None:
        self._ends = dict(ends)
        self._held: list[tuple[int, MessageQueue, int, ReceivedMessage]] = []
        self._of_queue: Counter[MessageQueue] = Counter()

    def take(self, messages: Iterable[ReceivedMessage]) -> None:
        """Messages as they came, of each queue in its order."""
        for each in messages:
            heapq.heappush(self._held, (each.store_ms, each.queue, each.queue_offset, each))
            self._of_queue[each.queue] += 1
            self._ends[each.queue] = max(self._ends.get(each.queue, 0), each.max_offset)

    def ready(
        self, positions: Mapping[MessageQueue, int], *, all_of_them: bool = False
    ) -> Iterator[ReceivedMessage]:
        """Those that may go out.

        positions    queue -> the next entry to come of it
        all_of_them  nothing came for a while: no queue is waited for
        """
        while self._held:
            waited_for = any(
                position < self._ends.get(queue, 0) and not self._of_queue[queue]
                for queue, position in positions.items()
            )
            if waited_for and not all_of_them and len(self._held) <= HELD_MAX:
                return
            _, queue, _, message = heapq.heappop(self._held)
            self._of_queue[queue] -= 1
            yield message
