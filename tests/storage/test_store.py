"""The store as its users see it: limits, positions, full disks, broken derived files, queries, topics."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tandemmq.storage import (
    BatchItem,
    Draft,
    FlushFailed,
    FlushMode,
    GetStatus,
    MessageIllegal,
    MessageStore,
    MessageTooLarge,
    NotAStore,
    Owner,
    PropertiesTooLarge,
    StorageConfig,
    StoreIsFull,
    StoreLocked,
    StoreNotWritable,
    decode,
    encode_properties,
    join_batch,
    open_store,
    putrules,
)
from tandemmq.storage.flags import Problem
from tandemmq.storage.segment import Segment
from tandemmq.storage.setaside import FileRange

T0 = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.ms = T0
        self.mono = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.mono


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Opener:
    """Calling it opens the store in root; stop() closes it as leaving open_store() does."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.root = root
        self.clock = clock
        self.stack = ExitStack()

    def __call__(self, **settings: Any) -> MessageStore:
        small = {"segment_bytes": 1 << 16, "index_slots": 50, "index_entries": 1000}
        config = StorageConfig(root=str(self.root), **{**small, **settings})
        return self.stack.enter_context(open_store(config, self.clock, self.root / "no boot id"))

    def stop(self) -> None:
        self.stack.close()


@pytest.fixture
def opened(tmp_path: Path, clock: Clock) -> Iterator[Opener]:
    opener = Opener(tmp_path / "store", clock)
    yield opener
    opener.stop()


def draft(topic: str = "T", queue_id: int = 0, body: bytes = b"body", **properties: str) -> Draft:
    return Draft(topic, queue_id, body, encode_properties(properties))


def put(store: MessageStore, count: int = 1, topic: str = "T", queue_id: int = 0) -> list[int]:
    placed = [store.put(draft(topic, queue_id, KEYS=f"k{n}")).offset for n in range(count)]
    while store.dispatch():
        pass
    return placed


def fail_with(code: int) -> Any:
    def fail(*arguments: Any, **keywords: Any) -> None:
        raise OSError(code, os.strerror(code))

    return fail


# --- puts ---


def test_placed_tells_where_a_message_went(opened: Opener) -> None:
    store = opened()
    first, second = store.put(draft()), store.put(draft())
    assert (first.offset, first.queue_offset, second.offset, second.queue_offset) == (
        0,
        0,
        first.end,
        1,
    )
    assert store.end == second.end
    assert (store.next_offset("T", 0), store.max_offset("T", 0)) == (2, 0)
    store.dispatch()
    assert store.max_offset("T", 0) == 2
    assert (store.stats.appended_messages, store.stats.appended_bytes) == (2, second.end)


def test_limits_are_named_and_nothing_is_written(opened: Opener) -> None:
    store = opened(body_bytes_max=100)
    for bad, error, words in [
        (draft("x" * 128), MessageIllegal, "128 bytes, allowed are 1 to 127"),
        (draft("%RETRY%" + "x" * 249), MessageIllegal, "256 bytes, allowed are 1 to 255"),
        (draft(""), MessageIllegal, "0 bytes"),
        (draft(queue_id=-1), MessageIllegal, "queue id is -1"),
        (draft(body=bytes(101)), MessageTooLarge, "101 bytes, maxMessageSize is 100"),
        (Draft("T", 0, b"", bytes(32_768)), PropertiesTooLarge, "32768 bytes"),
    ]:
        with pytest.raises(error, match=words):
            store.put(bad)
    assert (store.end, store.next_offset("T", 0)) == (0, 0)
    store.put(draft("%RETRY%" + "x" * 200, body=bytes(100)))


def test_batch_lies_together_and_counts_up(opened: Opener) -> None:
    store = opened()
    put(store, 3)
    items = [BatchItem(n, memoryview(b"body%d" % n), b"TAGS\x01a\x02") for n in range(5)]
    placed = store.put_batch(draft(body=join_batch(items), CLUSTER="c"))
    assert placed.first_queue_offset == 3
    assert len(placed.offsets) == 5
    store.dispatch()
    result = store.get("T", 0, 3, 32)
    records = [decode(record) for record in result.records]
    assert [record.body for record in records] == [b"body%d" % n for n in range(5)]
    assert {record.properties for record in records} == {b"TAGS\x01a\x02CLUSTER\x01c\x02"}
    assert [record.physical_offset for record in records] == placed.offsets
    result.records.clear()
    with pytest.raises(MessageTooLarge, match="maxMessageSize"):
        store.put_batch(draft(body=join_batch([BatchItem(0, memoryview(bytes(3 << 20)), b"")] * 2)))


