"""What a change of role does to the log of a replica: readied for puts, or taken back out of consumers' sight."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tandemmq.replication.keeping import cut_log
from tandemmq.storage import MessageStore, SysFlag, scan

log = logging.getLogger(__name__)

RECORDS_PER_TURN: Final = 2_048  # then others of the loop are served


async def make_ready(store: MessageStore) -> int:
    """Make a slave's log ready for puts, and return where it ends: behind the last whole record.

    What is confirmed is dispatched. Queue offsets go on where the whole log leaves them, confirmed
    or not, so that none is ever given out twice. Nobody may append meanwhile.
    Raises OSError, StoreIsFull, FlushFailed, CorruptRecord.
    """
    await dispatch_confirmed(store)
    ends: dict[tuple[bytes, int], int] = {}
    position, last_ms = await _walk(store, ends)
    if position < store.end:
        log.info("incomplete record cut end=%d bytes=%d", position, store.end - position)
        await cut_log(store, position)
    store.ends_whole()
    tails = store.log.queue_tails
    for topic, queues in tails.items():
        for queue_id, tail in queues.items():
            queue = store.queues.get(topic.decode("utf-8", "replace"), queue_id)
            tail.next_offset = queue.max_offset if queue is not None else 0
    for queue in store.queues:
        store.queue_tail(queue.topic, queue.queue_id).next_offset = queue.max_offset
    for (topic, queue_id), next_offset in ends.items():
        tail = store.log.queue_tail(topic, queue_id)
        tail.next_offset = max(tail.next_offset, next_offset)
    stamps = store.log.tail
    stamps.last_store_ms = max(stamps.last_store_ms, store.dispatcher.stats.store_ms, last_ms)
    return position


async def dispatch_confirmed(store: MessageStore) -> None:
    """Return when consumers can see everything that is confirmed, or there is no space for more."""
    done = 1
    while done:
        done = store.dispatch(RECORDS_PER_TURN)
        await asyncio.sleep(0)


async def _walk(store: MessageStore, ends: dict[tuple[bytes, int], int]) -> tuple[int, int]:
    """Walk what is not dispatched: where the whole records end, and the store time of the last.

    ends   filled with the next queue offset of each (topic, queue id)
    """
    position, last_ms, count = store.dispatcher.position, 0, 0
    position = max(position, store.log.start)
    while position < store.end:
        segment = store.log.run.find(position)
        if segment is None:
            break
        stopped = True
        for head in scan(segment.view, position - segment.start, segment.wrote):
            if head.blank:
                if segment.end <= store.end:
                    position, stopped = segment.end, False
                break  # else the blank has not come in whole
            position += head.size
            last_ms = head.store_ms
            deleted = head.physical_offset < store.tombstones.of(head.topic)
            if head.sys_flag & SysFlag.TRANSACTION_MASK in (0, SysFlag.COMMIT) and not deleted:
                ends[head.topic, head.queue_id] = head.queue_offset + 1
            count += 1
            if count % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        if stopped and position != segment.end:
            break
    return position, last_ms


def hide_unconfirmed(store: MessageStore, confirmed: int) -> None:
    """Take queue and index entries of records at and behind `confirmed` back, and dispatch no further.

    Recovery derives everything that is in the log. A replica that comes back may show consumers
    only what was confirmed; the rest they see when it is, or never. Raises OSError.
    """
    dispatcher = store.dispatcher
    if dispatcher.position <= confirmed:
        return
    store.queues.truncate(confirmed)
    position = max((queue.physical_end for queue in store.queues), default=-1)
    dispatcher.position = max(store.log.start, position)
    dispatcher.reached = (dispatcher.position, -1)
    dispatcher.index_position = min(dispatcher.index_position, dispatcher.position)
    if store.index is not None:
        store.index.keep_until(dispatcher.position)
        reached = max(store.index.end.end_physical, store.log.start)
        dispatcher.index_position = min(dispatcher.index_position, reached)
    store.flush_queues()  # what was noted of the queues' ends is not true any more
