"""The one HTTP port of a process, the same on brokers, name servers and controllers.

    GET /healthz    it runs; what it is and how far it came, with the token
    GET /readyz     200 while it serves what its role promises, else 503 and why not
    GET /version    which program this is
    GET /metrics    for Prometheus: the page of the exporter's port

What else is served comes in from outside, as rooms: the store's files for audits, the admin API, the console. Nothing
of a room is open unless it says so (open_to_all): reading wants the token or a peer on this machine, everything else
the token. Imported only when httpPort is set: aiohttp costs a start time and memory.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

import tandemmq
from tandemmq.cluster.config import is_loopback
from tandemmq.cluster.httpdoor import SAFE_METHODS, Door, Shown, is_foreign, is_here
from tandemmq.cluster.httplog import http_logger
from tandemmq.cluster.httpsettings import HttpConfig
from tandemmq.cluster.logs import OncePer, once_per
from tandemmq.cluster.metrics import CONTENT_TYPE, MetricPage
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.cluster.remoting.tls import ClientAuth, load_own, server_context

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 256  # more of them hear 503, but for what is open to all
OPEN_MAX: Final = 1_024  # further ones are closed: descriptors are for the store and for clients
HANDSHAKE_S: Final = 10.0
BODY_BYTES_MAX: Final = 8 << 20  # a message of 4 MB as text of base64, and some more
IDLE_S: Final = 30.0  # also for a request that never becomes whole
REFUSALS_LOGGED_EVERY_S: Final = 60.0
HEADERS: Final = {
    "Server": "TandemMQ",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}

Room = Callable[[web.Application], None]
"""Adds routes, and what they need, to the application of a port before it opens."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Open = TypeVar("_Open", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Process:
    """What the port tells of the process that it belongs to.

    role            "broker", "name server" or "controller"
    why_not_ready   what it does not serve now of what its role promises, in words; nothing: it is ready
    told            what /healthz says to who shows the token
    metrics         what /metrics shows
    """

    role: str
    why_not_ready: Callable[[], Sequence[str]]
    told: Callable[[], Mapping[str, Any]]
    metrics: MetricPage


TOKEN: Final = web.AppKey("token", str)
DOOR: Final = web.AppKey("door", Door)
PROCESS: Final = web.AppKey("process", Process)
_CONFIG: Final = web.AppKey("config", HttpConfig)
_WRONG: Final = web.AppKey("wrong", OncePer)
_CONNECTIONS: Final[web.AppKey[Callable[[], int]]] = web.AppKey("connections")


def open_to_all(handler: _Open) -> _Open:
    """Marks a handler that decides for itself who may ask; hosts, origins and wrong tokens are refused before it."""
    handler.open_to_all = True  # type: ignore[attr-defined]
    return handler


def shown(request: web.Request) -> Shown:
    """What a request says for itself."""
    return request.app[DOOR].shown(request.headers.get("Authorization"))


def allowed(request: web.Request, writing: bool) -> bool:
    """Whether who asks may read, or change something: this is where that is decided, for every room.

    To read: the token, or no proxy between us and a peer on this machine (nobody, where access control is on). To
    write: the token. Requests that name another host or come from a page of another origin never get here.
    """
    door = request.app[DOOR]
    return door.let_in(request.headers, request.remote, shown(request), writing=writing)


def refusal(request: web.Request, status: int, error: str, hint: str = "") -> web.Response:
    """An error as JSON for /api/, else as a line of text."""
    if request.path.startswith("/api/"):
        body = msgspec.json.encode({"error": error, "hint": hint})
        return web.Response(
            status=status, body=body, content_type="application/json", headers=HEADERS
        )
    text = f"{error}: {hint}\n" if hint else f"{error}\n"
    return web.Response(status=status, text=text, headers=HEADERS)


def unauthorized(request: web.Request) -> web.Response:
    """401: what to show; a wrong token leaves a line in the log now and then."""
    if shown(request) is Shown.WRONG:
        said = request.app[_WRONG]
        said.warning(log, "wrong token peer=%s", request.remote)
    role = request.app[PROCESS].role
    answer = refusal(request, 401, f"show the {role}'s httpToken", "Authorization: Bearer TOKEN")
    answer.headers["WWW-Authenticate"] = 'Bearer realm="tandem"'
    return answer


def json_response(value: object, *, status: int = 200) -> web.Response:
    """A value as JSON, by msgspec, with the headers of this port."""
    body = msgspec.json.encode(value)
    return web.Response(status=status, body=body, content_type="application/json", headers=HEADERS)


# --- what every process answers ---


@open_to_all
async def _healthz(request: web.Request) -> web.Response:
    if shown(request) is Shown.NOTHING:
        return web.json_response({"status": "ok"})
    return json_response({"status": "ok", **request.app[PROCESS].told()})


@open_to_all
async def _readyz(request: web.Request) -> web.Response:
    process = request.app[PROCESS]
    why = list(process.why_not_ready())
    body = {"status": "not ready" if why else "ready", "role": process.role, "why": why}
    return json_response(body, status=503 if why else 200)


@open_to_all
async def _version(request: web.Request) -> web.Response:
    return json_response(
        {
            "name": "TandemMQ",
            "version": tandemmq.__version__,
            "role": request.app[PROCESS].role,
            "python": platform.python_version(),
        }
    )


@open_to_all
async def _metrics(request: web.Request) -> web.Response:
    open_page = request.app[_CONFIG].metrics_open or is_here(request.headers, request.remote)
    if not open_page and shown(request) is not Shown.RIGHT:
        return unauthorized(request)
    body = await request.app[PROCESS].metrics.text()
    return web.Response(body=body, headers={**HEADERS, "Content-Type": CONTENT_TYPE})


