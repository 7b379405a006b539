"""Settings that producers and consumers share, checked once."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.client.errors import NoNameServer
from cluster.remoting import split_address

NAMESRV_VARIABLE = "NAMESRV_ADDR"  # RocketMQ's name for it


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What one client instance is made from; equal configs share one instance per event loop.

    namesrv        name server addresses, "host:port"
    instance_name  "": made from pid and time, unlike any other. Fixed names are for broadcasting
                   consumers, whose offset file is found by it; two processes with one name in one
                   group break the allocation
    tls            None: plain TCP
    """

    namesrv: tuple[str, ...]
    instance_name: str = ""
    tls: ssl.SSLContext | None = None
    call_timeout_ms: int = 3_000
    route_interval_ms: int = 30_000
    heartbeat_interval_ms: int = 30_000


def name_servers(addresses: str | Sequence[str] | None) -> tuple[str, ...]:
    """Addresses from "a:9876;b:9876", from a sequence, or from the environment's NAMESRV_ADDR.

    Raises NoNameServer when there is none, ValueError when one is not host:port.

    Example: name_servers("10.0.0.1:9876;10.0.0.2:9876") == ("10.0.0.1:9876", "10.0.0.2:9876")
    """
    given = addresses or os.environ.get(NAMESRV_VARIABLE, "")
    parts = given.replace(",", ";").split(";") if isinstance(given, str) else given
    found = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not found:
        raise NoNameServer(
            "No name server address, please set it: "
            f'namesrv="host:9876" or the environment\'s {NAMESRV_VARIABLE}.'
        )
    for address in found:
        split_address(address)
    return found
