"""What survives a crash, a cut, a missing or damaged file: always the log's sound beginning, all of it, once."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tandemmq.storage import (
    Draft,
    MessageStore,
    StorageConfig,
    decode,
    encode_properties,
    inspect_store,
    open_store,
)
from tandemmq.storage.checkpoint import load_queue_state
from tandemmq.storage.queuefiles import BLANK_ENTRY
from tandemmq.storage.recovery import Recovery

SEGMENT_BYTES = 4096
QUEUE_BYTES = 200  # ten entries a file
ENTRY = struct.Struct(">qiq")


class FakeClock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        self.ms += 5
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms - 1_600_000_000_000


@dataclass
class Message:
    topic: str
    queue_id: int
    body: bytes
    key: str
    offset: int
    size: int
    queue_offset: int


@dataclass
class Kit:
    """One store and what was put into it, in log order."""

    root: Path
    boot: Path
    clock: FakeClock = field(default_factory=FakeClock)
    messages: list[Message] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    store: MessageStore | None = None
    copies: int = 0
    segment_bytes: int = SEGMENT_BYTES

    @property
    def config(self) -> StorageConfig:
        return StorageConfig(
            root=str(self.root),
            segment_bytes=self.segment_bytes,
            queue_segment_bytes=QUEUE_BYTES,
            index_slots=50,
            index_entries=40,
        )

    def open(self) -> MessageStore:
        assert self.store is None
        self.store = self.stack.enter_context(open_store(self.config, self.clock, self.boot))
        return self.store

    def close(self) -> None:
        self.store = None
        self.stack.close()

    def put(self, topic: str = "T", queue_id: int = 0, body: bytes = b"x" * 100) -> Message:
        assert self.store is not None
        number = len(self.messages)
        key = f"key{number}"
        properties = encode_properties({"KEYS": key, "TAGS": f"tag{number % 3}"})
        placed = self.store.put(Draft(topic, queue_id, body, properties))
        message = Message(
            topic, queue_id, body, key, placed.offset, placed.size, placed.queue_offset
        )
        self.messages.append(message)
        return message

    def fill(self, count: int, queues: int = 3) -> None:
        """Messages of one size in turn over the queues, dispatched."""
        assert self.store is not None
        for number in range(count):
            self.put("T", number % queues)
        while self.store.dispatch():
            pass

    def crash(self) -> None:
        """Go on with a copy of the files as they are, as after kill -9; the page cache survives."""
        self.copies += 1
        copy = self.root.with_name(f"{self.root.name.split('-')[0]}-{self.copies}")
        shutil.copytree(self.root, copy)
        self.close()
        self.root = copy

    def power_cut(self) -> None:
        """As crash(), but the machine was switched off: another boot id."""
        self.crash()
        self.boot.write_text(f"boot {self.copies}")

    def log_file(self, offset: int) -> tuple[Path, int]:
        start = offset - offset % self.segment_bytes
        return self.root / "commitlog" / f"{start:020d}", offset - start

    def damage_log(self, offset: int, data: bytes) -> None:
        path, position = self.log_file(offset)
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(data)

    def queue_file(self, queue_id: int, queue_offset: int) -> tuple[Path, int]:
        at = queue_offset * 20
        start = at - at % QUEUE_BYTES
        path = self.root / "consumequeue" / "T" / str(queue_id) / f"{start:020d}"
        return path, at - start

    def damage_queue(self, queue_id: int, queue_offset: int, data: bytes) -> None:
        path, position = self.queue_file(queue_id, queue_offset)
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(data)

    def forget_state(self) -> None:
        (self.root / "queuestate").unlink()

    def check(self) -> None:
        """Every message that counts is in the log, in its queue and in the index; nothing else is."""
        store = self.store
        assert store is not None
        while store.dispatch():
            pass
        expected: dict[tuple[str, int], list[Message]] = {}
        for message in self.messages:
            expected.setdefault((message.topic, message.queue_id), []).append(message)
        for queue in store.queues:
            messages = expected.pop((queue.topic, queue.queue_id), [])
            assert queue.max_offset == len(messages), (queue, [m.offset for m in messages])
            assert queue.min_offset == 0
            for number, message in enumerate(messages):
                entry = queue.entry(number)
                assert entry is not None
                assert entry[:2] == (message.offset, message.size)
                record = store.record_at(message.offset)
                assert record is not None
                decoded = decode(record)
                record.release()
                assert (decoded.queue_offset, decoded.body) == (number, message.body)
            assert store.next_offset(queue.topic, queue.queue_id) == len(messages)
        assert expected == {}
        assert store.index is not None
        for message in self.messages:
            found, _, _ = store.index.query(message.topic, message.key, 1000, 0, 1 << 62)
            assert message.offset in found, message
        last = self.messages[-1] if self.messages else None
        end = last.offset + last.size if last is not None else 0
        assert end <= store.end <= end + SEGMENT_BYTES

    def reopen_and_check(self) -> MessageStore:
        store = self.open()
        self.check()
        return store


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    boot = tmp_path / "boot_id"
    boot.write_text("boot 0")
    kit = Kit(tmp_path / "store", boot)
    yield kit
    kit.close()


def test_clean_stop_leaves_no_mark_and_reads_nothing_again(kit: Kit) -> None:
    kit.open()
    kit.fill(60)
    assert (kit.root / "abort").read_text() == str(os.getpid())
    kit.close()
    assert not (kit.root / "abort").exists()
    assert not (kit.root / "bootid").exists()
    store = kit.reopen_and_check()
    assert store.recovered.clean
    assert store.recovered.checked_from == store.recovered.derived_from == store.end
    assert store.recovered.rebuilt == []


def test_abort_keeps_its_former_content_in_bak(kit: Kit) -> None:
    kit.open()
    assert (kit.root / "abort.bak").read_bytes() == b""
    kit.crash()
    (kit.root / "abort").write_text("4711")
    kit.open()
    assert (kit.root / "abort.bak").read_text() == "4711"


def test_nothing_is_lost_by_a_kill(kit: Kit) -> None:
    kit.open()
    kit.fill(50)
    for _ in range(5):
        kit.put()  # appended, not dispatched
    kit.crash()
    store = kit.reopen_and_check()
    assert not store.recovered.clean
    assert store.recovered.same_boot


def test_a_mark_of_another_process_counts_as_another_boot(kit: Kit) -> None:
    kit.open()
    kit.fill(5)
    kit.crash()
    (kit.root / "abort").write_text("1")  # a Java broker came after us, and crashed
    assert not kit.reopen_and_check().recovered.same_boot


def test_second_crash_during_recovery_still_knows_of_the_power_cut(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.open()
    kit.fill(20)
    kit.power_cut()

    def killed(self: Recovery) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Recovery, "_cut_derived", killed)
        with pytest.raises(KeyboardInterrupt):
            kit.open()
    kit.store = None
    assert not kit.reopen_and_check().recovered.same_boot


@pytest.mark.parametrize("step", ["_cut_log", "_cut_derived", "_complete_derived", "_set_tails"])
@pytest.mark.parametrize("power", [False, True])
def test_recovery_interrupted_before_any_step_is_simply_repeated(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, step: str, power: bool
) -> None:
    kit.open()
    kit.fill(40)
    for _ in range(3):
        kit.put()
    lost = kit.messages.pop()
    kit.power_cut() if power else kit.crash()
    kit.damage_log(lost.offset + 90, b"\xff" * 8)

    def killed(self: Recovery) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Recovery, step, killed)
        with pytest.raises(KeyboardInterrupt):
            kit.open()
    kit.store = None
    kit.reopen_and_check()


@pytest.mark.parametrize("kept", [0, 1, 4, 7, 8, 12, 88, 89, 150, -1])
@pytest.mark.parametrize("clean", [False, True])
def test_torn_last_record_is_cut_off(kit: Kit, kept: int, clean: bool) -> None:
    kit.open()
    kit.fill(31)
    torn = kit.messages.pop()
    kit.close() if clean else kit.crash()
    if clean:
        kit.forget_state()  # as if a Java broker had closed it
    kept = kept if kept >= 0 else torn.size - 1
    kit.damage_log(torn.offset + kept, bytes(torn.size - kept))
    if kept == torn.size - 1:
        # A zeroed last byte is a legal record end with other properties: damage the body too.
        kit.damage_log(torn.offset + 90, b"\0")
    store = kit.reopen_and_check()
    assert store.end == torn.offset
    assert store.recovered.dropped_bytes == 0
    kit.put("T", torn.queue_id)
    kit.check()


def test_record_of_which_a_killed_process_wrote_the_first_pages_is_cut_off(kit: Kit) -> None:
    """The kernel ends a write between two pages: lengths and the body's checksum say nothing of its properties."""
    kit.segment_bytes = 8 * mmap.PAGESIZE
    store = kit.open()
    around = kit.put(body=b"").size
    for torn in (True, False):
        kit.put(body=bytes((10 - store.end - 2 * around) % mmap.PAGESIZE))
        message = kit.put(body=b"")
        kit.crash()
        end = message.offset + message.size
        written = (end - 1) // mmap.PAGESIZE * mmap.PAGESIZE
        assert end - 20 < written < end, "its properties lie on two pages"
        if torn:
            kit.damage_log(written, bytes(end - written))
            kit.messages.pop()
        store = kit.reopen_and_check()
        assert store.end == (message.offset if torn else end)
        assert store.recovered.dropped_bytes == 0


