"""`tandem send`: messages from the command line, files or the lines of stdin."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from cluster.client import Message, MessageQueue, Producer, SendResult
from tandemmq.exits import CommandFailed, ExitCode
from tandemmq.outcome import client_errors
from tandemmq.output import to_json
from tandemmq.reach import reach

TOGETHER: Final = 256  # sends under way at once


def run_send(arguments: argparse.Namespace) -> ExitCode:
    """Send and print where each message was stored."""
    properties = _pairs(arguments.property)
    queue = _queue(arguments.topic, arguments.queue)
    if arguments.body is not None and arguments.file:
        raise CommandFailed("give BODY or --file, not both", ExitCode.USAGE)
    with client_errors():
        sent, not_promised = asyncio.run(_send(arguments, properties, queue))
    if sent > 1 and not arguments.json:
        print(f"{sent} messages sent", file=sys.stderr)
    return ExitCode.FAILED if not_promised else ExitCode.OK


async def _send(
    arguments: argparse.Namespace, properties: dict[str, str], queue: MessageQueue | None
) -> tuple[int, int]:
    bodies = _bodies(arguments)
    sent = not_promised = 0
    async with Producer(arguments.group, config=reach(arguments)) as producer:
        while chunk := list(islice(bodies, TOGETHER)):
            messages = [
                Message(
                    arguments.topic,
                    body,
                    tags=arguments.tag,
                    keys=arguments.key,
                    properties=properties,
                    delay_level=arguments.delay_level,
                )
                for body in chunk
            ]
            for result in await asyncio.gather(
                *(producer.send(message, queue=queue) for message in messages)
            ):
                sent += 1
                not_promised += not result.ok
                print(to_json(result) if arguments.json else _line(result))
    return sent, not_promised


def _pairs(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise CommandFailed(f"--property takes NAME=VALUE, got {text!r}", ExitCode.USAGE)
        found[name] = value
    return found


def _queue(topic: str, text: str | None) -> MessageQueue | None:
    if text is None:
        return None
    broker, _, number = text.rpartition(":")
    if not broker or not number.isdigit():
        raise CommandFailed(f"--queue takes BROKER:ID, got {text!r}", ExitCode.USAGE)
    return MessageQueue(topic, broker, int(number))


def _bodies(arguments: argparse.Namespace) -> Iterator[bytes]:
    files: list[Path] = arguments.file
    if files:
        for path in files:
            yield from _lines(path.read_bytes()) if arguments.lines else [path.read_bytes()]
    elif arguments.body is not None:
        yield _decoded(arguments.body.encode(errors="surrogateescape"), arguments)
    else:
        for line in sys.stdin.buffer:
            if body := line.rstrip(b"\r\n"):
                yield _decoded(body, arguments)


def _lines(data: bytes) -> list[bytes]:
    return [line for line in data.splitlines() if line]


def _decoded(body: bytes, arguments: argparse.Namespace) -> bytes:
    if not arguments.hex:
        return body
    try:
        return bytes.fromhex(body.decode("ascii"))
    except ValueError as problem:
        raise CommandFailed(f"--hex: {body[:40]!r}: {problem}", ExitCode.USAGE) from problem


def _line(result: SendResult) -> str:
    return f"{result.status.name} {result.message_id} {result.queue} offset={result.queue_offset}"
