"""replication/keeping.py: a history that reaches beyond its log tells a cut under way from a log that was lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tandemmq.replication.epochs import Epoch, EpochHistory
from tandemmq.replication.keeping import EpochFile, LogKeeping
from tandemmq.replication.slave import PersistHistory, Truncate

HISTORY = EpochHistory((Epoch(1, 0), Epoch(2, 800), Epoch(5, 1000)))


@pytest.fixture
def epochs(tmp_path: Path) -> EpochFile:
    found = EpochFile(tmp_path / "epochFileCheckpoint")
    found.save(HISTORY)
    return found


@pytest.mark.parametrize(
    ("log_end", "beyond"), [(0, 5), (799, 5), (999, 5), (1000, None), (1001, None)]
)
def test_a_reign_behind_the_end_of_its_log_says_that_bytes_are_gone(
    epochs: EpochFile, log_end: int, beyond: int | None
) -> None:
    """INV-37. A reign that begins right at the end has not begun to write."""
    found = epochs.beyond(log_end)
    assert (found.number if found else None) == beyond


def test_a_cut_that_a_crash_interrupted_explains_it(epochs: EpochFile) -> None:
    epochs.cutting(800)
    assert epochs.beyond(800) is None
    assert epochs.beyond(1000) is None, "the cut was announced and not made"
    assert epochs.beyond(799) is not None, "nobody was to cut that much"
    assert epochs.load(800).last == 2
    assert epochs.beyond(700) is not None, "the cut is over"


@pytest.mark.parametrize("end", [1000, 1200])
def test_a_cut_that_changes_no_history_leaves_no_mark_that_would_explain_a_loss(
    tmp_path: Path, epochs: EpochFile, end: int
) -> None:
    """INV-37. Nothing saves a history then, and the mark goes only with that."""
    epochs.cutting(end)
    assert not (tmp_path / "epochFileCheckpoint.cutting").exists()
    epochs.save(HISTORY.begin(6, 5000))
    assert epochs.beyond(4000) is not None


def test_a_saved_history_ends_the_cut(epochs: EpochFile) -> None:
    epochs.cutting(800)
    epochs.save(HISTORY.cut(801).begin(6, 900))
    assert epochs.beyond(850) is not None


class Log:
    """A store that dies in the middle of a cut, as far as LogKeeping sees one."""

    def __init__(self, root: Path) -> None:
        self.config = type("Config", (), {"root": str(root)})()


class Handlers:
    def __init__(self) -> None:
        self.of: dict[type, object] = {}

    def register(self, kind: type, handler: object) -> None:
        self.of[kind] = handler


def test_a_cut_announces_itself_before_it_begins(
    tmp_path: Path, epochs: EpochFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 between the cut of the log and the write of the history."""
    cut: list[int] = []

    async def cut_log(store: object, end: int) -> None:
        assert epochs.beyond(end) is None, "announced first"
        cut.append(end)

    monkeypatch.setattr("tandemmq.replication.keeping.cut_log", cut_log)
    handlers = Handlers()
    keeping = LogKeeping(handlers, Log(tmp_path), epochs)  # type: ignore[arg-type]
    asyncio.run(keeping._truncate(Truncate(800)))
    assert cut == [800]
    assert EpochFile(tmp_path / "epochFileCheckpoint").beyond(800) is None
    asyncio.run(keeping._persist(PersistHistory(HISTORY.cut(800))))
    assert not (tmp_path / "epochFileCheckpoint.cutting").exists()
