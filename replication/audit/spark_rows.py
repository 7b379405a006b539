"""Records as columns for Spark: which there are, and reading a range of a log into Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow
import xxhash
from pyspark.sql import types

from tandemmq.replication.audit.kernel import Line
from tandemmq.replication.audit.lines import lines_of
from tandemmq.replication.audit.stores import ReplicaStore
from tandemmq.storage import decode_properties, get_property, unpack_host

BATCH_BYTES: Final = 8 << 20
BATCH_ROWS: Final = 65_536

Value = Callable[[Line, memoryview], Any]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _host(host: bytes) -> str:
    address, port = unpack_host(host) if int.from_bytes(host[-4:], "big") >= 0 else ("", 0)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _property(name: bytes) -> Value:
    def value(line: Line, record: memoryview) -> str | None:
        found = get_property(line.properties, name)
        return None if found is None else _text(found)

    return value


def _record_hash(line: Line, record: memoryview) -> int:
    return int.from_bytes(xxhash.xxh3_64_digest(record), "big", signed=True)


_LONG, _INT, _STRING = types.LongType(), types.IntegerType(), types.StringType()

#: column -> (Spark type, its value)
COLUMNS: Final[dict[str, tuple[Any, Value]]] = {
    "physical_offset": (_LONG, lambda line, record: line.offset),
    "size": (_INT, lambda line, record: line.size),
    "version": (_INT, lambda line, record: line.magic),
    "topic": (_STRING, lambda line, record: _text(line.topic)),
    "queue_id": (_INT, lambda line, record: line.queue_id),
    "queue_offset": (_LONG, lambda line, record: line.queue_offset),
    "store_ms": (_LONG, lambda line, record: line.store_ms),
    "born_ms": (_LONG, lambda line, record: line.born_ms),
    "tags": (_STRING, _property(b"TAGS")),
    "keys": (_STRING, _property(b"KEYS")),
    "unique_key": (_STRING, _property(b"UNIQ_KEY")),
    "flag": (_INT, lambda line, record: line.flag),
    "sys_flag": (_INT, lambda line, record: line.sys_flag),
    "body_size": (_INT, lambda line, record: line.body_end - line.body_start),
    "body_crc": (_INT, lambda line, record: line.body_crc),
    "computed_crc": (_INT, lambda line, record: line.computed_crc),
    "reconsume_times": (_INT, lambda line, record: line.reconsume_times),
    "prepared_offset": (_LONG, lambda line, record: line.prepared_offset),
    "born_host": (_STRING, lambda line, record: _host(line.born_host)),
    "store_host": (_STRING, lambda line, record: _host(line.store_host)),
    "record_hash": (_LONG, _record_hash),
    "properties": (
        types.MapType(_STRING, _STRING, True),
        lambda line, record: list(decode_properties(line.properties).items()),
    ),
    "body": (types.BinaryType(), lambda line, record: bytes(_body(line, record))),
}
DEFAULT_COLUMNS: Final = tuple(name for name in COLUMNS if name not in ("properties", "body"))


def _body(line: Line, record: memoryview) -> memoryview:
    head = 72 + len(line.born_host) + len(line.store_host)
    return record[head : head + line.body_end - line.body_start]


def column_names(text: str) -> list[str]:
    """The columns an option asks for. Raises ValueError."""
    names = [name.strip() for name in text.split(",") if name.strip()] or list(DEFAULT_COLUMNS)
    unknown = sorted(set(names) - set(COLUMNS))
    if unknown:
        raise ValueError(f"no such columns: {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
    return names


def record_schema(names: Sequence[str]) -> Any:
    """Spark's schema of these columns."""
    return types.StructType([types.StructField(name, COLUMNS[name][0], True) for name in names])


_ARROW: Final = {
    "LongType": pyarrow.int64(),
    "IntegerType": pyarrow.int32(),
    "StringType": pyarrow.string(),
    "BinaryType": pyarrow.binary(),
}


def arrow_schema(names: Sequence[str]) -> Any:
    """Arrow's schema of these columns, as Spark expects batches of them."""
    return pyarrow.schema(
        [
            pyarrow.field(
                name,
                pyarrow.map_(pyarrow.string(), pyarrow.string())
                if name == "properties"
                else _ARROW[type(COLUMNS[name][0]).__name__],
            )
            for name in names
        ]
    )


def batches(
    replica: ReplicaStore, start: int, end: int, names: Sequence[str], topics: Sequence[str] = ()
) -> Iterator[Any]:
    """The records that begin in [start, end) as Arrow batches, damage stepped over.

    Raises AuditIncomplete.
    """
    schema = arrow_schema(names)
    values = [COLUMNS[name][1] for name in names]
    wanted = {topic.encode() for topic in topics}
    columns: list[list[Any]] = [[] for _ in names]
    taken = 0
    crc = "computed_crc" in names
    for view, base, lines in lines_of(replica, start, end, crc=crc):
        for line in lines:
            if wanted and line.topic not in wanted:
                continue
            record = view[line.offset - base : line.offset - base + line.size]
            for column, value in zip(columns, values, strict=True):
                column.append(value(line, record))
            taken += line.size
            if taken >= BATCH_BYTES or len(columns[0]) >= BATCH_ROWS:
                yield _batch(columns, schema)
                columns = [[] for _ in names]
                taken = 0
    if columns and columns[0]:
        yield _batch(columns, schema)


def _batch(columns: Sequence[list[Any]], schema: Any) -> Any:
    arrays = [
        pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
