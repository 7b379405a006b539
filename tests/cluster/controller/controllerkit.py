"""A controller without sockets or clocks: its store, its peers and the time are in the test's hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from timekit import HandClock

from tandemmq.cluster.controller.config import ControllerConfig
from tandemmq.cluster.controller.server import Controller, reply_to
from tandemmq.cluster.controller.store import Changes, Leader, LeadershipLost, StoreUnreachable
from tandemmq.cluster.remoting import Command
from tandemmq.cluster.remoting.connection import Connection
from tandemmq.replication import GroupRecord


class HandStore:
    """Keeps records when the test says so."""

    def __init__(self, lines: list[str], *, at_once: bool = False) -> None:
        self.records: dict[str, GroupRecord] = {}
        self.leads = True
        self.other = Leader()
        self.at_once = at_once
        self._lines = lines
        self._result: asyncio.Future[Exception | None] | None = None

    async def open(self) -> None: ...

    async def lead(self) -> list[GroupRecord]:
        return list(self.records.values())

    def leading(self) -> bool:
        return self.leads

    def leader(self) -> Leader:
        return Leader("n0", "127.0.0.1:9878") if self.leads else self.other

    async def write(self, changes: Changes) -> None:
        self._lines.append("  store < " + " ".join(map(told, changes.items())))
        if not self.at_once:
            self._result = asyncio.get_running_loop().create_future()
            problem = await self._result
            if problem is not None:
                raise problem
        for name, record in changes.items():
            if record is None:
                self.records.pop(name, None)
            else:
                self.records[name] = record

    def finish(self, how: str) -> None:
        assert self._result is not None, "nothing is being written"
        problems: dict[str, Exception | None] = {
            "stored": None,
            "unreachable": StoreUnreachable("the test says so"),
            "deposed": LeadershipLost("another controller leads"),
        }
        if how == "deposed":
            self.leads = False
            self.other = Leader("n1", "127.0.0.1:9868")
        result, self._result = self._result, None
        result.set_result(problems[how])

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None: ...


def told(change: tuple[str, GroupRecord | None]) -> str:
    """A record as transcripts show it."""
    name, record = change
    if record is None:
        return f"{name}(forgotten)"
    base = f" electing_from={list(record.electing_from)}" if record.electing_from else ""
    return (
        f"{name}(members={sorted(record.members)} master={record.master} epoch={record.epoch} "
        f"set={list(record.sync_set)}/{record.set_number}{base})"
    )


class Line:
    """As much of a connection as a controller looks at; what it sends is written down."""

    def __init__(self, number: int, lines: list[str], address: str = "127.0.0.1:50000") -> None:
        self.id = number
        self.address = address
        self.closed = False
        self.sent: list[Command] = []
        self._lines = lines

    def send(self, command: Command) -> None:
        if self.closed or command.oneway:
            return
        self.sent.append(command)
        self._lines.append(f"  {self.id} < {shown(command)}")

    def oneway(self, command: Command) -> None:
        self._lines.append(f"  {self.id} < notice {shown(command)}")


def shown(command: Command) -> str:
    """Code, remark, ext fields and body of what was sent."""
    words = [str(int(command.code))]
    if command.remark:
        words.append(f"({command.remark})")
    words += [f"{name}={value}" for name, value in sorted((command.ext or {}).items())]
    if command.body:
        words.append(bytes(command.body).decode())
    return " ".join(words)


class Table:
    """A controller, leading from the start, and the lines it is asked over."""

    def __init__(self, *, at_once: bool = False, leads: bool = True, **settings: str) -> None:
        self.lines: list[str] = []
        self.clock = HandClock()
        self.store = HandStore(self.lines, at_once=at_once)
        self.store.leads = leads
        config = ControllerConfig.from_properties({"controllerStorePath": "/none", **settings})
        self.controller = Controller(
            config, self.store, self.clock, notify=self._notify, probe=self._probe
        )
        self.connections: dict[int, Line] = {}
        self.controller.connections = cast(Mapping[int, Connection], self.connections)
        self._handlers = self.controller.table()
        self._probing: asyncio.Future[bool] | None = None
        self._task: asyncio.Task[None] | None = None

    def _notify(self, address: str, command: Command) -> None:
        self.lines.append(f"  {address} < notice {shown(command)}")

    async def _probe(self, address: str) -> bool:
        self.lines.append(f"  probe {address}")
        self._probing = asyncio.get_running_loop().create_future()
        return await self._probing

    def probed(self, refused: bool) -> None:
        assert self._probing is not None and not self._probing.done(), "no probe is under way"
        self._probing.set_result(refused)

    async def __aenter__(self) -> Table:
        if self.store.leads:
            await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.controller.end()

    async def begin(self) -> None:
        """As Controller.run does when it may lead, without ticks."""

        async def reign() -> None:
            current = self.controller.begin(await self.store.lead())
            try:
                await current.run()
            except LeadershipLost as problem:
                self.lines.append(f"  deposed: {problem}")
            finally:
                await self.controller.end()

        self._task = asyncio.get_running_loop().create_task(reign())
        await self.settle()

    async def settle(self) -> None:
        """Let everything happen that can happen by itself."""
        for _ in range(20):
            await asyncio.sleep(0)

    def line(self, session: int) -> Line:
        return self.connections.setdefault(session, Line(session, self.lines))

    async def ask(self, session: int, command: Command) -> None:
        """Send a request as a connection does; the answers are in lines."""
        line = self.line(session)
        handler = self._handlers[command.code]
        try:
            answer: Any = handler(command, cast(Connection, line))
            if answer is not None and not isinstance(answer, Command):
                answer = await answer
        except Exception as problem:
            mapped = reply_to(problem)
            if mapped is None:
                raise
            answer = command.reply(*mapped)
        if answer is not None:
            line.send(answer)
        await self.settle()

    async def answered(self, session: int, command: Command) -> Command:
        """The one answer to a request that is answered at once."""
        before = len(self.line(session).sent)
        await self.ask(session, command)
        found = self.line(session).sent[before:]
        assert len(found) == 1, found
        return found[0]

    async def close_line(self, session: int) -> None:
        line = self.connections.pop(session)
        line.closed = True
        self.controller.connection_closed(cast(Connection, line))
        await self.settle()
