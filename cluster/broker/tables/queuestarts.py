"""Where a slave's queues begin of which it never saw a message.

Queues are derived from the log. A slave that was seeded with what retention had left knows nothing of
a queue whose messages were all gone by then: its own would begin at 0, and as the next master it would
give out offsets again that consumers have passed. So the master is asked where such a queue stands, and
the slave's begins there, with blank entries before it as RocketMQ writes them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

from tandemmq.cluster.broker.tables.mastertables import TableRefused, read_queue_ends
from tandemmq.cluster.broker.tables.topics import TopicTable
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import MessageStore

log = logging.getLogger(__name__)

TOPICS_MAX: Final = 200  # asked about in one round
PASS_MS: Final = 60_000  # after which those that are not settled are asked about again


class QueueStarts:
    """What is still to be learnt of one master; what was learnt is kept in the store.

    A topic is settled when each of its queues describes a message here, or stands where the master's
    does. While the master has messages that are not here they are mostly on their way to us, so it is asked
    for again later. Not learnt is where a queue stands whose last message the master has and we were
    never to get (syncFromLastFile), until retention has taken it there too.
    """

    def __init__(self, topics: TopicTable, store: MessageStore) -> None:
        self._topics = topics
        self._store = store
        self._settled: set[str] = set()
        self._asked: set[str] = set()  # in this pass
        self._pass_ms: int | None = None  # when it began, by the monotonic clock

    def forget(self) -> None:
        """Somebody else is the master now."""
        self._settled.clear()
        self._asked.clear()
        self._pass_ms = None

    def wanted(self, now_ms: int) -> list[str]:
        """Topics to ask about now: none while records wait for their queues, which may be of such a queue."""
        if self._store.dispatch_backlog_bytes:
            return []
        if self._pass_ms is None or now_ms - self._pass_ms >= PASS_MS:
            self._asked.clear()
            self._pass_ms = now_ms
        found = []
        for topic in self._topics:
            if topic in self._settled or topic in self._asked:
                continue
            if next(self._unknown(topic), None) is None:
                self._settled.add(topic)
            else:
                found.append(topic)
                if len(found) == TOPICS_MAX:
                    break
        return found

    def asking(self, topic: str) -> None:
        """It is asked about; whatever comes of it, others come first from now on."""
        self._asked.add(topic)

    def take(self, topic: str, answer: Command) -> None:
        """The master's answer to GET_TOPIC_STATS_INFO. Raises TableRefused; OSError, ValueError: not kept."""
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            self._settled.add(topic)
            return
        if answer.code != ResponseCode.SUCCESS:
            raise TableRefused(f"it answered code {answer.code}: {answer.remark}")
        ends = read_queue_ends(answer.body or b"")
        if self._store.dispatch_backlog_bytes:
            return  # something came meanwhile
        settled = True
        for queue_id in self._unknown(topic, sorted(ends)):  # of others the master has nothing
            lowest, highest = ends[queue_id]
            ours = self._store.max_offset(topic, queue_id)
            if ours < lowest == highest and self._store.begin_queue(topic, queue_id, highest):
                log.info(
                    "queue begins as the master's topic=%s queue=%d at=%d", topic, queue_id, highest
                )
            elif ours < highest:
                settled = False
        if settled:
            self._settled.add(topic)

    def _unknown(self, topic: str, among: Iterable[int] | None = None) -> Iterator[int]:
        """Queues, of all or of some, that describe no message here."""
        config = self._topics.get(topic)
        queues = 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)
        nothing = self._store.queue_describes_nothing
        if among is None:
            return (each for each in range(queues) if nothing(topic, each))
        return (each for each in among if each < queues and nothing(topic, each))
