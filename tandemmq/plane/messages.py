"""/api/topics/TOPIC/messages: send, receive and acknowledge with nothing but HTTP.

    POST     one raw body, or application/json with an array: answered when brokers have them
    GET      group=G: the next messages of the group, each leased for a while
    DELETE   group=G: receipts of messages that are done

Whatever is handed out and not acknowledged comes again: at least once, as of every consumer. All three want the token,
for a group that reads moves its position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from tandemmq.cluster.client import Producer, SendResult, StartFrom
from tandemmq.cluster.httpport import allowed, json_response, unauthorized
from tandemmq.command.output import message as message_json
from tandemmq.command.output import sent
from tandemmq.plane import sending
from tandemmq.plane.leases import Lease
from tandemmq.plane.problems import ApiProblem, problem_of
from tandemmq.plane.reach import Reach
from tandemmq.plane.serving import Turns, body_of, object_of, query_of
from tandemmq.plane.sessions import Session, Sessions

GROUP: Final = "TANDEM_HTTP_PRODUCER"
BODY_BYTES_MAX: Final = (
    8 << 20
)  # maxMessageSize of brokers is 4 MB; base64 makes a third more of it
SENDS_AT_ONCE_MAX: Final = 16
ASKING_MAX: Final = 64  # requests that wait for messages
SEND_DEADLINE_S: Final = 30.0
WAIT_S_MAX: Final = 30.0
COUNT_MAX: Final = 256
LEASE_S: Final = 30.0
LEASE_S_MAX: Final = 3_600.0
PARAMETERS: Final = ("group", "max", "wait", "lease", "ack", "tags", "start")


class Messages:
    """Sends and reads for who asks over HTTP."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._sessions = Sessions(reach)
        self._producer: Producer | None = None
        self._starting = asyncio.Lock()
        self._sends = Turns(SENDS_AT_ONCE_MAX, 8 * SENDS_AT_ONCE_MAX, SEND_DEADLINE_S)
        self._asking = 0
        self._reaping: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Groups are left and connections closed."""
        if self._reaping is not None:
            self._reaping.cancel()
            await asyncio.gather(self._reaping, return_exceptions=True)
        await self._sessions.close()
        if self._producer is not None:
            await self._producer.stop()

    # --- send ---

    async def send(self, request: web.Request) -> web.Response:
        """Store what the body has. Raises ApiProblem, ClientError."""
        topic = request.match_info["topic"]
        async with self._sends.turn():  # so many bodies are in memory at once
            body = await body_of(request, BODY_BYTES_MAX)
            if request.content_type == "application/json":
                outgoing = sending.of_json(topic, body)
            else:
                beside = query_of(request), request.headers.items()
                outgoing = [sending.of_bytes(topic, body, *beside)]
            producer = await self._started()
            sends = [_stored(producer, each) for each in outgoing]
            results = await asyncio.gather(*sends, return_exceptions=True)
        return _sent(results)

    async def _started(self) -> Producer:
        async with self._starting:
            if self._producer is None:
                producer = Producer(GROUP, config=await self._reach.client())
                await producer.start()
                self._producer = producer
            return self._producer

    # --- receive ---

    async def receive(self, request: web.Request) -> web.StreamResponse:
        """The next messages of a group. Raises ApiProblem, ClientError."""
        if not allowed(request, writing=True):
            return unauthorized(request)
        topic, given = request.match_info["topic"], query_of(request)
        if unknown := given.keys() - set(PARAMETERS):
            raise ApiProblem(
                400, f"there is no parameter {min(unknown)!r}", f"it takes {', '.join(PARAMETERS)}"
            )
        count_max = int(_number(given, "max", 32, 1, COUNT_MAX))
        wait_s = _number(given, "wait", 0, 0, WAIT_S_MAX)
        lease_ms = int(1000 * _number(given, "lease", LEASE_S, 1, LEASE_S_MAX))
        auto = _one_of(given, "ack", ("later", "auto")) == "auto"
        start = _one_of(given, "start", ("last", "first"))
        tags = given.get("tags", "*")
        if self._asking >= ASKING_MAX:
            raise ApiProblem(
                503, f"{ASKING_MAX} requests wait for messages", "ask again in a second"
            )
        if self._reaping is None:
            self._reaping = asyncio.create_task(self._sessions.run(), name="http sessions")
        self._asking += 1
        try:
            session = await self._sessions.of(
                topic, _group(given), tags, StartFrom.FIRST if start == "first" else StartFrom.LAST
            )
            session.asking += 1
            try:
                leases = await session.take(count_max, wait_s, lease_ms)
                return await _handed_over(request, session, leases, auto=auto)
            finally:
                session.asking -= 1
        finally:
            self._asking -= 1

    # --- acknowledge ---

    async def acknowledge(self, request: web.Request) -> web.Response:
        """Messages that are done. Raises ApiProblem, ClientError."""
        topic, given = request.match_info["topic"], query_of(request)
        group = _group(given)
        receipts: Any = (await object_of(request)).get("receipts")
        if receipts is None:
            receipts = [each for each in given.get("receipts", "").split(",") if each]
        if not isinstance(receipts, list) or not all(isinstance(each, str) for each in receipts):
            raise ApiProblem(
                400, "receipts takes an array of texts", '{"receipts": ["broker-a:3:17"]}'
            )
        if not receipts:
            raise ApiProblem(
                400, "which messages? give receipts", "each message came with its receipt"
            )
        session = self._sessions.known(topic, group)
        if session is None:
            raise ApiProblem(
                410, f"{group} does not read {topic} here any more", "what was not acknowledged comes again"
            )  # fmt: skip
        unknown = await session.acknowledge(receipts)
        return json_response({"acknowledged": len(receipts) - len(unknown), "unknown": unknown})


async def _stored(producer: Producer, each: sending.Outgoing) -> SendResult:
    return await producer.send(each.message, ordering_key=each.ordering_key)


def _sent(results: Sequence[SendResult | BaseException]) -> web.Response:
    """200 when all are stored; else the first failure's status, with what became of each."""
    listed: list[dict[str, Any]] = []
    first: ApiProblem | None = None
    for result in results:
        if isinstance(result, SendResult):
            listed.append(sent(result))
            continue
        problem = problem_of(result) if isinstance(result, Exception) else None
        if problem is None:
            raise result
        first = first or problem
        listed.append({"error": problem.error, "hint": problem.hint})
    if first is None:
        return json_response({"messages": listed})
    body: dict[str, Any] = {"error": first.error, "hint": first.hint}
    if len(listed) > 1:
        body["messages"] = listed
    return json_response(body, status=first.status)


