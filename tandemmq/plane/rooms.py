"""The plane's routes on a port. What answers them is loaded for the first who asks: a process that is only scraped
does without.

Nothing is imported here that the port has not loaded already.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from tandemmq.cluster.httpport import Handler, Room

if TYPE_CHECKING:
    from tandemmq.plane.api import Api

#: method, path, name of the handler in Api
ROUTES: Final = (
    ("GET", "/api/openapi.json", "description"),
    ("GET", "/api/admin", "commands"),
    ("GET", "/api/admin/{name}", "ask"),
    ("POST", "/api/admin/{name}", "order"),
    ("POST", "/api/topics/{topic}/messages", "send"),
    ("GET", "/api/topics/{topic}/messages", "receive"),
    ("DELETE", "/api/topics/{topic}/messages", "acknowledge"),
    ("GET", "/api/events", "listen"),
)


class LateApi:
    """Loads the Api for its first request.

    make   called then, beside the loop; what it returns is asked for good
    """

    def __init__(self, make: Callable[[], Api]) -> None:
        self._make = make
        self._loading = asyncio.Lock()
        self._api: Api | None = None
        self._guard: Callable[[Handler], Handler] | None = None

    def room(self, app: web.Application) -> None:
        """Add the routes, and our end with that of the port."""
        for method, path, name in ROUTES:
            app.router.add_route(method, path, self._later(name))
        app.on_shutdown.append(self._let_go)
        app.on_cleanup.append(self._close)

    def _later(self, name: str) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            api = await self._loaded()
            handler: Handler = getattr(api, name)
            assert self._guard is not None
            return await self._guard(handler)(request)

        return handle

    async def _loaded(self) -> Api:
        async with self._loading:
            if self._api is None:
                serving: Any = await asyncio.to_thread(
                    importlib.import_module, "tandemmq.plane.serving"
                )
                await asyncio.to_thread(importlib.import_module, "tandemmq.plane.api")
                self._guard = serving.api
                self._api = self._make()
            return self._api

    async def _let_go(self, _: web.Application) -> None:
        if self._api is not None:
            await self._api.let_go()

    async def _close(self, _: web.Application) -> None:
        if self._api is not None:
            await self._api.close()


def plane_room(make: Callable[[], Api]) -> Room:
    """The admin API, messages, events, and their description."""

    def room(app: web.Application) -> None:
        LateApi(make).room(app)

    return room