def test_hole_in_the_tail_ends_the_log_although_records_follow(kit: Kit) -> None:
    kit.open()
    kit.fill(40)
    kit.power_cut()
    hole = kit.messages[25]
    kit.damage_log(hole.offset, bytes(hole.size))
    del kit.messages[25:]
    store = kit.reopen_and_check()
    assert store.end <= hole.offset
    assert store.recovered.dropped_bytes >= SEGMENT_BYTES - 1


def test_wrong_body_checksum_ends_the_log(kit: Kit) -> None:
    kit.open()
    kit.fill(30)
    kit.power_cut()
    bad = kit.messages[17]
    kit.damage_log(bad.offset + 90, b"\xff")
    del kit.messages[17:]
    store = kit.reopen_and_check()
    assert "checksum" in store.recovered.why


@pytest.mark.parametrize("size", [1, 90])
def test_sound_records_behind_damage_in_the_newest_file_are_counted(kit: Kit, size: int) -> None:
    kit.open()
    for _ in range(5):
        kit.put()
    kit.crash()
    kit.damage_log(kit.messages[2].offset + 3, b"\xff" * size)
    lost = sum(each.size for each in kit.messages[3:])
    del kit.messages[2:]
    store = kit.reopen_and_check()
    assert store.recovered.dropped_bytes == lost
    kit.put()
    kit.check()
    kit.close()
    kit.open()
    assert store.recovered.dropped_bytes == lost and kit.store.recovered.dropped_bytes == 0


