"""Two brokers of one name and id would take turns in every route: only one of them stays.

Name servers let the latest registration win, so nobody else would notice (RocketMQ's
RouteInfoManager.registerBroker). Under a controller ids are its to give.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.config import ConfigError, parse_properties
from tandemmq.cluster.remoting import bodies
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.cluster.remoting.errors import ConnectFailed, RemotingError

log = logging.getLogger(__name__)

ASK_MS: Final = 1_000
QUICK_MS: Final = 300  # for a name server while sends wait: one that takes longer is asked later
#: when a broker looks again, after its first registrations. Up to the first it takes no sends: so
#: long another may take from not finding us to having registered, and we still see it in time
LOOKS_MS: Final = (100, 1_000, 3_000)
RIVALS_MAX: Final = 8  # who may tell us of themselves
STAGE: Final = "claimStage"  # extension field of GET_BROKER_CONFIG: asker's and answerer's
OURSELVES: Final = (
    "same"  # in its place: the asker is who answers, under a former address of its own
)


class NameTaken(ConfigError):
    """Another broker has our name and id, or our name in another cluster: it stays, and we end."""


class Stage(IntEnum):
    """How sure a broker is of its name and id. It only ever grows."""

    STARTING = 0  # registered or about to be, and takes no sends
    OPEN = 1
    SETTLED = 2  # looks no more, and stays whoever comes


class Requests(Protocol):
    """How name servers and other brokers are asked; ChannelPool is one."""

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command: ...

    async def close(self) -> None: ...


class NameServers(Protocol):
    """Those that we register with; Registration is one."""

    def reached(self) -> list[str]:
        """The addresses of those that know us."""

    def all_changed(self) -> None:
        """Register everything everywhere again."""


class Namesake(NamedTuple):
    """One broker as a name server knows it."""

    cluster: str
    broker_id: int
    address: str


class _Group(msgspec.Struct, rename="camel"):
    cluster: str = ""
    broker_addrs: dict[int, str] = {}


class _Groups(msgspec.Struct, rename="camel"):
    broker_addr_table: dict[str, _Group] = {}


class Claim:
    """A broker's claim to its name and id: first_look, last_look, open and settle, in this order.

    Of two that meet the one of the later stage stays, of the same stage the smaller address. They
    ask each other, whatever name servers show to whom: who leaves does so while it asks, so its
    stage stands still, and the other's only grows; no later answer can turn the verdict, and not
    both leave. Whom we tell of us and who has to leave judges us before its stage grows, so not
    both stay. That they meet is for any one name server that both reach: it shows who registered
    last, and the other looks 100 ms, 1 s and 3 s after its own registration. Name servers that are
    down are not waited for, and one that comes back later makes nobody leave.
    """

    def __init__(
        self,
        config: BrokerConfig,
        names: Requests,
        brokers: Requests,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """names, brokers: how name servers and brokers are asked; closed when needed no more."""
        self.stage = Stage.STARTING
        self._config = config
        self._names = names
        self._brokers = brokers
        self._sleep = sleep
        self._answering: list[str] = []  # name servers that answered the first look
        self._told: set[Namesake] = set()
        self._told_ever: set[Namesake] = set()

    async def first_look(self) -> None:
        """Before anybody can reach us. Raises NameTaken when another broker lives that has our
        name and id, or our name elsewhere.

        Who cannot be connected to does not live, whatever a name server still says of it; who can,
        and does not answer, may only be slow. A name server that does not answer knows nothing.
        """
        config = self._config
        asked = [
            f"[{at}]:{port}" if ":" in at else f"{at}:{port}" for at, port in config.name_servers
        ]
        found = await self._members(asked, ASK_MS)
        self._answering = list(found)  # the others shall not cost a second wait
        for member in {member for members in found.values() for member in members}:
            if self._is_rival(member) and await self._stage_of(member, {}) is not None:
                raise taken(config, member)

    async def last_look(self) -> None:
        """Reachable, and right before the first registration. Raises NameTaken."""
        await self._look(self._answering, QUICK_MS)

    async def open(self, names: NameServers) -> None:
        """After the first registrations, and before the first send. Raises NameTaken.

        Returns at once when no name server knows us.
        """
        if names.reached() or self._told:
            await self._sleep(LOOKS_MS[0] / 1000)
            await self._look_again(names, QUICK_MS)
        self.stage = Stage.OPEN

    async def settle(self, names: NameServers) -> None:
        """The rest of the start. Raises NameTaken."""
        for before_ms, at_ms in pairwise(LOOKS_MS):
            await self._sleep((at_ms - before_ms) / 1000)
            await self._look_again(names, ASK_MS)
        self.stage = Stage.SETTLED
        await self.close()

    async def close(self) -> None:
        await self._names.close()
        await self._brokers.close()

    async def _look_again(self, names: NameServers, within_ms: int) -> None:
        if not await self._look(names.reached(), within_ms):
            names.all_changed()

    async def _look(self, names: Collection[str], within_ms: int) -> bool:
        """Judge every rival that is seen, or has told us of itself. Raises NameTaken.

        Whether the name servers show us under our id, all that answered. When it returns nobody
        waits to be judged.
        """
        found = await self._members(names, within_ms)
        me = Namesake(self._config.cluster, self._config.broker_id, self._config.address)
        rivals = {member for members in found.values() for member in members}
        while rivals or self._told:
            rivals |= self._told
            self._told = set()
            for member in filter(self._is_rival, rivals):
                await self._judge(member)
            rivals = set()
        return all(
            (me.broker_id, me.address) in {(each.broker_id, each.address) for each in members}
            for members in found.values()
        )

    async def _judge(self, member: Namesake) -> None:
        config = self._config
        theirs = await self._stage_of(member, self._introduction())
        if theirs is None:
            return
        if (theirs, config.address) > (self.stage, member.address):
            raise taken(config, member)
        log.warning(
            "another broker has our name and id, and has to leave address=%s stage=%s ours=%s",
            member.address, theirs.name, self.stage.name,
        )  # fmt: skip

    def _is_rival(self, member: Namesake) -> bool:
        config = self._config
        same = member.broker_id == config.broker_id or member.cluster != config.cluster
        return same and member.address != config.address

    # -- how two brokers meet

    def answering(self, handler: Handler) -> Handler:
        """GET_BROKER_CONFIG's handler that also answers others who claim our name."""

        def handle(command: Command, connection: Any) -> Any:
            answer = handler(command, connection)
            told = command.ext or {}
            if STAGE in told and isinstance(answer, Command):
                self._hear(told)
                is_us = told.get("brokerAddr") == self._config.address
                stage = OURSELVES if is_us else str(int(self.stage))
                answer.ext = {**(answer.ext or {}), STAGE: stage}
            return answer

        return handle

    def _introduction(self) -> dict[str, str]:
        config = self._config
        return {
            "clusterName": config.cluster,
            "brokerName": config.name,
            "brokerId": str(config.broker_id),
            "brokerAddr": config.address,
            STAGE: str(int(self.stage)),
        }

    def _hear(self, told: Mapping[str, str]) -> None:
        if self.stage is Stage.SETTLED or told.get("brokerName") != self._config.name:
            return
        cluster, broker_id = told.get("clusterName", ""), told.get("brokerId", "")
        if not broker_id.isdecimal() or len(self._told_ever) >= RIVALS_MAX:
            return
        member = Namesake(cluster, int(broker_id), told.get("brokerAddr", ""))
        if self._is_rival(member) and member not in self._told_ever:
            self._told_ever.add(member)
            self._told.add(member)

    # -- asking

    async def _members(self, names: Iterable[str], within_ms: int) -> dict[str, list[Namesake]]:
        """The brokers of our name, by the name servers that say so."""
        asked = list(names)
        found = await asyncio.gather(
            *(group_members(self._names, each, self._config.name, within_ms) for each in asked)
        )
        return {
            name: members for name, members in zip(asked, found, strict=True) if members is not None
        }

    async def _stage_of(self, member: Namesake, introduction: dict[str, str]) -> Stage | None:
        """How far the broker there is; None when none lives there, or it is not the one we mean."""
        command = Command(RequestCode.GET_BROKER_CONFIG, introduction)
        answer: Command | None
        try:
            answer = await self._brokers.request(member.address, command, ASK_MS)
        except (ConnectFailed, ValueError):
            answer = None
        except RemotingError:
            return Stage.STARTING  # the least it can be: so it cannot be leaving for us as well
        if answer is None or not is_such_broker(answer, self._config.name, member):
            log.info("registered, and nobody there: taking its place address=%s", member.address)
            return None
        said = (answer.ext or {}).get(STAGE, "")
        if said == OURSELVES:
            return None
        # Who does not know of stages, a stock broker say, does not leave either.
        return Stage.STARTING if said == "0" else Stage.OPEN if said == "1" else Stage.SETTLED


