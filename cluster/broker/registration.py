"""Keeps every name server informed of this broker: who it is, where it is, which topics it has."""

from __future__ import annotations

import asyncio
import logging
import random
import zlib
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from copy import copy
from typing import Any, Final, Protocol

import msgspec

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.standing.standing import MASTER_ID, Standing
from tandemmq.cluster.broker.tables.topics import TopicConfig, TopicTable
from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting import bodies
from tandemmq.cluster.remoting.channel import Channel, ChannelPool, Tls
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.errors import ConnectFailed, RemotingError
from tandemmq.cluster.remoting.headers import BrokerHeader, RegisterBrokerHeader
from tandemmq.storage import fastjson

log = logging.getLogger(__name__)

RETRY_MS_MIN: Final = 500
RETRY_MS_MAX: Final = 3_000  # clients find no master longer than that after a name server's restart
ANNOUNCED_MS: Final = 3_000  # how long what made a topic waits for name servers to know it
FIRST_ROUND_MS: Final = 1_000  # how long a start waits for name servers that do not answer
UNREGISTER_MS: Final = 1_000
PATIENCE_MS: Final = (
    1_000  # a name server that is silent for so long is asked on a new connection, too
)


class RegistrationRefused(Exception):
    """A name server answered a registration with an error."""


class _OrderTable(msgspec.Struct):
    """Body of a registration's answer: which topics are ordered."""

    table: dict[str, Any] = {}


class Requests(Protocol):
    """How a link reaches its name server; ChannelPool is one."""

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command: ...


def registration(
    config: BrokerConfig, topics: TopicTable, names: Iterable[str] | None, broker_id: int
) -> Command:
    """REGISTER_BROKER with these topics, or with all of them for None.

    A registration of part of the topics still carries the table's version: name servers merge.
    """
    chosen = topics.all() if names is None else filter(None, map(topics.get, names))
    body = fastjson.dumps(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {
                "dataVersion": topics.version.to_json(),
                "mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
                "topicConfigTable": {
                    topic.topic_name: _masked(topic, config.permission) for topic in chosen
                },
                "topicQueueMappingDetailMap": {},
                "topicQueueMappingInfoMap": {},
            },
        }
    )
    header = RegisterBrokerHeader(
        broker_name=config.name,
        broker_addr=config.address,
        cluster_name=config.cluster,
        broker_id=broker_id,
        ha_server_addr=config.ha_address,
        enable_acting_master=False,
        compressed=False,
        body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
    )
    return Command(RequestCode.REGISTER_BROKER, header.to_ext(), body)


def single_registrations(
    config: BrokerConfig, topics: TopicTable, names: Iterable[str]
) -> list[Command]:
    """REGISTER_TOPIC_IN_NAMESRV for each of these topics that there is.

    A name server takes it for no list of all topics, which some drop topics by.
    """
    commands = []
    for topic in filter(None, map(topics.get, names)):
        found = _masked(topic, config.permission)
        queues = {
            "brokerName": config.name,
            "perm": found["perm"],
            "readQueueNums": topic.read_queue_nums,
            "topicSysFlag": topic.topic_sys_flag,
            "writeQueueNums": topic.write_queue_nums,
        }
        body = fastjson.dumps({"queueDatas": [queues]})
        header = {"topic": topic.topic_name}
        commands.append(Command(RequestCode.REGISTER_TOPIC_IN_NAMESRV, header, body))
    return commands


def _masked(topic: TopicConfig, permission: int) -> dict[str, Any]:
    found = topic.to_json()
    if permission != 6:
        found["perm"] &= permission
    return found