def test_stale_records_behind_a_truncation_do_not_come_back(kit: Kit) -> None:
    # INV-9
    kit.open()
    for _ in range(5):
        kit.put()
    kit.power_cut()
    kit.damage_log(kit.messages[2].offset + 90, b"\xff")
    del kit.messages[2:]
    kit.reopen_and_check()
    kit.put()  # of the same size: messages 3 and 4 would follow at a record boundary
    kit.power_cut()
    store = kit.reopen_and_check()
    assert len(kit.messages) == 3
    assert store.max_offset("T", 0) == 3


def test_record_whose_physical_offset_is_not_its_place_is_not_believed(kit: Kit) -> None:
    # INV-1
    kit.open()
    for _ in range(6):
        kit.put()
    end = kit.messages[-1].offset + kit.messages[-1].size
    path, position = kit.log_file(kit.messages[3].offset)
    kit.crash()
    path = kit.root / "commitlog" / path.name
    stale = path.read_bytes()[position : position + kit.messages[3].size]
    kit.damage_log(end, stale)
    store = kit.reopen_and_check()
    assert store.end == end
    assert "stale" in store.recovered.why


def test_file_allocated_in_advance_is_removed(kit: Kit) -> None:
    kit.open()
    kit.fill(10)
    kit.crash()
    (kit.root / "commitlog" / f"{SEGMENT_BYTES:020d}").write_bytes(bytes(SEGMENT_BYTES))
    kit.reopen_and_check()
    assert len(list((kit.root / "commitlog").iterdir())) == 1


