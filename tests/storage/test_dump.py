"""Inspection: what is in a store, and every kind of damage told apart from what a crash leaves."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tandemmq.storage import (
    Draft,
    MessageStore,
    NotAStore,
    Report,
    StorageConfig,
    encode_properties,
    inspect_store,
    jsonfile,
    open_store,
)


def config(root: Path) -> StorageConfig:
    return StorageConfig(
        root=str(root),
        segment_bytes=4096,
        queue_segment_bytes=200,
        index_slots=20,
        index_entries=30,
    )


def filled(root: Path) -> Path:
    with open_store(config(root)) as store:
        put(store, 40)
    jsonfile.save(root / "config" / "topics.json", {"topicConfigTable": {"T": {}}})
    return root


def put(store: MessageStore, count: int) -> None:
    for number in range(count):
        store.put(Draft("T", number % 2, bytes(100), encode_properties({"KEYS": f"k{number}"})))
    while store.dispatch():
        pass


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_sound_store_is_described_and_left_alone(tmp_path: Path) -> None:
    root = filled(tmp_path / "store")
    before = snapshot(root)
    report = inspect_store(root, config(root))
    assert snapshot(root) == before
    assert report.sound
    assert (report.records, report.log_start, report.running_or_crashed) == (40, 0, False)
    assert [
        (queue.topic, queue.queue_id, queue.min_offset, queue.max_offset) for queue in report.queues
    ] == [
        ("T", 0, 0, 20),
        ("T", 1, 0, 20),
    ]
    assert sum(entries for _, entries in report.index_files) == 40
    text = "\n".join(report.lines())
    assert "state closed cleanly" in text
    assert "queue T-1 min=0 max=20 files=2" in text
    assert text.endswith("sound")


def test_delays_of_another_setting_are_no_damage(tmp_path: Path) -> None:
    """An entry of the delay topic holds when it is due: what messageDelayLevel said, which no file of a store says."""
    root = tmp_path / "store"
    made = msgspec.structs.replace(config(root), delay_levels="1s 1h")
    with open_store(made) as store:
        store.put(Draft("SCHEDULE_TOPIC_XXXX", 1, b"late", encode_properties({"DELAY": "2"})))
        while store.dispatch():
            pass
    report = inspect_store(root)
    assert report.sound, report.problems
    assert any("messageDelayLevel" in note for note in report.notes)
    assert not inspect_store(root, made).notes


def test_a_queue_of_extended_entries_is_one_problem(tmp_path: Path) -> None:
    """RocketMQ's enableConsumeQueueExt, of which a queue in use may have millions."""
    root = filled(tmp_path / "store")
    for path in (root / "consumequeue" / "T" / "1").iterdir():
        data = bytearray(path.read_bytes())
        for number in range(10):
            struct.pack_into(">q", data, number * 20 + 12, -(2**63) + number * 20)
        path.write_bytes(data)
    report = inspect_store(root, config(root))
    (problem,) = report.problems
    assert "queue T-1: 20 entries" in problem and "enableConsumeQueueExt" in problem


def test_sizes_are_taken_from_the_files(tmp_path: Path) -> None:
    root = filled(tmp_path / "store")
    report = inspect_store(root)
    assert report.records == 40
    assert report.problems == []
    assert "another number of slots" in report.notes[0] and "no damage" in report.notes[0]


def test_running_store_can_be_looked_at(tmp_path: Path) -> None:
    with open_store(config(tmp_path)) as store:
        put(store, 10)
        store.put(Draft("T", 0, b"not dispatched"))
        report = inspect_store(tmp_path, config(tmp_path))
        assert report.problems == []
        assert report.running_or_crashed
        assert "T-0: lacks 1 messages" in "\n".join(report.notes)
        put(store, 1)


def test_directory_without_a_log_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="neither a commitlog"):
        inspect_store(tmp_path)


