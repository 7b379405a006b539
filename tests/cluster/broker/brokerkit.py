"""A whole broker over a small store, its handlers called directly: no sockets, no waiting."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from tandemmq.cluster.broker.broker import Broker
from tandemmq.cluster.remoting.codes import VERSION, LanguageCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage import Draft, encode_properties, fastjson, pack_host

SMALL_STORE = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "400",
}


class TwoClocks:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000
        self.ticks_ms = 1_000_000

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.ticks_ms

    def advance(self, elapsed_ms: int) -> None:
        self.wall_ms += elapsed_ms
        self.ticks_ms += elapsed_ms


class FakeConnection:
    """A peer that writes down what it was sent, and answers what it was told to."""

    ids = itertools.count(1)

    def __init__(self, *, port: int = 40000, language: int = LanguageCode.JAVA) -> None:
        self.id = next(self.ids)
        self.peer = ("10.0.0.7", port)
        self.peer_host = pack_host(*self.peer)
        self.closed = False
        self.language = int(language)
        self.version = VERSION
        self.binary_last = False
        self.sent: list[Command] = []
        self.written: list[bytes] = []
        self.queued_bytes = 0
        self.requests: list[Command] = []
        self.answer: Command | Exception = Command(0)
        self.close_reason = ""
        self._callbacks: list[Callable[[Any], None]] = []

    @property
    def active_ms(self) -> int:
        return 0

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def write_now(self, data: bytes) -> None:
        self.write(data)

    def writelines(self, parts: list[bytes | memoryview]) -> None:
        self.written.append(b"".join(parts))

    def oneway(self, command: Command) -> None:
        self.requests.append(command)

    async def request(self, command: Command, timeout_ms: int) -> Command:
        self.requests.append(command)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def on_close(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def close(self, reason: str = "") -> None:
        self.closed = True
        self.close_reason = reason
        for callback in self._callbacks:
            callback(self)


class Asker:
    """A broker and a way to ask it."""

    def __init__(self, broker: Broker, clock: TwoClocks) -> None:
        self.broker = broker
        self.clock = clock
        self.connection = FakeConnection()

    async def ask(
        self,
        code: int,
        body: Any = None,
        connection: FakeConnection | None = None,
        language: int = LanguageCode.JAVA,
        **ext: object,
    ) -> Command:
        """One request and its answer; ext values become text as clients write them."""
        if isinstance(body, (dict, list)):
            body = msgspec.json.encode(body)
        fields = {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in ext.items()
        }
        request = Command(code, fields, body, opaque=7, language=int(language))
        peer: Any = connection or self.connection
        answer = self.broker.table[code](request, peer)
        if inspect.isawaitable(answer):
            answer = await answer
        assert answer is not None, "the handler answers later"
        assert answer.opaque == 7
        return answer

    async def json(self, code: int, body: Any = None, **ext: object) -> Any:
        """The JSON body of an answer that must be a success."""
        answer = await self.ask(code, body, **ext)
        assert answer.code == 0, answer.remark
        return fastjson.loads(answer.body or b"null")

    def put(self, topic: str, queue_id: int = 0, body: bytes = b"x", **properties: str) -> int:
        """Store a message and make it visible; its position in the log."""
        draft = Draft(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=encode_properties(properties),
            born_ms=self.clock.now_ms(),
            born_host=pack_host("10.0.0.7", 40000),
            store_host=pack_host("127.0.0.1", 10911),
        )
        placed = self.broker.store.put(draft)
        while self.broker.store.dispatch():
            pass
        return int(placed.offset)

    async def heartbeat(
        self,
        group: str,
        *topics: str,
        client_id: str = "client-1",
        connection: FakeConnection | None = None,
        sub_version: int = 1,
        sub_string: str = "*",
        **more: str,
    ) -> Command:
        """One consumer's heartbeat."""
        subscriptions = [
            {"topic": topic, "subString": sub_string, "subVersion": sub_version} for topic in topics
        ]
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": subscriptions,
            **more,
        }
        body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
        return await self.ask(34, body, connection)


MakeBroker = Callable[..., Asker]
