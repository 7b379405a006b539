"""What mqadmin's commands share here: their shape, their targets, their tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tandemmq.cluster.client import ClientConfig
from tandemmq.cluster.client.admin.admin import Admin
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.screen import table


@dataclass(frozen=True, slots=True)
class Shown:
    """What a command found: value for --json, text for people. code: how the command ends."""

    value: object
    text: str
    code: ExitCode = ExitCode.OK


@dataclass(frozen=True, slots=True)
class Call:
    """What a command works with."""

    admin: Admin
    arguments: argparse.Namespace
    config: ClientConfig
    now_ms: int


Run = Callable[[Call], Awaitable[Shown] | AsyncIterator[Shown]]


@dataclass(frozen=True, slots=True)
class AdminCommand:
    """One of mqadmin's commands under its own name, or one of ours; example without `tandem admin`.

    writes      whether it changes anything, or sends messages: over HTTP it wants the token
    token_for   of what only asks, the options (by their dest) that change something or show a secret all the same
    """

    name: str
    summary: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Run
    ours: bool
    writes: bool
    token_for: frozenset[str] = frozenset()


Arguments = Callable[[argparse.ArgumentParser], None]


def asks(
    name: str, summary: str, example: str, arguments: Arguments, run: Run, *,
    ours: bool = False, token_for: Collection[str] = (),
) -> AdminCommand:  # fmt: skip
    """A command that changes nothing."""
    return AdminCommand(
        name, summary, example, arguments, run, ours, writes=False, token_for=frozenset(token_for)
    )


def orders(
    name: str, summary: str, example: str, arguments: Arguments, run: Run, *, ours: bool = False
) -> AdminCommand:
    """A command that changes something, or sends messages."""
    return AdminCommand(name, summary, example, arguments, run, ours, writes=True)


def no_arguments(parser: argparse.ArgumentParser) -> None:
    """For commands that need nothing but -n."""


def interval_option(parser: argparse.ArgumentParser) -> None:
    """-i: for commands that may be shown again and again."""
    again = "again every so many seconds until Ctrl-C"
    parser.add_argument("-i", "--interval", type=float, metavar="S", help=again)


def on_or_off(text: str) -> bool:
    """mqadmin's true and false."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"true or false, got {text!r}")
    return text.lower() == "true"


def topic(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument("-t", "--topic", required=required, metavar="TOPIC")


def group(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument("-g", "--group", required=required, metavar="GROUP")


def broker_or_cluster(parser: argparse.ArgumentParser, *, cluster_too: bool = True) -> None:
    """-b, or -c: mqadmin insists on one of them, so do we for what changes something."""
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("-b", "--brokerAddr", dest="broker", metavar="HOST:PORT")
    if cluster_too:
        either.add_argument("-c", "--clusterName", dest="cluster", metavar="CLUSTER")


async def targets(call: Call) -> list[str]:
    """The broker of -b, else the masters of the cluster of -c."""
    if call.arguments.broker:
        return [call.arguments.broker]
    return list((await call.admin.masters(call.arguments.cluster)).values())


def hash_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table whose head starts every column with #, as mqadmin's do."""
    return table([f"#{name}" for name in head], rows)


def key_lines(settings: Mapping[str, object], between: str = "=") -> str:
    """`key = value` lines with aligned keys."""
    width = max(map(len, settings), default=0)
    return "\n".join(
        f"{key.ljust(width)}  {between}  {_value_text(settings[key])}".rstrip() for key in settings
    )


def _value_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def usage(text: str) -> CommandFailed:
    """The options do not go together."""
    return CommandFailed(text, ExitCode.USAGE)


def missing(text: str) -> CommandFailed:
    """What was asked for does not exist."""
    return CommandFailed(text, ExitCode.NOT_FOUND)
