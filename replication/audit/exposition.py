"""An audit's result for node exporter's textfile collector."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from replication.audit.classes import DivergenceClass
from replication.audit.plan import INCOMPLETE, Outcome


def prometheus_text(outcome: Outcome) -> str:
    """The metrics of one run in Prometheus' exposition format."""
    run = outcome.run
    by_class: Counter[tuple[str, str]] = Counter()
    lag: Counter[str] = Counter()
    for row in outcome.divergences:
        if row.kind == DivergenceClass.LAG.value:
            lag[row.replica] += row.end - row.start
        else:
            by_class[row.replica, row.kind] += 1
    by_check = Counter((row.replica, row.check, row.severity) for row in outcome.findings)
    lines: list[str] = []

    def metric(name: str, text: str, values: dict[str, float]) -> None:
        lines.append(f"# HELP tandem_audit_{name} {text}")
        lines.append(f"# TYPE tandem_audit_{name} gauge")
        lines.extend(f"tandem_audit_{name}{labels} {value:g}" for labels, value in values.items())

    replicas = run.replicas.split(",")
    metric(
        "divergences",
        "Differences from the reference, by class.",
        {
            f'{{class="{kind}",replica="{_label(name)}"}}': by_class[name, kind.value]
            for name in replicas
            for kind in DivergenceClass
            if kind is not DivergenceClass.LAG
        },
    )
    metric(
        "findings",
        "Things in one store that do not fit its log.",
        {
            f'{{check="{check}",replica="{_label(name)}",severity="{severity}"}}': count
            for (name, check, severity), count in sorted(by_check.items())
        },
    )
    metric("lag_bytes", "How far a replica's log ends before the reference's.", {
        f'{{replica="{_label(name)}"}}': lag[name] for name in replicas
    })  # fmt: skip
    metric("bytes_compared", "Log bytes read and compared.", {"": run.bytes_compared})
    metric("exit_code", "0 equal, 1 divergent, 2 warnings, 3 incomplete.", {"": run.exit_code})
    metric("incomplete", "1 when the audit could not finish.", {
        "": int(run.exit_code == INCOMPLETE)
    })  # fmt: skip
    seconds = (run.finished_ms - run.started_ms) / 1000
    metric("duration_seconds", "Wall time of the audit.", {"": seconds})
    metric("cpu_seconds", "Processor time of the audit.", {"": run.cpu_seconds})
    if run.exit_code != INCOMPLETE:
        lines.append(
            "# HELP tandem_audit_last_success_timestamp_seconds When an audit last came to its end."
        )
        lines.append("# TYPE tandem_audit_last_success_timestamp_seconds gauge")
        lines.append(f"tandem_audit_last_success_timestamp_seconds {run.finished_ms / 1000:.3f}")
    return "\n".join(lines) + "\n"


def write_metrics(outcome: Outcome, path: Path) -> None:
    """Replace a textfile in one step: the collector never sees half of it. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(prometheus_text(outcome), encoding="utf-8")
    fresh.replace(path)


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