Harm = Callable[[Kit], object]
HARMS: dict[str, Harm] = {
    "queue missing": lambda kit: shutil.rmtree(kit.root / "consumequeue" / "T" / "1"),
    "all queues missing": lambda kit: shutil.rmtree(kit.root / "consumequeue"),
    "first queue file missing": lambda kit: kit.queue_file(1, 0)[0].unlink(),
    "last queue file missing": lambda kit: kit.queue_file(1, 20)[0].unlink(),
    "middle queue file missing": lambda kit: kit.queue_file(1, 10)[0].unlink(),
    "queue behind": lambda kit: [
        kit.damage_queue(1, 15, bytes(100)),
        kit.damage_queue(1, 20, bytes(20)),
    ],
    "queue almost empty": lambda kit: [
        kit.damage_queue(1, 1, bytes(180)),
        kit.damage_queue(1, 10, bytes(200)),
        kit.damage_queue(1, 20, bytes(20)),
    ],
    "last entry torn": lambda kit: kit.damage_queue(1, 20, b"\0" * 7),
    "last entry of another record": lambda kit: kit.damage_queue(1, 20, ENTRY.pack(0, 131, 5)),
    "hole in the queue": lambda kit: kit.damage_queue(1, 12, bytes(20 * 3)),
    "queue ahead": lambda kit: kit.damage_queue(
        0, 21, ENTRY.pack(1 << 40, 131, 5) + ENTRY.pack((1 << 40) + 131, 131, 5)
    ),
    "index missing": lambda kit: shutil.rmtree(kit.root / "index"),
    "index files cut": lambda kit: [
        os.truncate(path, 100) for path in (kit.root / "index").iterdir()
    ],
    "oldest index file missing": lambda kit: min((kit.root / "index").iterdir()).write_bytes(b""),
    "checkpoint missing": lambda kit: (kit.root / "checkpoint").unlink(missing_ok=True),
    "checkpoint of zeros": lambda kit: (kit.root / "checkpoint").write_bytes(bytes(4096)),
    "checkpoint of the far future": lambda kit: (kit.root / "checkpoint").write_bytes(
        struct.pack(">qqq", 1 << 60, 1 << 60, 1 << 60).ljust(4096, b"\0")
    ),
    "checkpoint garbage": lambda kit: (kit.root / "checkpoint").write_bytes(b"\xff" * 4096),
}


STOPS = ("clean", "clean, no state", "kill", "kill, no state", "power")
# Rot below the durable point is found by inspection, and mended by removing the queue.
UNSEEN = {("hole in the queue", stop) for stop in ("clean", "kill", "power")}


@pytest.mark.parametrize(
    ("harm", "stop"), [(h, s) for h in HARMS for s in STOPS if (h, s) not in UNSEEN]
)
def test_derived_files_are_completed_from_the_log(kit: Kit, harm: str, stop: str) -> None:
    # INV-6
    kit.open()
    kit.fill(63)
    assert kit.store is not None
    kit.store.flush_queues(0)
    if stop.startswith("clean"):
        kit.close()
    elif stop == "power":
        kit.power_cut()
    else:
        kit.crash()
    if stop.endswith("no state"):
        kit.forget_state()
    HARMS[harm](kit)
    kit.reopen_and_check()
    kit.fill(7)
    kit.check()
    kit.close()
    assert inspect_store(kit.root, kit.config).problems == []


