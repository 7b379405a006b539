"""What every campaign does as a command: its report, its exit code, and what becomes of its directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tandemmq.chaos import command
from tandemmq.chaos.outcome import Outcome


@dataclass(slots=True)
class Told(Outcome):
    rounds: int = 3

    @property
    def held(self) -> str:
        return "nothing lost"

    def lines(self) -> list[str]:
        return [f"{self.rounds} rounds"]


async def ran(*problems: str) -> Outcome:
    return Told(7, problems=list(problems))


def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> command.Begun:
    monkeypatch.setattr(command.tempfile, "mkdtemp", lambda **_: str(tmp_path / "made"))
    parser = command.parser("told", "About it.", "--rounds 3", rounds=3)
    return command.begin(parser.parse_args(["--seed", "7", *arguments]))


def test_a_good_run_says_what_held_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun(tmp_path, monkeypatch)
    assert run.directory.is_dir()
    assert command.play(run, ran()) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == ["3 rounds", "nothing lost"]
    assert said.err.startswith("seed 7, ")
    assert not run.directory.exists()


def test_a_directory_that_was_named_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun(tmp_path, monkeypatch, "--directory", str(tmp_path / "named"))
    assert command.play(run, ran()) == 0
    assert run.directory.is_dir()


def test_a_run_with_problems_fails_shows_them_and_keeps_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun(tmp_path, monkeypatch)
    problems = [f"LOST {number}" for number in range(command.PROBLEMS_SHOWN + 1)]
    assert command.play(run, ran(*problems)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:-1] == [f"PROBLEM {each}" for each in problems[:-1]]
    assert lines[-1] == f"21 problems; seed 7, everything is in {run.directory}"
    assert run.directory.is_dir()


def test_programs_are_told_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun(tmp_path, monkeypatch, "--json")
    assert command.play(run, ran("LOST 1")) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["good"] is False
    assert (told["seed"], told["rounds"], told["problems"]) == (7, 3, ["LOST 1"])


@pytest.mark.parametrize("rounds", ["0", "-1", "many"])
def test_a_count_that_is_none_is_wrong_usage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rounds: str,
) -> None:
    with pytest.raises(SystemExit) as ended:
        begun(tmp_path, monkeypatch, "--rounds", rounds)
    assert ended.value.code == 2
    assert "--rounds" in capsys.readouterr().err
