"""`tandem tail`: a topic's messages by the time they were stored, then as they come.

Joins no group and commits nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq.cluster.client import (
    Admin,
    ClientError,
    MessageQueue,
    NoRoute,
    PullConsumer,
    ReceivedMessage,
    Sql92,
)
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.inorder import InOrder
from tandemmq.command.naming import topic_meant
from tandemmq.command.outcome import client_errors
from tandemmq.command.output import body_text, to_json
from tandemmq.command.reach import reach
from tandemmq.command.screen import coloured
from tandemmq.command.times import clock_text, moment_ms

GROUP: Final = "TOOLS_CONSUMER"  # exists on every broker, for tools
POLL_MS: Final = 1_000
POLL_COUNT: Final = 32
QUIET_POLLS: Final = 10  # without a message: is whoever has not told all of it still there?


def run_tail(arguments: argparse.Namespace) -> ExitCode:
    """Print messages until --count, the end (--until-end, --to) or Ctrl-C.

    UNREACHABLE when a broker's queues could not be read; those of the others are shown.
    """
    now_ms = time.time_ns() // 1_000_000
    start = start_ms(arguments.start, now_ms)
    end_ms = moment_ms("--to", arguments.end, now_ms) if arguments.end is not None else None
    if arguments.count is not None and arguments.count < 1:
        raise CommandFailed(f"--count must be at least 1, got {arguments.count}", ExitCode.USAGE)
    wanted = _Wanted(arguments)
    with client_errors():
        try:
            shown, all_read = asyncio.run(_tail(arguments, start, end_ms, wanted))
        except KeyboardInterrupt:
            return ExitCode.OK
    if not arguments.json:
        print(f"{shown} messages", file=sys.stderr)
    return ExitCode.OK if all_read else ExitCode.UNREACHABLE


def start_ms(text: str, now_ms: int) -> int | None:
    """--from as milliseconds since 1970: 0 for first, None for last. Raises CommandFailed."""
    if text == "first":
        return 0
    return None if text == "last" else moment_ms("--from (first, last)", text, now_ms)


class _Wanted:
    """What --key and --property let through; the broker looks at --tag or --sql only."""

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


@dataclass(frozen=True, slots=True)
class _Span:
    """What to read of a queue, as queue offsets: [start, end), for ever without an end. now: its end now."""

    start: int
    end: int | None
    now: int


async def _tail(
    arguments: argparse.Namespace, start: int | None, end_ms: int | None, wanted: _Wanted
) -> tuple[int, bool]:
    """(messages shown, whether every queue was read)."""
    shown = 0
    consumer = PullConsumer(GROUP, config=reach(arguments), auto_commit=False)
    async with consumer:
        chosen = _chosen(await _queues(consumer, arguments), arguments.queue)
        spans = await _spans(consumer, chosen, start, arguments.until_end, end_ms)
        queues = list(spans)
        positions = {queue: span.start for queue, span in spans.items()}
        expression = arguments.tag if arguments.sql is None else Sql92(arguments.sql)
        await consumer.assign(queues, expression, positions=positions)
        ends = {queue: span.end for queue, span in spans.items() if span.end is not None}
        bounded, lost = bool(ends), len(queues) < len(chosen)
        in_order = InOrder({queue: span.now for queue, span in spans.items()})
        quiet_polls, over = 0, False
        while not over and (arguments.count is None or shown < arguments.count):
            over = bounded and all(consumer.position(queue) >= end for queue, end in ends.items())
            came = [] if over else await consumer.poll(POLL_COUNT, POLL_MS)
            quiet_polls = 0 if came else quiet_polls + 1
            if bounded and quiet_polls == QUIET_POLLS:
                quiet_polls = 0
                behind = [queue for queue in ends if consumer.position(queue) < ends[queue]]
                for queue in await _silent(consumer, behind):
                    lost = True
                    del ends[queue]
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
    return shown, not lost


async def _queues(consumer: PullConsumer, arguments: argparse.Namespace) -> Sequence[MessageQueue]:
    """Those that can be read. Raises CommandFailed for a topic that is not there, or has none."""
    topic = arguments.topic
    try:
        queues = await consumer.queues(topic)
    except NoRoute as problem:
        async with Admin(config=reach(arguments)) as admin:
            if not await admin.cluster():
                raise  # no broker is there: who knows what topics they have
            meant = await topic_meant(admin, topic)
        raise CommandFailed(f"{problem}{meant}", ExitCode.NOT_FOUND) from problem
    if not queues:
        raise CommandFailed(
            f"topic {topic} has no queue to read: its brokers give it 0 read queues, or do not "
            "allow reading (tandem admin updateTopic -r N -p 6)"
        )
    return queues


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


async def _spans(
    consumer: PullConsumer,
    queues: Sequence[MessageQueue],
    start: int | None,
    until_end: bool,
    end_ms: int | None,
) -> dict[MessageQueue, _Span]:
    """What to read of each queue whose broker answers, and a warning about the others.

    Raises what the first of them said when none answers.
    """
    found = await asyncio.gather(
        *(_span(consumer, queue, start, until_end, end_ms) for queue in queues),
        return_exceptions=True,
    )
    spans: dict[MessageQueue, _Span] = {}
    problems: dict[MessageQueue, ClientError] = {}
    for queue, each in zip(queues, found, strict=True):
        if isinstance(each, _Span):
            spans[queue] = each
        elif isinstance(each, ClientError):
            problems[queue] = each
        else:
            raise each
    if not spans:
        raise next(iter(problems.values()))
    _warn(problems)
    return spans


async def _span(
    consumer: PullConsumer,
    queue: MessageQueue,
    start: int | None,
    until_end: bool,
    end_ms: int | None,
) -> _Span:
    now = await consumer.max_offset(queue)
    if start is None:
        begin = now
    elif start == 0:
        begin = await consumer.min_offset(queue)
    else:
        begin = await consumer.offset_for_time(queue, start)
    if end_ms is not None:
        return _Span(begin, await consumer.offset_for_time(queue, end_ms), now)
    return _Span(begin, now if until_end else None, now)


async def _silent(
    consumer: PullConsumer, queues: Sequence[MessageQueue]
) -> Collection[MessageQueue]:
    """Those whose broker does not answer now, after a warning about them."""
    found = await asyncio.gather(*map(consumer.max_offset, queues), return_exceptions=True)
    pairs = zip(queues, found, strict=True)
    problems = {queue: each for queue, each in pairs if isinstance(each, ClientError)}
    _warn(problems)
    return problems


def _warn(problems: Mapping[MessageQueue, ClientError]) -> None:
    """One line per broker that names its queues."""
    for broker in sorted({queue.broker_name for queue in problems}):
        of_broker = {queue: why for queue, why in problems.items() if queue.broker_name == broker}
        ids = ", ".join(str(queue.queue_id) for queue in of_broker)
        why = next(iter(of_broker.values()))
        print(f"warning: not read: {broker}, queues {ids}: {why.said}", file=sys.stderr)


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