class NameServerLink:
    """One name server: registers with it again and again, at once when topics change.

    A registration of everything goes out at the start, every registerNameServerPeriod, and after
    any failure; one of the changed topics alone right after a change. on_ordered gets the names of
    ordered topics. on_master is called when `master` was heard anew: the addresses, for clients and
    for slaves, of the master of our group as this name server knows it.
    """

    def __init__(
        self,
        address: str,
        config: BrokerConfig,
        topics: TopicTable,
        standing: Standing,
        requests: Requests,
        rng: random.Random,
        on_ordered: Callable[[Iterable[str]], None],
        on_master: Callable[[], None],
    ) -> None:
        self.address = address
        self.registered = False
        self.master: tuple[str | None, str | None] = (None, None)
        self.tried = asyncio.Event()
        self._config = config
        self._topics = topics
        self._standing = standing
        self._requests = requests
        self._rng = rng
        self._on_ordered = on_ordered
        self._on_master = on_master
        self._changed: set[str] = set()
        self._everything = True
        self._woken = asyncio.Event()
        self._role_changed = asyncio.Event()
        self._told: list[asyncio.Future[None]] = []  # who waits for the next round's end
        self._failures = 0
        self._odd = once_per(30)

    def topics_changed(self, names: Iterable[str]) -> None:
        """Tell the name server of these topics as soon as it can be."""
        self._changed.update(names)
        self._woken.set()

    def lost(self) -> None:
        """The connection ended, and the name server forgot us with it.

        Register everything again.
        """
        if self.registered:
            self.registered = False
            self._everything = True
            self._woken.set()

    def all_changed(self) -> None:
        """Everything must be registered again: what topics allow has changed."""
        self._everything = True
        self._woken.set()

    def role_changed(self) -> None:
        """Who is master must be known everywhere now: the next try is not waited for."""
        self._role_changed.set()
        self.all_changed()

    async def told(self) -> None:
        """Wait until the changes so far were sent and answered; not for a name server that is away."""
        if self.registered:
            waiting = asyncio.get_running_loop().create_future()
            self._told.append(waiting)
            self._woken.set()
            await waiting

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        everything_at = 0.0
        while True:
            self._woken.clear()
            self._role_changed.clear()
            if self._everything:
                everything_at = loop.time() + self._config.register_interval_ms / 1000
            told, self._told = self._told, []
            try:
                retry_ms = await self._round()
            finally:
                for waiting in told:
                    if not waiting.done():
                        waiting.set_result(None)
            self.tried.set()
            if retry_ms:
                # Not before its time, though topics change: a dead name server must not cost more
                # the more happens.
                with suppress(TimeoutError):
                    async with asyncio.timeout(retry_ms / 1000):
                        await self._role_changed.wait()
                continue
            try:
                async with asyncio.timeout_at(everything_at):
                    await self._woken.wait()
            except TimeoutError:
                self._everything = True

    async def _round(self) -> int:
        """Register what is due; ms to wait before the next try, 0 when it went well."""
        everything, changed = self._everything, frozenset(self._changed)
        if not everything and not changed:
            return 0
        self._everything = False
        self._changed.clear()
        try:
            await self._register(None if everything else changed)
        except (RemotingError, RegistrationRefused, ValueError) as problem:
            self._everything = True
            self.registered = False
            self._failures += 1
            self._odd.warning(
                log,
                "registration failed nameserver=%s failures=%d why=%s",
                self.address,
                self._failures,
                problem,
            )
            ceiling_ms = min(RETRY_MS_MIN << min(self._failures, 8), RETRY_MS_MAX)
            return self._rng.randint(RETRY_MS_MIN, ceiling_ms)
        if not self.registered or self._failures:
            log.info("registered nameserver=%s topics=%d", self.address, len(self._topics))
        self.registered = True
        self._failures = 0
        return 0

    async def _register(self, names: Iterable[str] | None) -> None:
        if names is not None and self._config.single_topics_registered:
            for single in single_registrations(self._config, self._topics, names):
                answer = await self._requests.request(
                    self.address, single, self._config.register_timeout_ms
                )
                if answer.code != ResponseCode.SUCCESS:
                    raise RegistrationRefused(f"code {answer.code}: {answer.remark}")
            return
        command = registration(self._config, self._topics, names, self._standing.broker_id)
        answer = await self._requests.request(
            self.address, command, self._config.register_timeout_ms
        )
        if answer.code != ResponseCode.SUCCESS:
            raise RegistrationRefused(f"code {answer.code}: {answer.remark}")
        told = answer.ext or {}
        self.master = (told.get("masterAddr") or None, told.get("haServerAddr") or None)
        self._on_master()
        if answer.body:
            ordered = bodies.read(_OrderTable, answer.body).table
            self._on_ordered(ordered)

    async def unregister(self) -> None:
        """Say goodbye; a name server that cannot be told notices by itself."""
        header = BrokerHeader(
            broker_name=self._config.name,
            broker_addr=self._config.address,
            cluster_name=self._config.cluster,
            broker_id=self._standing.broker_id,
        )
        command = Command(RequestCode.UNREGISTER_BROKER, header.to_ext())
        try:
            await self._requests.request(self.address, command, UNREGISTER_MS)
        except RemotingError as problem:
            log.info("not unregistered nameserver=%s why=%s", self.address, problem)


