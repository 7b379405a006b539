"""What a run leaves behind: report.json for programs, report.html for people, both out of its history."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec

from tandemmq import __version__
from tandemmq.chaos.checking.findings import CHECKS
from tandemmq.chaos.scenarios.reports.page import page
from tandemmq.chaos.scenarios.reports.timeline import FaultFigures, Timeline, timeline
from tandemmq.chaos.scenarios.run import Played
from tandemmq.chaos.verdict import HISTORY

JSON: Final = "report.json"
HTML: Final = "report.html"


def write_report(played: Played) -> Mapping[str, Any]:
    """Both files into the run's directory; what report.json says."""
    history = played.directory / HISTORY
    found = timeline(history) if history.exists() else Timeline()
    told: dict[str, Any] = json.loads(json.dumps(told_of(played, found)))
    (played.directory / JSON).write_text(json.dumps(told, indent=1) + "\n")
    (played.directory / HTML).write_text(page(told, found))
    return told


def told_of(played: Played, found: Timeline) -> dict[str, Any]:
    """Everything that a report says, as plain values. Times in ms, but for seconds."""
    judgement = played.judgement
    schedule = msgspec.to_builtins(played.schedule)
    return {
        "verdict": judgement.word,
        "scenario": played.schedule.scenario,
        "seed": played.schedule.seed,
        "mode": played.schedule.mode,
        "replicas": played.schedule.replicas,
        "target": played.target,
        "group": found.run.get("group", ""),
        "workloads": list(played.schedule.workloads),
        "version": __version__,
        "commit": commit(),
        "machine": played.machine,
        "seconds": played.seconds,
        "operations": judgement.operations,
        "acknowledged": judgement.acknowledged,
        "lost": judgement.counts.get("C-1", 0),
        "longest_outage_ms": round(found.longest_outage_ms, 1),
        "outages_ms": [round((end - start) / 1e6, 1) for start, end in found.outages],
        "faults": [_fault(each) for each in found.faults],
        "checks": [
            {
                "id": check,
                "property": CHECKS[check],
                "observed": judgement.observed.get(check, 0),
                "findings": judgement.counts.get(check, 0),
            }
            for check in CHECKS
        ],
        "findings": [asdict(each) for each in judgement.findings],
        "doubts": judgement.doubts,
        "schedule": schedule,
    }


def clean(directory: Path) -> None:
    """Leave the report and what it was made from; stores and the proxy's log go."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.suffix in (".img", ".boot_id", ".log") or path.name == "journal.jsonl":
            path.unlink()


def _fault(figures: FaultFigures) -> dict[str, Any]:
    window = figures.window
    return {
        "number": window.number,
        "kind": window.kind,
        "says": window.says,
        "evidence": window.evidence,
        "healing": window.healing,
        "problem": window.problem,
        "effect_ms": round(figures.effect_ms, 1),
        "lasted_ms": round(figures.lasted_ms, 1),
        "healing_ms": round(figures.healing_ms, 1),
        "silent_ms": round(figures.silent_ms, 1),
        "whole_ms": round(figures.whole_ms, 1),
    }


def commit() -> str:
    """Of the source tree this runs from; "" where there is none."""
    root = Path(__file__).resolve().parents[3]
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short", "HEAD"],
            check=False,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
