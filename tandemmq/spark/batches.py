"""Received messages as Arrow batches. No I/O, and nothing of Spark."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, Final

import pyarrow

from tandemmq.cluster.client import ReceivedMessage
from tandemmq.cluster.client.runs import RecordRun
from tandemmq.spark import columns
from tandemmq.spark.errors import BodyNotText

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 8 << 20

_TIME: Final = pyarrow.timestamp("us", tz="UTC")
_PROPERTIES: Final = pyarrow.map_(pyarrow.string(), pyarrow.string())
#: which master wrote which part of a broker's log: (log offset, epoch), rising
Epochs = Sequence[tuple[int, int]]
Messages = Sequence[ReceivedMessage]


def _texts(values: Sequence[str | None]) -> Any:
    return pyarrow.array(values, pyarrow.string())


def _properties(messages: Messages, epochs: Epochs) -> Any:
    maps = [each.properties for each in messages]
    ends = pyarrow.array(accumulate(map(len, maps), initial=0), pyarrow.int32())
    names = pyarrow.array(list(chain.from_iterable(maps)), pyarrow.string())
    values = list(chain.from_iterable(each.values() for each in maps))
    return pyarrow.MapArray.from_arrays(ends, names, pyarrow.array(values, pyarrow.string()))


def _times(times_ms: Sequence[int]) -> Any:
    return pyarrow.array([each * 1_000 for each in times_ms], pyarrow.int64()).cast(_TIME)


def _epochs(messages: Messages, epochs: Epochs) -> Any:
    starts = [start for start, _ in epochs]
    places = (bisect_right(starts, each.physical_offset) for each in messages)
    found = [epochs[place - 1][1] if place else None for place in places]
    return pyarrow.array(found, pyarrow.int64())


def _text_bodies(messages: Messages, epochs: Epochs) -> Any:
    texts: list[str] = []
    for each in messages:
        try:
            texts.append(each.body.decode())
        except UnicodeDecodeError as problem:
            raise BodyNotText(
                f"the body of {each.queue} at queue offset {each.queue_offset} is not UTF-8 (byte "
                f"{problem.start} of {len(each.body)}): leave out bodyType=text, or filter it out"
            ) from None
    return _texts(texts)


def _ints(kind: Any, value: Callable[[ReceivedMessage], int]) -> Callable[[Messages, Epochs], Any]:
    return lambda messages, epochs: pyarrow.array([value(each) for each in messages], kind)


_MAKERS: Final[dict[str, tuple[Any, Callable[[Messages, Epochs], Any]]]] = {
    "topic": (pyarrow.string(), lambda found, _: _texts([each.queue.topic for each in found])),
    "broker": (
        pyarrow.string(),
        lambda found, _: _texts([each.queue.broker_name for each in found]),
    ),
    "queue_id": (pyarrow.int32(), _ints(pyarrow.int32(), lambda each: each.queue.queue_id)),
    "queue_offset": (pyarrow.int64(), _ints(pyarrow.int64(), lambda each: each.queue_offset)),
    "key": (
        pyarrow.string(),
        lambda found, _: _texts([each.properties.get("KEYS") for each in found]),
    ),
    "tags": (
        pyarrow.string(),
        lambda found, _: _texts([each.properties.get("TAGS") for each in found]),
    ),
    "properties": (_PROPERTIES, _properties),
    "body": (
        pyarrow.binary(),
        lambda found, _: pyarrow.array([each.body for each in found], pyarrow.binary()),
    ),
    "born_time": (_TIME, lambda found, _: _times([each.born_ms for each in found])),
    "store_time": (_TIME, lambda found, _: _times([each.store_ms for each in found])),
    "unique_id": (pyarrow.string(), lambda found, _: _texts([each.message_id for each in found])),
    "epoch": (pyarrow.int64(), _epochs),
}


def bytes_of(messages: Messages) -> int:
    """About how much of a batch these are."""
    if isinstance(messages, RecordRun):
        return len(messages.records)
    return sum(len(each.body) for each in messages)


class Batches:
    """Makes batches of some columns. text: bodies as text."""

    def __init__(self, names: Sequence[str], *, text: bool) -> None:
        makers = {**_MAKERS, **({"body": (pyarrow.string(), _text_bodies)} if text else {})}
        self._makers = [makers[name][1] for name in names]
        self.schema = pyarrow.schema([pyarrow.field(name, makers[name][0]) for name in names])

    def make(self, messages: Messages, epochs: Epochs = ()) -> Any:
        """One batch. Raises BodyNotText."""
        arrays = [make(messages, epochs) for make in self._makers]
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self.schema)

    def of(self, found: Iterator[Messages], epochs: Epochs = ()) -> Iterator[Any]:
        """Batches of as many messages as go together well. Raises BodyNotText, BrokerAnswerBroken."""
        gathered: list[Messages] = []
        rows = size = 0
        for messages in found:
            gathered.append(messages)
            rows += len(messages)
            size += bytes_of(messages)
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield self._together(gathered, epochs)
                gathered, rows, size = [], 0, 0
        if gathered:
            yield self._together(gathered, epochs)

    def _together(self, gathered: Sequence[Messages], epochs: Epochs) -> Any:
        runs = [each for each in gathered if isinstance(each, RecordRun)]
        if len(runs) == len(gathered):
            batch = columns.batch_of(runs, self.schema, epochs)
            if batch is not None:
                return batch
        return self.make(
            list(
                chain.from_iterable(
                    each.decoded() if isinstance(each, RecordRun) else each for each in gathered
                )
            ),
            epochs,
        )
