"""One trace as an SVG: a bar for each span, on one axis of time, below the span that it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 760
LABELS: Final = 250  # the left part, with names
ROW: Final = 34
COLOURS: Final = {
    "SERVER": "#4c78a8", "PRODUCER": "#f58518", "CONSUMER": "#54a24b", "INTERNAL": "#9d9da3",
}  # fmt: skip


class Bar(NamedTuple):
    """One span. parent: the id of the span that it belongs to, None for the first; times in ns."""

    id: int
    parent: int | None
    name: str
    kind: str
    about: str
    start_ns: int
    end_ns: int


def in_order(
    bars: Sequence[Bar], parent: int | None = None, depth: int = 0
) -> list[tuple[int, Bar]]:
    """(depth, bar), each behind its parent."""
    found = []
    for bar in sorted(bars, key=lambda each: each.start_ns):
        if bar.parent == parent:
            found += [(depth, bar), *in_order(bars, bar.id, depth + 1)]
    return found


def drawn(bars: Sequence[Bar]) -> str:
    """The picture; light and dark alike."""
    rows = in_order(bars)
    assert len(rows) == len(bars), "one trace, and nobody of it alone"
    begin = min(bar.start_ns for bar in bars)
    whole = max(bar.end_ns for bar in bars) - begin
    height = ROW * (len(rows) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        ' font-family="sans-serif" font-size="13" role="img">',
        "<title>One trace: a web request, the topic, its consumer</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="#d0d0d5"/>',
    ]
    scale = (WIDTH - LABELS - 90) / whole
    for number, (depth, bar) in enumerate(rows):
        middle = ROW * number + ROW
        left = LABELS + (bar.start_ns - begin) * scale
        width = max(2.0, (bar.end_ns - bar.start_ns) * scale)
        took = f"{(bar.end_ns - bar.start_ns) / 1e6:.1f} ms"
        about = f" ({bar.about})" if bar.about else ""
        parts += [
            f'<text class="span" x="{16 + 16 * depth}" y="{middle + 4}" fill="#202124">'
            f"{escape(bar.name + about)}</text>",
            f'<rect x="{left:.1f}" y="{middle - 9}" width="{width:.1f}" height="18" rx="3"'
            f' fill="{COLOURS[bar.kind]}"><title>{bar.kind.lower()}</title></rect>',
            f'<text x="{left + width + 6:.1f}" y="{middle + 4}" fill="#5f6368">{took}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