def overwrite(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "body": (
        lambda root: overwrite(root / "commitlog" / ("0" * 20), 1000, b"\xff" * 9),
        "log ends at",
    ),
    "records behind the end": (
        lambda root: overwrite(root / "commitlog" / ("0" * 20), 0, bytes(9)),
        "records behind the log's end",
    ),
    "queue missing": (
        lambda root: shutil.rmtree(root / "consumequeue" / "T" / "1"),
        "queue T-1 is missing",
    ),
    "queue short": (
        lambda root: overwrite(root / "consumequeue" / "T" / "1" / f"{200:020d}", 100, bytes(100)),
        "queue T-1: lacks 5 messages of the log, first 15",
    ),
    "queue ahead": (
        lambda root: overwrite(
            root / "consumequeue" / "T" / "1" / f"{200:020d}",
            180,
            struct.pack(">qiq", 1 << 40, 5, 5),
        ),
        "entry 19 points behind the log's end",
    ),
    "entry wrong": (
        lambda root: overwrite(root / "consumequeue" / "T" / "0" / ("0" * 20), 59, b"\x01"),
        "queue T-0: entry 2 is",
    ),
    "entry blank": (
        lambda root: overwrite(
            root / "consumequeue" / "T" / "0" / ("0" * 20),
            40,
            struct.pack(">qiq", 0, 0x7FFFFFFF, 0),
        ),
        "queue T-0: entry 2 is blank",
    ),
    "index ahead": (
        lambda root: overwrite(max((root / "index").iterdir()), 24, struct.pack(">q", 1 << 40)),
        "points behind the log's end",
    ),
    "checkpoint ahead": (
        lambda root: overwrite(root / "checkpoint", 0, struct.pack(">q", 1 << 60)),
        "checkpoint vouches for",
    ),
    "config": (
        lambda root: (root / "config" / "topics.json").write_text("{oops"),
        "config file unreadable",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    root = filled(tmp_path / "store")
    harm, words = DAMAGE[damage]
    harm(root)
    report = inspect_store(root, config(root))
    assert any(words in problem for problem in report.problems), report.problems
    assert list(report.lines())[-1].startswith("NOT SOUND")


@pytest.mark.parametrize(
    "damage", ["body", "queue missing", "queue short", "queue ahead", "index ahead"]
)
def test_what_a_crash_may_leave_is_a_note(tmp_path: Path, damage: str) -> None:
    root = filled(tmp_path / "store")
    (root / "abort").write_text("1")
    (root / "queuestate").unlink()
    harm, words = DAMAGE[damage]
    harm(root)
    report = inspect_store(root, config(root))
    assert any(words in note for note in report.notes), report.notes
    if damage != "body":
        assert report.problems == []
    with open_store(config(root)):
        pass
    assert inspect_store(root, config(root)).problems == []


def test_deleted_topic_is_no_damage(tmp_path: Path) -> None:
    root = filled(tmp_path / "store")
    with open_store(config(root)) as store:
        store.delete_topic("T")
    report = inspect_store(root, config(root))
    assert report.problems == []
    assert any("it was deleted" in note for note in report.notes)


def test_queues_that_were_all_moved_away_are_derived_and_no_damage(tmp_path: Path) -> None:
    root = filled(tmp_path / "store")
    shutil.rmtree(root / "consumequeue")
    report = inspect_store(root, config(root))
    assert report.problems == []
    assert sum("will be derived at the start" in note for note in report.notes) == 2
    with open_store(config(root)) as store:
        assert store.max_offset("T", 1) == 20
    assert inspect_store(root, config(root)).notes == []


def test_queues_of_a_log_that_rocketmq_had_elsewhere_are_removed_and_no_damage(
    tmp_path: Path,
) -> None:
    root = filled(tmp_path / "store")
    shutil.rmtree(root / "commitlog")
    assert inspect_store(root, config(root)).problems, "ours had its log here"
    for ours in ("queuestate", "checkpoint"):
        (root / ours).unlink()
    report = inspect_store(root, config(root))
    assert report.problems == []
    assert sum("the start removes them" in note for note in report.notes) == 2
    with open_store(config(root)) as store:
        assert store.max_offset("T", 1) == 0
    assert inspect_store(root, config(root)).notes == []


def test_texts_are_bounded() -> None:
    report = Report("x")
    from tandemmq.storage.dump import TEXTS_MAX, _add

    for number in range(TEXTS_MAX + 5):
        _add(report.notes, f"note {number}")
    assert len(report.notes) == TEXTS_MAX
