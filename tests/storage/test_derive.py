"""The inner loop of dispatch: both implementations leave the same bytes, arrivals and positions."""

from __future__ import annotations

import os
import struct
from importlib import import_module
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tandemmq.storage.derive
from tandemmq.storage.errors import CorruptFile
from tandemmq.storage.record import (
    DELAY_TOPIC,
    Draft,
    SysFlag,
    encode,
    index_hash,
    java_hash,
    pack_host,
)

SEGMENT_BYTES = 1 << 16
LOG_OFFSET = 3 * SEGMENT_BYTES
LEVELS = {1: 1000, 2: 5000, 3: 10_000}
QUEUE_ROOM = 6  # entries; more of one queue take the slow way
INDEX_SLOTS = 11
INDEX_ROOM = 9


def implementations() -> list[Any]:
    if os.environ.get("TANDEM_PURE_PYTHON"):
        return [tandemmq.storage.derive]
    return [tandemmq.storage.derive, import_module("tandemmq.storage._derive")]


@pytest.fixture(params=implementations(), ids=lambda module: module.__name__)
def loops(request: pytest.FixtureRequest) -> Any:
    """tandemmq.storage.derive, then tandemmq.storage._derive."""
    return request.param


class SlowQueue:
    """Stands for a ConsumeQueue: notes what did not simply follow."""

    def __init__(self, name: str, queue_id: int, loops: Any) -> None:
        self.entries = bytearray(20 * QUEUE_ROOM)
        self.calls: list[tuple[int, ...]] = []
        self.end = loops.QueueEnd(name, queue_id, self)
        self.end.open(memoryview(self.entries), 0, len(self.entries))
        self.refuses = False

    def put(self, physical: int, size: int, code: int, queue_offset: int) -> bool:
        if self.refuses:
            raise CorruptFile("no more")
        self.calls.append((physical, size, code, queue_offset))
        return queue_offset % 2 == 0


class Sink:
    def __init__(self, loops: Any) -> None:
        self.loops = loops
        self.ends: dict[bytes, dict[int, Any]] = {}
        self.queues: dict[tuple[bytes, int], SlowQueue] = {}
        self.deleted_below: dict[bytes, int] = {}

    def find_end(self, topic: bytes, queue_id: int, physical_offset: int) -> Any:
        if b"/" in topic or physical_offset < self.deleted_below.get(topic, 0):
            return None
        queue = SlowQueue(topic.decode("utf-8", "replace"), queue_id, self.loops)
        self.queues[topic, queue_id] = queue
        self.ends.setdefault(topic, {})[queue_id] = queue.end
        return queue.end

    def close(self) -> None:
        for queue in self.queues.values():
            queue.end.close()


class Indexer:
    def __init__(self, loops: Any) -> None:
        self.files: list[bytearray] = []
        self.end = loops.IndexEnd(INDEX_SLOTS)
        self.make_room()

    def make_room(self) -> None:
        self.end.close()
        self.files.append(bytearray(40 + 4 * INDEX_SLOTS + 20 * INDEX_ROOM))
        if len(self.files) > 1:
            _, ms, _, physical = struct.unpack_from(">qqqq", self.files[-2])
            struct.pack_into(">qqqqii", self.files[-1], 0, ms, ms, physical, physical, 0, 1)
        self.end.open(memoryview(self.files[-1]), INDEX_ROOM)


def segment_of(drafts: list[tuple[Draft, int]], store_ms: int = 1_700_000_000_000) -> bytearray:
    """A segment with these (draft, queue offset) as records, zero behind them."""
    segment = bytearray(SEGMENT_BYTES)
    at = 0
    for number, (draft, queue_offset) in enumerate(drafts):
        record = encode(draft, queue_offset, LOG_OFFSET + at, store_ms + 700 * number)
        segment[at : at + len(record)] = record
        at += len(record)
    return segment


def run(
    loops: Any,
    segment: bytes | bytearray,
    *,
    queues: bool = True,
    index: bool = True,
    records_max: int = 1000,
    end: int = SEGMENT_BYTES,
    refuses: bool = False,
) -> Any:
    """Everything that derive() leaves behind, comparable."""
    sink = Sink(loops) if queues else None
    indexer = Indexer(loops) if index else None
    arrivals: list[Any] = []
    if refuses and sink is not None:
        queue = sink.find_end(b"T", 0, LOG_OFFSET).queue
        queue.refuses = True
    derived = loops.derive(
        memoryview(segment), 0, end, LOG_OFFSET, sink, indexer, LEVELS, arrivals, records_max
    )
    left = (
        derived[:5],
        repr(derived.failure),
        arrivals,
        sorted(
            (key, bytes(q.entries), q.calls, q.end.next_offset, q.end.physical_end)
            for key, q in (sink.queues.items() if sink else ())
        ),
        [bytes(file) for file in indexer.files] if indexer else [],
    )
    if sink:
        sink.close()
    if indexer:
        indexer.end.close()
    return left


