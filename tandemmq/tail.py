"""`tandem tail`: a topic's messages by the time they were stored, then as they come.

Joins no group and commits nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cluster.client import MessageQueue, PullConsumer, ReceivedMessage
from tandemmq.exits import CommandFailed, ExitCode
from tandemmq.inorder import InOrder
from tandemmq.outcome import client_errors
from tandemmq.output import body_text, to_json
from tandemmq.reach import reach
from tandemmq.screen import coloured
from tandemmq.times import clock_text, moment_ms

GROUP: Final = "TOOLS_CONSUMER"  # exists on every broker, for tools
POLL_MS: Final = 1_000
POLL_COUNT: Final = 32


def run_tail(arguments: argparse.Namespace) -> ExitCode:
    """Print messages until --count, the end (--until-end, --to) or Ctrl-C."""
    now_ms = time.time_ns() // 1_000_000
    start = start_ms(arguments.start, now_ms)
    end_ms = moment_ms("--to", arguments.end, now_ms) if arguments.end is not None else None
    if arguments.count is not None and arguments.count < 1:
        raise CommandFailed(f"--count must be at least 1, got {arguments.count}", ExitCode.USAGE)
    wanted = _Wanted(arguments)
    with client_errors():
        try:
            shown = asyncio.run(_tail(arguments, start, end_ms, wanted))
        except KeyboardInterrupt:
            return ExitCode.OK
    if not arguments.json:
        print(f"{shown} messages", file=sys.stderr)
    return ExitCode.OK


def start_ms(text: str, now_ms: int) -> int | None:
    """--from as milliseconds since 1970: 0 for first, None for last. Raises CommandFailed."""
    if text == "first":
        return 0
    return None if text == "last" else moment_ms("--from (first, last)", text, now_ms)


class _Wanted:
    """What --key and --property let through; the broker looks at tags only."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._keys = set(arguments.key)
        self._properties: dict[str, str | None] = {}
        for text in arguments.property:
            name, equals, value = text.partition("=")
            self._properties[name] = value if equals else None

    def __call__(self, message: ReceivedMessage) -> bool:
        if self._keys and self._keys.isdisjoint(message.keys):
            return False
        return all(
            name in message.properties and value in (None, message.properties[name])
            for name, value in self._properties.items()
        )


async def _tail(
    arguments: argparse.Namespace, start: int | None, end_ms: int | None, wanted: _Wanted
) -> int:
    shown = 0
    consumer = PullConsumer(GROUP, config=reach(arguments), auto_commit=False)
    async with consumer:
        queues = _chosen(await consumer.queues(arguments.topic), arguments.queue)
        await consumer.assign(queues, arguments.tag)
        await asyncio.gather(*(_seek(consumer, queue, start) for queue in queues))
        ends = await _ends(consumer, queues, arguments.until_end, end_ms)
        now = await asyncio.gather(*map(consumer.max_offset, queues))
        in_order = InOrder(dict(zip(queues, now, strict=True)))
        over = False
        while not over and (arguments.count is None or shown < arguments.count):
            over = bool(ends) and all(
                consumer.position(queue) >= end for queue, end in ends.items()
            )
            came = [] if over else await consumer.poll(POLL_COUNT, POLL_MS)
            in_order.take(
                each
                for each in came  # others came while we read
                if each.queue_offset < ends.get(each.queue, each.queue_offset + 1)
            )
            positions = {queue: consumer.position(queue) for queue in queues}
            for message in in_order.ready(positions, all_of_them=over or not came):
                if wanted(message):
                    text = to_json(message) if arguments.json else as_text(message, arguments)
                    print(text, flush=True)
                    shown += 1
                    if shown == arguments.count:
                        break
    return shown


def _chosen(queues: Sequence[MessageQueue], texts: Iterable[str]) -> list[MessageQueue]:
    """The queues of --queue BROKER:ID or BROKER, or all."""
    wanted = list(texts)
    if not wanted:
        return list(queues)
    found = [
        queue
        for queue in queues
        if queue.broker_name in wanted or f"{queue.broker_name}:{queue.queue_id}" in wanted
    ]
    if not found:
        raise CommandFailed(
            f"no queue {' or '.join(wanted)}; there are {', '.join(map(str, queues))}",
            ExitCode.USAGE,
        )
    return found


async def _seek(consumer: PullConsumer, queue: MessageQueue, start: int | None) -> None:
    if start is None:
        offset = await consumer.max_offset(queue)
    elif start == 0:
        offset = await consumer.min_offset(queue)
    else:
        offset = await consumer.offset_for_time(queue, start)
    await consumer.seek(queue, offset)


async def _ends(
    consumer: PullConsumer, queues: Sequence[MessageQueue], until_end: bool, end_ms: int | None
) -> Mapping[MessageQueue, int]:
    """Where to stop in each queue: its end now, or the first message stored at end_ms or later."""
    if end_ms is not None:
        ends = await asyncio.gather(*(consumer.offset_for_time(q, end_ms) for q in queues))
    elif until_end:
        ends = await asyncio.gather(*map(consumer.max_offset, queues))
    else:
        return {}
    return dict(zip(queues, ends, strict=True))


def as_text(message: ReceivedMessage, arguments: argparse.Namespace) -> str:
    """One message for people: place, time, tag, keys, body; everything else with --verbose."""
    place = f"{message.queue.broker_name}:{message.queue.queue_id} {message.queue_offset}"
    marks = [f"[{message.tags}]"] if message.tags else []
    if message.keys:
        marks.append(f"keys={','.join(message.keys)}")
    if message.reconsume_times:
        marks.append(coloured(f"retry={message.reconsume_times}", "yellow"))
    body = body_text(message.body, "hex" if arguments.hex else arguments.style)
    head = coloured(f"{clock_text(message.store_ms)} {place}", "dim")
    line = " ".join([head, *marks, body])
    return f"{line}\n{_more(message)}" if arguments.verbose else line


def _more(message: ReceivedMessage) -> str:
    pairs = {
        "message id": message.message_id,
        "offset id": message.offset_message_id,
        "born": f"{clock_text(message.born_ms)} at {message.born_host}",
        "stored at": f"{message.store_host}, CommitLog offset {message.physical_offset}",
        "system flag": f"{message.sys_flag}{' (compressed)' if message.sys_flag & 1 else ''}",
        **message.properties,
    }
    return "\n".join(coloured(f"  {name}: {value}", "dim") for name, value in pairs.items())
