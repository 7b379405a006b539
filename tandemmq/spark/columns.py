"""Batches straight from stored records: compiled, with no object for a message in between.

The readable form is what everything else takes: messages, and the makers in batches.py. It gets what is odd, and all
where no compiler was at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy
import pyarrow

from tandemmq.cluster.client.runs import RecordRun
from tandemmq.storage.twins import compiled

_INTS: Final = {
    "queue_id": pyarrow.int32(),
    "queue_offset": pyarrow.int64(),
    "born_time": pyarrow.timestamp("us", tz="UTC"),
    "store_time": pyarrow.timestamp("us", tz="UTC"),
}


def read_columns(
    runs: list[memoryview], with_bodies: bool, with_properties: bool
) -> dict[str, Any] | None:
    """The compiled form's place: without one every batch is made of messages."""
    return None


COMPILED = compiled(globals(), "tandemmq.spark._columns")


def batch_of(
    runs: Sequence[RecordRun], schema: Any, epochs: Sequence[tuple[int, int]]
) -> Any | None:
    """One batch with the columns of a schema; None for what batches.py must make of messages.

    epochs  as there
    """
    found = read_columns(
        [each.records for each in runs], "body" in schema.names, "properties" in schema.names
    )
    if found is None:
        return None
    try:
        arrays = [_column(each, found, runs, epochs) for each in schema]
    except pyarrow.ArrowInvalid:  # a body that is no text: the readable form says which
        return None
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _column(
    field: Any,
    found: dict[str, Any],
    runs: Sequence[RecordRun],
    epochs: Sequence[tuple[int, int]],
) -> Any:
    name, rows = field.name, found["rows"]
    if name in _INTS:
        return pyarrow.Array.from_buffers(_INTS[name], rows, [None, _buffer(found[name])])
    if name == "epoch":
        return _epochs(found["physical_offset"], epochs)
    if name == "broker":
        names = pyarrow.array([each.broker_name for each in runs])
        return names.take(pyarrow.array(numpy.repeat(range(len(runs)), [len(r) for r in runs])))
    if name == "properties":
        texts = [_texts(found[each], pyarrow.string(), found["properties"]) for each in _ENTRIES]
        ends = pyarrow.Array.from_buffers(pyarrow.int32(), rows + 1, [None, _buffer(found["ends"])])
        return pyarrow.MapArray.from_arrays(ends, *texts)
    if name == "body":
        bodies = _texts(found[name], pyarrow.binary(), rows)
        return bodies.cast(field.type)  # to text: raises ArrowInvalid where it is none
    return _texts(found[name], pyarrow.string(), rows)


_ENTRIES: Final = ("names", "values")
_buffer: Final[Callable[[bytearray], Any]] = pyarrow.py_buffer


def _texts(column: Any, kind: Any, rows: int) -> Any:
    valid = _buffer(column.valid) if column.nulls else None
    buffers = [valid, _buffer(column.offsets), _buffer(column.data)]
    return pyarrow.Array.from_buffers(kind, rows, buffers, null_count=column.nulls)


def _epochs(places: bytearray, epochs: Sequence[tuple[int, int]]) -> Any:
    offsets = numpy.frombuffer(places, numpy.int64)
    starts = numpy.array([start for start, _ in epochs], numpy.int64)
    numbers = numpy.array([0, *(number for _, number in epochs)], numpy.int64)
    at = numpy.searchsorted(starts, offsets, side="right")
    return pyarrow.array(numbers[at], mask=at == 0)
