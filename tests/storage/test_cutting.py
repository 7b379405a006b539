"""The end cut off a store: what a crash leaves at any step, beside flushing threads, and what is set aside."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from platterkit import Platter

from tandemmq.replication.keeping import cut_log
from tandemmq.storage import (
    Cut,
    Draft,
    FlushFailed,
    MessageStore,
    StorageConfig,
    StoreNotWritable,
    encode_properties,
    inspect_store,
    open_store,
    setaside,
)
from tandemmq.storage.checkpoint import load_checkpoint, load_queue_state

SEGMENT_BYTES = 4096


class FakeClock:
    """Wall time goes on by itself, so that messages differ in it."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        self.ms += 5000
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms - 1_600_000_000_000


def config_of(root: Path) -> StorageConfig:
    return StorageConfig(
        root=str(root), segment_bytes=SEGMENT_BYTES, queue_segment_bytes=200, index_slots=50,
        index_entries=40,
    )  # fmt: skip


def put(store: MessageStore, count: int, body: bytes = b"x" * 100) -> list[int]:
    """Dispatched messages over three queues; their log offsets."""
    offsets = []
    for number in range(count):
        properties = encode_properties({"KEYS": f"key{number}", "TAGS": "a"})
        offsets.append(store.put(Draft("T", number % 3, body, properties)).offset)
    while store.dispatch():
        pass
    return offsets


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(config_of(tmp_path / "store"), FakeClock()) as store:
        yield store


def settled(store: MessageStore) -> None:
    store.flush_log()
    store.flush_queues(0)
    store.flush_checkpoint(store.confirmed)


@pytest.mark.parametrize("kept", [0, 1, 17, 30, 59, 60])
def test_a_cut_store_goes_on_as_if_it_had_never_had_more(tmp_path: Path, kept: int) -> None:
    with ExitStack() as stack:
        cut = stack.enter_context(open_store(config_of(tmp_path / "cut"), FakeClock()))
        plain = stack.enter_context(open_store(config_of(tmp_path / "plain"), FakeClock()))
        offsets = [*put(cut, 60), cut.end]
        settled(cut)
        put(plain, kept)
        cut.truncate(offsets[kept])
        assert cut.end == cut.flushed == offsets[kept]
        assert cut.dispatcher.position == cut.end
        for queue_id in range(3):
            assert cut.next_offset("T", queue_id) == plain.next_offset("T", queue_id)
            assert cut.max_offset("T", queue_id) == plain.max_offset("T", queue_id)
        put(cut, 20, b"y" * 90)
        put(plain, 20, b"y" * 90)
        for queue_id in range(3):
            ours, theirs = (each.get("T", queue_id, 0, 100) for each in (cut, plain))
            assert [len(each) for each in ours.records] == [len(each) for each in theirs.records]
        found = cut.query("T", "key0", 10, 0, 1 << 62)
        assert len(found.records) == len(plain.query("T", "key0", 10, 0, 1 << 62).records)
        for result in (ours, theirs, found):
            for record in result.records:
                record.release()
    for name in ("cut", "plain"):
        report = inspect_store(tmp_path / name)
        assert report.sound and report.records == kept + 20, list(report.lines())


def stages(store: MessageStore, end: int, note: Callable[[str], None]) -> None:
    """Cut as replication does, and call back wherever a crash would leave something else."""
    cut = Cut(store, end)
    calls = {
        "log": (store.log, "cut"),
        "queues": (store.queues, "truncate"),
        "index": (store.index, "keep_until"),
    }
    note("before")
    cut.prepare()
    note("prepared")
    for name, (part, method) in calls.items():
        act = getattr(part, method)

        def noted(offset: int, act: Callable[[int], None] = act, name: str = name) -> None:
            act(offset)
            note(name)

        setattr(part, method, noted)
    cut.make()
    for part, method in calls.values():
        delattr(part, method)  # the class has it
    note("made")
    cut.flush()
    cut.end()
    note("flushed")
    store.flush_queues(0)
    note("stated")