def test_pages_that_never_reached_the_disk_are_derived_again(kit: Kit) -> None:
    kit.open()
    kit.fill(33)
    assert kit.store is not None
    kit.store.flush_queues(0)
    kit.fill(27)
    kit.power_cut()
    # Entries behind the last flush: some lost, others not, as the kernel pleased.
    for queue_id in range(3):
        kit.damage_queue(queue_id, 12, bytes(20 * 3))
    kit.queue_file(0, 19)[0].write_bytes(bytes(QUEUE_BYTES))
    kit.reopen_and_check()


def test_queue_state_is_not_believed_when_the_log_ends_before_it(kit: Kit) -> None:
    kit.open()
    kit.fill(40)
    kit.close()
    state = load_queue_state(kit.root / "queuestate")
    assert state is not None
    assert state.dispatched == kit.messages[-1].offset + kit.messages[-1].size
    torn = kit.messages.pop()
    kit.damage_log(torn.offset, bytes(torn.size))
    kit.reopen_and_check()


@pytest.mark.parametrize("stop", ["clean", "power"])
def test_power_cut_while_queues_are_rebuilt_leaves_no_state_that_vouches_for_them(
    kit: Kit, stop: str
) -> None:
    """Found by chaos.powercut: of the files written anew the last entry had come to the disk, which is all that a
    state compares, and the first had not."""
    store = kit.open()
    kit.fill(40)
    store.flush_queues(0)
    kit.close() if stop == "clean" else kit.power_cut()
    assert load_queue_state(kit.root / "queuestate") is not None
    shutil.rmtree(kit.root / "consumequeue" / "T" / "0")
    assert kit.open().recovered.rebuilt == ["T-0"]
    kit.power_cut()
    kit.damage_queue(0, 0, bytes(20))
    kit.reopen_and_check()


def test_queue_state_that_was_not_believed_once_never_is(kit: Kit) -> None:
    """The log may grow until it fits: what was derived anew meanwhile need not be on the disk."""
    store = kit.open()
    kit.fill(40)
    store.flush_queues(0)
    state = (kit.root / "queuestate").read_bytes()
    kit.power_cut()
    torn = kit.messages.pop()
    kit.damage_log(torn.offset, bytes(torn.size))
    kit.open()
    assert not (kit.root / "queuestate").exists()
    kit.put(torn.topic, torn.queue_id, torn.body)
    kit.check()
    kit.power_cut()
    (kit.root / "queuestate").write_bytes(state)  # had it stayed
    kit.damage_queue(0, 0, bytes(20))
    with pytest.raises(AssertionError):
        kit.reopen_and_check()


def test_store_without_log_files_forgets_its_queues(kit: Kit) -> None:
    kit.open()
    kit.fill(12)
    kit.close()
    shutil.rmtree(kit.root / "commitlog")
    kit.messages.clear()
    kit.reopen_and_check()
    kit.fill(12)
    kit.check()


def test_queue_deleted_and_begun_anew_is_rebuilt_from_its_new_beginning(kit: Kit) -> None:
    store = kit.open()
    kit.fill(10, queues=1)
    store.delete_topic("T")
    kit.messages.clear()
    kit.fill(4, queues=1)
    kit.check()
    kit.close()
    shutil.rmtree(kit.root / "consumequeue")
    kit.reopen_and_check()


