"""`tandem admin NAME`: mqadmin's commands under their own names, with their own options."""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tandemmq.admin import (
    brokers as admin_brokers,
)
from tandemmq.admin import (
    groups as admin_groups,
)
from tandemmq.admin import (
    messages as admin_messages,
)
from tandemmq.admin import (
    replicas as admin_replicas,
)
from tandemmq.admin import (
    sends as admin_sends,
)
from tandemmq.admin import (
    timers as admin_timers,
)
from tandemmq.admin import (
    topics as admin_topics,
)
from tandemmq.admin import (
    users as admin_users,
)
from tandemmq.admin.absent import ABSENT
from tandemmq.admin.shape import AdminCommand, Call, Shown
from tandemmq.cluster.client.admin.admin import Admin
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.hints import check_words, did_you_mean
from tandemmq.command.outcome import client_errors
from tandemmq.command.output import to_json
from tandemmq.command.reach import reach
from tandemmq.command.screen import refresh, table
from tandemmq.command.words.shared import HelpFormatter, json_option, reach_options

SECTIONS: Final = (
    ("cluster, brokers and name servers", admin_brokers.COMMANDS),
    ("replicated groups and controllers", admin_replicas.COMMANDS),
    ("topics", admin_topics.COMMANDS),
    ("groups", admin_groups.COMMANDS),
    ("users of access control", admin_users.COMMANDS),
    ("messages", (*admin_messages.COMMANDS, *admin_sends.COMMANDS, *admin_timers.COMMANDS)),
)
COMMANDS: Final = {each.name: each for _, commands in SECTIONS for each in commands}
RELEASE: Final = "5.3.3"  # whose mqadmin this follows
NAME: Final = "mqadmin_name"  # no option of a command is called that

_EPILOG: Final = """examples:
  tandem admin clusterList
  tandem admin updateTopic -c TandemCluster -t Orders -r 8 -w 8
  tandem admin consumerProgress -g billing --json
  tandem admin updateTopic --help
  tandem admin --list"""


def run_admin(argv: Sequence[str]) -> ExitCode:
    """Run one of mqadmin's commands, or list them."""
    named = _named(argv)
    if named is None and argv and not argv[0].startswith("-"):
        raise CommandFailed(_unknown(argv[0]), ExitCode.USAGE)
    parser = admin_parser(named)
    check_words(parser, argv)
    arguments = parser.parse_args(argv)
    if arguments.list:
        return _list(as_json=arguments.json)
    if arguments.command is None:
        raise CommandFailed(_unknown(None), ExitCode.USAGE)
    command: AdminCommand = arguments.command
    with client_errors():
        try:
            return asyncio.run(_run(command, arguments))
        except KeyboardInterrupt:
            if getattr(arguments, "interval", None):
                return ExitCode.OK  # that is how it is meant to end
            raise


def _named(argv: Sequence[str]) -> AdminCommand | None:
    """The command that the arguments name; only its own options are then built."""
    return next((COMMANDS[each] for each in argv[:1] if each in COMMANDS), None)


def admin_parser(command: AdminCommand | None) -> argparse.ArgumentParser:
    """The options of one command, or of `tandem admin` itself."""
    if command is not None:
        parser = argparse.ArgumentParser(
            prog=f"tandem admin {command.name}",
            description=command.summary[0].upper() + command.summary[1:] + ".",
            epilog=f"example:\n  tandem admin {command.example}",
            formatter_class=HelpFormatter,
        )
        parser.add_argument(NAME, help=argparse.SUPPRESS, metavar=command.name)
        command.arguments(parser)
        reach_options(parser)
        json_option(parser)
        parser.set_defaults(command=command, list=False)
        return parser
    listed = "\n".join(
        f"\n{title}:\n" + "\n".join(f"  {each.name:24} {each.summary}" for each in commands)
        for title, commands in SECTIONS
    )
    parser = argparse.ArgumentParser(
        prog="tandem admin",
        description=f"mqadmin's commands (RocketMQ {RELEASE}), with its names and options.\n{listed}",
        epilog=_EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(NAME, nargs="?", metavar="NAME", help="the command; it has its own --help")
    text = "which of mqadmin's commands are here, and which are not"
    parser.add_argument("--list", action="store_true", help=text)
    json_option(parser)
    parser.set_defaults(command=None)
    return parser


def _unknown(name: str | None) -> str:
    if name is None:
        return "which command? `tandem admin --list` names them"
    if name in ABSENT:
        return f"{name} is not here: {ABSENT[name]}"
    if name == "help":
        return "`tandem admin --help` names the commands, `tandem admin NAME --help` explains one"
    hint = did_you_mean(name, COMMANDS) or "; `tandem admin --list` names them"
    return f"The sub command {name} not exist{hint}"


def _list(*, as_json: bool) -> ExitCode:
    if as_json:
        here = {each.name: each.summary for each in COMMANDS.values()}
        print(to_json({"release": RELEASE, "here": here, "absent": ABSENT}))
        return ExitCode.OK
    rows = [(each.name, "ours" if each.ours else "yes", each.summary) for each in COMMANDS.values()]
    rows += [(name, "no", why) for name, why in ABSENT.items()]
    print(table(["COMMAND", "HERE", "WHAT IT DOES, OR WHY NOT"], rows))
    theirs = sum(not each.ours for each in COMMANDS.values())
    total = theirs + len(ABSENT)
    own = len(COMMANDS) - theirs
    print(f"\n{theirs} of the {total} commands of RocketMQ {RELEASE}'s mqadmin, and {own} of ours")
    return ExitCode.OK


async def _run(command: AdminCommand, arguments: argparse.Namespace) -> ExitCode:
    config = reach(arguments)
    interval_s: float | None = getattr(arguments, "interval", None)
    if interval_s is not None and interval_s <= 0:
        raise CommandFailed(f"-i must be above 0, got {interval_s:g}", ExitCode.USAGE)
    async with Admin(config=config) as admin:
        while True:
            call = Call(admin, arguments, config, time.time_ns() // 1_000_000)
            found = command.run(call)
            if not inspect.isawaitable(found):
                code = ExitCode.OK
                async for shown in found:
                    code = _print(shown, arguments, live=False)
                return code
            shown = _remarked(await found, admin.remarks)
            code = _print(shown, arguments, live=interval_s is not None)
            if interval_s is None:
                return code
            await asyncio.sleep(interval_s)


def _remarked(shown: Shown, remarks: Sequence[tuple[str, str]]) -> Shown:
    """What brokers said of changes they made: to stderr, and beside what programs read."""
    for address, remark in remarks:
        print(f"warning: {address}: {remark}", file=sys.stderr)
    if not remarks or not isinstance(shown.value, dict):
        return shown
    said = [{"broker": address, "remark": remark} for address, remark in remarks]
    return replace(shown, value={**shown.value, "remarks": said})


def _print(shown: Shown, arguments: argparse.Namespace, *, live: bool) -> ExitCode:
    if arguments.json:
        print(to_json(shown.value), flush=live)
    elif live:
        refresh(shown.text)
    else:
        print(shown.text)
    sys.stdout.flush()
    return shown.code
