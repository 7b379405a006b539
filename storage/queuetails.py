"""Where queue offsets go on: behind the consume queues, and behind the records that wait for them."""

from __future__ import annotations

from tandemmq.storage.codec import Head, scan, takes_queue_offset
from tandemmq.storage.commitlog import CommitLog
from tandemmq.storage.consumequeues import ConsumeQueues
from tandemmq.storage.tombstones import Tombstones


class Waiting:
    """The records that are not dispatched, gone over in steps. Nobody appends or cuts meanwhile.

    end           where the last whole record that was gone over ends
    store_ms      its store time; 0 for none
    next_offsets  behind the last record of each (topic, queue id)
    skips_damage  damage costs the rest of its file's records, as in Dispatcher.recover(), instead of ending it all
    """

    def __init__(
        self,
        log_: CommitLog,
        tombstones: Tombstones,
        dispatched: int,
        *,
        skips_damage: bool = False,
    ) -> None:
        self.end = max(dispatched, log_.start)
        self.store_ms = 0
        self.next_offsets: dict[tuple[bytes, int], int] = {}
        self._log = log_
        self._tombstones = tombstones
        self._skips_damage = skips_damage

    def walk(self, records_max: int) -> bool:
        """Go over so many more at most; whether there may be others. Raises CorruptRecord."""
        done = 0
        while self.end < self._log.end:
            segment = self._log.run.find(self.end)
            if segment is None:
                return False
            for head in scan(segment.view, self.end - segment.start, segment.wrote):
                if head.blank:
                    if segment.end > self._log.end:
                        return False  # it has not come in whole
                    self.end = segment.end
                    break
                if done == records_max:
                    return True
                self._note(head)
                done += 1
            else:
                if self.end != segment.end and not self._skips_damage:
                    return False
                self.end = segment.end
        return False

    def _note(self, head: Head) -> None:
        self.end += head.size
        self.store_ms = head.store_ms
        if takes_queue_offset(head.sys_flag) and head.physical_offset >= self._tombstones.of(
            head.topic
        ):  # INV-43
            key = head.topic, head.queue_id
            self.next_offsets[key] = max(self.next_offsets.get(key, 0), head.queue_offset + 1)


def go_on(log_: CommitLog, queues: ConsumeQueues, waiting: Waiting | None = None) -> None:
    """INV-5: queue offsets go on where the queues end, and behind what waits for them, so that none is given out twice.

    A queue that has neither begins at 0. Tails are set in place: others keep references to them.
    """
    for tails in log_.queue_tails.values():
        for tail in tails.values():
            tail.next_offset = 0
    for queue in queues:
        tail = log_.queue_tail(queue.topic.encode("utf-8", "replace"), queue.queue_id)
        tail.next_offset = queue.max_offset
    for (topic, queue_id), next_offset in (waiting.next_offsets if waiting else {}).items():
        tail = log_.queue_tail(topic, queue_id)
        tail.next_offset = max(tail.next_offset, next_offset)
