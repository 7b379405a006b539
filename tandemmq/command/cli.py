"""The `tandem` command: parses arguments and calls one module per command.

Command modules are imported when their command runs, not before: a broker starts without the
client, `tandem send` without the broker. That is the one place where a module is imported by name.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from tandemmq import __version__
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.extras import need_server
from tandemmq.command.hints import check_words
from tandemmq.command.words.command import Command
from tandemmq.command.words.local import LOCAL_ACTIONS
from tandemmq.command.words.operating import complete_options
from tandemmq.command.words.shared import HelpFormatter
from tandemmq.command.words.table import COMMANDS

ADMIN: Final = "admin"
CHAOS: Final = "chaos"
GREETING: Final = """TandemMQ: a message broker that speaks RocketMQ's protocol and disk format.

  tandem local up --mode sync        a replicated cluster on this machine
  tandem send Orders "order 17"      send a message
  tandem tail Orders --from first    see what is there, and what comes
  tandem admin clusterList           mqadmin's commands, by their own names
  tandem --help                      everything else"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (tandemmq.command.exits.ExitCode)."""
    if sys.flags.optimize:
        print(
            "tandem: python -O removes the assertions that guard the log; start without it",
            file=sys.stderr,
        )
        return ExitCode.OPTIMIZED
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _run(given)
        sys.stdout.flush()
        return code
    except CommandFailed as problem:
        print(f"tandem: {problem}", file=sys.stderr)
        return problem.code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has enough (`tandem tail T | head`); keep Python from complaining
        # at exit
        _give_up_output()
        return ExitCode.OK
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise
        _give_up_output()
        print(f"tandem: the output cannot be written: {problem.strerror}", file=sys.stderr)
        return ExitCode.FAILED


def _give_up_output() -> None:
    """Keep Python from writing the rest, and from complaining, at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    if not argv:
        print(GREETING)
        return ExitCode.OK
    if argv == ["--version"]:
        print(f"tandem {__version__}")
        return ExitCode.OK
    if argv[0] == ADMIN:  # mqadmin's names and options: a parser of its own
        code: int = importlib.import_module("tandemmq.admin.commands").run_admin(argv[1:])
        return code
    if argv[0] == CHAOS:
        return _run_chaos(argv[1:])
    parser = command_parser()
    check_words(parser, argv)
    arguments, left = parser.parse_known_args(argv)
    if len(left) == 1 and not left[0].startswith("-") and getattr(arguments, "body", "") is None:
        arguments.body = left.pop()  # tandem send TOPIC --tag x BODY
    if left:
        parser.error(f"too many words: {' '.join(left)}")
    if arguments.server:
        need_server(arguments.server)
    module = importlib.import_module(f"tandemmq.{arguments.module}")
    code = getattr(module, arguments.function)(arguments)
    return code


def _run_chaos(argv: list[str]) -> int:
    """tandemmq.chaos is in the source tree, and not in what is installed from a wheel."""
    need_server("tandem chaos")
    try:
        module = importlib.import_module("tandemmq.chaos.scenarios.command")
    except ModuleNotFoundError as problem:
        if problem.name is None or not problem.name.startswith("tandemmq.chaos"):
            raise
        raise CommandFailed(
            "tandem chaos needs the source tree: clone it, `make setup`, and run its .venv/bin/tandem",
            ExitCode.MISSING,
        ) from None
    code: int = module.main(argv)
    return code


def command_parser() -> argparse.ArgumentParser:
    """Every command but the options of `tandem admin NAME`, which tandemmq.admin.commands knows."""
    parser = argparse.ArgumentParser(
        prog="tandem",
        description="TandemMQ: a message broker that speaks RocketMQ's protocol and disk format.",
        epilog="example:\n  tandem local up --mode sync && tandem send Orders hello\n"
        "  tandem tail Orders --from first --until-end\n\nexit codes:\n"
        + "\n".join(f"  {code.value:3}  {code.name}" for code in ExitCode),
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        _add(commands, command)
    # no help: the scripts of `completion` run it
    hidden = commands.add_parser("complete", epilog="example:\n  tandem complete topics")
    complete_options(hidden)
    hidden.set_defaults(module="command.naming", function="run_complete", server="")
    commands.add_parser(ADMIN, help="mqadmin's commands, by their own names", add_help=False)
    commands.add_parser(CHAOS, help="break a cluster on purpose, judge it, report", add_help=False)
    local = commands.add_parser(
        "local",
        help="a whole cluster on this machine, with or without replicas",
        description="A whole cluster as background processes of this machine: a name server and "
        "two masters or, with --mode, two groups of a master and a slave with a controller.",
        epilog="example:\n  tandem local up && tandem send Hello world && tandem local down\n"
        "  tandem local up --mode sync && tandem local kill broker-a-0 && tandem local status",
        formatter_class=HelpFormatter,
    )
    actions = local.add_subparsers(title="actions", metavar="ACTION", required=True)
    for action in LOCAL_ACTIONS:
        _add(actions, action)
    return parser


def _add(
    group: argparse._SubParsersAction[argparse.ArgumentParser],
    command: Command,
) -> None:
    parser = group.add_parser(
        command.name,
        help=command.summary,
        description=command.summary[0].upper() + command.summary[1:] + ".",
        epilog=f"example:\n{command.examples}",
        formatter_class=HelpFormatter,
    )
    command.arguments(parser)
    parser.set_defaults(
        module=command.module,
        function=command.function,
        server=parser.prog if command.server else "",
    )
