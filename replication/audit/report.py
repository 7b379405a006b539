"""One HTML page about one run, with pictures: where in the log, which class, which queue, over time."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from tandemmq.replication.audit.plan import Outcome
from tandemmq.replication.audit.tables import AuditRun, Divergence, Finding

ROWS_MAX: Final = 500
_WIDTH: Final = 1000
_COLOURS: Final = {
    "LAG": "#8a8f98", "AHEAD": "#b04ac9", "MISSING_SEGMENT": "#5b2333", "SHORT_FILE": "#7d3c4a",
    "HOLE": "#1f4e8c", "CRC_SLAVE": "#d1495b", "CRC_MASTER": "#e07a5f", "CRC_BOTH": "#9b2335",
    "CONTENT_DIFF": "#e9b44c", "HEADER_DIFF": "#c9a227", "TOPIC_DIFF": "#a98600",
    "PROPS_DIFF": "#d6c36b", "FRAMING": "#2a9d8f", "GARBAGE": "#264653", "ORDER": "#6a994e",
    "FORK": "#7b2cbf", "REWRITTEN": "#9d4edd",
}  # fmt: skip
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;color:#1d2530;background:#fafbfc;margin:2rem auto;max-width:64rem;
padding:0 1rem}h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;
width:100%;font-size:13px}td,th{border-bottom:1px solid #dfe3e8;padding:.25rem .5rem;text-align:left;
vertical-align:top}th{background:#eef1f4}.equal{color:#1e7d4f}.divergent{color:#b3261e}
.warnings{color:#8a6100}.incomplete,.void{color:#6b2fb3}svg{width:100%;height:auto;background:#fff;
border:1px solid #dfe3e8;border-radius:4px}text{font:12px system-ui,sans-serif;fill:#47505c}
.scroll{overflow-x:auto}code{background:#eef1f4;padding:0 .2rem}
"""


def html_page(outcome: Outcome, history: Sequence[AuditRun] = ()) -> str:
    """The page. history: other runs of the same stores, for the picture over time."""
    run = outcome.run
    replicas = run.replicas.split(",")
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width,initial-scale=1'>",
        f"<title>Audit {_text(run.run_id)}: {_text(run.verdict)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>Audit {_text(run.run_id)}: <span class='{_text(run.verdict)}'>"
        f"{_text(run.verdict)}</span></h1>",
        f"<p>{_text(sentence(outcome))}</p>",
        _facts(run),
        "<h2>Where in the log</h2>",
        _log_picture(run, replicas, outcome.divergences),
        "<h2>Which class</h2>",
        _bars(Counter(row.kind for row in outcome.divergences), _COLOURS),
        "<h2>Which queue</h2>",
        _bars(_by_queue(outcome.divergences, outcome.findings), {}),
        "<h2>Over time</h2>",
        _time_picture(outcome.divergences),
    ]
    if history:
        parts += ["<h2>Earlier runs</h2>", _runs_table(history)]
    parts += [
        "<h2>Divergences</h2>",
        _divergence_table(outcome.divergences),
        "<h2>Findings</h2>",
        _finding_table(outcome.findings),
        "</body></html>",
    ]
    return "\n".join(parts)


def sentence(outcome: Outcome) -> str:
    """The run in one sentence."""
    run = outcome.run
    compared = f"{run.bytes_compared / 1e6:,.1f} MB compared up to offset {run.end_offset:,}"
    if run.exit_code == 0:
        lag = [row for row in outcome.divergences if row.kind == "LAG"]
        behind = f"; {', '.join(f'{r.replica} is {r.end - r.start:,} bytes behind' for r in lag)}"
        return (
            f"{run.replicas} equals {run.reference}: {run.records_checked:,} records,"
            f" {compared}{behind if lag else ''}."
        )
    if run.exit_code == 3:
        return f"The audit came to no result: {run.detail}."
    classes = Counter(row.kind for row in outcome.divergences if row.severity != "info")
    checks = Counter(row.check for row in outcome.findings if row.severity != "info")
    named = [f"{count} {name}" for name, count in (classes + checks).most_common()]
    word = "differs from" if run.exit_code == 1 else "matches, with warnings,"
    return f"{run.replicas} {word} {run.reference}: {', '.join(named)}; {compared}."


def _text(value: object) -> str:
    return html.escape(str(value))


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if ms > 0 else ""


def _facts(run: AuditRun) -> str:
    seconds = (run.finished_ms - run.started_ms) / 1000
    facts = {
        "reference": run.reference,
        "replicas": run.replicas,
        "engine": run.engine,
        "range": f"{run.start_offset:,} to {run.end_offset:,}",
        "started (UTC)": _time(run.started_ms),
        "took": f"{seconds:.2f} s, {run.cpu_seconds:.2f} s of processor",
        "blocks": f"{run.blocks_compared:,} compared, {run.blocks_differing:,} differing",
        "padding not compared": f"{run.padding_bytes:,} bytes",
        "kept on one side only": f"{run.retained_bytes:,} bytes (retention)",
        "exit code": run.exit_code,
    }
    rows = "".join(f"<tr><th>{_text(k)}</th><td>{_text(v)}</td></tr>" for k, v in facts.items())
    return f"<table>{rows}</table>"


