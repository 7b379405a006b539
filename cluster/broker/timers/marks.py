"""How far delivery of timed messages has come, as the message log itself says it.

A master puts a mark into the log, behind the copies that it speaks of: what a log holds, replicates, and loses with a
cut is both or neither. So no table of progress has to be kept in step with the log (decision 0012).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from tandemmq.cluster.broker.tables import names
from tandemmq.storage import Draft, MessageStore, decode

_BODY_BYTES_MAX: Final = 1_024


Put = Callable[[Draft], object]
"""Appends one message. Release.put is one."""


class _Body(msgspec.Struct, rename="camel"):
    read_ms: int
    queue_offset: int
    log_offset: int
    from_ms: int = 0


class Progress(NamedTuple):
    """Of the entries below queue_offset in the timer queue, all whose slot is before read_ms were delivered.

    Copies of what was delivered later lie at or behind log_offset, and were stored at or after from_ms.
    """

    read_ms: int = 0
    queue_offset: int = 0
    log_offset: int = 0
    from_ms: int = 0


NOTHING: Final = Progress()


def newest(store: MessageStore) -> Progress:
    """What the newest mark says; NOTHING without one."""
    queue = store.queue(names.TIMER_MARKS_TOPIC, 0)
    if queue is None:
        return NOTHING
    for queue_offset in range(queue.max_offset - 1, queue.min_offset - 1, -1):
        entry = queue.entry(queue_offset)
        view = store.stored_at(entry[0]) if entry is not None else None
        if view is None or len(view) > _BODY_BYTES_MAX:
            continue
        record = decode(view)
        try:
            body = msgspec.json.decode(record.body, type=_Body)
        except msgspec.DecodeError:
            continue  # not one of ours: look further back
        return Progress(body.read_ms, body.queue_offset, body.log_offset, body.from_ms)
    return NOTHING


def put(append: Put, progress: Progress, now_ms: int, host: bytes) -> None:
    """Put a mark behind everything it speaks of. Raises StorageError."""
    body = msgspec.json.encode(_Body(*progress))
    append(Draft(names.TIMER_MARKS_TOPIC, 0, body, born_ms=now_ms, born_host=host, store_host=host))
