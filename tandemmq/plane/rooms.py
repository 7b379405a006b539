"""Everything of this package as one room of a process's HTTP port."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec
from aiohttp import web

from tandemmq.cluster.httpport import HEADERS, PROCESS, Room
from tandemmq.plane.adminapi import AdminApi
from tandemmq.plane.messages import Messages
from tandemmq.plane.openapi import document
from tandemmq.plane.reach import Reach

#: what the client logs of routes and connections would fill a server's log with what each request found anew
CLIENT_LOG: Final = "tandemmq.cluster.client"


def plane_room(reach: Reach) -> Room:
    """The admin API, messages, events, and their description."""

    def room(app: web.Application) -> None:
        client_log = logging.getLogger(CLIENT_LOG)
        if client_log.getEffectiveLevel() == logging.INFO:
            client_log.setLevel(logging.WARNING)
        AdminApi(reach).room(app)
        Messages(reach).room(app)
        app.router.add_get("/api/openapi.json", _description)

    return room


async def _description(request: web.Request) -> web.Response:
    role = request.app[PROCESS].role
    if role not in _documents:
        # a fifth of a second, once; beside the loop, which has clients to serve
        _documents[role] = await asyncio.to_thread(lambda: msgspec.json.encode(document(role)))
    return web.Response(body=_documents[role], content_type="application/json", headers=HEADERS)


_documents: dict[str, bytes] = {}
