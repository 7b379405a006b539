"""Messages that wait for their time: when each is due, by what lies in the topics where they wait. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tandemmq.cluster.client import ReceivedMessage

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"  # messageDelayLevel
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Waiting:
    """One message that waits. how: `level 9` or `timer`; topic: where it will be delivered."""

    due_ms: int
    topic: str
    how: str
    message: ReceivedMessage


def level_ms(levels: str) -> list[int]:
    """Milliseconds of each level of a messageDelayLevel setting; the usual ones when it cannot be read."""
    found = []
    for word in levels.split():
        number, unit = word[:-1], word[-1:]
        if not number.isdigit() or unit not in _UNIT_MS:
            return level_ms(LEVELS)
        found.append(int(number) * _UNIT_MS[unit])
    return found or level_ms(LEVELS)


def undelivered(status: dict[str, str]) -> dict[int, tuple[int, int]]:
    """level -> queue offsets [next to deliver, end) that still wait, from a broker's runtime table."""
    found = {}
    for key, text in status.items():
        if not key.startswith("scheduleMessageOffset_"):
            continue
        level, (delivered, _, end) = key.rpartition("_")[2], text.partition(",")
        if level.isdigit() and delivered.strip().isdigit() and end.strip().isdigit():
            first, last = int(delivered), int(end)
            if first < last:
                found[int(level)] = (first, last)
    return found


def of_level(messages: Iterable[ReceivedMessage], level: int, delay_ms: int) -> list[Waiting]:
    """What waits in a level's queue."""
    return [
        Waiting(each.store_ms + delay_ms, _real(each), f"level {level}", each) for each in messages
    ]


def of_timer(messages: Iterable[ReceivedMessage], now_ms: int) -> list[Waiting]:
    """What lies in the timer topic and is not due yet; copies that were put back count once."""
    found: dict[str, Waiting] = {}
    for each in messages:
        text = each.properties.get("TIMER_OUT_MS", "")
        if text.isdigit() and int(text) > now_ms and "TIMER_DEL_UNIQKEY" not in each.properties:
            found[each.message_id] = Waiting(int(text), _real(each), "timer", each)
    return list(found.values())


def _real(message: ReceivedMessage) -> str:
    return message.properties.get("REAL_TOPIC") or message.topic
