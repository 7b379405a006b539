"""What a broker does to its store, drawn from a seed, and what may be expected of it at any moment."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from tandemmq.storage import (
    Cut,
    Draft,
    FlushMode,
    MessageStore,
    StorageConfig,
    encode_properties,
    jsonfile,
    open_store,
    setaside,
)

TOPIC: Final = "Topic"
DELETED: Final = "Deleted"  # now and then
BEGUN: Final = "Begun"  # its queues begin somewhere
RECORDS_PER_WALK: Final = 5
QUEUES: Final = 3
SELDOM: Final = 3  # a queue that hardly anything goes to
HOUR_MS: Final = 3_600_000
SEGMENT_BYTES: Final = 8192
BURST: Final = 220  # entries of one queue that fill a page

#: topic, queue id
Queue = tuple[str, int]
MANY: Final = [
    (topic, queue_id)
    for topic in (TOPIC, TOPIC, TOPIC, DELETED, BEGUN)
    for queue_id in range(QUEUES)
]
FEW: Final = [(TOPIC, 0), (TOPIC, 1), (BEGUN, 0)]  # their files follow each other


class HandClock:
    """Wall time goes on by itself, so that messages differ in it."""

    def __init__(self, ms: int = 1_700_000_000_000) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        self.ms += 700
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms - 1_600_000_000_000


@dataclass(frozen=True, slots=True)
class Written:
    """One message of the log."""

    offset: int
    data: bytes
    store_ms: int
    topic: str
    queue_id: int
    queue_offset: int
    key: str
    body_size: int

    @property
    def end(self) -> int:
        return self.offset + len(self.data)

    @property
    def queue(self) -> Queue:
        return self.topic, self.queue_id


@dataclass(slots=True)
class Expected:
    """What must be found whenever power fails.

    logs      the messages of the log; two while one is being cut into the other, and either may be found
    promised  log offset: what lies below is on the disk, and with SYNC_FLUSH nothing above was acknowledged
    tables    versions of the table that may be found, the oldest first
    aside     files that were set aside, by name
    buried    below which log offset the messages of a topic are deleted; two while one is being deleted
    files     other small files, by name: the values that may be found
    returning progress on the disk may be of what was cut off the log, until it is saved again
    running   a store is open that took messages; how it flushes
    closed    it was closed in order, and said so
    """

    logs: list[list[Written]] = field(default_factory=lambda: [[]])
    promised: int = 0
    tables: tuple[int, int] = (0, 0)
    aside: dict[str, bytes] = field(default_factory=dict)
    buried: list[dict[str, int]] = field(default_factory=lambda: [{}])
    files: dict[str, list[Any]] = field(default_factory=dict)
    returning: bool = False
    running: FlushMode | None = None
    closed: bool = False

    def lives(self, each: Written) -> bool:
        """Whether a message is deleted for certain, or may be."""
        return all(each.offset >= buried.get(each.topic, 0) for buried in self.buried)


class Place(NamedTuple):
    """Where a workload runs and what draws it. quiet: in which what is done to other files counts for nothing."""

    root: Path
    boot_id: Path
    rng: random.Random
    quiet: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext


class Workload:
    """One store under a seeded stream of everything that touches the disk.

    weights  the names of some steps and how often each comes: all of them, as often as is good, without
    """

    WEIGHTS: ClassVar = {
        "put": 12, "dispatch": 6, "flush_log": 6, "flush_queues": 3, "flush_checkpoint": 3, "next_segment": 2,
        "save_table": 2, "cut": 2, "retain": 1, "restart": 1, "kill": 1, "delete_topic": 1, "begin_queue": 1,
        "fork": 1, "burst": 0, "undo_deletion": 1,
    }  # fmt: skip

    def __init__(self, place: Place, weights: dict[str, int] | None = None) -> None:
        self.root, self._boot_id, self._rng, self._quiet = place
        self.expected = Expected()
        self.clock = HandClock()
        self._stack = ExitStack()
        self._store: MessageStore | None = None
        self._numbers = 0
        self._mode = self._rng.choice(list(FlushMode))
        self.queues = MANY
        self.weights = dict(self.WEIGHTS if weights is None else weights)

    def run(self, steps: int) -> None:
        """From an empty directory to a store that is closed in order."""
        try:
            self._open()
            self._go_on(steps)
            self._close(clean=True)
        finally:
            self._stack.close()

    def successor(self, place: Place) -> Workload:
        """Who goes on with what a power cut left in a copy of the store."""
        return Workload(place, self.weights)

    def live_again(self, before: Expected, steps: int) -> None:
        """After a power cut of another workload: recover the store, which may be interrupted, and go on with it."""
        before = replace(before, aside=dict(before.aside), running=None, closed=False)
        self.expected = before
        try:
            self._open()
            self._numbers = 10_000 + self._rng.randrange(1 << 20)
            end = self.store.end
            log = next(
                log
                for log in before.logs
                if all(self._has(each) for each in log if each.end <= end)
            )
            table = jsonfile.load(self._table)
            version = int(table["version"]) if table is not None else 0
            before.logs = [[each for each in log if each.end <= end]]
            before.promised, before.tables = end, (version, version)
            known = next(each for each in reversed(before.buried) if self._knows(each))
            # What is written from the log's end on comes after every deletion.
            before.buried = [{topic: min(below, end) for topic, below in known.items()}]
            self._bury(self.store.tombstones.all())
            self._go_on(steps)
            self._close(clean=self._rng.random() < 0.5)
        finally:
            self._stack.close()

    def _knows(self, buried: dict[str, int]) -> bool:
        """Whether the store found these deletions, as far as they are of messages that its log has."""
        store = self.store
        found = store.tombstones.all()

        def within(below: int) -> int:
            return max(store.log.start, min(below, store.end))

        return all(
            within(buried.get(topic, 0)) == within(found.get(topic, 0))
            for topic in {**buried, **found}
        )

    def _has(self, each: Written) -> bool:
        store = self.store
        return (
            each.offset < store.log.start
            or bytes(store.log.record_at(each.offset) or b"") == each.data
        )

    def _go_on(self, steps: int) -> None:
        for name in self._rng.choices(list(self.weights), list(self.weights.values()), k=steps):
            step: Callable[[MessageStore], None] = getattr(self, f"_{name}")
            step(self.store)

    @property
    def store(self) -> MessageStore:
        assert self._store is not None
        return self._store

    def _open(self) -> None:
        config = config_of(self.root, self._mode)
        self._store = self._stack.enter_context(open_store(config, self.clock, self._boot_id))
        self._store.retention.local_hour = lambda ms: 4
        self._store.retention.usage = lambda path: (100, 1, 99)

    def _close(self, *, clean: bool) -> None:
        store = self.store
        if clean:
            self._dispatch(store)
            self.expected.running = None  # abort goes while the store is closed
        store.close(clean)
        self.expected.closed = clean and not (self.root / "abort").exists()
        self.expected.promised = max(self.expected.promised, self._end if clean else 0)
        self._stack.close()
        self._store = None

    @property
    def _end(self) -> int:
        log = self.expected.logs[-1]
        return log[-1].end if log else 0

    # --- steps ---

    def _put(self, store: MessageStore) -> None:
        self._running()
        for _ in range(self._rng.choice((1, 1, 3, 12))):
            self._put_one(store, *self._drawn_queue(), self._rng.choice((10, 100, 400, 1500)))

    def _running(self) -> None:
        self.expected.running = self._mode

    def _drawn_queue(self) -> Queue:
        topic, queue_id = self._rng.choice(self.queues)
        return topic, SELDOM if self._rng.random() < 0.03 else queue_id

    def _put_one(self, store: MessageStore, topic: str, queue_id: int, size: int) -> None:
        self.expected.logs[-1].append(self._written(store, topic, queue_id, size))

    def _written(self, store: MessageStore, topic: str, queue_id: int, size: int) -> Written:
        self._numbers += 1
        key = f"key{self._numbers:08d}"
        body = bytes([self._numbers % 255 + 1]) * size
        properties = encode_properties({"KEYS": key, "TAGS": "t"})
        placed = store.put(Draft(topic, queue_id, body, properties))
        record = store.log.record_at(placed.offset)
        assert record is not None
        data = bytes(record)
        stored_ms = store.log.store_ms_at(placed.offset) or 0
        queue_offset = int.from_bytes(data[20:28], "big")
        return Written(placed.offset, data, stored_ms, topic, queue_id, queue_offset, key, size)

    def _burst(self, store: MessageStore) -> None:
        """As many entries of one queue as fill a page, which is flushed by itself."""
        queue_id = self._rng.randrange(QUEUES)
        self._running()
        for _ in range(BURST):
            self._put_one(store, TOPIC, queue_id, 10)
        self._dispatch(store)
        store.flush_queues(1)

    def _dispatch(self, store: MessageStore) -> None:
        while store.dispatch():
            pass

    def _flush_log(self, store: MessageStore) -> None:
        self.expected.promised = max(self.expected.promised, store.flush_log())

    def _flush_queues(self, store: MessageStore) -> None:
        store.flush_queues(self._rng.choice((0, 0, 1)))

    def _flush_checkpoint(self, store: MessageStore) -> None:
        store.flush_checkpoint(store.whole(store.confirmed))

    def _next_segment(self, store: MessageStore) -> None:
        store.prepare_next_segment()

    @property
    def _table(self) -> Path:
        return self.root / "config" / "table.json"

    def _save_table(self, store: MessageStore) -> None:
        version = self.expected.tables[1] + 1
        self.expected.tables = (self.expected.tables[0], version)
        text = "x" * self._rng.choice((10, 3000))
        jsonfile.save(self._table, {"version": version, "text": text})
        self.expected.tables = (version, version)

    def _delete_topic(self, store: MessageStore) -> None:
        """As a broker does: the queues go, then the table with what was deleted where is saved."""
        topic = self._rng.choice((DELETED, DELETED, BEGUN))
        self._bury({**store.tombstones.all(), topic: store.end}, lambda: store.delete_topic(topic))

    def _bury(self, after: dict[str, int], act: Callable[[], None] = lambda: None) -> None:
        """Do what changes the tombstones to `after`, and save them."""
        store, expected = self.store, self.expected
        expected.buried = [expected.buried[-1], {**expected.buried[-1], **after}]
        act()
        jsonfile.save(store.tombstones.path, store.tombstones.to_json())
        # What retention lets the store forget stays deleted.
        expected.buried = [{**expected.buried[0], **store.tombstones.all()}]

    def _undo_deletion(self, store: MessageStore) -> None:
        """A new master has not heard of a deletion: the messages have queues again. Not of a topic that was made again
        since: its queues would begin twice."""
        expected, deleted = self.expected, store.tombstones.all()
        topics = [topic for topic in deleted if self._was_made_once(topic)]
        if not topics:
            return
        topic = self._rng.choice(topics)
        del deleted[topic]
        left = {name: below for name, below in expected.buried[-1].items() if name != topic}
        expected.buried = [expected.buried[-1], left]
        store.burials.follow(deleted, store.log.start)
        jsonfile.save(store.tombstones.path, store.tombstones.to_json())
        self._flush_log(store)
        self._take_over(store)
        expected.buried = [left]

    def _was_made_once(self, topic: str) -> bool:
        """Whether what its log has of a topic counts on in each queue."""
        start, ends = self.store.log.start, dict.fromkeys(range(SELDOM + 1), -1)
        for each in self.expected.logs[-1]:
            if each.topic == topic and each.offset >= start:
                if each.queue_offset <= ends[each.queue_id]:
                    return False
                ends[each.queue_id] = each.queue_offset
        return True

    def _begin_queue(self, store: MessageStore) -> None:
        """A new master's queues begin where its predecessor's had ended."""
        queue_id = self._rng.randrange(QUEUES)
        self._dispatch(store)
        if store.queues.begin(BEGUN, queue_id, self._rng.choice((1, 7, 25, 90))):
            self._take_over(store)

    def _cut(self, store: MessageStore) -> None:
        """As replication does: set aside, cut; then perhaps others of the same sizes, in the same places: what speaks
        of the old ones fits these, too."""
        expected, rng = self.expected, self._rng
        old = expected.logs[-1]
        kept = [each for each in old if each.offset >= store.log.start]
        if not kept:
            return
        at = (
            rng.randrange(len(kept)) if rng.random() < 0.7 else min(rng.randrange(4), len(kept) - 1)
        )
        end = kept[at].offset
        self._set_aside(store, end)
        new = [each for each in old if each.offset < end]
        expected.logs, expected.promised = [old, new], min(expected.promised, end)
        rng.choices((self._cut_at, self._starve_of_descriptors, self._die_cutting), (3, 1, 1))[0](
            end
        )
        store = self.store
        expected.logs, expected.promised = [new], end
        self._after_cut(store)
        if rng.random() < 0.5:
            self._cut_follows(store, kept[at : at + rng.choice((1, 5, len(kept)))])
            rng.choice((self._flush_log, self._dispatch, self._flush_queues))(store)

    def _cut_follows(self, store: MessageStore, lost: list[Written]) -> None:
        self._running()
        for each in lost:
            self._put_one(store, *self._drawn_queue_like(each), each.body_size)

    def _drawn_queue_like(self, each: Written) -> Queue:
        """With a topic of the same length."""
        return self._rng.choice([one for one in self.queues if len(one[0]) == len(each.topic)])

    def _fork(self, store: MessageStore) -> None:
        """Messages that a state vouches for give way to others of the same sizes, of other queues."""
        self._running()
        first, second = self._rng.sample([(TOPIC, queue_id) for queue_id in range(QUEUES)], 2)
        end = store.end
        for queue in (first, first):
            self._put_one(store, *queue, 100)
        self._dispatch(store)
        store.flush_queues(0)
        self.expected.logs.append([each for each in self.expected.logs[-1] if each.offset < end])
        self.expected.promised = min(self.expected.promised, end)
        self._cut_at(end)
        self.expected.logs, self.expected.promised = self.expected.logs[-1:], end
        self._after_cut(store)
        for queue in (second, first):
            self._put_one(store, *queue, 100)
        self._flush_log(store)
        self._rest()

    def _set_aside(self, store: MessageStore, end: int) -> None:
        expected = self.expected
        ranges = setaside.file_ranges(store.log, end, store.end)
        content = b"".join(
            each.path.read_bytes()[each.position : each.position + each.size] for each in ranges
        )
        aside = setaside.keep(self.root, ranges, end, len(expected.aside) + 1)
        expected.aside[aside.path.name] = content

    def _cut_at(self, end: int) -> None:
        cut = Cut(self.store, end)
        try:
            cut.prepare()
            cut.make()
            cut.flush()
        finally:
            cut.end()

    def _starve_of_descriptors(self, end: int) -> None:
        """A cut that cannot be flushed, for there is no descriptor to be had. The process ends, and in order."""
        cut = Cut(self.store, end)
        try:
            cut.prepare()
            cut.make()
            with _no_descriptors(), contextlib.suppress(OSError):
                cut.flush()
        finally:
            cut.end()
        if self._rng.random() < 0.5:
            self._flush_log(self.store)
            return
        self._close(clean=True)
        self.expected.logs = self.expected.logs[-1:]
        self._rest()
        self._open()

    def _die_cutting(self, end: int) -> None:
        """Killed before the cut was flushed. The next process finds its zeros, and nothing says that they are not on
        the disk."""
        cut = Cut(self.store, end)
        try:
            cut.prepare()
            cut.make()
        finally:
            cut.end()
        self._kill(self.store)
        self._flush_log(self.store)

    def _after_cut(self, store: MessageStore) -> None:
        # As a promotion does before anybody puts: what was not dispatched has its queue offsets, too; and no
        # deletion is of what comes now.
        self._take_over(store)
        store.tombstones.log_ends_at(store.end)
        self._bury(store.tombstones.all())

    def _take_over(self, store: MessageStore) -> None:
        self._dispatch(store)
        takeover = store.takeover()
        while takeover.walk(RECORDS_PER_WALK):
            pass
        takeover.finish()

    def _retain(self, store: MessageStore) -> None:
        self._dispatch(store)
        self._flush_log(store)
        store.flush_queues(0)
        self.clock.ms += 100 * HOUR_MS
        store.clean()
        store.free_retired()

    def _restart(self, store: MessageStore) -> None:
        self._close(clean=True)
        self._mode = self._rng.choice(list(FlushMode))
        self._rest()
        self._open()

    def _rest(self) -> None:
        """Nothing runs for a while: power may fail."""
        os.close(os.open(self.root.parent / "meanwhile", os.O_WRONLY | os.O_CREAT))
        self.expected.closed = False

    def _kill(self, store: MessageStore) -> None:
        self._close(clean=False)
        mode, self._mode = self._mode, self._rng.choice(list(FlushMode))
        # until the store is open the mark of the process that died counts, and then everything is on the disk
        self.expected.running = None if mode is not self._mode else self.expected.running
        self._open()
        self.expected.promised = max(self.expected.promised, self._end)


@contextlib.contextmanager
def _no_descriptors() -> Iterator[None]:
    """No file can be opened, as where a process has all that it may have."""
    call = os.open

    def refuse(*arguments: Any, **options: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    os.open = refuse
    try:
        yield
    finally:
        os.open = call


def config_of(root: Path, mode: FlushMode = FlushMode.ASYNC) -> StorageConfig:
    return StorageConfig(
        root=str(root), segment_bytes=SEGMENT_BYTES, queue_segment_bytes=160, index_slots=50,
        index_entries=60, flush_mode=mode, delete_pause_ms=0, forced_release_ms=1, reserved_hours=72,
    )  # fmt: skip
