"""The format `tandemmq` as Spark's Python data source: a thin shell around reading and sending.

Only this module imports pyspark. Spark pickles readers and writers: they hold options, checked, and ask in the
process that Spark runs them in.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tandemmq.spark.errors import OptionRefused
from tandemmq.spark.options import ReadOptions, WriteOptions, read_options, write_options
from tandemmq.spark.outgoing import RowIds, RowReader
from tandemmq.spark.planning import between
from tandemmq.spark.positions import Offsets, offsets_from, offsets_tree
from tandemmq.spark.pruning import Comparison, pruned
from tandemmq.spark.reading import Reading, Task, read_task
from tandemmq.spark.sending import send_rows
from tandemmq.spark.shapes import check_sent, read_ddl

_SIGNS: Final = {
    EqualTo: "=", In: "in", GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<=",
}  # fmt: skip
_QUERY: Final = "sql.streaming.queryId"
_MICRO_BATCH: Final = "streaming.sql.batchId"


class TandemSource(DataSource):
    """`spark.read`, `readStream`, `write` and `writeStream` with .format("tandemmq")."""

    @classmethod
    def name(cls) -> str:
        return "tandemmq"

    def schema(self) -> str:
        options = _either(dict(self.options))
        return read_ddl(options.columns, text=options.text)

    def reader(self, schema: Any) -> DataSourceReader:
        options = read_options(dict(self.options), streaming=False)
        return _FilteredReader(options) if options.pushdown else _Reader(options)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _StreamReader(read_options(dict(self.options), streaming=True))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer(_sent(schema, overwrite, dict(self.options)), f"batch {uuid.uuid4()}")

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _StreamWriter(_sent(schema, overwrite, dict(self.options)))


def _either(options: dict[str, str]) -> ReadOptions:
    """Options of a read whose kind Spark does not tell yet: what is wrong with both is said in the batch's words."""
    try:
        return read_options(options, streaming=False)
    except OptionRefused as problem:
        try:
            return read_options(options, streaming=True)
        except OptionRefused:
            raise problem from None


def _sent(schema: Any, overwrite: bool, options: dict[str, str]) -> WriteOptions:
    if overwrite:
        raise OptionRefused('a topic is only added to: write with .mode("append")')
    found = write_options(options)
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    check_sent(types, has_topic=bool(found.topic))
    return found


# Reading


class _Part(InputPartition):
    """A task's plain values."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


def _read(options: ReadOptions, partition: InputPartition) -> Iterator[Any]:
    if isinstance(partition.value, Task):  # None: Spark's one partition of an empty list
        yield from read_task(options, partition.value)


class _Reader(DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._filters: list[Comparison] = []

    def partitions(self) -> Sequence[InputPartition]:
        reading = Reading(self._options)
        return [_Part(task) for task in reading.tasks(pruned(reading.batch(), self._filters))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition)


class _FilteredReader(_Reader):
    """Takes filters, too. A class of its own: where Spark has pushdown switched off it refuses readers that would."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            sign = _SIGNS.get(type(each))
            if sign is not None and len(each.attribute) == 1:
                self._filters.append(Comparison(each.attribute[0], sign, each.value))
        return filters  # Spark judges the rows that are left


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are {"Orders": {"broker-a:0": 17}}."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._reading = Reading(options)
        self._target: Offsets | None = None

    def __getstate__(self) -> dict[str, object]:
        """For executors, which only read(): what asks the cluster stays in the driver, with its TLS context."""
        return {"_options": self._options}

    def initialOffset(self) -> dict[str, dict[str, int]]:
        return offsets_tree(self._reading.start())

    def getDefaultReadLimit(self) -> ReadLimit:
        rows_max = self._options.offsets_per_trigger
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._reading.target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return offsets_tree(self._reading.next(offsets_from(start), rows_max, self._target))

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        return offsets_tree(self._reading.latest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = between(offsets_from(start), offsets_from(end), checked=False)
        return [_Part(task) for task in self._reading.tasks(ranges)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._reading.commit(offsets_from(end))


# Writing


@dataclass
class _Sent(WriterCommitMessage):
    """How many rows a task stored."""

    rows: int


def _write(options: WriteOptions, job: str, batches: Iterator[Any]) -> _Sent:
    context = TaskContext.get()
    assert context is not None
    partition = context.partitionId()
    ids = RowIds(job, partition)
    reader = RowReader(options.topic, options.drops_reserved, ids, partition)
    return _Sent(send_rows(batches, options, reader))


class _Writer(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, job: str) -> None:
        self._options = options
        self._job = job

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _write(self._options, self._job, iterator)


class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_MICRO_BATCH)
        if query is None or batch is None:
            raise RuntimeError(f"Spark does not tell {_QUERY} and {_MICRO_BATCH} to this task")
        return _write(self._options, f"stream {query} {batch}", iterator)
