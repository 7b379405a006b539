"""storage/tombstones.py: what was deleted stays deleted wherever queues are derived from a log that still has it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tandemmq.storage import (
    CorruptFile,
    Draft,
    MessageStore,
    StorageConfig,
    checkpoint,
    decode,
    inspect_store,
    jsonfile,
    open_store,
)
from tandemmq.storage.tombstones import FILE, Tombstones

Opener = Callable[..., MessageStore]


def config(root: Path) -> StorageConfig:
    return StorageConfig(root=str(root), segment_bytes=4096, queue_segment_bytes=200)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    with ExitStack() as stack:

        def opening(name: str = "store") -> MessageStore:
            return stack.enter_context(open_store(config(tmp_path / name)))

        yield opening


def put(store: MessageStore, first: int, count: int, topic: str = "T") -> None:
    for number in range(first, first + count):
        store.put(Draft(topic, number % 2, b"%d" % number, b""))


def derive(store: MessageStore) -> None:
    while store.dispatch(5):
        pass
    assert store.dispatch_backlog_bytes == 0 and store.flags.sound


def saved(store: MessageStore) -> None:
    jsonfile.save(store.tombstones.path, store.tombstones.to_json())


def bodies(store: MessageStore, topic: str = "T") -> list[int]:
    """What consumers of the topic see, from queue offset 0 on."""
    found = []
    for queue in store.queues.of_topic(topic):
        assert queue.min_offset == 0
        for queue_offset in range(queue.max_offset):
            [record] = store.get(topic, queue.queue_id, queue_offset, 1).records
            found.append(int(decode(bytes(record)).body))
    return sorted(found)


def seed(store: MessageStore, source: MessageStore) -> None:
    """The whole log of another store, as a slave gets it."""
    for segment in source.log.run.segments:
        stop = min(segment.end, source.log.end)
        store.append_raw(bytes(segment.view[: stop - segment.start]), segment.start)


def deleted_and_made_again(store: MessageStore) -> None:
    put(store, 0, 30)
    put(store, 0, 4, "Other")
    put(store, 0, 4, "Gone")
    derive(store)
    store.delete_topic("Gone")
    put(store, 30, 6)  # waits for its queues when the topic goes
    store.delete_topic("T")
    put(store, 100, 10)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("clean", [False, True])
def test_queues_lost_after_a_deletion_are_rebuilt_without_the_deleted(
    tmp_path: Path, again: bool, clean: bool
) -> None:
    """INV-43, in recovery."""
    with open_store(config(tmp_path / "store")) as store:
        put(store, 0, 30)
        derive(store)
        store.flush_queues(0)  # the queue state knows the topic's queues
        put(store, 30, 6)
        store.delete_topic("T")
        if again:
            put(store, 100, 10)
        derive(store)
        saved(store)
        root = tmp_path / "store"
        if not clean:
            root = Path(shutil.copytree(tmp_path / "store", tmp_path / "killed"))
    shutil.rmtree(root / "consumequeue", ignore_errors=True)
    with open_store(config(root)) as store:
        assert store.recovered.clean == clean
        assert bodies(store) == ([*range(100, 110)] if again else [])
        assert store.topics() == (["T"] if again else [])
        assert store.next_offset("T", 0) == (5 if again else 0)
    assert inspect_store(root, config(root)).problems == []


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_a_queue_that_begins_behind_a_deletion_gets_none_of_the_deleted(
    tmp_path: Path, stop: str
) -> None:
    """INV-43, found by chaos.powercut: a queue with blank entries only was found without asking for the tombstone,
    and began anew with the deleted messages."""
    with open_store(config(tmp_path / "store")) as store:
        put(store, 0, 6)
        derive(store)
        store.delete_topic("T")
        assert store.queues.begin("T", 0, 25)
        saved(store)
        store.close(clean=stop == "clean")
    (tmp_path / "store" / "queuestate").unlink(missing_ok=True)
    with open_store(config(tmp_path / "store")) as store:
        assert store.recovered.derived_from == 0
        assert store.queues.describes_nothing("T", 0)
        assert store.next_offset("T", 0) == store.max_offset("T", 0) == 25
        put(store, 100, 1)
        derive(store)
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (25, 26)


def test_dispatch_that_goes_back_gives_the_deleted_no_queue(opened: Opener) -> None:
    """INV-43: another topic's deletion is undone, and all of the log is derived once more."""
    store = opened()
    put(store, 0, 4, "Other")
    put(store, 0, 6)
    derive(store)
    for topic in ("Other", "T"):
        store.delete_topic(topic)
    below = store.end
    put(store, 100, 1)
    derive(store)
    store.truncate(below)
    assert store.queues.begin("T", 0, 25)
    store.burials.follow({"T": below}, 0)
    derive(store)
    assert bodies(store, "Other") == [0, 1, 2, 3]
    assert store.queues.describes_nothing("T", 0) and store.max_offset("T", 0) == 25


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("hole", [False, True])
def test_a_state_vouches_for_nothing_that_is_derived_again(
    tmp_path: Path, late: bool, hole: bool
) -> None:
    """A power cut after a deletion was undone, or heard of late, may take what was written anew: all of it, or a piece
    that is not the last."""
    boot = tmp_path / "boot"
    boot.write_text("one")
    with open_store(config(tmp_path / "store"), boot_id_path=boot) as store:
        put(store, 0, 30)
        below = store.end
        derive(store)
        if late:
            put(store, 30, 10)
            derive(store)
        else:
            store.delete_topic("T")
        put(store, 0, 4, "Other")
        derive(store)
        store.flush_queues(0)
        store.burials.follow({"T": below} if late else {}, 0)
        saved(store)
        derive(store)
        shutil.copytree(tmp_path / "store", tmp_path / "cut")
    boot.write_text("two")
    queue = tmp_path / "cut" / "consumequeue" / "T" / "0"
    wanted = range(15, 20) if late else range(15)
    if hole:
        path = queue / f"{wanted.start // 10 * 200:020d}"
        with path.open("r+b") as file:
            file.seek(wanted.start % 10 * 20)
            file.write(bytes(20))
    else:
        shutil.rmtree(queue.parent)
    with open_store(config(tmp_path / "cut"), boot_id_path=boot) as store:
        found = store.queues.get("T", 0)
        assert found is not None
        assert (found.min_offset, found.max_offset) == (wanted.start, wanted.stop)
        assert all(store.store_ms("T", 0, each) > 0 for each in wanted)