@pytest.mark.parametrize("same_boot", [True, False])
@pytest.mark.parametrize("further", [0, 40])
def test_a_crash_at_any_step_leaves_the_old_end_or_the_new_one(
    tmp_path: Path, same_boot: bool, further: int
) -> None:
    boot = tmp_path / "boot"
    boot.write_text("one")
    copies: dict[str, tuple[Path, int]] = {}

    def copy(name: str) -> None:
        if further and name == "stated":
            store.truncate(offsets[20])
            put(store, further, b"z" * 100)  # of the same sizes, in the same places
        copies[name] = (tmp_path / name, store.end)
        shutil.copytree(tmp_path / "store", tmp_path / name)

    with open_store(config_of(tmp_path / "store"), FakeClock(), boot) as store:
        offsets = put(store, 60)
        settled(store)
        old, new = store.end, offsets[20]
        stages(store, new, copy)
    if not same_boot:
        boot.write_text("two")
    assert list(copies) == [
        "before", "prepared", "log", "queues", "index", "made", "flushed", "stated",
    ]  # fmt: skip
    for name, (root, end) in copies.items():
        with open_store(config_of(root), FakeClock(), boot) as store:
            assert store.end == (old if name in ("before", "prepared") else end), name
            if not further or name != "stated":
                assert store.end in (old, new), name
            for queue_id in range(3):
                for queue_offset in range(store.max_offset("T", queue_id)):
                    assert store.store_ms("T", queue_id, queue_offset) > 0
        report = inspect_store(root)
        assert report.sound, (name, list(report.lines()))


@pytest.mark.parametrize("boundary", [False, True])
def test_a_power_cut_after_a_cut_brings_back_none_of_what_was_flushed_before(
    tmp_path: Path, platter: Platter, boundary: bool
) -> None:
    """INV-40: with the new end, in the middle of a file or where one begins."""
    boot = tmp_path / "boot"
    boot.write_text("one")
    with open_store(config_of(tmp_path / "store"), FakeClock(), boot) as store:
        offsets = put(store, 60)
        settled(store)
        ends = [*offsets[20:40], *(segment.start for segment in store.log.run.segments[1:2])]
        end = ends[-1] if boundary else ends[0]
        store.truncate(end)
        assert store.flushed == end
        store.close(clean=False)
    platter.cut_power()
    boot.write_text("two")
    with open_store(config_of(tmp_path / "store"), FakeClock(), boot) as store:
        assert store.end == end


@pytest.mark.parametrize("kept", [0, 7])
def test_what_recovery_cuts_off_is_gone_for_good(
    tmp_path: Path, platter: Platter, kept: int
) -> None:
    """INV-40, INV-9: zeros behind the end are on the disk before the first append, also when
    nothing of the last file is left."""
    boot = tmp_path / "boot"
    boot.write_text("one")
    config = config_of(tmp_path / "store")
    with open_store(config, FakeClock(), boot) as store:
        offsets = put(store, 15)
        settled(store)
        path = store.log.run.segments[0].path
        store.close(clean=False)
    boot.write_text("two")
    damaged = bytearray(path.read_bytes())
    damaged[offsets[kept] + 90] ^= 1
    path.write_bytes(damaged)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    with open_store(config, FakeClock(), boot) as store:
        assert store.end == offsets[kept]
        store.close(clean=False)
    platter.cut_power()
    assert not any(path.read_bytes()[offsets[kept] :])


def test_a_queue_that_is_cut_empty_stays_so(tmp_path: Path, platter: Platter) -> None:
    """INV-40, found by tandemmq.chaos.powercut: nothing was left to flush, so its zeros were not either, and
    after a clean stop the entry was believed."""
    boot = tmp_path / "boot"
    boot.write_text("one")
    with open_store(config_of(tmp_path / "store"), FakeClock(), boot) as store:
        put(store, 6)
        settled(store)
        store.truncate(0)
        store.put(Draft("T", 2, b"another, and longer" * 20, b""))
    platter.cut_power()
    for name in ("abort", "bootid", "flushmode"):
        assert not (tmp_path / "store" / name).exists(), "it was stopped in order"
    boot.write_text("two")
    with open_store(config_of(tmp_path / "store"), FakeClock(), boot) as store:
        assert [store.max_offset("T", queue_id) for queue_id in range(3)] == [0, 0, 1]
    report = inspect_store(tmp_path / "store")
    assert report.sound, list(report.lines())