topics = st.sampled_from(["T", "Topic_2", "%RETRY%g", "ключ", "a" * 127, "b" * 128, "bad/name"])
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=12)
keys = st.one_of(
    st.just("0A0000011A2B4AA298B705265C000001"),
    st.text("abc012 ", max_size=40),
    texts,
)
properties = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.tuples(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "xTAGS", "KEYSx"]), keys)
    ).map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()),
    keys.map(lambda key: f"KEYS\x01{key}\x02TAGS\x01{key}".encode()),
)
hosts = st.sampled_from([pack_host("10.0.0.1", 1), pack_host("2001:db8::1", 65535)])
drafts = st.builds(
    Draft,
    topic=st.one_of(topics, st.just(DELAY_TOPIC.decode())),
    queue_id=st.integers(-1, 3),
    body=st.binary(max_size=40),
    properties=properties,
    sys_flag=st.sampled_from(
        [0, 1, SysFlag.PREPARED, SysFlag.COMMIT, SysFlag.ROLLBACK, 0x80, 0xC0]
    ),
    born_host=hosts,
    store_host=hosts,
)
delayed = Draft(DELAY_TOPIC.decode(), 2, b"", b"DELAY\x013\x02TAGS\x01x\x02")


@pytest.mark.skipif(len(implementations()) == 1, reason="one implementation only")
@given(
    st.lists(st.tuples(drafts, st.integers(0, 4)), max_size=30),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 40),
)
@example([(delayed, 0)], [], True, True, 10)
def test_both_loops_leave_the_same(
    records: list[tuple[Draft, int]],
    damage: list[tuple[int, int]],
    queues: bool,
    index: bool,
    records_max: int,
) -> None:
    segment = segment_of(records)
    for at, value in damage:
        segment[at] = value
    readable, compiled = implementations()
    given_ = {"queues": queues, "index": index, "records_max": records_max}
    assert run(compiled, segment, **given_) == run(readable, segment, **given_)


@pytest.mark.skipif(len(implementations()) == 1, reason="one implementation only")
@given(
    st.lists(st.tuples(drafts, st.integers(0, 4)), max_size=8),
    st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 255)), max_size=3),
    st.booleans(),
)
def test_both_checks_stop_at_the_same_byte_with_the_same_words(
    records: list[tuple[Draft, int]], damage: list[tuple[int, int]], crc_checked: bool
) -> None:
    segment = segment_of(records)
    for at, value in damage:
        segment[at] = value
    readable, compiled = implementations()
    arguments = (memoryview(segment), 0, SEGMENT_BYTES, LOG_OFFSET, crc_checked)
    assert compiled.check(*arguments) == readable.check(*arguments)


@given(st.text(max_size=20), st.text(max_size=300))
@example("TopicTest", "k1")
@example("", "polygenelubricants")
@example("T", "")
def test_key_hash_is_javas(topic: str, key: str) -> None:
    topic = topic.encode("utf-8", "replace").decode()
    key = key.encode("utf-8", "replace").decode()
    for loops in implementations():
        assert loops.key_hash(topic.encode(), key.encode()) == index_hash(f"{topic}#{key}")


def test_documented_hashes(loops: Any) -> None:
    assert loops.key_hash(b"TopicTest", b"k1") == 2746024
    assert loops.key_hash(b"TopicTest", b"0A000001000000000000000000000001") == 426785963


def test_delay_topic_gets_its_delivery_time_as_tags_code(loops: Any) -> None:
    draft = Draft(DELAY_TOPIC.decode(), 2, b"", b"DELAY\x013\x02TAGS\x01TagA\x02")
    left = run(loops, segment_of([(draft, 0)], 1_700_000_001_532), index=False)
    assert left[3][0][1][12:20].hex() == "0000018bcfe5950c"
    assert left[2] == [("SCHEDULE_TOPIC_XXXX", 2, 1, 1_700_000_011_532)]


