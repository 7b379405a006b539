"""Who may reach a broker's HA port, and how: from the settings that its other ports go by.

The stream is encrypted wherever tls.server.mode=enforcing says that clients must be; permissive takes both. A stock
replica knows no TLS: haPlainAddresses names the hosts with which the stream is in plain text all the same.
"""

from __future__ import annotations

import asyncio
import ssl

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.config import is_loopback
from tandemmq.cluster.remoting.tls import TlsFiles, TlsMode, client_context, server_context
from tandemmq.replication.door import LOOPBACK, Door, networks
from tandemmq.replication.receiver import Dial, dial_tcp
from tandemmq.replication.tlswire import tls_dial


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
    return Door(config.tls_mode is TlsMode.ENFORCING, plain, allowed)


def opened_to_all(config: BrokerConfig) -> bool:
    """Whether --insecure lets everybody read the log at a classic HA port, because no list says otherwise."""
    asked_for = config.guarded or config.rights.authorization
    return config.insecure and not config.ha_allowed.strip() and not asked_for


async def ha_context(config: BrokerConfig) -> ssl.SSLContext | None:
    """What the HA port encrypts with; None without TLS. Raises TlsUnusable."""
    if config.tls_mode is TlsMode.DISABLED:
        return None
    files = TlsFiles(key_path=config.tls_key_path, cert_path=config.tls_certificate_path)
    return await asyncio.to_thread(server_context, files)


def dial_of(config: BrokerConfig) -> Dial:
    """How a slave reaches its master's HA port: as its clients have to reach the other ports.

    The master's certificate is checked where roots are configured. Raises TlsUnusable.
    """
    if config.tls_mode is not TlsMode.ENFORCING:
        return dial_tcp
    roots = config.tls_trust_path
    context = client_context(ca_path=roots, verify=bool(roots))
    return tls_dial(context, Door(True, networks(config.ha_plain)).takes_plain)
