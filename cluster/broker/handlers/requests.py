"""What the administrative handlers share.

Reading arguments and bodies, refusing, and Java's map-keyed JSON.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from tandemmq.cluster.broker import replies
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.remoting import bodies
from tandemmq.cluster.remoting.codes import ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import Refused as Refused
from tandemmq.storage import fastjson

Arguments = TypeVar("Arguments")
Answer = Command | None | Awaitable[Command | None]

#: larger bodies are parsed in a thread: parsing holds up every other client otherwise
BODY_BYTES_ON_LOOP_MAX: Final = 64 << 10

_encode_lines: Final = msgspec.json.Encoder().encode_lines


def refusing(handler: Callable[..., Answer]) -> Callable[..., Answer]:
    """Let a handler, plain or async, end a request with Refused or one of replies.REFUSALS."""

    def refuse(command: Command, error: Exception) -> Command:
        if isinstance(error, Refused):
            return command.reply(error.code, error.remark)
        return replies.refusal(command, error)

    async def answer_later(command: Command, awaited: Awaitable[Command | None]) -> Command | None:
        try:
            return await awaited
        except (Refused, *replies.REFUSALS) as error:
            return refuse(command, error)

    @functools.wraps(handler)
    def handle(command: Command, connection: Any) -> Answer:
        try:
            answer = handler(command, connection)
        except (Refused, *replies.REFUSALS) as error:
            return refuse(command, error)
        return answer_later(command, answer) if inspect.isawaitable(answer) else answer

    return handle


async def read_body(kind: type[Arguments], command: Command) -> Arguments:
    """The JSON body of a request, whatever dialect it is in.

    Raises Refused when it cannot be read.
    """
    body = command.body or b""
    if len(body) > BODY_BYTES_ON_LOOP_MAX:
        return await asyncio.to_thread(parse_body, kind, body)
    return parse_body(kind, body)


def parse_body(kind: type[Arguments], body: bytes | memoryview) -> Arguments:
    """As read_body, here and now."""
    try:
        return bodies.read(kind, body)
    except bodies.BodyUnreadable as problem:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"body cannot be read: {problem}") from None


def check_topic(name: str) -> None:
    """Raise Refused unless the name may be a topic's (INV-14)."""
    problem = names.check_topic_name(name)
    if problem is not None:
        raise Refused(ResponseCode.INVALID_PARAMETER, problem)


def check_group(name: str) -> None:
    """Raise Refused unless the name may be a group's (INV-14)."""
    problem = names.check_group_name(name)
    if problem is not None:
        raise Refused(ResponseCode.INVALID_PARAMETER, problem)


def queue_json(topic: str, broker_name: str, queue_id: int) -> dict[str, Any]:
    """A queue as tools and clients name it."""
    return {"brokerName": broker_name, "queueId": queue_id, "topic": topic}


def dumps(value: Any) -> bytes:
    """Compact standard JSON."""
    return fastjson.dumps(value)


def map_by_queue(entries: Iterable[tuple[dict[str, Any], Any]]) -> bytes:
    """A map whose keys are queues, with the whole queue as key: `{{"brokerName":...}:value,...}`.

    Every Java tool reads this form, and the Go client reads no other.
    """
    return b"{%b}" % b",".join(b"%b:%b" % (dumps(queue), dumps(value)) for queue, value in entries)


def map_of_topic(topic: str, broker_name: str, values: Iterable[Any]) -> bytes:
    """The same of the queues of one topic, from 0 on: it may have thousands."""
    before, number, after = dumps(queue_json(topic, broker_name, 0)).partition(b'"queueId":0')
    assert number, "no name has a quote in it that is not escaped"
    texts = _encode_lines(list(values)).splitlines()
    return b"{%b}" % b",".join(
        [b'%b"queueId":%d%b:%b' % (before, each, after, text) for each, text in enumerate(texts)]
    )
