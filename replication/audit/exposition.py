"""Audits' results for node exporter's textfile collector."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tandemmq.replication.audit.classes import DivergenceClass
from tandemmq.replication.audit.plan import INCOMPLETE, Outcome

_LAST_SUCCESS: Final = "last_success_timestamp_seconds"
_KEPT: Final = re.compile(
    rf'^tandem_audit_{_LAST_SUCCESS}\{{reference="((?:[^"\\]|\\.)*)"\}} (\S+)$'
)

Series = tuple[dict[str, str], float]


def prometheus_text(
    outcomes: Sequence[Outcome], failed: Iterable[str] = (), before: str = ""
) -> str:
    """The metrics of some runs in Prometheus' exposition format.

    failed  references of audits that brought no outcome at all
    before  the former text: the time of a last success stays until there is a later one
    """
    finished = [outcome for outcome in outcomes if outcome.exit_code != INCOMPLETE]
    last = {
        _plain(found[1]): float(found[2])
        for found in map(_KEPT.match, before.splitlines())
        if found
    }
    last |= {outcome.run.reference: outcome.run.finished_ms / 1000 for outcome in finished}
    failed = list(failed)
    known = {*failed, *(outcome.run.reference for outcome in outcomes)}
    codes = [*_each(outcomes, "exit_code"), *(({"reference": name}, INCOMPLETE) for name in failed)]
    parts = [
        _metric("divergences", "Differences from the reference, by class.", _divergences(outcomes)),
        _metric("findings", "Things in one store that do not fit its log.", _findings(outcomes)),
        _metric(
            "lag_bytes", "How far a replica's log ends before the reference's.", _lag(outcomes)
        ),
        _metric("bytes_compared", "Log bytes compared.", _each(outcomes, "bytes_compared")),
        _metric("exit_code", "0 equal, 1 divergent, 2 warnings, 3 incomplete.", codes),
        _metric(
            "incomplete",
            "1 when the audit could not finish.",
            [(labels, float(code == INCOMPLETE)) for labels, code in codes],
        ),
        _metric(
            "duration_seconds",
            "Wall time of the audit.",
            [
                ({"reference": o.run.reference}, (o.run.finished_ms - o.run.started_ms) / 1000)
                for o in outcomes
            ],
        ),
        _metric("cpu_seconds", "Processor time of the audit.", _each(outcomes, "cpu_seconds")),
        _metric(
            _LAST_SUCCESS,
            "When an audit last came to its end.",
            [({"reference": name}, at) for name, at in sorted(last.items()) if name in known],
        ),
    ]
    return "".join(parts)


def references(path: Path) -> list[str]:
    """Of the audits that a textfile tells of. Raises OSError."""
    found = map(_KEPT.match, path.read_text(encoding="utf-8").splitlines())
    return [_plain(each[1]) for each in found if each]


def write_metrics(outcomes: Sequence[Outcome], failed: Iterable[str], path: Path) -> None:
    """Replace a textfile in one step: the collector never sees half of it. Raises OSError."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(prometheus_text(outcomes, failed, before), encoding="utf-8")
    fresh.replace(path)


def _metric(name: str, text: str, series: Iterable[Series]) -> str:
    lines = [f"# HELP tandem_audit_{name} {text}", f"# TYPE tandem_audit_{name} gauge"]
    for labels, value in series:
        shown = ",".join(f'{label}="{_label(labels[label])}"' for label in sorted(labels))
        lines.append(f"tandem_audit_{name}{{{shown}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.3f}"


def _each(outcomes: Sequence[Outcome], field: str) -> list[Series]:
    return [({"reference": o.run.reference}, float(getattr(o.run, field))) for o in outcomes]


def _divergences(outcomes: Sequence[Outcome]) -> Iterator[Series]:
    for outcome in outcomes:
        counted = Counter((row.replica, row.kind) for row in outcome.divergences)
        for name in outcome.run.replicas.split(","):
            for kind in DivergenceClass:
                if kind is not DivergenceClass.LAG:
                    yield {"class": kind.value, "replica": name}, counted[name, kind.value]


def _findings(outcomes: Sequence[Outcome]) -> Iterator[Series]:
    counted = Counter(
        (row.replica, row.check, row.severity) for o in outcomes for row in o.findings
    )
    for (name, check, severity), count in sorted(counted.items()):
        yield {"replica": name, "check": check, "severity": severity}, count


def _lag(outcomes: Sequence[Outcome]) -> Iterator[Series]:
    for outcome in outcomes:
        lag: Counter[str] = Counter()
        for row in outcome.divergences:
            if row.kind == DivergenceClass.LAG.value:
                lag[row.replica] += row.end - row.start
        for name in outcome.run.replicas.split(","):
            yield {"replica": name}, lag[name]


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _plain(label: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], label)
