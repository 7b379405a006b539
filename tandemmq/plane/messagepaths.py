"""OpenAPI of /api/topics/TOPIC/messages and /api/events. Core."""

from __future__ import annotations

from typing import Any, Final, NotRequired, TypedDict

import msgspec

from tandemmq.plane.changes import EVENTS
from tandemmq.plane.schemas import Message, Schema, Sent, schema_of
from tandemmq.plane.sending import BESIDE, Item

PATH: Final = "/api/topics/{topic}/messages"
_PROBLEM: Final = {"$ref": "#/components/schemas/Problem"}
_ERRORS: Final = ("400", "401", "403", "404", "409", "502", "503", "504")


class Stored(TypedDict):
    """Where each message was stored, in the order of the request."""

    messages: list[Sent]


class Leased(Message):
    """A message for one who asked; receipt acknowledges it, deliveries counts from 1."""

    receipt: str
    deliveries: int


class Received(TypedDict):
    """The next messages of a group; none where nothing came in time."""

    messages: list[Leased]


class Acknowledged(TypedDict):
    """How many messages are done now, and receipts that mean none of those that are handed out here."""

    acknowledged: int
    unknown: list[str]


class Order(TypedDict):
    receipts: NotRequired[list[str]]


def paths() -> dict[str, Any]:
    """Sending, receiving and acknowledging; listening."""
    found = {"post": _send(), "get": _receive(), "delete": _acknowledge()}
    return {PATH: {"parameters": [_topic()], **found}, "/api/events": {"get": _listen()}}


def _listen() -> Schema:
    stream = {"text/event-stream": {"schema": {"type": "string"}}}
    answers: Schema = {"200": {"description": "events, until who listens goes", "content": stream}}
    return {
        "operationId": "listen",
        "summary": "what changes, as server-sent events",
        "description": "First `state`, then what changes, within about a second; a comment every 15 s says that the "
        "stream lives. With the id of an event the stream goes on behind it, or with `state` where that is too long "
        "ago. The data of each event is JSON: x-events.",
        "tags": ["events"],
        "security": [{}, {"token": []}],
        "parameters": [
            _parameter("last_id", "the id of an event; or the header Last-Event-ID", {"type": "string"})
        ],
        "responses": answers
        | {each: {"$ref": f"#/components/responses/Problem{each}"} for each in ("400", "401", "403", "502", "503")},
        "x-events": {name: schema_of(kind) for name, kind in EVENTS.items()},
    }  # fmt: skip


def _topic() -> Schema:
    return {"name": "topic", "in": "path", "required": True, "schema": {"type": "string"}}


def _send() -> Schema:
    (items,), parts = msgspec.json.schema_components([Item])
    item = parts.get("Item", items)
    array = {"type": "array", "items": item, "minItems": 1}
    beside = [
        {
            "name": name,
            "in": "query",
            "description": f"of a raw body; or the header {header}",
            "schema": {"type": "number" if name == "delay_s" else "string"},
        }
        for name, header in BESIDE.items()
    ]
    return {
        "operationId": "sendMessages",
        "summary": "send messages",
        "description": "One raw body, or application/json with an array. A property of a raw body is a header "
        "X-Property-NAME. Answered when the brokers have what their mode promises; whether they do after a 5xx is "
        "unknown, and sending again may store a message twice.",
        "tags": ["messages"],
        "security": [{"token": []}],
        "parameters": beside,
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": array},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            },
        },
        "responses": _responses(
            schema_of(Stored), "all are stored", (*_ERRORS, "408", "413", "415")
        ),
    }


def _receive() -> Schema:
    return {
        "operationId": "receiveMessages",
        "summary": "the next messages of a group",
        "description": "Handed out to one who asks at a time, and again when `lease` seconds are over without an "
        "acknowledgement: at least once. With ack=auto they are acknowledged when the answer was written.",
        "tags": ["messages"],
        "security": [{"token": []}],
        "parameters": [
            _parameter("group", "the consumer group", {"type": "string"}, required=True),
            _parameter("max", "at most so many", {"type": "integer", "default": 32, "minimum": 1, "maximum": 256}),
            _parameter("wait", "seconds to wait for the first", {"type": "number", "default": 0, "maximum": 30}),
            _parameter("lease", "seconds until they come again", {"type": "number", "default": 30, "maximum": 3600}),
            _parameter("ack", "auto: no receipts are needed", {"enum": ["later", "auto"], "default": "later"}),
            _parameter("tags", "which of the topic's: A, or A || B", {"type": "string", "default": "*"}),
            _parameter(
                "start", "where a group begins that never read it", {"enum": ["last", "first"], "default": "last"}
            ),
        ],
        "responses": _responses(schema_of(Received), "messages, or none", _ERRORS),
    }  # fmt: skip


def _acknowledge() -> Schema:
    gone = {"description": "nobody reads the topic for this group here any more"}
    responses = _responses(schema_of(Acknowledged), "they are done", _ERRORS)
    return {
        "operationId": "acknowledgeMessages",
        "summary": "messages that are done",
        "tags": ["messages"],
        "security": [{"token": []}],
        "parameters": [
            _parameter("group", "the consumer group", {"type": "string"}, required=True),
            _parameter("receipts", "with commas between, if not in the body", {"type": "string"}),
        ],
        "requestBody": {"content": {"application/json": {"schema": schema_of(Order)}}},
        "responses": responses
        | {"410": {**gone, "content": {"application/json": {"schema": _PROBLEM}}}},
    }


def _parameter(name: str, text: str, schema: Schema, *, required: bool = False) -> Schema:
    return {
        "name": name,
        "in": "query",
        "required": required,
        "description": text,
        "schema": schema,
    }


def _responses(schema: Schema, what: str, statuses: tuple[str, ...]) -> Schema:
    content = {"application/json": {"schema": schema}}
    found: Schema = {"200": {"description": what, "content": content}}
    return found | {each: {"$ref": f"#/components/responses/Problem{each}"} for each in statuses}
