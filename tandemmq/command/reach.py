"""How commands reach a cluster: name servers, TLS and access key, from options and the environment."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import Final

from tandemmq.cluster.client import ClientConfig, Credentials
from tandemmq.cluster.remoting import client_context
from tandemmq.cluster.remoting.tls import TlsUnusable
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.words.shared import DEFAULT_NAME_SERVER, LOCAL_DIRECTORY
from tandemmq.local.layout import open_layout

CREDENTIALS_FILE: Final = (
    "TANDEM_CREDENTIALS"  # of the environment: a command line is seen by everybody
)


def reach(arguments: argparse.Namespace) -> ClientConfig:
    """What every client of a command is made with, from the options of cli.reach_options().

    Raises CommandFailed for a CA file that cannot be used and half a key, ValueError for an address
    that is none.
    """
    tls = None
    if arguments.cert_key is not None and arguments.cert is None:
        raise CommandFailed("--cert-key needs --cert, the certificate of that key", ExitCode.USAGE)
    if arguments.tls or arguments.ca is not None or arguments.cert is not None:
        try:
            # without --ca as RocketMQ's clients: encrypted, but nobody's certificate is checked
            tls = client_context(
                ca_path=arguments.ca or "",
                cert_path=arguments.cert or "",
                key_path=arguments.cert_key or "",
                verify=arguments.ca is not None,
            )
        except TlsUnusable as problem:
            raise CommandFailed(
                f"--ca, --cert or --cert-key: {problem}", ExitCode.USAGE
            ) from problem
    return ClientConfig(
        name_server(arguments.namesrv),
        tls=tls,
        credentials=_credentials(getattr(arguments, "credentials", None)),
    )


def _credentials(path: str | None) -> Credentials | None:
    """--credentials, else the environment's file, else its keys, else what mqadmin would sign with: None where that
    has no keys, as there. Raises CommandFailed, which names no secret."""
    path = path or os.environ.get(CREDENTIALS_FILE, "")
    try:
        if path:
            return Credentials.from_file(path)
        if found := Credentials.from_environment():
            return found
    except (OSError, ValueError) as problem:
        raise CommandFailed(str(problem), ExitCode.USAGE) from None
    home = os.environ.get("ROCKETMQ_HOME", "")
    if home:
        with contextlib.suppress(OSError, ValueError):
            return Credentials.from_file(Path(home, "conf", "tools.yml"))
    return None


def name_server(given: str | None) -> str:
    """-n, else the environment's NAMESRV_ADDR, else that of the cluster that was started here, else the usual."""
    return given or os.environ.get("NAMESRV_ADDR") or _started_here() or DEFAULT_NAME_SERVER


def _started_here() -> str:
    """Of the cluster in ./tandem-data, "" when there is none."""
    try:
        return open_layout(LOCAL_DIRECTORY).name_server.address
    except (CommandFailed, OSError):
        return ""  # `tandem local` says what is wrong with it
