"""`tandem console`: the console on a port of its own, in front of TandemMQ's or RocketMQ's clusters."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path

from tandemmq.cluster.client import ClientConfig
from tandemmq.cluster.config import is_loopback
from tandemmq.cluster.httpport import Process, serving_http
from tandemmq.cluster.httpsettings import HttpConfig
from tandemmq.cluster.logs import setup_logging
from tandemmq.cluster.metrics import MetricPage, MetricTable
from tandemmq.cluster.process import run, stop_requested
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.cluster.tlssettings import TlsConfig
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.reach import reach
from tandemmq.command.serving import clear_errors
from tandemmq.console.room import room


def run_console(arguments: argparse.Namespace) -> ExitCode:
    """Serve pages until SIGTERM or SIGINT."""
    if not 0 < arguments.port < 65_536:
        raise CommandFailed(
            f"--port must be between 1 and 65535, got {arguments.port}", ExitCode.USAGE
        )
    setup_logging(arguments.log_level, json=arguments.log_json)
    config = reach(arguments)
    token, said = _token(arguments.token_file)
    reports: Path | None = arguments.reports
    if reports is not None and not reports.is_dir():
        raise CommandFailed(f"--reports: {reports} is no directory", ExitCode.USAGE)
    http = HttpConfig(
        port=arguments.port,
        host=arguments.host,
        token=token,
        server_names=" ".join(arguments.name),
    )
    if not is_loopback(http.bind_host) and not arguments.insecure:
        raise CommandFailed(
            f"--host {http.bind_host} shows tokens and messages to the network, unencrypted: put a proxy with TLS in "
            "front and keep the console on loopback, or say --insecure",
            ExitCode.BAD_CONFIG,
        )
    with clear_errors():
        run(lambda: _serve(http, config, reports.absolute() if reports else None, said))
    return ExitCode.OK


def _token(path: Path | None) -> tuple[str, str]:
    """The token, and how a person finds it."""
    if path is None:
        return secrets.token_urlsafe(24), "It was printed when the console started."
    try:
        return (
            path.read_text().strip(),
            f"It is in the file {path.name} that the console was started with.",
        )
    except OSError as problem:
        raise CommandFailed(f"--token-file {path}: {problem.strerror}", ExitCode.USAGE) from problem


async def _serve(
    http: HttpConfig, config: ClientConfig, reports: Path | None, token_place: str
) -> None:
    process = Process(
        "console",
        list,
        lambda: {"namesrv": list(config.name_server_addresses)},
        MetricPage([MetricTable({}, {"node_type": "console"})]),
    )
    console = room(config, reports, hint=token_place)
    async with serving_http(process, http, Encryption(TlsConfig()), [console]):
        host = f"[{http.bind_host}]" if ":" in http.bind_host else http.bind_host
        print(
            f"console at http://{host}:{http.port}/console/ of {config.name_server_addresses[0]}",
            flush=True,
        )
        if token_place.startswith("It was printed"):
            print(f"to act, sign in with the token {http.token}", flush=True)
        await stop_requested()
