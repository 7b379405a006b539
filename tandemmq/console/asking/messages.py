"""Finds messages: by key, by id, by time, at their place; and what became of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from tandemmq.admin.messages import read_traces
from tandemmq.cluster.client import (
    TRACE_TOPIC,
    Admin,
    ClientError,
    MessageQueue,
    MessageTrack,
    ReceivedMessage,
)
from tandemmq.cluster.client.admin.messages import FOR_EVER_MS

FOUND_MAX: Final = 64
BY_KEY_MAX: Final = 32  # per broker, in one answer: bodies may have 4 MB each
KEPT_BYTES: Final = 512  # of each body: what a line of a table needs
MANY_QUEUES: Final = 16
QUEUES_MAX: Final = 256  # of a topic that is searched by time
PULL_COUNT: Final = 32


class Line(NamedTuple):
    """A message with the beginning of its body, and the size of the whole."""

    message: ReceivedMessage
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Found:
    """Messages in order; whether there may be more than are shown."""

    lines: tuple[Line, ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """One message, what became of it in each group, and its traces; problems where that cannot be told."""

    message: ReceivedMessage
    tracks: tuple[MessageTrack, ...] = ()
    tracks_problem: str = ""
    traces: tuple[dict[str, Any], ...] = ()
    traces_problem: str = ""


def line(message: ReceivedMessage) -> Line:
    """What is kept of a message for a table."""
    size = len(message.body)
    if size > KEPT_BYTES:
        message = msgspec.structs.replace(message, body=message.body[:KEPT_BYTES])
    return Line(message, size)


async def by_key(
    admin: Admin, topic: str, key: str, begin_ms: int = 0, end_ms: int = FOR_EVER_MS
) -> Found:
    """Messages that carry a key. Raises ClientError."""
    found = await admin.messages_by_key(
        topic, key, count_max=BY_KEY_MAX, begin_ms=begin_ms, end_ms=end_ms
    )
    return Found(tuple(map(line, found[:FOUND_MAX])), len(found) >= BY_KEY_MAX)


async def by_id(admin: Admin, topic: str, message_id: str) -> Found:
    """Copies of a message, by either of its ids. Raises ClientError."""
    copies = await admin.messages_by_unique_id(topic, message_id)
    if not copies:
        one = await admin.message_by_id(message_id, topic)
        copies = [] if one is None else [one]
    return Found(tuple(map(line, copies[:FOUND_MAX])), len(copies) > FOUND_MAX)


async def by_time(admin: Admin, topic: str, begin_ms: int, end_ms: int) -> Found:
    """Messages stored from begin_ms on, before end_ms, the oldest of them. Raises ClientError."""
    route = await admin.route(topic)
    found: list[Line] = []
    more = False
    for queue in list(route.read_queues(topic))[:QUEUES_MAX]:
        first = await admin.offset_for_time(queue, begin_ms)
        here: list[Line] = []
        while len(here) < FOUND_MAX:
            batch = await admin.messages_from(queue, first, count_max=PULL_COUNT)
            here += [line(each) for each in batch if begin_ms <= each.store_ms < end_ms]
            if not batch or batch[-1].store_ms >= end_ms:
                break
            first = batch[-1].queue_offset + 1
        else:
            more = True
        found += here
    found.sort(key=lambda each: (each.message.store_ms, each.message.physical_offset))
    return Found(tuple(found[:FOUND_MAX]), more or len(found) > FOUND_MAX)


async def whereabouts(admin: Admin, place: MessageQueue, queue_offset: int) -> Whereabouts | None:
    """The message at a place with all that is known of it; None when nothing is there. Raises ClientError."""
    message = await admin.message_at(place, queue_offset)
    if message is None:
        return None
    tracks, tracks_problem = (), ""
    try:
        tracks = tuple(await admin.track(message))  # type: ignore[assignment]
    except (ClientError, OSError) as problem:
        tracks_problem = str(problem)
    traces: list[dict[str, Any]] = []
    traces_problem = ""
    try:
        for each in await admin.messages_by_key(TRACE_TOPIC, message.message_id):
            traces += read_traces(each, message.message_id)
    except (ClientError, OSError, ValueError, IndexError) as problem:
        traces_problem = str(problem)
    traces.sort(key=lambda each: each["time_ms"])
    return Whereabouts(message, tracks, tracks_problem, tuple(traces), traces_problem)


async def newest(admin: Admin, topic: str, count_max: int) -> Found:
    """The last messages of a topic, the newest first. Raises ClientError."""
    stats = await admin.topic_stats(topic)
    queues = [
        (queue, held) for queue, held in stats.queues.items() if held.max_offset > held.min_offset
    ]
    queues.sort(key=lambda each: -each[1].updated_ms)
    found: list[Line] = []
    of_each = count_max if len(queues) <= MANY_QUEUES else MANY_QUEUES
    for queue, held in queues[:QUEUES_MAX]:
        first = max(held.min_offset, held.max_offset - of_each)
        found += await read(admin, queue, first, held.max_offset)
    found.sort(key=lambda each: (-each.message.store_ms, -each.message.physical_offset))
    return Found(tuple(found[:count_max]), stats.message_count > count_max)


async def read(admin: Admin, queue: MessageQueue, first: int, end: int) -> list[Line]:
    """Messages [first, end) of a queue, as far as they are there. Raises ClientError."""
    found: list[Line] = []
    while first < end:
        batch = await admin.messages_from(queue, first, count_max=min(PULL_COUNT, end - first))
        if not batch:
            break
        found += [line(each) for each in batch if each.queue_offset < end]
        first = batch[-1].queue_offset + 1
    return found
