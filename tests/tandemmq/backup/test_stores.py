"""Stores that are backed up, damaged, cut and restored, without a broker; and who dies meanwhile (INV-71)."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from backupkit import (
    GROUP,
    SEGMENT_BYTES,
    StoppedStore,
    back_up,
    bodies_in,
    chain_in,
    config_of,
    copy_of,
    restored,
)

from tandemmq.backup.errors import BackupDamaged, BackupError, NoBackup, SourceBroken
from tandemmq.backup.places import LocalPlace, Place, Write, open_place
from tandemmq.backup.progress import silent
from tandemmq.backup.restoring import Point
from tandemmq.backup.shelf import path_of, read_shelf
from tandemmq.backup.verifying import Verified, verify
from tandemmq.storage import fastjson, inspect_store, open_store


def verified(place: Place) -> Verified:
    return verify(place, read_shelf(place, GROUP), records=True, report=silent)


def log_of(root: Path, end: int) -> bytes:
    files = sorted((root / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)[:end]


@pytest.fixture
def store(tmp_path: Path) -> StoppedStore:
    return StoppedStore(tmp_path / "store")


@pytest.fixture
def place(tmp_path: Path) -> LocalPlace:
    return LocalPlace(tmp_path / "backup")


def test_increments_hold_each_byte_once_and_make_the_same_store(
    store: StoppedStore, place: LocalPlace, tmp_path: Path
) -> None:
    ends = []
    for count in (70, 0, 1, 90):
        ends.append(store.grow(count, progress=3))
        back_up(store, place)
    chain = chain_in(place)
    assert [each.end for each in chain] == ends
    assert [each.start for each in chain] == [0, *ends[:-1]]
    assert sum(len(each.pieces) for each in chain) > 4  # segments were filled
    found = verified(place)
    assert (found.problems, found.records, found.chains) == ([], len(store.bodies), 1)

    made = restored(place, tmp_path / "new")
    assert made.end == ends[-1] and made.queues == 4
    assert log_of(tmp_path / "new", ends[-1]) == log_of(store.root, ends[-1])
    report = inspect_store(tmp_path / "new", config_of(tmp_path / "new"))
    assert report.problems == [] and not report.running_or_crashed
    assert bodies_in(tmp_path / "new") == store.bodies
    assert {file.stat().st_size for file in (tmp_path / "new/commitlog").iterdir()} == {
        SEGMENT_BYTES
    }


def test_a_restored_store_goes_on_where_its_log_ended(
    store: StoppedStore, place: LocalPlace, tmp_path: Path
) -> None:
    store.grow(50)
    back_up(store, place)
    restored(place, tmp_path / "new")
    copy = StoppedStore(tmp_path / "new")
    copy.bodies = list(store.bodies)
    copy.grow(50)
    assert bodies_in(tmp_path / "new") == copy.bodies


@pytest.mark.parametrize("number", [1, 20, 45, 46, 69])
def test_a_point_in_time_and_an_offset_end_with_the_last_whole_message(
    store: StoppedStore, place: LocalPlace, tmp_path: Path, number: int
) -> None:
    store.grow(45, progress=4)
    back_up(store, place)
    store.grow(25, progress=15)
    back_up(store, place)
    stored_ms = store.stored_ms[number - 1]
    made = restored(place, tmp_path / "new", Point(until_ms=stored_ms))
    assert bodies_in(tmp_path / "new") == store.bodies[:number]
    assert made.until_ms == stored_ms
    table = fastjson.loads((tmp_path / "new/config/consumerOffset.json").read_bytes())
    expected = 4 if number >= 45 else min(4, (number + 3) // 4)  # what queue 0 of Orders has
    assert table["offsetTable"]["Orders@billing"]["0"] == expected

    offset = made.end if number == 69 else made.end + 11  # within the next message
    again = restored(place, tmp_path / "offset", Point(offset=offset))
    assert again.end == made.end
    assert bodies_in(tmp_path / "offset") == store.bodies[:number]


def test_points_that_the_backup_does_not_hold_are_refused(
    store: StoppedStore, place: LocalPlace, tmp_path: Path
) -> None:
    end = store.grow(20)
    back_up(store, place)
    for point, said in (
        (Point(offset=end + 1), "holds"),
        (Point(offset=0), "nothing lies below"),
        (Point(offset=5), "behind that point"),
        (Point(until_ms=1_000), "2023-11"),
    ):
        with pytest.raises(NoBackup, match=said):
            restored(place, tmp_path / "new", point)
    assert sorted(os.listdir(tmp_path)) == ["backup", "store"]


# --- planted faults in the backup


def files_of(place: LocalPlace) -> Iterator[tuple[str, Path]]:
    for manifest in chain_in(place):
        for file in (*manifest.pieces, *manifest.tables):
            path = path_of(manifest, file.file)
            yield path, Path(place.name) / path


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def tear(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def grow_by_a_byte(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


@pytest.mark.parametrize("damage", [flip, tear, grow_by_a_byte, Path.unlink])
def test_damage_to_any_file_is_found_by_name_and_restores_nothing(
    store: StoppedStore, place: LocalPlace, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    for _ in range(2):
        store.grow(40, progress=2)
        back_up(store, place)
    files = list(files_of(place))
    used = {"topics.json", "subscriptionGroup.json", "consumerOffset.json"}
    assert len(files) >= 8
    for name, path in files:
        before = path.read_bytes()
        damage(path)
        (problem,) = verified(place).problems
        assert name in problem
        if path.suffix == ".log" or ("00000002-" in name and path.name in used):
            with pytest.raises(BackupDamaged, match=path.name):
                restored(place, tmp_path / "new")
            assert not (tmp_path / "new").exists()
        path.write_bytes(before)
    assert verified(place).problems == []


def test_a_missing_increment_is_found_and_what_lies_before_it_can_be_restored(
    store: StoppedStore, place: LocalPlace, tmp_path: Path
) -> None:
    ends = []
    for _ in range(3):
        ends.append(store.grow(20))
        back_up(store, place)
    chain = chain_in(place)
    (Path(place.name) / GROUP / chain[0].chain / "00000002.json").unlink()
    (problem,) = verified(place).problems
    assert "increment 2" in problem and f"--until {ends[0]}" in problem
    with pytest.raises(BackupDamaged, match="--full"):
        back_up(store, place)
    restored(place, tmp_path / "new", Point(offset=ends[0]))
    assert bodies_in(tmp_path / "new") == store.bodies[:20]
    assert back_up(store, place, full=True).manifest.number == 1
    assert len(read_shelf(place, GROUP).chains) == 2


def test_damage_that_was_copied_from_the_broker_is_found_where_records_are_looked_at(
    store: StoppedStore, place: LocalPlace, tmp_path: Path
) -> None:
    store.grow(30)
    log = store.root / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes().replace(b"000021..", b"000021.,"))  # bit rot in a body
    back_up(store, place)
    shelf = read_shelf(place, GROUP)
    assert verify(place, shelf, records=False, report=silent).problems == []
    (problem,) = verified(place).problems
    assert "at its broker" in problem


# --- a source that changes


def test_a_log_that_lost_its_end_and_went_on_begins_another_chain(
    store: StoppedStore, place: LocalPlace, tmp_path: Path
) -> None:
    store.grow(30)
    end = store.grow(10)
    back_up(store, place)
    with open_store(config_of(store.root)) as opened:
        opened.truncate(chain_in(place)[0].end - 3_000)
    with pytest.raises(BackupError, match="--full"):
        back_up(store, place)  # shorter: nobody can tell a loss from a lag
    store.grow(40, size=500)
    taken = back_up(store, place)
    assert "other bytes" in taken.why and taken.manifest.start == 0
    assert taken.manifest.end > end
    assert verified(place).problems == []


def test_a_log_of_which_retention_took_what_was_not_copied_begins_another_chain(
    store: StoppedStore, place: LocalPlace
) -> None:
    store.grow(10)
    back_up(store, place)
    store.grow(200)
    first, *_ = sorted((store.root / "commitlog").iterdir())
    first.unlink()
    taken = back_up(store, place)
    assert "retention took" in taken.why and taken.manifest.start == SEGMENT_BYTES


def test_a_log_that_changes_while_it_is_copied_adds_nothing(
    store: StoppedStore, place: LocalPlace
) -> None:
    store.grow(100)
    done = []

    def cut(count: int) -> None:
        if not done:
            done.append(count)
            with open_store(config_of(store.root)) as opened:
                opened.truncate(opened.end - 5_000)

    with pytest.raises((SourceBroken, BackupError), match="nothing was added"):
        copy_of(store.root, place, report=cut)
    assert read_shelf(place, GROUP).chains == {}


def test_a_running_brokers_directory_is_not_copied_behind_its_back(
    store: StoppedStore, place: LocalPlace
) -> None:
    store.grow(3)
    child = os.fork()
    if not child:  # the lock is a process's: it takes another one to see it
        with contextlib.suppress(BaseException), open_store(config_of(store.root)):
            (store.root / "held").touch()
            signal.pause()
        os._exit(1)
    try:
        while not (store.root / "held").exists():
            pass
        with pytest.raises(BackupError, match="HTTP port"):
            back_up(store, place)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# --- a process that dies, a disk that is full


def killed_at(step: int, work: Callable[[Callable[[int], None]], object]) -> bool:
    """Run in a process that kills itself at the nth report; whether it came so far."""
    child = os.fork()
    if not child:
        left = [step]

        def report(count: int) -> None:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            work(report)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_backup_that_is_killed_leaves_nothing_that_looks_whole_and_the_next_one_cleans_up(
    store: StoppedStore, place: LocalPlace
) -> None:
    store.grow(120)
    step = 1
    while killed_at(step, lambda report: copy_of(store.root, place, report=report)):
        shelf = read_shelf(place, GROUP)
        assert shelf.chains == {} and len(shelf.leftover) == 1
        step += 1
    assert step > 3
    assert len(chain_in(place)) == 1
    assert read_shelf(place, GROUP).leftover == []
    store.grow(40)
    assert killed_at(1, lambda report: copy_of(store.root, place, report=report))
    assert len(chain_in(place)) == 1 and len(read_shelf(place, GROUP).leftover) == 1
    back_up(store, place)
    assert read_shelf(place, GROUP).leftover == [] and verified(place).problems == []


def test_a_restore_that_is_killed_leaves_nothing_that_looks_whole_and_the_next_one_cleans_up(
    store: StoppedStore, place: LocalPlace, tmp_path: Path
) -> None:
    store.grow(120)
    back_up(store, place)
    into = tmp_path / "new"
    step = 1
    while killed_at(step, lambda report: restored(place, into, report=report)):
        assert not into.exists()
        step += 1
    assert step > 3
    assert bodies_in(into) == store.bodies
    assert sorted(os.listdir(tmp_path)) == ["backup", "new", "store"]


class FullPlace(LocalPlace):
    """Takes so many files, then none."""

    def __init__(self, root: Path, files: int) -> None:
        super().__init__(root)
        self._left = files

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[Write]:
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        with super().writing(path) as write:
            yield write


@pytest.mark.parametrize("files", range(6))
def test_a_full_target_is_told_and_nothing_is_left_there(
    store: StoppedStore, place: LocalPlace, tmp_path: Path, files: int
) -> None:
    store.grow(100, progress=1)
    with pytest.raises(BackupError, match=r"is full .*nothing was added"):
        back_up(store, FullPlace(tmp_path / "backup", files))
    shelf = read_shelf(place, GROUP)
    assert (shelf.chains, shelf.leftover) == ({}, [])
    assert not list((tmp_path / "backup").rglob("*.log"))


def test_a_disk_too_small_for_the_store_is_told_before_anything_is_written(
    store: StoppedStore, place: LocalPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.grow(10)
    back_up(store, place)
    small = os.statvfs_result((4096, 4096, 10, 10, 10, 10, 10, 10, 0, 255))
    monkeypatch.setattr("os.statvfs", lambda path: small)
    with pytest.raises(BackupError, match=r"needs \d+ MiB, .* larger disk"):
        restored(place, tmp_path / "new")
    assert sorted(os.listdir(tmp_path)) == ["backup", "store"]


# --- where backups lie and stores come to


def test_two_backups_do_not_write_to_one_place_at_once(
    store: StoppedStore, place: LocalPlace
) -> None:
    store.grow(10)
    with place.alone(GROUP), pytest.raises(BackupError, match="another backup writes"):
        back_up(store, place)


def test_a_directory_with_anything_in_it_is_not_restored_into(
    store: StoppedStore, place: LocalPlace, tmp_path: Path
) -> None:
    store.grow(10)
    back_up(store, place)
    for into in (tmp_path / "some", tmp_path / "file", tmp_path / "link"):
        if into.name == "some":
            into.mkdir()
            (into / "commitlog").mkdir()
        elif into.name == "file":
            into.touch()
        else:
            into.symlink_to(tmp_path / "nowhere")
        with pytest.raises(BackupError, match=r"not empty|not a directory"):
            restored(place, into)
    (tmp_path / "empty").mkdir()
    restored(place, tmp_path / "empty")
    assert bodies_in(tmp_path / "empty") == store.bodies


def test_a_store_comes_to_its_place_by_one_rename(
    store: StoppedStore, place: LocalPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.grow(10)
    back_up(store, place)
    into = tmp_path / "new"
    seen: list[tuple[Path, bool]] = []
    rename = os.rename

    def noted(source: Path, target: Path) -> None:
        seen.append((Path(target), into.exists()))
        rename(source, target)

    monkeypatch.setattr("os.rename", noted)
    restored(place, into)
    assert seen == [(into, False)]


def test_into_a_mount_point_the_log_comes_last(
    store: StoppedStore, place: LocalPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.grow(30)
    back_up(store, place)
    volume = tmp_path / "volume"
    volume.mkdir()
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == volume)
    (volume / "lost+found").mkdir()  # as a fresh file system has it
    assert killed_at(1, lambda report: restored(place, volume, report=report))
    assert sorted(os.listdir(volume)) == [".volume.restoring", "lost+found"]
    moved: list[str] = []
    rename = os.rename

    def noted(source: Path, target: Path) -> None:
        if Path(target).parent == volume:
            moved.append(Path(target).name)
        rename(source, target)

    monkeypatch.setattr("os.rename", noted)
    restored(place, volume)
    assert moved[-1] == "commitlog" and "config" in moved
    monkeypatch.undo()
    assert bodies_in(volume) == store.bodies
    assert not [name for name in os.listdir(volume) if name.startswith(".")]
    with pytest.raises(BackupError, match="not empty"):
        restored(place, volume)


def test_a_uri_that_pyarrow_opens_holds_the_same_backup(
    store: StoppedStore, tmp_path: Path
) -> None:
    fs = pytest.importorskip("pyarrow.fs", reason="pip install 'tandemmq[audit]'")
    from tandemmq.backup.arrow import ArrowPlace

    root = str(tmp_path / "objects")
    place = ArrowPlace(root, fs.LocalFileSystem())
    for _ in range(2):
        store.grow(40, progress=1)
        back_up(store, place)
    found = verified(place)
    assert (found.problems, found.records) == ([], 80)
    restored(place, tmp_path / "new")
    assert bodies_in(tmp_path / "new") == store.bodies

    (name, path), *_ = files_of(LocalPlace(Path(root)))
    path.unlink()
    (problem,) = verified(place).problems
    assert f"{name} is missing" in problem
    with pytest.raises(FileExistsError):
        place.publish(f"{GROUP}/{chain_in(place)[0].chain}/00000001.json", b"again")


def test_places_are_directories_file_uris_or_what_pyarrow_knows(tmp_path: Path) -> None:
    assert isinstance(open_place(f"file://{tmp_path}/a%20b"), LocalPlace)
    assert open_place(f"file://{tmp_path}/a%20b").name == f"{tmp_path}/a b"
    with pytest.raises(BackupError, match="cannot open nosuch://"):
        open_place("nosuch://bucket/x")
    with pytest.raises(NoBackup):
        open_place(str(tmp_path / "nothing"), reading=True)
    (tmp_path / "file").touch()
    with pytest.raises(BackupError, match="not a directory"):
        open_place(str(tmp_path / "file"))
