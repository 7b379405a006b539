"""`tandem inspect` on a store that masters of two epochs wrote, recorded from RocketMQ."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from command_line import run

from tandemmq.exits import ExitCode

pytestmark = pytest.mark.system

STORE = Path(__file__).parents[1] / "golden" / "stores" / "533-ctl-1.tar.xz"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with tarfile.open(STORE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "533-ctl-1"


def test_sequence_id_and_reigns_are_shown_beside_the_log(store: Path) -> None:
    shown = run("inspect", store)
    assert shown.code == 0
    lines = shown.out.splitlines()
    end = next(word for word in lines[2].split() if word.startswith("end=")).removeprefix("end=")
    assert lines[3:6] == [
        f"sequence id epoch=2 offset={end}",
        "reign epoch=1 from=0 to=7555",
        f"reign epoch=2 from=7555 to={end}",
    ]
    assert json.loads(run("inspect", store, "--json").out)["reigns"] == [[1, 0], [2, 7555]]


def test_damaged_epoch_file_is_a_problem_and_no_fresh_store(store: Path) -> None:
    for path in store.glob("epochFileCheckpoint*"):
        path.write_text("nonsense\n")
    shown = run("inspect", store)
    assert shown.code == ExitCode.UNSOUND
    assert "PROBLEM epoch file" in shown.out


def test_damaged_epoch_file_gives_way_to_the_one_before(store: Path) -> None:
    (store / "epochFileCheckpoint").write_text("nonsense\n")
    shown = run("inspect", store)
    assert shown.code == 0 and "reign epoch=1 from=0" in shown.out