def test_batch_moves_to_the_next_file_as_a_whole(opened: Opener) -> None:
    store = opened(segment_bytes=2048)
    store.put(draft(body=bytes(1500)))
    placed = store.put_batch(
        draft(body=join_batch([BatchItem(0, memoryview(bytes(200)), b"")] * 3))
    )
    assert placed.offsets[0] == 2048


def test_store_time_never_goes_back(opened: Opener, clock: Clock) -> None:
    store = opened()
    put(store)
    clock.ms -= 5000
    put(store)
    assert store.store_ms("T", 0, 0) == store.store_ms("T", 0, 1) == T0


def test_flow_control_refuses_puts_until_dispatch_catches_up(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(putrules, "WAITING_RECORDS_MAX", 10)
    opened_store = opened()
    for _ in range(11):
        opened_store.put(draft())
    assert opened_store.dispatch_behind
    with pytest.raises(StoreNotWritable, match="11 messages wait"):
        opened_store.put(draft())
    opened_store.dispatch(5)
    opened_store.put(draft())
    assert opened_store.waiting_records == 7


# --- what consumers may see ---


def test_sync_flush_shows_messages_once_they_are_on_disk(opened: Opener) -> None:
    # INV-3
    store = opened(flush_mode=FlushMode.SYNC)
    store.put(draft())
    assert store.dispatch() == 0
    assert store.get("T", 0, 0, 1).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert store.flush_log() == store.end
    assert store.dispatch() == 1


def test_messages_that_the_owner_does_not_confirm_are_held_back(opened: Opener) -> None:
    store = opened()
    first = store.put(draft())
    store.put(draft())
    store.belong_to(Owner(confirmed=lambda: first.end))
    assert store.dispatch() == 1
    assert store.max_offset("T", 0) == 1
    assert store.dispatch_backlog_bytes == 0
    store.belong_to(Owner())
    assert store.dispatch() == 1


def test_dispatching_beyond_the_end_of_the_log_is_a_bug(opened: Opener) -> None:
    # INV-3
    store = opened()
    store.put(draft())
    with pytest.raises(AssertionError, match="the log ends at"):
        store.dispatcher.step(1, store.end + 1)
    assert store.dispatcher.position == 0


def test_arrivals_are_reported_once_per_step(opened: Opener) -> None:
    store = opened()
    seen: list[Any] = []
    store.belong_to(Owner(arrived=seen.append))
    for queue_id in (0, 1, 0):
        store.put(draft(queue_id=queue_id))
    assert store.dispatch(2) == 2
    assert store.dispatch() == 1
    assert store.dispatch() == 0
    assert seen == [[("T", 0, 1, 0), ("T", 1, 1, 0)], [("T", 0, 2, 0)]]


# --- full disks and broken files ---


def test_disk_full_for_the_next_log_file_refuses_puts_and_heals(
    opened: Opener, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(segment_bytes=1024)
    put(store, 3)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", fail_with(errno.ENOSPC))
        with pytest.raises(StoreIsFull):
            for _ in range(20):
                store.put(draft(body=bytes(300)))
        assert not store.flags.writable
        assert "next CommitLog file" in store.flags.why()
        with pytest.raises(StoreIsFull):
            store.put(draft())
        clock.mono += 1000
        with pytest.raises(StoreIsFull):
            store.put(draft(body=bytes(900)))
        assert store.get("T", 0, 0, 32).count == 3
    with pytest.raises(StoreIsFull):
        store.put(draft())  # asked again too soon
    clock.mono += 1000
    store.put(draft(body=bytes(800)))
    assert store.flags.writable


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.ENOMEM])
def test_disk_full_for_a_queue_stops_there_loses_nothing_and_heals(
    opened: Opener, clock: Clock, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store = opened(queue_segment_bytes=200)
    put(store, 10)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", fail_with(code))
        for _ in range(3):
            store.put(draft())
        assert store.dispatch() == 0
        assert store.dispatcher.starved
        clock.mono += 1000
        with pytest.raises(StoreIsFull, match="queues"):
            store.put(draft())
        assert store.get("T", 0, 0, 32).count == 10
    clock.mono += 1000
    store.put(draft())  # finds space, dispatches first
    store.dispatch()
    assert store.max_offset("T", 0) == 14
    assert [decode(record).queue_offset for record in store.get("T", 0, 10, 32).records] == [
        10,
        11,
        12,
        13,
    ]


def test_disk_full_for_the_index_does_not_hold_up_the_queues(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(index_entries=5)
    put(store, 4)
    with monkeypatch.context() as patched:
        patched.setattr(
            "tandemmq.storage.keyindex.IndexFile.create", staticmethod(fail_with(errno.ENOSPC))
        )
        put(store, 6)
        assert store.max_offset("T", 0) == 10
        assert not store.flags.writable
        assert store.query("T", "k5", 10, 0, 1 << 62).records == []
    store.dispatch()
    assert store.flags.writable
    found = store.query("T", "k5", 10, 0, 1 << 62)
    assert [decode(record).queue_offset for record in found.records] == [9]
    found.records.clear()


def test_broken_index_stops_puts_but_not_the_queues_and_is_mended_by_a_restart(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: Clock
) -> None:
    store = opened(index_entries=5)
    put(store, 4)
    for number in range(6):
        store.put(draft(KEYS=f"later{number}"))
    with monkeypatch.context() as patched:
        patched.setattr(
            "tandemmq.storage.keyindex.IndexFile.create", staticmethod(fail_with(errno.EIO))
        )
        assert store.dispatch() == 6
    assert store.max_offset("T", 0) == 10
    with pytest.raises(StoreNotWritable, match="index file cannot be written"):
        store.put(draft())
    opened.stop()
    assert (opened.root / "abort").exists(), "the next start has something to mend"
    again = opened(index_entries=5)
    assert again.flags.writable
    assert len(again.query("T", "later5", 10, 0, 1 << 62).records) == 1


def test_broken_queue_stops_puts_keeps_reading_and_is_mended_by_a_restart(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: Clock
) -> None:
    store = opened(queue_segment_bytes=200)
    put(store, 10)
    store.put(draft())
    with monkeypatch.context() as patched:
        patched.setattr("tandemmq.storage.queuefiles.QueueFile.create", fail_with(errno.EIO))
        assert store.dispatch() == 0
    with pytest.raises(StoreNotWritable, match="consume queue cannot be written"):
        store.put(draft())
    assert store.dispatch() == 0, "nothing is skipped"
    assert store.get("T", 0, 0, 32).count == 10
    opened.stop()
    again = opened(queue_segment_bytes=200)
    assert again.max_offset("T", 0) == 11
    assert again.flags.writable


def test_damage_in_front_of_dispatch_stops_it_instead_of_skipping(opened: Opener) -> None:
    store = opened()
    store.put(draft())
    second = store.put(draft())
    store.put(draft())
    view = store.log.run.segments[0].view
    view[second.offset + 4] = 0
    assert store.dispatch() == 1
    assert store.flags.problems == Problem.QUEUE_ERROR
    assert f"log offset {second.offset}" in store.flags.why()


def test_failed_flush_is_final_and_the_next_start_does_not_trust_the_page_cache(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # INV-8
    store = opened()
    put(store)
    assert (tmp_path / "store" / "bootid").exists()
    monkeypatch.setattr(os, "fdatasync", fail_with(errno.EIO))
    with pytest.raises(FlushFailed):
        store.flush_log()
    with pytest.raises(StoreNotWritable, match="flushing to disk failed"):
        store.put(draft())
    assert not (tmp_path / "store" / "bootid").exists()
    with pytest.raises(FlushFailed):
        opened.stop()
    assert (tmp_path / "store" / "abort").exists()
    monkeypatch.undo()


def test_failed_write_of_the_log_is_final_like_a_failed_flush(
    opened: Opener, refuse_writes: Callable[[Segment], None], tmp_path: Path
) -> None:
    # INV-8
    store = opened()
    put(store)
    store.flush_log()
    end = store.end
    refuse_writes(store.log.run.segments[0])
    with pytest.raises(FlushFailed, match="No space left"):
        store.put(draft())
    with pytest.raises(StoreNotWritable, match="No space left"):
        store.put(draft())
    with pytest.raises(FlushFailed):
        store.commit()
    assert store.end == store.confirmed == end
    with pytest.raises(FlushFailed):
        store.flush_log(4)
    assert not (tmp_path / "store" / "bootid").exists()
    with pytest.raises(FlushFailed):
        opened.stop()
    assert (tmp_path / "store" / "abort").exists()


def test_checkpoint_does_not_vouch_for_what_is_only_staged(opened: Opener) -> None:
    store = opened()
    put(store)
    store.flush_log()
    known_ms = store.checkpoint.physic_ms
    store.log.tail.append(draft(), 1, known_ms + 5_000)
    put_end = store.end
    store.flush_log()
    assert (store.checkpoint.physic_ms, store.flushed) == (known_ms, put_end)
    store.commit()
    store.flush_log()
    assert store.checkpoint.physic_ms == known_ms + 5_000


def test_retention_under_pressure_frees_space_and_lifts_the_refusal(
    opened: Opener, tmp_path: Path
) -> None:
    store = opened(segment_bytes=1024, queue_segment_bytes=40, index_entries=4)
    put(store, 60)
    store.flush_queues(0)
    percent, files = 91, len(store.log.run.segments)
    store.retention.usage = lambda path: (100, percent, 100 - percent)
    deleted = store.clean()
    assert len([path for path in deleted if path.parent.name == "commitlog"]) == files - 1
    assert any(path.parent.name == "index" for path in deleted)
    assert any(path.parent.parent.name == "T" for path in deleted)
    with pytest.raises(StoreIsFull, match="91 % used"):
        store.put(draft())
    assert store.free_retired() == 0
    assert not any(path.exists() for path in deleted)
    minimum = store.min_offset("T", 0)
    assert minimum > 0
    assert store.get("T", 0, minimum, 32).status is GetStatus.FOUND
    percent = 86
    store.clean()
    assert not store.flags.writable, "between 85 and 90 % nothing changes"
    percent = 85
    store.clean()
    store.put(draft())
    assert store.runtime()["commitLogDiskRatio"] == "0.85"


# --- reading ---


def test_times_and_offsets_of_a_queue(opened: Opener, clock: Clock) -> None:
    store = opened()
    for _ in range(4):
        put(store)
        clock.ms += 10
    assert store.offset_by_time("T", 0, T0 + 5) == 1
    assert store.offset_by_time("T", 0, T0 + 5, upper=True) == 0
    assert store.offset_by_time("nobody", 0, T0) == 0
    assert (store.store_ms("T", 0, 3), store.store_ms("T", 0, 4)) == (T0 + 30, -1)
    assert store.earliest_store_ms() == store.earliest_store_ms("T", 0) == T0
    assert store.earliest_store_ms("nobody", 0) == -1
    assert (store.min_offset("nobody", 0), store.max_offset("nobody", 0)) == (0, 0)
    assert store.next_offset("nobody", 0) == 0


def test_query_returns_records_oldest_first_within_limits(opened: Opener, clock: Clock) -> None:
    store = opened(query_count_max=5, query_count_default=2)
    for number in range(8):
        store.put(draft(body=b"%d" % number, KEYS="k"))
        clock.ms += 1000
    store.dispatch()

    def bodies(*arguments: Any, **keywords: Any) -> list[bytes]:
        result = store.query(*arguments, **keywords)
        assert result.last_ms == T0 + 7000
        found = [decode(record).body for record in result.records]
        result.records.clear()
        return found

    assert bodies("T", "k", 64, 0, 1 << 62) == [b"3", b"4", b"5", b"6", b"7"]
    assert bodies("T", "k", 64, T0 + 1000, T0 + 2999) == [b"1", b"2"]
    assert bodies("T", "k", 64, 0, 1 << 62, unique=True) == [b"6", b"7"]
    assert bodies("T", "other", 64, 0, 1 << 62) == []


def test_store_without_index_answers_queries_with_nothing(opened: Opener, tmp_path: Path) -> None:
    store = opened(index_enabled=False)
    put(store)
    assert store.query("T", "k0", 10, 0, 1 << 62).records == []
    assert not (tmp_path / "store" / "index").exists()


# --- topics ---


def test_deleted_topic_begins_at_zero_and_tells_who_kept_its_tails(opened: Opener) -> None:
    store = opened()
    put(store, 3)
    tail, dropped = store.queue_tail("T", 0), store.tails_dropped
    store.delete_topic("T")
    assert store.topics() == []
    assert store.tails_dropped > dropped
    assert store.queue_tail("T", 0) is not tail
    assert store.put(draft()).queue_offset == 0


def test_topic_that_is_deleted_while_its_queue_is_written_and_flushed_is_no_harm(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apache/rocketmq#8405: there the files are unmapped under the dispatcher, and the process dies."""
    store = opened(queue_segment_bytes=200)
    put(store, 25)  # the writer of the third file is open
    put(store, 3, "Other")
    for _ in range(4):
        store.put(draft())
    real = os.fdatasync

    def delete_meanwhile(descriptor: int) -> None:
        if "T" in store.topics():
            store.delete_topic("T")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", delete_meanwhile)
        store.flush_queues(0)
    assert store.topics() == ["Other"]
    while store.dispatch():  # four messages of the queue that is gone
        pass
    assert store.dispatch_backlog_bytes == 0 and store.flags.writable
    placed = store.put(draft(body=b"new"))
    assert store.dispatch() == 1
    found = store.get("T", 0, placed.queue_offset, 1)
    assert decode(found.records[0]).body == b"new"
    assert store.get("Other", 0, 0, 32).count == 3


def test_unused_topics_and_expired_queues_are_cleaned(opened: Opener) -> None:
    store = opened(segment_bytes=1024)
    put(store, 1, "old")
    put(store, 1, "RMQ_SYS_old")
    put(store, 30, "T")
    put(store, 1, "unknown")
    assert store.clean_unused_topics({"old", "RMQ_SYS_old", "T"}) == ["unknown"]
    store.flush_queues(0)
    store.retention.usage = lambda path: (100, 95, 5)
    store.clean()
    store.free_retired()
    assert store.clean_expired_queues(lambda topic: topic.startswith("RMQ_SYS")) == 1
    assert sorted(store.topics()) == ["RMQ_SYS_old", "T"]


# --- replication ---


def test_truncated_store_forgets_everything_behind_the_cut(opened: Opener) -> None:
    store = opened(segment_bytes=1024, index_entries=6)
    offsets = put(store, 40)
    cut = offsets[17]
    store.truncate(cut)
    assert (store.end, store.max_offset("T", 0), store.next_offset("T", 0)) == (cut, 17, 17)
    for number in range(17, 20):
        assert store.put(draft(KEYS=f"new{number}")).queue_offset == number
    while store.dispatch():
        pass
    for key in ("k3", "k16", "new17", "new19"):
        assert len(store.query("T", key, 10, 0, 1 << 62).records) == 1, key
    assert store.query("T", "k17", 10, 0, 1 << 62).records == []


def test_replicated_bytes_are_dispatched_like_our_own(
    opened: Opener, tmp_path: Path, clock: Clock
) -> None:
    master = opened()
    put(master, 5)
    data = bytes(master.log.read(0, master.end))
    config = StorageConfig(root=str(tmp_path / "slave"), segment_bytes=1 << 16, index_slots=50)
    with open_store(config, clock) as slave:
        slave.log.append_raw(data[:300], 0)
        slave.dispatch()
        slave.log.append_raw(data[300:], 300)
        slave.dispatch()
        assert slave.max_offset("T", 0) == 5


def test_a_log_that_is_seeded_in_the_middle_has_lost_nothing(
    opened: Opener, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    master = opened()
    while len(master.log.run.segments) < 3:
        put(master, 1)
    while master.dispatch():
        pass
    last = master.log.run.segments[-1]
    view = master.log.read(last.start, master.end - last.start)
    assert view is not None
    config = StorageConfig(
        root=str(tmp_path / "slave"), segment_bytes=master.config.segment_bytes, index_slots=50
    )
    with view, open_store(config, clock) as slave:
        slave.append_raw(view, last.start)
        while slave.dispatch():
            pass
        expected = master.max_offset("T", 0)
        assert 0 < slave.min_offset("T", 0) < slave.max_offset("T", 0) == expected
        assert slave.dispatcher.index_position == slave.dispatcher.position == slave.end
    with open_store(config, clock) as slave:
        assert slave.max_offset("T", 0) == expected
    assert [each.message for each in caplog.records if each.levelname in ("ERROR", "WARNING")] == []


# --- opening and closing ---


def test_second_opener_is_refused(opened: Opener, tmp_path: Path) -> None:
    store = opened()
    with pytest.raises(StoreLocked, match="in use"), open_store(store.config):
        pass
    assert (tmp_path / "store" / "lock").read_text() == "lock"


def test_lock_excludes_a_process_that_locks_as_java_does(opened: Opener, tmp_path: Path) -> None:
    opened()
    script = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "except OSError: sys.exit(3)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "store" / "lock")]
    assert subprocess.run(command, check=False).returncode == 3


def test_foreign_lock_excludes_us(tmp_path: Path) -> None:
    script = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'w+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreLocked), open_store(StorageConfig(root=str(tmp_path))):
            pass
    assert fcntl.LOCK_EX


def test_files_of_other_sizes_are_refused_with_their_name(
    opened: Opener, tmp_path: Path, clock: Clock
) -> None:
    put(opened())
    opened.stop()
    with pytest.raises(NotAStore, match="00000000000000000000"):
        opened(segment_bytes=1 << 17)


def test_exception_in_the_body_leaves_the_mark(tmp_path: Path, clock: Clock) -> None:
    # INV-11
    config = StorageConfig(root=str(tmp_path), segment_bytes=1 << 16)
    with pytest.raises(AssertionError, match="ours"), open_store(config, clock) as store:
        put(store)
        raise AssertionError("ours")
    assert (tmp_path / "abort").exists()
    with open_store(config, clock) as store:
        assert store.max_offset("T", 0) == 1


def test_unconfirmed_messages_keep_the_mark_so_that_no_java_broker_loses_them(
    opened: Opener, tmp_path: Path
) -> None:
    # INV-11
    store = opened()
    store.put(draft())
    store.belong_to(Owner(confirmed=lambda: 0))
    opened.stop()
    assert (tmp_path / "store" / "abort").exists()


def test_checkpoint_speaks_only_of_what_was_flushed(
    opened: Opener, tmp_path: Path, clock: Clock
) -> None:
    # INV-10
    store = opened()
    put(store)
    store.flush_checkpoint(store.confirmed)
    path = tmp_path / "store" / "checkpoint"
    assert struct.unpack_from(">qqq", path.read_bytes()) == (0, 0, 0)
    store.flush_log()
    store.flush_checkpoint(store.confirmed)
    assert struct.unpack_from(">qqq", path.read_bytes()) == (T0, 0, 0)
    clock.ms += 7
    store.put(draft(KEYS="k"))
    store.flush_queues(0)
    store.flush_checkpoint(store.confirmed)
    assert struct.unpack_from(">qqq", path.read_bytes()) == (T0 + 7, T0, T0)


def test_checkpoint_that_cannot_be_written_leaves_the_older_one(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = opened()
    store.flush_checkpoint(store.confirmed)
    put(store)
    store.flush_log()
    with monkeypatch.context() as patched:
        patched.setattr("tandemmq.storage.durability.save_checkpoint", fail_with(errno.ENOSPC))
        patched.setattr("tandemmq.storage.durability.save_queue_state", fail_with(errno.ENOSPC))
        store.flush_checkpoint(store.confirmed)
        store.flush_queues(0)
    assert not (tmp_path / "store" / "queuestate").exists()
    assert (tmp_path / "store" / "checkpoint").read_bytes()[:8] == bytes(8)
    store.flush_checkpoint(store.confirmed)
    assert (tmp_path / "store" / "checkpoint").read_bytes()[:8] != bytes(8)


def test_a_place_of_the_log_lies_in_one_file_as_far_as_that_goes(opened: Opener) -> None:
    store = opened()
    assert store.file_range(0, 100) is None
    while len(store.log.run.segments) < 3:
        store.put(draft())
    first, second, last = store.log.run.segments
    assert store.file_range(10, 100) == FileRange(first.path, 10, 100)
    assert store.file_range(second.end - 10, 100) == FileRange(
        second.path, second.end - second.start - 10, 10
    )
    assert store.file_range(last.start, 1 << 40) == FileRange(last.path, 0, last.wrote)
    assert store.file_range(store.end + (1 << 40), 1) is None
    store.log.run.drop_first()
    assert store.file_range(10, 100) == FileRange(second.path, 0, 100)
