"""All that the plane answers, behind one object: made when somebody asks for the first time."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec
from aiohttp import web

from tandemmq.cluster.httpport import HEADERS, PROCESS
from tandemmq.plane.adminapi import AdminApi
from tandemmq.plane.events import Events
from tandemmq.plane.messages import Messages
from tandemmq.plane.openapi import document
from tandemmq.plane.reach import Reach

#: what the client logs of routes and connections would fill a server's log with what each request found anew
CLIENT_LOG: Final = "tandemmq.cluster.client"


class Api:
    """Handlers of the routes in rooms.py, by their names there."""

    def __init__(self, reach: Reach) -> None:
        client_log = logging.getLogger(CLIENT_LOG)
        if client_log.getEffectiveLevel() == logging.INFO:
            client_log.setLevel(logging.WARNING)
        self._admin = AdminApi(reach)
        self._messages = Messages(reach)
        self._events = Events(reach)
        self._document = b""
        self.commands = self._admin.commands
        self.ask = self._admin.ask
        self.order = self._admin.order
        self.send = self._messages.send
        self.receive = self._messages.receive
        self.acknowledge = self._messages.acknowledge
        self.listen = self._events.listen

    async def description(self, request: web.Request) -> web.Response:
        """OpenAPI of this port."""
        if not self._document:
            # a fifth of a second, once; beside the loop, which has clients to serve
            role = request.app[PROCESS].role
            self._document = await asyncio.to_thread(lambda: msgspec.json.encode(document(role)))
        return web.Response(body=self._document, content_type="application/json", headers=HEADERS)

    async def let_go(self) -> None:
        """The port stops: who waits for something hears no more."""
        await self._events.close()

    async def close(self) -> None:
        """Leave groups and connections."""
        await self._messages.close()
