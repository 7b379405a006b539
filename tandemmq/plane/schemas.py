"""JSON Schema of what a command prints with --json: of its Python type, by the rules of command/output.py. Core."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping
from typing import Any, Final, NotRequired, Required, TypedDict, Union

import msgspec

from tandemmq.cluster.client import MessageQueue, ReceivedMessage, SendResult

Schema = dict[str, Any]

SIMPLE: Final[Mapping[Any, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
}


class Queue(TypedDict):
    """One queue of a topic on one broker group."""

    topic: str
    broker: str
    queue_id: int


class Message(TypedDict):
    """A stored message; a body that is not UTF-8 comes as body_base64."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    message_id: str
    offset_message_id: str
    physical_offset: int
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    reconsume_times: int
    sys_flag: int
    tags: str | None
    keys: list[str]
    properties: dict[str, str]
    body: NotRequired[str]
    body_base64: NotRequired[str]


class Sent(TypedDict):
    """Where a message was stored, and what is promised of it: epoch, copies and durable as the broker said."""

    status: str
    message_id: str
    offset_message_id: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    epoch: int | None
    copies: int | None
    durable: int | None


def schema_of(kind: Any) -> Schema:
    """The schema of `plain(value)` for a value of this type. Raises TypeError for a type that nobody prints."""
    if kind in SIMPLE:
        return dict(SIMPLE[kind])
    special = {MessageQueue: Queue, ReceivedMessage: Message, SendResult: Sent}.get(kind)
    if special is not None:
        return schema_of(special)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(each) for each in parts]}
    if origin in (NotRequired, Required):
        return schema_of(parts[0])
    if origin in (list, tuple, set, frozenset):
        return {"type": "array", "items": schema_of(parts[0])}
    if origin is not None and issubclass(origin, Mapping):
        return _table(parts[0], parts[1])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [each.value for each in kind]}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {each.name: schema_of(each.type) for each in msgspec.structs.fields(kind)}
        return _object(kind, fields, list(fields))
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        optional = {name for name, each in hints.items() if typing.get_origin(each) is NotRequired}
        return _object(
            kind, {name: schema_of(each) for name, each in hints.items()}, sorted(hints.keys() - optional)
        )  # fmt: skip
    raise TypeError(f"no schema of {kind!r}")


def _table(key: Any, value: Any) -> Schema:
    """A table by queues is printed as a list of objects that name their queue."""
    if key is not MessageQueue:
        return {"type": "object", "additionalProperties": schema_of(value)}
    row, queue = schema_of(value), schema_of(Queue)
    if row.get("type") != "object":
        row = {"type": "object", "properties": {"offset": row}, "required": ["offset"]}
    return {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {**queue["properties"], **row["properties"]},
            "required": [*queue["required"], *row["required"]],
        },
    }


def _object(kind: Any, fields: Schema, required: list[str]) -> Schema:
    found: Schema = {"type": "object", "properties": fields, "required": required}
    text = (kind.__doc__ or "").strip().split("\n")[0]
    if text and not text.startswith("dict("):
        found["description"] = text
    return found
