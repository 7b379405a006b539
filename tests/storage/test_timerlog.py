"""Timer wheel, timer log and timer checkpoint, against what RocketMQ 5.3.3 wrote."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tandemmq.storage import (
    CorruptFile,
    Slot,
    TimerCheckpoint,
    TimerLog,
    TimerUnit,
    TimerWheel,
    load_timer_checkpoint,
    save_timer_checkpoint,
    sync_files,
    write_wheel,
)
from tandemmq.storage.timerlog import BLANK, BLANK_MAGIC, NO_UNIT

GOLDEN = Path(__file__).parents[1] / "golden" / "stores"
FILE_BYTES = 52_000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN / "533-clean.tar.xz") as archive:
        archive.extractall(root, filter="data")
    with (GOLDEN / "533-clean.jsonl").open() as lines:
        described = json.loads(next(lines))
    return root / "533-clean", described


def units_of(log: TimerLog) -> list[tuple[int, TimerUnit | None]]:
    return [
        (start + at * 52, log.unit(start + at * 52))
        for start, fields in log.fields()
        for at, _ in enumerate(fields)
    ]


def unit(number: int, previous: int = NO_UNIT) -> TimerUnit:
    return TimerUnit(previous, 1, 1_000 * number, 5_000, 300 * number, 300, 7)


def test_the_units_of_a_recorded_store_are_read(recorded: tuple[Path, dict[str, Any]]) -> None:
    root, described = recorded
    log = TimerLog(root / "timerlog", FILE_BYTES)
    log.load()
    expected = described["timerLog"]["units"]
    assert log.end == 52 * len(expected)
    for position, _, previous, magic, write_ms, delay_ms, offset, size, hashed, _ in expected:
        found = TimerUnit(previous, magic, write_ms, delay_ms, offset, size, hashed)
        assert log.unit(position) == found
        assert found.encode() == (root / "timerlog" / f"{0:020}").read_bytes()[position:][:52]
    log.close()


def test_the_slots_of_a_recorded_store_are_read(recorded: tuple[Path, dict[str, Any]]) -> None:
    root, described = recorded
    wheel = TimerWheel(root / "timerwheel", 1_000)
    wheel.load()
    expected = {row[1] * 1000: Slot(*row[2:5]) for row in described["timerWheelSlots"]["rows"]}
    assert dict(wheel.pending(0)) == expected
    for slot_ms, slot in expected.items():
        assert wheel.slot(slot_ms) == slot
        assert wheel.slot(slot_ms + 14 * 86_400_000) == Slot(), "the same place, another time"
    wheel.close()


def test_the_checkpoint_of_a_recorded_store_is_read_and_not_taken_for_ours(
    recorded: tuple[Path, dict[str, Any]],
) -> None:
    root, _ = recorded
    found = load_timer_checkpoint(root / "config" / "timercheck")
    assert found[:4] == (1795259964000, 520, 10, 10)
    assert found[4:7] == (0, 1795259964502, 688)
    assert not found.ours
    assert found.body() == (root / "config" / "timercheck").read_bytes()[:56]


def test_a_checkpoint_is_ours_until_somebody_else_writes_into_it(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timercheck"
    ours = TimerCheckpoint(1_000, 52, 1, 1, 0, 9, 2, True, 1_000)
    save_timer_checkpoint(path, ours)
    assert load_timer_checkpoint(path) == ours
    data = path.read_bytes()
    assert len(data) == 4_096
    path.write_bytes((2_000).to_bytes(8, "big") + data[8:])  # as RocketMQ does: in its 56 bytes
    found = load_timer_checkpoint(path)
    assert found.read_ms == 2_000 and not found.ours
    assert TimerCheckpoint.decode(data[:32]).queue_offset == 1
    assert TimerCheckpoint.decode(b"short") == TimerCheckpoint()


def test_the_wheel_is_written_where_it_changed_and_read_again(tmp_path: Path) -> None:
    wheel = TimerWheel(tmp_path / "timerwheel", 1_000)
    wheel.put(1_795_000_000_000, Slot(0, 52, 2))
    wheel.put(1_795_600_000_000, Slot(104, 104, 1))
    pages = wheel.to_write()
    assert len(pages) == 2 and wheel.to_write() == []
    write_wheel(wheel.path, pages)
    stat = wheel.path.stat()
    assert stat.st_size == 38_707_200 and stat.st_blocks * 512 < 100_000  # sparse, as RocketMQ's
    again = TimerWheel(wheel.path, 1_000)
    again.load()
    assert dict(again.pending(0)) == dict(wheel.pending(0))
    wheel.clear()
    write_wheel(wheel.path, wheel.to_write())
    again = TimerWheel(wheel.path, 1_000)
    again.load()
    assert list(again.pending(0)) == []


def test_a_wheel_of_another_size_is_none(tmp_path: Path) -> None:
    (tmp_path / "timerwheel").write_bytes(bytes(64))
    with pytest.raises(CorruptFile, match="38707200"):
        TimerWheel(tmp_path / "timerwheel", 1_000).load()


def test_files_end_with_a_blank_and_the_log_goes_on(tmp_path: Path) -> None:
    log = TimerLog(tmp_path, 52 * 4 + 30)  # room for four, and a blank
    units = [unit(number) for number in range(11)]
    positions = log.positions(11)
    log.append(units[:3])
    log.append(units[3:])
    assert positions == [*range(0, 208, 52), *range(238, 446, 52), *range(476, 632, 52)]
    assert [position for position, _ in units_of(log)] == positions
    first = (tmp_path / f"{0:020}").read_bytes()
    assert BLANK.unpack_from(first, 208) == (30, 0, BLANK_MAGIC)
    assert len(first) == 238
    sync_files(log.to_sync())
    log.close()
    again = TimerLog(tmp_path, 238)
    again.load()
    assert again.end == log.end
    assert [found for _, found in units_of(again)] == units
    assert again.before(238) == 156 and again.before(0) == NO_UNIT


@pytest.mark.parametrize("kept", [0, 1, 4, 5, 9])
def test_a_cut_leaves_nothing_behind_it(tmp_path: Path, kept: int) -> None:
    log = TimerLog(tmp_path, 238)
    units = [unit(number) for number in range(10)]
    log.append(units)
    positions = [position for position, _ in units_of(log)]
    log.truncate(positions[kept])
    assert [found for _, found in units_of(log)] == units[:kept]
    log.append(units[:2])
    log.close()
    again = TimerLog(tmp_path, 238)
    again.load()
    assert [found for _, found in units_of(again)] == [*units[:kept], *units[:2]]


def test_files_of_messages_that_are_gone_are_deleted(tmp_path: Path) -> None:
    log = TimerLog(tmp_path, 238)
    log.append([unit(number) for number in range(10)])
    assert log.drop_before(300 * 3) == 0
    assert log.drop_before(300 * 3 + 1) == 1
    assert (log.start, log.unit(0)) == (238, None)
    assert log.drop_before(10_000) == 1, "the file that is written stays"


def test_what_is_no_timer_log_is_refused(tmp_path: Path) -> None:
    log = TimerLog(tmp_path, 238)
    log.append([unit(number) for number in range(10)])
    log.close()
    with pytest.raises(CorruptFile, match="mappedFileSizeTimerLog"):
        TimerLog(tmp_path, 476).load()
    (tmp_path / f"{238:020}").unlink()
    with pytest.raises(CorruptFile, match="next file"):
        TimerLog(tmp_path, 238).load()
