"""`python -m tandemmq.bench`: a small series of loads against a cluster of yours, as a table or as JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
from collections.abc import Sequence
from typing import Any, Final

from tandemmq import __version__
from tandemmq.bench.endtoend import end_to_end
from tandemmq.cluster.client import ClientConfig
from tandemmq.cluster.client.hot import COMPILED
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.load import measure
from tandemmq.command.outcome import client_errors
from tandemmq.command.reach import reach
from tandemmq.command.screen import table
from tandemmq.command.words.shared import HelpFormatter, json_option, reach_options

EXAMPLES: Final = """example:
  python -m tandemmq.bench -n 10.0.0.1:9876
  python -m tandemmq.bench --sizes 128,16384 --in-flight 1,64 --count 50000 --json
  python -m tandemmq.bench --rate 500 --seconds 30 --sizes 1024 --in-flight 256

The topic is made where it is not there, and stays. One process and one core of it: several of them at once show what
the cluster can do."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: FAILED when a message failed or is missing."""
    try:
        arguments = _parser().parse_args(argv)
        _check(arguments)
        with client_errors():
            found = asyncio.run(_series(arguments, reach(arguments)))
    except CommandFailed as problem:
        print(f"tandemmq.bench: {problem}", file=sys.stderr)
        return problem.code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    print(json.dumps(found) if arguments.json else as_text(found))
    lost = any(each["failed"] or each["missing"] for each in found["loads"])
    return ExitCode.FAILED if lost or found["end_to_end"]["missing"] else ExitCode.OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tandemmq.bench",
        description="Measure a cluster with the client that your programs use: sends, reads, and the way from a "
        "send to a listener.",
        epilog=EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--topic", default="TandemBench", help="default TandemBench")
    parser.add_argument(
        "--queues", type=int, default=4, help="of a new topic, per broker; default 4"
    )
    parser.add_argument(
        "--sizes", type=_numbers, default=[128, 1024, 16384], metavar="BYTES,...",
        help="of the bodies; default 128,1024,16384",
    )  # fmt: skip
    parser.add_argument(
        "--in-flight", type=_numbers, default=[1, 64, 256], metavar="N,...",
        help="sends under way at once; default 1,64,256",
    )  # fmt: skip
    parser.add_argument(
        "--count", type=int, default=20_000, help="messages of each load, default 20000; with one in flight a tenth"
    )  # fmt: skip
    parser.add_argument(
        "--rate", type=float, default=200.0, metavar="N", help="messages a second from send to listener, default 200"
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=5.0, metavar="S", help="for so long, default 5"
    )
    reach_options(parser)
    json_option(parser)
    return parser


def _numbers(text: str) -> list[int]:
    try:
        found = [int(each) for each in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers, as 128,1024") from None
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"every number must be at least 1, got {text!r}")
    return found


def _check(arguments: argparse.Namespace) -> None:
    for name in ("count", "queues", "rate", "seconds"):
        if getattr(arguments, name) <= 0:
            raise CommandFailed(f"--{name} must be above 0", ExitCode.USAGE)


async def _series(arguments: argparse.Namespace, config: ClientConfig) -> dict[str, Any]:
    loads = []
    for size in arguments.sizes:
        for in_flight in arguments.in_flight:
            count = arguments.count if in_flight > 1 else max(1, arguments.count // 10)
            one = argparse.Namespace(
                topic=arguments.topic, queues=arguments.queues, size=size, in_flight=in_flight,
                count=count, seconds=None, rate=None, no_read=False,
            )  # fmt: skip
            loads.append({"missing": 0} | await measure(one, config))
    size = arguments.sizes[len(arguments.sizes) // 2]
    way = await end_to_end(config, arguments.topic, size, arguments.rate, arguments.seconds)
    about = {
        "tandemmq": __version__,
        "python": platform.python_version(),
        "compiled": COMPILED,
        "namesrv": ";".join(config.name_server_addresses),
    }
    return {"about": about, "loads": loads, "end_to_end": way}


def as_text(found: dict[str, Any]) -> str:
    """The result for people."""
    about, way = found["about"], found["end_to_end"]
    kind = "compiled" if about["compiled"] else "pure Python"
    rows = [
        (
            each["size_bytes"], each["in_flight"], f"{each['sent_per_second']:,}",
            f"{each['mib_per_second']:,.1f}", f"{each['latency_ms']['p50']:.2f}",
            f"{each['latency_ms']['p99']:.2f}", f"{each.get('read_per_second', 0):,}",
            each["failed"] or "", each["missing"] or "",
        )
        for each in found["loads"]
    ]  # fmt: skip
    heads = [
        "BYTES",
        "IN FLIGHT",
        "SENT/S",
        "MIB/S",
        "ACK P50 MS",
        "P99",
        "READ/S",
        "FAILED",
        "MISSING",
    ]
    latency = way["latency_ms"]
    missing = f", {way['missing']} MISSING" if way["missing"] else ""
    return "\n".join([
        f"tandemmq {about['tandemmq']} ({kind}), Python {about['python']}, {about['namesrv']}", "",
        table(heads, rows), "",
        f"send to listener, {way['size_bytes']} bytes at {way['per_second']:,}/s: p50 {latency['p50']:.2f}  "
        f"p99 {latency['p99']:.2f}  p99.9 {latency['p999']:.2f}  max {latency['max']:.2f} ms{missing}",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
