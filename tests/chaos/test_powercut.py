"""tandemmq.chaos.powercut: random power cuts under the real storage, and that they find what is planted there."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemmq.chaos.powercut.campaign import Manner, campaign
from tandemmq.chaos.powercut.disk import STALE, Disk, Names, mixed
from tandemmq.storage import jsonfile
from tandemmq.storage.checkpoint import RunningMark
from tandemmq.storage.durability import Durability
from tandemmq.storage.queuefiles import QueueFile
from tandemmq.storage.segment import Segment

CUTS = 3_000
CUTS_UNTIL_FOUND_MAX = 4_000

MASTERS = Manner(slaves=0, tables=0)

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Every cut is recovered from, in several lines."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.simulation
@pytest.mark.timeout(1800)
def test_random_power_cuts_lose_nothing_that_was_promised() -> None:
    outcome = campaign(0, CUTS, findings_max=1)
    assert not outcome.findings, outcome.findings[0]
    assert outcome.cuts == CUTS


# --- planted bugs: each must be found, and for its own reason ---


def leaves_cuts_in_the_cache(patch: pytest.MonkeyPatch) -> None:
    def cut(self: Segment, position: int) -> None:
        self.zero(position, self.size)
        self.wrote = position
        self.flushed = min(self.flushed, position)

    patch.setattr(Segment, "cut", cut)


def raises_the_checkpoint_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    flush = Durability.flush_checkpoint

    def flush_checkpoint(self: Durability, confirmed: int) -> None:
        self.checkpoint.physic_ms = max(self.checkpoint.physic_ms, self._log.tail.committed_ms)
        flush(self, confirmed)

    patch.setattr(Durability, "flush_checkpoint", flush_checkpoint)


def forgets_the_names_of_log_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tandemmq.storage.segment.fsync_directory", lambda directory: None)


def forgets_the_names_of_directories(patch: pytest.MonkeyPatch) -> None:
    def make(directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)

    for module in ("segment", "jsonfile", "setaside", "store"):
        patch.setattr(f"tandemmq.storage.{module}.make_directory", make)


def forgets_the_names_of_tables(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tandemmq.storage.jsonfile.fsync_directory", lambda directory: None)


def renames_what_was_not_synced(patch: pytest.MonkeyPatch) -> None:
    def beside(path: Path, data: bytes) -> Path:
        fresh = path.with_name(path.name + ".new")
        fresh.write_bytes(data)
        return fresh

    patch.setattr(jsonfile, "_write_beside", beside)


def forgets_what_it_sets_aside(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tandemmq.storage.setaside.fsync_directory", lambda directory: None)


def promises_what_is_not_flushed(patch: pytest.MonkeyPatch) -> None:
    def flush(self: Segment) -> int:
        self.flushed = self.wrote
        return self.flushed

    patch.setattr(Segment, "flush", flush)


def states_queues_that_are_not_flushed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueFile, "sync", lambda self: None)


def runs_without_a_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunningMark, "set", lambda self: None)


PLANTED: dict[str, tuple[Plant, str]] = {
    "leaves cuts in the cache": (leaves_cuts_in_the_cache, "INV-"),
    "raises the checkpoint before the flush": (raises_the_checkpoint_before_the_flush, "INV-10"),
    "forgets the names of log files": (forgets_the_names_of_log_files, "was on the disk"),
    "forgets the names of directories": (forgets_the_names_of_directories, ""),
    "forgets the names of tables": (forgets_the_names_of_tables, ""),
    "renames what was not synced": (renames_what_was_not_synced, ""),
    "forgets what it sets aside": (forgets_what_it_sets_aside, "set aside"),
    "promises what is not flushed": (promises_what_is_not_flushed, "was on the disk"),
    "states queues that are not flushed": (states_queues_that_are_not_flushed, "queue"),
    "runs without a mark": (runs_without_a_mark, "INV-11"),
}


@pytest.mark.simulation
@pytest.mark.parametrize("bug", PLANTED)
def test_power_cuts_find_storage_that(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, why = PLANTED[bug]
    plant(monkeypatch)
    outcome = campaign(0, CUTS_UNTIL_FOUND_MAX, findings_max=1, manner=MASTERS)
    assert outcome.findings, f"{outcome.cuts} cuts did not find it"
    assert why in outcome.findings[0].problem


# --- the disk itself ---


def test_what_was_synced_is_always_there_and_what_was_not_is_there_now_and_then(
    tmp_path: Path,
) -> None:
    base = tmp_path / "disk"
    base.mkdir()
    (tmp_path / "after").mkdir()
    found = set()
    with Disk(base) as disk:
        (base / "a").write_bytes(b"old")
        for name in ("a", ""):
            descriptor = os.open(base / name, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        (base / "b").write_bytes(b"fresh")
        os.replace(base / "b", base / "a")
        for number in range(60):
            disk.cut_power(random.Random(number), tmp_path / "after" / str(number))
    for each in (tmp_path / "after").iterdir():
        found.add((each / "a").read_bytes())
    # XFS is known for the zeros, ext4 with data=writeback for what the blocks had before
    assert found == {b"old", b"", bytes(5), STALE[:5], b"fresh"}


@pytest.mark.parametrize(("names", "possible"), [(Names.IN_ORDER, False), (Names.ANY_ORDER, True)])
def test_a_later_name_is_there_without_an_earlier_one_only_where_there_is_no_order(
    tmp_path: Path, names: Names, possible: bool
) -> None:
    base = tmp_path / "disk"
    base.mkdir()
    (tmp_path / "after").mkdir()
    found = set()
    with Disk(base) as disk:
        for name in ("first", "second"):
            os.close(os.open(base / name, os.O_WRONLY | os.O_CREAT))
        for number in range(60):
            disk.cut_power(random.Random(number), tmp_path / "after" / str(number), names=names)
    for each in (tmp_path / "after").iterdir():
        found.add(tuple(sorted(path.name for path in each.iterdir())))
    assert (("second",) in found) is possible
    assert {(), ("first",), ("first", "second")} <= found


def test_sectors_are_old_or_new_and_never_anything_else() -> None:
    rng = random.Random(1)
    old, new = b"o" * 4096, b"n" * 6000
    for _ in range(200):
        content = mixed(old, new, rng)
        assert len(content) in (4096, 6000)
        for at in range(0, len(content), 512):
            piece = content[at : at + 512]
            assert piece == new[at : at + 512][: len(piece)] or set(piece) <= {ord("o"), 0}
