"""Where a slave's queues begin of which it never saw a message.

Queues are derived from the log. A slave that was seeded with what retention had left knows nothing of
a queue whose messages were all gone by then: its own would begin at 0, and as the next master it would
give out offsets again that consumers have passed. RocketMQ's does. So the master is asked where such a
queue stands, once, and the slave's begins there, with blank entries before it as RocketMQ writes them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from cluster.broker.mastertables import TableRefused, read_queue_ends
from cluster.broker.topics import TopicTable
from cluster.remoting.codes import ResponseCode
from cluster.remoting.command import Command
from storage import MessageStore

log = logging.getLogger(__name__)

TOPICS_MAX: Final = 200  # asked about in one round


class QueueStarts:
    """What is still to be learnt of one master, and what was learnt is kept in the store.

    A queue is settled when it has entries here, or when the master has none and never had. While the
    master has messages of it they are on their way to us: it is asked for again later.
    """

    def __init__(self, topics: TopicTable, store: MessageStore) -> None:
        self._topics = topics
        self._store = store
        self._settled: set[str] = set()

    def forget(self) -> None:
        """Somebody else is the master now."""
        self._settled.clear()

    def wanted(self) -> list[str]:
        """Topics to ask about now: none while records wait for their queues, which may be of such a queue."""
        if self._store.dispatch_backlog_bytes:
            return []
        found = []
        for topic in self._topics:
            if topic in self._settled:
                continue
            if next(self._empty(topic), None) is None:
                self.settle(topic)
            else:
                found.append(topic)
                if len(found) == TOPICS_MAX:
                    break
        return found

    def take(self, topic: str, answer: Command) -> None:
        """The master's answer to GET_TOPIC_STATS_INFO. Raises TableRefused, OSError."""
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return  # its table will say so, too
        if answer.code != ResponseCode.SUCCESS:
            raise TableRefused(f"it answered code {answer.code}: {answer.remark}")
        ends = read_queue_ends(answer.body or b"")
        for queue_id in self._empty(topic):
            lowest, highest = ends.get(queue_id, (0, 0))
            if 0 < lowest == highest and self._store.queues.begin(topic, queue_id, highest):
                log.info(
                    "queue begins as the master's topic=%s queue=%d at=%d", topic, queue_id, highest
                )
        if all(ends.get(queue_id, (0, 0))[1] == 0 for queue_id in self._empty(topic)):
            self.settle(topic)

    def settle(self, topic: str) -> None:
        """Nothing more is to be learnt of a topic from this master."""
        self._settled.add(topic)

    def _empty(self, topic: str) -> Iterator[int]:
        config = self._topics.get(topic)
        queues = 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)
        return (each for each in range(queues) if self._store.max_offset(topic, each) == 0)