@pytest.mark.parametrize("kept", [10, 13])
def test_entries_in_front_of_a_cut_that_were_not_flushed_are_not_taken_for_it(
    tmp_path: Path, platter: Platter, kept: int
) -> None:
    """Found by tandemmq.chaos.powercut: where a file of the queue began there were no zeros to sync, so nothing was."""
    files = tmp_path / "store" / "consumequeue" / "T" / "0"
    boot = tmp_path / "boot"
    boot.write_text("one")
    config = config_of(tmp_path / "store")
    with open_store(config, FakeClock(), boot) as store:
        offsets = [store.put(Draft("T", 0, b"x" * 90, b"")).offset for _ in range(25)]
        while store.dispatch():
            pass
        store.truncate(offsets[kept])
        settled(store)
        store.close(clean=False)
    platter.cut_power()
    entries = b"".join(path.read_bytes() for path in sorted(files.iterdir()))
    assert all(any(entries[each * 20 :][:20]) for each in range(kept))
    assert not any(entries[kept * 20 :])
    boot.write_text("two")
    with open_store(config, FakeClock(), boot) as store:
        assert store.max_offset("T", 0) == kept


def test_what_a_killed_process_cut_is_put_on_the_disk_by_the_next(
    tmp_path: Path, platter: Platter
) -> None:
    """INV-40, found by chaos.powercut: who finds zeros in the page cache does not know that the disk has none."""
    boot = tmp_path / "boot"
    boot.write_text("one")
    config = config_of(tmp_path / "store")
    with open_store(config, FakeClock(), boot) as store:
        put(store, 6)
        settled(store)
        cut = Cut(store, 0)
        cut.prepare()
        cut.make()
        cut.end()
        store.close(clean=False)
    with open_store(config, FakeClock(), boot) as store:
        assert store.end == 0
        store.put(Draft("T", 2, b"another, and longer" * 20, b""))
    platter.cut_power()
    boot.write_text("two")
    with open_store(config, FakeClock(), boot) as store:
        assert [store.max_offset("T", queue_id) for queue_id in range(3)] == [0, 0, 1]
    report = inspect_store(tmp_path / "store")
    assert report.sound, list(report.lines())


def test_a_cut_whose_sync_could_not_be_tried_is_synced_by_the_next_flush(
    opened: MessageStore, platter: Platter, monkeypatch: pytest.MonkeyPatch
) -> None:
    # INV-40
    offsets = put(opened, 12)
    settled(opened)
    cut = Cut(opened, offsets[5])
    cut.prepare()
    cut.make()
    cut.end()
    path = opened.log.run.segments[0].path
    assert opened.flush_log(4) == offsets[5]
    opened.close(clean=False)
    platter.cut_power()
    assert not any(path.read_bytes()[offsets[5] :])


def test_nothing_vouches_for_what_is_being_cut(opened: MessageStore, tmp_path: Path) -> None:
    offsets = put(opened, 60)
    settled(opened)
    root = tmp_path / "store"
    state = load_queue_state(root / "queuestate")
    assert state is not None and state.dispatched == opened.end
    before = load_checkpoint(root / "checkpoint")
    cut = Cut(opened, offsets[20])
    cut.prepare()
    try:
        after = load_checkpoint(root / "checkpoint")
        assert load_queue_state(root / "queuestate") is None
        assert after.physic_ms <= (opened.log.store_ms_at(offsets[19]) or 0) < before.physic_ms
        assert max(after.logics_ms, after.index_ms) <= after.physic_ms
        assert after.confirmed <= offsets[20] < before.confirmed
    finally:
        cut.end()


