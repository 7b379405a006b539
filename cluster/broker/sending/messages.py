"""What a broker makes of a message before it stores it: properties, an id, a copy of one that was stored."""

from __future__ import annotations

import os
import random
import time
from typing import Final

from tandemmq.storage import Clock, Draft, Record

NAME_END: Final = b"\x01"
VALUE_END: Final = b"\x02"

UNIQ_KEY: Final = "UNIQ_KEY"
DELAY: Final = "DELAY"
WAIT: Final = "WAIT"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
POP_CK: Final = "POP_CK"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
TIMER_PROPERTIES: Final = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")

#: names a broker keeps for itself; a client's own are dropped from what is stored
STRIPPED: Final = frozenset({POP_CK, "__CRC32#"})


def property_bytes(name: str, value: str) -> bytes:
    """One encoded property, its end mark included."""
    return f"{name}\x01{value}\x02".encode("utf-8", "replace")


def broker_properties(region: str, cluster: str, traced: bool) -> bytes:
    """What every stored message gets from this broker, encoded.

    Source: RocketMQ's AbstractSendMessageProcessor, SendMessageProcessor.
    """
    return (
        property_bytes("MSG_REGION", region)
        + property_bytes("CLUSTER", cluster)
        + property_bytes("TRACE_ON", str(traced).lower())
    )


def without(properties: bytes, names: frozenset[str]) -> bytes:
    """The same properties without some names; every other byte stays."""
    unwanted = {name.encode() for name in names}
    if not any(name in properties for name in unwanted):
        return properties
    kept = [
        entry
        for entry in properties.split(VALUE_END)
        if entry.split(NAME_END, 1)[0] not in unwanted
    ]
    return VALUE_END.join(kept)


def again(record: Record) -> Draft:
    """A stored message as it is, to be stored once more: for another place, or with other properties."""
    return Draft(
        topic=record.topic,
        queue_id=record.queue_id,
        body=record.body,
        properties=record.properties,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_ms=record.born_ms,
        born_host=record.born_host,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        again=True,
    )


class UniqueIds:
    """Ids for messages whose client sent none. Source: docs/formats.md "Client unique id".

    host    this broker's packed address: 4 or 16 bytes and a port
    Text of 32 or 56 hex digits, upper case; unique as long as 65,536 a millisecond are enough.
    """

    def __init__(self, host: bytes, clock: Clock, rng: random.Random) -> None:
        process = (os.getpid() & 0xFFFF).to_bytes(2, "big")
        self._prefix = (host[:-4] + process + rng.randbytes(4)).hex().upper()
        self._clock = clock
        self._start_ms = self._end_ms = 0
        self._count = 0

    def next(self) -> str:
        """An id that no other message has."""
        now_ms = self._clock.now_ms()
        if not self._start_ms <= now_ms < self._end_ms:
            self._start_ms, self._end_ms = month_of(now_ms)
        since_ms = now_ms - self._start_ms
        count = self._count
        self._count = (count + 1) & 0xFFFF
        return f"{self._prefix}{since_ms:08X}{count:04X}"


def month_of(now_ms: int) -> tuple[int, int]:
    """The local month around now: its first millisecond and that of the next month."""
    local = time.localtime(now_ms / 1000)
    start = time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    end = time.mktime((local.tm_year, local.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1))
    return int(start) * 1000, int(end) * 1000