def test_queue_whose_first_messages_left_the_log_starts_with_blank_entries(kit: Kit) -> None:
    kit.open()
    kit.fill(60)
    kit.close()
    first = min((kit.root / "commitlog").iterdir())
    first.unlink()
    shutil.rmtree(kit.root / "consumequeue")
    kept = [message for message in kit.messages if message.offset >= SEGMENT_BYTES]
    store = kit.open()
    for queue_id in range(3):
        of_queue = [message for message in kept if message.queue_id == queue_id]
        assert store.min_offset("T", queue_id) == of_queue[0].queue_offset
        assert store.max_offset("T", queue_id) == of_queue[-1].queue_offset + 1
    path = min((kit.root / "consumequeue" / "T" / "0").iterdir())
    assert path.read_bytes().startswith(BLANK_ENTRY)
    kit.close()
    # RocketMQ would now answer 0, and skip the messages of a whole file.
    assert kit.open().min_offset("T", 0) == next(
        message.queue_offset for message in kept if message.queue_id == 0
    )


def test_damage_in_the_durable_part_costs_only_its_own_file(kit: Kit) -> None:
    kit.open()
    kit.fill(120)
    kit.close()
    kit.forget_state()
    shutil.rmtree(kit.root / "consumequeue")
    kit.damage_log(kit.messages[30].offset + 4, b"\0\0\0\0")
    store = kit.open()
    last = kit.messages[-1]
    assert store.end == last.offset + last.size
    assert store.max_offset("T", last.queue_id) == last.queue_offset + 1
    assert store.queues.get("T", last.queue_id).entry(last.queue_offset)[0] == last.offset
    assert store.queues.get("T", 0).entry(kit.messages[30].queue_offset)[1] == 0x7FFFFFFF


def test_half_put_index_entries_are_taken_back(kit: Kit) -> None:
    store = kit.open()
    kit.fill(5)
    assert store.index is not None
    end = store.index.end
    before = store.index.headers[-1][1]
    end.put([7, 57, 107], kit.messages[-1].offset, kit.clock.ms)  # one slot; killed before seal()
    kit.crash()
    store = kit.reopen_and_check()
    assert store.index is not None
    assert store.index.headers[-1][1].slot_count == before.slot_count


def test_messages_of_a_failed_flush_are_looked_for_on_the_disk(kit: Kit) -> None:
    store = kit.open()
    kit.fill(5)
    store._mark.forget_boot()
    kit.crash()
    assert not kit.reopen_and_check().recovered.same_boot


def test_expired_queue_keeps_its_next_offset_when_its_files_are_lost(kit: Kit) -> None:
    store = kit.open()
    kit.fill(12, queues=1)
    for _ in range(60):
        kit.put("other")
    while store.dispatch():
        pass
    store.flush_queues(0)
    store.retention.usage = lambda path: (100, 88, 12)
    store.clean()
    assert store.free_retired() == 0
    assert store.log.start > kit.messages[11].offset
    kit.close()
    shutil.rmtree(kit.root / "consumequeue" / "T")
    for rebuilt in (["T-0"], []):
        store = kit.open()
        assert store.recovered.rebuilt == rebuilt
        assert (
            store.min_offset("T", 0) == store.max_offset("T", 0) == store.next_offset("T", 0) == 12
        )
        kit.close()


def test_files_of_a_begun_queue_that_a_power_cut_brings_back_hide_no_message(kit: Kit) -> None:
    """Found by tandemmq.chaos.powercut: a slave's queue began at 25, then the message at 7 came after all. With the
    blank entries of the beginning on the disk again, the message was taken for a second one of its offset."""
    store = kit.open()
    assert store.queues.begin("T", 0, 25)
    store.queues.flush()
    begun = kit.root.with_name("begun")
    shutil.copytree(kit.root / "consumequeue", begun)
    store.queues.delete_queue("T", 0)
    store.queue_tail("T", 0).next_offset = 7
    message = kit.put()
    while store.dispatch():
        pass
    store.flush_log()
    kit.crash()
    shutil.rmtree(kit.root / "consumequeue")
    begun.rename(kit.root / "consumequeue")
    kit.boot.write_text("boot 9")
    store = kit.open()
    found = store.get("T", 0, 7, 1)
    assert [bytes(record) for record in found.records] == [
        bytes(store.log.record_at(message.offset) or b"")
    ]
    assert store.max_offset("T", 0) == 25, "what was given away stays so"
