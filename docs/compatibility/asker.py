"""Asks one side's servers and writes down what they answer, and what they ask of their clients meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from docs.compatibility.answers import NOTHING, Answer, answer_of
from docs.compatibility.servers import SUPER_USER, Side
from tandemmq.cluster.access.signature import sign
from tandemmq.cluster.remoting import (
    Channel,
    Command,
    Connection,
    ConnectionLost,
    Handler,
    RequestCode,
    RequestTimedOut,
    open_channel,
    split_address,
)

ANSWER_MS: Final = 15_000
SETTLED_S: Final = 30.0
CLIENT: Final = "127.0.0.1@compared"


class Asked(NamedTuple):
    """A request of the table; case "" is the sound one, others say what is special about it."""

    code: RequestCode
    case: str = ""

    def __str__(self) -> str:
        return f"{self.code.value} {self.code.name}" + (f" ({self.case})" if self.case else "")


class Asker:
    """One client of every server of a side: what it asks goes over one connection to each."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.answers: dict[Asked, Answer] = {}
        self.asked_of_clients: dict[RequestCode, Answer] = {}
        self._events = {code: asyncio.Event() for code in RequestCode}
        self._channels: dict[str, Channel] = {}
        self._replies: dict[int, bytes] = {
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: _json({"messageQueueTable": {}, "consumerTable": {}}),
            RequestCode.GET_CONSUMER_RUNNING_INFO: _json(
                {"properties": {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                                "PROP_CONSUMER_START_TIMESTAMP": "1700000000000",
                                "PROP_CONSUMEORDERLY": "false"}, "subscriptionSet": [], "mqTable": {},
                 "mqPopTable": {}, "statusTable": {}, "userConsumerInfo": {}}
            ),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: _json(
                {"autoCommit": True, "consumeResult": "CR_SUCCESS", "order": False, "spentTimeMills": 1}
            ),
        }  # fmt: skip

    async def ask(
        self,
        code: RequestCode,
        ext: Mapping[str, object] | None = None,
        body: object = None,
        *,
        case: str = "",
        at: str = "",
        timeout_ms: int = ANSWER_MS,
    ) -> Command:
        """Ask once, and write the answer down. at: the broker unless told otherwise."""
        command = await self.quietly(code, ext, body, at=at, timeout_ms=timeout_ms)
        asked = Asked(code, case)
        assert asked not in self.answers, f"{asked} is asked twice"
        self.answers[asked] = NOTHING if command is None else answer_of(command)
        return command if command is not None else Command(-1)

    async def quietly(
        self,
        code: RequestCode,
        ext: Mapping[str, object] | None = None,
        body: object = None,
        *,
        at: str = "",
        timeout_ms: int = ANSWER_MS,
    ) -> Command | None:
        """Ask without writing down; None when nothing came."""
        channel = await self._channel(at or self.side.broker)
        told = {key: _text(value) for key, value in (ext or {}).items()}
        data = body if isinstance(body, bytes) or body is None else _json(body)
        request = Command(code, told, data)
        try:
            return await channel.request(request, timeout_ms)
        except (RequestTimedOut, ConnectionLost):
            return None

    async def until(
        self, holds: Callable[[Command], bool], code: RequestCode, ext: Mapping[str, object], body: object = None,
        *, at: str = "",
    ) -> Command:  # fmt: skip
        """Ask quietly until the answer holds. Raises TimeoutError."""
        async with asyncio.timeout(SETTLED_S):
            while True:
                answer = await self.quietly(code, ext, body, at=at)
                if answer is not None and holds(answer):
                    return answer
                await asyncio.sleep(0.1)

    async def until_asked(self, code: RequestCode) -> None:
        """Wait until a server has asked its client this. Raises TimeoutError."""
        async with asyncio.timeout(SETTLED_S):
            await self._events[code].wait()

    async def _channel(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is None or channel.closed:
            host, port = split_address(address)
            table: dict[int, Handler] = {int(code): self._asked for code in RequestCode}
            guarded = address == self.side.replica
            channel = self._channels[address] = await open_channel(
                host, port, table=table, sign=_as_super_user if guarded else None
            )
        return channel

    def _asked(self, command: Command, connection: Connection) -> Command:
        self.asked_of_clients.setdefault(RequestCode(command.code), answer_of(command))
        self._events[RequestCode(command.code)].set()
        return command.reply(body=self._replies.get(command.code))

    async def close(self) -> None:
        for channel in self._channels.values():
            channel.abort("done")
        await asyncio.sleep(0)


def _as_super_user(command: Command) -> None:
    sign(command, *SUPER_USER)


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
