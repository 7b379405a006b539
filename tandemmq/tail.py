"""`tandem tail`: a topic's messages as they come. Joins no group and commits nothing."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from cluster.client import MessageQueue, PullConsumer, ReceivedMessage
from tandemmq.exits import CommandFailed, ExitCode
from tandemmq.outcome import client_errors
from tandemmq.screen import coloured
from tandemmq.send import name_server

GROUP: Final = "TOOLS_CONSUMER"  # exists on every broker, for tools
POLL_MS: Final = 1_000
_AGO = re.compile(r"(\d+)([smhd])")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def run_tail(arguments: argparse.Namespace) -> ExitCode:
    """Print messages until --count, the end (--until-end) or Ctrl-C."""
    start = start_ms(arguments.start, time.time_ns() // 1_000_000)
    if arguments.count is not None and arguments.count < 1:
        raise CommandFailed(f"--count must be at least 1, got {arguments.count}", ExitCode.USAGE)
    with client_errors():
        try:
            shown = asyncio.run(_tail(arguments, start))
        except KeyboardInterrupt:
            return ExitCode.OK
    if not arguments.json:
        print(f"{shown} messages", file=sys.stderr)
    return ExitCode.OK


def start_ms(text: str, now_ms: int) -> int | None:
    """--from as milliseconds since 1970: 0 for first, None for last. Raises CommandFailed."""
    if text == "first":
        return 0
    if text == "last":
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    if ago := _AGO.fullmatch(text):
        return now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise CommandFailed(
            f"--from takes first, last, a time like 2025-09-19T08:30:00, milliseconds or 10m, "
            f"got {text!r}",
            ExitCode.USAGE,
        ) from None


async def _tail(arguments: argparse.Namespace, start: int | None) -> int:
    shown = 0
    consumer = PullConsumer(GROUP, namesrv=name_server(arguments.namesrv), auto_commit=False)
    async with consumer:
        queues = await consumer.queues(arguments.topic)
        await consumer.assign(queues, arguments.tag)
        await asyncio.gather(*(_seek(consumer, queue, start) for queue in queues))
        ends = await _ends(consumer, queues) if arguments.until_end else {}
        while arguments.count is None or shown < arguments.count:
            if ends and all(consumer.position(queue) >= end for queue, end in ends.items()):
                break
            left = 32 if arguments.count is None else min(32, arguments.count - shown)
            for message in await consumer.poll(left, POLL_MS):
                print(as_json(message) if arguments.json else as_text(message), flush=True)
                shown += 1
    return shown


async def _seek(consumer: PullConsumer, queue: MessageQueue, start: int | None) -> None:
    if start is None:
        offset = await consumer.max_offset(queue)
    elif start == 0:
        offset = await consumer.min_offset(queue)
    else:
        offset = await consumer.offset_for_time(queue, start)
    await consumer.seek(queue, offset)


async def _ends(consumer: PullConsumer, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
    ends = await asyncio.gather(*map(consumer.max_offset, queues))
    return dict(zip(queues, ends, strict=True))


def as_text(message: ReceivedMessage) -> str:
    """One message for people: place, time, tag, keys, body."""
    stored = datetime.fromtimestamp(message.store_ms / 1000).isoformat(" ", "milliseconds")
    place = f"{message.queue.broker_name}:{message.queue.queue_id} {message.queue_offset}"
    marks = [f"[{message.tags}]"] if message.tags else []
    if message.keys:
        marks.append(f"keys={','.join(message.keys)}")
    body = message.body.decode(errors="backslashreplace")
    return " ".join([coloured(f"{stored} {place}", "dim"), *marks, body])


def as_json(message: ReceivedMessage) -> str:
    """One message as a JSON line; a body that is not UTF-8 comes as body_base64."""
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode()}
    return json.dumps(
        {
            "topic": message.topic,
            "broker": message.queue.broker_name,
            "queue_id": message.queue.queue_id,
            "queue_offset": message.queue_offset,
            "message_id": message.message_id,
            "offset_message_id": message.offset_message_id,
            "store_ms": message.store_ms,
            "tags": message.tags,
            "keys": list(message.keys),
            "properties": dict(message.properties),
            **body,
        },
        ensure_ascii=False,
    )
