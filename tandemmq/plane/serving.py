"""What every handler of the API does: errors as JSON, bodies within bounds, so many at once and no longer than that."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from aiohttp import web

from tandemmq.cluster.httpport import Handler, refusal
from tandemmq.plane.problems import ApiProblem, problem_of

JSON_BYTES_MAX: Final = 1 << 20  # of a JSON body that is no message
BODY_S: Final = 30.0  # for a body to be here


def api(handler: Handler) -> Handler:
    """A handler whose expected failures are answers {"error": ..., "hint": ...}; bugs stay the port's 500."""

    @functools.wraps(handler)
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException:
            raise
        except Exception as failure:
            problem = problem_of(failure)
            if problem is None:
                raise
            return refused(request, problem)

    return answer


def refused(request: web.Request, problem: ApiProblem) -> web.Response:
    """A problem as an answer."""
    answer = refusal(request, problem.status, problem.error, problem.hint)
    if problem.status == 503:
        answer.headers["Retry-After"] = "1"
    return answer


def query_of(request: web.Request) -> dict[str, str]:
    """The query's parameters. Raises ApiProblem for one that is given twice."""
    found: dict[str, str] = {}
    for name, value in request.query.items():
        if name in found:
            raise ApiProblem(400, f"{name} is given twice")
        found[name] = value
    return found


async def json_of(request: web.Request, bytes_max: int = JSON_BYTES_MAX) -> Any:
    """A JSON body; None where there is none. Raises ApiProblem."""
    body = await body_of(request, bytes_max)
    if not body.strip():
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise ApiProblem(400, f"the body is no JSON: {problem}") from None


async def object_of(request: web.Request) -> dict[str, Any]:
    """A JSON object, {} where there is no body. Raises ApiProblem."""
    found = await json_of(request)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ApiProblem(400, "the body must be a JSON object", '{"topic": "Orders"}')
    return found


async def body_of(request: web.Request, bytes_max: int) -> bytes:
    """The body as it is. Raises ApiProblem: 413 as soon as it is known to be too long, 408 when it does not come."""
    too_long = ApiProblem(413, f"the body may have {bytes_max} bytes")
    if (request.content_length or 0) > bytes_max:
        raise too_long
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.content.iter_any():
                size += len(part)
                if size > bytes_max:
                    raise too_long
                parts.append(part)
    except TimeoutError:
        raise ApiProblem(408, f"the body was not here within {BODY_S:g} s") from None
    return b"".join(parts)


class Turns:
    """So many at once, so many more that wait; others hear 503.

    at_once_max, waiting_max   of requests
    deadline_s                 of one, its waiting included
    """

    def __init__(self, at_once_max: int, waiting_max: int, deadline_s: float) -> None:
        self._turns = asyncio.Semaphore(at_once_max)
        self._room = at_once_max + waiting_max
        self._deadline_s = deadline_s
        self._inside = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Raises ApiProblem, TimeoutError."""
        if self._inside >= self._room:
            raise ApiProblem(503, "too many requests", "ask again in a second")
        self._inside += 1
        try:
            async with asyncio.timeout(self._deadline_s), self._turns:
                yield
        finally:
            self._inside -= 1


def merged(query: Mapping[str, object], body: Mapping[str, object]) -> dict[str, object]:
    """Parameters of query and body together. Raises ApiProblem for one that is in both."""
    if both := query.keys() & body.keys():
        raise ApiProblem(400, f"{min(both)} is in the query and in the body")
    return {**query, **body}
