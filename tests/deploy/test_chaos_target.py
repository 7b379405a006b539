"""`tandem chaos run --target compose`: the master's container is killed by docker, and what is left is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dockers import Project, until

from tandemmq.chaos.scenarios import command
from tandemmq.chaos.scenarios.schedule import Planned, Schedule, Step

MEMBERS = 6
PATIENCE_S = 240


def test_a_composed_cluster_whose_masters_container_is_killed_loses_nothing(
    cluster: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.compose("up", "-d")
    until(lambda: cluster.healthy(MEMBERS), PATIENCE_S, "every container is healthy")
    faults = (Planned("kill", "master", 4.0), Planned("pause", "master", 3.0, 8.0))
    plan = tmp_path / "plan.json"
    Schedule("kill", 7, "S0", 2, "plain", (Step(2.0, faults),)).write(plan)
    arguments = [
        "run", "--replay", str(plan), "--target", "compose", "--rate", "100", "--json",
        "--report", str(tmp_path / "report"),
    ]  # fmt: skip
    code = command.main(arguments)
    told = json.loads(capsys.readouterr().out)
    assert (code, told["doubts"], told["findings"]) == (0, [], [])
    assert [each["kind"] for each in told["faults"]] == ["kill", "pause"]
    assert told["acknowledged"] > 200
    until(lambda: cluster.healthy(MEMBERS), PATIENCE_S, "the container that was killed runs again")