def test_flushing_threads_wait_for_a_cut_and_say_nothing_of_what_is_gone(
    opened: MessageStore,
) -> None:
    done = threading.Event()
    failures: list[BaseException] = []

    def flush_again_and_again() -> None:
        try:
            while not done.is_set():
                opened.flush_log()
                opened.flush_queues(0)
                opened.flush_checkpoint(opened.confirmed)
                opened.prepare_next_segment()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=flush_again_and_again) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            offsets = put(opened, 30)
            opened.truncate(offsets[10])
            assert opened.flushed == opened.end
            put(opened, 1)
            assert opened.flushed <= opened.end
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_a_disk_that_refuses_during_a_cut_is_final(
    opened: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = put(opened, 60)

    def fail(target: int | None = None) -> int:
        raise FlushFailed("input/output error")

    monkeypatch.setattr(opened.log, "flush", fail)
    with pytest.raises(FlushFailed):
        opened.truncate(offsets[20])
    with pytest.raises(StoreNotWritable):
        opened.put(Draft("T", 0, b"", b""))
    monkeypatch.undo()


# --- set aside ---


@pytest.mark.parametrize(("first", "last"), [(0, 60), (5, 60), (5, 6), (0, 1), (59, 60), (20, 45)])
def test_what_is_set_aside_is_named_counted_and_readable(
    opened: MessageStore, tmp_path: Path, first: int, last: int
) -> None:
    offsets = [*put(opened, 60), opened.end]
    start, end = offsets[first], offsets[last]
    ranges = setaside.file_ranges(opened.log, start, end)
    kept = setaside.keep(tmp_path / "store", ranges, start, 7)
    name = f"epoch-7-from-{start}-to-{end}-{last - first}-records.log"
    assert kept == setaside.SetAside(kept.path, 7, start, end, last - first)
    assert kept.path == tmp_path / "store" / "setaside" / name
    whole = b"".join(bytes(each.view[: each.wrote]) for each in opened.log.run.segments)
    assert kept.path.read_bytes() == whole[start:end]
    assert [start + each.position for each in setaside.heads_of(kept.path)] == offsets[first:last]
    assert setaside.listed(tmp_path / "store") == [kept]


def test_half_a_record_is_set_aside_with_the_rest(opened: MessageStore, tmp_path: Path) -> None:
    offsets = put(opened, 10)
    data = bytes(opened.record_at(offsets[9]) or b"")
    opened.truncate(offsets[9])
    opened.append_raw(data[:50], opened.end)
    ranges = setaside.file_ranges(opened.log, offsets[5], opened.end)
    kept = setaside.keep(tmp_path / "store", ranges, offsets[5], 1)
    assert kept.records == 4 and kept.path.stat().st_size == offsets[9] + 50 - offsets[5]


def test_without_room_nothing_is_left_behind(
    opened: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(opened, 10)
    ranges = setaside.file_ranges(opened.log, 0, opened.end)

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(OSError, match="No space"):
        setaside.keep(tmp_path / "store", ranges, 0, 1)
    monkeypatch.undo()
    assert list((tmp_path / "store" / "setaside").iterdir()) == []


def test_other_files_are_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "setaside").mkdir()
    (tmp_path / "setaside" / "notes.txt").touch()
    assert setaside.listed(tmp_path) == [] == setaside.listed(tmp_path / "elsewhere")
    assert setaside.named(Path("epoch-1-from-0-to-9-x-records.log")) is None


# --- bytes of a master ---


def test_a_received_record_of_which_the_end_is_missing_is_dropped_at_the_next_start(
    tmp_path: Path,
) -> None:
    with open_store(config_of(tmp_path / "master"), FakeClock()) as master:
        offsets = [*put(master, 12), master.end]
        data = bytes(master.log.run.segments[0].view[: master.end])
    last = offsets[-1] - offsets[-2]
    for clean in (True, False):
        for missing in (0, 1, 2, 7, 9, 12, 15, 17, 25, 100, last - 8, last - 1, last):
            root = tmp_path / f"slave-{clean}-{missing}"
            with open_store(config_of(root), FakeClock()) as slave:
                end = len(data) - missing
                assert slave.append_raw(data[:end], 0) == end
                while slave.dispatch():
                    pass
                slave.close(clean)
            with open_store(config_of(root), FakeClock()) as slave:
                assert slave.end == (offsets[-1] if missing == 0 else offsets[-2]), missing
                slave.append_raw(data[slave.end :], slave.end)
                assert bytes(slave.log.run.segments[0].view[: slave.end]) == data
            shutil.rmtree(root)


def test_a_message_of_our_own_may_end_with_a_zero(tmp_path: Path) -> None:
    for clean in (True, False):
        root = tmp_path / str(clean)
        with open_store(config_of(root), FakeClock()) as store:
            store.append_raw(b"", 0)
            store.ends_whole()
            store.put(Draft("T", 0, b"x", b"KEYS\x01a\0"))
            end = store.end
            store.close(clean)
        with open_store(config_of(root), FakeClock()) as store:
            assert store.end == end


def test_a_slave_counts_what_it_dispatches_so_that_nothing_waits_after_a_promotion(
    opened: MessageStore, tmp_path: Path
) -> None:
    with open_store(config_of(tmp_path / "master"), FakeClock()) as master:
        put(master, 12)
        data = bytes(master.log.run.segments[0].view[: master.end])
    opened.append_raw(data, 0)
    assert opened.stats.appended_bytes == len(data)
    while opened.dispatch():
        pass
    assert opened.stats.appended_messages == 12 and opened.waiting_records == 0
    opened.put(Draft("T", 0, b"", b""))
    assert opened.waiting_records == 1


def test_a_slaves_checkpoint_goes_on_with_what_it_dispatched(
    opened: MessageStore, tmp_path: Path
) -> None:
    with open_store(config_of(tmp_path / "master"), FakeClock()) as master:
        last = put(master, 12)[-1]
        stored_ms = master.log.store_ms_at(last)
        data = bytes(master.log.run.segments[0].view[: master.end])
    opened.append_raw(data, 0)
    opened.flush_log()
    assert opened.checkpoint.physic_ms == 0
    while opened.dispatch():
        pass
    opened.append_raw(data[:10], len(data))
    opened.flush_log()
    assert opened.checkpoint.physic_ms == stored_ms
    opened.truncate(len(data))


def test_the_next_file_is_made_ahead_for_a_slave_too(opened: MessageStore, tmp_path: Path) -> None:
    opened.append_raw(bytes(100), 0)
    assert not opened.log.next_segment_needed()
    opened.append_raw(bytes(SEGMENT_BYTES // 4), 100)
    assert opened.log.next_segment_needed()
    opened.prepare_next_segment()
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) == 2
    assert not opened.log.next_segment_needed()
    opened.append_raw(bytes(SEGMENT_BYTES), opened.end)
    assert len(opened.log.run.segments) == 2
    opened.truncate(0)


async def test_the_loop_goes_on_while_a_cut_waits_for_the_disk(opened: MessageStore) -> None:
    offsets = put(opened, 60)
    release = threading.Event()
    flush = opened.log.flush
    turns = 0

    def slow(target: int | None = None) -> int:
        assert release.wait(20)
        return flush(target)

    opened.log.flush = slow  # type: ignore[method-assign]
    cutting = asyncio.ensure_future(cut_log(opened, offsets[20]))
    while opened.end > offsets[20]:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
        turns += 1
    assert turns == 100 and not cutting.done()
    release.set()
    await cutting
    assert opened.flushed == opened.end == offsets[20]


def test_a_log_is_walked_from_any_record_to_its_end_over_files_and_what_retention_left(
    opened: MessageStore,
) -> None:
    offsets = put(opened, 60)
    assert len(opened.log.run.segments) > 2
    for first in (0, 7, 59):
        found, at = [], offsets[first]
        while at < opened.end:
            heads, at = opened.walk(at, 4)
            found += [head.physical_offset for head in heads]
        assert found == offsets[first:]
    assert opened.walk(opened.end, 4) == ([], opened.end)
    start = opened.log.run.segments[1].start
    del opened.log.run.segments[0]
    heads, _ = opened.walk(0, 1)
    assert heads[0].physical_offset == start, "where retention took the beginning"
