"""Two brokers of one name and id would take turns in every route: the second one does not start.

Name servers let the latest registration win, so nobody else would notice (replication spec, fault
scenario "two processes configured as master for one name"). Under a controller ids are its to give.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

import msgspec

from cluster.broker.config import BrokerConfig
from cluster.config import ConfigError, parse_properties
from cluster.remoting.codes import RequestCode, ResponseCode
from cluster.remoting.command import Command
from cluster.remoting.errors import ConnectFailed, RemotingError
from storage import fastjson

log = logging.getLogger(__name__)

ASK_MS: Final = 1_000


class Requests(Protocol):
    """How name servers and other brokers are asked; ChannelPool is one."""

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command: ...


class Member(NamedTuple):
    """One broker as a name server knows it."""

    cluster: str
    broker_id: int
    address: str


class _Group(msgspec.Struct, rename="camel"):
    cluster: str = ""
    broker_addrs: dict[int, str] = {}


class _Groups(msgspec.Struct, rename="camel"):
    broker_addr_table: dict[str, _Group] = {}


async def refuse_second(config: BrokerConfig, requests: Requests) -> None:
    """Raise ConfigError when another broker lives that has our name and id, or our name elsewhere.

    Who cannot be connected to does not live, whatever a name server still says of it; who can, and
    does not answer, may only be slow. A name server that does not answer knows nothing.
    """
    asked = [
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for host, port in config.name_servers
    ]
    found = await asyncio.gather(*(_members(config, requests, each) for each in asked))
    for member in {member for members in found for member in members}:
        foreign = member.cluster != config.cluster
        if member.address == config.address or (
            not foreign and member.broker_id != config.broker_id
        ):
            continue
        if not await _lives(config, requests, member):
            log.info("registered, and nobody there: taking its place address=%s", member.address)
            continue
        if not foreign:
            raise ConfigError(
                "brokerId", str(config.broker_id),
                f"{config.name} has a broker with this id already, at {member.address}: "
                "stop that one, or give this one another brokerName or brokerId",
            )  # fmt: skip
        raise ConfigError(
            "brokerClusterName", config.cluster,
            f"{config.name} belongs to cluster {member.cluster}, says the broker at {member.address}",
        )  # fmt: skip


async def _members(config: BrokerConfig, requests: Requests, name_server: str) -> Iterable[Member]:
    """The brokers of our name."""
    command = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
    try:
        answer = await requests.request(name_server, command, ASK_MS)
        table = msgspec.convert(fastjson.loads(answer.body or b"{}"), _Groups, strict=False)
    except (RemotingError, ValueError) as problem:
        log.info("not asked who else has our name nameserver=%s why=%s", name_server, problem)
        return []
    group = table.broker_addr_table.get(config.name, _Group())
    return [Member(group.cluster, each, at) for each, at in group.broker_addrs.items()]


async def _lives(config: BrokerConfig, requests: Requests, member: Member) -> bool:
    """Whether it is really such a broker that listens there, not somebody who has its port by now."""
    command = Command(RequestCode.GET_BROKER_CONFIG)
    try:
        answer = await requests.request(member.address, command, ASK_MS)
    except (ConnectFailed, ValueError):
        return False
    except RemotingError:
        return True
    if answer.code != ResponseCode.SUCCESS:
        return True
    try:
        said = parse_properties(bytes(answer.body or b"").decode("utf-8", "replace"))
    except ConfigError:
        return False
    return (
        said.get("brokerName") == config.name
        and said.get("brokerId", "0") == str(member.broker_id)
        and said.get("brokerClusterName", member.cluster) == member.cluster
    )
