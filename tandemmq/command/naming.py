"""Names of topics and groups: for a shell's completion, and for what was mistyped."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tandemmq.cluster.client import Admin, ClientError
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.hints import did_you_mean
from tandemmq.command.reach import reach
from tandemmq.command.words.shared import LOCAL_DIRECTORY
from tandemmq.local.layout import open_layout

CALL_MS: Final = 800  # somebody waits with a finger on the key


def run_complete(arguments: argparse.Namespace) -> ExitCode:
    """One name a line. Whatever goes wrong, it prints nothing."""
    with suppress(ClientError, CommandFailed, OSError, ValueError):
        print("\n".join(_KINDS[arguments.kind](arguments)))
    return ExitCode.OK


async def topic_meant(admin: Admin, topic: str) -> str:
    """`; did you mean X?` where a topic of nearly that name is there, else nothing. Raises ClientError."""
    return did_you_mean(topic, [name for name in await admin.topics() if name[:1] != "%"])


def _processes(arguments: argparse.Namespace) -> list[str]:
    return [member.name for member in open_layout(LOCAL_DIRECTORY).members]


def _topics(arguments: argparse.Namespace) -> list[str]:
    async def ask() -> list[str]:
        async with _admin(arguments) as admin:
            return [name for name in await admin.topics() if not name.startswith("%")]

    return asyncio.run(ask())


def _groups(arguments: argparse.Namespace) -> list[str]:
    async def ask() -> list[str]:
        async with _admin(arguments) as admin:
            return await admin.groups()

    return asyncio.run(ask())


def _admin(arguments: argparse.Namespace) -> Admin:
    return Admin(config=replace(reach(arguments), call_timeout_ms=CALL_MS))


_KINDS: Final[dict[str, Callable[[argparse.Namespace], list[str]]]] = {
    "topics": _topics,
    "groups": _groups,
    "processes": _processes,
}
