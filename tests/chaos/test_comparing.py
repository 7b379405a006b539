"""The comparison of two kinds of servers, without either: what of a report is in the table, and where that is put."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tandemmq.chaos.checking.lines import Delivered, Event, encode_line
from tandemmq.chaos.scenarios import command, comparing
from tandemmq.chaos.scenarios.catalog import SCENARIOS
from tandemmq.chaos.scenarios.comparing import Side, put_section, side_of, table, twice_in


def told(findings: dict[str, int]) -> dict[str, object]:
    """A report as far as the table reads it."""
    return {
        "verdict": "invalid" if findings else "valid", "acknowledged": 1000, "lost": findings.get("C-1", 0),
        "checks": [{"id": check, "findings": findings.get(check, 0)} for check in ("C-1", "C-7", "C-16")],
        "faults": [{"silent_ms": 120.0}, {"silent_ms": 13_800.0}, {"silent_ms": 400.0}], "doubts": [],
    }  # fmt: skip


def test_a_row_has_what_was_lost_reordered_and_how_long_nothing_was_taken() -> None:
    schedule = SCENARIOS["kill"].schedule(3)
    ours = side_of(schedule, "tandem", told({}), 4)
    theirs = side_of(schedule, "java", told({"C-1": 2, "C-7": 5, "C-16": 1}), 0)
    rows = table([ours, theirs.joined(theirs)]).splitlines()
    assert (
        rows[2]
        == "| kill | TandemMQ | 1 | 3 | 1,000 | 0 | 4 | 0 | 0.40 s | 13.80 s | none | valid |"
    )
    assert rows[3].startswith(
        "| kill | RocketMQ 5.3.3 | 2 | 6 | 2,000 | 4 | 0 | 10 | 0.40 s | 13.80 s |"
    )
    assert rows[3].endswith("| C-16: 2 | invalid |")


def test_deliveries_beyond_the_first_are_counted_of_one_group(tmp_path: Path) -> None:
    lines = [
        Delivered("T", 0, at, unique_id, 0, at, group=group)
        for at, (unique_id, group) in enumerate(
            [("a", "G"), ("b", "G"), ("a", "G"), ("a", "H"), ("a", "H"), ("a", "G")]
        )
    ]
    path = tmp_path / "history.jsonl"
    path.write_bytes(b"".join(encode_line(each) + b"\n" for each in [*lines, Event({"what": "x"})]))
    assert twice_in(path, "G") == 2
    assert twice_in(tmp_path / "none", "G") == 0


def test_a_document_keeps_all_but_the_table_before(tmp_path: Path) -> None:
    document = tmp_path / "chaos-results.md"
    document.write_text("# Results\n\nOf campaigns.\n")
    for number in ("1", "2"):
        put_section(document, comparing.section(f"| {number} |\n", ["compare", "--seed", number]))
        document.write_text(document.read_text() + "\n## Later\n" * (number == "1"))
    text = document.read_text()
    assert text.startswith("# Results\n\nOf campaigns.\n\n## Beside Apache RocketMQ\n")
    assert text.endswith("## Later\n")
    assert "| 2 |" in text and "| 1 |" not in text
    assert "`tandem chaos compare --seed 2`, commit" in text


def test_a_command_is_told_without_the_paths_of_this_machine() -> None:
    told_to = ["compare", "--report", "/here/r", "--runs", "2", "--document=/here/d"]
    assert comparing.repeatable(told_to) == "tandem chaos compare --runs 2"


def test_both_play_the_same_schedules_and_ours_decide_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[tuple[str, str]] = []

    def side(schedule: object, servers: str, directory: Path, *_: object) -> Side:
        played.append((str(schedule), servers))
        broken = {"C-16": 1} if servers == "java" else {}
        return side_of(SCENARIOS["kill"].schedule(1), servers, told(broken), 0)

    monkeypatch.setattr(comparing, "play_side", side)
    monkeypatch.setattr(comparing, "java_missing", lambda: "")
    arguments = [
        "compare",
        "--scenario",
        "kill",
        "--runs",
        "2",
        "--json",
        "--report",
        str(tmp_path / "r"),
    ]
    assert command.main(arguments) == 0
    assert [servers for _, servers in played] == ["tandem", "java"] * 2
    assert [schedule for schedule, _ in played[::2]] == [schedule for schedule, _ in played[1::2]]
    assert len({schedule for schedule, _ in played}) == 2
    found = json.loads(capsys.readouterr().out)
    assert [each["servers"] for each in found["sides"]] == ["tandem", "java"]
    assert found["sides"][1]["acknowledged"] == 2000
    assert found["command"].startswith("tandem chaos compare --scenario kill")


def test_what_stock_servers_cannot_be_broken_by_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["compare", "--scenario", "clock"]) == command.MISSING
    said = capsys.readouterr().err
    assert "clock breaks what stock servers do not have" in said or "needs" in said
    assert command.main(["compare", "--runs", "0"]) == command.USAGE


def test_the_reader_of_a_report_finds_no_servers_but_these() -> None:
    assert set(comparing.NAMES) == {"tandem", "java"}
    assert all(SCENARIOS[name].stage in comparing.STOCK_STAGES for name in comparing.DEFAULT)
    assert isinstance(command.parser().parse_args(["compare"]), argparse.Namespace)
