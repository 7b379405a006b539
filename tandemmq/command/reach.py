"""How commands reach a cluster: name servers, TLS and access key, from options and the environment."""

from __future__ import annotations

import argparse
import os
from typing import Final

from tandemmq.cluster.client import ClientConfig, Credentials
from tandemmq.cluster.remoting import client_context
from tandemmq.cluster.remoting.tls import TlsUnusable
from tandemmq.command.cli import DEFAULT_NAME_SERVER, LOCAL_DIRECTORY
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.local.layout import open_layout

ACCESS_KEY: Final = "TANDEM_ACCESS_KEY"  # of the environment: a command line is seen by everybody
SECRET_KEY: Final = "TANDEM_SECRET_KEY"


def reach(arguments: argparse.Namespace) -> ClientConfig:
    """What every client of a command is made with, from the options of cli.reach_options().

    Raises CommandFailed for a CA file that cannot be used and half a key, ValueError for an address
    that is none.
    """
    tls = None
    if arguments.tls or arguments.ca is not None:
        try:
            # without --ca as RocketMQ's clients: encrypted, but nobody's certificate is checked
            tls = client_context(ca_path=arguments.ca or "", verify=arguments.ca is not None)
        except TlsUnusable as problem:
            raise CommandFailed(f"--ca: {problem}", ExitCode.USAGE) from problem
    return ClientConfig(name_server(arguments.namesrv), tls=tls, credentials=_credentials())


def _credentials() -> Credentials | None:
    access, secret = os.environ.get(ACCESS_KEY, ""), os.environ.get(SECRET_KEY, "")
    if bool(access) != bool(secret):
        raise CommandFailed(f"set both {ACCESS_KEY} and {SECRET_KEY}, or neither", ExitCode.USAGE)
    return Credentials(access, secret) if access else None


def name_server(given: str | None) -> str:
    """-n, else the environment's NAMESRV_ADDR, else that of the cluster that was started here, else the usual."""
    return given or os.environ.get("NAMESRV_ADDR") or _started_here() or DEFAULT_NAME_SERVER


def _started_here() -> str:
    """Of the cluster in ./tandem-data, "" when there is none."""
    try:
        return open_layout(LOCAL_DIRECTORY).name_server.address
    except (CommandFailed, OSError):
        return ""  # `tandem local` says what is wrong with it
