"""Spark data sources over RocketMQ's files: commitlog, commitlog_blocks, commitlog_diff, consumequeue.

    register(spark)
    spark.read.format("commitlog").option("columns", "topic,queue_offset,store_ms").load("/data/store")

Tasks read files themselves: a place is a directory that every executor sees, a URI that pyarrow opens, or
the HTTP port of a running broker (http://HOST:PORT, with option token or tokenFile).
There is no column pruning in the Python data source API, so `columns` says what is built; filters are
options, too (topics, startOffset, endOffset). Readers and partitions hold plain values: they are pickled.
Nobody imports this module but tandemmq, when Spark was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from tandemmq.replication.audit.blocks import Range, digest_segment
from tandemmq.replication.audit.islands import Compared, find_islands
from tandemmq.replication.audit.kernel import Island
from tandemmq.replication.audit.live import Access
from tandemmq.replication.audit.shelves import BLANK_SIZE, Queue, Queues, parse_entry
from tandemmq.replication.audit.spark_rows import COLUMNS, batches, column_names, record_schema
from tandemmq.replication.audit.stores import ReplicaStore, open_replica
from tandemmq.replication.audit.walking import log_end, ranges_of
from tandemmq.storage import QUEUE_ENTRY_BYTES

PARTITION_BYTES: Final = 256 << 20
PARTITION_BYTES_DIGEST: Final = 1 << 30  # a task costs 40 ms: less of them do the same work
STREAM_BYTES_MAX: Final = 256 << 20
QUEUE_ROWS_MAX: Final = 65_536


def register(spark: Any) -> None:
    """Make every format known to a session."""
    for source in (CommitLog, CommitLogBlocks, CommitLogDiff, ConsumeQueueSource):
        spark.dataSource.register(source)


class Piece(InputPartition):
    """What one task does: plain values."""

    def __init__(self, **values: Any) -> None:
        super().__init__(values)


def _values(partition: InputPartition | None) -> dict[str, Any] | None:
    """None for the one partition that Spark makes out of an empty list."""
    value = partition.value if partition is not None else None
    return value if isinstance(value, dict) else None


def _place(options: Any) -> str:
    place: str = options.get("path", "")
    if not place:
        raise ValueError("give the store's directory or URI: .load(PLACE)")
    return place


def _option(options: Any, name: str, default: str) -> str:
    """An option by its name: Spark hands them over in lower case to some, as written to others."""
    found: str = options.get(name.lower(), options.get(name, default))
    return found


def access_of(options: Any) -> Access:
    """How running brokers are read: options token or tokenFile, ca or caFile. Raises OSError."""
    token, ca = _option(options, "token", ""), _option(options, "ca", "")
    token_file, ca_file = _option(options, "tokenFile", ""), _option(options, "caFile", "")
    if not token and token_file:
        token = Path(token_file).read_text(encoding="utf-8").strip()
    if not ca and ca_file:
        ca = Path(ca_file).read_text(encoding="utf-8")
    return Access(token, ca)


# --- commitlog ------------------------------------------------------------------------------------


class CommitLog(DataSource):
    """Records. Options: columns, startOffset, endOffset, topics (comma separated), partitionBytes, crc."""

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def schema(self) -> Any:
        return record_schema(column_names(self.options.get("columns", "")))

    def reader(self, schema: Any) -> DataSourceReader:
        return _RecordReader(schema, dict(self.options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _RecordStream(schema, dict(self.options))


class _RecordReading:
    """What batch and stream share."""

    def __init__(self, schema: Any, options: dict[str, str]) -> None:
        self._columns = [field.name for field in schema.fields]
        unknown = sorted(set(self._columns) - set(COLUMNS))
        if unknown:
            raise ValueError(
                f"no such columns: {', '.join(unknown)}; there are {', '.join(COLUMNS)}"
            )
        self._place = _place(options)
        self._access = access_of(options)
        self._start = int(_option(options, "startOffset", "0"))
        self._end = int(_option(options, "endOffset", "-1"))
        self._topics = [t for t in options.get("topics", "").split(",") if t]
        size = _option(options, "partitionBytes", str(PARTITION_BYTES))
        self._partition_bytes = int(size)
        limit = _option(options, "maxBytesPerTrigger", "")
        self._stream_bytes = int(limit) if limit else STREAM_BYTES_MAX

    def _open(self) -> ReplicaStore:
        return open_replica(self._place, "log", access=self._access)

    def _pieces(self, start: int, end: int) -> list[InputPartition]:
        replica = self._open()
        try:
            return [
                Piece(first=first, end=stop)
                for first, stop in ranges_of(replica, start, end, self._partition_bytes)
            ]
        finally:
            replica.close()

    def _read(self, partition: InputPartition) -> Iterator[Any]:
        piece = _values(partition)
        if piece is None:
            return
        replica = self._open()
        try:
            yield from batches(replica, piece["first"], piece["end"], self._columns, self._topics)
        finally:
            replica.close()


class _RecordReader(_RecordReading, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        replica = self._open()
        try:
            end = self._end if self._end >= 0 else log_end(replica)
        finally:
            replica.close()
        return self._pieces(self._start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._read(partition)


class _RecordStream(_RecordReading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A growing log. The offset is {"off": log offset of a record boundary}."""

    _prepared = -1

    def initialOffset(self) -> dict[str, int]:
        replica = self._open()
        try:
            return {"off": max(self._start, replica.start)}
        finally:
            replica.close()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._stream_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        replica = self._open()
        try:
            self._prepared = log_end(replica)
        finally:
            replica.close()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        most = -1 if isinstance(limit, ReadAllAvailable) else self._stream_bytes
        replica = self._open()
        try:
            end = log_end(replica, start["off"], most, self._prepared)
        finally:
            replica.close()
        return {"off": max(end, start["off"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self._pieces(start["off"], end["off"])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._read(partition)


# --- commitlog_blocks -----------------------------------------------------------------------------


class CommitLogBlocks(DataSource):
    """Level 1: one row per block. Options: places (JSON name -> place), startOffset, endOffset."""

    @classmethod
    def name(cls) -> str:
        return "commitlog_blocks"

    def schema(self) -> str:
        return "replica string, segment long, block long, size long, xxh3 string"

    def reader(self, schema: Any) -> DataSourceReader:
        return _BlockReader(dict(self.options))


class _BlockReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        places = options.get("places")
        self._access = access_of(options)
        self._places = json.loads(places) if places else {"log": _place(options)}
        self._start = int(_option(options, "startOffset", "0"))
        self._end = int(_option(options, "endOffset", "-1"))
        self._segment_bytes = int(_option(options, "segmentBytes", "0"))
        size = _option(options, "partitionBytes", str(PARTITION_BYTES_DIGEST))
        self._partition_bytes = int(size)

    def partitions(self) -> Sequence[InputPartition]:
        pieces: list[dict[str, Any]] = []
        for name, place in self._places.items():
            replica = open_replica(place, name, self._segment_bytes, self._access)
            try:
                end = self._end if self._end >= 0 else log_end(replica)
                for first, stop in _segments_within(replica, self._start, end):
                    last = pieces[-1] if pieces else None
                    if last is None or last["size"] + stop - first > self._partition_bytes:
                        last = {"size": 0, "parts": []}
                        pieces.append(last)
                    last["parts"].append((name, place, first, stop))
                    last["size"] += stop - first
            finally:
                replica.close()
        return [Piece(parts=piece["parts"]) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        piece = _values(partition)
        if piece is None:
            return
        rows: list[tuple[str, int, int, int, str]] = []
        opened: dict[str, ReplicaStore] = {}
        try:
            for name, place, first, stop in piece["parts"]:
                if name not in opened:
                    opened[name] = open_replica(place, name, self._segment_bytes, self._access)
                replica = opened[name]
                segment = first - first % replica.segment_bytes
                for block in digest_segment(replica.log, segment, first, stop):
                    rows.append((name, segment, block.block, block.size, block.xxh3.hex()))
        finally:
            for replica in opened.values():
                replica.close()
        yield _batch(("replica", "segment", "block", "size", "xxh3"), "sllls", rows)


def _segments_within(replica: ReplicaStore, start: int, end: int) -> Iterator[tuple[int, int]]:
    for file in replica.segments:
        first, stop = max(start, file.start), min(end, file.start + replica.segment_bytes)
        if first < stop:
            yield first, stop


def _batch(names: Sequence[str], kinds: str, rows: Sequence[Sequence[Any]]) -> Any:
    types = {"s": pyarrow.string(), "l": pyarrow.int64(), "i": pyarrow.int32(),
             "b": pyarrow.binary(), "o": pyarrow.bool_()}  # fmt: skip
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    fields = [pyarrow.field(n, types[k]) for n, k in zip(names, kinds, strict=True)]
    arrays = [
        pyarrow.array(column, field.type) for column, field in zip(columns, fields, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=pyarrow.schema(fields))


# --- commitlog_diff -------------------------------------------------------------------------------

NO_ISLAND: Final = Island._make([0] * len(Island._fields))
_ISLAND_NAMES: Final = ("kind", *Island._fields, "equal_records", "padding_bytes")


class CommitLogDiff(DataSource):
    """Level 2: one row per island of differing ranges. Options: reference, replica (places), ranges (JSON
    [[segment, start, end], ...]), endOffset. kind is `island`, or `total` once per task for the counts."""

    @classmethod
    def name(cls) -> str:
        return "commitlog_diff"

    def schema(self) -> str:
        flags = {"paired", "at_end"}
        wide = {"content_a", "content_b"}  # unsigned 64 bits: text
        parts = ["kind string"]
        for field in _ISLAND_NAMES[1:]:
            kind = "boolean" if field in flags else "string" if field in wide else "long"
            parts.append(f"{field} {kind}")
        return ", ".join(parts)

    def reader(self, schema: Any) -> DataSourceReader:
        return _DiffReader(dict(self.options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _DiffStream(dict(self.options))


class _Diffing:
    """What batch and stream share."""

    _kinds: ClassVar[str] = "s" + "".join(
        "o" if n in ("paired", "at_end") else "s" if n.startswith("content") else "l"
        for n in _ISLAND_NAMES[1:]
    )

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._segment_bytes = int(_option(options, "segmentBytes", "0"))
        self._start = int(_option(options, "startOffset", "0"))
        self._end = int(_option(options, "endOffset", "-1"))
        for name in ("reference", "replica"):
            if name not in options:
                raise ValueError(f"give option {name}: a store's directory or URI")

    def _open(self, name: str) -> ReplicaStore:
        return open_replica(
            self._options[name], name, self._segment_bytes, access_of(self._options)
        )

    def _islands(
        self, ranges: Sequence[Sequence[int]], end: int, aligned: bool = False
    ) -> Iterator[Any]:
        reference, replica = self._open("reference"), self._open("replica")
        try:
            compared = Compared()
            pieces = [Range(*piece) for piece in ranges]
            islands = find_islands(reference, replica, pieces, end, compared, aligned=aligned)
        finally:
            reference.close()
            replica.close()
        rows = [("island", *_signed(island), 0, 0) for island in islands]
        empty = _signed(NO_ISLAND)
        rows.append(("total", *empty, compared.records, compared.padding_bytes))
        yield _batch(_ISLAND_NAMES, self._kinds, rows)


def _signed(island: Island) -> tuple[Any, ...]:
    return tuple(
        f"{value:x}" if name.startswith("content") else bool(value) if name in ("paired", "at_end")
        else value
        for name, value in zip(Island._fields, island, strict=True)
    )  # fmt: skip


def island_of(row: Any) -> Island:
    """An Island out of a row of commitlog_diff."""
    values: list[Any] = [
        int(row[name], 16) if name.startswith("content") else row[name] for name in Island._fields
    ]
    return Island(*values)


class _DiffReader(_Diffing, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        ranges = json.loads(self._options.get("ranges", "[]"))
        slots = int(self._options.get("tasks", "8"))
        total = sum(end - start for _, start, end in ranges)
        size = max(16 << 20, total // max(1, slots))
        pieces: list[list[list[int]]] = []
        used = 0
        for piece in ranges:
            if not pieces or used + piece[2] - piece[1] > size:
                pieces.append([])
                used = 0
            pieces[-1].append(piece)
            used += piece[2] - piece[1]
        return [Piece(ranges=piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        piece = _values(partition)
        if piece is not None:
            yield from self._islands(piece["ranges"], self._end)


class _DiffStream(_Diffing, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Two growing logs. The offset is {"off": up to where both were compared}.

    Rows of other kinds tell what could not be compared as it came: `skipped`, a range that retention
    took before; `cut`, a range that a failover cut off and that was written anew: it is compared again.
    """

    _prepared = -1
    _cut = -1

    @contextmanager
    def _both(self) -> Iterator[tuple[ReplicaStore, ReplicaStore]]:
        reference = self._open("reference")
        try:
            replica = self._open("replica")
            try:
                yield reference, replica
            finally:
                replica.close()
        finally:
            reference.close()

    def initialOffset(self) -> dict[str, int]:
        with self._both() as (reference, replica):
            return {"off": max(self._start, reference.start, replica.start)}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(STREAM_BYTES_MAX)

    def prepareForTriggerAvailableNow(self) -> None:
        self._prepared = self._common_end(self.initialOffset()["off"], -1)

    def _common_end(self, start: int, most: int) -> int:
        """The reference says where records end; the replica, how far it has bytes."""
        with self._both() as (reference, replica):
            start = max(start, reference.start, replica.start)
            held = log_end(replica, start, most, self._prepared)
            return min(log_end(reference, start, most, self._prepared), held)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        most = -1 if isinstance(limit, ReadAllAvailable) else STREAM_BYTES_MAX
        end = self._common_end(start["off"], most)
        if end < start["off"] and not 0 <= self._cut <= end:
            self._cut = end
        return {"off": max(start["off"], end)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        first = start["off"]
        pieces: list[InputPartition] = []
        with self._both() as (reference, replica):
            if 0 <= self._cut < first < end["off"]:
                pieces.append(Piece(note="cut", start=self._cut, end=first))
                first, self._cut = self._cut, -1
            kept = min(end["off"], max(reference.start, replica.start))
            if first < kept:
                pieces.append(Piece(note="skipped", start=first, end=kept))
                first = kept
            size = reference.segment_bytes
            for at, stop in _segments_within(reference, first, end["off"]):
                pieces.append(Piece(ranges=[[at - at % size, at, stop]], end=end["off"]))
        return pieces

    def read(self, partition: InputPartition) -> Iterator[Any]:
        piece = _values(partition)
        if piece is not None and "note" in piece:
            told = NO_ISLAND._replace(start=piece["start"], end=piece["end"])
            yield _batch(_ISLAND_NAMES, self._kinds, [(piece["note"], *_signed(told), 0, 0)])
        elif piece is not None:
            yield from self._islands(piece["ranges"], piece["end"], True)


# --- consumequeue ---------------------------------------------------------------------------------


class ConsumeQueueSource(DataSource):
    """Entries of consume queues. Options: topics (comma separated), partitions (how many tasks)."""

    @classmethod
    def name(cls) -> str:
        return "consumequeue"

    def schema(self) -> str:
        return (
            "topic string, queue_id int, queue_offset long, physical_offset long, size int,"
            " tags_code long, blank boolean"
        )

    def reader(self, schema: Any) -> DataSourceReader:
        return _QueueReader(dict(self.options))


class _QueueReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._place = _place(options)
        self._access = access_of(options)
        self._topics = {t for t in options.get("topics", "").split(",") if t}
        self._tasks = int(options.get("partitions", "8"))

    def partitions(self) -> Sequence[InputPartition]:
        with self._queues() as queues:
            names = [
                name
                for name in queues.by_name
                if not self._topics or name[0].decode("utf-8", "replace") in self._topics
            ]
        return [
            Piece(queues=names[first :: self._tasks])
            for first in range(min(self._tasks, len(names)))
        ]

    @contextmanager
    def _queues(self) -> Iterator[Queues]:
        replica = open_replica(self._place, "log", access=self._access)
        try:
            queues = replica.queues
            if queues is None:
                raise ValueError("consume queues are read from directories and brokers only")
            yield queues
        finally:
            replica.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        piece = _values(partition)
        if piece is None:
            return
        with self._queues() as queues:
            for name in piece["queues"]:
                yield from _queue_batches(queues.by_name[name])


def _queue_batches(queue: Queue) -> Iterator[Any]:
    columns = (
        "topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code", "blank"
    )  # fmt: skip
    topic = queue.topic.decode("utf-8", "replace")
    at, end = queue.min_offset, queue.max_offset
    while at < end:
        data = queue.entries(at, min(QUEUE_ROWS_MAX, end - at))
        if not data:
            break
        rows = []
        for position in range(0, len(data), QUEUE_ENTRY_BYTES):
            entry = parse_entry(data, position)
            blank = entry.size in (0, BLANK_SIZE)
            rows.append((topic, queue.queue_id, at, *entry, blank))
            at += 1
        yield _batch(columns, "sillilo", rows)
