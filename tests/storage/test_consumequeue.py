"""Consume queues: entries at their places, files made and mapped only as needed, nothing trusted twice."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from newinputs import new_inputs

from tandemmq.storage import CorruptFile, FlushFailed, NotAStore, StorageConfig
from tandemmq.storage.checkpoint import QueueMark
from tandemmq.storage.consumequeue import GAP_ENTRIES_MAX, ConsumeQueue
from tandemmq.storage.consumequeues import ConsumeQueues
from tandemmq.storage.queuefiles import ALLOCATE_BYTES_MIN, BLANK_ENTRY, FileCache, QueueFile

FILE_BYTES = 400  # twenty entries
RECORD = 100


def config(root: Path, file_bytes: int = FILE_BYTES) -> StorageConfig:
    return StorageConfig(root=str(root), queue_segment_bytes=file_bytes)


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[ConsumeQueues]:
    queues = ConsumeQueues(config(tmp_path))
    yield queues
    queues.close()


def fill(queue: ConsumeQueue, start: int, stop: int) -> None:
    """Entry q describes the record of RECORD bytes at q * RECORD."""
    for number in range(start, stop):
        assert queue.put(number * RECORD, RECORD, number % 3, number)


def reloaded(queues: ConsumeQueues, log_end: int = 1 << 62) -> ConsumeQueues:
    queues.close()
    again = ConsumeQueues(config(queues.directory.parent, queues.file_bytes))
    again.load()
    for queue in again:
        queue.recover(log_end)
    return again


def test_entries_lie_where_rocketmq_puts_them(queues: ConsumeQueues, tmp_path: Path) -> None:
    # INV-4
    queue = queues.make("TopicTest", 3)
    queue.put(0, 174, 2598919, 0)
    queue.put(348, 174, -786681338, 1)
    path = tmp_path / "consumequeue" / "TopicTest" / "3" / ("0" * 20)
    assert path.read_bytes()[:40].hex() == (
        "0000000000000000000000ae000000000027a807000000000000015c000000aeffffffffd11c3206"
    )
    assert path.stat().st_size == FILE_BYTES
    assert queue.entry(1) == (348, 174, -786681338)


def test_unknown_queue_is_empty_and_makes_no_file(queues: ConsumeQueues, tmp_path: Path) -> None:
    queue = queues.make("T", 0)
    assert (queue.min_offset, queue.max_offset, queue.physical_end) == (0, 0, -1)
    assert queue.entry(0) is None
    assert len(queue.chunk(0, 10)) == 0
    assert queues.get("T", 1) is None
    assert not (tmp_path / "consumequeue").exists()


def test_file_has_disk_space_only_where_entries_are_near(tmp_path: Path) -> None:
    queues = ConsumeQueues(config(tmp_path, 6_000_000))
    queue = queues.make("T", 0)
    path = tmp_path / "consumequeue" / "T" / "0" / ("0" * 20)
    fill(queue, 0, 1)
    assert path.stat().st_size == 6_000_000
    assert ALLOCATE_BYTES_MIN <= path.stat().st_blocks * 512 <= 2 * ALLOCATE_BYTES_MIN
    fill(queue, 1, 20_000)
    assert 400_000 <= path.stat().st_blocks * 512 <= 1_100_000
    queues.close()


def test_full_disk_is_an_error_before_a_page_is_touched(
    queues: ConsumeQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queues.make("T", 0)
    fill(queue, 0, 20)

    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                queue.put(2000, RECORD, 0, 20)
    assert queue.max_offset == 20
    fill(queue, 20, 45)
    assert queue.entry(44) == (4400, RECORD, 2)
    again = reloaded(queues)
    assert again.make("T", 0).max_offset == 45
    again.close()


def test_entry_that_is_there_already_is_not_written_again(queues: ConsumeQueues) -> None:
    queue = queues.make("T", 0)
    fill(queue, 0, 5)
    assert not queue.put(400, RECORD, 1, 4)
    assert not queue.put(
        500, RECORD, 1, 3
    )  # offset given away twice by a broker that lost an entry
    assert queue.max_offset == 5
    assert queue.entry(3) == (300, RECORD, 0)


def test_first_message_of_a_queue_may_have_any_offset(
    queues: ConsumeQueues, tmp_path: Path
) -> None:
    queue = queues.make("T", 0)
    queue.put(0, RECORD, 7, 47)
    directory = tmp_path / "consumequeue" / "T" / "0"
    assert [path.name for path in directory.iterdir()] == [f"{800:020d}"]
    assert (directory / f"{800:020d}").read_bytes()[:160] == BLANK_ENTRY * 7 + struct.pack(
        ">qiq", 0, RECORD, 7
    )
    assert (queue.min_offset, queue.max_offset) == (47, 48)
    again = reloaded(queues)
    assert (again.make("T", 0).min_offset, again.make("T", 0).max_offset) == (47, 48)
    again.close()


def test_missing_entries_become_blanks_not_a_shift(queues: ConsumeQueues) -> None:
    # INV-4
    queue = queues.make("T", 0)
    fill(queue, 0, 18)
    assert queue.put(2500, RECORD, 1, 25)
    assert queue.entry(25) == (2500, RECORD, 1)
    assert [queue.entry(number) for number in range(18, 25)] == [(0, 0x7FFFFFFF, 0)] * 7
    assert (queue.min_offset, queue.max_offset) == (0, 26)
    queue.correct_min_offset(200)
    assert queue.min_offset == 2


def test_offset_that_cannot_be_true_is_refused(queues: ConsumeQueues) -> None:
    queue = queues.make("T", 0)
    fill(queue, 0, 3)
    with pytest.raises(CorruptFile, match="queue offset"):
        queue.put(1 << 40, RECORD, 0, 3 + GAP_ENTRIES_MAX + 1)
    assert queue.max_offset == 3


def test_min_offset_follows_the_start_of_the_log(queues: ConsumeQueues) -> None:
    queue = queues.make("T", 0)
    fill(queue, 0, 50)
    for log_start, expected in [
        (0, 0),
        (1, 1),
        (100, 1),
        (2050, 21),
        (4900, 49),
        (4901, 50),
        (9999, 50),
    ]:
        queues.start_at(log_start)
        assert queue.min_offset == expected
    assert queue.max_offset == 50


def test_files_of_deleted_records_go_but_never_the_last(queues: ConsumeQueues) -> None:
    queue = queues.make("T", 0)
    fill(queue, 0, 50)
    assert queue.drop_before(1900) == []
    assert [path.name for path in queue.drop_before(1901)] == [f"{0:020d}"]
    assert len(queue.drop_before(99_999)) == 1
    assert queue.expired(99_999)
    assert not queue.expired(4900)
    queues.start_at(99_999)
    assert (queue.min_offset, queue.max_offset, queue.file_count) == (50, 50, 1)
    again = reloaded(queues)
    assert again.make("T", 0).max_offset == 50
    again.close()


def test_chunk_ends_with_the_file_and_is_a_copy(queues: ConsumeQueues) -> None:
    queue = queues.make("T", 0)
    fill(queue, 0, 25)
    assert len(queue.chunk(15, 100)) == 5 * 20
    assert len(queue.chunk(20, 3)) == 3 * 20
    assert len(queue.chunk(20, 100)) == 5 * 20
    assert len(queue.chunk(25, 1)) == 0
    kept = queue.chunk(0, 20)
    queue.reset()
    assert struct.unpack_from(">qiq", kept, 380) == (1900, RECORD, 1)
    assert queue.next_file_offset(15) == queue.next_file_offset(0) == 20


def test_offset_by_time_takes_the_first_at_or_after_and_the_last_at_or_before(
    queues: ConsumeQueues,
) -> None:
    queue = queues.make("T", 0)
    queue.put(500, RECORD, 0, 5)
    for number in (6, 7, 8):
        queue.put(number * RECORD, RECORD, 0, number)
    times = {500: 1000, 600: 1010, 700: 1020, 800: 1030}
    lower = [queue.offset_by_time(times.get, ms) for ms in (0, 1000, 1005, 1010, 1030, 2000)]
    upper = [
        queue.offset_by_time(times.get, ms, upper=True) for ms in (0, 1000, 1005, 1010, 1030, 2000)
    ]
    assert lower == [5, 5, 6, 6, 8, 9]
    assert upper == [5, 5, 5, 6, 8, 8]
    same = {500: 7, 600: 7, 700: 7, 800: 9}
    assert queue.offset_by_time(same.get, 7) == 5
    assert queue.offset_by_time(same.get, 7, upper=True) == 7


def test_truncation_leaves_zeros_behind_and_goes_on(queues: ConsumeQueues, tmp_path: Path) -> None:
    queue = queues.make("T", 0)
    fill(queue, 0, 50)
    queue.flush()
    queue.truncate(2150)  # entry 21 ends at 2200
    assert (queue.max_offset, queue.physical_end, queue.file_count) == (21, 2100, 2)
    path = tmp_path / "consumequeue" / "T" / "0" / f"{400:020d}"
    assert path.read_bytes()[20:] == bytes(380)
    assert queue.flushed < 21, "the zeros must reach the disk too"
    fill(queue, 21, 30)
    assert queue.entry(29) == (2900, RECORD, 2)
    queue.truncate(0)
    assert (queue.max_offset, queue.physical_end) == (0, -1)


def test_mark_of_a_clean_stop_saves_the_search_only_when_the_file_agrees(
    queues: ConsumeQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queues.make("T", 0)
    fill(queue, 0, 25)
    queues.close()

    def loaded() -> ConsumeQueue:
        again = ConsumeQueues(config(queues.directory.parent))
        again.load()
        found = again.get("T", 0)
        assert found is not None
        return found

    searched: list[int] = []
    real = QueueFile.measure

    def noted(self: QueueFile, log_end: int) -> tuple[int, int]:
        searched.append(log_end)
        return real(self, log_end)

    monkeypatch.setattr(QueueFile, "measure", noted)
    queue = loaded()
    queue.recover(9999, QueueMark(0, 25, 2500))
    assert (queue.max_offset, queue.physical_end, searched) == (25, 2500, [])
    for wrong in (QueueMark(0, 24, 2400), QueueMark(0, 25, 2400), QueueMark(0, 60, 6000)):
        queue = loaded()
        queue.recover(9999, wrong)
        assert (queue.max_offset, queue.physical_end) == (25, 2500)
    assert len(searched) >= 3


def test_least_used_files_are_unmapped_and_come_back(tmp_path: Path) -> None:
    queues = ConsumeQueues(config(tmp_path))
    queues.cache.limit = 16
    for number in range(50):
        for queue_id in range(40):
            queues.make("T", queue_id).put(number * RECORD, RECORD, queue_id, number)
        assert len(queues.cache.mapped) <= 16
    for queue_id in range(40):
        queue = queues.make("T", queue_id)
        assert [queue.entry(number) for number in (0, 19, 20, 49)] == [
            (number * RECORD, RECORD, queue_id) for number in (0, 19, 20, 49)
        ]
    assert queues.flush()
    queues.close()
    assert queues.cache.mapped == {}


def test_file_in_constant_use_stays_mapped(tmp_path: Path) -> None:
    queues = ConsumeQueues(config(tmp_path))
    queues.cache.limit = 16
    hot = queues.make("hot", 0)
    fill(hot, 0, 1)
    file = next(iter(queues.cache.mapped))
    for number in range(100):
        hot.put((number + 1) * RECORD, RECORD, 0, number + 1) if number < 18 else hot.entry(3)
        fill(queues.make("cold", number), 0, 1)
        if number == 60:
            assert file in queues.cache.mapped
    queues.close()


def test_cache_leaves_room_for_other_descriptors() -> None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert FileCache().limit <= max(16, soft // 4)


def test_names_that_are_no_directories_get_no_queue(queues: ConsumeQueues) -> None:
    for topic in (b"../x", b"a/b", b"", b".", b"..", b"nul\0", b"\xff\xfe", b"x" * 256):
        assert queues.find_end(topic, 0, 0) is None
    assert queues.find_end(b"fine", -1, 0) is None
    assert queues.topics() == []
    with pytest.raises(ValueError, match="no queue"):
        queues.make("../x", 0)


def test_strange_directories_are_skipped_and_wrong_files_refused(tmp_path: Path) -> None:
    base = tmp_path / "consumequeue"
    (base / "T" / "notes").mkdir(parents=True)
    (base / "T" / "0").mkdir()
    (base / "readme").write_text("x")
    (base / "T" / "0" / "backup~").write_text("x")
    queues = ConsumeQueues(config(tmp_path))
    queues.load()
    assert [(queue.topic, queue.queue_id, queue.file_count) for queue in queues] == [("T", 0, 0)]
    (base / "T" / "0" / f"{0:020d}").write_bytes(bytes(FILE_BYTES + 20))
    queues = ConsumeQueues(config(tmp_path))
    with pytest.raises(NotAStore, match="420 bytes"):
        queues.load()
    (base / "T" / "0" / f"{0:020d}").write_bytes(b"")
    queues = ConsumeQueues(config(tmp_path))
    queues.load()
    assert not (base / "T" / "0" / f"{0:020d}").exists(), "an empty last file is half a creation"


def test_flush_reports_what_is_on_disk_and_a_failure_is_final(
    queues: ConsumeQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queues.make("T", 0)
    fill(queue, 0, 5)
    assert not queue.flush(pages_min=1)
    assert queue.flush()
    assert queue.flushed == 5
    fill(queue, 5, 6)

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(FlushFailed, match="Input/output error"):
        queues.flush()


def test_deleted_queue_leaves_nothing_and_begins_at_zero(
    queues: ConsumeQueues, tmp_path: Path
) -> None:
    for queue_id in (0, 1):
        fill(queues.make("T", queue_id), 0, 30)
    queues.delete_queue("T", 0)
    assert (tmp_path / "consumequeue" / "T" / "1").is_dir()
    queues.delete_topic("T")
    assert list((tmp_path / "consumequeue").iterdir()) == []
    assert queues.ends == {}
    fill(queues.make("T", 0), 0, 1)


def test_log_begins_a_queue_anew(queues: ConsumeQueues) -> None:
    queue = queues.make("T", 0)
    fill(queue, 0, 30)
    assert queue.put(5000, RECORD, 9, 0)
    assert (queue.max_offset, queue.entry(0)) == (1, (5000, RECORD, 9))


def test_min_offset_of_a_queue_begun_anew_owes_nothing_to_the_old_one(
    queues: ConsumeQueues,
) -> None:
    queue = queues.make("T", 0)
    fill(queue, 0, 30)
    queues.start_at(2000)
    assert queue.min_offset == 20
    for number in range(30):
        queue.put(3000 + number * RECORD, RECORD, 0, number)
    queues.start_at(3100)
    assert queue.min_offset == 1


@pytest.mark.fuzz
def test_20_000_damaged_queue_files_are_cut_to_something_readable() -> None:
    rng = new_inputs()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as root:
        directory = Path(root) / "consumequeue" / "T" / "0"
        directory.mkdir(parents=True)
        good = b"".join(struct.pack(">qiq", n * RECORD, RECORD, n) for n in range(15)).ljust(
            FILE_BYTES, b"\0"
        )
        blanks = BLANK_ENTRY * 4 + good[80:]
        kept = 0
        for _ in range(20_000):
            data = bytearray(rng.choice([good, blanks]))
            for _ in range(rng.randrange(1, 6)):
                at = rng.randrange(FILE_BYTES)
                data[at : at + rng.choice([1, 8, 20, 60])] = rng.choice(
                    [b"\0", b"\xff", rng.randbytes(8), rng.randbytes(20), bytes(60)]
                )
            path = directory / f"{0:020d}"
            path.write_bytes(data[:FILE_BYTES].ljust(FILE_BYTES, b"\0"))
            queues = ConsumeQueues(config(Path(root)))
            queues.load()
            queue = queues.make("T", 0)
            queue.recover(rng.choice([700, 1500, 1 << 40]))
            assert 0 <= queue.min_offset <= queue.max_offset <= 20
            for number in range(queue.max_offset):
                entry = queue.entry(number)
                assert entry is not None
            assert not any(path.read_bytes()[20 * queue.max_offset :])
            kept += queue.max_offset
            queue.put(1 << 50, RECORD, 1, queue.max_offset)
            queues.close()
        assert kept > 50_000


@pytest.fixture
def reopened(tmp_path: Path) -> Iterator[Callable[[], ConsumeQueues]]:
    """Calling it closes the queues, if they are open, and finds them on the disk again."""
    last: list[ConsumeQueues] = []

    def reopen() -> ConsumeQueues:
        if last:
            last.pop().close()
        queues = ConsumeQueues(config(tmp_path))
        last.append(queues)
        queues.load()
        return queues

    yield reopen
    last.pop().close()


@pytest.mark.parametrize("start", [1, 19, 20, 27, 40])
def test_queue_can_begin_behind_messages_that_were_in_another_log(
    reopened: Callable[[], ConsumeQueues], start: int
) -> None:
    queues = reopened()
    assert queues.begin("T", 0, start)
    queue = queues.make("T", 0)
    assert (queue.min_offset, queue.max_offset, queue.physical_end) == (start, start, -1)
    assert queue.agrees_with(QueueMark(queue.first_offset, start, -1))
    queues.flush()

    queue = reopened().make("T", 0)
    queue.recover(log_end=5 * RECORD)
    assert (queue.min_offset, queue.max_offset) == (start, start)
    assert queue.put(2 * RECORD, RECORD, 0, start)
    assert (queue.min_offset, queue.max_offset) == (start, start + 1)
    queue.truncate(2 * RECORD)
    assert (queue.min_offset, queue.max_offset) == (start, start)


def test_queue_that_describes_nothing_can_begin_further_on_and_no_other_can(
    queues: ConsumeQueues,
) -> None:
    for start in (7, 7, 30, GAP_ENTRIES_MAX + 100):
        assert queues.describes_nothing("T", 0)
        assert queues.begin("T", 0, start)
        assert queues.make("T", 0).max_offset == start
    queue = queues.make("T", 0)
    queue.put(0, RECORD, 0, queue.max_offset)
    assert not queues.describes_nothing("T", 0)
    assert not queues.begin("T", 0, queue.max_offset + 10)


@pytest.mark.parametrize(("start", "arrives"), [(7, 3), (27, 3), (27, 20), (40, 39), (40, 0)])
def test_messages_that_come_after_all_take_their_places(
    queues: ConsumeQueues, start: int, arrives: int
) -> None:
    queues.begin("T", 0, start)
    queue = queues.make("T", 0)
    assert queue.put(0, RECORD, 0, arrives)
    assert queue.put(RECORD, RECORD, 0, arrives + 1)
    assert (queue.min_offset, queue.max_offset) == (arrives, arrives + 2)
    assert not queue.put(2 * RECORD, RECORD, 0, max(1, arrives)), "an offset that is taken"


def test_queue_that_cannot_begin_there_has_not_begun(
    queues: ConsumeQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: QueueFile, start: int, position: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(QueueFile, "allocate", refuse)
        with pytest.raises(OSError, match="full"):
            queues.begin("T", 0, 27)
    queue = queues.make("T", 0)
    assert (queue.min_offset, queue.max_offset, queue.file_count) == (0, 0, 0)
    assert queues.begin("T", 0, 27) and queue.max_offset == 27


def test_a_start_of_which_the_disk_has_a_part_is_made_good(
    reopened: Callable[[], ConsumeQueues],
) -> None:
    queues = reopened()
    queues.begin("T", 0, 37)
    name = queues.make("T", 0)._files[0].name
    queues = reopened()
    with open(name, "r+b") as file:  # as a power cut leaves it
        file.seek(5 * 20)
        file.write(bytes(FILE_BYTES - 5 * 20))
    queue = queues.make("T", 0)
    queue.recover(log_end=RECORD)
    assert queue.max_offset == 25 and queues.describes_nothing("T", 0)
    assert queues.begin("T", 0, 37) and queue.max_offset == 37
