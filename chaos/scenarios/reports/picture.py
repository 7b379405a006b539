"""The timeline of a run as an SVG: one axis of time; faults on top, then who serves, throughput, latency, lag. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Final

from tandemmq.chaos.scenarios.reports.timeline import BUCKET_NS, Timeline

WIDTH: Final = 1180
LEFT: Final = 150  # names of the lanes
RIGHT: Final = 20
PLOT: Final = WIDTH - LEFT - RIGHT
ROW: Final = 22
CHART: Final = 84
GAP: Final = 22
MARK: Final = "#c4262e"
COLOURS: Final = {
    "master": "#1f6f54", "slave": "#9fcfbb", "behind": "#f0c36d", "gone": "#d8d8d8", "fault": "#c4262e",
    "heal": "#e9a0a4", "ok": "#2b6cb0", "failed": "#c4262e", "p50": "#2b6cb0", "p99": "#8e5bb5", "lag": "#b7791f",
}  # fmt: skip
LEGEND: Final = (
    ("master", "takes messages (master)"), ("slave", "holds every acknowledged message (in sync)"),
    ("behind", "alive, but behind"), ("gone", "not there"), ("fault", "broken on purpose"),
    ("heal", "healing, until that was seen"),
)  # fmt: skip


class _Canvas:
    """Shapes, one after the other, with x from time."""

    def __init__(self, found: Timeline) -> None:
        self.start_ns = found.start_ns
        self.span_ns = max(1, found.end_ns - found.start_ns)
        self.shapes: list[str] = []
        self.y = 14.0

    def x(self, at_ns: int) -> float:
        share = (at_ns - self.start_ns) / self.span_ns
        return LEFT + PLOT * min(1.0, max(0.0, share))

    def box(
        self, since_ns: int, until_ns: int, y: float, height: float, colour: str, title: str
    ) -> None:
        left, right = self.x(since_ns), self.x(until_ns)
        self.shapes.append(
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{max(1.5, right - left):.1f}" height="{height:.1f}" '
            f'fill="{colour}"><title>{escape(title)}</title></rect>'
        )

    def text(self, x: float, y: float, words: str, how: str = "") -> None:
        self.shapes.append(f'<text x="{x:.1f}" y="{y:.1f}" {how}>{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, how: str) -> None:
        self.shapes.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {how}/>')


def picture(found: Timeline) -> str:
    """The <svg>; nothing but text where nothing was recorded."""
    if not found.buckets:
        return "<p>Nothing was sent: there is no timeline.</p>"
    canvas = _Canvas(found)
    top = canvas.y
    _faults(canvas, found)
    _roles(canvas, found)
    _outages(canvas, found)
    per_s = 1e9 / BUCKET_NS
    _chart(
        canvas, found, "acknowledged/s", [("ok", lambda at: per_s * found.buckets[at].acknowledged)]
    )
    _chart(canvas, found, "latency, ms", [
        ("p50", lambda at: found.buckets[at].p50_ms), ("p99", lambda at: found.buckets[at].p99_ms)],
    )  # fmt: skip
    lags = _lags(found)
    _chart(canvas, found, "slaves behind, kB", [("lag", lambda at: lags[at] / 1000)])
    _axis(canvas, found, top)
    height = canvas.y + 30
    style = "font-family:system-ui,sans-serif;font-size:12px"
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="timeline of the run" style="{style}">'
        + "".join(canvas.shapes)
        + "</svg>"
    )


def _faults(canvas: _Canvas, found: Timeline) -> None:
    """A bar for each, in as few rows as they overlap."""
    rows: list[int] = []  # end of the last one in each
    canvas.text(4, canvas.y + 14, "broken", 'class="lane"')
    for each in found.faults:
        window = each.window
        until_ns = window.healed_ns or window.healing_ns or found.end_ns
        row = next((at for at, end in enumerate(rows) if end < window.began_ns), len(rows))
        rows[row : row + 1] = [until_ns]
        y = canvas.y + row * (ROW - 2)
        canvas.box(
            window.began_ns, window.healing_ns or until_ns, y, 16, COLOURS["fault"], window.says
        )
        if window.healing_ns:
            canvas.box(window.healing_ns, until_ns, y, 16, COLOURS["heal"], window.healing)
        number = found.faults.index(each) + 1
        canvas.text(
            canvas.x(window.began_ns) + 3, y + 12, str(number), 'fill="#fff" font-weight="700"'
        )
    if not rows:
        canvas.text(LEFT, canvas.y + 14, "nothing", 'fill="#777"')
    canvas.y += max(1, len(rows)) * (ROW - 2) + GAP / 2


def _roles(canvas: _Canvas, found: Timeline) -> None:
    """One lane for each replica: what it was, by the controller's last word."""
    names: Mapping[str, str] = found.run.get("names", {})
    for address in sorted(found.replicas, key=lambda each: names.get(each, each)):
        canvas.text(4, canvas.y + 13, names.get(address, address), 'class="lane"')
        since_ns, state = 0, ""
        for sample in [*found.samples, None]:
            now = (
                ""
                if sample is None
                else _state(sample.answered, address, sample.master, sample.in_sync, sample.alive)
            )
            at_ns = found.end_ns if sample is None else sample.at_ns
            if now == "unsaid":
                continue  # the controller is what is broken: nothing new is known
            if now != state:
                if state:
                    canvas.box(since_ns, at_ns, canvas.y, 16, COLOURS[state], state)
                since_ns, state = at_ns, now
        canvas.y += ROW
    for at_ns, epoch in found.epochs:
        x = canvas.x(at_ns)
        canvas.line(
            x,
            canvas.y - ROW * len(found.replicas) - 2,
            x,
            canvas.y,
            'stroke="#333" stroke-dasharray="2 2"',
        )
        canvas.text(x + 3, canvas.y + 10, f"epoch {epoch}", 'fill="#333" font-size="10"')
    canvas.y += GAP


