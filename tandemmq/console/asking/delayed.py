"""Reads which messages wait for their time, the next ones first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tandemmq.cluster.client import Admin, ClientError, MessageQueue
from tandemmq.console.asking import messages
from tandemmq.console.seen import delayed
from tandemmq.console.seen.delayed import Waiting
from tandemmq.console.seen.servers import Member

SHOWN_MAX: Final = 200
LEVEL_READ: Final = 64  # of each level: within one they are in order of their time
TIMERS_READ: Final = 512  # the youngest: the timer topic is in order of sending


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits, soonest first; problems: what could not be read, by broker. partly: there may be others before."""

    waiting: tuple[Waiting, ...]
    problems: tuple[str, ...] = ()
    partly: bool = False


async def next_due(admin: Admin, masters: Iterable[Member], now_ms: int) -> Queue:
    """What waits on these masters."""
    found: list[Waiting] = []
    problems: list[str] = []
    partly = False
    for master in masters:
        try:
            parked = delayed.undelivered(dict(master.status or {}))
            settings = await admin.broker_config(master.address) if parked else {}
            levels = delayed.level_ms(settings.get("messageDelayLevel", delayed.LEVELS))
            for level, (first, end) in sorted(parked.items()):
                delay_ms = levels[level - 1] if 0 < level <= len(levels) else 0
                queue = MessageQueue(delayed.SCHEDULE_TOPIC, master.group, level - 1)
                read = await messages.read(admin, queue, first, min(end, first + LEVEL_READ))
                found += delayed.of_level((each.message for each in read), level, delay_ms)
            queue = MessageQueue(delayed.TIMER_TOPIC, master.group, 0)
            lowest, end = await admin.min_offset(queue), await admin.max_offset(queue)
            first = max(lowest, end - TIMERS_READ)
            partly = partly or first > lowest
            read = await messages.read(admin, queue, first, end)
            found += delayed.of_timer((each.message for each in read), now_ms)
        except (ClientError, OSError) as problem:
            problems.append(f"{master.group}: {problem}")
    found.sort(key=lambda each: each.due_ms)
    return Queue(tuple(found[:SHOWN_MAX]), tuple(problems), partly)
