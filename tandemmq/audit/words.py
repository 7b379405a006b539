"""The options of `tandem audit`, action by action."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

HTTP_TOKEN: Final = "TANDEM_HTTP_TOKEN"  # of the environment: a command line is seen by everybody


def _size(text: str) -> int:
    """Bytes, with k, M or G."""
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    scale = units.get(text[-1:].lower(), 1)
    return int(text[:-1] if scale > 1 else text) * scale


def _levels(text: str) -> str:
    if not {*text.split(",")} <= {"1", "2", "3"} or "1" not in text:
        raise argparse.ArgumentTypeError(f"levels are 1, 2, 3, with 1 among them; got {text!r}")
    return text


def _offset(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"an offset is not negative, got {text}")
    return value


def _place_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "places",
        nargs="*",
        metavar="[NAME=]DIR",
        help="store directories, URIs (s3://, file://, ...) or running brokers' HTTP ports"
        " (http://HOST:PORT), the master's first",
    )
    parser.add_argument(
        "-n", "--namesrv", metavar="HOST:PORT", help="a live cluster: its brokers' HTTP ports"
    )
    parser.add_argument("--group", default="", metavar="NAME", help="only this broker name")
    parser.add_argument("--cluster", default="", metavar="NAME", help="only groups of this cluster")
    _access_arguments(parser)


def _access_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE",
        help=f"holds the brokers' httpToken; without it {HTTP_TOKEN} of the environment",
    )  # fmt: skip
    parser.add_argument("--tls", action="store_true", help="remoting encrypted, trusting anybody")
    parser.add_argument("--ca", metavar="FILE", help="encrypted, trusting these certificates (PEM)")
    parser.add_argument(
        "--cert", metavar="FILE", help="shown to name servers and brokers that ask for one (PEM)"
    )
    parser.add_argument("--cert-key", metavar="FILE", help="of --cert; default: in the same file")


def _spark_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--spark-master", default="", metavar="URL", help="an existing cluster; default local[*]"
    )
    parser.add_argument(
        "--spark-archive", type=Path, metavar="FILE",
        help="a packed environment for that cluster's executors (venv-pack, conda-pack)",
    )  # fmt: skip
    parser.add_argument(
        "--jit", choices=("c1", "c2"), default="c1", help="c1 starts faster, c2 runs faster"
    )


def run_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `run`."""
    _place_arguments(parser)
    parser.add_argument("--engine", choices=("auto", "local", "spark"), default="auto")
    _spark_arguments(parser)
    parser.add_argument("--levels", type=_levels, default="1,2,3", help="default 1,2,3")
    parser.add_argument("--from", dest="start", type=_offset, default=0, metavar="OFFSET")
    parser.add_argument("--until", type=_offset, metavar="OFFSET", help="default: the logs' end")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="threads, default 2")
    parser.add_argument(
        "--lag-warn", type=_size, default="64M", metavar="BYTES", help="lag that warns, default 64M"
    )
    parser.add_argument(
        "--index-slots", type=int, default=0, metavar="N", help="maxHashSlotNum of the brokers"
    )
    parser.add_argument(
        "--delay-levels", default="", metavar="TEXT", help="messageDelayLevel of the brokers"
    )
    parser.add_argument("--json", action="store_true", help="output for programs")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write tables to DIR/RUN as Parquet"
    )
    parser.add_argument(
        "--metrics", type=Path, metavar="FILE", help="for node exporter's textfile collector"
    )


def digest_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `digest`."""
    parser.add_argument(
        "store", metavar="STORE", help="a store directory, or a running broker's http://HOST:PORT"
    )
    _access_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="FILE.parquet")
    parser.add_argument("--name", default="", help="the replica's name; default its directory's")
    parser.add_argument("--until", type=_offset, metavar="OFFSET")
    parser.add_argument("--max-mb-s", type=float, default=0, metavar="N", help="reading rate")


def compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `compare`."""
    parser.add_argument("digests", nargs="+", type=Path, metavar="FILE", help="the master's first")
    parser.add_argument("--json", action="store_true", help="output for programs")


def _run_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's directory, DIR/RUN of --out")


def explain_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `explain`."""
    _run_directory(parser)
    _access_arguments(parser)
    parser.add_argument("offset", type=_offset, metavar="OFFSET")


def report_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `report`."""
    _run_directory(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="default RUN/report.html")


def repair_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `repair`."""
    _run_directory(parser)
    _access_arguments(parser)
    parser.add_argument(
        "--at", action="append", default=[], metavar="NAME=DIR",
        help="where a replica's store is now: its broker was stopped since",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="really replace the ranges")


def watch_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `watch`."""
    _place_arguments(parser)
    _spark_arguments(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="divergences, Parquet"
    )
    parser.add_argument("--replica", default="", metavar="NAME", help="which one, of --namesrv's")
    parser.add_argument(
        "--every", type=float, default=10.0, metavar="S", help="seconds, default 10"
    )
    parser.add_argument(
        "--once", action="store_true", help="what is new since last time, then stop"
    )