def test_entry_of_a_tagged_message(loops: Any) -> None:
    draft = Draft("T", 1, b"body", b"TAGS\x01TagA\x02")
    (_, entries, calls, next_offset, _) = run(loops, segment_of([(draft, 0)]))[3][0]
    assert entries[:20] == struct.pack(">qiq", LOG_OFFSET, 91 + 1 + 4 + 10, java_hash("TagA"))
    assert (calls, next_offset) == ([], 1)


def test_halves_and_inner_batches_get_no_queue_entry(loops: Any) -> None:
    for flag in (
        SysFlag.PREPARED,
        SysFlag.ROLLBACK,
        SysFlag.INNER_BATCH,
        SysFlag.INNER_BATCH | 0x40,
    ):
        draft = Draft("T", 0, b"", b"KEYS\x01k\x02", sys_flag=flag)
        left = run(loops, segment_of([(draft, 0)]))
        assert left[0][1] == 1
        assert left[3] == []
        indexed = struct.unpack_from(">i", left[4][0], 36)[0] - 1
        assert indexed == (0 if flag == SysFlag.ROLLBACK else 1)


def test_arrivals_of_one_queue_count_as_one_unless_their_tags_differ(loops: Any) -> None:
    red, blue = b"TAGS\x01red\x02", b"TAGS\x01blue\x02"
    records = [
        (Draft("T", 0, b"", tags), number) for number, tags in enumerate([red, red, blue, blue])
    ] + [(Draft("U", 5, b""), 0)]
    assert run(loops, segment_of(records))[2] == [
        ("T", 0, 2, java_hash("red")),
        ("T", 0, 4, java_hash("blue")),
        ("U", 5, 1, 0),
    ]


def test_failing_queue_ends_the_walk_at_its_record(loops: Any) -> None:
    records = [(Draft("U", 0, b""), 0), (Draft("T", 0, b""), 7), (Draft("U", 0, b""), 1)]
    left = run(loops, segment_of(records), refuses=True)
    assert left[0][:3] == (92, 1, 0)
    assert "no more" in left[1]
    assert left[2] == [("U", 0, 1, 0)]


def test_full_index_goes_on_in_the_next_file_with_the_same_record(loops: Any) -> None:
    keys = b"KEYS\x01" + b" ".join(b"key%d" % number for number in range(12)) + b"\x02"
    left = run(loops, segment_of([(Draft("T", 0, b"", keys), 0)]))
    counts = [struct.unpack_from(">i", file, 36)[0] for file in left[4]]
    assert counts == [INDEX_ROOM, 5]
    assert all(struct.unpack_from(">q", file, 16)[0] == LOG_OFFSET for file in left[4])


def test_walk_ends_in_front_of_a_record_that_is_not_whole(loops: Any) -> None:
    segment = segment_of([(Draft("T", 0, b"x"), 0), (Draft("T", 0, b"x"), 1)])
    left = run(loops, segment, end=93 + 92)
    assert left[0][:3] == (93, 1, loops_constant("MORE"))


def test_stale_record_is_no_record(loops: Any) -> None:
    record = encode(Draft("T", 0, b"x"), 0, 0, 5)
    segment = bytearray(SEGMENT_BYTES)
    segment[: len(record)] = record  # claims offset 0, lies at LOG_OFFSET
    assert run(loops, segment)[0][:3] == (0, 0, loops_constant("BROKEN"))
    found = loops.check(memoryview(segment), 0, SEGMENT_BYTES, LOG_OFFSET, True)
    assert (found.position, found.records, found.why) == (0, 0, "stale record of offset 0")


def loops_constant(name: str) -> int:
    value: int = getattr(tandemmq.storage.derive, name)
    return value


def test_range_outside_the_view_is_refused_by_the_compiled_loop() -> None:
    if len(implementations()) == 1:
        pytest.skip("one implementation only")
    compiled = implementations()[1]
    with pytest.raises(ValueError):
        compiled.derive(memoryview(bytes(10)), 0, 11, 0, None, None, {}, None, 1)
    with pytest.raises(ValueError):
        compiled.check(memoryview(bytes(10)), 5, 4, 0, True)
    with pytest.raises(ValueError):
        compiled.QueueEnd("T", 0, None).open(memoryview(bytearray(20)), 0, 21)
    with pytest.raises(ValueError):
        compiled.IndexEnd(5).open(memoryview(bytearray(79)), 1)
