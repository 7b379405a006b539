"""One message or batch as a send request, and the broker's answer as a SendResult. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tandemmq.cluster.client.compression import COMPRESSED, Compression, compress
from tandemmq.cluster.client.errors import BrokerRefused, MessageRefused
from tandemmq.cluster.client.message import (
    PROPERTIES_BYTES_MAX,
    RETRY_PREFIX,
    Message,
    MessageQueue,
    SendResult,
    SendStatus,
)
from tandemmq.cluster.client.namespaces import wrap
from tandemmq.cluster.client.reaching.calls import count_of, field, number
from tandemmq.cluster.client.reaching.routes import TEMPLATE_QUEUE_COUNT, TEMPLATE_TOPIC
from tandemmq.cluster.remoting import Command, RequestCode
from tandemmq.storage import encode_properties

_ITEM_HEAD = struct.Struct(
    ">iiiii"
)  # size, magic, body CRC, flag, body length; the broker fills magic and CRC
_SHORT = struct.Struct(">h")
_STATUSES = {status.value: status for status in SendStatus}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message ready for any broker: every attempt carries the same bytes and unique id."""

    topic: str
    body: bytes
    properties: str
    unique_id: str  # of a batch: all of them, joined by ","
    born_ms: int
    flag: int = 0
    sys_flag: int = 0
    batch: bool = False
    reconsume_times: int = 0
    reconsume_times_max: int | None = None
    unit_mode: bool = False


def prepare(
    message: Message,
    unique_id: str,
    now_ms: int,
    body: bytes,
    sys_flag: int,
    namespace: str = "",
    unit_mode: bool = False,
) -> Prepared:
    """A single message. body and sys_flag: after compression.

    Raises MessageRefused when the properties are too long.
    """
    properties = _properties_text(message, unique_id, namespace)
    return Prepared(
        wrap(namespace, message.topic),
        body,
        properties,
        message.unique_id or unique_id,
        now_ms,
        message.flag,
        sys_flag,
        unit_mode=unit_mode,
    )


def prepare_batch(
    messages: Sequence[Message],
    unique_ids: Sequence[str],
    now_ms: int,
    bytes_max: int,
    namespace: str = "",
    unit_mode: bool = False,
) -> Prepared:
    """Several messages of one topic in one request: stored in order in one queue, or not at all.

    Raises MessageRefused: none given, different topics or wait_stored, delayed ones, retry topics,
    above bytes_max.
    Source: docs/formats.md "Batch body". The envelope carries no unique id: each message keeps its own.
    """
    if not messages:
        raise MessageRefused("a batch needs at least one message")
    first = messages[0]
    items = []
    for message, unique_id in zip(messages, unique_ids, strict=True):
        if message.topic != first.topic or message.wait_stored != first.wait_stored:
            raise MessageRefused(
                "messages of one batch must have the same topic and the same wait_stored"
            )
        if message.delayed:
            raise MessageRefused("a delayed message cannot be part of a batch; send it alone")
        properties = _properties_text(message, unique_id, namespace).encode()
        size = _ITEM_HEAD.size + len(message.body) + _SHORT.size + len(properties)
        head = _ITEM_HEAD.pack(size, 0, 0, message.flag, len(message.body))
        items += [head, message.body, _SHORT.pack(len(properties)), properties]
    if first.topic.startswith(RETRY_PREFIX):
        raise MessageRefused(f"a batch cannot be sent to the retry topic {first.topic}")
    body = b"".join(items)
    if len(body) > bytes_max:
        raise MessageRefused(
            f"the batch takes {len(body)} bytes, at most {bytes_max} are allowed; send it in parts"
        )
    ids = ",".join(
        message.unique_id or made for message, made in zip(messages, unique_ids, strict=True)
    )
    envelope = encode_properties({"WAIT": "true" if first.wait_stored else "false"}).decode()
    topic = wrap(namespace, first.topic)
    return Prepared(topic, body, envelope, ids, now_ms, batch=True, unit_mode=unit_mode)


def compressed(
    body: bytes, above_bytes: int, level: int, kind: Compression = Compression.ZLIB
) -> tuple[bytes, int]:
    """(body, sys_flag): compressed from above_bytes on, when that makes it smaller."""
    if len(body) < above_bytes:
        return body, 0
    smaller, flags = compress(body, level, kind)
    assert bool(flags & COMPRESSED) == (smaller is not body)
    return smaller, flags


def _properties_text(message: Message, unique_id: str, namespace: str) -> str:
    stored = message.stored_properties(unique_id)
    if namespace:
        stored["INSTANCE_ID"] = namespace
    encoded = encode_properties(stored)
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise MessageRefused(
            f"properties, tags and keys take {len(encoded)} bytes, "
            f"at most {PROPERTIES_BYTES_MAX} are allowed"
        )
    return encoded.decode()


def send_command(what: Prepared, queue: MessageQueue, group: str) -> Command:
    """SEND_MESSAGE_V2, or SEND_BATCH_MESSAGE, with RocketMQ's one-letter field names."""
    ext = {
        "a": group,
        "b": what.topic,
        "c": TEMPLATE_TOPIC,
        "d": str(TEMPLATE_QUEUE_COUNT),
        "e": str(queue.queue_id),
        "f": str(what.sys_flag),
        "g": str(what.born_ms),
        "h": str(what.flag),
        "i": what.properties,
        "j": str(what.reconsume_times),
        "k": "true" if what.unit_mode else "false",
        "m": "true" if what.batch else "false",
        "n": queue.broker_name,
    }
    if what.reconsume_times_max is not None:
        ext["l"] = str(what.reconsume_times_max)
    return Command(
        RequestCode.SEND_BATCH_MESSAGE if what.batch else RequestCode.SEND_MESSAGE_V2,
        ext,
        what.body,
    )


def send_result(
    answer: Command, topic: str, unique_id: str, queue: MessageQueue, address: str
) -> SendResult:
    """What the broker did.

    topic  as the application knows it
    Raises BrokerRefused (an error code), BrokerAnswerBroken (fields missing).
    """
    status = _STATUSES.get(answer.code)
    if status is None:
        raise BrokerRefused(answer.code, answer.remark, address, topic)
    ext = answer.ext or {}
    return SendResult(
        status=status,
        message_id=unique_id,
        offset_message_id=field(answer, "msgId", address),
        queue=MessageQueue(topic, queue.broker_name, number(answer, "queueId", address)),
        queue_offset=number(answer, "queueOffset", address),
        transaction_id=ext.get("transactionId", ""),
        region_id=ext.get("MSG_REGION", ""),
        epoch=count_of(ext.get("epoch")),
        copies=count_of(ext.get("copies")),
        durable=count_of(ext.get("durable")),
        recall_handle=ext.get("recallHandle", ""),
    )
