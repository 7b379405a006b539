"""Stored records, as a pull answers them, turned into ReceivedMessage."""

from __future__ import annotations

import logging

from tandemmq.cluster.client.compression import decompress
from tandemmq.cluster.client.errors import BrokerAnswerBroken
from tandemmq.cluster.client.message import RETRY_PREFIX, MessageQueue, ReceivedMessage
from tandemmq.storage import CorruptRecord, Record, decode, offset_message_id, unpack_host

log = logging.getLogger(__name__)


def read_records(
    body: bytes | memoryview, broker_name: str, max_offset: int
) -> list[ReceivedMessage]:
    """Decode records laid end to end, in order.

    Raises BrokerAnswerBroken when any of them is damaged or cut: the position after a broken answer
    is unknown.
    """
    view = memoryview(body)
    messages: list[ReceivedMessage] = []
    position = 0
    while position < len(view):
        try:
            record = decode(view, position)
        except CorruptRecord as damage:
            raise BrokerAnswerBroken(
                f"a record of broker {broker_name} does not decode: {damage}"
            ) from damage
        messages.append(_received(record, broker_name, max_offset))
        position += record.size
    return messages


def _received(record: Record, broker_name: str, max_offset: int) -> ReceivedMessage:
    properties = record.property_map
    stored_in = record.topic
    topic = (
        properties.get("RETRY_TOPIC", stored_in)
        if stored_in.startswith(RETRY_PREFIX)
        else stored_in
    )
    placed = offset_message_id(record.store_host, record.physical_offset)
    return ReceivedMessage(
        topic=topic,
        body=body_of(record.body, record.sys_flag, stored_in, record.queue_offset),
        queue=MessageQueue(stored_in, broker_name, record.queue_id),
        queue_offset=record.queue_offset,
        message_id=properties.get("UNIQ_KEY", placed),
        offset_message_id=placed,
        properties=properties,
        reconsume_times=record.reconsume_times,
        born_ms=record.born_ms,
        store_ms=record.store_ms,
        born_host=host_text(record.born_host),
        store_host=host_text(record.store_host),
        physical_offset=record.physical_offset,
        flag=record.flag,
        sys_flag=record.sys_flag,
        max_offset=max_offset,
    )


def body_of(stored: bytes, sys_flag: int, topic: str, queue_offset: int) -> bytes:
    """The body as its producer gave it.

    One producer's bad message must not stop its queue: the application gets the stored bytes, fails
    on them, and the usual retries end in the dead letters.
    """
    try:
        return decompress(stored, sys_flag)
    except BrokerAnswerBroken as damage:
        log.warning(
            "body not decompressed queue_offset=%s topic=%s why=%s", queue_offset, topic, damage
        )
        return stored


def host_text(packed: bytes) -> str:
    """4 or 16 address bytes and 4 port bytes as "ip:port"."""
    ip, port = unpack_host(packed)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
