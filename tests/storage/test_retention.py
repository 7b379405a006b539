"""When log files go: by age at the chosen hour, for space, by hand; and when they must not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tandemmq.storage import Draft, MessageStore, Problem, StorageConfig, open_store
from tandemmq.storage.retention import Retention, parse_hours, used_percent

HOUR_MS = 3_600_000
T0 = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.ms = T0
        self.mono = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.mono

    def pass_ms(self, ms: int) -> None:
        self.ms += ms
        self.mono += ms


class World:
    """A store with files of an age, a disk of a fullness, an hour of the day."""

    def __init__(self, root: Path, stack: ExitStack, **settings: Any) -> None:
        self.clock = Clock()
        sizes = {"segment_bytes": 1024, "reserved_hours": 72, "delete_pause_ms": 0}
        config = StorageConfig(root=str(root), **{**sizes, **settings})
        self.store: MessageStore = stack.enter_context(open_store(config, self.clock))
        self.percent = 10
        self.hour = 12
        retention: Retention = self.store.retention
        retention.usage = lambda path: (1000, self.percent * 10, 1000 - self.percent * 10)
        retention.local_hour = lambda ms: self.hour

    def fill(self, files: int) -> None:
        while len(self.store.log.run.segments) < files:
            self.store.put(Draft("T", 0, bytes(300)))
        while self.store.dispatch():
            pass
        self.store.flush_queues(0)
        for segment in self.store.log.run.segments:
            os.utime(segment.path, (self.clock.ms / 1000, self.clock.ms / 1000))

    def deleted(self) -> int:
        logs = [path for path in self.store.clean() if path.parent.name == "commitlog"]
        assert self.store.free_retired() == 0
        assert not any(path.exists() for path in logs)
        return len(logs)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:
        yield lambda **settings: World(tmp_path / "store", stack, **settings)


def test_old_files_go_at_the_hour_and_only_then(world: Any) -> None:
    w = world()
    w.fill(5)
    w.clock.pass_ms(72 * HOUR_MS - 1)
    w.hour = 4
    assert w.deleted() == 0
    w.clock.pass_ms(1)
    w.hour = 5
    assert w.deleted() == 0
    w.hour = 4
    assert w.deleted() == 4, "never the last"
    assert w.store.min_offset("T", 0) > 0


def test_several_hours_may_be_chosen(world: Any) -> None:
    w = world(delete_when="01;04;23")
    w.fill(3)
    w.clock.pass_ms(100 * HOUR_MS)
    w.hour = 22
    assert w.deleted() == 0
    w.hour = 23
    assert w.deleted() == 2


@pytest.mark.parametrize("text", ["24", "x", "-1", "4,5"])
def test_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_hours(text)


def test_one_pass_takes_a_bounded_number(world: Any) -> None:
    w = world(delete_files_max=3)
    w.fill(9)
    w.clock.pass_ms(100 * HOUR_MS)
    w.hour = 4
    assert [w.deleted() for _ in range(4)] == [3, 3, 2, 0]


def test_young_file_stops_the_pass_even_when_later_ones_look_older(world: Any) -> None:
    w = world()
    w.fill(5)
    w.clock.pass_ms(100 * HOUR_MS)
    touched = w.store.log.run.segments[1]
    os.utime(touched.path, (w.clock.ms / 1000, w.clock.ms / 1000))
    w.hour = 4
    assert w.deleted() == 1


def test_copied_files_are_as_old_as_their_messages_not_as_their_copy(world: Any) -> None:
    w = world()
    w.fill(4)
    for segment in w.store.log.run.segments:
        os.utime(segment.path, (0, 0))  # looks ancient, the messages are of now
    w.hour = 4
    assert w.deleted() == 0


def test_disk_levels_follow_one_another(world: Any) -> None:
    w = world(delete_files_max=1)
    w.fill(12)
    flags = w.store.flags
    for percent, gone, full in [
        (75, 0, False), (76, 0, False), (85, 0, False), (86, 1, False), (90, 1, False), (91, 1, True),
        (88, 1, True), (86, 1, True), (85, 0, False),
    ]:  # fmt: skip
        w.percent = percent
        assert w.deleted() == gone, percent
        assert bool(flags.problems & Problem.DISK_FULL) == full, percent
    w.clock.pass_ms(100 * HOUR_MS)
    w.percent = 75
    assert w.deleted() == 0
    w.percent = 76
    assert w.deleted() == 1, "above the first level old files go at any hour"


def test_pressure_may_be_forbidden_to_take_young_files(world: Any) -> None:
    w = world(clean_forcibly_enabled=False)
    w.fill(4)
    w.percent = 95
    assert w.deleted() == 0
    assert not w.store.flags.writable
    w.clock.pass_ms(100 * HOUR_MS)
    assert w.deleted() == 3


def test_operator_may_ask_for_it(world: Any) -> None:
    w = world()
    w.fill(4)
    w.clock.pass_ms(100 * HOUR_MS)
    assert w.deleted() == 0
    w.store.retention.request()
    assert w.deleted() == 3


def test_forward_jump_of_the_clock_costs_one_file_per_pass_at_most(world: Any) -> None:
    w = world()
    w.fill(8)
    w.deleted()
    w.clock.ms += 400 * HOUR_MS  # wall time only
    w.hour = 4
    assert [w.deleted() for _ in range(3)] == [1, 1, 1]
    w.clock.pass_ms(72 * HOUR_MS)
    assert w.deleted() == 4, "what is old by the monotonic clock, too, goes as usual"


def test_files_whose_queue_entries_are_not_on_disk_stay(world: Any) -> None:
    w = world()
    w.fill(4)
    while len(w.store.log.run.segments) < 8:
        w.store.put(Draft("T", 0, bytes(300)))
    w.percent = 95
    assert w.deleted() == 3
    w.store.dispatch()
    assert w.deleted() == 0
    w.store.flush_queues(0)
    assert w.deleted() == 4


def test_reader_keeps_a_deleted_file_mapped_until_it_lets_go(world: Any) -> None:
    w = world()
    w.fill(3)
    record = w.store.record_at(0)
    w.percent = 95
    paths = w.store.clean()
    assert w.store.free_retired() == 2 - 1, "one is still read"
    assert not paths[0].exists(), "its space is free"
    assert bytes(record[4:8]).hex() == "daa320a7"
    record.release()
    assert w.store.free_retired() in (0, 1)


def test_usage_is_rounded_up_and_of_what_users_may_fill() -> None:
    assert used_percent((100, 50, 50)) == 50
    assert used_percent((1000, 501, 499)) == 51
    assert used_percent((200, 50, 50)) == 50  # the rest is the superuser's
    assert used_percent((0, 0, 0)) == 100
    assert 0 <= used_percent(tuple(shutil.disk_usage("/"))) <= 100


def test_files_are_deleted_one_by_one_with_a_pause_between(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = world(delete_pause_ms=100)
    w.fill(5)
    w.percent = 95
    w.store.clean()
    pauses: list[float] = []
    monkeypatch.setattr("tandemmq.storage.logfiles.time.sleep", pauses.append)
    assert w.store.free_retired() == 0
    assert pauses == [0.1, 0.1, 0.1]
