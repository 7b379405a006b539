"""Dashboards, rules and their documents say the same: grafana/, deploy/prometheus/, docs/operations.md."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from grafana import generate
from grafana.tables import DASHBOARDS
from tandemmq.chaos.scenarios import served
from tandemmq.cluster.metrictable import METRICS

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy" / "prometheus"
PARTS: Final = re.compile(r"_(bucket|sum|count)$")
NAMES: Final = re.compile(r"\b(?:rocketmq|tandem|process)_[a-z0-9_]+")


def rules(name: str) -> list[dict[str, Any]]:
    tree = yaml.safe_load((RULES / name).read_text())
    return [rule for group in tree["groups"] for rule in group["rules"]]


ALERTS: Final = rules("alerts.yml")
RECORDED: Final = {rule["record"] for rule in rules("recording.yml")}


def queries() -> Iterator[tuple[str, str]]:
    """(where it stands, the query) of every panel and rule."""
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for query in panel.queries:
                yield f"{dashboard.title}: {panel.title}", query.expr
    for rule in [*ALERTS, *rules("recording.yml")]:
        yield rule.get("alert") or rule["record"], rule["expr"]


def audit_metrics() -> set[str]:
    text = (ROOT / "replication" / "audit" / "exposition.py").read_text()
    named = re.findall(r'_metric\(\s*"(\w+)"', text)
    return {f"tandem_audit_{name}" for name in [*named, "last_success_timestamp_seconds"]}


def test_dashboards_are_in_step_with_their_tables() -> None:
    assert generate.main(["--check"]) == 0


def test_a_dashboard_that_was_changed_by_hand_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "FILES", tmp_path)
    assert generate.main([]) == 0 and generate.main(["--check"]) == 0
    changed = tmp_path / f"{DASHBOARDS[0].uid}.json"
    changed.write_text(changed.read_text().replace('"refresh": "10s"', '"refresh": "5s"'))
    (tmp_path / "gone.json").write_text("{}")
    assert generate.main(["--check"]) == 1
    said = capsys.readouterr().err
    assert changed.name in said and "gone.json" in said


def test_every_panel_says_what_it_shows_and_lies_beside_the_others() -> None:
    for path in (ROOT / "grafana" / "dashboards").glob("*.json"):
        tree = json.loads(path.read_text())
        taken: set[tuple[int, int]] = set()
        for panel in tree["panels"]:
            assert len(panel["description"]) > 20 and panel["description"].endswith("."), panel[
                "title"
            ]
            grid = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(grid["x"], grid["x"] + grid["w"])
                for y in range(grid["y"], grid["y"] + grid["h"])
            }
            assert not cells & taken and grid["x"] + grid["w"] <= generate.GRID_WIDTH, panel[
                "title"
            ]
            taken |= cells
    assert len({each.uid for each in DASHBOARDS}) == len(DASHBOARDS) == 6


def test_queries_name_metrics_that_there_are() -> None:
    known = {metric.name for metric in METRICS} | audit_metrics() | served.METRICS.keys()
    histograms = {metric.name for metric in METRICS if metric.kind == "histogram"}
    for where, expr in queries():
        for name in NAMES.findall(re.sub(r"tandem:\w+:?\w*", "", expr)):
            base = PARTS.sub("", name)
            assert name in known or base in histograms, f"{where}: {name}"
        for name in re.findall(r"tandem:\w+(?::\w+)?", expr):
            assert name in RECORDED, f"{where}: {name}"


def test_what_must_be_visible_in_any_run_is_in_a_panel() -> None:
    shown = " ".join(expr for _, expr in queries())
    for name in (
        "tandem_role", "tandem_epoch", "tandem_controller_in_sync_replicas", "tandem_log_end_bytes",
        "tandem_flushed_bytes", "tandem_confirmed_bytes", "tandem:slave_lag_messages", "tandem_slave_lag_seconds",
        "tandem_lease_seconds", "tandem_ack_wait_seconds_bucket", "tandem_refused_requests_total",
        "tandem_controller_elections_total", "tandem_controller_lossy_elections_total", "tandem_store_problem",
        "tandem_audit_findings", "tandem_audit_divergences", "tandem_disk_free_bytes", "tandem_readers_sent_away_total",
    ):  # fmt: skip
        assert name in shown, name


def test_every_alert_has_its_paragraph_its_unit_test_and_its_cause() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    paragraphs = dict(re.findall(r"^### Alert (\w+)\n\n(.*?)(?=\n### |\n## )", text, re.M | re.S))
    units = {
        each["alertname"]
        for test in yaml.safe_load((RULES / "alerts_test.yml").read_text())["tests"]
        for each in test.get("alert_rule_test", [])
        if each["exp_alerts"]
    }
    fired = set(
        re.findall(r'\.fires\("(\w+)"', (ROOT / "tests/metrics/test_alerts_live.py").read_text())
    )
    names = [rule["alert"] for rule in ALERTS]
    assert len(names) == len(set(names))
    assert set(names) == paragraphs.keys() == units == fired
    for rule in ALERTS:
        notes, said = rule["annotations"], paragraphs[rule["alert"]]
        assert notes["paragraph"] == f"docs/operations.md#alert-{rule['alert'].lower()}"
        assert notes["summary"] and notes["description"]
        severity = rule["labels"]["severity"]
        assert severity in ("page", "ticket") and f"**Symptom** ({severity})" in said
        assert "**Look**" in said and "**Do**" in said


def test_promtool_finds_nothing_wrong() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("no promtool: apt-get install prometheus")
    for words in (
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "recording.yml", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ):
        done = subprocess.run(
            ["promtool", *words], cwd=RULES, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
