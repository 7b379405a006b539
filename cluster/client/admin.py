"""Questions and orders of operators: who is in the cluster, make a topic."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from cluster.client import calls
from cluster.client import instance as instances
from cluster.client.config import ClientConfig, name_servers
from cluster.client.errors import (
    BrokerAnswerBroken,
    BrokerRefused,
    BrokerUnreachable,
    NotRunning,
)
from cluster.client.instance import ClientInstance
from cluster.client.message import check_topic
from cluster.client.routes import MASTER_ID, TEMPLATE_TOPIC, TopicRoute
from cluster.remoting import Command, RequestCode, ResponseCode
from storage import fastjson

TIMEOUT_MS: Final = 5_000  # RocketMQ's for its tools


class Admin:
    """Administration over the wire. Use it with `async with`.

    namesrv  "host:9876;host:9876", a sequence of addresses, or None for NAMESRV_ADDR

    Example:
        async with Admin("127.0.0.1:9876") as admin:
            await admin.create_topic("Orders", queue_count=8)
    """

    def __init__(
        self, namesrv: str | Sequence[str] | None = None, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._config = ClientConfig(name_servers(namesrv), "", tls)
        self._instance: ClientInstance | None = None

    async def __aenter__(self) -> Self:
        self._instance = await instances.lease(self._config)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            await instances.release(instance)

    async def brokers(self) -> dict[str, dict[int, str]]:
        """broker name -> broker id (0 is the master) -> "host:port", as the name server knows them.

        Raises NoNameServer, BrokerRefused, BrokerAnswerBroken.
        """
        answer = await self._running().name_servers.ask(
            Command(RequestCode.GET_BROKER_CLUSTER_INFO)
        )
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(answer.code, answer.remark, "name server")
        try:
            table = fastjson.loads(bytes(answer.body or b"{}")).get("brokerAddrTable") or {}
            return {
                str(name): {int(number): str(at) for number, at in entry["brokerAddrs"].items()}
                for name, entry in table.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise BrokerAnswerBroken(f"the cluster list does not parse: {problem!r}") from problem

    async def route(self, topic: str) -> TopicRoute:
        """The topic's route. Raises NoRoute, NoNameServer."""
        return await self._running().fetch_route(topic)

    async def create_topic(
        self,
        topic: str,
        queue_count: int = 4,
        *,
        perm: int = 6,
        masters: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic, or change its queues, on every master (or on these: name -> address).

        perm  4 read, 2 write, 6 both
        Raises MessageRefused (name), BrokerUnreachable when there is no master, BrokerRefused.

        Example: await admin.create_topic("Orders", queue_count=8)
        """
        check_topic(topic)
        if masters is None:
            known = await self.brokers()
            masters = {name: ids[MASTER_ID] for name, ids in known.items() if MASTER_ID in ids}
        if not masters:
            raise BrokerUnreachable("cluster", "no master is registered at the name server")
        ext = {
            "topic": topic,
            "defaultTopic": TEMPLATE_TOPIC,
            "readQueueNums": str(queue_count),
            "writeQueueNums": str(queue_count),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        for address in masters.values():
            command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, dict(ext))
            await calls.call(self._running().connections, address, command, TIMEOUT_MS)

    def _running(self) -> ClientInstance:
        if self._instance is None:
            raise NotRunning(
                "the admin client is not running: use `async with Admin(...) as admin`"
            )
        return self._instance
