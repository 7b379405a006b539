"""The options of `tandem backup` and `tandem restore`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

HTTP_TOKEN: Final = "TANDEM_HTTP_TOKEN"  # of the environment: a command line is seen by everybody

ACTIONS: Final = (
    (
        "run",
        "copy what is new of a running broker, or of a stopped one's store",
        "  tandem backup run http://10.0.0.1:8090 --to /backup --token-file http.token\n"
        "  tandem backup run --namesrv 10.0.0.1:9876 --to s3://bucket/tandem    (every group)\n"
        "  tandem backup run /data/store --group broker-a --to /backup          (stopped)",
    ),
    (
        "list",
        "what a backup holds: groups, chains, increments, and up to when",
        "  tandem backup list /backup\n  tandem backup list s3://bucket/tandem --json",
    ),
    (
        "verify",
        "read all of it, and hold every file against its checksum",
        "  tandem backup verify /backup\n  tandem backup verify /backup --group broker-a --records",
    ),
)


def backup_arguments(parser: argparse.ArgumentParser) -> None:
    """Actions of `tandem backup`, and their options."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    for name, summary, examples in ACTIONS:
        action = actions.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"example:\n{examples}", formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        {"run": _run, "list": _list, "verify": _verify}[name](action)


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", nargs="?", metavar="SOURCE",
        help="a running broker's HTTP port (http://HOST:PORT), best the master's, or the store of a stopped one",
    )  # fmt: skip
    parser.add_argument("--to", required=True, metavar="PLACE", help=_PLACE)
    parser.add_argument(
        "-n", "--namesrv", metavar="HOST:PORT",
        help="instead of SOURCE: the master of every group that is registered there",
    )  # fmt: skip
    parser.add_argument(
        "--group", default="", metavar="NAME",
        help="with --namesrv only this brokerName; with a store that does not say: its brokerName",
    )  # fmt: skip
    parser.add_argument(
        "--cluster", default="", metavar="NAME", help="the same for brokerClusterName"
    )
    parser.add_argument(
        "--full", action="store_true", help="begin another chain: copy everything once more"
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE",
        help=f"holds the brokers' httpToken; without it {HTTP_TOKEN} of the environment",
    )  # fmt: skip
    parser.add_argument("--tls", action="store_true", help="remoting encrypted, trusting anybody")
    parser.add_argument("--ca", metavar="FILE", help="encrypted, trusting these certificates (PEM)")
    parser.add_argument("--cert", metavar="FILE", help="shown to who asks for one (PEM)")
    parser.add_argument("--cert-key", metavar="FILE", help="of --cert; default: in the same file")
    _json(parser)


def _list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", metavar="PLACE", help=_PLACE)
    parser.add_argument("--group", default="", metavar="NAME", help="only this one")
    _json(parser)


def _verify(parser: argparse.ArgumentParser) -> None:
    _list(parser)
    parser.add_argument(
        "--records", action="store_true", help="also every record: its place, length, and checksum"
    )


def restore_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `tandem restore`."""
    parser.add_argument("place", metavar="PLACE", help=_PLACE)
    parser.add_argument(
        "--into", type=Path, required=True, metavar="DIR",
        help="storePathRootDir of the new broker: empty, or not there",
    )  # fmt: skip
    parser.add_argument(
        "--until", metavar="TIME|OFFSET",
        help="only what was stored up to then (2025-09-19T08:30:00, or 10m for ago), or lies below a log offset (@N)",
    )  # fmt: skip
    parser.add_argument(
        "--as-broker",
        default="",
        metavar="NAME",
        help="brokerName of the new broker; default as it was",
    )
    parser.add_argument("--group", default="", metavar="NAME", help="of several in PLACE")
    parser.add_argument("--chain", default="", metavar="NAME", help="default: the newest one")
    _json(parser)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="output for programs")


_PLACE: Final = "a directory, or a URI that pyarrow opens: s3://, gs://, hdfs://, file://"
