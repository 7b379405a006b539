"""When a timed message is due, and in which slot it waits: decisions alone.

Source: RocketMQ's HookUtils, TimerMessageStore.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tandemmq.storage import MessageIllegal

DELAY_SEC: Final = "TIMER_DELAY_SEC"
DELAY_MS: Final = "TIMER_DELAY_MS"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
OUT_MS: Final = "TIMER_OUT_MS"
ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"

_WHEEL_SLOTS_MAX: Final = 7 * 86_400 - 60  # as far ahead may a slot be
_AHEAD_MS_MAX: Final = (
    1 << 31
) - 60_001  # the field has 32 bits; a slot may begin before its message
_LONG = re.compile(r"[+-]?[0-9]{1,18}").fullmatch


class Window(NamedTuple):
    """How far ahead a message waits in one go; what is due later is put back into the timer topic on the way.

    precision_ms  the length of a slot
    slots         as many slots ahead at most
    """

    precision_ms: int
    slots: int

    @classmethod
    def of(cls, precision_ms: int, slots: int, kept_ms: int) -> Window:
        """RocketMQ's rule, and never beyond two thirds of what the log is kept for: a message whose file was deleted
        cannot be delivered. Nor beyond what a unit of the timer log can say."""
        if not 2 <= slots <= _WHEEL_SLOTS_MAX:
            slots = _WHEEL_SLOTS_MAX
        return cls(
            precision_ms, max(2, min(slots, min(kept_ms * 2 // 3, _AHEAD_MS_MAX) // precision_ms))
        )

    def floor(self, time_ms: int) -> int:
        """The slot that a moment is in."""
        return time_ms - time_ms % self.precision_ms


class Slotted(NamedTuple):
    """Where a message waits, and whether it is put back from there."""

    slot_ms: int
    rolls: bool


def wanted_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    """The delivery time that a message asks for; None when it asks for none. Raises MessageIllegal."""
    for name, origin_ms, unit_ms in (
        (DELAY_SEC, now_ms, 1000), (DELAY_MS, now_ms, 1), (DELIVER_MS, 0, 1),
    ):  # fmt: skip
        text = properties.get(name)
        if text is not None:
            if _LONG(text) is None:
                raise MessageIllegal(
                    f"timer message illegal, {name} is not a number: {text[:40]!r}"
                )
            return origin_ms + int(text) * unit_ms
    return None


def out_ms(deliver_ms: int, precision_ms: int) -> int:
    """The slot of a delivery time: the last one that begins before it."""
    return deliver_ms - (deliver_ms % precision_ms or precision_ms)


def slotted(out: int, store_ms: int, window: Window) -> Slotted:
    """The slot of a message that is stored, the same on every replica that has the record.

    out  its TIMER_OUT_MS
    """
    write_ms = window.floor(store_ms)
    if out < write_ms - window.precision_ms:
        return Slotted(write_ms - window.precision_ms, False)
    ahead_ms, window_ms = out - write_ms, window.slots * window.precision_ms
    if ahead_ms < window_ms:
        return Slotted(window.floor(out), False)
    third_ms = window.slots // 3 * window.precision_ms
    if ahead_ms - window_ms < third_ms:  # the next wait must not be a short one
        return Slotted(write_ms + window.slots // 2 * window.precision_ms, True)
    return Slotted(write_ms + window_ms, True)


def due_ms(properties: Mapping[str, str], out: int, store_ms: int, precision_ms: int) -> int:
    """The moment within its slot at which a message is due; what cannot be told any more is due at the slot's end."""
    try:
        asked_ms = wanted_ms(properties, store_ms)
    except MessageIllegal:
        asked_ms = None
    last_ms = out + precision_ms
    return last_ms if asked_ms is None else min(max(asked_ms, out + 1), last_ms)


def number(properties: Mapping[str, str], name: str) -> int | None:
    """A property as a number; None when it is missing or none."""
    text = properties.get(name)
    return int(text) if text is not None and _LONG(text) is not None else None


def delete_key(topic: str, unique_id: str) -> str:
    """What TIMER_DEL_UNIQKEY says to delete a message."""
    return f"{topic}+{unique_id}"
