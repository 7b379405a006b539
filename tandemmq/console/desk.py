"""What each page needs of the cluster, asked for and handed to the functions that draw it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

from aiohttp import web

from tandemmq.cluster.client import (
    BrokerRefused,
    ClientError,
    GroupMembers,
    GroupProgress,
    MessageQueue,
    TopicStats,
)
from tandemmq.cluster.client.admin.messages import FOR_EVER_MS
from tandemmq.cluster.process import running
from tandemmq.cluster.remoting import ResponseCode
from tandemmq.command.exits import CommandFailed
from tandemmq.command.times import moment_ms
from tandemmq.console import reports
from tandemmq.console.asking import delayed, letters, messages
from tandemmq.console.asking.asked import Asked
from tandemmq.console.asking.messages import Found, Whereabouts
from tandemmq.console.asking.watcher import Watcher
from tandemmq.console.markup import Html, html
from tandemmq.console.pages import cluster as cluster_pages
from tandemmq.console.pages import groups as group_pages
from tandemmq.console.pages import letters as letter_pages
from tandemmq.console.pages import messages as message_pages
from tandemmq.console.pages import others, parts
from tandemmq.console.pages import story as story_pages
from tandemmq.console.pages import timed as timed_pages
from tandemmq.console.pages import topics as topic_pages
from tandemmq.console.pages.frame import Page, View
from tandemmq.console.seen.servers import BrokerGroup
from tandemmq.console.seen.snapshot import DLQ_PREFIX

SEARCHES_MAX: Final = 4  # at once: each may bring many messages of 4 MB
SEARCH_S: Final = 20.0
OUTCOMES_MAX: Final = 100
HOUR_MS: Final = 3_600_000
MANY_ROWS: Final = 1_000  # so many are drawn in a thread, and nothing is asked for

_Value = TypeVar("_Value")


class Desk:
    """Makes pages. reports: a directory, or None."""

    def __init__(self, watcher: Watcher, reports_in: Path | None) -> None:
        self._watcher = watcher
        self._reports = reports_in
        self._searches = asyncio.Semaphore(SEARCHES_MAX)
        self.outcomes: dict[str, tuple[str, Html]] = {}
        self._order: deque[str] = deque()
        admin, touch = watcher.admin, watcher.touch
        self._stats: Asked[str, TopicStats] = Asked(admin.topic_stats, touch, lasts_s=6.0)
        self._topic_groups: Asked[str, list[str]] = Asked(admin.topic_groups, touch, lasts_s=10.0)
        self._members: Asked[str, GroupMembers] = Asked(self._online, touch, lasts_s=6.0)
        self._progress: Asked[str, GroupProgress] = Asked(admin.progress, touch, lasts_s=4.0)
        self._due: Asked[str, delayed.Queue] = Asked(self._next_due, touch, lasts_s=4.0)

    async def run(self) -> None:
        """Collect until cancelled."""
        async with running(
            watcher=self._watcher.run,
            stats=self._stats.run,
            topic_groups=self._topic_groups.run,
            members=self._members.run,
            progress=self._progress.run,
            due=self._due.run,
        ):
            await asyncio.Event().wait()

    # --- cluster ---

    async def overview(self, request: web.Request, view: View) -> Page:
        return cluster_pages.overview(view)

    async def broker(self, request: web.Request, view: View) -> Page:
        return cluster_pages.broker_group(view, self._group(request, view))

    async def handover_form(self, request: web.Request, view: View) -> Page:
        return cluster_pages.handover(view, self._group(request, view))

    async def handover(self, request: web.Request, view: View) -> tuple[str, Html]:
        """A planned switchover, as `tandem admin switchover`. Refused when the epoch is another by now."""
        name = request.match_info["name"]
        form = await request.post()
        to, epoch = str(form.get("to", "")), str(form.get("epoch", ""))
        if form.get("sure") != "yes":
            raise web.HTTPBadRequest(text="Say that you are sure: the box above the button.")
        if not to.isdecimal() or not epoch.isdecimal():
            raise web.HTTPBadRequest(text="The form does not say who is to lead.")
        admin = self._watcher.admin
        back = html(
            "<p>{}</p>", parts.link(parts.path_of("/console/brokers", name), f"Back to {name}.")
        )
        try:
            now = (await admin.replica_sets(name)).get(name)
            if now is None or now.epoch != int(epoch):
                text = f"{name} is not in epoch {epoch} any more: look again who leads."
                return "Not handed over", html("{}{}", parts.notice("look", text), back)
            done = await admin.switchover(name, int(to))
        except (ClientError, OSError) as problem:
            return "Not handed over", html("{}{}", parts.notice("bad", str(problem)), back)
        told = "The name server does not send clients there yet."
        if done.announced_ms is not None:
            told = f"Clients are sent there after {done.announced_ms:,} ms."
        text = (
            f"{done.before.master_id} handed {name} over to {done.after.master_id} at {done.after.master_address}: "
            f"epoch {done.before.epoch} → {done.after.epoch}, elected after {done.elected_ms:,} ms. {told}"
        )
        return "Handed over", html("{}{}", parts.notice("good", text), back)

    async def story(self, request: web.Request, view: View) -> Page:
        return story_pages.story(view)

    def _group(self, request: web.Request, view: View) -> BrokerGroup:
        name = request.match_info["name"]
        found = view.seen.broker(name)
        if found is None:
            raise web.HTTPNotFound(text=f"No broker group {name} is known here.")
        return found

    # --- topics and groups ---

    async def topics(self, request: web.Request, view: View) -> Page:
        if _many(view):
            return await asyncio.to_thread(topic_pages.topics, view, self._stats.known)
        return topic_pages.topics(view, self._stats.look)

    async def topic(self, request: web.Request, view: View) -> Page:
        name = request.match_info["name"]
        return topic_pages.topic(view, name, self._stats.look(name), self._topic_groups.look(name))

    async def groups(self, request: web.Request, view: View) -> Page:
        if _many(view):
            return await asyncio.to_thread(group_pages.groups, view, self._members.known)
        return group_pages.groups(view, self._members.look)

    async def group(self, request: web.Request, view: View) -> Page:
        name = request.match_info["name"]
        return group_pages.group(view, name, self._members.look(name), self._progress.look(name))

    # --- messages ---

    async def messages(self, request: web.Request, view: View) -> Page:
        query = view.query
        topic, text = query.get("topic", "").strip(), query.get("text", "").strip()
        if not topic or (query.get("by") in ("key", "id") and not text):
            return message_pages.search(view, None, "")
        try:
            found = await self._searched(lambda: self._search(view, topic, text))
        except (ClientError, OSError, ValueError, CommandFailed) as problem:
            return message_pages.search(view, None, str(problem))
        except TimeoutError:
            return message_pages.search(
                view, None, f"It took longer than {SEARCH_S:g} s: narrow it down."
            )
        return message_pages.search(view, found, "")

    async def _search(self, view: View, topic: str, text: str) -> Found:
        query, admin, now_ms = view.query, self._watcher.admin, view.now_ms
        by, begin, end = (
            query.get("by", "newest"),
            query.get("from", "").strip(),
            query.get("to", "").strip(),
        )
        end_ms = moment_ms("to", end, now_ms) if end and end != "now" else FOR_EVER_MS
        match by:
            case "key":
                return await messages.by_key(
                    admin, topic, text, moment_ms("from", begin, now_ms) if begin else 0, end_ms
                )
            case "id":
                return await messages.by_id(admin, topic, text)
            case "time":
                begin_ms = moment_ms("from", begin, now_ms) if begin else now_ms - HOUR_MS
                return await messages.by_time(admin, topic, begin_ms, end_ms)
            case _:
                return await messages.newest(admin, topic, messages.FOUND_MAX)

    async def _searched(self, search: Callable[[], Awaitable[_Value]]) -> _Value:
        """With so many others at most, and not for ever. Raises TimeoutError."""
        async with asyncio.timeout(SEARCH_S), self._searches:
            return await search()

    async def message(self, request: web.Request, view: View) -> Page:
        found = await self._at(view)
        return found if isinstance(found, Page) else message_pages.message(view, found)

    async def _at(self, view: View) -> Whereabouts | Page:
        query = view.query
        queue, offset = query.get("queue", ""), query.get("offset", "")
        if not queue.isdecimal() or not offset.isdecimal() or len(queue) > 9 or len(offset) > 18:
            raise web.HTTPNotFound(text="A message is found by topic, broker, queue and offset.")
        place = MessageQueue(query.get("topic", ""), query.get("broker", ""), int(queue))
        try:
            found = await self._searched(
                lambda: messages.whereabouts(self._watcher.admin, place, int(offset))
            )
        except (ClientError, OSError, ValueError) as problem:
            return others.problem("Message", str(problem))
        except TimeoutError:
            return others.problem("Message", f"No answer within {SEARCH_S:g} s.")
        if found is None:
            raise web.HTTPNotFound(text=f"Nothing lies at {offset} of {place} (any more).")
        return found

    async def message_body(self, request: web.Request) -> web.StreamResponse:
        """The whole body as a file: never as a page, whatever it holds."""
        query = {name: request.query.getall(name)[-1] for name in request.query}
        try:
            found = await self._at(View(self._watcher.seen, 0, query=query))
        except web.HTTPNotFound as missing:
            return web.Response(status=404, text=f"{missing.text}\n")
        if isinstance(found, Page):
            return web.Response(status=502, text="the broker does not give it now\n")
        name = "".join(each for each in found.message.message_id if each.isalnum()) or "message"
        return web.Response(
            body=found.message.body,
            content_type="application/octet-stream",
            headers={
                "Content-Disposition": f'attachment; filename="{name}.bin"',
                "Content-Security-Policy": "default-src 'none'; sandbox",
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "no-store",
            },
        )

    # --- dead letters, delayed ones ---

    async def letter_groups(self, request: web.Request, view: View) -> Page:
        return letter_pages.letter_groups(view, self._stats.look)

    async def letters(self, request: web.Request, view: View) -> Page:
        group = request.match_info["name"]
        rows = view.query.get("rows", "")
        count = min(letters.AGAIN_MAX, int(rows)) if rows.isdecimal() and len(rows) < 6 else 50
        try:
            found = await self._searched(
                lambda: messages.newest(self._watcher.admin, DLQ_PREFIX + group, max(1, count))
            )
        except (ClientError, OSError) as problem:
            return letter_pages.letters(view, group, Found(()), str(problem))
        except TimeoutError:
            return letter_pages.letters(view, group, Found(()), f"No answer within {SEARCH_S:g} s.")
        return letter_pages.letters(view, group, found, "")

    async def send_letters_again(self, request: web.Request, view: View) -> tuple[str, Html]:
        group = request.match_info["name"]
        form = await request.post()
        to = str(form.get("to", ""))
        if to not in (letters.TO_GROUP, letters.TO_TOPIC):
            raise web.HTTPBadRequest(text="The form does not say where to.")
        chosen = [str(each) for each in form.getall("letter", [])]
        if not chosen:
            raise web.HTTPBadRequest(text="Choose a letter first.")
        if len(chosen) > letters.AGAIN_MAX:
            raise web.HTTPBadRequest(text=f"At most {letters.AGAIN_MAX} letters at once.")
        try:
            places = [letters.Place.read(each) for each in dict.fromkeys(chosen)]
        except ValueError as problem:
            raise web.HTTPBadRequest(text=str(problem)) from problem
        try:
            results = await letters.send_again(
                self._watcher.admin, self._watcher.config, group, places, to
            )
        except (ClientError, OSError) as problem:
            return "Not sent again", parts.notice("bad", str(problem))
        return f"Dead letters of {group}", letter_pages.sent_again(group, results)

    async def timed(self, request: web.Request, view: View) -> Page:
        return timed_pages.timed(view, self._due.look("all"))

    async def _online(self, group: str) -> GroupMembers:
        """The members; none is no problem."""
        try:
            return await self._watcher.admin.consumers(group)
        except BrokerRefused as problem:
            if problem.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
        return GroupMembers((), {}, "", "", "")

    async def _next_due(self, key: str) -> delayed.Queue:
        masters = [each.master for each in self._watcher.seen.brokers if each.master is not None]
        return await delayed.next_due(self._watcher.admin, masters, time.time_ns() // 1_000_000)

    # --- reports and outcomes ---

    async def reports(self, request: web.Request, view: View) -> Page:
        if self._reports is None:
            return others.reports(None, "", view.now_ms)
        try:
            found = await asyncio.to_thread(reports.listed, self._reports)
        except OSError as problem:
            return others.problem("Reports", f"{self._reports} cannot be read: {problem.strerror}")
        return others.reports(found, str(self._reports), view.now_ms)

    async def report(self, path: str) -> tuple[bytes, str] | None:
        if self._reports is None:
            return None
        try:
            return await asyncio.to_thread(reports.read, self._reports, path)
        except OSError:
            return None

    def keep(self, title: str, body: Html) -> str:
        """Remember what an action brought; its key."""
        key = secrets.token_urlsafe(12)
        self.outcomes[key] = (title, body)
        self._order.append(key)
        while len(self._order) > OUTCOMES_MAX:
            del self.outcomes[self._order.popleft()]
        return key

    async def done(self, request: web.Request, view: View) -> Page:
        found = self.outcomes.get(request.match_info["key"])
        if found is None:
            raise web.HTTPNotFound(text="What this brought is not remembered any more.")
        return others.outcome(*found)


def _many(view: View) -> bool:
    return parts.Slice.of(view.query, 1 << 30).size > MANY_ROWS
