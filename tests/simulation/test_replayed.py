"""A schedule made for real processes, in simulated time: it happens as planned, and its verdict is one to compare."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from shellbugs import answers_before_they_are_held

from tandemmq.chaos.checking.findings import CHECKS, INVALID, UNKNOWN, VALID
from tandemmq.chaos.scenarios.command import main
from tandemmq.chaos.scenarios.schedule import Planned, Schedule, Step
from tandemmq.chaos.whole.judge import Promise
from tandemmq.chaos.whole.replay import CHECK_OF, REPORT, SCHEDULE, Verdict, agree, simulated
from tandemmq.chaos.whole.seeds import SeedRun, run_seed

pytestmark = pytest.mark.simulation


def planned(*faults: Planned, mode: str = "S0", calm_s: float = 0.3) -> Schedule:
    return Schedule("kill", 1, mode, 2, "plain", (Step(calm_s, faults),))


DEPOSES: Final = 2  # reigns: the fault ends one
HARMLESS: Final = 1


@pytest.mark.parametrize(
    ("reigns", "faults"),
    [
        (DEPOSES, (Planned("stop", "slave", 0.3), Planned("kill", "master", 0.3, after_s=0.1))),
        (HARMLESS, (Planned("pause", "controller", 0.4), Planned("stutter", "slave", 0.4))),
        (DEPOSES, (Planned("partition", "master", 1.5, with_={"links": "alone", "way": "both"}),)),
        (HARMLESS, (Planned("packets", "master", 0.5, with_={"shape": "halves"}),)),
        (DEPOSES, (Planned("storm", "replicas", 2.5),)),
        (DEPOSES, (Planned("power", "replicas", 0.3),)),
        (HARMLESS, (
            Planned("disk-full", "master", 0.5), Planned("latency", "slave", 0.3, with_={"latency_ms": 20}),
        )),
        (DEPOSES, (Planned("calls", "master", 1.5, with_={"call": "fdatasync", "errno": 5}),)),
    ],
    ids=lambda given: "" if isinstance(given, int) else given[0].kind,
)  # fmt: skip
def test_faults_of_every_kind_happen_and_the_group_is_whole_again(
    reigns: int, faults: tuple[Planned, ...]
) -> None:
    mode = "S1" if faults[0].kind in ("power", "calls") else "S0"
    found = run_seed(SeedRun(3, schedule=planned(*faults, mode=mode)))
    assert (found.finding, found.doubts) == ("", [])
    assert found.faults == len(faults)
    assert found.acked
    assert found.marks.keys() >= {each.kind for each in faults}
    assert min(found.marks["reign"], DEPOSES) == reigns


def test_a_planted_bug_turns_the_verdict() -> None:
    found = simulated(planned(), [0], plant=answers_before_they_are_held)
    assert found.word == INVALID
    assert found.broken == {"C-1": 1}


def test_what_cannot_be_played_makes_it_unknown() -> None:
    found = simulated(planned(Planned("clock", "master", 0.2, with_={"jump_s": 60})), [1])
    assert found.word == UNKNOWN
    (doubt,) = found.doubts
    assert "clock of master jump_s=60 for 0.2 s never happened" in doubt


def test_verdicts_agree_where_the_same_thing_is_broken() -> None:
    assert CHECK_OF.keys() == set(Promise)
    assert set(CHECK_OF.values()) <= CHECKS.keys()
    lost, forked = (Verdict(INVALID, Counter({check: 1})) for check in ("C-1", "C-15"))
    assert agree(Verdict(VALID), Verdict(VALID))
    assert agree(lost, Verdict(INVALID, Counter({"C-1": 3, "C-15": 1})))
    assert not agree(lost, forked)
    assert not agree(Verdict(VALID), lost)
    assert not agree(lost, Verdict(VALID))
    assert not agree(Verdict(VALID), Verdict(UNKNOWN))


def test_the_command_compares_with_a_report_and_says_so_when_verdicts_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned(calm_s=0.0).write(tmp_path / SCHEDULE)
    told = {
        "verdict": VALID, "checks": [], "doubts": [], "findings": [], "acknowledged": 12, "faults": [],
    }  # fmt: skip
    arguments = ["sim", "--seeds", "1", "--replay", str(tmp_path)]
    assert main(arguments) == 2
    (tmp_path / REPORT).write_text(json.dumps(told))
    assert main(arguments) == 0
    assert "the same verdict" in capsys.readouterr().out
    lost = {"verdict": INVALID, "checks": [{"id": "C-1", "findings": 2}]}
    (tmp_path / REPORT).write_text(json.dumps(told | lost))
    assert main(arguments) == 5
    assert "NOT THE SAME VERDICT" in capsys.readouterr().out
    (tmp_path / REPORT).write_text("{}")
    assert main(arguments) == 2
