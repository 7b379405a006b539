"""The plane's room on each kind of process: which name servers it asks, and with what credentials."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from tandemmq.cluster.addresses import ANY, LOOPBACK
from tandemmq.cluster.httpport import Room
from tandemmq.plane.rooms import plane_room

if TYPE_CHECKING:
    from tandemmq.cluster.access.startup import AccessConfig
    from tandemmq.cluster.httpsettings import HttpConfig
    from tandemmq.cluster.tlssettings import TlsConfig
    from tandemmq.plane.api import Api


class Settings(Protocol):
    """What the settings of brokers, name servers and controllers share."""

    @property
    def http(self) -> HttpConfig: ...

    @property
    def tls(self) -> TlsConfig: ...

    @property
    def access(self) -> AccessConfig: ...


def room_of(settings: Settings, name_servers: str = "") -> Room:
    """The room of a process whose name servers are these, where httpNamesrvAddr names no others."""

    def make() -> Api:
        reach: Any = importlib.import_module("tandemmq.plane.reach")
        api: Any = importlib.import_module("tandemmq.plane.api")
        asked = settings.http.name_servers or name_servers
        made: Api = api.Api(reach.Reach(asked, settings.tls, settings.access))
        return made

    return plane_room(make)


def own_address(bind_address: str, port: int) -> str:
    """Where a name server reaches itself."""
    host = LOOPBACK if bind_address in (ANY, "") else bind_address
    if host == "::":
        host = "::1"
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
