"""Options of what serves until SIGTERM, and of what checks its settings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from tandemmq.command.words.shared import json_option, logging_options, reach_options

CONSOLE_PORT: Final = 9_880


def nameserver_options(parser: argparse.ArgumentParser) -> None:
    _settings(parser, "namesrv.conf")
    parser.add_argument("-p", "--port", type=int, help="listenPort, default 9876")


def controller_options(parser: argparse.ArgumentParser) -> None:
    _settings(parser, "controller.conf")


def broker_options(parser: argparse.ArgumentParser) -> None:
    _settings(parser, "broker.conf")
    parser.add_argument(
        "-n", "--namesrv", metavar="HOST:PORT[;HOST:PORT]", help="name servers to register with"
    )


def console_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-p", "--port", type=int, default=CONSOLE_PORT, help=f"default {CONSOLE_PORT}"
    )
    parser.add_argument("--host", default="", help="where to listen, default 127.0.0.1")
    parser.add_argument(
        "--name", action="append", default=[], metavar="HOST",
        help="what browsers may call it besides its addresses, e.g. behind a proxy; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="holds the token that who acts must show; without it a new one is printed at the start",
    )
    parser.add_argument(
        "--reports", type=Path, metavar="DIR", help="reports of audits and campaigns to link"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="listen on other addresses than loopback"
    )
    reach_options(parser)
    logging_options(parser)


def check_config_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument(
        "--role",
        choices=["broker", "nameserver", "controller"],
        help="default: what the file's name says, else broker",
    )
    parser.add_argument(
        "-n", "--namesrv", metavar="HOST:PORT[;HOST:PORT]", help="as the broker will be given it"
    )
    parser.add_argument("--insecure", action="store_true", help="as the server will be given it")
    json_option(parser)


def _settings(parser: argparse.ArgumentParser, file: str) -> None:
    parser.add_argument(
        "--make-token", action="store_true",
        help="make the file that httpTokenFile names, with a new token, where there is none",
    )  # fmt: skip
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help=f"RocketMQ's {file}")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting that wins over the file; may be repeated",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="serve although nothing checks who connects: on other addresses than loopback, and with settings that "
        "switch on access control",
    )
    logging_options(parser)
