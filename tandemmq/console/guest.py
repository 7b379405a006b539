"""The console as a guest of a name server: made from its settings, it asks the cluster as any client does."""

from __future__ import annotations

from pathlib import Path

from tandemmq.cluster.client import ClientConfig, Credentials
from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.httpport import Room
from tandemmq.cluster.nameserver import NameServerConfig
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.console.room import room

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}


def room_of(config: NameServerConfig) -> Room:
    """The console of the cluster whose name server has these settings.

    Where access control is on, it signs with the access key of the environment (TANDEM_ACCESS_KEY, TANDEM_SECRET_KEY).
    Raises ConfigError, TlsUnusable.
    """
    bound = config.bind_address
    host = _EVERYWHERE.get(bound, f"[{bound}]" if ":" in bound else bound)
    try:
        credentials = Credentials.from_environment()
    except ValueError as problem:
        raise ConfigError("TANDEM_ACCESS_KEY", "", str(problem)) from problem
    # our own name server's certificate need not name loopback: nothing is sent that it does not have already
    tls = Encryption(config.tls).to_anybody() if config.tls.enforced else None
    reaches = ClientConfig(f"{host}:{config.listen_port}", tls=tls, credentials=credentials)
    reports = config.console_reports_path
    return room(reaches, Path(reports) if reports else None)