def _log_picture(run: AuditRun, replicas: Sequence[str], rows: Sequence[Divergence]) -> str:
    first, last = run.start_offset, max([run.end_offset, *(row.end for row in rows)])
    span = max(1, last - first)
    height = 34 * len(replicas) + 30
    shapes = []
    for number, name in enumerate(replicas):
        top = 8 + 34 * number
        shapes.append(f"<rect x='120' y='{top}' width='870' height='22' fill='#dcefe3'/>")
        shapes.append(f"<text x='4' y='{top + 15}'>{_text(name[:18])}</text>")
        for row in rows:
            if row.replica == name:
                x = 120 + 870 * (row.start - first) / span
                width = max(2.0, 870 * (row.end - row.start) / span)
                shapes.append(
                    f"<rect x='{x:.1f}' y='{top}' width='{width:.1f}' height='22'"
                    f" fill='{_COLOURS.get(row.kind, '#888')}'><title>{_text(row.kind)}"
                    f" {row.start}-{row.end} {_text(row.topic)}</title></rect>"
                )
    shapes.append(f"<text x='120' y='{height - 6}'>{first:,}</text>")
    shapes.append(f"<text x='990' y='{height - 6}' text-anchor='end'>{last:,}</text>")
    return f"<svg viewBox='0 0 {_WIDTH} {height}' role='img'>{''.join(shapes)}</svg>"


def _bars(counts: Counter[str], colours: dict[str, str]) -> str:
    if not counts:
        return "<p>None.</p>"
    shown = counts.most_common(20)
    top = max(count for _, count in shown)
    shapes = []
    for number, (name, count) in enumerate(shown):
        y = 6 + 24 * number
        width = 640 * count / top
        shapes.append(
            f"<text x='4' y='{y + 14}'>{_text(name[:40])}</text>"
            f"<rect x='280' y='{y}' width='{width:.1f}' height='18'"
            f" fill='{colours.get(name, '#5b7fa6')}'/>"
            f"<text x='{286 + width:.1f}' y='{y + 14}'>{count:,}</text>"
        )
    height = 12 + 24 * len(shown)
    return f"<svg viewBox='0 0 {_WIDTH} {height}' role='img'>{''.join(shapes)}</svg>"


def _by_queue(rows: Iterable[Divergence], findings: Iterable[Finding]) -> Counter[str]:
    places = [(row.topic, row.queue_id) for row in rows]
    places += [(row.topic, row.queue_id) for row in findings]
    return Counter(f"{topic}-{queue_id}" for topic, queue_id in places if topic)


def _time_picture(rows: Sequence[Divergence]) -> str:
    stamped = [row for row in rows if row.store_ms > 0]
    if not stamped:
        return "<p>No divergence has a known store time.</p>"
    first = min(row.store_ms for row in stamped)
    last = max(row.store_ms for row in stamped)
    span = max(1, last - first)
    shapes = ["<line x1='20' y1='40' x2='980' y2='40' stroke='#c3c9d1'/>"]
    for row in stamped:
        x = 20 + 960 * (row.store_ms - first) / span
        shapes.append(
            f"<circle cx='{x:.1f}' cy='40' r='6' fill='{_COLOURS.get(row.kind, '#888')}'"
            f" fill-opacity='.8'><title>{_text(row.kind)} {_time(row.store_ms)}</title></circle>"
        )
    shapes.append(f"<text x='20' y='70'>{_time(first)}</text>")
    shapes.append(f"<text x='980' y='70' text-anchor='end'>{_time(last)}</text>")
    return f"<svg viewBox='0 0 {_WIDTH} 80' role='img'>{''.join(shapes)}</svg>"


def _runs_table(runs: Sequence[AuditRun]) -> str:
    rows = [
        (run.run_id, _time(run.started_ms), run.verdict, run.divergences, run.findings)
        for run in sorted(runs, key=lambda run: run.started_ms, reverse=True)
    ]
    return _table(("run", "started (UTC)", "verdict", "divergences", "findings"), rows)


def _divergence_table(rows: Sequence[Divergence]) -> str:
    cells = [
        (
            row.kind, row.severity, row.replica, f"{row.start:,}-{row.end:,}", row.side,
            f"{row.records_reference} : {row.records_replica}", row.fields,
            f"{row.topic}-{row.queue_id}" if row.topic else "", _time(row.store_ms), row.detail,
        )
        for row in rows
    ]  # fmt: skip
    heads = (
        "class", "severity", "replica", "offsets", "damaged side", "records", "fields", "queue",
        "stored (UTC)", "detail",
    )  # fmt: skip
    return _table(heads, cells)


def _finding_table(rows: Sequence[Finding]) -> str:
    cells = [
        (
            row.check, row.severity, row.replica,
            f"{row.topic}-{row.queue_id}" if row.topic else "",
            row.queue_offset if row.queue_offset >= 0 else "",
            row.physical_offset if row.physical_offset >= 0 else "", row.caused_by, row.detail,
        )
        for row in rows
    ]  # fmt: skip
    heads = (
        "check", "severity", "replica", "queue", "queue offset", "offset", "caused by", "detail",
    )  # fmt: skip
    return _table(heads, cells)


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{_text(name)}</th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>"
        for row in rows[:ROWS_MAX]
    )
    more = f"<p>{len(rows) - ROWS_MAX:,} more in the tables.</p>" if len(rows) > ROWS_MAX else ""
    return f"<div class='scroll'><table><tr>{head}</tr>{body}</table></div>{more}"