async def _handed_over(
    request: web.Request, session: Session, leases: Sequence[Lease], *, auto: bool
) -> web.StreamResponse:
    """Write the answer: what cannot be written is given back at once, with `auto` what was is acknowledged."""
    listed = [
        {**message_json(each.message), "receipt": each.receipt, "deliveries": each.deliveries}
        for each in leases
    ]
    answer = json_response({"messages": listed})
    try:
        await answer.prepare(request)
        await answer.write_eof()
    except (ConnectionError, asyncio.CancelledError):
        session.give_back(leases)
        raise
    if auto and leases:
        await session.acknowledge([each.receipt for each in leases])
    return answer


def _group(given: Any) -> str:
    group = given.get("group", "")
    if not group:
        raise ApiProblem(
            400, "which group reads? give group", "to look without a group: GET /api/admin/consumeMessage?topic=..."
        )  # fmt: skip
    return str(group)


def _number(given: Any, name: str, default: float, least: float, most: float) -> float:
    text = given.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise ApiProblem(400, f"{name} takes a number, {least:g} to {most:g}; got {text!r}")
    return value


def _one_of(given: Any, name: str, words: tuple[str, ...]) -> str:
    """The first is the default."""
    text = str(given.get(name, words[0]))
    if text not in words:
        raise ApiProblem(400, f"{name} takes {' or '.join(words)}, got {text!r}")
    return text
