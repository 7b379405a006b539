"""Options of what sends and reads messages."""

from __future__ import annotations

import argparse
from pathlib import Path

from tandemmq.command.words.shared import json_option, reach_options


def send_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "body", metavar="BODY", nargs="?", help="the message; without it, each line of stdin is one"
    )
    parser.add_argument(
        "--file",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="the whole file is one message; may be repeated",
    )
    parser.add_argument("--lines", action="store_true", help="each line of --file is a message")
    parser.add_argument("--hex", action="store_true", help="BODY and stdin are hexadecimal digits")
    parser.add_argument("--key", action="append", default=[], help="business key; may be repeated")
    parser.add_argument("--tag", help="tag that consumers filter by")
    parser.add_argument(
        "--property", action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    parser.add_argument(
        "--delay-level", type=int, default=0, metavar="N", help="deliver later: 1 is 1 s, 3 is 10 s"
    )
    parser.add_argument(
        "--delay-s", type=float, default=0.0, metavar="S", help="deliver so many seconds later"
    )
    parser.add_argument("--queue", metavar="BROKER:ID", help="to this queue, e.g. broker-a:0")
    parser.add_argument("--group", default="TANDEM_SEND", help="producer group")
    reach_options(parser)
    json_option(parser)


def tail_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--from",
        dest="start",
        default="last",
        metavar="first|last|TIME",
        help="TIME: 2025-09-19T08:30:00 (local), milliseconds since 1970, or 10m for 10m ago",
    )
    parser.add_argument("--to", dest="end", metavar="TIME", help="stop at what was stored then")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--tag", default="*", metavar="EXPRESSION", help='e.g. "TagA || TagB"')
    chosen.add_argument("--sql", metavar="EXPRESSION", help="by properties: \"a > 5 AND b = 'x'\"")
    parser.add_argument("--key", action="append", default=[], help="only with this key")
    parser.add_argument(
        "--property", action="append", default=[], metavar="NAME[=VALUE]", help="only with this"
    )
    parser.add_argument(
        "--queue", action="append", default=[], metavar="BROKER[:ID]", help="only of this queue"
    )
    parser.add_argument("--count", type=int, metavar="N", help="stop after N messages")
    parser.add_argument(
        "--until-end", action="store_true", help="stop at the end that each queue has now"
    )
    parser.add_argument(
        "--body",
        dest="style",
        choices=["auto", "text", "hex", "json", "none"],
        default="auto",
        help="how to show bodies; auto: text, or hex when it is none. They come decompressed",
    )
    parser.add_argument("--hex", action="store_true", help="the same as --body hex")
    parser.add_argument("--verbose", action="store_true", help="ids, hosts, properties, flags too")
    reach_options(parser)
    json_option(parser)


def bench_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topic", default="TandemBench", help="default TandemBench; made if needed"
    )
    parser.add_argument("--count", type=int, default=100_000, help="messages, default 100000")
    parser.add_argument("--seconds", type=float, metavar="S", help="for so long instead of --count")
    parser.add_argument("--size", type=int, default=1024, metavar="BYTES", help="default 1024")
    parser.add_argument(
        "--in-flight", type=int, default=256, metavar="N", help="sends under way, default 256"
    )
    parser.add_argument(
        "--rate", type=float, metavar="N", help="messages a second; default: as fast as it goes"
    )
    parser.add_argument("--queues", type=int, default=4, help="per broker, default 4")
    parser.add_argument("--no-read", action="store_true", help="send only, read nothing back")
    reach_options(parser)
    json_option(parser)
