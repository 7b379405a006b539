"""Rows as messages: what a row says, and the unique id that a repeated attempt gives it again. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tandemmq.cluster.client import Message, MessageQueue, MessageRefused
from tandemmq.cluster.client.message import RESERVED_PROPERTIES
from tandemmq.spark.errors import RowRefused

_COUNTER_BITS: Final = 16
_TIME_BITS: Final = 32


class RowIds:
    """Unique ids of one task's rows: the same for every attempt, unlike those of any other task.

    job        the write: of a stream query and micro-batch, so that a restarted driver repeats them
    partition  Spark's number of the task's partition

    As long as RocketMQ's own, in which bytes 10 to 14 are milliseconds of the month: here they count, from the
    month's first on, so that tools which look a message up from that time on find it.
    """

    def __init__(self, job: str, partition: int) -> None:
        self._prefix = hashlib.sha256(f"{job}\0{partition}".encode()).digest()[:10].hex().upper()

    def __getitem__(self, row: int) -> str:
        assert 0 <= row < 1 << (_TIME_BITS + _COUNTER_BITS)
        return f"{self._prefix}{row >> _COUNTER_BITS:08X}{row & 0xFFFF:04X}"


class Addressed(NamedTuple):
    """A message and where it goes: to a queue, by a key, or anywhere."""

    message: Message
    queue: MessageQueue | None
    hash_key: str | None

    @property
    def lane(self) -> object:
        """What keeps its order: rows of one lane are sent one after the other. None: no order."""
        return self.queue if self.queue is not None else self.hash_key


@dataclass(frozen=True)
class RowReader:
    """Makes messages of rows. topic: of rows without one."""

    topic: str
    drops_reserved: bool
    ids: RowIds
    partition: int

    def read(self, row: Mapping[str, Any], number: int) -> Addressed:
        """The message of the task's row `number`, counted from 0. Raises RowRefused."""
        try:
            return self._read(row, number)
        except MessageRefused as problem:
            raise RowRefused(self.about(row, number, str(problem))) from None

    def about(self, row: Mapping[str, Any], number: int, why: str) -> str:
        """A reason with the row that it is about."""
        key = f", key {row['key']!r}" if row.get("key") else ""
        topic = row.get("topic") or self.topic
        return (
            f"row {number} of partition {self.partition} (topic {topic}{key}) cannot be sent: {why}"
        )

    def _read(self, row: Mapping[str, Any], number: int) -> Addressed:
        body = row["body"]
        if body is None:
            raise MessageRefused("its body is null")
        delay_ms = row.get("delay_ms")
        message = Message(
            row.get("topic") or self.topic,
            body.encode() if isinstance(body, str) else body,
            tags=row.get("tags") or None,
            keys=(row.get("key") or "").split(),
            properties=self._properties(row),
            deliver_at=row.get("deliver_at"),
            delay_s=delay_ms / 1000 if delay_ms else 0.0,
            unique_id=row.get("unique_id") or self.ids[number],
        )
        broker, hash_key = row.get("broker"), row.get("hash_key")
        if broker is None:
            return Addressed(message, None, hash_key or None)
        if hash_key:
            raise MessageRefused("it has both hash_key and a queue: which one counts?")
        if row["queue_id"] is None:
            raise MessageRefused("it has a broker, but no queue_id")
        return Addressed(message, MessageQueue(message.topic, broker, row["queue_id"]), None)

    def _properties(self, row: Mapping[str, Any]) -> dict[str, str]:
        given = row.get("properties") or ()
        pairs = dict(given.items() if isinstance(given, Mapping) else given)
        if self.drops_reserved:
            return {name: v for name, v in pairs.items() if name not in RESERVED_PROPERTIES}
        return pairs
