"""What commands print for programs: any value of the client as JSON, and bodies as text or hex."""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

import msgspec

from tandemmq.cluster.client import MessageQueue, ReceivedMessage, SendResult

HEX_LINE_BYTES: Final = 16


def to_json(value: object) -> str:
    """One line of JSON. Queues as keys become a list of objects that name their queue."""
    return json.dumps(plain(value), ensure_ascii=False)


def plain(value: object) -> Any:
    """The value in dicts, lists, texts and numbers."""
    if isinstance(value, ReceivedMessage):
        return message(value)
    if isinstance(value, SendResult):
        return sent(value)
    if isinstance(value, MessageQueue):
        return _queue(value)
    if isinstance(value, msgspec.Struct):
        tables = _tables_by_queue(type(value))
        found = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        return found | {name: [] for name in tables if not found[name]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        if value and all(isinstance(key, MessageQueue) for key in value):
            return list(_by_queue(value))
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return value


@functools.cache
def _tables_by_queue(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Fields that are printed as lists of queues, also when there is none."""
    fields = msgspec.structs.fields(kind)
    return tuple(each.name for each in fields if get_args(each.type)[:1] == (MessageQueue,))


def _queue(queue: MessageQueue) -> dict[str, Any]:
    return {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}


def _by_queue(table: Mapping[MessageQueue, object]) -> Iterator[dict[str, Any]]:
    for queue, each in table.items():
        found = plain(each)
        yield {**_queue(queue), **(found if isinstance(found, dict) else {"offset": found})}


def sent(result: SendResult) -> dict[str, Any]:
    """Where a message was stored."""
    return {
        "status": result.status.name,
        "message_id": result.message_id,
        "offset_message_id": result.offset_message_id,
        **_queue(result.queue),
        "queue_offset": result.queue_offset,
        "epoch": result.epoch,
        "copies": result.copies,
        "durable": result.durable,
    }


def message(found: ReceivedMessage) -> dict[str, Any]:
    """A message; a body that is not UTF-8 comes as body_base64."""
    try:
        body = {"body": found.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(found.body).decode()}
    return {
        "topic": found.topic,
        "broker": found.queue.broker_name,
        "queue_id": found.queue.queue_id,
        "queue_offset": found.queue_offset,
        "message_id": found.message_id,
        "offset_message_id": found.offset_message_id,
        "physical_offset": found.physical_offset,
        "born_ms": found.born_ms,
        "born_host": found.born_host,
        "store_ms": found.store_ms,
        "store_host": found.store_host,
        "reconsume_times": found.reconsume_times,
        "sys_flag": found.sys_flag,
        "tags": found.tags,
        "keys": list(found.keys),
        "properties": dict(found.properties),
        **body,
    }


def body_text(body: bytes, style: str = "auto") -> str:
    """A body for people. style: text, hex, json, none, or auto (text when it can be shown as such)."""
    if style == "none":
        return f"({len(body)} bytes)"
    if style == "hex" or (style == "auto" and not _is_text(body)):
        return "\n" + hex_dump(body)
    text = body.decode(errors="backslashreplace")
    if style == "json":
        try:
            return "\n" + json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except ValueError:
            return text
    return text


def _is_text(body: bytes) -> bool:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter in "\t\r\n" for letter in text)


def hex_dump(data: bytes) -> str:
    """Lines of 16 bytes: position, bytes, characters."""
    lines = []
    for start in range(0, len(data), HEX_LINE_BYTES):
        part = data[start : start + HEX_LINE_BYTES]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"  {start:08x}  {part.hex(' '):<{HEX_LINE_BYTES * 3}} {shown}")
    return "\n".join(lines)
