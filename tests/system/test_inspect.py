"""`tandem inspect` on a store that masters of two epochs wrote, recorded from RocketMQ."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from command_line import run

from tandemmq.command.exits import ExitCode
from tandemmq.storage import Draft, StorageConfig, open_store, setaside

pytestmark = pytest.mark.system

STORE = Path(__file__).parents[1] / "golden" / "stores" / "533-ctl-1.tar.xz"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with tarfile.open(STORE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "533-ctl-1"


def test_sequence_id_and_epochs_are_shown_beside_the_log(store: Path) -> None:
    shown = run("inspect", store)
    assert shown.code == 0
    lines = shown.out.splitlines()
    end = next(word for word in lines[2].split() if word.startswith("end=")).removeprefix("end=")
    assert lines[3:6] == [
        f"sequence id epoch=2 offset={end}",
        "written in epoch=1 from=0 to=7555",
        f"written in epoch=2 from=7555 to={end}",
    ]
    assert json.loads(run("inspect", store, "--json").out)["epochs"] == [[1, 0], [2, 7555]]


def test_damaged_epoch_file_is_a_problem_and_no_fresh_store(store: Path) -> None:
    for path in store.glob("epochFileCheckpoint*"):
        path.write_text("nonsense\n")
    shown = run("inspect", store)
    assert shown.code == ExitCode.UNSOUND
    assert "PROBLEM epoch file" in shown.out


def test_damaged_epoch_file_gives_way_to_the_one_before(store: Path) -> None:
    (store / "epochFileCheckpoint").write_text("nonsense\n")
    shown = run("inspect", store)
    assert shown.code == 0 and "written in epoch=1 from=0" in shown.out


def test_what_was_set_aside_is_listed_and_can_be_read(tmp_path: Path) -> None:
    config = StorageConfig(root=str(tmp_path / "store"), segment_bytes=1 << 16)
    with open_store(config) as opened:
        offsets = [opened.put(Draft("T", 1, b"x" * 100, b"KEYS\x01k\x02")).offset for _ in range(9)]
        ranges = setaside.file_ranges(opened.log, offsets[5], opened.end)
        kept = setaside.keep(tmp_path / "store", ranges, offsets[5], 3)
        opened.truncate(offsets[5])
    line = f"set aside epoch=3 start={offsets[5]} end={kept.end} records=4 file={kept.path}"
    assert line in run("inspect", tmp_path / "store").out
    listed = json.loads(run("inspect", tmp_path / "store", "--json").out)["set_aside"]
    assert [each["records"] for each in listed] == [4]
    shown = run("inspect", kept.path)
    assert shown.code == 0 and shown.out.splitlines()[0] == line
    assert shown.out.count("topic=T queue_id=1") == 4
    found = json.loads(run("inspect", kept.path, "--json").out)["messages"]
    assert [each["offset"] for each in found] == offsets[5:]
    assert found[0]["properties"] == {"KEYS": "k"}
