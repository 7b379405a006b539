"""Who may reach a broker's HA port, and how: from the settings that its other ports go by.

The stream is encrypted wherever tls.server.mode=enforcing says that clients must be; permissive takes both. A stock
replica knows no TLS: haPlainAddresses names the hosts with which the stream is in plain text all the same.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.config import is_loopback
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.cluster.remoting.tlsproblems import HUNG_UP, explained
from tandemmq.replication.door import LOOPBACK, Door, networks
from tandemmq.replication.link import Link
from tandemmq.replication.receiver import Dial, dial_tcp
from tandemmq.replication.tlswire import Encrypted


def door_of(config: BrokerConfig) -> Door:
    """Who may connect. In classic HA nothing says who a slave is but its address: on a port that other machines reach,
    and that nobody opened to all with --insecure, it must be named. With access control --insecure opens nothing: who
    is kept from the messages may not read them here. Replicas of a controller's group prove a secret besides."""
    plain = networks(config.ha_plain)
    allowed = networks(config.ha_allowed) if config.ha_allowed.strip() else None
    if allowed is None and not (
        config.controller_mode or opened_to_all(config) or is_loopback(config.bind_host)
    ):
        allowed = networks(" ".join(LOOPBACK))
    return Door(config.tls.enforced, plain, allowed)


def opened_to_all(config: BrokerConfig) -> bool:
    """Whether --insecure lets everybody read the log at a classic HA port, because no list says otherwise."""
    asked_for = config.guarded or config.rights.authorization
    return config.insecure and not config.ha_allowed.strip() and not asked_for


async def encrypted(encryption: Encryption) -> Encrypted | None:
    """What the HA port encrypts with; None without TLS. Raises TlsUnusable."""
    if await asyncio.to_thread(encryption.server) is None:
        return None
    return Encrypted(encryption.server, explained)


def dial_of(config: BrokerConfig, encryption: Encryption) -> Dial:
    """How a slave reaches its master's HA port: as it reaches the other ports, but for hosts of haPlainAddresses."""
    takes_plain = Door(True, networks(config.ha_plain)).takes_plain

    async def dial(host: str, port: int, make: Callable[[], Link]) -> object:
        context = None if takes_plain(host) else encryption.to_peers()
        if context is None:
            return await dial_tcp(host, port, make)
        loop = asyncio.get_running_loop()
        try:
            return await loop.create_connection(make, host, port, ssl=context)
        except ssl.SSLError as problem:
            raise ConnectionAbortedError(f"TLS handshake failed: {explained(problem)}") from problem
        except ConnectionResetError as problem:
            raise ConnectionAbortedError(f"{problem}: {HUNG_UP}") from problem

    return dial
