"""The actions of `tandem local`, and their options."""

from __future__ import annotations

import argparse
from typing import Final

from tandemmq.command.words.command import Command
from tandemmq.command.words.shared import directory_option, json_option, rolling_limits

PROCESS: Final = "as `tandem local status` names it, e.g. namesrv, broker-a or broker-a-0"


def _up(parser: argparse.ArgumentParser) -> None:
    directory_option(parser)
    parser.add_argument(
        "--mode",
        choices=["sync", "async"],
        help="two groups, each a master and a slave, and a controller in the name server. sync: a "
        "message is acknowledged when both have it; async: when the master has it, and a slave that "
        "takes over may lack the last ones. Without it: two masters alone",
    )
    parser.add_argument(
        "--namesrv-port",
        type=int,
        help="default 9876, or the next that is free, and kept; the controller's is 2 above",
    )
    parser.add_argument(
        "--broker-port",
        type=int,
        help="of the first broker, default 10911 or the next that is free, and kept; each further "
        "one: 10 more. Each also takes the port 2 below and the one above, with --mode the two above",
    )
    json_option(parser)


def _run_local(parser: argparse.ArgumentParser) -> None:
    _up(parser)
    parser.add_argument(
        "--groups", type=int, choices=[1, 2], default=1, help="broker names, default 1"
    )
    parser.add_argument(
        "--host",
        metavar="HOST",
        help="what clients reach the cluster by, as from outside a container; it listens on every address then, and "
        "nothing checks who connects. Default: 127.0.0.1, and only there",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of every broker of a new cluster; may be repeated",
    )
    parser.add_argument(
        "--temporary", action="store_true", help="in a new directory that is removed at the end"
    )
    parser.add_argument(
        "--attached",
        action="store_true",
        help="for programs: end when stdin ends; a line `start NAME` there brings a member back",
    )


def _down(parser: argparse.ArgumentParser) -> None:
    directory_option(parser)
    parser.add_argument(
        "--timeout", type=float, default=15.0, metavar="S", help="seconds to wait, default 15"
    )
    parser.add_argument("--kill", action="store_true", help="kill what has not stopped by then")
    json_option(parser)


def _status(parser: argparse.ArgumentParser) -> None:
    directory_option(parser)
    parser.add_argument("--watch", action="store_true", help="again and again until Ctrl-C")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="of --watch, default 1"
    )
    json_option(parser)


def _kill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=PROCESS)
    directory_option(parser)
    parser.add_argument(
        "--signal",
        choices=["KILL", "STOP", "CONT", "TERM"],
        default="KILL",
        help="KILL (default): as a crash; STOP: freeze it, as a machine that hangs; CONT: let it go "
        "on; TERM: stop it cleanly",
    )
    json_option(parser)


def _start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=PROCESS)
    directory_option(parser)
    json_option(parser)


def _local_rolling_restart(parser: argparse.ArgumentParser) -> None:
    directory_option(parser)
    parser.add_argument(
        "--name-server", action="store_true", help="the name server, too, before the brokers"
    )
    rolling_limits(parser)
    json_option(parser)


def _logs(parser: argparse.ArgumentParser) -> None:
    directory_option(parser)
    parser.add_argument("name", metavar="NAME", nargs="?", help=f"{PROCESS}; default all")
    parser.add_argument("--lines", type=int, default=20, metavar="N", help="of each, default 20")
    parser.add_argument("-f", "--follow", action="store_true", help="and what comes, until Ctrl-C")


LOCAL_ACTIONS: Final = (
    Command(
        "up",
        "local.commands",
        "run_up",
        "start the cluster and wait until it is ready",
        "  tandem local up --dir ./tandem-data\n  tandem local up --mode sync",
        _up,
        server=True,
    ),
    Command(
        "run",
        "local.foreground",
        "run_foreground",
        "run the cluster in the foreground until SIGTERM, which stops all of it",
        "  tandem local run --dir ./tandem-data\n  tandem local run --temporary --mode sync",
        _run_local,
        server=True,
    ),
    Command(
        "down",
        "local.commands",
        "run_down",
        "stop the cluster; data stays",
        "  tandem local down",
        _down,
    ),
    Command(
        "status",
        "local.commands",
        "run_status",
        "say which processes run and what as: roles, epochs, lag, who is in sync",
        "  tandem local status --watch",
        _status,
    ),
    Command(
        "kill",
        "local.commands",
        "run_kill",
        "kill -9 one process, or freeze it, to see what happens",
        "  tandem local kill broker-a-0 && tandem local status\n"
        "  tandem local kill broker-a-0 --signal STOP",
        _kill,
    ),
    Command(
        "start",
        "local.commands",
        "run_start",
        "start one process again and wait until it takes part",
        "  tandem local start broker-a-0",
        _start,
        server=True,
    ),
    Command(
        "rolling-restart",
        "rolling.local",
        "run_local",
        "restart every broker in the order of their roles, without a failed send",
        "  tandem local rolling-restart",
        _local_rolling_restart,
        server=True,
    ),
    Command(
        "logs",
        "local.commands",
        "run_logs",
        "print the end of the processes' logs",
        "  tandem local logs broker-a --lines 50",
        _logs,
    ),
)
