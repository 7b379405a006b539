"""How the process that serves HTTP reaches the cluster that it belongs to: as its own servers reach each other."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from typing import Final

from tandemmq.cluster.access.startup import AccessConfig
from tandemmq.cluster.client import ClientConfig, Credentials
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.cluster.tlssettings import TlsConfig
from tandemmq.plane.problems import ApiProblem

CONTEXT_S: Final = 60.0  # then certificates are read again


@dataclass(slots=True)
class Reach:
    """Name servers, and the process's own encryption and credentials.

    name_servers   "host:port;host:port"; "": nothing can be asked
    tls, access    settings of the process: what it encrypts with, and signs its own requests with
    """

    name_servers: str
    tls: TlsConfig = field(default_factory=TlsConfig)
    access: AccessConfig = field(default_factory=AccessConfig)
    _context: ssl.SSLContext | None = None
    _read_s: float | None = None

    async def client(self) -> ClientConfig:
        """What clients are made with. Raises ApiProblem where no name server is known, TlsUnusable, ConfigError."""
        if not self.name_servers:
            raise ApiProblem(
                503, "this process knows no name server", "set httpNamesrvAddr=HOST:PORT in its settings"
            )  # fmt: skip
        keys = self.access.key_and_secret
        return ClientConfig(
            self.name_servers,
            tls=await self._encryption(),
            credentials=Credentials(*keys) if keys is not None else None,
        )

    async def _encryption(self) -> ssl.SSLContext | None:
        if not self.tls.speaks:
            return None
        now_s = time.monotonic()
        if self._read_s is None or now_s - self._read_s > CONTEXT_S:
            self._context = await asyncio.to_thread(Encryption(self.tls).to_peers)
            self._read_s = now_s
        return self._context
