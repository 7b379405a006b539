"""The console as a guest of a name server: made from its settings, it asks the cluster as any client does."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.httpport import Room
from tandemmq.cluster.nameserver import NameServerConfig
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.console.paths import LateConsole
from tandemmq.plane.hosts import own_address

if TYPE_CHECKING:
    from tandemmq.console.room import Console

#: what is large of what the console stands on: one after the other, as whoever imports holds the interpreter's lock
_PARTS: Final = (
    "tandemmq.cluster.client", "tandemmq.admin.messages", "tandemmq.doctor.asking", "tandemmq.console.room",
)  # fmt: skip
BREATH_S: Final = 0.05  # for the loop, which may have leases to renew


def room_of(config: NameServerConfig) -> Room:
    """The console of the cluster whose name server has these settings.

    It asks httpNamesrvAddr where that is set, else this name server; with the access key of the environment
    (TANDEM_ACCESS_KEY, TANDEM_SECRET_KEY), else with what the process signs its own requests with.
    """

    def make(token: str) -> Console:
        for name in _PARTS:
            importlib.import_module(name)
            time.sleep(BREATH_S)
        client: Any = importlib.import_module("tandemmq.cluster.client")
        try:
            credentials = client.Credentials.from_environment()
        except ValueError as problem:
            raise ConfigError("TANDEM_ACCESS_KEY", "", str(problem)) from problem
        keys = config.access.key_and_secret
        if credentials is None and keys is not None:
            credentials = client.Credentials(*keys)
        reaches = client.ClientConfig(
            config.http.name_servers or own_address(config.bind_address, config.listen_port),
            tls=Encryption(config.tls).to_peers() if config.tls.speaks else None,
            credentials=credentials,
        )
        reports = config.console_reports_path
        made: Any = importlib.import_module("tandemmq.console.room").made
        console: Console = made(reaches, token, Path(reports) if reports else None)
        return console

    return LateConsole(make).room
