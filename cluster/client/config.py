"""Settings that producers and consumers share, checked once."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from tandemmq.cluster.client.errors import NoNameServer
from tandemmq.cluster.client.namespaces import check_namespace
from tandemmq.cluster.client.reaching.credentials import Credentials
from tandemmq.cluster.remoting import split_address

NAMESRV_VARIABLE = "NAMESRV_ADDR"  # RocketMQ's name for it


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What one client instance is made from; equal configs share one instance per event loop.

    namesrv        "host:9876;host:9876" or a sequence of addresses; an element "http://host/path"
                   is asked for such a list, now and every two minutes. None: the environment's
                   NAMESRV_ADDR
    instance_name  "": made from pid and time, unlike any other. Fixed names are for broadcasting
                   consumers, whose offset file is found by it; two processes with one name in one
                   group break the allocation
    tls            an SSLContext; None: plain TCP
    unit_name      RocketMQ's unit (a part of the client id; messages carry unit mode), or ""
    namespace      put in front of every topic and group name, and taken off again, or ""
    credentials    access key and secret key; every request is signed with them
    call_timeout_ms, route_interval_ms, heartbeat_interval_ms  RocketMQ's 3 s, 30 s, 30 s

    Raises NoNameServer when there is no address at all, ValueError when one is not host:port.

    Example:
        config = ClientConfig("10.0.0.1:9876", namespace="test", unit_name="north")
        async with Producer("shop", config=config) as producer: ...
    """

    namesrv: str | Sequence[str] | None = None
    instance_name: str = ""
    tls: ssl.SSLContext | None = None
    call_timeout_ms: int = 3_000
    route_interval_ms: int = 30_000
    heartbeat_interval_ms: int = 30_000
    unit_name: str = ""
    namespace: str = ""
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "namesrv", name_servers(self.namesrv))
        check_namespace(self.namespace)
        for name in ("call_timeout_ms", "route_interval_ms", "heartbeat_interval_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def name_server_addresses(self) -> tuple[str, ...]:
        """namesrv as checked: "host:port" and "http://..." elements."""
        assert isinstance(self.namesrv, tuple)
        return self.namesrv


def one_config(
    config: ClientConfig | None,
    namesrv: str | Sequence[str] | None,
    instance_name: str,
    tls: ssl.SSLContext | None,
) -> ClientConfig:
    """`config`, or one made from the three arguments that most applications need.

    Raises ValueError when both are given: which one should count?
    """
    if config is None:
        return ClientConfig(namesrv, instance_name, tls)
    if namesrv is not None or instance_name or tls is not None:
        raise ValueError("give either config, or namesrv, instance_name and tls; not both")
    return config


def name_servers(addresses: str | Sequence[str] | None) -> tuple[str, ...]:
    """Addresses from "a:9876;b:9876", from a sequence, or from the environment's NAMESRV_ADDR.

    "http://host:port" without a path means the address itself (RocketMQ's endpoint form); with a
    path it stays, to be asked later.

    Raises NoNameServer when there is none, ValueError when one is not host:port.

    Example: name_servers("10.0.0.1:9876;10.0.0.2:9876") == ("10.0.0.1:9876", "10.0.0.2:9876")
    """
    given = addresses or os.environ.get(NAMESRV_VARIABLE, "")
    parts = given.replace(",", ";").split(";") if isinstance(given, str) else given
    found = tuple(dict.fromkeys(_without_scheme(part.strip()) for part in parts if part.strip()))
    if not found:
        raise NoNameServer(
            "No name server address, please set it: "
            f'namesrv="host:9876" or the environment\'s {NAMESRV_VARIABLE}.'
        )
    for address in found:
        if not is_lookup(address):
            split_address(address)
    return found


def is_lookup(address: str) -> bool:
    """True for an HTTP page that lists name servers."""
    return address.startswith(("http://", "https://"))


def _without_scheme(address: str) -> str:
    if is_lookup(address):
        rest = address.partition("://")[2].rstrip("/")
        if "/" not in rest:
            return rest
    return address
