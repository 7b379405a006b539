"""Write grafana/dashboards/*.json from the tables in tables/.

    .venv/bin/python -m grafana.generate            # write them
    .venv/bin/python -m grafana.generate --check    # exit 1 and name the file that is out of step

A test runs the check, so the files cannot go stale.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from grafana.panels import Dashboard, Panel
from grafana.tables import DASHBOARDS

FILES: Final = Path(__file__).parent / "dashboards"
GRID_WIDTH: Final = 24
HEIGHTS: Final = {"stat": 4, "timeseries": 8, "table": 8}
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
#: the label that a variable chooses from, and where its values are found
VARIABLES: Final = {
    "cluster": "label_values(tandem_role, cluster)",
    "broker": 'label_values(tandem_role{cluster=~"$cluster"}, node_id)',
    "topic": 'label_values(rocketmq_messages_in_total{cluster=~"$cluster",node_id=~"$broker"}, topic)',
    "group": 'label_values(rocketmq_consumer_lag_messages{cluster=~"$cluster",node_id=~"$broker"}, consumer_group)',
}


def dashboard_json(dashboard: Dashboard) -> str:
    """One file, ready to be provisioned or imported."""
    tree = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["tandemmq"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one cross hair over all panels
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [
            {"type": "dashboards", "title": "TandemMQ", "tags": ["tandemmq"], "asDropdown": True,
             "includeVars": True, "keepTime": True},
        ],
        "templating": {"list": [_datasource(), *map(_variable, dashboard.variables)]},
        "annotations": {"list": [_failovers()]},
        "panels": _placed(dashboard.panels),
    }  # fmt: skip
    return json.dumps(tree, indent=1, ensure_ascii=False) + "\n"


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _variable(name: str) -> dict[str, Any]:
    return {
        "name": name, "label": name.capitalize(), "type": "query", "datasource": DATASOURCE,
        "query": {"query": VARIABLES[name], "refId": name}, "definition": VARIABLES[name],
        "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"], "selected": True},
    }  # fmt: skip


def _failovers() -> dict[str, Any]:
    """A line in every panel when a master was elected."""
    return {
        "name": "Elections", "datasource": DATASOURCE, "enable": True, "iconColor": "orange",
        "expr": "changes(tandem_controller_epoch[1m]) > 0", "titleFormat": "new master",
        "textFormat": "{{broker}}", "step": "10s",
    }  # fmt: skip


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """From the left to the right, a new row where the next one does not fit."""
    found: list[dict[str, Any]] = []
    x = y = height = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > GRID_WIDTH:
            x, y, height = 0, y + height, 0
        height = max(height, HEIGHTS[panel.kind])
        place = {"x": x, "y": y, "w": panel.width, "h": HEIGHTS[panel.kind]}
        found.append(_panel(number, panel, place))
        x += panel.width
    return found


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    instant = panel.kind != "timeseries"
    targets = [
        {"refId": chr(ord("A") + at), "datasource": DATASOURCE, "expr": query.expr,
         "legendFormat": query.legend or "__auto", "instant": instant, "range": not instant,
         **({"format": "table"} if panel.kind == "table" else {})}
        for at, query in enumerate(panel.queries)
    ]  # fmt: skip
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.bad is not None:
        orange, red = panel.bad
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if orange < red:
            steps.append({"color": "orange", "value": orange})
        defaults["thresholds"] = {
            "mode": "absolute",
            "steps": [*steps, {"color": "red", "value": red}],
        }
    if panel.kind == "timeseries":
        defaults |= {
            "min": 0,
            "custom": {"fillOpacity": 8, "showPoints": "never", "spanNulls": False},
        }
    return {
        "id": number, "type": panel.kind, "title": panel.title, "description": panel.description,
        "datasource": DATASOURCE, "gridPos": place, "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel.kind),
    }  # fmt: skip


def _options(kind: str) -> dict[str, Any]:
    match kind:
        case "stat":
            return {"colorMode": "background", "reduceOptions": {"calcs": ["lastNotNull"]}}
        case "timeseries":
            return {
                "legend": {"displayMode": "list", "placement": "bottom"},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        case _:
            return {}


def main(arguments: list[str]) -> int:
    written = {FILES / f"{each.uid}.json": dashboard_json(each) for each in DASHBOARDS}
    stale = [path for path in FILES.glob("*.json") if path not in written]
    if arguments == ["--check"]:
        stale += [
            path for path, text in written.items()
            if not path.exists() or path.read_text(encoding="utf-8") != text
        ]  # fmt: skip
        for path in stale:
            print(f"{path} is out of step: .venv/bin/python -m grafana.generate", file=sys.stderr)
        return 1 if stale else 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    FILES.mkdir(exist_ok=True)
    for path in stale:
        path.unlink()
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
