"""The console's paths, and a console that is loaded after its process serves: a name server starts without waiting.

Nothing is imported here that an HTTP port has not loaded already.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Final

from aiohttp import web

from tandemmq.cluster.httpport import TOKEN, Handler, busy, open_to_all

if TYPE_CHECKING:
    from tandemmq.console.room import Console

log = logging.getLogger(__name__)

SETTLED_S: Final = 5.0  # after the port opened: brokers register in the first seconds
AGAIN_S: Final = 5.0  # after loading failed

#: method, path, name of the handler in Console.handlers
ROUTES: Final = (
    ("GET", "/", "root"),
    ("GET", "/console", "root"),
    ("GET", "/console/static/{stamp}/{name}", "static"),
    ("GET", "/console/events", "events"),
    ("GET", "/console/enter", "enter form"),
    ("POST", "/console/enter", "enter"),
    ("POST", "/console/leave", "leave"),
    ("GET", "/console/", "overview"),
    ("GET", "/console/brokers/{name}", "broker"),
    ("GET", "/console/brokers/{name}/handover", "handover form"),
    ("POST", "/console/brokers/{name}/handover", "handover"),
    ("GET", "/console/topics", "topics"),
    ("GET", "/console/topics/{name}", "topic"),
    ("GET", "/console/groups", "groups"),
    ("GET", "/console/groups/{name}", "group"),
    ("GET", "/console/messages", "messages"),
    ("GET", "/console/message", "message"),
    ("GET", "/console/message/body", "message body"),
    ("GET", "/console/letters", "letter groups"),
    ("GET", "/console/letters/{name}", "letters"),
    ("POST", "/console/letters/{name}/again", "letters again"),
    ("GET", "/console/timed", "timed"),
    ("GET", "/console/story", "story"),
    ("GET", "/console/reports", "reports"),
    ("GET", "/console/reports/{path:.+}", "report"),
    ("GET", "/console/done/{key}", "done"),
)


class LateConsole:
    """Loads the console a while after its port opened, or for its first request.

    make  called then, in a thread, with the port's token. What it raises is logged, and tried again
    """

    def __init__(self, make: Callable[[str], Console]) -> None:
        self._make = make
        self._loading = asyncio.Lock()
        self._handlers: Mapping[str, Handler] = {}
        self._console: Console | None = None
        self._failed_s = float("-inf")

    def room(self, app: web.Application) -> None:
        """Add the routes, and what runs beside them."""
        for method, path, name in ROUTES:
            app.router.add_route(method, path, open_to_all(self._later(name)))
        app.cleanup_ctx.append(self._beside)
        app.on_shutdown.append(self._end_streams)

    def _later(self, name: str) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            await self._load(request.app[TOKEN])
            if self._console is None:
                return busy(request, "the console cannot be loaded, the log says why")
            return await self._handlers[name](request)

        return handle

    async def _beside(self, app: web.Application) -> AsyncIterator[None]:
        loading = asyncio.create_task(self._load_soon(app[TOKEN]), name="console loading")
        yield
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        if self._console is not None:
            await self._console.stop()

    async def _load_soon(self, token: str) -> None:
        await asyncio.sleep(SETTLED_S)
        await self._load(token)

    async def _load(self, token: str) -> None:
        async with self._loading:
            loop = asyncio.get_running_loop()
            if self._console is not None or loop.time() - self._failed_s < AGAIN_S:
                return
            try:
                console = await asyncio.to_thread(self._make, token)
            except (
                Exception
            ):  # settings, files, or a bug: the process that it is a guest of goes on
                log.exception("the console cannot be loaded")
                self._failed_s = loop.time()
                return
            self._handlers = console.handlers()
            self._console = console
            console.start()

    async def _end_streams(self, app: web.Application) -> None:
        if self._console is not None:
            self._console.end_streams()