def _state(
    answered: bool, address: str, master: str, in_sync: Iterable[str], alive: Iterable[str]
) -> str:
    if not answered:
        return "unsaid"
    if address == master:
        return "master"
    if address not in alive:
        return "gone"
    return "slave" if address in in_sync else "behind"


def _outages(canvas: _Canvas, found: Timeline) -> None:
    canvas.text(4, canvas.y + 12, "no acknowledgement", 'class="lane"')
    for start_ns, end_ns in found.outages:
        canvas.box(start_ns, end_ns, canvas.y, 14, MARK, f"{(end_ns - start_ns) / 1e6:.0f} ms")
        took = f"{(end_ns - start_ns) / 1e9:.2f} s"
        canvas.text(canvas.x(end_ns) + 3, canvas.y + 11, took, f'fill="{MARK}" font-size="11"')
    if not found.outages:
        canvas.text(LEFT, canvas.y + 12, "never for longer than 0.25 s", 'fill="#777"')
    canvas.y += ROW


Curve = tuple[str, Callable[[int], float]]


def _chart(canvas: _Canvas, found: Timeline, name: str, curves: Sequence[Curve]) -> None:
    """Curves over the buckets, filled where there is one; the scale is the largest value."""
    count = len(found.buckets)
    values = {label: [curve(at) for at in range(count)] for label, curve in curves}
    most = max((max(each) for each in values.values()), default=0.0) or 1.0
    base = canvas.y + CHART
    canvas.line(LEFT, base, WIDTH - RIGHT, base, 'stroke="#bbb"')
    canvas.text(4, canvas.y + CHART / 2, name, 'class="lane"')
    canvas.text(
        LEFT - 6, canvas.y + 10, f"{most:,.0f}", 'text-anchor="end" fill="#777" font-size="10"'
    )
    canvas.text(LEFT - 6, base, "0", 'text-anchor="end" fill="#777" font-size="10"')
    for label, series in values.items():
        points = [
            (
                canvas.x(found.start_ns + int((at + 0.5) * BUCKET_NS)),
                base - (CHART - 6) * value / most,
            )
            for at, value in enumerate(series)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        if len(values) == 1:
            area = f"{points[0][0]:.1f},{base:.1f} {path} {points[-1][0]:.1f},{base:.1f}"
            canvas.shapes.append(
                f'<polygon points="{area}" fill="{COLOURS[label]}" opacity="0.25"/>'
            )
        canvas.shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{COLOURS[label]}" stroke-width="1.4"/>'
        )
    if len(values) > 1:
        for at, label in enumerate(values):
            canvas.text(
                4,
                canvas.y + CHART / 2 + 14 * (at + 1),
                label,
                f'fill="{COLOURS[label]}" font-size="11"',
            )
    canvas.y = base + GAP / 2


def _lags(found: Timeline) -> list[float]:
    """The last lag that was known, for each bucket."""
    lags, at, last = [], 0, 0.0
    for number in range(len(found.buckets)):
        until_ns = found.start_ns + (number + 1) * BUCKET_NS
        while at < len(found.samples) and found.samples[at].at_ns < until_ns:
            last = float(found.samples[at].lag_bytes)
            at += 1
        lags.append(last)
    return lags


def _axis(canvas: _Canvas, found: Timeline, top: float) -> None:
    """Seconds below, and the faults as a shade behind everything."""
    shades = []
    for each in found.faults:
        left = canvas.x(each.window.began_ns)
        right = canvas.x(each.window.healed_ns or each.window.healing_ns or found.end_ns)
        shades.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(1.0, right - left):.1f}" '
            f'height="{canvas.y - top:.1f}" fill="{MARK}" opacity="0.07"/>'
        )
    canvas.shapes[:0] = shades
    step_s = next(
        (each for each in (1, 2, 5, 10, 30, 60, 300, 600) if found.seconds / each <= 24), 3600
    )
    at_s = 0
    while at_s <= found.seconds:
        x = canvas.x(found.start_ns + at_s * 1_000_000_000)
        canvas.line(x, canvas.y, x, canvas.y + 4, 'stroke="#777"')
        canvas.text(
            x, canvas.y + 16, f"{at_s} s", 'text-anchor="middle" fill="#777" font-size="11"'
        )
        at_s += step_s
