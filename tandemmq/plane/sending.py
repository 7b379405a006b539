"""Messages from a request: one raw body with its properties beside it, or an array of them as JSON. Core."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from tandemmq.cluster.client import Message
from tandemmq.plane.problems import ApiProblem

MESSAGES_MAX: Final = 1_000  # of one request
PROPERTY_HEADER: Final = "x-property-"
#: query parameter -> header that says the same
BESIDE: Final = {
    "tags": "X-Tags",
    "keys": "X-Keys",
    "delay_s": "X-Delay-S",
    "ordering_key": "X-Ordering-Key",
}
ARRAY: Final = (
    'an array: [{"body": "hello", "tags": "A"}]; or send one body with another Content-Type'
)


class Item(msgspec.Struct, forbid_unknown_fields=True):
    """One message as JSON.

    body, body_base64   one of the two
    delay_s             so many seconds after the broker has it
    ordering_key        messages of one key go to one queue
    """

    body: str | None = None
    body_base64: str | None = None
    tags: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}
    delay_s: float = 0.0
    ordering_key: str | None = None


class Outgoing(msgspec.Struct, frozen=True):
    """What the producer is given."""

    message: Message
    ordering_key: str | None


def of_json(topic: str, body: bytes) -> list[Outgoing]:
    """Messages of an array. Raises ApiProblem, MessageRefused."""
    try:
        found: Any = msgspec.json.decode(body, type=list[Item])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as problem:
        raise ApiProblem(400, f"the body is no array of messages: {problem}", ARRAY) from None
    if not 1 <= len(found) <= MESSAGES_MAX:
        raise ApiProblem(400, f"1 to {MESSAGES_MAX} messages in one request, got {len(found)}")
    return [_outgoing(topic, item, _body_of(item)) for item in found]


def of_bytes(
    topic: str, body: bytes, query: Mapping[str, str], headers: Iterable[tuple[str, str]]
) -> Outgoing:
    """The body as it is; tags, keys, delay and ordering key from the query or headers, properties from headers.

    Raises ApiProblem, MessageRefused.
    """
    properties: dict[str, str] = {}
    said = {header.lower(): name for name, header in BESIDE.items()}
    given = dict(query)
    for header, value in headers:
        lower = header.lower()
        if lower.startswith(PROPERTY_HEADER):
            properties[header[len(PROPERTY_HEADER) :]] = value
        elif lower in said and given.setdefault(said[lower], value) != value:
            raise ApiProblem(400, f"{said[lower]} in the query and {header} differ")
    if unknown := given.keys() - BESIDE.keys():
        raise ApiProblem(
            400, f"there is no parameter {min(unknown)!r}", f"it takes {', '.join(BESIDE)}"
        )
    try:
        delay_s = float(given.get("delay_s", "0"))
    except ValueError:
        raise ApiProblem(400, f"delay_s takes seconds, got {given['delay_s']!r}") from None
    keys = [each for each in given.get("keys", "").split(",") if each]
    item = Item(
        tags=given.get("tags"), keys=keys, properties=properties, delay_s=delay_s,
        ordering_key=given.get("ordering_key"),
    )  # fmt: skip
    return _outgoing(topic, item, body)


def _body_of(item: Item) -> bytes:
    if (item.body is None) == (item.body_base64 is None):
        raise ApiProblem(400, "each message has body or body_base64", ARRAY)
    if item.body is not None:
        return item.body.encode()
    try:
        return base64.b64decode(item.body_base64 or "", validate=True)
    except (binascii.Error, ValueError):
        raise ApiProblem(400, "body_base64 is no base64") from None


def _outgoing(topic: str, item: Item, body: bytes) -> Outgoing:
    message = Message(
        topic,
        body,
        tags=item.tags,
        keys=item.keys,
        properties=item.properties,
        delay_s=item.delay_s,
    )
    return Outgoing(message, item.ordering_key)
