"""Numbers, sizes, moments and spans as people read them. No I/O: now is an argument."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from tandemmq.console.markup import Html, html

ABSENT: Final = "–"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def count(number: int | None) -> str:
    """12,345 or a dash."""
    return ABSENT if number is None else f"{number:,}"


def size(number_bytes: int | None) -> str:
    """`12.3 MiB` or a dash."""
    if number_bytes is None:
        return ABSENT
    value, place = float(number_bytes), 0
    while abs(value) >= 1024 and place < len(_UNITS) - 1:
        value, place = value / 1024, place + 1
    return f"{value:.0f} B" if not place else f"{value:.1f} {_UNITS[place]}"


def rate(per_second: float | None) -> str:
    """`1,234/s`, with a decimal below ten."""
    if per_second is None:
        return ABSENT
    return f"{per_second:.1f}/s" if 0 < per_second < 10 else f"{per_second:,.0f}/s"


def percent(ratio: float | None) -> str:
    """`16 %`"""
    return ABSENT if ratio is None else f"{ratio * 100:.0f} %"


def span(time_ms: int) -> str:
    """`3 s`, `2 min`, `5 h`, `4 d`: one number is enough to judge by."""
    seconds = abs(time_ms) // 1000
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit * 2:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def clock(time_ms: int) -> str:
    """Local date and time of the server that shows it, to the second; a dash for 0 or less."""
    if time_ms <= 0 or time_ms > 253_000_000_000_000:
        return ABSENT
    return datetime.fromtimestamp(time_ms / 1000).isoformat(" ", "seconds")


def moment(time_ms: int, now_ms: int | None = None) -> Html:
    """A moment in its element, with how far away it is when now is given."""
    shown = clock(time_ms)
    if shown == ABSENT:
        return html("{}", shown)
    stamp = datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(timespec="milliseconds")
    if now_ms is None:
        return html('<time datetime="{}">{}</time>', stamp, shown)
    away = span(now_ms - time_ms)
    said = f"{away} ago" if time_ms <= now_ms else f"in {away}"
    return html(
        '<time datetime="{}" title="{}">{} <small>{}</small></time>', stamp, stamp, shown, said
    )


def several(number: int, one: str, many: str = "") -> str:
    """`1 topic`, `2 topics`"""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
