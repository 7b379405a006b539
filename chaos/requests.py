"""Requests that campaigns make themselves, message by message, and the messages of answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import count, takewhile
from typing import Final

from tandemmq.cluster.remoting import ChannelPool, Command, RemotingError, RequestCode, ResponseCode
from tandemmq.storage import Record, decode, encode_properties, parse_offset_message_id, unpack_host

SUBSCRIPTION_IN_PULL: Final = 4  # sysFlag


def send_command(
    group: str, topic: str, queue_id: int, properties: Mapping[str, str], body: bytes,
    *, queues: int = 4, batch: bool = False,
) -> Command:  # fmt: skip
    """SEND_MESSAGE_V2, or SEND_BATCH_MESSAGE, to one queue. queues: of a topic that is born by it."""
    ext = {
        "a": group, "b": topic, "c": "TBW102", "d": str(queues), "e": str(queue_id), "f": "0",
        "g": str(int(time.time() * 1000)), "h": "0", "i": encode_properties(properties).decode(),
        "j": "0", "k": "false", "m": "true" if batch else "false",
    }  # fmt: skip
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return Command(code, ext, body)


def pull_command(group: str, topic: str, queue_id: int, offset: int) -> Command:
    """PULL_MESSAGE of up to 32 messages, at once."""
    ext = {
        "consumerGroup": group, "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": str(SUBSCRIPTION_IN_PULL), "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    return Command(RequestCode.PULL_MESSAGE, ext)


async def answer_of(
    pool: ChannelPool, address: str, request: Command, timeout_ms: int
) -> Command | None:
    """The answer of success; None without one, or of another code."""
    try:
        answer = await pool.request(address, request, timeout_ms)
    except RemotingError:
        return None
    return answer if answer.code == ResponseCode.SUCCESS else None


def messages_in(answer: Command) -> Iterator[Record]:
    """The messages of a pull's answer; none unless it succeeded. Raises CorruptRecord."""
    body, position = bytes(answer.body or b""), 0
    while answer.code == ResponseCode.SUCCESS and position < len(body):
        record = decode(body, position)
        yield record
        position += record.size


def messages_from(answer: Command, offset: int) -> list[Record]:
    """Those that follow each other from this queue offset on. Raises CorruptRecord."""
    pairs = zip(messages_in(answer), count(offset), strict=False)
    return [record for record, _ in takewhile(lambda pair: pair[0].queue_offset == pair[1], pairs)]


def place_of(offset_message_id: str) -> tuple[str, int]:
    """(address of the broker, offset in its log) of one acknowledged message."""
    host, offset = parse_offset_message_id(offset_message_id)
    address, port = unpack_host(host)
    return f"{address}:{port}", offset
