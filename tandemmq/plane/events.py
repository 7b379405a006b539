"""/api/events: what changes in the cluster, as server-sent events, within about a second.

The cluster is looked at only while somebody listens, and for a minute after, so that who was away for a moment misses
nothing: it says the last id that it saw, as browsers do by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from typing import Final

from aiohttp import web

from tandemmq.cluster.client import Admin, ClientConfig, ClientError, NoController
from tandemmq.cluster.httpport import HEADERS
from tandemmq.plane.changes import Event, Seen, changes, state
from tandemmq.plane.eventlog import EventLog, Reader, encoded
from tandemmq.plane.problems import ApiProblem
from tandemmq.plane.reach import Reach
from tandemmq.plane.serving import query_of

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
LINGER_S: Final = 60.0
CONTROLLERS_S: Final = 60.0  # so often brokers are asked which controllers they have
HEARTBEAT_S: Final = 15.0
STALL_S: Final = 10.0  # a reader that takes nothing for so long is dropped
READERS_MAX: Final = 32
FIRST_LOOK_S: Final = 5.0
RETRY_MS: Final = 2_000


class Watcher:
    """Looks at the cluster while somebody listens."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self.log = EventLog(secrets.token_hex(4))
        self.seen: Seen | None = None
        self._looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._controllers: tuple[str, ...] | None = None
        self._controllers_s = float("-inf")
        self._unreachable = ""

    @property
    def looking(self) -> bool:
        """Whether what changes is seen: not any more where looking failed in a way that nobody foresaw."""
        return self._task is not None and not self._task.done()

    async def first_look(self) -> None:
        """Begin to look, if nobody does; returns when the cluster was seen. Raises ApiProblem."""
        if not self.looking:
            config = await self._reach.client()
            self._task = asyncio.create_task(self._run(config), name="http events")
            self._task.add_done_callback(_tell_failure)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._looked.wait(), FIRST_LOOK_S)
        if self.seen is None:
            why = self._unreachable or "it does not answer"
            raise ApiProblem(502, f"the cluster cannot be looked at: {why}", "try again in a while")

    async def _run(self, config: ClientConfig) -> None:
        """Until nobody listened for a while; then what was seen is forgotten, and ids begin anew."""
        listened_s = time.monotonic()
        async with Admin(config=config) as admin:
            while self.log.readers or time.monotonic() - listened_s < LINGER_S:
                if self.log.readers:
                    listened_s = time.monotonic()
                await self._look(admin)
                await asyncio.sleep(LOOK_S)
        self.log, self.seen = EventLog(secrets.token_hex(4)), None
        self._looked.clear()

    async def _look(self, admin: Admin) -> None:
        try:
            now = await self._found(admin)
        except ClientError as problem:
            if not self._unreachable:
                self.log.add(Event("unreachable", {"why": str(problem)}))
            self._unreachable = str(problem)
            return
        if self._unreachable:
            self._unreachable = ""
            self.log.add(Event("reachable", {}))
        if self.seen is not None:
            for event in changes(self.seen, now):
                self.log.add(event)
        self.seen = now
        self._looked.set()

    async def _found(self, admin: Admin) -> Seen:
        members = await admin.cluster()
        topics = frozenset(await admin.topics())
        groups = self.seen.groups if self.seen is not None else {}
        # A controller that is away changes nothing: the groups are as they were.
        with contextlib.suppress(ClientError):
            controllers = await self._known_controllers(admin)
            if controllers and members:
                groups = await admin.replica_sets(sorted(members), controllers=controllers)
        return Seen(members, groups, topics)

    async def _known_controllers(self, admin: Admin) -> tuple[str, ...]:
        now_s = time.monotonic()
        if self._controllers is None or now_s - self._controllers_s > CONTROLLERS_S:
            try:
                self._controllers = await admin.controllers()
            except NoController:
                self._controllers = ()
            self._controllers_s = now_s
        return self._controllers

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (failure := task.exception()) is not None:
        log.error("looking at the cluster failed; who listens is let go", exc_info=failure)


class Events:
    """Answers those who listen."""

    def __init__(self, reach: Reach) -> None:
        self._watcher = Watcher(reach)
        self._listening = 0
        self._closing = asyncio.Event()

    async def listen(self, request: web.Request) -> web.StreamResponse:
        """A stream until the reader goes, is too slow to take anything, or the process stops. Raises ApiProblem."""
        query = query_of(request)
        if unknown := query.keys() - {"last_id"}:
            raise ApiProblem(400, f"there is no parameter {min(unknown)!r}", "it takes last_id")
        if self._listening >= READERS_MAX:
            raise ApiProblem(503, f"{READERS_MAX} listen already", "ask another process")
        self._listening += 1
        try:
            await self._watcher.first_look()
            last_id = request.headers.get("Last-Event-ID") or query.get("last_id")
            return await self._stream(request, last_id)
        finally:
            self._listening -= 1

    async def _stream(self, request: web.Request, last_id: str | None) -> web.StreamResponse:
        watcher, ready = self._watcher, asyncio.Event()
        reader = Reader(ready.set)
        answer = web.StreamResponse(headers={**HEADERS, "X-Accel-Buffering": "no"})
        answer.content_type = "text/event-stream"
        await answer.prepare(request)
        events = watcher.log
        events.join(reader, last_id)
        ready.set()
        text = b"retry: %d\n\n" % RETRY_MS
        try:
            while watcher.looking and not self._closing.is_set():
                ready.clear()
                if reader.anew and watcher.seen is not None:
                    reader.anew = False
                    text += encoded(state(watcher.seen), events.last_id)
                text += b"".join(reader.take())
                async with asyncio.timeout(STALL_S):
                    await answer.write(text or b": alive\n\n")
                text = b""
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ready.wait(), HEARTBEAT_S)
        except (ConnectionError, TimeoutError) as problem:
            log.debug("listener gone peer=%s why=%s", request.remote, problem or "it took nothing")
            if request.transport is not None:
                request.transport.abort()
        finally:
            events.leave(reader)
        return answer

    async def close(self) -> None:
        """Who listens is let go."""
        self._closing.set()
        await self._watcher.close()