async def group_members(
    names: Requests, name_server: str, broker_name: str, within_ms: int
) -> list[Namesake] | None:
    """The brokers of a name, as one name server knows them; None when it does not say."""
    command = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
    try:
        answer = await names.request(name_server, command, within_ms)
        table = bodies.read(_Groups, answer.body or b"{}")
    except (RemotingError, ValueError) as problem:
        log.info("not asked who has a name nameserver=%s why=%s", name_server, problem)
        return None
    group = table.broker_addr_table.get(broker_name, _Group())
    return [Namesake(group.cluster, each, at) for each, at in group.broker_addrs.items()]


def is_such_broker(answer: Command, name: str, member: Namesake) -> bool:
    """Whether GET_BROKER_CONFIG was answered by it, not by somebody who has its port by now."""
    if answer.code != ResponseCode.SUCCESS:
        return True
    try:
        said = parse_properties(bytes(answer.body or b"").decode("utf-8", "replace"))
    except ConfigError:
        return False
    return (
        said.get("brokerName") == name
        and said.get("brokerId", "0") == str(member.broker_id)
        and said.get("brokerClusterName", member.cluster) == member.cluster
    )


def taken(config: BrokerConfig, member: Namesake) -> NameTaken:
    """Why we may not have our name and id."""
    if member.cluster == config.cluster:
        return NameTaken(
            "brokerId", str(config.broker_id),
            f"{config.name} has a broker with this id already, at {member.address}: "
            "stop that one, or give this one another brokerName or brokerId",
        )  # fmt: skip
    return NameTaken(
        "brokerClusterName", config.cluster,
        f"{config.name} belongs to cluster {member.cluster}, says the broker at {member.address}",
    )  # fmt: skip
