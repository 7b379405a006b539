"""How much came into which queue since the last look, out of the store: the send path counts nothing for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from tandemmq.cluster.histogram import Histogram
from tandemmq.cluster.metrictable import MESSAGE_SIZE_BOUNDS
from tandemmq.storage import ConsumeQueue, MessageStore

TOPICS_MAX: Final = 1_000  # whose sizes are sorted into buckets: each is nine lines of a page
SIZES_MAX: Final = 64  # of them sorted into buckets
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

    sizes     topic -> how large its messages are, for Prometheus; of so many topics
    waited    bytes of answers that were held, and the same by the milliseconds that each was; both only grow
    """

    def __init__(self, store: MessageStore, waited: Callable[[], tuple[int, int]]) -> None:
        self._store = store
        self._waited = waited
        self._ends = {(each.topic, each.queue_id): each.max_offset for each in store.queues}
        self._before = waited()
        self.sizes: dict[str, Histogram] = {}

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
                sizes = _newest(queue, end, messages)
                self._sort(queue.topic, sizes, messages)
                size = sum(sizes) * messages // len(sizes) if sizes else 0
                yield Put(*key, messages, size, wait_ms)
        self._ends = ends

    def forget(self, topic: str) -> None:
        """The topic is deleted."""
        self.sizes.pop(topic, None)

    def _sort(self, topic: str, sizes: Sequence[int], messages: int) -> None:
        """Into buckets, some of them for all."""
        some = sizes[:: -(-len(sizes) // SIZES_MAX) or 1]
        if not some or (topic not in self.sizes and len(self.sizes) >= TOPICS_MAX):
            return
        histogram = self.sizes.get(topic)
        if histogram is None:
            histogram = self.sizes[topic] = Histogram(MESSAGE_SIZE_BOUNDS)
        each, more = divmod(messages, len(some))
        for place, size in enumerate(some):
            histogram.add(size, each + (place < more))


def _newest(queue: ConsumeQueue, end: int, messages: int) -> Sequence[int]:
    count = min(messages, ENTRIES_MAX)
    return queue.record_sizes(end - count, count)
