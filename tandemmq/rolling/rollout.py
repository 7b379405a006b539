"""Carries out a rolling restart: asks the cluster, has servers restarted, waits until each is back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from tandemmq.cluster.client import Admin, ClientConfig, ClientError, NoNameServer
from tandemmq.cluster.client.admin.values import MASTER_ID, BrokerMembers
from tandemmq.cluster.client.errors import NoController
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.rolling.order import (
    HandOver,
    Restart,
    Server,
    Wait,
    classic_order,
    next_step,
    not_back,
    refusal,
    slaves_behind,
)

LOOK_S: Final = 0.2  # between two looks whether somebody is back
WIPE_S: Final = 2.0  # so often name servers are told again to keep producers away
ASK_MS: Final = 2_000

Restarter = Callable[[Server], Awaitable[None]]
"""Restarts a server; returns when it was started again, whether or not it serves yet. Raises CommandFailed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """timeout_s: for one server to come back. drain_s: so long producers are kept away from a master that nobody can
    follow, before it is restarted: RocketMQ's clients ask for routes every 30 s."""

    timeout_s: float = 120.0
    drain_s: float = 35.0


@dataclass(frozen=True, slots=True)
class Done:
    """One step that was done."""

    what: str
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One rolling restart.

    restart  how a server is restarted here
    say      one line per step, for people
    done     the steps so far

    Every method raises CommandFailed, which says what was not back in time and what to look at; what was done stays.
    """

    admin: Admin
    config: ClientConfig
    restart: Restarter
    limits: Limits
    say: Callable[[str], None]
    done: list[Done] = field(default_factory=list, init=False)

    async def brokers(self, names: Sequence[str] | None) -> None:
        """Every group, or those named, one after the other."""
        members = await self.admin.cluster()
        for name in names or ():
            if name not in members:
                raise CommandFailed(f"no broker named {name} is registered", ExitCode.NOT_FOUND)
        chosen = [members[name] for name in (names or sorted(members))]
        controlled = [each for each in chosen if await self._refusal(each)]
        for each in chosen:
            if each in controlled:
                await self._group(each.name)
            else:
                await self._classic(each, members)

    async def _refusal(self, members: BrokerMembers) -> bool:
        """Whether this group has a controller. Raises CommandFailed for one that would refuse sends meanwhile."""
        address = members.master or next(iter(members.addresses.values()))
        settings = await self.admin.broker_config(address)
        if settings.get("enableControllerMode") != "true":
            return False
        groups = await self.admin.replica_sets(members.name)
        why = refusal(groups[members.name], settings) if members.name in groups else ""
        if why:
            raise CommandFailed(why)
        return True

    async def _group(self, name: str) -> None:
        """A group under a controller."""
        left: set[int] | None = None
        while True:
            step = await self._next(name, left)
            if isinstance(step, HandOver):
                began = time.monotonic()
                found = await self.admin.switchover(name, step.to)
                if found.announced_ms is None:
                    raise CommandFailed(
                        f"{name}: {step.to} leads, and the name server does not send clients there yet"
                    )
                self._step(f"{name}: {found.before.master_id} handed over to {step.to}", began)
                continue
            group = (await self.admin.replica_sets(name))[name]
            left = set(group.replicas) if left is None else left
            if step is None:
                if left:
                    continue
                return
            if step.server.broker_id == group.master_id and len(group.replicas) > 1:
                continue  # it was elected just now: the next look hands over first
            await self._restarted(step.server)
            left.discard(step.server.broker_id)

    async def _next(self, name: str, left: set[int] | None) -> Restart | HandOver | None:
        """What to do when the whole group is in sync; waits for that."""
        deadline = time.monotonic() + self.limits.timeout_s
        why = ""
        while time.monotonic() < deadline:
            try:
                group = (await self.admin.replica_sets(name)).get(name)
            except ClientError as problem:
                why = str(problem)  # a controller that is being restarted itself
            else:
                if group is None:
                    raise CommandFailed(f"the controller knows no group {name}", ExitCode.NOT_FOUND)
                step = next_step(group, set(group.replicas) if left is None else left)
                if not isinstance(step, Wait):
                    return step
                why = step.why
            await asyncio.sleep(LOOK_S)
        raise CommandFailed(
            f"not within {self.limits.timeout_s:g} s: {why}. Nothing more was restarted; `tandem doctor` says more",
            ExitCode.NOT_RUNNING,
        )

    async def _classic(self, members: BrokerMembers, all_members: dict[str, BrokerMembers]) -> None:
        """A group whose roles are fixed. Nobody takes over: producers are sent to other groups meanwhile."""
        name = members.name
        others = [
            each
            for each in all_members.values()
            if each.name != name and each.master and each.cluster == members.cluster
        ]
        slaves = len([each for each in members.addresses if each != MASTER_ID])
        for server in classic_order(name, members.addresses):
            if server.broker_id != MASTER_ID:
                await self._restarted(server)
                continue
            if members.master and slaves:
                await self._caught_up(members.master, slaves)
            if not others:
                self.say(
                    f"{name}: nobody else takes messages or can take over: sends fail while it is away"
                )
                await self._restarted(server)
                continue
            try:
                await self._kept_away(name)
                await self._restarted(server)
            except BaseException:
                # It may run on as it was. Not after a restart: then it has registered what its topics allow, and this
                # would make those writable that are not.
                await self.admin.add_write_perm(name)
                raise
            if slaves:
                await self._caught_up(server.address, slaves)

    async def _kept_away(self, name: str) -> None:
        """Producers, until those have asked for routes again who knew the former ones."""
        began = time.monotonic()
        left_s = self.limits.drain_s
        while True:
            # again and again: a topic that is made or changed meanwhile is registered, and can be written
            await self.admin.wipe_write_perm(name)
            if left_s <= 0:
                break
            await asyncio.sleep(min(left_s, WIPE_S))
            left_s = self.limits.drain_s - (time.monotonic() - began)
        self._step(f"{name}: producers are kept away", began)

    async def _caught_up(self, master: str, slaves: int) -> None:
        await self._until(f"slaves of {master}", lambda: self._slaves_behind(master, slaves))

    async def _slaves_behind(self, master: str, slaves: int) -> str:
        return slaves_behind(await self.admin.replica_state(master), slaves)

    async def _restarted(self, server: Server) -> None:
        """A broker, restarted and back."""
        began = time.monotonic()
        before = await self._status(server)
        await self.restart(server)
        await self._until(str(server), lambda: self._not_back(server, before))
        self._step(f"{server} restarted", began)

    async def _status(self, server: Server) -> dict[str, str]:
        try:
            return await self.admin.broker_status(server.address)
        except ClientError:
            return {}

    async def _not_back(self, server: Server, before: dict[str, str]) -> str:
        known = (await self.admin.brokers()).get(server.name, {})
        address = server.address
        if (
            address not in known.values()
        ):  # made anew it may have another one: the controller knows it by its id
            with contextlib.suppress(ClientError):
                group = (await self.admin.replica_sets(server.name)).get(server.name)
                if group is not None and server.broker_id in group.replicas:
                    address = group.replicas[server.broker_id].address
        now = await self._status(replace(server, address=address))
        return not_back(before, now, registered=address in known.values())

    async def name_servers(self) -> None:
        """Each name server, one after the other, with the controller that may be in it."""
        await self.admin.cluster()
        for address in self.admin.name_servers:
            began = time.monotonic()
            config = replace(self.config, namesrv=address)
            async with Admin(config=config, timeout_ms=ASK_MS) as one:
                known = {at for ids in (await one.brokers()).values() for at in ids.values()}
                await self.restart(Server("nameserver", address, -1, address))
            await self._until(address, partial(self._forgotten, config, known))
            with contextlib.suppress(NoController):
                await self._until("the controller", self._leaderless)
            self._step(f"name server {address} restarted", began)

    async def _forgotten(self, config: ClientConfig, known: set[str]) -> str:
        async with Admin(config=config, timeout_ms=ASK_MS) as one:
            now = {at for ids in (await one.brokers()).values() for at in ids.values()}
        return (
            f"{', '.join(sorted(known - now))} is not registered there again" if known - now else ""
        )

    async def _leaderless(self) -> str:
        """Raises NoController where no broker runs under one."""
        for address in await self.admin.controllers():
            with contextlib.suppress(ClientError):
                if (await self.admin.controller_state(address)).leader_address:
                    return ""
        return "no controller leads"

    async def _until(self, who: str, problem: Callable[[], Awaitable[str]]) -> None:
        """Look until there is no problem. Raises CommandFailed."""
        deadline = time.monotonic() + self.limits.timeout_s
        why = ""
        while time.monotonic() < deadline:
            try:
                why = await problem()
            except NoController:
                raise
            except (ClientError, NoNameServer) as failure:
                why = str(failure)
            if not why:
                return
            await asyncio.sleep(LOOK_S)
        raise CommandFailed(
            f"{who} is not back within {self.limits.timeout_s:g} s: {why}. Nothing more was "
            "restarted; look at its log, then start over: who is restarted again is no harm",
            ExitCode.NOT_RUNNING,
        )

    def _step(self, what: str, began: float) -> None:
        self.done.append(Done(what, round(time.monotonic() - began, 3)))
        self.say(f"{what} after {self.done[-1].seconds:.1f} s")