class Registration:
    """All name servers of one broker. Source: RocketMQ's BrokerController, BrokerOuterAPI."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        standing: Standing,
        rng: random.Random,
        tls: Tls = None,
    ) -> None:
        self._topics = topics
        self._standing = standing
        self._pool = ChannelPool(tls=tls, sign=config.access.signer)
        self.links = [
            NameServerLink(
                f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
                config,
                topics,
                standing,
                self,
                rng,
                self._ordered,
                self._heard_of_master,
            )
            for host, port in config.name_servers
        ]
        topics.on_change = self.topics_changed
        topics.announced = self.announced
        standing.changes.watch(lambda _: self.role_changed())

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Ask one name server, over a new connection if need be.

        When that ends, the link hears of it. A connection may be dead without knowing it: behind a network that was
        cut for a while the kernel sends again after ever longer pauses, and clients would not hear of a new master
        for as long. So who is silent is asked on a second connection beside the first, and the first answer counts.
        The first connection ends then; a name server may take that for our end, but the link registers anew.
        """
        known = self._pool.peek(address)
        channel = await self._pool.get(address)
        if channel is not known:
            channel.on_close(lambda _: self._lost(address))
        asked = {_asking(channel, command, timeout_ms)}
        second: Channel | None = None
        try:
            while True:
                patience_s = None if second is not None else PATIENCE_MS / 1000
                done, asked = await asyncio.wait(
                    asked, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
                )
                answered = [each for each in done if each.exception() is None]
                if answered or (done and not asked):
                    return (answered or list(done))[0].result()
                if second is None:
                    with suppress(ConnectFailed):  # then the first may still be heard of
                        second = await self._pool.renewed(address)
                        second.on_close(lambda _: self._lost(address))
                        asked.add(_asking(second, command, timeout_ms))
        finally:
            for each in asked:
                each.cancel()
            if second is not None:
                channel.abort(f"silent for {PATIENCE_MS} ms")

    def _lost(self, address: str) -> None:
        for link in self.links:
            if link.address == address:
                link.lost()

    def reached(self) -> list[str]:
        """The addresses of the name servers that know us."""
        return [link.address for link in self.links if link.registered]

    def topics_changed(self, changed: list[TopicConfig]) -> None:
        names = [topic.topic_name for topic in changed]
        for link in self.links:
            link.topics_changed(names)

    def announced(self) -> Awaitable[None] | None:
        """Waits until every name server that is there knows the changes so far; None: there is none."""
        links = [link for link in self.links if link.registered]
        return self._all_told(links) if links else None

    async def _all_told(self, links: list[NameServerLink]) -> None:
        try:
            async with asyncio.timeout(ANNOUNCED_MS / 1000):
                await asyncio.gather(*(link.told() for link in links))
        except TimeoutError:
            log.warning("new topics are used before every name server knows them")

    def all_changed(self) -> None:
        for link in self.links:
            link.all_changed()

    def role_changed(self) -> None:
        for link in self.links:
            link.role_changed()

    def _heard_of_master(self) -> None:
        """The first name server that knows a master is believed; one that forgot it changes nothing
        while another knows it."""
        known = [link.master for link in self.links if link.master != (None, None)]
        if self._standing.broker_id != MASTER_ID:
            self._standing.heard(*(known or [(None, None)])[0])

    def _ordered(self, names: Iterable[str]) -> None:
        self._topics.set_ordered(names)

    async def first_round(self) -> None:
        """Wait until every name server was tried once, but not long for a silent one."""
        waits: list[Awaitable[object]] = [link.tried.wait() for link in self.links]
        try:
            async with asyncio.timeout(FIRST_ROUND_MS / 1000):
                await asyncio.gather(*waits)
        except TimeoutError:
            silent = [link.address for link in self.links if not link.tried.is_set()]
            log.warning("starting without an answer from name servers=%s", ",".join(silent))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for link in self.links:
                group.create_task(link.run(), name=f"register with {link.address}")
            if not self.links:
                await asyncio.get_running_loop().create_future()

    async def close(self, *, goodbye: bool = True) -> None:
        """Unregister everywhere at once, then close the connections.

        Call it when run() has ended. goodbye=False: only close, and name servers forget this
        address; RocketMQ 4's take a goodbye for everybody who has our name and id.
        """
        if goodbye:
            await asyncio.gather(*(link.unregister() for link in self.links if link.registered))
        await self._pool.close()


def _asking(channel: Channel, command: Command, timeout_ms: int) -> asyncio.Task[Command]:
    """A request under way, whose failure is nobody's when another was answered before."""
    task = asyncio.create_task(channel.request(copy(command), timeout_ms))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task
