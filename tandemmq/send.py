"""`tandem send`: messages from the command line, a file or the lines of stdin."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from cluster.client import Message, Producer, SendResult
from tandemmq.cli import DEFAULT_NAME_SERVER
from tandemmq.exits import ExitCode
from tandemmq.outcome import client_errors

TOGETHER: Final = 256  # sends under way at once


def run_send(arguments: argparse.Namespace) -> ExitCode:
    """Send and print where each message was stored."""
    with client_errors():
        sent, not_promised = asyncio.run(_send(arguments))
    if sent > 1 and not arguments.json:
        print(f"{sent} messages sent", file=sys.stderr)
    return ExitCode.FAILED if not_promised else ExitCode.OK


async def _send(arguments: argparse.Namespace) -> tuple[int, int]:
    bodies = _bodies(arguments)
    sent = not_promised = 0
    async with Producer(arguments.group, namesrv=name_server(arguments.namesrv)) as producer:
        while chunk := list(islice(bodies, TOGETHER)):
            messages = [
                Message(arguments.topic, body, tags=arguments.tag, keys=arguments.key)
                for body in chunk
            ]
            for result in await asyncio.gather(*map(producer.send, messages)):
                sent += 1
                not_promised += not result.ok
                print(_line(result, as_json=arguments.json))
    return sent, not_promised


def name_server(given: str | None) -> str:
    """-n, else the environment's NAMESRV_ADDR, else the one `tandem local up` starts."""
    return given or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAME_SERVER


def _bodies(arguments: argparse.Namespace) -> Iterator[bytes]:
    if arguments.file is not None:
        path: Path = arguments.file
        yield path.read_bytes()
    elif arguments.body is not None:
        yield arguments.body.encode(errors="surrogateescape")
    else:
        for line in sys.stdin.buffer:
            if body := line.rstrip(b"\r\n"):
                yield body


def _line(result: SendResult, *, as_json: bool) -> str:
    if not as_json:
        return (
            f"{result.status.name} {result.message_id} {result.queue} offset={result.queue_offset}"
        )
    return json.dumps(
        {
            "status": result.status.name,
            "message_id": result.message_id,
            "offset_message_id": result.offset_message_id,
            "topic": result.queue.topic,
            "broker": result.queue.broker_name,
            "queue_id": result.queue.queue_id,
            "queue_offset": result.queue_offset,
        }
    )
