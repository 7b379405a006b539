"""report.html: one file that needs nothing else, for a reader who has never seen the project. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final

from tandemmq.chaos.checking.findings import INVALID, UNKNOWN, VALID
from tandemmq.chaos.scenarios.reports.picture import COLOURS, LEGEND, picture
from tandemmq.chaos.scenarios.reports.timeline import GAP_NS, Timeline

BADGES: Final = {VALID: "#1f6f54", INVALID: "#b3261e", UNKNOWN: "#b26a00"}
MODES: Final = {
    "S0": "a message is acknowledged when every replica in sync has it in memory",
    "S1": "a message is acknowledged when every replica in sync has it on its disk",
    "A0": "a message is acknowledged when the master has it in memory",
    "A1": "a message is acknowledged when the master has it on its disk",
}
STYLE: Final = """
body{font:15px/1.45 system-ui,sans-serif;color:#222;max-width:1180px;margin:24px auto;padding:0 16px}
h1{font-size:22px;margin:0 0 4px} h2{font-size:17px;margin:26px 0 6px}
.badge{display:inline-block;color:#fff;border-radius:4px;padding:2px 10px;font-weight:700;margin-right:8px}
.lead{font-size:16px;margin:8px 0} .small{color:#666;font-size:13px}
table{border-collapse:collapse;width:100%;font-size:13px} th{text-align:left;color:#666;font-weight:600}
td,th{padding:4px 8px 4px 0;border-bottom:1px solid #e6e6e6;vertical-align:top} td.n{text-align:right}
pre{background:#f6f6f6;padding:8px;overflow-x:auto;font-size:12px} .lane{fill:#444}
.key{display:inline-block;width:12px;height:12px;margin:0 4px 0 14px;vertical-align:-1px}
th.n{text-align:right} .bad{color:#b3261e;font-weight:600} .columns{columns:2;column-gap:32px}
"""


def page(told: Mapping[str, Any], found: Timeline) -> str:
    """The whole document."""
    parts = [
        _head(told),
        _doubts(told),
        "<h2>What happened</h2>",
        _legend(),
        picture(found),
        _faults(told),
        _findings(told),
        _checks(told),
        _again(told),
    ]
    title = f"{told['scenario']}, seed {told['seed']}: {told['verdict']}"
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</html>\n"
    )


def _head(told: Mapping[str, Any]) -> str:
    word = str(told["verdict"])
    badge = f'<span class="badge" style="background:{BADGES[word]}">{word.upper()}</span>'
    replicas = (
        f"{told['replicas']} replicas" if told["target"] == "local" else escape(str(told["target"]))
    )
    meaning = MODES.get(str(told["mode"]), "")
    return (
        f"<h1>{badge} A message broker was broken on purpose: scenario {escape(str(told['scenario']))}</h1>"
        f'<p class="lead">{_sentence(told)}</p>'
        f'<p class="small">One broker group of {replicas}, mode {told["mode"]}: {meaning}. {told["seconds"]:.0f} s, '
        f"seed {told['seed']}, TandemMQ {told['version']} {told['commit']}, {escape(str(told['machine']))}.</p>"
    )


def _sentence(told: Mapping[str, Any]) -> str:
    faults, acknowledged = len(told["faults"]), f"{told['acknowledged']:,}"
    did = "nothing was broken" if not faults else f"it was broken {faults} time{'s' * (faults > 1)}"
    begun = f"While {acknowledged} messages were acknowledged, {did}."
    outage = f" The longest time without an acknowledgement was {told['longest_outage_ms'] / 1000:.2f} s."
    if not told["outages_ms"]:
        outage = f" It was never without an acknowledgement for longer than {GAP_NS / 1e9:g} s."
    match told["verdict"]:
        case "valid":
            return f"{begun} <b>None was lost, none came twice without a cause, none overtook another.</b>{outage}"
        case "invalid":
            broken = [
                f"{each['property']} ({each['findings']})"
                for each in told["checks"]
                if each["findings"]
            ]
            return (
                f'{begun} <span class="bad">Not kept: {escape("; ".join(broken))}.</span>{outage}'
            )
    return f'{begun} <span class="bad">But this run proves nothing</span>, for the reasons below.{outage}'


def _doubts(told: Mapping[str, Any]) -> str:
    if not told["doubts"]:
        return ""
    rows = "".join(f"<li>{escape(str(each))}</li>" for each in told["doubts"])
    return f"<h2>Why this run proves less than it should</h2><ul>{rows}</ul>"


def _legend() -> str:
    keys = "".join(
        f'<span class="key" style="background:{COLOURS[name]}"></span>{escape(text)}'
        for name, text in LEGEND
    )
    return f'<p class="small">Time runs to the right. Numbers in red bars are the faults of the table below.{keys}</p>'


def _faults(told: Mapping[str, Any]) -> str:
    if not told["faults"]:
        return ""
    rows = "".join(
        f"<tr><td>{number}</td><td>{escape(each['says'])}</td><td>{escape(each['evidence'] or each['problem'])}</td>"
        f'<td class="n">{_s(each["lasted_ms"])}</td><td class="n"><b>{_s(each["silent_ms"])}</b></td>'
        f'<td>{escape(each["healing"])}</td><td class="n">{_s(each["whole_ms"])}</td></tr>'
        for number, each in enumerate(told["faults"], 1)
    )
    return (
        "<h2>What was done, and how long it took</h2><table><tr><th></th><th>fault</th><th>its effect, as seen</th>"
        "<th class='n'>lasted</th><th class='n'>no acknowl-<br>edgement for</th><th>its end, as seen</th>"
        f"<th class='n'>all in sync<br>again after</th></tr>{rows}</table>"
    )


def _findings(told: Mapping[str, Any]) -> str:
    if not told["findings"]:
        return ""
    shown = "".join(
        f'<h3 class="bad">{each["check"]}: {escape(each["text"])}</h3>'
        + (f"<pre>{escape(chr(10).join(each['excerpt']))}</pre>" if each["excerpt"] else "")
        for each in told["findings"]
    )
    return f"<h2>What was broken that must not break</h2>{shown}"


def _checks(told: Mapping[str, Any]) -> str:
    def row(each: Mapping[str, Any]) -> str:
        word = "✓" if each["observed"] else "—"
        if each["findings"]:
            word = f'<span class="bad">{each["findings"]} times broken</span>'
        cells = (each["id"], escape(each["property"]), f"{each['observed']:,}", word)
        return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"

    return (
        "<h2>What was checked</h2><p class='small'>Clients wrote down every operation with its outcome; when all had "
        "stopped, every queue of every replica was read to its end. The checkers know these files only, and nothing of "
        "the brokers.</p><table><tr><th></th><th>property</th><th>looked at</th><th></th></tr>"
        f"{_joined(row(each) for each in told['checks'])}</table>"
    )


def _again(told: Mapping[str, Any]) -> str:
    command = (
        f"tandem chaos run {told['scenario']} --seed {told['seed']} --report DIR\n"
        "tandem chaos run --replay schedule.json --report DIR"
    )
    return (
        f"<h2>Again</h2><pre>{escape(command)}</pre><p class='small'>Beside this page: schedule.json (what was to "
        "happen, written before), history.jsonl (every operation), report.json (this page for programs).</p>"
    )


def _s(ms: float) -> str:
    return "?" if ms < 0 else f"{ms / 1000:.2f} s"


def _joined(rows: Iterable[str]) -> str:
    return "".join(rows)
