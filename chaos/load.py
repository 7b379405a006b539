"""Sends messages that prove themselves, and reads queues back.

A message's unique id is 16 hex digits of a running number and 16 of the hash of its body: whoever
reads it can tell whether the body is the one that was sent, without knowing what was.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

from tandemmq.chaos.checkers import Queue, QueueContents, Served
from tandemmq.chaos.checking.lines import OK, Send
from tandemmq.chaos.requests import messages_in, place_of, pull_command, send_command
from tandemmq.cluster.remoting import (
    Channel,
    ConnectFailed,
    ConnectionLost,
    RequestTimedOut,
    ResponseCode,
    open_channel,
)
from tandemmq.storage import Record, encode_properties, offset_message_id

GROUP: Final = "KillsGroup"
TIMEOUT_MS: Final = 20_000
BATCH_SHARE: Final = 0.08
EQUAL_BODY_BYTES: Final = 512
_BATCH_ITEM: Final = struct.Struct(">iiiii")  # size, magic, crc, flag, body length

#: topics and how many queues each has; one more is born in every round
TOPICS: Final[dict[str, int]] = {"KillsFour": 4, "KillsOne": 1, "KillsTwo": 2}

Acknowledge = Callable[[Send], None]


def body_hash(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=8).hexdigest()


class Load:
    """Senders on several connections, each with several requests outstanding."""

    def __init__(self, port: int, rng: random.Random, acknowledge: Acknowledge) -> None:
        self._port = port
        self._rng = rng
        self._acknowledge = acknowledge
        self._numbers = itertools.count()
        self.round = 0
        self.refused: list[str] = []  # answers that were neither success nor lost

    async def run(self, connections: int, outstanding: int) -> None:
        """Send until the broker is gone. Everything that it acknowledged was recorded."""
        channels = [await open_channel("127.0.0.1", self._port) for _ in range(connections)]
        try:
            async with asyncio.TaskGroup() as group:
                for channel in channels:
                    for _ in range(outstanding):
                        group.create_task(self._send_until_lost(channel))
        finally:
            for channel in channels:
                channel.close("round over")

    async def _send_until_lost(self, channel: Channel) -> None:
        while not channel.closed:
            try:
                if self._rng.random() < BATCH_SHARE:
                    await self._send_batch(channel)
                else:
                    await self._send_one(channel)
            except (ConnectionLost, RequestTimedOut):
                return  # not acknowledged: it may be stored or not

    def _body(self) -> bytes:
        """Half of the bodies have one size, the rest any; a few are large."""
        draw = self._rng.random()
        if draw < 0.5:
            size = EQUAL_BODY_BYTES
        elif draw < 0.98:
            size = self._rng.randrange(1, 2000)
        else:
            size = self._rng.randrange(2000, 60_000)
        return self._rng.randbytes(size)

    def _unique_id(self, body: bytes) -> str:
        return f"{next(self._numbers):016x}{body_hash(body)}"

    def _queue(self) -> tuple[str, int, int]:
        """Topic, queue id and the topic's number of queues."""
        topics = {**TOPICS, f"KillsRound{self.round}": 1}
        topic = self._rng.choice(list(topics))
        return topic, self._rng.randrange(topics[topic]), topics[topic]

    async def _send_one(self, channel: Channel) -> None:
        body = self._body()
        unique_id = self._unique_id(body)
        properties = {"UNIQ_KEY": unique_id, "KEYS": unique_id[:16], "TAGS": "k", "WAIT": "true"}
        await self._send(channel, body, properties, [unique_id])

    async def _send_batch(self, channel: Channel) -> None:
        items, unique_ids = [], []
        for _ in range(self._rng.randrange(2, 9)):
            body = self._body()
            unique_ids.append(self._unique_id(body))
            properties = encode_properties({"UNIQ_KEY": unique_ids[-1], "WAIT": "true"})
            size = _BATCH_ITEM.size + len(body) + 2 + len(properties)
            head = _BATCH_ITEM.pack(size, 0, 0, 0, len(body))
            items.append(head + body + len(properties).to_bytes(2, "big") + properties)
        await self._send(channel, b"".join(items), {"WAIT": "true"}, unique_ids, batch=True)

    async def _send(
        self,
        channel: Channel,
        body: bytes,
        properties: dict[str, str],
        unique_ids: Sequence[str],
        *,
        batch: bool = False,
    ) -> None:
        topic, queue_id, queue_count = self._queue()
        round_of_send, began_ns = self.round, time.monotonic_ns()
        request = send_command(
            GROUP, topic, queue_id, properties, body, queues=queue_count, batch=batch
        )
        answer = await channel.request(request, TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            self.refused.append(f"{answer.code} {answer.remark}")
            return
        given = answer.ext or {}
        first = int(given["queueOffset"])
        offset_ids = given["msgId"].split(",")
        assert len(offset_ids) == len(unique_ids), given
        for at, (unique_id, offset_id) in enumerate(zip(unique_ids, offset_ids, strict=True)):
            broker, offset = place_of(offset_id)
            self._acknowledge(
                Send(
                    unique_id, topic, int(given["queueId"]), 0, 0, round_of_send, began_ns,
                    time.monotonic_ns(), OK, 0, broker, first + at, offset,
                )
            )  # fmt: skip


async def read_queue(channel: Channel, queue: Queue, read_from: int) -> QueueContents:
    """Every message of a queue from `read_from` on, once dispatch has caught up with the log."""
    topic, queue_id = queue
    messages: list[Served] = []
    offset = read_from
    while True:
        answer = await channel.request(pull_command(GROUP, topic, queue_id, offset), TIMEOUT_MS)
        given = answer.ext or {}
        if answer.code != ResponseCode.SUCCESS:
            if answer.code not in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
                raise UnreadableQueue(f"pull of {queue} at {offset}: {answer.code} {answer.remark}")
            return QueueContents(
                read_from, int(given["minOffset"]), int(given["maxOffset"]), messages
            )
        messages += map(served, messages_in(answer))
        offset = int(given["nextBeginOffset"])


class UnreadableQueue(Exception):
    """A pull was refused."""


def served(record: Record) -> Served:
    """A message of a pull answer, whose checksum was verified."""
    return Served(
        record.queue_offset,
        record.property_map["UNIQ_KEY"],
        place_of(offset_message_id(record.store_host, record.physical_offset)),
        body_hash(record.body),
    )


async def open_reader(port: int) -> Channel:
    """A connection for read_queue(). Raises ConnectFailed."""
    return await open_channel("127.0.0.1", port)


__all__ = [
    "TOPICS",
    "ConnectFailed",
    "Load",
    "UnreadableQueue",
    "body_hash",
    "open_reader",
    "read_queue",
]
