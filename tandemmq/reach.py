"""How commands reach a cluster: name servers and TLS, from options and the environment."""

from __future__ import annotations

import argparse
import os
import ssl
from dataclasses import dataclass

from cluster.remoting import client_context
from cluster.remoting.tls import TlsUnusable
from tandemmq.cli import DEFAULT_NAME_SERVER
from tandemmq.exits import CommandFailed, ExitCode


@dataclass(frozen=True, slots=True)
class Reach:
    """What every client of a command is made with."""

    namesrv: str
    tls: ssl.SSLContext | None


def reach(arguments: argparse.Namespace) -> Reach:
    """From the options that cli.reach_options() adds. Raises CommandFailed for a bad CA file."""
    tls = None
    if arguments.tls or arguments.ca is not None:
        try:
            # without --ca as RocketMQ's clients: encrypted, but nobody's certificate is checked
            tls = client_context(ca_path=arguments.ca or "", verify=arguments.ca is not None)
        except TlsUnusable as problem:
            raise CommandFailed(f"--ca: {problem}", ExitCode.USAGE) from problem
    return Reach(name_server(arguments.namesrv), tls)


def name_server(given: str | None) -> str:
    """-n, else the environment's NAMESRV_ADDR, else the one `tandem local up` starts."""
    return given or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAME_SERVER
