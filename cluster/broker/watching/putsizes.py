"""How much came into which queue since the last look, out of the store: the send path counts nothing for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tandemmq.storage import ConsumeQueue, MessageStore

ENTRIES_MAX: Final = 500  # read of one queue at a look; what came beyond counts as large as these


class Put(NamedTuple):
    """What came into one queue. wait_ms: how long an answer waited for disk and slaves, on average."""

    topic: str
    queue_id: int
    messages: int
    bytes: int
    wait_ms: float


class PutSizes:
    """Looks at every queue now and then.

    waited    bytes of answers that were held, and the same by the milliseconds that each was; both only grow
    """

    def __init__(self, store: MessageStore, waited: Callable[[], tuple[int, int]]) -> None:
        self._store = store
        self._waited = waited
        self._ends = {(each.topic, each.queue_id): each.max_offset for each in store.queues}
        self._before = waited()

    def look(self) -> Iterator[Put]:
        """What is new in each queue since the last look."""
        now = self._waited()
        held, by_ms = now[0] - self._before[0], now[1] - self._before[1]
        self._before = now
        wait_ms = by_ms / held if held else 0.0
        ends = {}
        for queue in self._store.queues:
            key = queue.topic, queue.queue_id
            end = ends[key] = queue.max_offset
            # a queue that was made anew begins at 0 again
            begin = known if (known := self._ends.get(key, 0)) <= end else 0
            if (messages := end - max(begin, queue.first_offset)) > 0:
                yield Put(*key, messages, _bytes_of(queue, end, messages), wait_ms)
        self._ends = ends


def _bytes_of(queue: ConsumeQueue, end: int, messages: int) -> int:
    count = min(messages, ENTRIES_MAX)
    sizes = queue.record_sizes(end - count, count)
    return sum(sizes) * messages // len(sizes) if sizes else 0
