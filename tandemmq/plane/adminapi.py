"""/api/admin: what `tandem admin` can ask and do, one path per command, made from the table of commands.

    GET  /api/admin           every command: what it does, its parameters, whether it writes
    GET  /api/admin/NAME      of a command that asks; options in the query
    POST /api/admin/NAME      of any; options as a JSON object, or in the query. Wants the token

The answer is {"result": what --json prints, "exit_code": how the command would end, "warnings": [...]}.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from aiohttp import web

from tandemmq.admin.absent import ABSENT
from tandemmq.admin.commands import COMMANDS, SECTIONS
from tandemmq.admin.shape import AdminCommand, Call, Shown
from tandemmq.cluster.client import Admin
from tandemmq.cluster.httpport import allowed, json_response, unauthorized
from tandemmq.command.exits import ExitCode
from tandemmq.command.hints import did_you_mean
from tandemmq.command.output import plain
from tandemmq.plane.options import parameters, parse
from tandemmq.plane.problems import ApiProblem
from tandemmq.plane.reach import Reach
from tandemmq.plane.serving import Turns, merged, object_of, query_of

AT_ONCE_MAX: Final = 4  # a command may ask every broker for every topic: clients come first
WAITING_MAX: Final = 32
DEADLINE_S: Final = 60.0
#: of what a command shows one after the other: messages
ITEMS_MAX: Final = 1_000
ITEMS_BYTES_MAX: Final = 8 << 20


class Warned(msgspec.Struct):
    """What a broker said of a change that it made."""

    broker: str
    remark: str


class Answer(msgspec.Struct, omit_defaults=True):
    """What a command found.

    exit_code   how the command would end: 0, or e.g. 4 where a broker did not answer
    truncated   there was more than an answer may hold
    """

    result: Any
    exit_code: int
    warnings: list[Warned] = []
    truncated: bool = False


class AdminApi:
    """Runs commands for who asks over HTTP."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._turns = Turns(AT_ONCE_MAX, WAITING_MAX, DEADLINE_S)

    async def commands(self, _: web.Request) -> web.Response:
        """Every command."""
        listed = [
            {
                "name": each.name,
                "section": title,
                "summary": each.summary,
                "writes": each.writes,
                "parameters": [
                    {"name": option.name, "required": option.required, "help": option.help, "schema": option.schema}
                    for option in parameters(each).all
                ],
            }
            for title, commands in SECTIONS
            for each in commands
        ]  # fmt: skip
        return json_response({"commands": listed})

    async def ask(self, request: web.Request) -> web.StreamResponse:
        """Run a command that asks, with the query's parameters. Raises as run()."""
        command = command_of(request.match_info["name"])
        if command.writes:
            answer = ApiProblem(405, f"{command.name} changes something", "POST it, with the token")
            raise answer
        arguments = parse(command, query_of(request))
        for dest in command.token_for:
            if getattr(arguments, dest) and not allowed(request, writing=True):
                return unauthorized(request)
        return json_response(await self.run(command, arguments))

    async def order(self, request: web.Request) -> web.StreamResponse:
        """Run any command, with the parameters of a JSON body. Raises as run()."""
        command = command_of(request.match_info["name"])
        given = merged(query_of(request), await object_of(request))
        return json_response(await self.run(command, parse(command, given)))

    async def run(self, command: AdminCommand, arguments: Any) -> Answer:
        """Run a command. Raises what commands and clients raise, TimeoutError, ApiProblem."""
        async with self._turns.turn():
            config = await self._reach.client()
            async with Admin(config=config) as admin:
                call = Call(admin, arguments, config, time.time_ns() // 1_000_000)
                found = command.run(call)
                if not inspect.isawaitable(found):
                    return await _collected(found)
                shown = await found
                warnings = [Warned(address, remark) for address, remark in admin.remarks]
                return Answer(plain(shown.value), int(shown.code), warnings)


def command_of(name: str) -> AdminCommand:
    """Raises ApiProblem (404) for a name that no command has."""
    command = COMMANDS.get(name)
    if command is not None:
        return command
    if name in ABSENT:
        raise ApiProblem(404, f"{name} is not here", ABSENT[name])
    hint = did_you_mean(name, COMMANDS).removeprefix("; ") or "GET /api/admin names the commands"
    raise ApiProblem(404, f"there is no command {name[:100]!r}", hint)


async def _collected(found: AsyncIterator[Shown]) -> Answer:
    """All that a command shows one after the other, up to what an answer may hold."""
    items: list[Any] = []
    size = 0
    code = ExitCode.OK
    async for shown in found:
        item = plain(shown.value)
        size += len(msgspec.json.encode(item))
        if len(items) >= ITEMS_MAX or (items and size > ITEMS_BYTES_MAX):
            return Answer(items, int(code), truncated=True)
        items.append(item)
        code = shown.code
        if len(items) % 32 == 0:
            await asyncio.sleep(0)  # others come between
    return Answer(items, int(code))