def test_a_process_that_dies_within_a_deletion_completes_it(tmp_path: Path) -> None:
    with open_store(config(tmp_path / "store")) as store:
        put(store, 0, 30)
        derive(store)
        store.tombstones.put("T", store.end)
        put(store, 100, 2, "Other")
        derive(store)
        saved(store)
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    with open_store(config(tmp_path / "killed")) as store:
        assert store.topics() == ["Other"]


def test_messages_that_wait_for_their_queues_go_with_their_topic(opened: Opener) -> None:
    store = opened()
    deleted_and_made_again(store)
    derive(store)
    assert bodies(store) == [*range(100, 110)]
    assert bodies(store, "Other") == [0, 1, 2, 3]


def test_a_seeded_store_derives_nothing_that_was_deleted(opened: Opener) -> None:
    master, slave = opened("master"), opened("slave")
    deleted_and_made_again(master)
    buried, undone = slave.burials.follow(master.tombstones.all(), 0)
    assert (buried, undone) == (["Gone", "T"], [])
    seed(slave, master)
    derive(slave)
    assert sorted(slave.topics()) == ["Other", "T"]
    assert bodies(slave) == [*range(100, 110)]
    assert bodies(slave, "Other") == [0, 1, 2, 3]


def test_a_store_that_hears_late_of_a_deletion_has_exactly_the_new_messages(
    opened: Opener,
) -> None:
    """It derived old and new ones by then, the new ones at places of the old ones."""
    master, slave = opened("master"), opened("slave")
    deleted_and_made_again(master)
    seed(slave, master)
    derive(slave)
    slave.flush_queues(0)
    slave.burials.follow(master.tombstones.all(), 0)
    derive(slave)
    assert sorted(slave.topics()) == ["Other", "T"]
    assert bodies(slave) == [*range(100, 110)]
    assert bodies(slave, "Other") == [0, 1, 2, 3]


