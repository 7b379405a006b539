"""What clients are refused leaves a trace: a line that names the client and the reason, and a count.

Clients of other makers keep such an answer to themselves and stand still; a broker that does not say so either leaves
nothing to look for.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from tandemmq.cluster.logs import OnceEach
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler

log = logging.getLogger(__name__)

REASON_CHARACTERS_MAX: Final = 300
_NAME_CHARACTERS_MAX: Final = 260

#: what producers and consumers live by
WATCHED: Final = (
    RequestCode.HEART_BEAT,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
)
#: answers that are no refusals: done, nothing there, go on elsewhere, or stored and perhaps not safe
_TAKEN: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)


class Refusals:
    """Counts what the handlers of WATCHED refuse, and names who was refused.

    counts   (request, code), both by name -> how often; as many as there are names
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._first = OnceEach(monotonic_ms)

    def noticing(self, table: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers; those of WATCHED tell what they refuse."""
        watched = frozenset(map(int, WATCHED))
        return {
            code: self._watch(handler) if code in watched else handler
            for code, handler in table.items()
        }

    def _watch(self, handler: Handler) -> Handler:
        async def later(
            command: Command, connection: Any, awaited: Awaitable[Command | None]
        ) -> Command | None:
            try:
                answer = await awaited
            except Exception as problem:
                self._failed(command, connection, problem)
                raise
            if answer is not None and answer.code not in _TAKEN:
                self.note(command, connection, answer.code, answer.remark or "")
            return answer

        @functools.wraps(handler)
        def handle(command: Command, connection: Any) -> Any:
            try:
                answer = handler(command, connection)
            except Exception as problem:
                self._failed(command, connection, problem)
                raise
            if answer is None:
                return None
            if not isinstance(answer, Command):
                return later(command, connection, answer)
            if answer.code not in _TAKEN:
                self.note(command, connection, answer.code, answer.remark or "")
            return answer

        return handle

    def _failed(self, command: Command, connection: Any, problem: Exception) -> None:
        """The connection answers it with this code, see Connection.dispatch."""
        self.note(command, connection, ResponseCode.SYSTEM_ERROR, str(problem))

    def unsupported(self, command: Command, connection: Any) -> None:
        """A request that there is no handler for: the ends of transactions, pops, replies, and what nobody knows."""
        self.note(command, connection, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no handler")

    def note(self, command: Command, connection: Any, code: int, reason: str) -> None:
        """A request was answered with a code that refuses it."""
        request, refusal = _named(RequestCode, command.code), _named(ResponseCode, code)
        self.counts[request, refusal] += 1
        host, port = connection.peer[:2]
        client = f"{host}:{port}"
        if not self._first((client, command.code)):
            return
        ext = command.ext or {}
        group = ext.get("consumerGroup") or ext.get("producerGroup") or ext.get("group")
        log.warning(
            "request refused request=%s code=%d %s peer=%s group=%s topic=%s why=%s suppressed=%d",
            request,
            code,
            refusal,
            client,
            str(group or ext.get("a") or "-")[:_NAME_CHARACTERS_MAX],
            str(ext.get("topic") or ext.get("b") or "-")[:_NAME_CHARACTERS_MAX],
            reason.partition("\n")[0][:REASON_CHARACTERS_MAX],
            self._first.suppressed,
        )


def _named(codes: type[RequestCode] | type[ResponseCode], code: int) -> str:
    """The name of a code; of those that have none, one for all."""
    try:
        return codes(code).name
    except ValueError:
        return "OTHER"
