"""Moments as people type them, and as mqadmin prints them. Wall time, ms since 1970."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from tandemmq.command.exits import CommandFailed, ExitCode

FORMS: Final = "2025-09-19T08:30:00 (local), 2025-09-19#08:30:00:000, milliseconds, or 10m for ago"
_AGO = re.compile(r"(\d+)([smhd])")
_JAVA = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})")  # mqadmin's
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def moment_ms(option: str, text: str, now_ms: int) -> int:
    """A moment: now, milliseconds, 10m (ago), ISO 8601, or mqadmin's 2025-09-19#08:30:00:000.

    Raises CommandFailed naming the option.
    """
    if text == "now":
        return now_ms
    if text.isascii() and text.isdigit():
        return int(text)
    if ago := _AGO.fullmatch(text):
        return now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
    if java := _JAVA.fullmatch(text):
        text = f"{java[1]}T{java[2]}.{java[3]}"
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise CommandFailed(
            f"{option} takes a time: {FORMS}; got {text!r}", ExitCode.USAGE
        ) from None


def clock_text(time_ms: int) -> str:
    """Local date and time with milliseconds, "" for 0 or less."""
    if time_ms <= 0:
        return ""
    return datetime.fromtimestamp(time_ms / 1000).isoformat(" ", "milliseconds")
