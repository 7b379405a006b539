"""Options of what looks at servers and stores, and restarts them."""

from __future__ import annotations

import argparse
from pathlib import Path

from tandemmq.command.words.shared import json_option, reach_options, rolling_limits


def inspect_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=Path,
        help="storePathRootDir of a broker, or a file in its folder setaside",
    )
    json_option(parser)


def audit_options(parser: argparse.ArgumentParser) -> None:
    """The audit has commands and exit codes of its own: all its words go to tandemmq.audit.commands as they are."""
    parser.prefix_chars = "\0"
    parser.add_argument("words", nargs=argparse.REMAINDER, help="tandem audit --help tells them")


def health_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address",
        metavar="HOST:PORT",
        nargs="?",
        help="default: whoever listens on this machine at 10911 (broker), 9876 (name server) or 9878 (controller)",
    )


def doctor_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, action="append", metavar="DIR",
        help="where a store is or will be; may be repeated. Default: ./tandem-data, /data, /var/lib/tandemmq",
    )  # fmt: skip
    parser.add_argument("--host-only", action="store_true", help="ask no cluster")
    parser.add_argument("--cluster-only", action="store_true", help="do not look at this machine")
    reach_options(parser)
    json_option(parser)


def rolling_restart_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--with", dest="command", required=True, metavar="COMMAND",
        help="restarts one server here; {role} {name} {id} {address} {host} {port} are put in, and no shell reads it",
    )  # fmt: skip
    parser.add_argument(
        "-b", "--brokerName", dest="group", action="append", metavar="BROKER_NAME",
        help="only this group; may be repeated. Default: all",
    )  # fmt: skip
    parser.add_argument(
        "--name-servers",
        action="store_true",
        help="name servers, too, before the brokers, one after the other",
    )
    rolling_limits(parser)
    reach_options(parser)
    json_option(parser)


def hand_over_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address", metavar="HOST:PORT", nargs="?", default="127.0.0.1:10911",
        help="the broker that is to be stopped, default 127.0.0.1:10911; its name servers are asked if -n names none",
    )  # fmt: skip
    reach_options(parser)


def completion_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])


def complete_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=["topics", "groups", "processes"])
    reach_options(parser)
