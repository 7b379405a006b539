"""Options that several commands have, and how help looks."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
LOCAL_DIRECTORY: Final = Path("tandem-data")
LOG_FORMATS: Final = ("text", "json")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Examples as they are written; room for the longest name beside its text."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


def reach_options(parser: argparse.ArgumentParser) -> None:
    """How a client reaches the cluster: tandemmq.command.reach reads these."""
    parser.add_argument(
        "-n",
        "--namesrv",
        metavar="HOST:PORT[;HOST:PORT]",
        help="name servers; default NAMESRV_ADDR of the environment, else that of the cluster in "
        f"./tandem-data, else {DEFAULT_NAME_SERVER}; an access key comes from TANDEM_ACCESS_KEY and TANDEM_SECRET_KEY",
    )
    parser.add_argument(
        "--credentials",
        metavar="FILE",
        help="holds accessKey and secretKey, as RocketMQ's tools.yml; default the environment's TANDEM_CREDENTIALS, "
        "then its keys, then $ROCKETMQ_HOME/conf/tools.yml",
    )
    parser.add_argument("--tls", action="store_true", help="encrypt, trusting any certificate")
    parser.add_argument("--ca", metavar="FILE", help="encrypt, trusting these certificates (PEM)")
    parser.add_argument("--cert", metavar="FILE", help="encrypt, showing this certificate (PEM)")
    parser.add_argument(
        "--cert-key", metavar="FILE", help="of --cert, unencrypted; default: it is in the same file"
    )


def json_option(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="output for programs")


def directory_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir",
        type=Path,
        default=LOCAL_DIRECTORY,
        metavar="DIR",
        help="where the cluster keeps settings, stores and logs; default ./tandem-data",
    )


def logging_options(parser: argparse.ArgumentParser) -> None:
    levels = ["DEBUG", "INFO", "WARNING", "ERROR"]
    parser.add_argument("--log-level", choices=levels, default="INFO", help="default INFO")
    parser.add_argument(
        "--log-format", choices=LOG_FORMATS, default=_log_format(),
        help="text: a phrase and key=value; json: one object per line. Default: TANDEM_LOG_FORMAT of the environment, "
        "else text",
    )  # fmt: skip
    parser.add_argument("--log-json", action="store_true", help="the same as --log-format json")
    parser.add_argument(
        "--log-file", type=Path, metavar="FILE", help="instead of stderr; rotated, see the next two"
    )
    parser.add_argument(
        "--log-file-bytes", type=int, default=64 << 20, metavar="N",
        help="FILE becomes FILE.1 when it has so many, default 64 MiB",
    )  # fmt: skip
    parser.add_argument(
        "--log-files",
        type=int,
        default=8,
        metavar="N",
        help="so many are kept beside it, default 8",
    )


def _log_format() -> str:
    """Of the environment, which can be set where a container's command is fixed. A word that is none is text."""
    told = os.environ.get("TANDEM_LOG_FORMAT", "")
    return told if told in LOG_FORMATS else LOG_FORMATS[0]


def rolling_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="for one server to be back, default 120",
    )
    parser.add_argument(
        "--drain", type=float, default=35.0, metavar="S",
        help="so long producers are kept away from a master whom nobody can follow, before its restart; default 35, as "
        "clients ask for routes every 30",
    )  # fmt: skip
