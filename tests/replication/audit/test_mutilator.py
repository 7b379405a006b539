"""Faults of a mutilator of its own over stores that RocketMQ wrote and ours: all found, nearly all named right."""

from __future__ import annotations

from pathlib import Path

import pytest
import storekit
from mutilator import Mutilator, judge

STORES = (
    "497-clean", "497-kill9", "497-roll", "533-clean", "533-kill9", "533-roll", "533-ha-master",
    "533-ctl-1", "ours",
)  # fmt: skip
ROUNDS = 3  # of every fault, on either side, for each store
RIGHT_MIN = 0.95


def pair_of(name: str, directory: Path) -> tuple[Path, Path, int]:
    """Two equal stores and their index slots."""
    if name == "ours":
        master = storekit.write_store(directory / "a" / "ours", 77, 500)
        return master, storekit.copy(master, directory / "b"), storekit.INDEX_SLOTS
    master = storekit.unpack(name, directory / "a")
    for wheel in master.glob("timerwheel"):
        wheel.unlink()  # 38 MB that no audit reads
    return master, storekit.copy(master, directory / "b"), storekit.index_slots_of(name)


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("side", ["slave", "master"])
def test_all_damage_is_found_and_named(tmp_path: Path, name: str, side: str) -> None:
    master, slave, slots = pair_of(name, tmp_path)
    before = storekit.run(master, slave, slots=slots)
    assert before.divergences == []
    hurt = slave if side == "slave" else master
    mutilator = Mutilator(hurt, sum(map(ord, name + side)), slots, side)
    total, right = 0, 0
    wrong = []
    for _ in range(ROUNDS):
        for fault in mutilator.faults():
            with mutilator.damaged(fault) as expected:
                outcome = storekit.run(master, slave, slots=slots)
                found, named, false = judge(expected, outcome, before)
                story = (fault, expected, [(r.kind, r.start, r.end) for r in outcome.divergences])
                assert found, story
                assert not false, (*story, false)
                assert outcome.exit_code in (1, 2)
                total += 1
                right += named
                if not named:
                    wrong.append((*story, [r.check for r in outcome.findings]))
    assert right >= RIGHT_MIN * total, wrong
    assert storekit.run(master, slave, slots=slots).divergences == [], "the damage was not undone"
