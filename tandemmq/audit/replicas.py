"""Which running brokers hold replicas of one log, and where their HTTP ports are: asked of a name server."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from tandemmq.cluster.client import ClientConfig, ClientError
from tandemmq.cluster.client.admin.admin import Admin
from tandemmq.cluster.client.admin.calls import UnknownCluster
from tandemmq.cluster.client.admin.values import BrokerMembers
from tandemmq.cluster.client.errors import NoNameServer
from tandemmq.replication.audit.errors import AuditIncomplete, BadInput
from tandemmq.replication.audit.live import Access, BrokerPort

_WITHOUT = "set httpPort and httpToken (or httpTokenFile) in its broker.conf"
_ANY_ADDRESS = frozenset({"0.0.0.0", "::", "[::]"})


@dataclass(frozen=True, slots=True)
class RunningGroup:
    """One broker name: its replicas' HTTP ports by replica name, the master's first."""

    cluster: str
    name: str
    places: Mapping[str, str]


def find_groups(
    config: ClientConfig, cluster: str, group: str, access: Access
) -> list[RunningGroup]:
    """The groups that can be audited; of each broker it is made sure that it is who it is taken for.

    cluster, group  "" for every one that has two replicas or more
    Raises BadInput: no name server, nothing to compare, a broker without HTTP port, the wrong token;
    AuditIncomplete: a registered broker does not answer.
    """
    groups = asyncio.run(_ask(config, cluster, group))
    for each in groups:
        for replica, url in each.places.items():
            make_sure(each, replica, url, access)
    return groups


async def _ask(config: ClientConfig, cluster: str, group: str) -> list[RunningGroup]:
    async with Admin(config=config) as admin:
        try:
            known = await admin.cluster(cluster or None)
        except (NoNameServer, UnknownCluster) as problem:
            raise BadInput(str(problem)) from problem
        except ClientError as problem:
            raise AuditIncomplete(f"the name server does not tell: {problem}") from problem
        return [await _group(admin, members) for members in _chosen(known, group)]


def _chosen(known: Mapping[str, BrokerMembers], group: str) -> list[BrokerMembers]:
    names = ", ".join(sorted(known)) or "none"
    clusters = sorted({members.cluster for members in known.values()})
    if group:
        if group not in known:
            raise BadInput(f"no broker group {group!r} is registered; there is {names}")
        chosen = [known[group]]
    elif len(clusters) > 1:
        raise BadInput(
            f"the name server knows several clusters ({', '.join(clusters)}): choose with --cluster"
        )
    else:
        chosen = [members for members in known.values() if len(members.addresses) > 1]
    if not chosen:
        raise BadInput(f"nothing to compare: no group has two running replicas ({names})")
    for members in chosen:
        if len(members.addresses) < 2:
            raise BadInput(f"nothing to compare: {members.name} has one running replica")
        if members.master is None:
            raise AuditIncomplete(f"{members.name} has no master now: wait for a failover to end")
    return chosen


async def _group(admin: Admin, members: BrokerMembers) -> RunningGroup:
    places = {}
    for number, address in sorted(members.addresses.items()):  # 0 is the master
        name = f"{members.name}-{number}"
        try:
            settings = await admin.broker_config(address)
        except ClientError as problem:
            raise AuditIncomplete(f"{name} at {address} does not answer: {problem}") from problem
        places[name] = http_url(name, address, settings)
    return RunningGroup(members.cluster, members.name, places)


def http_url(name: str, address: str, settings: Mapping[str, str]) -> str:
    """Where the HTTP port of a broker is, by its settings (request 26). Raises BadInput."""
    port = settings.get("httpPort", "0")
    if not port.isdigit() or int(port) == 0:
        raise BadInput(f"{name} at {address} has no HTTP port: {_WITHOUT}")
    broker_host = address.rpartition(":")[0].strip("[]")
    host = settings.get("httpHost", "").strip() or "127.0.0.1"
    if host in _ANY_ADDRESS:
        host = broker_host
    elif _is_loopback(host) and not _is_here(broker_host):
        raise BadInput(
            f"{name} at {address} serves its HTTP port to its own machine only: set httpHost in its"
            " broker.conf, or audit from there"
        )
    scheme = "https" if settings.get("tls.server.mode", "").lower() == "enforcing" else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def _is_here(host: str) -> bool:
    """Whether an address is one of this machine's: only those can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        family, kind, _, _, where = found[0]
        with socket.socket(family, kind) as probe:
            probe.bind(where)
    except OSError:
        return False
    return True


def make_sure(group: RunningGroup, replica: str, url: str, access: Access) -> None:
    """Raise BadInput or AuditIncomplete unless the port at `url` is that replica's."""
    port = BrokerPort(url, access)
    try:
        found = port.standing()
    finally:
        port.close()
    if (found.cluster, found.group) != (group.cluster, group.name):
        raise BadInput(
            f"mixed clusters: {url} should be {replica} of {group.cluster}, but it is a broker of"
            f" {found.cluster}, group {found.group}"
        )
    if f"{group.name}-{found.broker_id}" != replica:
        raise AuditIncomplete(
            f"{url} should be {replica}, but its broker id is {found.broker_id}: roles are changing"
        )