# --- who comes in ---


def _names_us(request: web.Request) -> bool:
    """Whether a request calls us by a name of ours. One of HTTP/1.0 may name nobody: no browser sent it, and
    request.host would ask a resolver what this machine is called, while the loop waits."""
    return "Host" not in request.headers or request.app[DOOR].knows(request.host)


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    app, path = request.app, request.path
    said = shown(request)
    process = app[PROCESS]
    anybody = path == "/metrics" and app[_CONFIG].metrics_open
    if said is not Shown.RIGHT and not anybody and not _names_us(request):
        return refusal(
            request, 403, f"no {process.role} is called {request.host[:100]!r} here",
            "httpServerNames may name it",
        )  # fmt: skip
    if is_foreign(request.headers, request.method):
        return refusal(request, 403, "asked for by a page of another origin")
    if said is Shown.WRONG:
        return unauthorized(request)
    unknown = request.match_info.http_exception
    if unknown is not None:
        if said is not Shown.RIGHT:
            return unauthorized(request)
        return _unknown(request, unknown)
    if not getattr(request.match_info.handler, "open_to_all", False):
        if not allowed(request, request.method not in SAFE_METHODS):
            return unauthorized(request)
        if app[_CONNECTIONS]() > CONNECTIONS_MAX:
            return busy(request)
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        # a few bytes that become millions, unpacked on the loop
        return refusal(request, 415, "a body is taken as it is", "send it without Content-Encoding")
    try:
        return await handler(request)
    except web.HTTPException as problem:
        return _unknown(request, problem)


def busy(request: web.Request, why: str = "too many requests") -> web.Response:
    """503, and the connection closes: come back in a second."""
    answer = refusal(request, 503, why)
    answer.headers["Retry-After"] = "1"
    answer.force_close()
    return answer


def _unknown(request: web.Request, problem: web.HTTPException) -> web.StreamResponse:
    """What the library answers by itself, with our headers; what a room raised on purpose goes out as it is."""
    match problem:
        case web.HTTPNotFound():
            return refusal(request, 404, "there is no such page")
        case web.HTTPMethodNotAllowed():
            answer = refusal(request, 405, f"{request.method[:20]} is not for this page")
            answer.headers["Allow"] = problem.headers.get("Allow", "")
            return answer
        case web.HTTPRequestEntityTooLarge():
            return refusal(request, 413, f"at most {BODY_BYTES_MAX} bytes")
        case _:
            raise problem


# --- the port ---


def application(
    process: Process,
    config: HttpConfig,
    rooms: Sequence[Room] = (),
    *,
    reads_unasked: bool = True,
    names: Iterable[str] = (),
    connections: Callable[[], int] = lambda: 0,
) -> web.Application:
    """The port's application. Raises ConfigError without a token."""
    app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[_guard])
    token = config.read_token()
    known = config.names | {name.lower() for name in names}
    app[TOKEN] = token
    app[DOOR] = Door(token, known, reads_unasked=reads_unasked)
    app[PROCESS] = process
    app[_CONFIG] = config
    app[_WRONG] = once_per(REFUSALS_LOGGED_EVERY_S)
    app[_CONNECTIONS] = connections
    app.add_routes(
        [
            web.get("/healthz", _healthz),
            web.get("/readyz", _readyz),
            web.get("/version", _version),
            web.get("/metrics", _metrics),
        ]
    )
    for room in rooms:
        room(app)
    return app


class _TurnedAway(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


@asynccontextmanager
async def serving_http(
    process: Process,
    config: HttpConfig,
    encryption: Encryption,
    rooms: Sequence[Room] = (),
    *,
    reads_unasked: bool = True,
    names: Iterable[str] = (),
) -> AsyncIterator[None]:
    """Serve the port while the body runs. Raises ConfigError, TlsUnusable, OSError.

    Where the other ports demand TLS this one speaks it too. Who comes in shows the token, and no certificate.
    reads_unasked   who is on this machine may read without the token
    names           what a Host header may say besides addresses and httpServerNames
    """
    context = None
    files = msgspec.structs.replace(encryption.config, client_auth=ClientAuth.NONE).own_files
    if encryption.config.enforced:
        context = await asyncio.to_thread(server_context, files)

    async def renew() -> None:
        # in place: the server keeps the context that it began with
        if context is not None and files.cert_path:
            load_own(context, files.cert_path, files.key_path, files.key_password)

    runner: web.AppRunner | None = None

    def connections() -> int:
        server = runner.server if runner is not None else None
        return len(server.connections) if server is not None else 0

    def accepted() -> asyncio.BaseProtocol:
        server = runner.server if runner is not None else None
        return _TurnedAway() if server is None or connections() >= OPEN_MAX else server()

    app = application(
        process, config, rooms, reads_unasked=reads_unasked, names=names, connections=connections
    )
    runner = web.AppRunner(
        app, access_log=None, logger=http_logger("store"),
        keepalive_timeout=IDLE_S, shutdown_timeout=1.0,
    )  # fmt: skip
    await runner.setup()
    host = config.bind_host
    listening: asyncio.Server | None = None
    try:
        listening = await asyncio.get_running_loop().create_server(
            accepted, host, config.port, ssl=context, backlog=64,
            ssl_handshake_timeout=HANDSHAKE_S if context is not None else None,
        )  # fmt: skip
        scheme = "https" if context is not None else "http"
        log.info("HTTP served url=%s://%s:%d", scheme, host, config.port)
        if not is_loopback(host) and context is None:
            log.warning("the HTTP port is not encrypted host=%s", host)
        encryption.also(renew)
        yield
    finally:
        if listening is not None:
            listening.close()
        await runner.cleanup()
