"""What README promises is what is asked: one list, chaos/survival.py, stands behind the table and the judges."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.chaos import survival
from tandemmq.chaos.sim.checks import Check, Violation
from tandemmq.chaos.sim.faults import FAULTS
from tandemmq.chaos.sim.world import simulate
from tandemmq.chaos.survival import ASKED, PROMISES, Fate, Fault, table
from tandemmq.replication.config import Mode

ROOT = Path(__file__).parents[2]
SEEDS_MAX = 300
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_readme_has_the_table_of_the_list_and_no_other_document_has_one() -> None:
    having = [
        path for path in DOCUMENTS if "acknowledged means" in path.read_text(encoding="utf-8")
    ]
    assert having == [ROOT / "README.md"]
    text = having[0].read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:`brokerRole`|[AS][01]:).*\n", text, re.MULTILINE)
    assert rows == [line + "\n" for line in table().splitlines() if "---" not in line]


def test_every_mode_and_every_fault_has_its_promise() -> None:
    assert list(PROMISES) == list(Mode)
    assert all(list(promise.fates) == list(Fault) for promise in PROMISES.values())


@pytest.mark.parametrize("fault", Fault)
def test_each_fault_is_asked_about_by_the_simulator_and_by_a_command(fault: Fault) -> None:
    simulated, commands = ASKED[fault]
    assert simulated and set(simulated) <= set(FAULTS)
    assert commands
    for command in commands:
        assert importlib.util.find_spec(command), command


@pytest.mark.parametrize(
    ("mode", "fate"),
    [
        (mode, fate)
        for mode, promise in PROMISES.items()
        for fate in Fate
        if fate is not Fate.KEPT and fate in promise.fates.values()
    ],
)
def test_the_simulator_fails_when_the_list_promises_more(
    mode: Mode, fate: Fate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the table excuses does happen, and would be found if it were not excused."""
    promise = PROMISES[mode]
    kept = {each: Fate.KEPT if now is fate else now for each, now in promise.fates.items()}
    stricter = {**PROMISES, mode: replace(promise, fates=kept)}
    monkeypatch.setattr(survival, "PROMISES", stricter)
    assert any(loses(seed, mode) for seed in range(SEEDS_MAX))


def loses(seed: int, mode: Mode) -> bool:
    """Whether the simulator finds an acknowledged message lost in this seed. The list as it is excuses all of
    them (tests/simulation/test_sim.py)."""
    try:
        simulate(seed, 1000, mode=mode)
    except Violation as violation:
        assert violation.check is Check.LOST
        return True
    return False
