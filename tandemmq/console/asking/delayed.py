"""Reads which messages wait for their time, the next ones first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tandemmq.cluster.client import Admin, ClientError, MessageQueue, NoRoute, QueueRange
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
    held: Mapping[MessageQueue, QueueRange] = {}
    try:
        held = (await admin.topic_stats(delayed.SCHEDULE_TOPIC)).queues
    except NoRoute:
        pass  # no message ever waited there
    except (ClientError, OSError) as problem:
        problems.append(str(problem))
    for master in masters:
        try:
            found += await _of_levels(admin, master, held, now_ms)
            timed, more = await _of_timer(admin, master, now_ms)
        except (ClientError, OSError) as problem:
            problems.append(f"{master.group}: {problem}")
            continue
        found += timed
        partly = partly or more
    found.sort(key=lambda each: each.due_ms)
    return Queue(tuple(found[:SHOWN_MAX]), tuple(problems), partly)


async def _of_levels(
    admin: Admin, master: Member, held: Mapping[MessageQueue, QueueRange], now_ms: int
) -> list[Waiting]:
    """RocketMQ's brokers do not say of every level how far they are: of those the youngest are read."""
    parked = delayed.undelivered(dict(master.status or {}))
    settings = await admin.broker_config(master.address) if held else {}
    levels = delayed.level_ms(settings.get("messageDelayLevel", delayed.LEVELS))
    found: list[Waiting] = []
    for queue, each in held.items():
        level = queue.queue_id + 1
        if queue.broker_name != master.group or level > len(levels) or not each.max_offset:
            continue
        first = max(each.min_offset, each.max_offset - LEVEL_READ)
        if level in parked:
            first = max(each.min_offset, parked[level][0])
        read = await messages.read(admin, queue, first, min(each.max_offset, first + LEVEL_READ))
        waiting = delayed.of_level((one.message for one in read), level, levels[level - 1])
        found += [one for one in waiting if level in parked or one.due_ms > now_ms]
    return found


async def _of_timer(admin: Admin, master: Member, now_ms: int) -> tuple[list[Waiting], bool]:
    """What waits by a time of its own, and whether more may wait than was read."""
    queue = MessageQueue(delayed.TIMER_TOPIC, master.group, 0)
    try:
        lowest, end = await admin.min_offset(queue), await admin.max_offset(queue)
    except NoRoute:
        return [], False  # RocketMQ 4.x has no timers
    first = max(lowest, end - TIMERS_READ)
    read = await messages.read(admin, queue, first, end)
    return delayed.of_timer((each.message for each in read), now_ms), first > lowest
