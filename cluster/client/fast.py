"""The client's inner loops in their readable form: frames of sends, their answers, records.

_fast.pyx has the same functions, compiled; hot.py picks. Held together by
tests/cluster/client/test_fast_twins.py. One difference is allowed: where a function may leave
something to the general path ("None", or a frame not taken), the compiled form may leave more.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any, Final, Protocol

from tandemmq.cluster.client.message import (
    PROPERTIES_BYTES_MAX,
    Message,
    MessageQueue,
    SendResult,
    SendStatus,
)
from tandemmq.cluster.client.reaching.calls import count_of
from tandemmq.cluster.client.reaching.routes import TEMPLATE_QUEUE_COUNT, TEMPLATE_TOPIC
from tandemmq.cluster.client.records import read_records
from tandemmq.cluster.remoting import Command, PeerBrokeProtocol, RequestCode
from tandemmq.cluster.remoting.command import RESPONSE_FLAG
from tandemmq.storage import encode_properties

__all__ = ["SendHead", "peek_opaque", "read_records", "record_starts", "scan_sends", "send_frame"]

_PREFIX: Final = struct.Struct(">II")
_WORD: Final = struct.Struct(">I")
_SIZE: Final = struct.Struct(">i")
_RECORD_HEAD_BYTES: Final = 28  # of a record, its queue offset included
_BINARY_IDS: Final = struct.Struct(">ii")
_OPAQUE: Final = re.compile(rb'"opaque"\s*:\s*(-?[0-9]{1,10})')
_FLAG: Final = re.compile(rb'"flag"\s*:\s*([0-9]{1,10})')
_MARK: Final = "\x00"  # never part of a header: control characters are escaped


class Expected(Protocol):
    """A send that waits for its answer. A Protocol: the pipeline's SendFuture."""

    queue: MessageQueue
    unique_id: str


class SendHead:
    """Everything of a SEND_MESSAGE_V2 header that stays the same for one queue.

    parts  the JSON header cut where sysFlag, born time, flag, properties and opaque go
    """

    __slots__ = ("group", "parts", "queue", "unit_mode")

    def __init__(self, group: str, queue: MessageQueue, unit_mode: bool) -> None:
        self.group = group
        self.queue = queue
        self.unit_mode = unit_mode
        marked = send_fields(self, _MARK, _MARK, _MARK, _MARK)
        whole = Command(RequestCode.SEND_MESSAGE_V2, marked, opaque=0).encode()[8:]
        *parts, last = whole.split(b"\\u0000")
        before, opaque, after = last.rpartition(b'"opaque":0')
        self.parts: tuple[bytes, ...] = (*parts, before + opaque[:-1], after)
        assert len(self.parts) == 6


def send_fields(
    head: SendHead, sys_flag: str, born_ms: str, flag: str, properties: str
) -> dict[str, str]:
    """The header's fields under RocketMQ's one-letter names."""
    return {
        "a": head.group,
        "b": head.queue.topic,
        "c": TEMPLATE_TOPIC,
        "d": str(TEMPLATE_QUEUE_COUNT),
        "e": str(head.queue.queue_id),
        "f": sys_flag,
        "g": born_ms,
        "h": flag,
        "i": properties,
        "j": "0",
        "k": "true" if head.unit_mode else "false",
        "m": "false",
        "n": head.queue.broker_name,
    }


def send_frame(
    head: SendHead,
    opaque: int,
    born_ms: int,
    sys_flag: int,
    unique_id: str,
    message: Message,
    body: bytes,
) -> bytes | None:
    """A whole SEND_MESSAGE_V2 frame.

    body, sys_flag  after compression
    None: the properties are too long, or hold what UTF-8 cannot; the general path says so.
    """
    stored = message.stored_properties(unique_id)
    try:
        for text in stored.items():
            "".join(text).encode()
    except UnicodeEncodeError:
        return None
    encoded = encode_properties(stored)
    if len(encoded) > PROPERTIES_BYTES_MAX:
        return None
    fields = send_fields(head, str(sys_flag), str(born_ms), str(message.flag), encoded.decode())
    return Command(RequestCode.SEND_MESSAGE_V2, fields, body, opaque).encode()


def scan_sends(
    view: memoryview, start: int, end: int, waiting: Mapping[int, Any]
) -> tuple[int, list[tuple[Any, SendResult]]]:
    """The answers to sends that stand at the front of view[start:end].

    waiting  what has no answer yet, by opaque; nothing is removed here
    Returns (where it stopped, [(entry of waiting, result)]): at the first frame that is not whole, or
    is anything but a SEND_OK with all its fields for an entry of `waiting`.
    """
    settled: list[tuple[Any, SendResult]] = []
    while start + 8 <= end:
        length, head_word = _PREFIX.unpack_from(view, start)
        stop = start + 4 + length
        if stop > end or head_word >> 24 or length < 4:
            break
        try:
            answer = Command.decode(view[start:stop])
            entry = waiting.get(answer.opaque)
            result = None if entry is None else _result(answer, entry)
        except (PeerBrokeProtocol, ValueError, KeyError):
            break
        if result is None:
            break
        settled.append((entry, result))
        start = stop
    return start, settled


def _result(answer: Command, entry: Expected) -> SendResult | None:
    if answer.code or answer.flag & 3 != RESPONSE_FLAG or answer.ext is None:
        return None
    ext = answer.ext
    if "recallHandle" in ext:  # of a timed message: the general path knows it
        return None
    queue, queue_id = entry.queue, int(ext["queueId"])
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    return SendResult(
        SendStatus.SEND_OK,
        entry.unique_id,
        ext["msgId"],
        queue,
        int(ext["queueOffset"]),
        ext.get("transactionId", ""),
        ext.get("MSG_REGION", ""),
        count_of(ext.get("epoch")),
        count_of(ext.get("copies")),
        count_of(ext.get("durable")),
    )


def peek_opaque(view: memoryview, start: int, end: int) -> int | None:
    """The opaque of the response in view[start:end], one whole frame. None: a request, or in doubt.

    Only the header is looked at, and no text in it can look like a member: its quotes are escaped.
    """
    (head_word,) = _WORD.unpack_from(view, start + 4)
    begin, stop = start + 8, min(start + 8 + (head_word & 0xFFFFFF), end)
    if head_word >> 24 == 1:
        if stop - begin < 13:
            return None
        opaque, flag = _BINARY_IDS.unpack_from(view, begin + 5)
        return int(opaque) if flag & RESPONSE_FLAG else None
    found_flag = _FLAG.search(view, begin, stop)
    found = _OPAQUE.search(view, begin, stop)
    if found is None or found_flag is None or not int(found_flag[1]) & RESPONSE_FLAG:
        return None
    return int(found[1])


def record_starts(data: bytes) -> list[int]:
    """Where each of some records begins that are laid end to end, and last where they end: elsewhere than the data
    does where sizes lead nowhere."""
    end, at = len(data), 0
    starts = [0]
    while end - at >= _RECORD_HEAD_BYTES:
        (size,) = _SIZE.unpack_from(data, at)
        if not _RECORD_HEAD_BYTES <= size <= end - at:
            break
        at += size
        starts.append(at)
    return starts
