"""A store against a list of what was put: random operations, kills, power cuts, clean stops, retention."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tandemmq.storage import (
    BatchItem,
    Draft,
    FlushMode,
    GetStatus,
    MessageStore,
    Selector,
    StorageConfig,
    decode,
    encode_properties,
    inspect_store,
    join_batch,
    jsonfile,
    open_store,
    tags_code,
)

SEGMENT_BYTES = 2048
SECTOR_BYTES = 512
QUEUE_BYTES = 160  # eight entries a file
#: in memory, where the fsyncs of hundreds of starts cost nothing
FAST_DIRECTORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
TOPICS = ("A", "B", "%RETRY%group")
TAGS = ("", "red", "blue")


class Clock:
    ms = 1_700_000_000_000

    def now_ms(self) -> int:
        self.ms += 7
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms - 1_600_000_000_000


@dataclass
class Put:
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    tag: str
    key: str
    offset: int
    end: int


def released(records: list[memoryview]) -> None:
    """Slices of the log that are kept would keep its files mapped."""
    for record in records:
        record.release()


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="store-model-", dir=FAST_DIRECTORY))
        self.root = self.base / "0"
        self.boot = self.base / "boot_id"
        self.boot.write_text("boot 0")
        self.clock = Clock()
        self.stack = ExitStack()
        self.puts: list[Put] = []  # in log order, those whose record is still there
        self.next: dict[tuple[str, int], int] = {}
        self.count = 0
        self.generation = 0
        self.mode = FlushMode.ASYNC
        self.saved_index: dict[str, bytes] = {}

    @initialize(mode=st.sampled_from(FlushMode))
    def begin(self, mode: FlushMode) -> None:
        self.mode = mode
        self.open()

    @property
    def config(self) -> StorageConfig:
        return StorageConfig(
            root=str(self.root),
            segment_bytes=SEGMENT_BYTES,
            queue_segment_bytes=QUEUE_BYTES,
            index_slots=20,
            index_entries=16,
            delete_pause_ms=0,
            flush_mode=self.mode,
        )

    def open(self) -> None:
        self.store: MessageStore = self.stack.enter_context(
            open_store(self.config, self.clock, self.boot)
        )
        if self.store.tombstones.unsaved:  # as a broker does, before it takes messages
            jsonfile.save(self.store.tombstones.path, self.store.tombstones.to_json())
        self.store.retention.usage = lambda path: (100, 10, 90)
        self.store.retention.local_hour = lambda ms: 12

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                self.stack.close()
                assert inspect_store(self.root, self.config).problems == []
        finally:
            shutil.rmtree(self.base)

    # --- what users do ---

    @rule(
        topic=st.sampled_from(TOPICS),
        queue_id=st.integers(0, 1),
        size=st.sampled_from([0, 1, 50, 50, 50, 300, 700]),
        tag=st.sampled_from(TAGS),
    )
    def put(self, topic: str, queue_id: int, size: int, tag: str) -> None:
        self.count += 1
        body, key = bytes([self.count % 256]) * size, f"k{self.count}"
        properties = encode_properties({"KEYS": key, **({"TAGS": tag} if tag else {})})
        placed = self.store.put(Draft(topic, queue_id, body, properties))
        self.note(topic, queue_id, placed.queue_offset, body, tag, key, placed.offset, placed.end)

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 4), tag=st.sampled_from(TAGS[1:]))
    def put_batch(self, topic: str, count: int, tag: str) -> None:
        items, keys = [], []
        for _ in range(count):
            self.count += 1
            keys.append(f"k{self.count}")
            properties = encode_properties({"KEYS": keys[-1], "TAGS": tag})
            items.append(BatchItem(0, memoryview(b"b" * self.count), properties))
        placed = self.store.put_batch(Draft(topic, 0, join_batch(items)))
        ends = [*placed.offsets[1:], placed.end]
        for index, (item, key) in enumerate(zip(items, keys, strict=True)):
            self.note(
                topic, 0, placed.first_queue_offset + index, bytes(item.body), tag, key,
                placed.offsets[index], ends[index],
            )  # fmt: skip

    def note(
        self, topic: str, queue_id: int, queue_offset: int, body: bytes, tag: str, key: str,
        offset: int, end: int,
    ) -> None:  # fmt: skip
        assert queue_offset == self.next.get((topic, queue_id), 0), "queue offsets count up"
        self.next[topic, queue_id] = queue_offset + 1
        self.puts.append(Put(topic, queue_id, queue_offset, body, tag, key, offset, end))

    @rule(records=st.sampled_from([1, 3, 1000]))
    def dispatch(self, records: int) -> None:
        self.store.dispatch(records)

    @rule()
    def flush_log(self) -> None:
        self.store.flush_log()
        assert self.store.flushed == self.store.end

    @rule(pages=st.sampled_from([0, 0, 2]))
    def flush_queues(self, pages: int) -> None:
        self.store.flush_queues(pages)
        if pages == 0:
            self.saved_index = self.index_files()
        self.store.flush_checkpoint(self.store.confirmed)

    @rule()
    def next_segment(self) -> None:
        self.store.prepare_next_segment()

    @rule()
    def retention(self) -> None:
        self.store.retention.usage = lambda path: (100, 88, 12)
        self.store.clean()
        self.store.free_retired()
        self.store.retention.usage = lambda path: (100, 10, 90)
        self.puts = [put for put in self.puts if put.offset >= self.store.log.start]

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        """INV-43, at any moment: with messages that wait for their queues, and queues not flushed."""
        self.store.delete_topic(topic)
        jsonfile.save(self.store.tombstones.path, self.store.tombstones.to_json())
        self.puts = [put for put in self.puts if put.topic != topic]
        self.next = {key: value for key, value in self.next.items() if key[0] != topic}

    # --- what happens to them ---

    @rule()
    def stop_and_start(self) -> None:
        self.stack.close()
        self.open()
        assert self.store.recovered.clean
        self.check()

    @rule()
    def kill(self) -> None:
        self.copy()
        self.open()
        assert self.store.recovered.same_boot or self.store.recovered.clean
        self.check()

    @rule(data=st.data())
    def power_cut(self, data: st.DataObject) -> None:
        """Bytes that were not flushed are there or not, as the kernel pleased."""
        flushed, end = self.store.flushed, self.store.end
        flushed_entries = {
            (queue.topic, queue.queue_id): (queue.flushed, queue.max_offset)
            for queue in self.store.queues
        }
        saved_index = self.saved_index
        self.copy()
        self.boot.write_text(f"boot {self.generation}")
        if flushed < end:
            sectors = st.integers(flushed // SECTOR_BYTES, end // SECTOR_BYTES)
            lost = data.draw(sectors, label="lost from") * SECTOR_BYTES
            count = data.draw(st.integers(1, 4), label="sectors lost")
            self.zero_log(max(lost, flushed), lost + count * SECTOR_BYTES)
        for (topic, queue_id), (first, stop) in flushed_entries.items():
            if first < stop and data.draw(st.booleans()):
                self.zero_entry(topic, queue_id, data.draw(st.integers(first, stop - 1)))
        if data.draw(st.booleans(), label="index as flushed"):
            shutil.rmtree(self.root / "index", ignore_errors=True)
            (self.root / "index").mkdir()
            for name, content in saved_index.items():
                (self.root / "index" / name).write_bytes(content)
        self.open()
        survived = [put for put in self.puts if put.end <= self.store.end]
        assert survived == self.puts[: len(survived)]
        assert all(put.end > flushed for put in self.puts[len(survived) :]), "flushed is kept"
        for put in reversed(self.puts[len(survived) :]):
            self.next[put.topic, put.queue_id] = put.queue_offset
        self.puts = survived
        self.check()

    def copy(self) -> None:
        self.generation += 1
        copy = self.base / str(self.generation)
        shutil.copytree(self.root, copy)
        self.stack.close()
        shutil.rmtree(self.root)
        self.root = copy

    def index_files(self) -> dict[str, bytes]:
        directory = self.root / "index"
        paths = directory.iterdir() if directory.exists() else ()
        return {path.name: path.read_bytes() for path in paths}

    def zero_log(self, start: int, end: int) -> None:
        for path in (self.root / "commitlog").iterdir():
            low, high = max(start, int(path.name)), min(end, int(path.name) + SEGMENT_BYTES)
            if low < high:
                with open(path, "r+b") as file:
                    file.seek(low - int(path.name))
                    file.write(bytes(high - low))

    def zero_entry(self, topic: str, queue_id: int, queue_offset: int) -> None:
        at = queue_offset * 20
        start = at - at % QUEUE_BYTES
        path = self.root / "consumequeue" / topic / str(queue_id) / f"{start:020d}"
        if path.exists():
            with open(path, "r+b") as file:
                file.seek(at - start)
                file.write(bytes(20))

    # --- what must be true ---

    def check(self) -> None:
        # INV-5
        store = self.store
        store.flush_log()
        while store.dispatch():
            pass
        by_queue: dict[tuple[str, int], list[Put]] = {}
        for put in self.puts:
            by_queue.setdefault((put.topic, put.queue_id), []).append(put)
        for (topic, queue_id), next_offset in self.next.items():
            assert store.next_offset(topic, queue_id) == next_offset
            assert store.max_offset(topic, queue_id) == next_offset
        for (topic, queue_id), puts in by_queue.items():
            assert store.min_offset(topic, queue_id) == puts[0].queue_offset
            self.read_all(topic, queue_id, puts, None)
            red = [put for put in puts if put.tag == "red"]
            self.read_all(topic, queue_id, red, frozenset({tags_code("red")}))
            for put in puts:
                found = store.query(topic, put.key, 64, 0, 1 << 62).records
                keys = [decode(record).properties for record in found]
                released(found)
                assert any(f"KEYS\x01{put.key}\x02".encode() in key for key in keys), put

    def read_all(
        self, topic: str, queue_id: int, puts: list[Put], codes: frozenset[int] | None
    ) -> None:
        offset = self.store.min_offset(topic, queue_id)
        bodies = []
        while offset < self.store.max_offset(topic, queue_id):
            result = self.store.get(topic, queue_id, offset, 32, selector=Selector(codes))
            assert result.next_offset > offset
            assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
            bodies += [decode(record).body for record in result.records]
            released(result.records)
            offset = result.next_offset
        assert bodies == [put.body for put in puts]


TestStoreAgainstModel = pytest.mark.timeout(300)(StoreMachine.TestCase)
TestStoreAgainstModel.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
