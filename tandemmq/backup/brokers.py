"""Which running broker of each group a backup is taken from: the master, else a slave that answers."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from tandemmq.audit.replicas import http_url
from tandemmq.backup.errors import BackupError
from tandemmq.cluster.client import ClientConfig, ClientError
from tandemmq.cluster.client.admin.admin import Admin
from tandemmq.cluster.client.admin.calls import UnknownCluster
from tandemmq.cluster.client.admin.values import BrokerMembers
from tandemmq.cluster.client.errors import NoNameServer
from tandemmq.replication.audit.errors import BadInput


@dataclass(frozen=True, slots=True)
class Found:
    """A group's broker to read from; `url` is "" where none can be read, and `problem` says why."""

    group: str
    broker_id: int
    url: str
    problem: str = ""


def find_brokers(config: ClientConfig, cluster: str, group: str) -> list[Found]:
    """One broker of every group, or of the one that is named. Raises BackupError: no name server, no such group."""
    return asyncio.run(_find(config, cluster, group))


async def _find(config: ClientConfig, cluster: str, group: str) -> list[Found]:
    async with Admin(config=config) as admin:
        try:
            known = await admin.cluster(cluster or None)
        except (NoNameServer, UnknownCluster, ClientError) as problem:
            raise BackupError(f"the name server does not tell the brokers: {problem}") from problem
        chosen = [each for name, each in sorted(known.items()) if group in ("", name)]
        if not chosen:
            raise BackupError(
                f"no broker group {group!r} is registered; there is {', '.join(sorted(known)) or 'none'}"
            )
        return [await _reachable(admin, members) for members in chosen]


async def _reachable(admin: Admin, members: BrokerMembers) -> Found:
    problem = "it has no running broker"
    for number, address in sorted(members.addresses.items()):  # 0 is the master
        name = f"{members.name}-{number}"
        try:
            settings = await admin.broker_config(address)
            with contextlib.suppress(ValueError):
                return Found(members.name, number, http_url(name, address, settings))
        except ClientError as broken:
            problem = f"{name} at {address} does not answer: {broken}"
        except BadInput as missing:
            problem = str(missing)
    return Found(members.name, 0, "", problem)
