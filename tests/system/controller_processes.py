"""Our controller as a process, and brokers that only speak to it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import ServerProcess
from tandemmq.chaos.servers import python_command, python_env, write_settings
from tandemmq.cluster import controlanswers as answers
from tandemmq.cluster import controlplane as plane
from tandemmq.cluster.remoting import Command, RequestCode, open_channel
from tandemmq.cluster.remoting.channel import Channel
from tandemmq.cluster.remoting.errors import ConnectFailed, RemotingError
from tandemmq.replication import GroupView, LeaseTimes
from tandemmq.replication import election as e

TIMES = LeaseTimes()
GROUP = "a"
ASK_MS = 3_000
END = 100  # of every log, and all of it confirmed


class Controller(ServerProcess):
    """A controller; its directory survives stop, kill and start."""

    READY_S = 20

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "n0",
        port: int | None = None,
        store: Path | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.port = port or PORTS.take((0,))
        self.address = f"{LOOPBACK}:{self.port}"
        self.store = store or directory / "controller"
        path = write_settings(
            directory / f"controller-{name}.conf",
            {
                "controllerDLegerGroup": "group1",
                "controllerDLegerPeers": f"{name}-{self.address}",
                "controllerDLegerSelfId": name,
                "controllerStorePath": self.store,
                **(settings or {}),
            },
        )
        command = python_command("controller", "-c", str(path))
        super().__init__(f"controller {name}", command, directory / f"{name}.log", python_env())

    def start(self) -> Self:
        self.launch()
        self.wait_ready(lambda: "boot success" in self.said(), self.READY_S)
        return self


class FakeBroker:
    """Registers one replica and keeps it alive: as much of a broker as a controller sees.

    view       what the controller said last
    lease_s    when (loop time) the newest lease that it granted was asked for; None before the first
    streaming  what it says about its stream
    listening  whether its address accepts connections, as a living process's does
    """

    def __init__(self, address: str, replica: int, *, controllers: list[str] | None = None) -> None:
        self.controllers = controllers or [address]
        self.replica = replica
        self.process = time.monotonic_ns()
        self.port = PORTS.take((0,))
        self.address = f"{LOOPBACK}:{self.port}"
        self.view = GroupView()
        self.lease_s: float | None = None
        self.leases = 0
        self.streaming = True
        self.silent = False
        self.problems: list[str] = []
        self._numbers = itertools.count(1)
        self._channel: Channel | None = None
        self._server: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(asyncio.Protocol, LOOPBACK, self.port)
        self._task = loop.create_task(self._live(), name=f"broker {self.replica}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    async def die(self) -> None:
        """As kill -9: connections close, and nobody listens any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._channel is not None:
            self._channel.abort("killed")
            self._channel = None
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    @property
    def master(self) -> bool:
        return self.view.master == self.replica

    async def ask(self, command: Command) -> Command:
        if self._channel is None or self._channel.closed:
            raise ConnectFailed(self.controllers[0], "not connected")
        return await self._channel.request(command, ASK_MS)

    async def alter(self, members: set[int], known: Mapping[int, FakeBroker]) -> answers.Reply:
        """1001 with what we know of the set."""
        vouched = tuple((each, known[each].process) for each in sorted(members) if each in known)
        event = e.AlterSyncSet(
            0, GROUP, self.replica, self.view.epoch, frozenset(members), self.view.number, vouched,
            members == set(self.view.members),
        )  # fmt: skip
        reply = answers.read_alter_answer(
            await self.ask(plane.encode_alter_sync_set(event, 0)), event
        )
        self._learn(reply.view)
        return reply

    async def elect(self, *, designated: int = 0) -> answers.Reply:
        """1002, for ourselves or as an operator."""
        event = e.ElectMaster(0, "c", GROUP, designated or self.replica, bool(designated))
        reply = answers.read_elect_answer(await self.ask(plane.encode_elect_master(event, 0)))
        self._learn(reply.view)
        return reply

    def _learn(self, view: GroupView | None) -> None:
        if view is not None and (view.epoch, view.number) >= (self.view.epoch, self.view.number):
            self.view = view

    async def _live(self) -> None:
        while True:
            for address in self.controllers:
                try:
                    await self._serve(address)
                except RemotingError as problem:
                    self.problems.append(f"{address}: {problem}")
            await asyncio.sleep(0.05)

    async def _serve(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        table = {RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self._notified}
        channel = self._channel = await open_channel(host, int(port), timeout_ms=1000, table=table)
        try:
            apply = e.ApplyBrokerId(0, "c", GROUP, self.replica, f"code{self.replica}")
            applied = answers.read_apply_broker_id_answer(
                await self.ask(plane.encode_apply_broker_id(apply))
            )
            if not applied.succeeded:
                self.problems.append(applied.remark)
                return
            register = e.RegisterBroker(
                0,
                0,
                "c",
                GROUP,
                self.replica,
                self.address,
                "",
                self.process,
                "S0",
                False,
                self.view.epoch,
                END,
            )
            answer = answers.read_register_answer(
                await self.ask(plane.encode_register_broker(register, TIMES, 0)), TIMES
            )
            if not isinstance(answer.event, answers.r.Registered):
                self.problems.append(answer.event.why)
                return
            self._learn(answer.event.view)
            if not self.view.epoch:
                await self.elect()
            while not channel.closed:
                if not self.silent:
                    await self._beat()
                await asyncio.sleep(0.1)
        finally:
            channel.close("leaving")

    async def _beat(self) -> None:
        now = asyncio.get_running_loop().time()
        beat = e.Heartbeat(
            0, GROUP, self.replica, self.process, next(self._numbers), self.view.epoch, END, END,
            self.master, self.streaming and not self.master,
        )  # fmt: skip
        answer = await self.ask(plane.encode_heartbeat(beat, "c", self.address))
        found = answers.read_heartbeat_answer(answer)
        if found is None or not found.known:
            self.problems.append(f"heartbeat: {answer.remark}")
            raise ConnectFailed(self.address, "not known, or not leading")
        self._learn(found.view)
        if found.lease:
            self.lease_s = now
            self.leases += 1

    def _notified(self, command: Command, _: Any) -> None:
        self._learn(answers.read_role_notice(command).view)


async def until(holds: Callable[[], object], timeout_s: float, what: str) -> float:
    """Wait until holds(); how long it took. AssertionError when it does not in time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not holds():
        if loop.time() - began > timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        await asyncio.sleep(0.01)
    return loop.time() - began
