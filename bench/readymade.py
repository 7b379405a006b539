"""A Python source for Spark whose rows cost nothing: one batch of a topic, handed out again and again.

What Spark takes for a row of it, Spark takes for a row of every Python source, however fast that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tandemmq.spark.options import read_options
from tandemmq.spark.reading import Reading, Task, read_task
from tandemmq.spark.shapes import read_ddl

PARTITIONS = 8  # as many as the topic has queues


class _Share(NamedTuple):
    """task: where the batch comes from. rows: how many are made of it."""

    task: Task
    rows: int


class ReadyMade(DataSource):
    """Options: those of `tandemmq`, and rows."""

    @classmethod
    def name(cls) -> str:
        return "readymade"

    def schema(self) -> str:
        options = read_options(_without_rows(self.options), streaming=False)
        return read_ddl(options.columns, text=options.text)

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(_without_rows(self.options), int(self.options["rows"]))


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str], rows: int) -> None:
        self._options = options
        self._rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        reading = Reading(read_options(self._options, streaming=False))
        first = reading.tasks(reading.batch())[0]
        return [InputPartition(_Share(first, self._rows // PARTITIONS)) for _ in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        share: _Share = partition.value
        batch = next(iter(read_task(read_options(self._options, streaming=False), share.task)))
        for left in range(share.rows, 0, -batch.num_rows):
            yield batch.slice(0, min(left, batch.num_rows))


def _without_rows(options: Any) -> dict[str, str]:
    return {name: value for name, value in dict(options).items() if name != "rows"}
