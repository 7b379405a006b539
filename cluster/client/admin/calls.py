"""How Admin reaches servers: a leased client instance, targets by cluster and topic, one request each."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Self, TypeVar

from tandemmq.cluster.client.admin import bodies
from tandemmq.cluster.client.admin.values import BrokerMembers
from tandemmq.cluster.client.config import ClientConfig, one_config
from tandemmq.cluster.client.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ClientError,
    NoRoute,
    NotRunning,
)
from tandemmq.cluster.client.message import MessageQueue
from tandemmq.cluster.client.reaching import calls
from tandemmq.cluster.client.reaching import instance as instances
from tandemmq.cluster.client.reaching.instance import ClientInstance
from tandemmq.cluster.client.reaching.routes import MASTER_ID, TopicRoute
from tandemmq.cluster.remoting import Command, RequestCode, ResponseCode
from tandemmq.storage import fastjson

TIMEOUT_MS: Final = 5_000  # RocketMQ's for its tools
RELAY_TIMEOUT_MS: Final = 15_000  # the broker itself waits 10 s for the member it asks
REPORT_TIMEOUT_MS: Final = 50_000  # a broker with many groups takes its time
REMARKS_MAX: Final = 64
#: changes that a master's slaves must have too
SHARED: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
    }
)

Value = TypeVar("Value")


class UnknownCluster(ClientError):
    """No broker of a cluster of that name is registered at the name server.

    Attributes: cluster, known (the names that are).
    """

    def __init__(self, cluster: str, known: Sequence[str]) -> None:
        names = ", ".join(known) or "none: is a broker running and registered there?"
        super().__init__(f"no cluster {cluster!r} at the name server; there is {names}")
        self.cluster = cluster
        self.known = tuple(known)


class AdminCalls:
    """Life, targets and requests; Admin's subjects build on it.

    namesrv     "host:9876;host:9876", a sequence of addresses, or None for NAMESRV_ADDR
    tls         None: plain TCP
    config      instead of namesrv and tls, with access key and more; names are always full ones,
                whatever its namespace
    timeout_ms  for one request
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        config: ClientConfig | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        if timeout_ms < 1:
            raise ValueError(f"timeout_ms must be at least 1, got {timeout_ms}")
        self._config = one_config(config, namesrv, "", tls)
        self._timeout_ms = timeout_ms
        self._instance: ClientInstance | None = None
        self._remarks: deque[tuple[str, str]] = deque(maxlen=REMARKS_MAX)

    async def __aenter__(self) -> Self:
        if self._instance is None:
            self._instance = await instances.lease(self._config)
        return self

    async def __aexit__(self, *_: object) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            await instances.release(instance)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The name servers known now, "host:port", looked up ones included once one was asked.

        Example: for address in admin.name_servers: ...
        """
        return self._running().name_servers.addresses

    @property
    def remarks(self) -> tuple[tuple[str, str], ...]:
        """(broker, what it said) of changes that were made, but may not outlive their master: the last ones.

        A TandemMQ master whose sends wait for slaves names those that do not have a change of topics or groups yet.

        Example: for address, remark in admin.remarks: print(address, remark)
        """
        return tuple(self._remarks)

    # Targets

    async def cluster(self, cluster: str | None = None) -> dict[str, BrokerMembers]:
        """Every broker name with its members, or those of one cluster; sorted by cluster and name.

        Raises NoNameServer, BrokerRefused, BrokerAnswerBroken, UnknownCluster.

        Example:
            for broker in (await admin.cluster()).values():
                print(broker.cluster, broker.name, broker.master)
        """
        answer = await self._ask_any(RequestCode.GET_BROKER_CLUSTER_INFO)
        found = bodies.read(
            answer.body, bodies.ClusterInfo, "the cluster list", "the name server"
        ).value()
        if cluster is None:
            return found
        chosen = {name: each for name, each in found.items() if each.cluster == cluster}
        if not chosen:
            raise UnknownCluster(cluster, sorted({each.cluster for each in found.values()}))
        return chosen

    async def brokers(self) -> dict[str, dict[int, str]]:
        """broker name -> broker id (0 is the master) -> "host:port", as the name server knows them.

        Raises NoNameServer, BrokerRefused, BrokerAnswerBroken.

        Example: address = (await admin.brokers())["broker-a"][0]
        """
        return {name: dict(each.addresses) for name, each in (await self.cluster()).items()}

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """broker name -> address of its master, of one cluster or of all.

        Raises BrokerUnreachable when there is none; as cluster().

        Example: masters = await admin.masters("TandemCluster")
        """
        members = await self.cluster(cluster)
        found = {name: each.master for name, each in members.items()}
        masters = {name: address for name, address in found.items() if address is not None}
        if not masters:
            raise BrokerUnreachable(cluster or "cluster", "no master is registered there")
        return masters

    async def route(self, topic: str) -> TopicRoute:
        """The topic's route: queues per broker name, and addresses. Raises NoRoute, NoNameServer.

        Example: route = await admin.route("Orders")
        """
        return await self._running().fetch_route(topic)

    async def _targets(
        self, addresses: str | Iterable[str] | None, cluster: str | None
    ) -> list[str]:
        """Given addresses, else every master (of the cluster)."""
        if addresses is None:
            return list((await self.masters(cluster)).values())
        return [addresses] if isinstance(addresses, str) else list(addresses)

    async def _topic_brokers(self, topic: str, route: TopicRoute | None = None) -> dict[str, str]:
        """broker name -> who answers for the topic there: the master, else any member."""
        if route is None:
            route = await self.route(topic)
        found = {
            name: members.get(MASTER_ID) or next(iter(members.values()), "")
            for name, members in route.addresses.items()
        }
        return {name: address for name, address in found.items() if address}

    async def _queue_address(self, queue: MessageQueue) -> str:
        brokers = await self._topic_brokers(queue.topic)
        if queue.broker_name not in brokers:
            raise NoRoute(
                queue.topic, f"{queue.broker_name} does not have it; {', '.join(brokers)} does"
            )
        return brokers[queue.broker_name]

    # Requests

    async def _ask(
        self,
        address: str,
        code: RequestCode,
        ext: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        accepted: Collection[int] = (ResponseCode.SUCCESS,),
        timeout_ms: int | None = None,
    ) -> Command:
        command = Command(code, dict(ext) if ext is not None else None, body)
        limit_ms = self._timeout_ms if timeout_ms is None else max(timeout_ms, self._timeout_ms)
        answer = await calls.call(self._running().connections, address, command, limit_ms, accepted)
        if code in SHARED and answer.code == ResponseCode.SUCCESS and answer.remark:
            self._remarks.append((address, answer.remark))
        return answer

    async def _ask_any(
        self,
        code: RequestCode,
        ext: Mapping[str, str] | None = None,
        *,
        accepted: Collection[int] = (ResponseCode.SUCCESS,),
    ) -> Command:
        """One name server, whichever answers."""
        command = Command(code, dict(ext) if ext is not None else None)
        answer = await self._running().name_servers.ask(command)
        if answer.code not in accepted:
            raise BrokerRefused(answer.code, answer.remark, "name server")
        return answer

    async def _ask_each(
        self, code: RequestCode, ext: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> dict[str, Command]:
        """Every name server, since none tells the others. Raises what the first failure raises."""
        if not self.name_servers:
            await self.cluster()  # they are looked up with the first question
        return {address: await self._ask(address, code, ext, body) for address in self.name_servers}

    async def _fetch(
        self,
        address: str,
        code: RequestCode,
        ext: Mapping[str, str] | None,
        kind: type[Value],
        what: str,
        *,
        timeout_ms: int | None = None,
    ) -> Value:
        """A request whose answer carries a JSON body."""
        answer = await self._ask(address, code, ext, timeout_ms=timeout_ms)
        return bodies.read(answer.body, kind, what, address)

    def _running(self) -> ClientInstance:
        if self._instance is None:
            raise NotRunning(
                "the admin client is not running: use `async with Admin(...) as admin`"
            )
        return self._instance


def json_body(value: object) -> bytes:
    """A request body in standard JSON."""
    return fastjson.dumps(value)
