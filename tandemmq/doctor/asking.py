"""Asks a running cluster what tandemmq.doctor.clusters judges; changes nothing, and waits for nobody for long."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from tandemmq.cluster.client import Admin, ClientConfig, ClientError
from tandemmq.cluster.client.errors import BrokerRefused
from tandemmq.cluster.remoting import ResponseCode
from tandemmq.doctor.clusters import (
    BrokerFacts,
    ClusterFacts,
    ControllerFacts,
    GroupFacts,
    NameServerFacts,
    remote_now_ms,
)

ASK_MS: Final = 3_000  # one server, one question
GROUPS_S: Final = 20.0  # one broker's groups: where there are many it counts for a while
GROUPS_MAX: Final = (
    200  # of those that are behind: asked whether anybody is there, the furthest behind first
)
AT_ONCE: Final = 16
SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"
TOOLS: Final = frozenset(
    {"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "__MONITOR_CONSUMER", "SELF_TEST_C_GROUP"}
)

Asked = TypeVar("Asked")
Value = TypeVar("Value")


async def cluster_facts(config: ClientConfig) -> ClusterFacts:
    """What name servers, brokers, controllers say. Raises ValueError for an address that is none, NoNameServer."""
    async with Admin(config=config, timeout_ms=ASK_MS) as admin:
        with contextlib.suppress(ClientError):
            await (
                admin.cluster()
            )  # so that looked up name servers are known; who is silent is seen below
        addresses = admin.name_servers
        name_servers = await _each(partial(_name_server, config), addresses)
        if not addresses or all(each.problem for each in name_servers):
            return ClusterFacts(tuple(name_servers))
        unasked: list[str] = []
        brokers = await _brokers(admin)
        controllers = await _controllers(admin, brokers)
        groups = None
        if any(not each.problem for each in controllers):
            try:
                groups = await admin.replica_sets(
                    controllers=[each.address for each in controllers if not each.problem]
                )
            except ClientError as problem:
                unasked.append(f"the controller does not tell who is in sync: {problem}")
        consumers = await _consumers(admin, brokers, unasked)
        return ClusterFacts(
            tuple(name_servers),
            tuple(brokers),
            tuple(controllers),
            groups,
            consumers,
            tuple(unasked),
        )


async def _each(ask: Callable[[Asked], Awaitable[Value]], of: Iterable[Asked]) -> list[Value]:
    """All answers, so many questions at a time; each is begun in its turn, so that none is left behind on a cancel."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(whom: Asked) -> Value:
        async with gate:
            return await ask(whom)

    return list(await asyncio.gather(*(one(each) for each in of)))


async def _name_server(config: ClientConfig, address: str) -> NameServerFacts:
    try:
        async with Admin(config=replace(config, namesrv=address), timeout_ms=ASK_MS) as admin:
            return NameServerFacts(address, "", await admin.brokers())
    except ClientError as problem:
        return NameServerFacts(address, str(problem))


async def _brokers(admin: Admin) -> list[BrokerFacts]:
    members = (await admin.cluster()).values()
    return await _each(
        partial(_broker, admin),
        [
            BrokerFacts(each.cluster, each.name, broker_id, address)
            for each in members
            for broker_id, address in sorted(each.addresses.items())
        ],
    )


async def _broker(admin: Admin, broker: BrokerFacts) -> BrokerFacts:
    asked_ms = time.time_ns() // 1_000_000
    try:
        status = await admin.broker_status(broker.address)
        answered_ms = time.time_ns() // 1_000_000
        settings = await admin.broker_config(broker.address)
    except BrokerRefused as problem:
        return replace(broker, problem=str(problem))
    except ClientError as problem:
        return replace(broker, problem=str(problem), answers=False)
    theirs_ms = remote_now_ms(status)
    skew_ms = None if theirs_ms is None else theirs_ms - (asked_ms + answered_ms) // 2
    state = None
    if broker.is_master:
        with contextlib.suppress(ClientError):  # 4.x brokers do not know the question
            state = await admin.replica_state(broker.address)
    return replace(broker, status=status, settings=settings, replicas=state, skew_ms=skew_ms)


async def _controllers(admin: Admin, brokers: Sequence[BrokerFacts]) -> list[ControllerFacts]:
    """Those that the brokers' settings name."""
    named = [
        address.strip()
        for each in brokers
        if each.settings.get("enableControllerMode") == "true"
        for address in each.settings.get("controllerAddr", "").split(";")
        if address.strip()
    ]
    return await _each(partial(_controller, admin), dict.fromkeys(named))


async def _controller(admin: Admin, address: str) -> ControllerFacts:
    try:
        return ControllerFacts(address, "", (await admin.controller_state(address)).leader_address)
    except ClientError as problem:
        return ControllerFacts(address, str(problem))


async def _consumers(
    admin: Admin, brokers: Sequence[BrokerFacts], unasked: list[str]
) -> tuple[GroupFacts, ...]:
    """Groups that are behind, and how many members each has."""
    masters = [each for each in brokers if each.is_master and not each.problem]
    behind: dict[str, int] = {}
    for broker in masters:
        try:
            async with asyncio.timeout(GROUPS_S):
                found = await admin.broker_progress(broker.address)
        except (ClientError, TimeoutError) as problem:
            unasked.append(
                f"{broker.name} does not tell how far its groups are: {problem or 'no answer in time'}"
            )
            continue
        for group, progress in found.items():
            if progress.behind > 0 and not group.startswith(SYSTEM_PREFIX) and group not in TOOLS:
                behind[group] = behind.get(group, 0) + progress.behind
    chosen = sorted(behind, key=lambda group: -behind[group])[:GROUPS_MAX]
    addresses = [each.address for each in masters]
    counts = await _each(partial(_members, admin, addresses), chosen)
    return tuple(
        GroupFacts(group, behind[group], count)
        for group, count in zip(chosen, counts, strict=True)
        if count is not None
    )


async def _members(admin: Admin, addresses: Sequence[str], group: str) -> int | None:
    """Members online; a consumer is connected to every broker of its topics. None: nobody tells."""
    refused = False
    for address in addresses:
        try:
            return len((await admin.consumers(group, address=address)).connections)
        except BrokerRefused as problem:
            refused = refused or problem.code == ResponseCode.CONSUMER_NOT_ONLINE
        except (ClientError, ValueError):
            continue
    return 0 if refused else None