def test_a_deletion_that_its_master_took_with_it_is_undone(opened: Opener) -> None:
    store = opened()
    deleted_and_made_again(store)
    derive(store)
    kept = bodies(store, "Other")
    assert store.burials.follow({}, store.log.start) == ([], ["Gone", "T"])
    derive(store)
    # 36 messages, and 10 that were given queue offsets from 0 again: they begin the queues anew
    assert bodies(store) == [*range(100, 110)]
    store = opened("second")
    put(store, 0, 30)
    derive(store)
    store.delete_topic("T")
    put(store, 0, 4, "Other")
    derive(store)
    store.burials.follow({}, store.log.start)
    derive(store)
    assert bodies(store) == [*range(30)] and bodies(store, "Other") == kept


def test_deletions_that_a_master_needs_no_more_stay_with_who_needs_them(opened: Opener) -> None:
    store = opened()
    put(store, 0, 30)
    derive(store)
    store.delete_topic("T")
    below = store.end
    assert store.burials.follow({}, below) == ([], [])
    assert store.tombstones.all() == {"T": below}


def test_retention_takes_a_deletion_with_its_last_message(opened: Opener) -> None:
    store = opened()
    put(store, 0, 10)
    store.delete_topic("T")
    put(store, 0, 100, "Other")
    derive(store)
    store.flush_queues(0)
    store.retention.usage = lambda path: (100, 88, 12)
    for _ in range(20):
        store.clean()
    assert store.log.start > 0 and store.tombstones.all() == {}


def test_a_log_that_goes_on_before_a_deletion_counts_what_is_written_there(opened: Opener) -> None:
    store = opened()
    put(store, 0, 10)
    derive(store)
    store.burials.follow({"T": store.end + 1000}, 0)
    store.tombstones.log_ends_at(store.end)
    put(store, 100, 4)
    derive(store)
    assert bodies(store) == [100, 101, 102, 103]


def test_a_topic_that_never_had_a_message_leaves_no_tombstone(opened: Opener) -> None:
    store = opened()
    put(store, 0, 2)
    derive(store)
    store.delete_topic("Empty")
    assert store.tombstones.all() == {}


@pytest.mark.parametrize(
    "text", ['{"deletedTopics": {}}', '{"format": 1, "deletedTopics": {"T": "x"}}', "nonsense"]
)
def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path, text: str) -> None:
    """It must not count as an empty one: every deleted topic would come back."""
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CorruptFile, match="deletedTopics"):
        Tombstones(tmp_path).load()


def test_planted_bug_a_derivation_that_forgets_deletions_is_found(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a seeded slave had before there were tombstones."""
    monkeypatch.setattr(Tombstones, "of", lambda self, topic: 0)
    with pytest.raises(AssertionError, match="assert "):
        test_a_seeded_store_derives_nothing_that_was_deleted(opened)


def test_nothing_is_vouched_for_while_a_deletion_is_on_its_way(opened: Opener) -> None:
    """INV-43: what a flush noted before the queues went must not come to the disk after them."""
    store = opened()
    put(store, 0, 6)
    derive(store)
    store.flush_queues()
    state = Path(store.config.root) / "queuestate"
    with store.durability.doubting():
        store.durability.forget_state()
        store.flush_queues()
        assert not state.exists()
        store.burials.follow({"T": store.end}, 0)
        assert not state.exists()
    store.flush_queues()
    assert state.exists()
    held = checkpoint.load_queue_state(state)
    assert held is not None and not held.queues
