"""Paths and pages: who may read, who may act, and what each request is answered.

    GET  /console/...           pages: with `X-Console-Fragment: 1` only the part that changes, with an ETag
    GET  /console/events        server-sent events: `changed` when the pages show something else
    POST /console/enter, leave  a session for the token
    POST /console/brokers/B/handover, /console/letters/G/again    what acts: a session and its form word

Reading: a session, or whom the port lets read (tandemmq.cluster.httpport.allowed: a peer on this machine, the token).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from aiohttp import web

from tandemmq.cluster.client import ClientConfig
from tandemmq.cluster.httpport import TOKEN, Handler, Room, allowed, open_to_all
from tandemmq.console import assets, words
from tandemmq.console.asking.watcher import Watcher
from tandemmq.console.desk import Desk
from tandemmq.console.markup import Html
from tandemmq.console.pages import frame, others
from tandemmq.console.pages.frame import Page, View
from tandemmq.console.pages.parts import path_of
from tandemmq.console.paths import ROUTES
from tandemmq.console.sessions import COOKIE, LASTS_S, Session, Sessions, carries

log = logging.getLogger(__name__)

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: a report is somebody else's page: it may look as it likes, and do nothing
REPORT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
HEADERS: Final = {
    "Server": "TandemMQ",
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FRAGMENT: Final = "X-Console-Fragment"
THEME: Final = "tandem_theme"
FORM: Final = "application/x-www-form-urlencoded"
FORM_BYTES_MAX: Final = 64 << 10  # two hundred letters' places have a quarter of it
FORM_S: Final = 10.0  # for a form to be here: who sends it a byte at a time holds nothing for long
STREAMS_MAX: Final = 64
STILL_HERE_S: Final = 15.0
TOGETHER_S: Final = 0.5  # changes within this time are one event
AGAIN_S: Final = 5.0  # after a collector failed


def room(config: ClientConfig, reports: Path | None = None, *, hint: str = "") -> Room:
    """The console of the cluster that `config` reaches, for a port of tandemmq.cluster.httpport.

    reports  a directory whose reports are linked
    hint     where an operator finds the token, in a sentence
    """

    def furnish(app: web.Application) -> None:
        made(config, app[TOKEN], reports, hint=hint).open(app)

    return furnish


def made(config: ClientConfig, token: str, reports: Path | None, *, hint: str = "") -> Console:
    """A console that does not look yet. Raises FileNotFoundError (an installation without the console's files)."""
    return Console(config, assets.load(), Sessions(token, secrets.token_urlsafe), reports, hint)


class Console:
    """What all requests share: the watcher, sessions, and the desk where questions of one viewer are answered."""

    def __init__(
        self,
        config: ClientConfig,
        loaded: dict[str, assets.Asset],
        sessions: Sessions,
        reports: Path | None,
        hint: str,
    ) -> None:
        self._assets = loaded
        self._paths = {name: each.path for name, each in loaded.items()}
        self._by_path = {each.path: each for each in loaded.values()}
        self._sessions = sessions
        self._hint = (
            hint or "It is the httpToken of the server's settings, or what its httpTokenFile holds."
        )
        self._streams: set[asyncio.Task[object]] = set()
        self._watching: asyncio.Task[None] | None = None
        self.watcher = Watcher(config)
        self.desk = Desk(self.watcher, reports)

    def handlers(self) -> dict[str, Handler]:
        """By their names in tandemmq.console.paths."""
        desk, reading, acting, page = self.desk, self._reading, self._acting, self._page
        return {
            "root": self._root,
            "static": self._static,
            "events": reading(self._events),
            "enter form": self._enter_form,
            "enter": self._enter,
            "leave": acting(self._leave),
            "overview": page(desk.overview),
            "broker": page(desk.broker),
            "handover form": page(desk.handover_form),
            "handover": acting(self._act(desk.handover)),
            "topics": page(desk.topics),
            "topic": page(desk.topic),
            "groups": page(desk.groups),
            "group": page(desk.group),
            "messages": page(desk.messages),
            "message": page(desk.message),
            "message body": reading(desk.message_body),
            "letter groups": page(desk.letter_groups),
            "letters": page(desk.letters),
            "letters again": acting(self._act(desk.send_letters_again)),
            "timed": page(desk.timed),
            "story": page(desk.story),
            "reports": page(desk.reports),
            "report": reading(self._report),
            "done": page(desk.done),
        }

    def open(self, app: web.Application) -> None:
        """Add the routes, and what runs beside them."""
        handlers = self.handlers()
        for method, path, name in ROUTES:
            app.router.add_route(method, path, handlers[name])
        app.cleanup_ctx.append(self._beside)
        app.on_shutdown.append(self._shut_down)

    async def _beside(self, app: web.Application) -> AsyncIterator[None]:
        self.start()
        yield
        await self.stop()

    async def _shut_down(self, app: web.Application) -> None:
        self.end_streams()

    def start(self) -> None:
        """Look at the cluster from now on, in the background."""
        self._watching = asyncio.create_task(self._watch(), name="console")

    async def stop(self) -> None:
        """Look no more."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    def end_streams(self) -> None:
        """Let viewers go: their pages ask for another stream by themselves."""
        for task in self._streams:
            task.cancel()

    async def _watch(self) -> None:
        """Collect until cancelled. A bug in here must not take the name server down that the console is a guest of."""
        while True:
            try:
                await self.desk.run()
            except Exception:
                log.exception("the console's collectors failed; again in seconds=%s", AGAIN_S)
            await asyncio.sleep(AGAIN_S)

    # --- who asks ---

    def _session(self, request: web.Request) -> Session | None:
        return self._sessions.of(request.cookies.get(COOKIE), time.monotonic())

    def _view(self, request: web.Request) -> View:
        query = {name: request.query.getall(name)[-1] for name in request.query}
        return View(
            self.watcher.seen,
            time.time_ns() // 1_000_000,
            request.path,
            query,
            self._session(request),
            self._sessions.can_enter,
            request.cookies.get(THEME, ""),
        )

    def _reading(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            if self._session(request) is None and not allowed(request, False):
                if request.headers.get(FRAGMENT) or request.path == "/console/events":
                    return web.Response(status=401, text="sign in\n", headers=HEADERS)
                where = path_of("/console/enter", next=str(request.rel_url))
                return _redirect(where)
            self.watcher.viewed()
            return await handler(request)

        return open_to_all(guarded)

    def _acting(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            session = self._session(request)
            if session is None:
                return self._shown(
                    request,
                    others.problem("Not signed in", "Sign in first: acting needs the token."),
                    403,
                )
            if refused := self._unread(request):
                return refused
            word = (await _form(request)).get("word", "")
            if not carries(session, word):
                log.warning("a form without its word peer=%s path=%s", request.remote, request.path)
                return self._shown(
                    request, others.problem("Not done", "This form is of no page of this session: load it again."), 403
                )  # fmt: skip
            return await handler(request)

        return open_to_all(guarded)

    def _unread(self, request: web.Request) -> web.Response | None:
        """The answer to what is no form of ours: uploads, and what is large; nothing of it is read."""
        size = request.content_length
        if request.content_type == FORM and size is not None and size <= FORM_BYTES_MAX:
            return None
        page = others.problem(
            "Not done", f"A form has at most {FORM_BYTES_MAX} bytes and no files."
        )
        answer = self._shown(request, page, 413)
        answer.force_close()
        return answer

    # --- answers ---

    def _page(self, make: Callable[[web.Request, View], Awaitable[Page]]) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            try:
                page = await make(request, self._view(request))
            except web.HTTPNotFound as missing:
                return self._shown(
                    request,
                    others.problem("Not there", missing.text or "There is no such page."),
                    404,
                )
            return self._shown(request, page)

        return self._reading(handler)

    def _act(self, act: Callable[[web.Request, View], Awaitable[tuple[str, Html]]]) -> Handler:
        """What acts answers with the address of its outcome: loading that again does nothing again."""

        async def handler(request: web.Request) -> web.StreamResponse:
            try:
                title, body = await act(request, self._view(request))
            except web.HTTPBadRequest as problem:
                return self._shown(
                    request,
                    others.problem("Not done", problem.text or "The form cannot be read."),
                    400,
                )
            return _redirect(f"/console/done/{self.desk.keep(title, body)}")

        return handler

    def _shown(self, request: web.Request, page: Page, status: int = 200) -> web.Response:
        view = self._view(request)
        taken = {"X-Console-Taken": words.clock(view.seen.taken_ms)} if view.seen.taken_ms else {}
        if not request.headers.get(FRAGMENT):
            return _html(frame.document(page, view, self._paths), status, HEADERS)
        text = frame.main_part(page)
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:20]}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={**HEADERS, **taken, "ETag": tag})
        return _html(text, status, {**HEADERS, **taken, "ETag": tag})

    @open_to_all
    async def _root(self, request: web.Request) -> web.StreamResponse:
        return _redirect("/console/")

    @open_to_all
    async def _static(self, request: web.Request) -> web.StreamResponse:
        found = self._by_path.get(request.path)
        if found is None:
            return web.Response(status=404, text="there is no such file\n", headers=HEADERS)
        kept = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
        return web.Response(
            body=found.content, content_type=found.kind, charset="utf-8", headers=kept
        )

    async def _report(self, request: web.Request) -> web.StreamResponse:
        found = await self.desk.report(request.match_info["path"])
        if found is None:
            return self._shown(
                request, others.problem("Not there", "There is no such report."), 404
            )
        content, kind = found
        headers = {**HEADERS, "Content-Security-Policy": REPORT_POLICY}
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=headers)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if len(self._streams) >= STREAMS_MAX:
            busy = {**HEADERS, "Retry-After": "5"}
            return web.Response(status=503, text="too many viewers\n", headers=busy)
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        answer = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        try:
            await answer.prepare(request)
            version = -1
            while True:
                self.watcher.viewed()
                now = await self.watcher.changed(version, STILL_HERE_S)
                said = f"event: changed\ndata: {now}\n\n" if now != version else ": still here\n\n"
                await answer.write(said.encode())
                version = now
                await asyncio.sleep(TOGETHER_S)
        except ConnectionError:
            return answer  # the page was closed
        finally:
            self._streams.discard(task)

    # --- coming and going ---

    @open_to_all
    async def _enter_form(self, request: web.Request) -> web.StreamResponse:
        return self._shown(
            request, others.enter(_inside(request.query.get("next", "")), "", self._hint)
        )

    @open_to_all
    async def _enter(self, request: web.Request) -> web.StreamResponse:
        if refused := self._unread(request):
            return refused
        form = await _form(request)
        shown, then = form.get("token", ""), _inside(form.get("next", ""))
        now_s, peer = time.monotonic(), request.remote or ""
        if wait_s := self._sessions.must_wait_s(peer, now_s):
            text = f"Too many wrong tokens: try again in {wait_s:.0f} s."
            return self._shown(request, others.enter(then, text, self._hint), 429)
        session = self._sessions.enter(peer, shown, now_s)
        if session is None:
            log.warning("wrong token at the console peer=%s", request.remote)
            return self._shown(
                request, others.enter(then, "That is not the token.", self._hint), 403
            )
        answer = _redirect(then)
        answer.set_cookie(
            COOKIE, session.key, max_age=int(LASTS_S), path="/console", httponly=True, samesite="Strict",
            secure=request.secure,
        )  # fmt: skip
        return answer

    async def _leave(self, request: web.Request) -> web.StreamResponse:
        self._sessions.leave(request.cookies.get(COOKIE))
        answer = _redirect("/console/")
        answer.del_cookie(COOKIE, path="/console")
        return answer


async def _form(request: web.Request) -> Mapping[str, str]:
    """The fields, by name. Raises HTTPRequestTimeout, HTTPBadRequest (what is no text in its own charset)."""
    try:
        async with asyncio.timeout(FORM_S):
            fields = await request.post()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="the form did not come\n", headers=HEADERS) from None
    except (LookupError, UnicodeError, ValueError):
        raise web.HTTPBadRequest(text="the form cannot be read\n", headers=HEADERS) from None
    return {name: value for name, value in fields.items() if isinstance(value, str)}


def _html(text: Html, status: int, headers: dict[str, str]) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers=headers)


def _redirect(where: str) -> web.Response:
    return web.Response(status=303, headers={**HEADERS, "Location": where})


def _inside(path: str) -> str:
    """A page of ours: what leads elsewhere is the first one."""
    if path.startswith("/console/") and "\\" not in path and path.isprintable():
        return path
    return "/console/"
