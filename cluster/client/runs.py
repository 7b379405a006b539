"""Stored records as a broker answered them, decoded when they are looked at: for who wants columns, not messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Self, overload

from tandemmq.cluster.client.errors import BrokerAnswerBroken
from tandemmq.cluster.client.hot import read_records, record_starts
from tandemmq.cluster.client.message import ReceivedMessage

_QUEUE_OFFSET: Final = struct.Struct(">q")
_QUEUE_OFFSET_AT: Final = 20  # storage/record.py


class RecordRun(Sequence[ReceivedMessage]):
    """Records laid end to end.

    data    the answer's body
    starts  where each record begins in it, and last the end of all
    """

    __slots__ = ("broker_name", "data", "max_offset", "starts")

    def __init__(
        self, data: bytes, starts: Sequence[int], broker_name: str, max_offset: int
    ) -> None:
        self.data = data
        self.starts = starts
        self.broker_name = broker_name
        self.max_offset = max_offset

    @classmethod
    def of(cls, body: bytes | memoryview, broker_name: str, max_offset: int) -> Self:
        """As read_records(). Raises BrokerAnswerBroken for sizes that lead nowhere; what a damaged record holds is
        said by whoever looks at it."""
        data = bytes(body)
        starts = record_starts(data)
        if starts[-1] != len(data):
            read_records(data, broker_name, max_offset)
            raise BrokerAnswerBroken(f"an answer of broker {broker_name} ends inside a record")
        return cls(data, starts, broker_name, max_offset)

    @property
    def records(self) -> memoryview:
        """The bytes of these records alone."""
        return memoryview(self.data)[self.starts[0] : self.starts[-1]]

    def decoded(self) -> list[ReceivedMessage]:
        """All of them. Raises BrokerAnswerBroken."""
        return read_records(self.records, self.broker_name, self.max_offset)

    def queue_offset_at(self, place: int) -> int:
        """The entry number of one record, which may be damaged."""
        starts = self.starts
        at = starts[place - 1 if place < 0 else place]
        return int(_QUEUE_OFFSET.unpack_from(self.data, at + _QUEUE_OFFSET_AT)[0])

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, place: int) -> ReceivedMessage: ...
    @overload
    def __getitem__(self, place: slice) -> RecordRun: ...
    def __getitem__(self, place: int | slice) -> ReceivedMessage | RecordRun:
        if isinstance(place, slice):
            first, stop, step = place.indices(len(self))
            assert step == 1, "records are cut, not picked"
            starts = self.starts[first : max(first, stop) + 1]
            return RecordRun(self.data, starts, self.broker_name, self.max_offset)
        number = place + len(self) if place < 0 else place
        if not 0 <= number < len(self):
            raise IndexError(place)
        record = memoryview(self.data)[self.starts[number] : self.starts[number + 1]]
        return read_records(record, self.broker_name, self.max_offset)[0]
